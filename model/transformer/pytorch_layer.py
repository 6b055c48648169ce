"""One transformer layer in PyTorch's eager mode: attention, which may be context-parallel, and an MLP or experts."""

from __future__ import annotations

from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import (
    async_tensor,
    compiled_layer,
    core_attention,
    eager_moe,
    frozen,
    lora_linear,
    modules_compiled,
    modules_layer,
    operator_checkpoints,
    pytorch_norm,
)
from joulecast.model.transformer import eager_layer as eager


def forward(s: Shard) -> tuple[Launch, ...]:
    """Forward of a layer."""
    if s.implementation.modules != "joint":
        launches = modules_compiled.forward(s) if s.implementation.compiled else modules_layer.forward(s)
        return async_tensor.pipelined(launches, s) if s.implementation.tp_comm_overlap else launches
    if s.implementation.compiled:
        return compiled_layer.forward(s)
    half = eager.mlp_half_forward(s) if s.config.experts is None else eager_moe.forward(s)
    return (*eager.attention_half_forward(s), *half)


def recomputed_forward(s: Shard) -> tuple[Launch, ...]:
    """Forward run again inside the backward: under full recomputation, or what operators keep apart.

    ``torch.utils.checkpoint`` stops early, once everything that the backward needs is there: the last matrix product,
    its communication and the residual addition are not repeated, nor is the sum of the experts' results. Before 2.1,
    with ``use_reentrant=True`` and under ``set_checkpoint_early_stop(False)`` they are.
    """
    if s.implementation.recompute not in ("full", "operators"):
        return ()
    if s.implementation.keeps_products:
        return core_attention.core_attention(s, "forward")
    launches, (ending, needed) = forward(s), _last_product(s)
    if not s.implementation.recompute_stops_early:
        return launches
    if eager.after_block(s):  # a norm behind the product needs its result
        ending, needed = pytorch_norm.last_needed(eager.branch_norm("norm2", s), s)
    if lora_linear.adapter("down", s):  # whose second product keeps the first one's result
        ending = "down.lora_b"
    elif made := lora_linear.written_out("down.weight", s, s.hidden * s.ffn):
        ending = made[0].operator.name
    last = next(i for i, launch in enumerate(launches) if launch.operator.name == ending)
    repeated = launches[: last + needed]
    return operator_checkpoints.again(repeated, s) if s.implementation.recompute == "operators" else repeated


def _last_product(s: Shard) -> tuple[str, int]:
    """The launch behind which nothing is repeated, and whether it is itself: a scan's function runs to its end."""
    if s.config.feeds_forward:
        return ("down" if s.config.experts is None else "unpermute"), 0
    return ("output", 0) if s.state_space is None else ("out_proj", 1)


def backward(s: Shard, *, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    """Backward of a layer without recomputation; see :func:`joulecast.model.training.step.layer_backward`."""
    launches, lora = _backward(s, accumulate=accumulate, leaf_input=leaf_input), s.implementation.lora
    if lora is None:
        return launches
    launches = frozen.without_weight_gradients(launches)
    return launches if lora.input_gradient else frozen.without_input_gradient(launches, s)


def _backward(s: Shard, *, accumulate: bool, leaf_input: bool) -> tuple[Launch, ...]:
    if s.implementation.modules != "joint":
        users = modules_compiled.backward if s.implementation.compiled else modules_layer.backward
        launches = users(s, accumulate=accumulate, leaf_input=leaf_input)
        return async_tensor.pipelined(launches, s) if s.implementation.tp_comm_overlap else launches
    if s.implementation.compiled:
        return compiled_layer.backward(s, accumulate=accumulate, leaf_input=leaf_input)
    half = eager.mlp_half_backward if s.config.experts is None else eager_moe.backward
    return (*half(s, accumulate), *eager.attention_half_backward(s, accumulate, leaf_input))
