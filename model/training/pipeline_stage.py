"""What a pipeline adds to a stage's work: split backwards, and the end of a step in PyTorch's pipelining."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import shard
from joulecast.model.kernels.operators import Collective
from joulecast.model.training.optimizer import gradient_scaling
from joulecast.model.training.parameters import ParameterTensor
from joulecast.model.transformer.frozen import WEIGHT_ONLY
from joulecast.model.transformer.head import head_words


def split_backward(launches: Iterable[Launch]) -> tuple[tuple[Launch, ...], tuple[Launch, ...]]:
    """Split a backward into what the previous stage waits for and the rest (zero-bubble schedules).

    Returns
    -------
    The launches that lead to the input's gradient, and those of the parameters' gradients; the latter wait for nothing.
    What they waited for, the next kernel of the former does.
    """
    inputs: list[Launch] = []
    weights: list[Launch] = []
    left: int | None = None  # communications that may be outstanding at the next kernel, for those that have moved
    for launch in launches:
        if launch.stream == "communication":
            inputs.append(launch)
            left = None if left is None else left + 1
        elif launch.operator.name.endswith(WEIGHT_ONLY):
            if launch.waits:
                left = launch.outstanding if left is None else min(left, launch.outstanding)
            weights.append(replace(launch, waits=False, outstanding=0))
        else:
            if left is not None:
                outstanding = min(left, launch.outstanding) if launch.waits else left
                launch = replace(launch, waits=True, outstanding=outstanding)
            inputs.append(launch)
            left = None
    return tuple(inputs), tuple(weights)


@lru_cache(maxsize=64)
def stage_transfer(config: ModelConfig, implementation: Implementation, batch: int, sequence: int) -> Collective:
    """Activation (or gradient) of one micro-batch sent from one stage's rank to the next stage's.

    Tensor-parallel ranks that hold the whole of it send a share each in Megatron, and gather it behind the transfer
    (Narayanan et al., arXiv 2104.04473, section 4.1); the gathering, over the links of a node, is left out. Where they
    lie on several nodes, those of each are sent the whole, as much as the gathering would move between nodes.
    """
    s = shard(config, implementation, batch, sequence)
    share = s.norm_tokens / s.tokens
    if implementation.megatron:
        share = 1.0 / implementation.tensor_parallel
        if not implementation.sequence_parallel:
            share *= implementation.tensor_domains
    return Collective("send_recv", s.stream.activation_bytes * share, 2, dtype=s.stream.dtype, name="stage.send_recv")


def step_epilogue(
    config: ModelConfig,
    implementation: Implementation,
    batch: int,
    sequence: int,
    *,
    parameters: Sequence[ParameterTensor],
    micro_batches: int,
    last: bool,
) -> tuple[Launch, ...]:
    """Work of a pipeline rank after its last backward and before gradient reduction and optimizer.

    ``torch.distributed.pipelining`` divides every gradient by the number of micro-batches, and on the last stage
    concatenates the micro-batches' outputs (the logits) to return them. Megatron does neither.
    """
    if implementation.megatron or micro_batches == 1:
        return ()
    scaling = gradient_scaling(parameters, implementation)
    if not last:
        return scaling
    vocab = head_words(config, implementation)
    logits = batch * sequence * vocab * micro_batches
    return (*scaling, streaming("cat", "outputs.merge", logits, dtype=implementation.dtype))
