"""Equal shares of launches: as much of a kernel's cost as of its work, not a smaller kernel that runs less well.

Two micro-batches of a pipeline rank, one forward and one backward, can take turns layer by layer, so that the experts'
communication of one runs beside the computation of the other (Megatron's ``overlap_moe_expert_parallel_comm``;
DeepSeek-V3, arXiv 2412.19437, section 3.2.1). That is forecast as a micro-batch in two halves that take turns with each
other, whose kernels are halves of whole ones: communication meets as much computation of its own kind. Where the
forward is bound by communication and the backward by computation, real turns gain more.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from joulecast.errors import InputError
from joulecast.model.framework.launches import Launch, each_once
from joulecast.model.kernels.operators import Attention, Gemm, Operator, Scan, Streaming


def shares(part: tuple[Launch, ...], count: int) -> tuple[Launch, ...]:
    """One of ``count`` equal shares of every launch; equal launches stay the same object."""
    return each_once(part, lambda one: replace(one, operator=_share(one.operator, count), share=one.share * count))


@lru_cache(maxsize=4096)
def _share(operator: Operator, count: int) -> Operator:
    if isinstance(operator, Gemm):
        return replace(operator, m=max(1, operator.m // count), parts=operator.parts * count)
    if isinstance(operator, Attention):
        return _share_of_attention(operator, count)
    if isinstance(operator, Streaming):
        return operator.part(1.0 / count)
    if isinstance(operator, Scan):
        raise InputError(
            "a scan cannot be shared by parts of a micro-batch", key="overlap.ep_comm", remedy="Set it to false."
        )
    return replace(operator, bytes=operator.bytes / count, rows=operator.rows / count)


def _share_of_attention(operator: Attention, count: int) -> Attention:
    if operator.batch % count == 0:
        return replace(operator, batch=operator.batch // count)
    if operator.heads % count == 0:
        return replace(operator, heads=operator.heads // count, kv_heads=max(1, operator.kv_heads // count))
    raise InputError(
        f"{operator.heads} attention heads of {operator.batch} sequences cannot be shared by {count}",
        key="overlap.ep_comm",
        remedy="Set it to false, or use an even number of heads on a rank.",
    )
