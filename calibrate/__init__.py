"""Measures GPUs, and fits their descriptions to measured rows.

To read, in this order:

- From rows to a description: ``rows`` reads them, ``row_operators`` says which kernels each ran, ``priors`` what is
  expected of a parameter without data; ``fit`` and its neighbours ``fit_…`` fit one table each with ``solve``;
  ``describe`` and ``assemble`` make the description.
- From a card to rows: ``devices`` (cards behind one protocol), ``microbenchmarks`` (what can be run), ``measure`` (how
  it is measured) and ``choose`` (what is worth its time).
- Power within one kernel: ``power_profile``.
- What others measured: ``public_times`` (kernels), ``clock_sweeps`` (clocks and limits), ``published`` (training
  steps), the modules ``pipeline_plans…`` and ``a100_overlap…`` (two studies) and ``network_…`` (collectives between
  nodes).
"""
