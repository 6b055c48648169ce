"""Measures GPUs, and fits their descriptions to measured rows.

Each part imports only from those above it; parts on one line know each other:

- ``public_times``: times of kernels that others published.
- ``rows``, ``devices``, ``microbenchmarks``, ``measure``: measured rows, cards behind one protocol, what can be run on
  them, and how it is measured.
- ``meter``: a training loop of the user's own, measured like a microbenchmark, beside its forecast.
- ``fit``: from rows to parameters.
- ``descriptions``: from rows to the description of a GPU.
- ``sessions``: a calibration of a card, which chooses the measurements that are worth their time.
- ``power_profile``: power within one kernel.
- ``clock_sweeps``: clocks and limits that others swept.
- ``published``: training steps that others published.
- ``studies``: pipelines, overlap and collectives that others measured.
"""
