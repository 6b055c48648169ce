"""What others published about training and its parts.

- ``step_times``: training runs; ``order``: whether variants rank as measured; ``rates``: the trivial rule beside them.
- ``node_power``: power of their nodes; ``node_power_files`` reads it.
- ``perseus``: pipelines under plans that set every clock; ``perseus_files`` reads them.
- ``fronts``: time against energy of pipelines from the plan alone; ``fronts_files`` reads them.
- ``network``: collectives within and between nodes.
"""
