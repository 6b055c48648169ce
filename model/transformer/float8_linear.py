"""Linear layers of PyTorch in FP8, after torchao's recipes: every operand is cast in front of each product.

Nothing is kept in FP8. A layer y = x·Wᵀ runs

    forward                casts of x and W                       y  = x·Wᵀ
    input's gradient       casts of dy and W, a copy of Wᵀ        dx = dy·W
    weight's gradient      cast of x, copies of xᵀ and dyᵀ        dW = dyᵀ·x

with one scale for a tensor, or one for each row along the sum (``rowwise``), of which two directions are needed and
dy is cast twice. Without ``torch.compile`` a cast is seven kernels: the greatest absolute value in two, values widened
to fp32, scaled, clamped and rounded, and scalars between them. Compiled, a cast is two, fused with what makes the
values: one reads them for the greatest value, one reads them again and writes FP8, also turned. A scale of each row
is found and used in one kernel. The forward sums in the matrix units alone (``use_fast_accum``). Of products that
share their input a compiled graph casts it once in each direction, eager layers once for each.

Where FSDP gathers weights in FP8 (``enable_fsdp_float8_all_gather``), it casts each rank's shards, and products cast no
weight: the forward's takes it as it is, the input's gradient a transposed copy. The scales of all weights are found
behind the optimizer, with one all-reduce (``precompute_float8_dynamic_scale_for_fsdp``).

Split over tensor-parallel ranks (``tensorwise``, sequence parallelism), every greatest value is that of all ranks: an
all-reduce of one number behind each search. What products in front of attention and of the MLP read, and the gradients
of what those behind give, are cast on each rank's share of the sequence and gathered in FP8; a copy turns them for the
weights' gradients. Sums are scattered in bf16.

Sources: torchao, ``float8_linear``, ``float8_scaling_utils`` and ``float8_tensor_parallel``
(``PrepareFloat8ModuleInput``, ``Float8ColwiseParallel``, ``Float8RowwiseParallel``; 2025), and torchtitan,
``apply_tp``; Micikevicius et al., arXiv 2209.05433. Tensor parallelism is counted from that code, not measured. Cycles
of an SM for a value are those of single kernels on an H200 (`validate/recorded/h200_sxm/fp8_kernels.jsonl`)
[estimates, +-7 %].
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import (
    Launch,
    collective,
    input_gradient,
    issued,
    linear_forward,
    streaming,
    weight_gradient,
)
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.framework.narrow import Narrow
from joulecast.model.kernels.operators import Gemm
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.row_operators import widened

#: Cycles of an SM for a value: the greatest value, scaling by one number, a transposed copy of FP8 by PyTorch's own
#: kernel and what that draws; compiled, a cast that also writes the transposed copy, one that writes it alone,
#: and one with a scale for each column. The last two are from traces of the first rows of either recipe in
#: `train_float8.jsonl`.
GREATEST, SCALE, TURN, TURN_POWER, BOTH, TURNED, COLUMN = 0.17, 0.69, 1.47, 2.9, 0.41, 0.24, 0.75
#: Reads of a row that is searched for its greatest value and then cast, partly while L2 still has it [1; +-0.4].
ROW_READS = 1.5
#: Kernels of one number that make a scale.
SCALARS = 6
#: Products behind attention and behind the MLP's activation, whose sums are scattered over tensor-parallel ranks.
ROW_PARALLEL = ("output", "down")
#: Products whose bias is added in their epilogue.
IN_EPILOGUE = ("qkv", "query", "key", "value", "output", "gate", "up", "down")
#: Bytes of the greatest value of a tensor, which tensor-parallel ranks reduce.
GREATEST_BYTES = 4.0


def forward(layer: Linear, s: Shard, *, shared: bool = False) -> tuple[Launch, ...]:
    """A linear layer's product, with casts where it is in FP8: of its input unless one cast is ``shared``."""
    name, outputs, inputs, run = layer.name, layer.outputs, layer.inputs, s.implementation
    if run.narrow is None:
        # Partial sums of tensor-parallel ranks get it afterwards.
        whole = run.tensor_parallel == 1 or name not in ROW_PARALLEL
        bias = whole and layer.bias and name in IN_EPILOGUE
        return (linear_forward(name, s.tokens, outputs, inputs, run.dtype, bias=bias),)
    wide = linear_forward(name, s.tokens, outputs, inputs, run.dtype)
    arrived = gathers(s) and name not in ROW_PARALLEL
    return (
        *(() if shared or arrived else _cast(f"{name}.input", s, s.tokens * inputs, run.narrow)),
        *(() if run.gathers_narrow else _cast(f"{name}.weight", s, layer.weights, run.narrow)),
        _narrow(wide, fast=True),
    )


def backward(layer: Linear, s: Shard, completes: str, *, shared: bool) -> tuple[Launch, ...]:
    """Gradients of the weight, then of the input; in FP8 the other way round, with their casts."""
    name, outputs, inputs, run = layer.name, layer.outputs, layer.inputs, s.implementation
    dgrad = input_gradient(name, s.tokens, outputs, inputs, run.dtype)
    wgrad = weight_gradient(name, s.tokens, outputs, inputs, run.dtype, completes=completes)
    if run.narrow is None:
        return wgrad, dgrad
    gradient, weight, values = s.tokens * outputs, layer.weights, s.tokens * inputs
    if run.narrow.recipe == "rowwise":
        return (
            *_cast(f"{name}.grad", s, gradient, run.narrow),
            *_columns(f"{name}.weight", s, weight),
            _narrow(dgrad),
            *_columns(f"{name}.grad", s, gradient),
            *(() if shared else _columns(f"{name}.input", s, values)),
            _narrow(wgrad),
        )
    gathered_input, gathered_grad = (gathers(s) and side for side in (name not in ROW_PARALLEL, name in ROW_PARALLEL))
    again = _cast(f"{name}.input", s, values, run.narrow, turned=True, known=run.compiled)
    return (
        *(() if gathered_grad else _cast(f"{name}.grad", s, gradient, run.narrow, turned=run.compiled)),
        *(
            (_turned(f"{name}.weight", s, weight),)
            if run.gathers_narrow
            else _cast(f"{name}.weight", s, weight, run.narrow, turned=True, known=run.compiled)
        ),
        _narrow(dgrad),
        *(() if shared else (_turned(f"{name}.input", s, values),) if gathered_input else again),
        *((_turned(f"{name}.grad", s, gradient),) if gathered_grad or not run.compiled else ()),
        _narrow(wgrad),
    )


