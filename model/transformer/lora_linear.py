"""Adapters beside the linear layers of transformers' modules, kernel by kernel as PEFT runs them.

    forward                x widened, dropped, rounded; a = A·x, b = B·a, s·b, y + s·b
    backward               s·dy; dB = s·dyᵀ·a, da = s·dy·B; dA = daᵀ·x, da·A undone as x was made, and added to dx

Adapters in fp32 beside a narrower base run under ``torch.autocast``: PEFT widens their input to A's type, dropout takes
it so, and autocast rounds it again, and the weights; gradients are cast back the same way. Adapters in the base's own
type are cast nowhere.

Beside weights in 4 bits (``nf4``) PEFT casts no input, and copies the product's result first. bitsandbytes writes such
a weight out in the products' type before each product, forward and backward, as its authors found quicker than a kernel
that reads 4 bits where there are more than some hundred tokens; scales in 8 bits are made fp32 before, at the memory's
pace.

Behind ``prepare_model_for_kbit_training`` norms give fp32. A layer in 4 bits rounds such an input for its product and
widens the result, which PEFT copies so; autocast rounds the input once more for A, and fp32 and narrower values are
added. All gradients are cast back the same way.

Sources: ``Linear.forward``, ``Linear4bit.forward`` and ``_cast_input_dtype`` of PEFT 0.21; ``Linear4bit``,
``MatMul4Bit`` and ``_dequant_linear_fallback`` of bitsandbytes 0.50; autocast's lists of PyTorch. Kernels of an H100
are as many (`validate/recorded/h100_sxm/train_qlora.jsonl`).
"""

from __future__ import annotations

from joulecast.model.framework.launches import (
    Launch,
    input_gradient,
    issued,
    linear_forward,
    streaming,
    weight_gradient,
)
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.framework.lora import WEIGHTS_TOGETHER, Lora
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer.dropout import dropped, dropped_gradient
from joulecast.model.transformer.eager_layer import gradient_of
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.modules_activation import added
from joulecast.model.transformer.row_operators import rounded, widened

#: Cycles of an SM for a weight that is written out of 4 bits, each looked up in a table of 16: kernels of 3.1 to 58.7
#: million weights on an H100 (`validate/recorded/h100_sxm/train_qlora.jsonl`), which take 1.3 times what the memory
#: does [estimate, +-5 %].
WRITTEN_OUT = 0.265


def adapter(name: str, s: Shard) -> Lora | None:
    """The adapter of a product, if it has one."""
    lora = s.implementation.lora
    return lora if lora is not None and name in lora.targets else None


def written_out(name: str, s: Shard, weights: int) -> tuple[Launch, ...]:
    """A frozen weight in 4 bits written out for a product; nothing where it is kept as it is multiplied."""
    lora, dtype = s.implementation.lora, s.dtype
    if lora is None or not lora.base:
        return ()
    scales = weights / WEIGHTS_TOGETHER
    absmax = (
        streaming("unary", f"{name}.absmax", scales, reads=0.25, dtype="fp32"),
        streaming("unary", f"{name}.offset", scales, dtype="fp32"),
    )
    read = (0.5 + DTYPE_BYTES["fp32"] / WEIGHTS_TOGETHER) / DTYPE_BYTES[dtype]
    return (
        *(absmax if lora.double_quantised else ()),
        issued("unary", f"{name}.{lora.base}", weights, WRITTEN_OUT * weights, reads=read, dtype=dtype),
    )


def forward(layer: Linear, s: Shard, *, wide: bool) -> tuple[Launch, ...]:
    """What an adapter adds to a product; ``wide``: its input comes in fp32."""
    name, outputs, inputs, lora = layer.name, layer.outputs, layer.inputs, adapter(layer.name, s)
    if lora is None:
        return ()
    dtype, values, casts = s.dtype, s.tokens * inputs, s.implementation.casts_adapters
    first, second = (f"{name}.lora_{matrix}" for matrix in "ab")
    casts_input = casts and not lora.base
    in_fp32 = wide or casts_input
    read = "fp32" if in_fp32 else dtype
    given = "fp32" if wide and lora.base else dtype
    return (
        *((streaming("copy", f"{name}.lora.clone", s.tokens * outputs, dtype=given),) if lora.base else ()),
        *((widened(f"{name}.lora.widen", values, dtype),) if casts_input and not wide else ()),
        *((dropped(f"{name}.lora.dropout", values, read),) if lora.dropout else ()),
        *((rounded(f"{name}.lora.round", values),) if in_fp32 else ()),
        *((rounded(f"{first}.weight.round", lora.rank * inputs),) if casts else ()),
        linear_forward(first, s.tokens, lora.rank, inputs, dtype),
        *((rounded(f"{second}.weight.round", lora.rank * outputs),) if casts else ()),
        linear_forward(second, s.tokens, outputs, lora.rank, dtype),
        streaming("unary", f"{name}.lora.scale", s.tokens * outputs, dtype=dtype),
        added(f"{name}.lora.add", s.tokens * outputs, dtype, given),
    )


def backward(layer: Linear, s: Shard, accumulate: bool, *, wide: bool) -> tuple[tuple[Launch, ...], tuple[Launch, ...]]:
    """Gradients of :func:`forward`, and behind the frozen product's the sum of both inputs' gradients."""
    name, outputs, inputs, lora = layer.name, layer.outputs, layer.inputs, adapter(layer.name, s)
    if lora is None:
        return (), ()
    dtype, values, casts = s.dtype, s.tokens * inputs, s.implementation.casts_adapters
    first, second = (f"{name}.lora_{matrix}" for matrix in "ab")
    casts_input = casts and not lora.base
    in_fp32 = wide or casts_input
    read = "fp32" if in_fp32 else dtype
    kernels = (
        *((rounded(f"{name}.lora.result.grad.round", s.tokens * outputs),) if wide and lora.base else ()),
        streaming("unary", f"{name}.lora.grad.scale", s.tokens * outputs, dtype=dtype),
        *_weight_gradient(second, s, outputs, lora.rank, accumulate, casts=casts),
        input_gradient(second, s.tokens, outputs, lora.rank, dtype),
        *_weight_gradient(first, s, lora.rank, inputs, accumulate, casts=casts),
        input_gradient(first, s.tokens, lora.rank, inputs, dtype),
        *((widened(f"{name}.lora.grad.widen", values, dtype),) if in_fp32 else ()),
        *((dropped_gradient(f"{name}.lora.dropout.grad", values, read),) if lora.dropout else ()),
        *((rounded(f"{name}.lora.grad.round", values),) if casts_input and not wide else ()),
    )
    return kernels, (streaming("add", f"{name}.lora.grad.sum", values, reads=2, dtype="fp32" if wide else dtype),)


def _weight_gradient(
    name: str, s: Shard, outputs: int, inputs: int, accumulate: bool, *, casts: bool
) -> tuple[Launch, ...]:
    """Gradient of A or B, widened where autocast rounded it, and its addition to an earlier one."""
    weight, weights = f"{name}.weight", outputs * inputs
    product = weight_gradient(name, s.tokens, outputs, inputs, s.dtype)
    if not casts:
        return gradient_of(weight, product, weights, s.dtype, accumulate)
    wide = widened(f"{name}.wgrad.widen", weights, s.dtype)
    return (product, *gradient_of(weight, wide, weights, "fp32", accumulate))
