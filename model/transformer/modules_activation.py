"""Activation of an MLP whose gate and up are tensors of their own, or whose GELU is written as a formula.

transformers' ``gelu_new`` is ½x(1 + tanh(√(2/π)(x + 0.044715x³))), one kernel for each operation: eight forward, and
eleven backward. All of them read and write whole tensors, most at the memory's pace.
"""

from __future__ import annotations

from joulecast.model.framework.launches import ONE_BY_ONE, Launch, issued, one_by_one, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer import liger_kernels
from joulecast.model.transformer.row_operators import MIXED, WIDEN
from joulecast.model.transformer.softcap import TANH

#: Cycles of an SM for a value: SiLU, and its gradient. Kernels of four rows of
#: `validate/recorded/h200_sxm/train_modules.jsonl`, which differ by 9 and 1 % [estimates, +-5 %].
SILU, SILU_GRADIENT = 0.155, 0.238
#: Operations of ``gelu_new`` in order, and how many tensors each reads.
FORMULA = (
    *(("half", 1), ("cube", 1), ("coefficient", 1), ("sum", 2)),
    *(("scaled", 1), ("tanh", 1), ("one", 1), ("product", 2)),
)
FORMULA_BACKWARD = (
    *(("product.grad_half", 2), ("product.grad_tanh", 2), ("tanh.grad", 2), ("scaled.grad", 1)),
    *(("coefficient.grad", 1), ("cube.square", 1), ("cube.triple", 1), ("cube.grad", 2)),
    *(("sum.grad", 2), ("half.grad", 1), ("input.grad", 2)),
)
#: The same of BLOOM's GELU, whose backward makes the hyperbolic tangent again.
BLOOM = (
    *(("half", 1), ("scaled", 1), ("coefficient", 1), ("square", 2), ("one", 1)),
    *(("argument", 2), ("tanh", 1), ("two", 1), ("product", 2)),
)
BLOOM_BACKWARD = (
    *(("scaled", 1), ("coefficient", 1), ("square", 2), ("one", 1), ("argument", 2), ("tanh", 1)),
    *(("half", 1), ("tanh.square", 2), ("tanh.grad", 1), ("slope", 1), ("slope.square", 2), ("slope.sum", 1)),
    *(("half.slope", 2), ("half.grad", 2), ("two", 1), ("two.half", 1), ("sum", 2), ("input.grad", 2)),
)
#: The same of CLIP's: x times the sigmoid of 1.702x.
QUICK = (("scaled", 1), ("sigmoid", 1), ("product", 2))
QUICK_BACKWARD = (
    *(("product.grad_input", 2), ("product.grad_sigmoid", 2), ("sigmoid.grad", 2)),
    *(("scaled.grad", 1), ("input.grad", 2)),
)
#: ``gelu_new`` under ``torch.autocast``, which takes the power in fp32: operation, tensors read and written in fp32
#: (half of one is a narrow one), and whether a thread takes values one by one, as it does where types differ.
MIXED_FORMULA = (
    ("half", 0.5, 0.5, False),
    ("widen", 0.5, 1.0, True),
    ("cube", 1.0, 1.0, False),
    ("coefficient", 1.0, 1.0, False),
    ("sum", 1.5, 1.0, True),
    ("scaled", 1.0, 1.0, False),
    ("tanh", 1.0, 1.0, False),
    ("one", 1.0, 1.0, False),
    ("product", 1.5, 1.0, True),
)
MIXED_FORMULA_BACKWARD = (
    ("product.grad_tanh", 1.5, 1.0, True),
    ("product.grad_half", 2.0, 1.0, False),
    ("product.grad_half.round", 1.0, 0.5, False),
    ("tanh.grad", 2.0, 1.0, False),
    ("scaled.grad", 1.0, 1.0, False),
    ("sum.grad.round", 1.0, 0.5, False),
    ("coefficient.grad", 1.0, 1.0, False),
    ("cube.square", 1.0, 1.0, False),
    ("cube.triple", 1.0, 1.0, False),
    ("cube.grad", 2.0, 1.0, False),
    ("cube.grad.round", 1.0, 0.5, False),
    ("sum.grad", 1.0, 0.5, False),
    ("half.grad", 0.5, 0.5, False),
    ("input.grad", 1.0, 0.5, False),
)
#: The same of a squared ReLU, whose power is taken in fp32 as well.
MIXED_SQUARE = (("relu", 0.5, 0.5, False), ("widen", 0.5, 1.0, True), ("square", 1.0, 1.0, False))
MIXED_SQUARE_BACKWARD = (
    ("square.power", 1.0, 1.0, False),
    ("square.double", 1.0, 1.0, False),
    ("square.grad", 2.0, 1.0, False),
    ("square.grad.round", 1.0, 0.5, False),
    ("relu.grad", 1.0, 0.5, False),
)


def added(name: str, values: int, dtype: str, wide: str) -> Launch:
    """Values added to others of the same type or in fp32, which a thread then takes one by one."""
    if dtype == wide:
        return streaming("add", name, values, reads=2, dtype=dtype)
    return one_by_one("add", name, values, MIXED, reads=1.5, dtype=wide)