def gathers(s: Shard) -> bool:
    """Whether tensor-parallel ranks gather a split sequence in FP8."""
    run = s.implementation
    return run.splits_sequence and run.narrow is not None and not run.megatron


def gathered(name: str, s: Shard) -> tuple[Launch, ...]:
    """A tensor of the split sequence, cast where each rank has its share, and gathered in FP8."""
    run = s.implementation
    if run.narrow is None:
        raise TypeError(f"{name} is not in FP8")
    size = s.tokens * s.hidden * run.narrow.value_bytes
    return (*_cast(name, s, s.stream_values, run.narrow), collective("all_gather", f"{name}.all_gather", size, run))


def _narrow(launch: Launch, *, fast: bool = False) -> Launch:
    wide = launch.operator
    if not isinstance(wide, Gemm):
        raise TypeError(f"{launch} is no product")
    narrow = replace(wide, dtype="fp8", layout="tn", out_dtype=wide.dtype, fast_accumulation=fast)
    return replace(launch, operator=narrow)


def _cast(
    name: str, s: Shard, elements: int, narrow: Narrow, *, turned: bool = False, known: bool = False
) -> tuple[Launch, ...]:
    run = s.implementation
    options = {"also_turned": turned, "known": known, "rowwise": narrow.recipe == "rowwise"}
    launches = cast(name, elements, run.dtype, compiled=run.compiled, **options)
    if not gathers(s):
        return launches
    reduced = collective("all_reduce", f"{name}.greatest.all_reduce", GREATEST_BYTES, run)
    return tuple(x for one in launches for x in ((one, reduced) if one.operator.name.endswith(".greatest") else (one,)))


def _turned(name: str, s: Shard, elements: int) -> Launch:
    """Transposed copy of FP8 values: by a kernel that Inductor makes, or by PyTorch's own."""
    if not s.implementation.compiled:
        return turned(name, elements)
    return issued("unary", f"{name}.turn", elements, TURNED * elements, activity=1.5, dtype="fp8")


def cast(
    name: str,
    elements: int,
    dtype: str,
    *,
    compiled: bool,
    also_turned: bool = False,
    known: bool = False,
    rowwise: bool = False,
) -> tuple[Launch, ...]:
    """FP8 of values: ``also_turned`` with their transposed copy, or that alone where the scale is ``known`` already."""
    if not compiled:
        return _eager_cast(name, elements, dtype, also_turned=also_turned)
    if rowwise:
        return (streaming("reduce", f"{name}.cast", elements, reads=ROW_READS, writes=0.5, dtype=dtype),)
    made = streaming("unary", f"{name}.cast", elements, writes=0.5, dtype=dtype)
    if also_turned:
        cycles, writes = (TURNED, 0.5) if known else (BOTH, 1.0)
        made = issued("unary", f"{name}.cast", elements, cycles * elements, activity=1.5, writes=writes, dtype=dtype)
    return (made,) if known else (*greatest(name, elements, dtype, compiled=True), made)


def _columns(name: str, s: Shard, elements: int) -> tuple[Launch, ...]:
    """FP8 of values with a scale for each column, and their transposed copy."""
    dtype, cycles = s.dtype, COLUMN * elements
    if not s.implementation.compiled:
        return _eager_cast(name, elements, dtype, also_turned=True)
    return (issued("unary", f"{name}.columns", elements, cycles, activity=1.5, reads=2, dtype=dtype),)


def greatest(name: str, elements: int, dtype: str, *, compiled: bool) -> tuple[Launch, ...]:
    """The greatest absolute value."""
    if compiled:
        return (streaming("reduce", f"{name}.greatest", elements, writes=0, dtype=dtype),)
    return (
        streaming("unary", f"{name}.absolute", elements, dtype=dtype),
        issued("reduce", f"{name}.greatest", elements, GREATEST * elements, activity=1.0, writes=0, dtype=dtype),
    )


def _eager_cast(name: str, elements: int, dtype: str, *, also_turned: bool) -> tuple[Launch, ...]:
    """The same by PyTorch's own kernels, one operation each."""
    return (
        *greatest(name, elements, dtype, compiled=False),
        replace(streaming("copy", f"{name}.scale", 1, dtype="fp32"), repeat=SCALARS),
        widened(f"{name}.widen", elements, dtype),
        issued("unary", f"{name}.scaled", elements, SCALE * elements, activity=1.0, dtype="fp32"),
        streaming("unary", f"{name}.clamp", elements, dtype="fp32"),
        streaming("unary", f"{name}.round", elements, writes=0.25, dtype="fp32"),
        *((turned(name, elements),) if also_turned else ()),
    )


def turned(name: str, elements: int) -> Launch:
    """Transposed copy of FP8 values by PyTorch's copying kernel."""
    return issued("copy", f"{name}.turn", elements, TURN * elements, activity=TURN_POWER, dtype="fp8")
