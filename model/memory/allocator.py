"""What PyTorch's caching allocator has reserved beyond the peak of what is allocated.

Freed blocks stay with the stream that they were made for, and only it gets them again. ``fully_shard`` makes the
buffers that it gathers parameters into on one stream, those outside the layers and one layer's at once, and the shards
of gradients that a reduce-scatter gives on another. Neither is there when memory is fullest, in the loss; what they
took is then reserved on top. Logits that the loss widens leave a gap of half the size of each tensor that follows them,
which none of these fits into.

    reserved − allocated = gathered outside layers + one layer + gradients' shards not there + narrow logits

An allocation that finds no room has all of it given back first, so that it does not decide whether a plan fits, but the
device stands still meanwhile.

Sources: ``foreach_all_gather`` and ``foreach_reduce`` of PyTorch's ``_fsdp_collectives.py``; ``CUDACachingAllocator``
with expandable segments. Of fifteen steps without pipelines whose reserved memory torchtitan publishes
thirteen are met within 5 %, one of 70B is forecast 7 % low and one in FP8 by rows 20 %; they chose no number here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer.liger_loss import fused

if TYPE_CHECKING:
    from joulecast.model.memory.activations import MicroBatchBytes
    from joulecast.model.memory.pipeline_rank import PipelineRank


def cached_bytes(
    one: MicroBatchBytes, rank: PipelineRank, *, gathered: float, elements: float, gradients: float
) -> float:
    """Bytes that PyTorch's allocator has reserved on one GPU and not allocated when memory is fullest.

    Parameters
    ----------
    gathered
        Parameters that FSDP gathers at once, those outside the layers and one layer's [bytes]; 0 without FSDP.
    elements
        Gradients of one GPU's shards [1].
    gradients
        What of them is counted at the peak [bytes].
    """
    run = one.shard.implementation
    if run.megatron:
        return 0.0
    shards = max(0.0, elements * DTYPE_BYTES[run.gradient_dtype] - gradients) if gathered else 0.0
    widened = run.modules != "joint" and not run.fused_loss and not run.whole_graph and not fused(one.shard)
    gap = one.logits if widened and rank.last and not rank.pipelined else 0.0
    return gathered + shards + gap