def gives_fp32(s: Shard) -> bool:
    """Whether the activation's result is in fp32: its power is, or what linear layers gave."""
    return (formula(s) and wide_powers(s)) or squared(s) or s.implementation.prepared


def formula(s: Shard) -> bool:
    """Whether the activation is one kernel for each operation of ``gelu_new``."""
    run = s.implementation
    return s.config.gelu_formula and not s.config.gated_mlp and run.modules == "transformers" and not run.compiled


def squared(s: Shard) -> bool:
    """Whether the activation is a squared ReLU under ``torch.autocast``."""
    run = s.implementation
    own = s.config.activation == "relu2" and run.modules == "transformers" and not run.compiled
    return own and wide_powers(s)


def wide_powers(s: Shard) -> bool:
    """Whether ``torch.autocast`` takes powers in fp32: of values that it, or adapters beside it, made narrow."""
    run = s.implementation
    return run.autocast or (run.casts_adapters and not run.prepared)


def forward(s: Shard) -> tuple[Launch, ...]:
    """Between the products of an MLP without a gate, or with one that is joined to up."""
    if liger_kernels.swaps_gate(s):
        return liger_kernels.gate_forward(s, joint=True)
    steps = _steps(s)
    return eager.activation_forward(s) if steps is None else steps[0]


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`."""
    if liger_kernels.swaps_gate(s):
        return liger_kernels.gate_backward(s, joint=True)
    steps = _steps(s)
    return eager.activation_backward(s) if steps is None else steps[1]


def _steps(s: Shard) -> tuple[tuple[Launch, ...], tuple[Launch, ...]] | None:
    """Forward and backward of an activation that is a kernel for each operation; ``None`` where it is one kernel."""
    if s.family == "bloom":
        return _formula(s, BLOOM), _formula(s, BLOOM_BACKWARD)
    if quick(s):
        return _formula(s, QUICK), _formula(s, QUICK_BACKWARD)
    if squared(s):
        return _mixed(s, MIXED_SQUARE), _mixed(s, MIXED_SQUARE_BACKWARD)
    if not formula(s):
        return None
    if wide_powers(s):
        return _mixed(s, MIXED_FORMULA), _mixed(s, MIXED_FORMULA_BACKWARD)
    return _formula(s, FORMULA), _formula(s, FORMULA_BACKWARD)


def quick(s: Shard) -> bool:
    """Whether the activation is CLIP's, of three operations."""
    return s.config.activation == "quick_gelu"


def _formula(s: Shard, steps: tuple[tuple[str, int], ...]) -> tuple[Launch, ...]:
    elements, dtype = s.tokens * s.ffn, s.dtype
    return tuple(
        streaming(
            "unary" if reads == 1 else "mul",
            f"activation.{name}",
            elements,
            reads=reads,
            dtype=dtype,
            sm_cycles=TANH * elements if name == "tanh" else 0.0,
        )
        for name, reads in steps
    )


def _mixed(s: Shard, steps: tuple[tuple[str, float, float, bool], ...]) -> tuple[Launch, ...]:
    elements = s.tokens * s.ffn
    return tuple(
        streaming(
            "mul" if reads > 1 else "unary",
            f"activation.{name}",
            elements,
            reads=reads,
            writes=writes,
            dtype="fp32",
            sm_cycles=(WIDEN if name == "widen" else MIXED) * elements if single else 0.0,
            overlap=ONE_BY_ONE if single else 0.0,
        )
        for name, reads, writes, single in steps
    )


def gate(s: Shard) -> tuple[Launch, ...]:
    """Activation of the gate; Liger's kernel makes it with the product."""
    if liger_kernels.swaps_gate(s):
        return ()
    elements, kind = s.tokens * s.ffn, s.config.activation
    if kind == "gelu":
        return (streaming("gelu", f"gate.{kind}", elements, dtype=s.dtype),)
    return (issued("unary", f"gate.{kind}", elements, SILU * elements, activity=1.0, dtype=s.dtype),)


def gate_product(s: Shard) -> tuple[Launch, ...]:
    """Product of the activated gate and up."""
    if liger_kernels.swaps_gate(s):
        return liger_kernels.gate_forward(s, joint=False)
    return (streaming("mul", "gate.product", s.tokens * s.ffn, reads=2, dtype=s.dtype),)


def gate_product_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradients of up and of the activated gate."""
    if liger_kernels.swaps_gate(s):
        return liger_kernels.gate_backward(s, joint=False)
    elements, dtype = s.tokens * s.ffn, s.dtype
    return tuple(
        streaming("mul", f"gate.product.{side}", elements, reads=2, dtype=dtype) for side in ("grad_up", "grad_gate")
    )


def gate_backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of the gate's activation, which Liger's kernel has made."""
    if liger_kernels.swaps_gate(s):
        return ()
    elements, dtype, kind = s.tokens * s.ffn, s.dtype, s.config.activation
    if kind == "gelu":
        return (streaming("gelu_backward", f"gate.{kind}.grad", elements, reads=2, dtype=dtype),)
    cycles = SILU_GRADIENT * elements
    return (issued("mul", f"gate.{kind}.grad", elements, cycles, activity=1.0, reads=2, dtype=dtype),)
