"""A state-space mixer (Mamba-2) between its two projections, as ``mamba_ssm``'s fused function runs it.

``mamba_split_conv1d_scan_combined`` is what Megatron-Core's ``MambaMixer`` and transformers' mixers call in training:

    forward    convolution and SiLU, cumsum, state, pass, bmm, scan ⟨gate⟩, gated norm
    backward   convolution, ⟨norm, gate⟩, cumsum, bmm, state and pass again; then gradients of states, of what is
               scanned, of B and C, of pairs and decays, and of the convolution

It keeps the projection's result and the scan's, and makes all else again. Whoever norms multiplies by the gate: in
transformers the norm inside the function, in Megatron the scan, and a norm of groups of heads follows.

Source: ``mamba_ssm/ops/triton/ssd_combined.py`` of state-spaces/mamba; ``megatron/core/ssm/mamba_mixer.py``.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.architecture.state_space import StateSpace
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES, Scan
from joulecast.model.transformer.linear import Linear

#: Passes over a step of every head and token by PyTorch's own kernels in the backward: a copy of the steps, a sum over
#: each chunk from its end (two turns and the sum), and two additions.
STEP_PASSES = ("copy", "turn", "sum", "turn_back", "add", "add_more")
#: Buffers that the backward sets to zero, and sums over few numbers beside those of :func:`_summed`.
ZEROED, SMALL_SUMS = 9, 4
#: Names of the parameters between the projections.
SCALARS = ("step.bias", "decay", "skip")


def mixer_of(s: Shard) -> StateSpace:
    """The rank's share of a layer's mixer; a layer without one has no kernels of it."""
    if s.state_space is None:
        raise TypeError("a layer without a state space")
    return s.state_space


def projections(s: Shard) -> tuple[Linear, Linear]:
    """The products in front of the scan and behind it."""
    m = mixer_of(s)
    return (
        Linear("in_proj", m.projected, s.hidden, m.projection_bias),
        Linear("out_proj", s.hidden, m.inner, m.projection_bias),
    )


def kernel(name: str, s: Shard, *, gated: bool = False, again: bool = False) -> Launch:
    """One kernel of a scan."""
    m = mixer_of(s)
    sizes = m.heads, m.head_dim, m.groups, m.state, m.chunk
    operator = Scan(name, s.batch, s.sequence, *sizes, gated=gated, dtype=s.dtype)
    return Launch(replace(operator, name=f"scan.{name}{'.again' if again else ''}"))


def forward(s: Shard) -> tuple[Launch, ...]:
    """From the projection to the result of the norm, which multiplies by the gate."""
    return (*scan_forward(s, gates=False), norm_forward(s, gates=False))


def scan_forward(s: Shard, *, gates: bool) -> tuple[Launch, ...]:
    """From the projection to the scan's result; ``gates``: the scan multiplies by the gate, not the norm."""
    chunks = (kernel(name, s) for name in ("conv", "cumsum", "state", "pass", "bmm"))
    return (*chunks, kernel("scan", s, gated=gates))


def norm_forward(s: Shard, *, gates: bool) -> Launch:
    """The norm behind the scan."""
    return kernel("norm", s, gated=not gates)


def decays(s: Shard, suffix: str = "") -> tuple[Launch, ...]:
    """Each head's decay, minus the exponential of its parameter in fp32, or the gradient of that."""
    return (replace(streaming("unary", f"scan.decays{suffix}", mixer_of(s).heads, dtype="fp32"), repeat=3),)


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`, those of parameters without their sums."""
    return (norm_backward(s, gates=False), *scan_backward(s, gates=False))


def norm_backward(s: Shard, *, gates: bool) -> Launch:
    """Gradient of the norm, which makes its result again where it multiplies by the gate: the second projection's
    gradient reads it.
    """
    return kernel("norm_backward", s) if gates else kernel("norm_again", s, gated=True)


def scan_backward(s: Shard, *, gates: bool) -> tuple[Launch, ...]:
    """Gradient of the scan and of the convolution, which are made again."""
    again = (kernel(name, s, again=True) for name in ("cumsum", "bmm", "state", "pass_wide"))
    return (
        kernel("conv", s, again=True),
        *again,
        *((kernel("dz", s),) if gates else ()),
        *(kernel(name, s) for name in ("dstates", "pass_backward", "dx", "db", "dc")),
        *_summed(s),
        *(kernel(name, s) for name in ("dcb", "bmm_backward", "bmm_backward", "decays")),
        *_steps(s),
        kernel("cumsum_backward", s),
        kernel("conv_backward", s),
    )


def _summed(s: Shard) -> tuple[Launch, ...]:
    """Sums over splits of a group's heads, of which there is one where the GPU is full: copies in fp32."""
    m = mixer_of(s)
    shared, pairs = s.tokens * m.groups * m.state, s.tokens * m.groups * min(m.chunk, s.sequence)
    return tuple(
        streaming("reduce", f"scan.{name}.sum", values, dtype="fp32")
        for name, values in (("db", shared), ("dc", shared), ("dcb", pairs))
    )


def _steps(s: Shard) -> tuple[Launch, ...]:
    """Small kernels on steps and decays, and on sums of what thread blocks found."""
    m = mixer_of(s)
    values = s.tokens * m.heads
    zeros = streaming("fill", "scan.zeros", m.heads, reads=0, dtype="fp32")
    sums = streaming("reduce", "scan.small.sum", s.tokens / min(m.chunk, s.sequence) * m.heads, dtype="fp32")
    return (
        *(streaming("unary", f"scan.steps.{one}", values, dtype="fp32") for one in STEP_PASSES),
        replace(zeros, repeat=ZEROED),
        replace(sums, repeat=SMALL_SUMS),
    )


def scalars(s: Shard) -> dict[str, int]:
    """Parameters between the projections, all but the norm's split over the ranks like the heads: names and sizes."""
    m = mixer_of(s)
    sizes = {"conv.weight": m.channels * m.conv, **({"conv.bias": m.channels} if m.conv_bias else {})}
    return {**sizes, **dict.fromkeys(SCALARS, m.heads), "scan_norm.weight": m.inner}


def kept_bytes(s: Shard) -> float:
    """What a layer's backward reads of what lies between the projections' inputs, nothing for other layers.

    The projection's and the scan's results, and statistics of groups' norms; in Megatron, whose norm stands by itself,
    the gated result and the norm's too, which the second projection multiplies.
    """
    m, run = s.state_space, s.implementation
    if m is None:
        return 0.0
    size = float(DTYPE_BYTES[run.dtype])
    apart = 0.0
    if run.megatron:
        read = size if run.kept_narrow is None else run.kept_narrow.value_bytes
        apart = (size + read) * m.inner
    return s.tokens * (size * (m.projected + m.inner) + apart + 4.0 * m.groups)


def transient_bytes(s: Shard) -> float:
    """What the scan's backward holds at its worst: its gradients, and states and pairs that it makes again.

    The convolution's result and gradient, the projection's gradient and the scan's; of states in fp32 and of their
    gradients both, and what the products read of them; pairs of positions.
    """
    m = s.state_space
    if m is None:
        return 0.0
    size, chunk = s.value_bytes, min(m.chunk, s.sequence)
    states = s.tokens / chunk * m.inner * m.state
    tensors = size * s.tokens * (2 * m.channels + m.projected + m.inner)
    return tensors + (8.0 + 2.0 * size) * states + 4.0 * s.tokens * m.groups * chunk
