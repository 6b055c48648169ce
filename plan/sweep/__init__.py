"""What-if sweeps: every legal plan of a space, those that meet constraints, and the best of them."""
