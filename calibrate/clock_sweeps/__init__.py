"""Fits of time and power to sweeps of locked clocks and power limits.

- ``rows``: sweeps, in the published ``forms``.
- ``physics``: time and power of its ``parameters``; ``slopes``: how they change with each.
- ``fit``: the parameters, by ``newton``; ``likeness``: what one workload says of another.
- ``forecast``: settings left out, with ``residuals`` that neighbours share.
"""
