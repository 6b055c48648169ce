"""Rows that were left out of a fit, and how well each row follows from the others.

- ``clock_suites``: clocks, limits and workloads left out, by ``clock_splits``, beside the trivial rules of
  ``clock_baselines``.
- ``clock_floor`` and ``kernel_floor``: the least error to expect, each row from all others by a ``smoother``.
"""
