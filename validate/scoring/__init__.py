"""From predictions beside measurements to figures.

- ``result``: what a suite returns; ``summary`` makes its figures of merit, by ``metrics`` and beside the trivial rules
  of ``baselines``.
- ``folds``: grouped cross-validation.
- ``regret``: what it costs to choose by forecast.
"""
