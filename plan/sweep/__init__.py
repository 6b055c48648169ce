"""What-if sweeps: every legal plan of a space, those that meet constraints, and the best of them.

To read, in this order: ``space`` (the file), ``legal`` (which combinations can be plans), ``rows`` (their forecasts),
``choose`` (the best), and ``search``, which goes through all of it.
"""
