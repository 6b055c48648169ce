"""What rows of overlapped work repeat: launches on the compute and the communication stream, from configuration alone.

Parts of transformer layers (op ``overlap``) and a matrix product beside an all-gather (op ``gemm_allgather``).
"""

from __future__ import annotations

from collections.abc import Callable

from joulecast.calibrate.rows.fields import Configuration, ctas_of, whole_number
from joulecast.errors import InputError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard, shard
from joulecast.model.kernels.operators import Collective, Gemm
from joulecast.model.training.nanobatches import Nanobatches, take_turns
from joulecast.model.transformer.eager_layer import attention_half_forward, mlp_half_forward

OVERLAP_OPS = ("overlap", "gemm_allgather")
#: Where a part's communication is launched: after so many kernels of the part.
SCOPES = {("attn", "all"): 0, ("mlp", "all"): 0, ("attn", "after_qkv"): 2, ("mlp", "after_up"): 2}


def launches_of(row: Configuration) -> tuple[Launch, ...]:
    """Launches of one repetition, in program order.

    Raises
    ------
    InputError
        A field is missing or not known; the message names it.
    """
    if row.get("op") == "gemm_allgather":
        return _gemm_beside_gathering(row)
    if row.get("op") != "overlap":
        raise InputError(f"{row.get('op')!r} is not overlapped work", key="op", remedy=f"Known: {OVERLAP_OPS}.")
    if row.get("direction") != "fwd":
        raise InputError(f"{row.get('direction')!r} is not known", key="direction", remedy="Only 'fwd' is.")
    mode, part = str(row.get("mode")), str(row.get("part"))
    build = _MODES.get(mode)
    if build is None:
        raise InputError(f"{mode!r} is not known", key="mode", remedy=f"Known: {', '.join(_MODES)}.")
    if part not in ("attn", "mlp", "layer"):
        raise InputError(f"{part!r} is not known", key="part", remedy="Known: attn, mlp, layer.")
    return build(row, part)


def is_steady(row: Configuration) -> bool:
    """Whether a row's window is long enough to be fitted to."""
    return float(row.get("target_window_s") or 0.0) >= 1.5


def _gemm_beside_gathering(row: Configuration) -> tuple[Launch, ...]:
    product = Launch(Gemm(whole_number(row, "M"), whole_number(row, "N"), whole_number(row, "K"), name="product"))
    size, gpus = float(whole_number(row, "bytes")), whole_number(row, "gpus")
    gather = Collective("all_gather", bytes=size, gpus=gpus, ctas=ctas_of(row), name="all_gather")
    mode = row.get("mode")
    if mode == "sequential":
        return product, Launch(gather, "communication", waits=True)
    if mode in ("concurrent", "gemm_first"):  # whichever is enqueued first, the product fills the SMs first
        return Launch(gather, "communication"), product
    raise InputError(f"{mode!r} is not known", key="mode", remedy="Known: sequential, concurrent.")


def _alone(row: Configuration, part: str) -> tuple[Launch, ...]:
    return _part(row, part, whole_number(row, "B"))


def _sequential(row: Configuration, part: str) -> tuple[Launch, ...]:
    batch = whole_number(row, "B")
    if part != "layer":
        return (*_part(row, part, batch), _reduction(row, batch, waits=True))
    attention, mlp = _part(row, "attn", batch), (_residual(row, batch), *_part(row, "mlp", batch))
    return (*attention, _reduction(row, batch, waits=True), *mlp, _reduction(row, batch, waits=True))


def _overlapped(row: Configuration, part: str) -> tuple[Launch, ...]:
    scope = (part, str(row.get("scope")))
    if scope not in SCOPES:
        known = ", ".join(sorted({where for _, where in SCOPES}))
        raise InputError(f"{row.get('scope')!r} is not known for {part}", key="scope", remedy=f"Known: {known}.")
    batch, at = whole_number(row, "B"), SCOPES[scope]
    kernels = _part(row, part, batch)
    return (*kernels[:at], _reduction(row, batch), *kernels[at:])


def _nanobatches(row: Configuration, part: str) -> tuple[Launch, ...]:
    """Two halves of the batch: the reduction of one beside the computation of the other."""
    batch, rest = divmod(whole_number(row, "B"), 2)
    if rest:
        raise InputError(f"{row['B']} does not divide by two nano-batches", key="B", remedy="Use an even batch.")
    reduction, mlp = _reduction(row, batch, waits=True), (_residual(row, batch), *_part(row, "mlp", batch))
    return take_turns((*_part(row, "attn", batch), reduction, *mlp, reduction), Nanobatches(2))


_MODES: dict[str, Callable[[Configuration, str], tuple[Launch, ...]]] = {
    "compute": _alone,
    "sequential": _sequential,
    "overlap": _overlapped,
    "nanobatch": _nanobatches,
}


def _part(row: Configuration, part: str, batch: int) -> tuple[Launch, ...]:
    """Compute kernels of half a layer, without the residual addition."""
    half = attention_half_forward if part == "attn" else mlp_half_forward
    return tuple(launch for launch in half(_sizes(row, batch)) if launch.stream == "compute")[:-1]


def _residual(row: Configuration, batch: int) -> Launch:
    return attention_half_forward(_sizes(row, batch))[-1]


def _reduction(row: Configuration, batch: int, waits: bool = False) -> Launch:
    size = 2.0 * batch * whole_number(row, "S") * whole_number(row, "hidden")
    operator = Collective(
        "all_reduce", bytes=size, gpus=whole_number(row, "gpus"), ctas=ctas_of(row), name="all_reduce"
    )
    return Launch(operator, "communication", waits=waits)


def _sizes(row: Configuration, batch: int) -> Shard:
    hidden, heads, tp = whole_number(row, "hidden"), whole_number(row, "heads"), whole_number(row, "tp")
    for key, size, parts in (("hidden", hidden, heads), ("heads", heads, tp), ("ffn", whole_number(row, "ffn"), tp)):
        if size % parts:
            raise InputError(f"{size} cannot be split over {parts}", key=key, remedy="Give sizes that divide.")
    config = ModelConfig(
        name=str(row.get("model") or "inline"),
        hidden=hidden,
        layers=1,
        heads=heads,
        kv_heads=whole_number(row, "kv_heads"),
        head_dim=hidden // heads,
        ffn=whole_number(row, "ffn"),
        vocab=1,
        gated_mlp=True,
        activation="silu",
        norm="rmsnorm",
        rotary=False,
    )
    dtype = str(row.get("dtype") or "bf16")
    implementation = Implementation(rotary=False, tensor_parallel=tp, dtype=dtype)
    return shard(config, implementation, batch, whole_number(row, "S"))
