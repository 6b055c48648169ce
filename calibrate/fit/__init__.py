"""From rows to parameters.

- ``priors``: every parameter, and what is expected of it without data; ``device_priors`` carries it over to other
  cards.
- ``solve``: robust least squares with priors; ``relower`` lowers the same kernels again while few parameters move.
- ``tables`` (rows, and kernel times), ``power``, ``collectives`` and ``contention`` fit the tables of a description.
- ``unclocked``: rows whose clock nobody read.
- ``cross_validation``: how far forecasts are off on rows that their fit has not seen; ``form_errors``: what of that is
  the model's form.
"""
