"""Which microbenchmarks are worth their time, and the live calibration that runs them."""
