"""What others measured, each read, given a physical form and fitted.

- ``pipeline_plans``: jobs in a pipeline under plans; ``pipeline_plans_physics`` and ``pipeline_plans_fit``.
- ``a100_overlap_rows``: an attention layer beside an all-reduce; ``a100_overlap_physics`` and ``a100_overlap_fit``.
- ``network_rows``: collectives within and between nodes; ``network_fit``.
"""
