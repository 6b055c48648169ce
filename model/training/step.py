"""Operators of a transformer's training step, as lists of launches in program order.

Every function is pure and cached: the same arguments give the same tuple. ``batch`` and ``sequence`` are one
micro-batch's. The ``framework`` of the :class:`~joulecast.model.framework.implementation.Implementation` chooses
between the kernels of PyTorch's eager mode (:mod:`joulecast.model.transformer.pytorch_layer`) and Megatron's
(:mod:`joulecast.model.transformer.megatron_layer`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.deterministic import with_fills
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import shard
from joulecast.model.framework.tiling import with_tiles
from joulecast.model.kernels.operators import Streaming
from joulecast.model.training.optimizer import optimizer_step
from joulecast.model.training.parameters import parameters_of_stage
from joulecast.model.transformer import frozen, head, multi_token
from joulecast.model.transformer import megatron_layer as megatron
from joulecast.model.transformer import pytorch_layer as eager


@lru_cache(maxsize=512)
def layer_forward(config: ModelConfig, implementation: Implementation, batch: int, sequence: int) -> tuple[Launch, ...]:
    """Forward of one layer for one micro-batch."""
    s = shard(config, implementation, batch, sequence)
    launches = megatron.forward(s) if implementation.megatron else eager.forward(s)
    return with_tiles(_filled(launches, implementation), implementation.tiles)


@lru_cache(maxsize=512)
def layer_backward(
    config: ModelConfig,
    implementation: Implementation,
    batch: int,
    sequence: int,
    *,
    accumulate: bool = True,
    leaf_input: bool = False,
) -> tuple[Launch, ...]:
    """Backward of one layer for one micro-batch, with the recomputed forward in front where there is one.

    Parameters
    ----------
    accumulate
        Whether gradients exist already and are added to. They do not in the first micro-batch after
        ``zero_grad(set_to_none=True)``; after ``set_to_none=False`` they always do.
    leaf_input
        Whether the layer's input keeps (and accumulates) a gradient of its own, as when one block is run alone.
    """
    s = shard(config, implementation, batch, sequence)
    if implementation.megatron:
        repeated = megatron.forward(s) if implementation.recompute == "full" else ()
        return with_tiles(_filled((*repeated, *megatron.backward(s)), implementation), implementation.tiles)
    again = eager.recomputed_forward(s)
    finds = accumulate and implementation.added_share > 0.0
    launches = (*again, *eager.backward(s, accumulate=finds, leaf_input=leaf_input))
    return with_tiles(with_added_share(launches, implementation), implementation.tiles)


def _filled(launches: tuple[Launch, ...], implementation: Implementation) -> tuple[Launch, ...]:
    """With what deterministic algorithms add."""
    return tuple(with_fills(launches)) if implementation.deterministic else launches


def with_added_share(launches: tuple[Launch, ...], implementation: Implementation) -> tuple[Launch, ...]:
    """An average backward of an iteration: additions to earlier gradients count by the share that finds any."""
    share = implementation.added_share
    if share in (0.0, 1.0):
        return launches
    return tuple(
        replace(one, operator=one.operator.part(share))
        if isinstance(one.operator, Streaming) and one.operator.name.endswith(".accumulate")
        else one
        for one in launches
    )


@lru_cache(maxsize=512)
def embedding_forward(
    config: ModelConfig, implementation: Implementation, batch: int, sequence: int
) -> tuple[Launch, ...]:
    """Token (and position) embedding of one micro-batch."""
    return head.embedding_forward(shard(config, implementation, batch, sequence))


@lru_cache(maxsize=512)
def embedding_backward(
    config: ModelConfig,
    implementation: Implementation,
    batch: int,
    sequence: int,
    *,
    accumulate: bool = True,
    head_here: bool = True,
) -> tuple[Launch, ...]:
    """Gradient of the embedding; ``head_here`` says whether the head lies on the same stage, which matters if tied."""
    if implementation.lora is not None:
        return ()
    s = shard(config, implementation, batch, sequence)
    finds = accumulate and implementation.added_share > 0.0
    return with_added_share(head.embedding_backward(s, accumulate=finds, head_here=head_here), implementation)


@lru_cache(maxsize=512)
def head_forward(config: ModelConfig, implementation: Implementation, batch: int, sequence: int) -> tuple[Launch, ...]:
    """Final norm, output head and loss of one micro-batch."""
    return head.head_forward(shard(config, implementation, batch, sequence))


@lru_cache(maxsize=512)
def head_backward(
    config: ModelConfig,
    implementation: Implementation,
    batch: int,
    sequence: int,
    *,
    accumulate: bool = True,
    embedding_here: bool = True,
) -> tuple[Launch, ...]:
    """Gradient of loss, output head and final norm; ``embedding_here`` as ``head_here`` above."""
    s = shard(config, implementation, batch, sequence)
    finds = accumulate and implementation.added_share > 0.0
    launches = head.head_backward(s, accumulate=finds, embedding_here=embedding_here)
    if implementation.lora is not None:
        launches = frozen.without_weight_gradients(launches)
    return with_added_share(launches, implementation)


@lru_cache(maxsize=64)
def prediction_forward(
    config: ModelConfig, implementation: Implementation, batch: int, sequence: int
) -> tuple[Launch, ...]:
    """What a module that predicts a further token runs in front of its layer."""
    return multi_token.forward(shard(config, implementation, batch, sequence))


@lru_cache(maxsize=64)
def prediction_backward(
    config: ModelConfig, implementation: Implementation, batch: int, sequence: int
) -> tuple[Launch, ...]:
    """Gradient of :func:`prediction_forward`."""
    return multi_token.backward(shard(config, implementation, batch, sequence))


def single_gpu_training_step(
    config: ModelConfig, implementation: Implementation, batch: int, sequence: int, *, micro_batches: int = 1
) -> tuple[Launch, ...]:
    """Whole training step of one GPU (or of one tensor-parallel rank without pipeline and data parallelism)."""
    arguments = (config, implementation, batch, sequence)
    one = (
        *embedding_forward(*arguments),
        *layer_forward(*arguments) * config.layers,
        *head_forward(*arguments),
        *head_backward(*arguments),
        *layer_backward(*arguments) * config.layers,
        *embedding_backward(*arguments),
    )
    parameters = parameters_of_stage(config, implementation, config.layers, first=True, last=True, with_frozen=False)
    tokens = batch * sequence * micro_batches
    return (*one * micro_batches, *optimizer_step(parameters, implementation, tokens_per_step=tokens))
