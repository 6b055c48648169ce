"""Rows that were left out of a sweep, and how closely rows say each other.

- ``clock_suites``: clocks, limits and workloads left out, by ``clock_splits``, beside the trivial rules of
  ``clock_baselines``.
- ``clock_floor`` and ``kernel_floor``: each row from all others, by a ``smoother`` that knows no physics.
"""
