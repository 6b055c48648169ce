"""Why forecasts of plans differ.

- ``compare``: keys, results and ledgers of plans beside each other; ``plan_keys``: keys as files write them;
  ``unsaid``: parts of which files need not say anything.
- ``ledgers``: where time and energy go, and how two of them differ; ``reasons``: the same in sentences.
"""
