"""Keys of plans by the short words that tables and reports have for them."""

from __future__ import annotations

SHORT = {
    "tensor_model_parallel_size": "TP",
    "pipeline_model_parallel_size": "PP",
    "virtual_pipeline_model_parallel_size": "VP",
    "context_parallel_size": "CP",
    "expert_model_parallel_size": "EP",
    "data_parallel_size": "DP",
    "gpus": "GPUs",
    "micro_batch_size": "micro-batch",
    "global_batch_size": "batch",
    "power_limit_w": "limit [W]",
    "clock_mhz": "clock",
}


def short_key(key: str) -> str:
    """Short word of a dotted key.

    >>> short_key("parallelism.tensor_model_parallel_size"), short_key("schedule.recompute")
    ('TP', 'recompute')
    >>> short_key("schedule.name"), short_key("network.name")
    ('schedule', 'network')
    """
    table, _, name = key.rpartition(".")
    return table if name == "name" else SHORT.get(name, name)
