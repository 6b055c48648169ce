"""Keys of checked plans that differ, as a PLAN.toml writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joulecast.model.framework.muon import PRODUCTS
from joulecast.model.transformer.log_probabilities import CHUNKED, WHOLE
from joulecast.simulator.plan_file.lora import NAMES
from joulecast.simulator.plan_file.network import GIGABIT_BYTES

#: Values of one key in each plan.
Values = tuple[Any, ...]


def joined(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A checked plan's keys, one in place of several that one key of the file decides, and none that others make."""
    own = dict(flat)
    del own["parallelism.data_parallel_size"]
    if own.pop("implementation.native_loss"):
        own["implementation.fused_loss"] = "native"
    if own["workload.precision"] == "fp4":  # of which there is one recipe
        own["workload.fp4_param_gather"] = own.pop("workload.narrow.parameters")
        own.pop("workload.narrow.recipe")
    if own.pop("workload.experts_filled"):
        own["workload.moe_expert_capacity_factor"] = own.pop("workload.expert_load")
    cards, domain, fan_out = (own[f"cluster.links.{name}"] for name in ("nics_per_domain", "domain_gpus", "fan_out"))
    own["cluster.links.rails"] = round(own.pop("cluster.links.leaf_gpus") * cards / domain / fan_out)
    return own


def as_written(found: Mapping[str, Values]) -> dict[str, Values]:
    """Keys of the checked plan, and their values, under the names and in the units of the file."""
    written: dict[str, Values] = {}
    for key, values in found.items():
        name, convert = WRITTEN.get(key, (key, _as_table))
        own = {name: tuple(map(convert, values))} if key != WIDE else _wide(values)
        written |= {name: values for name, values in own.items() if any(value != values[0] for value in values)}
    return written


def _as_table(value: Any) -> Any:
    """Pairs as a table, nothing as ``None``."""
    if not isinstance(value, list | tuple):
        return value
    if value and all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in value):
        return {key: _as_table(one) for key, one in value}
    return list(map(_as_table, value)) or None


def _clocks(value: Sequence[Any]) -> Any:
    """One clock, one for each stage, or a table of these by instruction [MHz]."""
    found = {key: of[0] if len(set(of)) == 1 else list(of) for key, of in value}
    return found.get("") if set(found) == {""} else found or None


def _times(size: float) -> Callable[[float | None], float | None]:
    """A value in another unit; ``None`` where there is none."""
    return lambda value: None if value is None or math.isinf(value) else round(value * size, 9)


def _modules(targets: Sequence[str] | None) -> list[str] | None:
    """Linear layers that have an adapter, as a plan names them."""
    theirs = {ours: name for name, ours in NAMES.items() if name != "gate_up_proj"}
    return None if targets is None else [theirs[name] for name in targets]


def _precision_of_products(dtype: str | None) -> str | None:
    """Precision of Muon's products, as a plan names it."""
    return None if dtype is None else next(name for name, own in PRODUCTS.items() if own == dtype)


def _log_probabilities(way: str | None) -> str | None:
    """How log-probabilities are made, as a plan names it; losses that have none leave the key out."""
    return way or WHOLE if way in ("", WHOLE, CHUNKED) else None


def _frozen(trained: bool | None) -> bool | None:
    """A switch that a plan writes the other way round."""
    return None if trained is None else not trained


def _patches(count: int | None) -> str | None:
    """A side of an image, whose patches have so many pixels as its model says."""
    return None if count is None else f"{count} patches"


def _wide(values: Values) -> dict[str, Values]:
    """Layers at either end that stay in bf16."""
    start = tuple(_leading(pattern or ()) for pattern in values)
    end = tuple(0 if all(pattern or ()) else _leading(tuple(pattern)[::-1]) for pattern in values)
    return {"workload.num_layers_at_start_in_bf16": start, "workload.num_layers_at_end_in_bf16": end}


def _leading(pattern: Sequence[bool]) -> int:
    return next((i for i, wide in enumerate(pattern) if not wide), len(pattern))


WIDE = "workload.model.wide_pattern"
#: Keys of a checked plan that its file writes otherwise: its name there, and its value.
WRITTEN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "workload.model_name": ("workload.model", _as_table),
    "workload.narrow.recipe": ("workload.fp8_recipe", _as_table),
    "workload.narrow.parameters": ("workload.fp8_param_gather", bool),
    "workload.fp4_param_gather": ("workload.fp4_param_gather", bool),
    "workload.lora.targets": ("workload.lora.target_modules", _modules),
    "workload.lora.dtype": ("workload.lora.precision", _as_table),
    "workload.lora.base": ("workload.lora.base_precision", lambda base: base or None),
    "workload.lora.double_quantised": ("workload.lora.double_quantisation", _as_table),
    "workload.images.rows": ("workload.images.height", _patches),
    "workload.images.columns": ("workload.images.width", _patches),
    "workload.images.trains_tower": ("workload.images.freeze_vision_tower", _frozen),
    "workload.images.trains_projector": ("workload.images.freeze_multi_modal_projector", _frozen),
    "workload.rollout.completion_tokens": ("workload.completion_tokens", _as_table),
    "workload.rollout.step_overhead_s": ("workload.rollout.step_overhead_us", _times(1e6)),
    "workload.expert_load": ("workload.moe_load_imbalance", _as_table),
    "workload.teacher.name": ("workload.teacher", _as_table),
    "implementation.log_probabilities": ("implementation.log_probabilities", _log_probabilities),
    "overlap.windows": ("overlap.window", _as_table),
    "overlap.grad_bucket_bytes": ("overlap.grad_bucket_mb", _times(2.0**-20)),
    "implementation.muon.steps": ("implementation.muon_num_ns_steps", _as_table),
    "implementation.muon.nesterov": ("implementation.muon_nesterov", _as_table),
    "implementation.muon.tensor_mode": ("implementation.muon_tp_mode", _as_table),
    "implementation.muon.split_qkv": ("implementation.muon_split_qkv", _as_table),
    "implementation.muon.products": ("implementation.muon_fp32_matmul_prec", _precision_of_products),
    "implementation.recompute_modules": ("schedule.recompute_modules", _as_table),
    "implementation.recompute_interval": ("schedule.recompute_interval", _as_table),
    "implementation.recompute_stops_early": ("schedule.recompute_stops_early", _as_table),
    "power.clocks_mhz": ("power.clock_mhz", _clocks),
    "cluster.network": ("network.name", _as_table),
    "cluster.links.nic_bytes_per_s": ("network.nic_gbit_per_s", _times(1.0 / GIGABIT_BYTES)),
    "cluster.links.nics_per_domain": ("network.nics_per_node", _as_table),
    "cluster.links.step_latency_s": ("network.step_latency_us", _times(1e6)),
    **{
        f"cluster.links.{name}": (f"network.{name}", _as_table)
        for name in ("efficiency", "oversubscription", "jitter", "nvls", "sharp", "rails")
    },
}
