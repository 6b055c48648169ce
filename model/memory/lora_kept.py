"""What layers with adapters beside frozen weights keep for their backward.

A frozen product keeps its weight and nothing of its input, a frozen norm not what its weight multiplies. An adapter
keeps A's input and A's result. The input is the product's own tensor, which adapters of other products share, unless it
was dropped or cast for this adapter alone, as every one in fp32 is behind ``prepare_model_for_kbit_training``; dropout
keeps a mask of one byte a value.
"""

from __future__ import annotations

from joulecast.model.framework.layer_shard import Shard
from joulecast.model.framework.lora import Lora
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer import linear


def shares_inputs(s: Shard, lora: Lora) -> bool:
    """Whether adapters keep their products' inputs as they are."""
    return not lora.dropout and not lora.prepared and (not s.implementation.casts_adapters or bool(lora.base))


def normed_inputs(s: Shard, lora: Lora) -> int:
    """Results of a layer's norms that are kept: those that adapters share."""
    groups = (linear.projections(s), linear.first_products(s))
    shared = sum(any(one.name in lora.targets for one in group) for group in groups)
    return min(shared, s.config.block_inputs) if shares_inputs(s, lora) else 0


def keeps_input(name: str, s: Shard) -> bool:
    """Whether a product's input is kept as it is: a frozen one keeps none, an adapter may have one of its own."""
    lora = s.implementation.lora
    return lora is None or (name in lora.targets and shares_inputs(s, lora))


def adapter_bytes(s: Shard, lora: Lora) -> float:
    """Inputs that are an adapter's own, masks, results of A, and weights that autocast has rounded."""
    size = s.value_bytes
    own = (0.0 if shares_inputs(s, lora) else size) + (1.0 if lora.dropout else 0.0)
    narrow = own if lora.dropout or not lora.prepared else 0.0  # what attention gives is narrow as it is
    rounded = size if s.implementation.casts_adapters else 0.0
    kept = 0.0
    for one in linear.linears(s):
        if one.name in lora.targets:
            each = narrow if one.name == "output" else own
            kept += s.tokens * (each * one.inputs + size * lora.rank)
            kept += rounded * sum(lora.elements(one.outputs, one.inputs))
    return kept


def gradient_bytes(s: Shard, lora: Lora) -> float:
    """Most of the last product's input gradients at once: the product's, to which the adapter's is added in place.

    Of a cast adapter the gradient is widened, and where there is dropout multiplied by the mask, in fp32. A weight in 4
    bits is written out beside. A wide input's gradients are both widened before their sum.
    """
    size, wide = s.value_bytes, float(DTYPE_BYTES["fp32"])
    most = size + wide if lora.prepared else size
    if "down" in lora.targets and lora.prepared:
        most = 3 * wide
    elif "down" in lora.targets:
        casts = s.implementation.casts_adapters and not lora.base
        undone = wide + (wide if lora.dropout else size) if casts else 0.0
        most = max(undone, 2 * size)
    return s.tokens * s.ffn * most + (size * s.hidden * s.ffn if lora.base else 0.0)
