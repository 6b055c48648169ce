"""Linear attention by the gated delta rule between its projections, as transformers and ``fla`` run it.

    forward    queries, keys and values joined, convolution and SiLU, heads of queries and keys repeated for those of
               values, numbers of each head, the rule's kernels, a norm of each head, times the gate's SiLU
    backward   factors and states again, then gradients of values, states, keys and factors, and the way back

``chunk_gated_delta_rule`` keeps queries and keys of length one, values, and the inverse of each chunk's triangle.
Whoever projects all heads together (Qwen3-Next) copies queries, keys, values and gates out of them. The norm and its
gate are operations of transformers' own; its option ``use_kernels`` would fetch a fused one.

Source: ``Qwen3NextGatedDeltaNet`` and ``Qwen3_5GatedDeltaNet`` of transformers 5.17 with ``fla-core`` 0.6.0 and
``causal-conv1d``. Operators and what autograd keeps are those that such a layer dispatched and saved, one by one;
their times are counted, not measured, but for the rule's kernels (`validate/recorded/scans`).
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.architecture.delta_net import CHUNK, DeltaNet
from joulecast.model.framework.launches import Launch, issued, one_by_one, reordered, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import Scan
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import transformers_attention, transformers_rotary, unfused_norm
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.modules_activation import SILU, SILU_GRADIENT
from joulecast.model.transformer.row_operators import MIXED, rounded, widened

#: Cycles of an SM for a value of gradients that are summed over heads that share a query or key: six such kernels of
#: `validate/recorded/scans`, on two cards, are met within 6 % [estimate, +-5 %].
SUMMED = 0.5
#: Operations on the numbers of every head and token in fp32 forward and backward, and on those of a head.
NUMBERS, NUMBERS_GRAD = ("widen", "bias", "softplus", "decay"), ("decay", "softplus", "round", "decay.product")
DECAY, DECAY_GRAD = ("widen", "exp", "neg"), ("neg", "exp", "round")


def mixer_of(s: Shard) -> DeltaNet:
    """A layer's mixer; a layer without one has no kernels of it."""
    if s.delta_net is None:
        raise TypeError("a layer without linear attention")
    return s.delta_net


def projections(s: Shard) -> tuple[Linear, ...]:
    """The products in front of the rule, and the last behind it."""
    m = mixer_of(s)
    return (*(Linear(name, width, s.hidden) for name, width in m.products), Linear("out_proj", s.hidden, m.values))


def forward(s: Shard) -> tuple[Launch, ...]:
    """From the projections to what the last one multiplies."""
    m, dtype, tokens = mixer_of(s), s.dtype, s.tokens
    return (
        *_cut_out(s),
        kernel("conv", s),
        _number(s, "beta.sigmoid", dtype),
        *_small("decay", DECAY, m.value_heads),
        *(_number(s, f"decay.{step}") for step in NUMBERS),
        *_repeated(s),
        reordered("delta.value.copy", tokens * m.values, dtype),
        kernel("unit", s),
        kernel("unit", s),
        kernel("delta_cumsum", s),
        streaming("fill", "delta.inverse.zeros", tokens * m.value_heads * CHUNK, reads=0, dtype=dtype),
        *(kernel(name, s) for name in ("delta_solve", "delta_factors", "delta_states", "delta_result")),
        *_gated_norm(s),
    )


def backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`, to those of the projections' results."""
    m, dtype, keys = mixer_of(s), s.dtype, s.tokens * mixer_of(s).repeated_keys
    return (
        *_gated_norm_backward(s, accumulate),
        *(kernel(name, s, again=True) for name in ("delta_factors", "delta_states")),
        *(kernel(name, s) for name in ("delta_values", "delta_states_grad", "delta_keys")),
        _number(s, "decay.grad.sum"),
        kernel("delta_factors_grad", s),
        streaming("add", "delta.key.grad.add", keys, reads=2, dtype=dtype),
        _number(s, "decay.grad.add"),
        kernel("delta_cumsum", s, again=True),
        kernel("unit_grad", s),
        kernel("unit_grad", s),
        *_summed(s),
        *(_number(s, f"decay.grad.{step}") for step in NUMBERS_GRAD),
        *(_sum_of_heads(s, f"{name}.grad.sum") for name in ("decay", "step.bias")),
        *_small("decay.grad", DECAY_GRAD, m.value_heads),
        _number(s, "beta.sigmoid.grad", dtype),
        streaming("cat", "delta.conv.grad.cat", s.tokens * m.channels, dtype=dtype),
        kernel("conv_backward", s),
        *_cut_out_backward(s),
        *eager.small_gradients(scalars(s), s.dtype, accumulate),
    )


def kernel(name: str, s: Shard, *, again: bool = False) -> Launch:
    """One kernel of the rule or of the convolution; the rule's work on as many heads of keys as of values."""
    m = mixer_of(s)
    groups = m.key_heads if name.startswith("conv") else m.value_heads
    sizes = m.value_heads, m.value_dim, groups, m.key_dim, CHUNK
    operator = Scan(name, s.batch, s.sequence, *sizes, dtype=s.dtype)
    said = name if name.startswith("delta") else f"delta_{name}"
    return Launch(replace(operator, name=f"{said.replace('_', '.', 1)}{'.again' if again else ''}"))


def _cut_out(s: Shard) -> tuple[Launch, ...]:
    """Queries, keys and values out of the heads of a joint product, and joined by channels; gates, and numbers."""
    m, dtype = mixer_of(s), s.dtype
    if not m.joint:
        return ()
    parts = (("value", m.values), ("gate", m.values), ("beta", m.value_heads), ("decay", m.value_heads))
    copies = (*parts, ("query", m.keys), ("key", m.keys))
    return (
        *(reordered(f"delta.{part}.cut", s.tokens * width, dtype) for part, width in copies),
        streaming("cat", "delta.conv.cat", s.tokens * m.channels, dtype=dtype),
    )


def _cut_out_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradients of each head's parts joined, some of them slices of the convolution's."""
    m = mixer_of(s)
    if not m.joint:
        return ()
    return tuple(transformers_rotary.joined(f"delta.{name}.grad.cat", s.tokens * n, s) for name, n in m.products)


def _repeated(s: Shard) -> tuple[Launch, ...]:
    """Queries and keys for every head of values; where these are as many, copies of what the convolution joined."""
    m, dtype, values = mixer_of(s), s.dtype, s.tokens * mixer_of(s).repeated_keys
    if m.key_heads == m.value_heads:
        return tuple(reordered(f"delta.{part}.copy", values, dtype) for part in ("query", "key"))
    share = m.key_heads / m.value_heads
    return tuple(transformers_attention.repeat(f"delta.{part}", values, share, s) for part in ("query", "key"))


def _summed(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`_repeated`."""
    m, values = mixer_of(s), s.tokens * mixer_of(s).repeated_keys
    if m.key_heads == m.value_heads:
        return ()
    share, dtype = m.key_heads / m.value_heads, s.dtype
    return tuple(
        issued("reduce", f"delta.{part}.grad.sum", values, SUMMED * values, activity=1.0, writes=share, dtype=dtype)
        for part in ("key", "query")
    )


def _norm_shard(s: Shard) -> Shard:
    """The same where a norm's values are rounded before its weight multiplies them, as that of heads has it."""
    return replace(s, config=replace(s.config, norm_formula="rounded"))


def _gated_norm(s: Shard) -> tuple[Launch, ...]:
    """Norm of each head's result, times the gate's SiLU in fp32, rounded."""
    m, dtype, values = mixer_of(s), s.dtype, s.tokens * mixer_of(s).values
    return (
        *unfused_norm.forward("delta_norm", _norm_shard(s), s.tokens * m.value_heads, m.value_dim),
        widened("delta.gate.widen", values, dtype),
        issued("unary", "delta.gate.silu", values, SILU * values, activity=1.0, dtype="fp32"),
        one_by_one("unary", "delta.gated", values, MIXED, reads=1.5, dtype="fp32"),
        rounded("delta.gated.round", values),
    )


def _gated_norm_backward(s: Shard, accumulate: bool) -> tuple[Launch, ...]:
    m, dtype, values = mixer_of(s), s.dtype, s.tokens * mixer_of(s).values
    rows, name = s.tokens * m.value_heads, "delta_norm"
    done = "" if accumulate else f"{name}.weight"
    return (
        widened("delta.gated.grad.widen", values, dtype),
        one_by_one("unary", "delta.gate.grad.product", values, MIXED, reads=1.5, dtype="fp32"),
        streaming("mul", "delta.gated.grad.product", values, reads=2, dtype="fp32"),
        rounded("delta.gated.grad.round", values),
        issued("unary", "delta.gate.silu.grad", values, SILU_GRADIENT * values, activity=1.0, reads=2, dtype="fp32"),
        rounded("delta.gate.grad.round", values),
        *unfused_norm.backward(name, _norm_shard(s), rows, m.value_dim, done),
        *eager.accumulation(f"{name}.weight", m.value_dim, dtype, accumulate),
    )


def _number(s: Shard, name: str, dtype: str = "fp32") -> Launch:
    """An operation on a number of every head and token."""
    return streaming("unary", f"delta.{name}", s.tokens * mixer_of(s).value_heads, dtype=dtype)


def _small(name: str, steps: tuple[str, ...], values: int) -> tuple[Launch, ...]:
    return tuple(streaming("unary", f"delta.{name}.{step}", values, dtype="fp32") for step in steps)


def _sum_of_heads(s: Shard, name: str) -> Launch:
    """A head's numbers summed over all tokens."""
    values = s.tokens * mixer_of(s).value_heads
    return streaming("reduce", f"delta.{name}", values, writes=1.0 / s.tokens, dtype="fp32")


def scalars(s: Shard) -> dict[str, int]:
    """Parameters between the projections but the norm's: names and sizes."""
    m = mixer_of(s)
    return {"conv.weight": m.channels * m.conv, "step.bias": m.value_heads, "decay": m.value_heads}


def kept_bytes(s: Shard) -> float:
    """What a layer's backward reads of what lies between the projections, nothing for other layers [bytes].

    The convolution's input; queries, keys, values, decays, strengths and inverses; what the head's norm and the gate
    keep, in fp32 and rounded, and the last product's input; numbers of heads.
    """
    m = s.delta_net
    if m is None:
        return 0.0
    size, wide = s.value_bytes, 4.0
    rule = size * (2 * m.repeated_keys + m.values + m.value_heads * (1 + CHUNK)) + 3 * wide * m.value_heads
    norm = (3 * wide + 3 * size) * m.values + wide * m.value_heads
    return s.tokens * (size * m.channels + rule + norm + 2 * wide * m.value_heads)


def transient_bytes(s: Shard) -> float:
    """What the rule's backward holds at its end: factors, values, all gradients, and two copies of states [bytes]."""
    m = s.delta_net
    if m is None:
        return 0.0
    size, states = s.value_bytes, s.tokens / CHUNK * m.values * m.key_dim
    return size * (s.tokens * (5 * m.repeated_keys + 6 * m.values) + 2 * states)
