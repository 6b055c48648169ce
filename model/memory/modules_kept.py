"""What a layer of transformers or torchtitan keeps for its backward.

An RMSNorm of tensor operations keeps its input in fp32, the normalised values (in fp32 too where they are multiplied by
the weight so) and its result; a fused or compiled one, input and result. The result of a norm behind a block is only
added. A mask for a window is kept with keys and values for every head. Rotation needs only its table, so that queries
and keys are kept rotated alone. A gate keeps both its products, its activation and what follows; ``gelu_new`` its
input, half of it, the hyperbolic tangent, one more than that, and its result. Compiled, activations are made again, and
what norms and activations give where products cast it to FP8 anew; what ranks gathered in FP8 is kept so. In a graph of
a whole model keys and values are kept for every head.

Tensors that PyTorch's autograd formulas save; peaks of the iterations of
`validate/recorded/h200_sxm/train_modules.jsonl` are met within 1 %.
"""

from __future__ import annotations

from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.attention import FLEX
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.memory import lora_kept
from joulecast.model.transformer import (
    delta_net,
    dropout,
    eager_layer,
    family_attention,
    float8_linear,
    gated_attention,
    liger_kernels,
    liger_loss,
    linear,
    masked_attention,
    math_attention,
    modules_activation,
    modules_experts,
    modules_shared,
    pytorch_norm,
    state_space,
    transformers_attention,
    transformers_rotary,
)
from joulecast.model.transformer.rotary import normed_parts

#: An fp32 value, of a statistic or of a widened tensor [bytes].
WIDE = 4.0
#: Tensors of the MLP's width that ``gelu_new`` keeps, its result included; any other activation keeps two.
FORMULA_TENSORS, PLAIN_TENSORS = 5, 2
#: The same in units of a narrow tensor where autocast takes the power, and what follows, in fp32.
FORMULA_AUTOCAST = 8
#: A squared ReLU's there: what is squared, the same in fp32, and the result rounded.
SQUARE_AUTOCAST = 4
#: The same of a gated MLP, eager and where its activation is computed again: compiled, or by Liger's kernel.
GATED_TENSORS, GATED_COMPILED = 4, 3


def layer_bytes(s: Shard) -> float:
    """Bytes of one layer and micro-batch."""
    size = s.value_bytes
    hidden, copies = s.hidden, s.config.block_inputs
    lora = s.implementation.lora
    if lora is not None:
        copies = lora_kept.normed_inputs(s, lora)
    elif s.implementation.autocast and not s.implementation.compiled:  # every product keeps a copy of its input
        copies = len(linear.projections(s)) + len(linear.first_products(s))
    read = float(DTYPE_BYTES["fp8"]) if float8_linear.gathers(s) else 0.0 if s.implementation.casts_anew else size
    norms = hidden * (_norm_inputs(s) * s.norm_tokens + copies * read * s.tokens)
    widths = s.tokens * size * _attention_width(s) + mlp_bytes(s)
    weights = 0 if s.implementation.prepared else hidden * (s.qkv_width + s.attention_width + s.up_width + s.ffn)
    if s.state_space is not None:
        weights += hidden * (s.state_space.projected + s.state_space.inner)
    if s.delta_net is not None:
        weights += hidden * (s.delta_net.projected + s.delta_net.values)
    scores = _masked_scores(s) if masked_attention.masked(s) or math_attention.applies(s) else 0.0
    written = transformers_attention.applies(s) and not s.implementation.recomputes("core_attn")
    scores += _written_scores(s) if written else 0.0
    if s.config.experts is not None:
        scores += modules_experts.kept_bytes(s) + modules_shared.kept_bytes(s)
    adapters = 0.0 if lora is None else lora_kept.adapter_bytes(s, lora)
    kept = norms + scores + widths + _statistics(s) + dropout.kept_bytes(s) + _rounded_bytes(s, weights)
    return kept + adapters + state_space.kept_bytes(s) + delta_net.kept_bytes(s)


def _masked_scores(s: Shard) -> float:
    """The mask that PyTorch's kernels read, or what its own code without them keeps of scores."""
    if math_attention.applies(s):
        return math_attention.kept_bytes(s)
    return s.value_bytes * s.batch * s.sequence**2


def _written_scores(s: Shard) -> float:
    """What transformers' own attention keeps of scores."""
    return family_attention.kept_bytes(s) if s.family else transformers_attention.kept_bytes(s)


def first_norm_bytes(s: Shard) -> float:
    """Of a layer's first norm, its result left out: what is not kept where the layer's input takes no gradient."""
    if not eager_layer.before_block(s):
        return 0.0
    moments = 2 if s.config.norm == "layernorm" else 1
    return s.norm_tokens * (s.hidden * _norm_input(_read_by_norms(s)) + WIDE * moments)


def second_norm_bytes(s: Shard) -> float:
    """Of the norm in front of the MLP with its result, which an attention's backward finds gone as well."""
    if not eager_layer.before_block(s, "norm2"):
        return 0.0
    result = s.value_bytes if s.implementation.lora is None else 0.0
    return s.norm_tokens * s.hidden * (_norm_input(_read_by_norms(s)) + result)


def copies_input(s: Shard) -> bool:
    """Whether a layer's first norm keeps a copy of what it reads in another type, and not the layer's input itself."""
    if s.implementation.modules == "joint" or not eager_layer.before_block(s):
        return False
    wide = WIDE if pytorch_norm.unfused(s) or pytorch_norm.widens(s) else _read_by_norms(s).value_bytes
    return wide != s.stream.value_bytes


def final_norm_bytes(s: Shard) -> float:
    """Of the norm in front of the head, its result included where the backward makes the head's weight's gradient."""
    read = s.implementation.lora is None and not liger_loss.fused(s)
    size = s.value_bytes if read else 0.0
    return final_norm_input_bytes(s) + s.hidden * size * s.tokens


def final_norm_input_bytes(s: Shard) -> float:
    """Of that norm without its result."""
    return s.hidden * _norm_input(_read_by_norms(s)) * s.norm_tokens


def head_weight_bytes(s: Shard, vocab: int) -> float:
    """Of the head's weight as its product takes it."""
    return _rounded_bytes(s, vocab * s.hidden)


def _rounded_bytes(s: Shard, weights: int) -> float:
    """Copies of weights that ``torch.autocast`` has rounded, which gradients of inputs read."""
    return s.value_bytes * weights if s.implementation.autocast else 0.0


def kept_logit_bytes(s: Shard) -> float:
    """Of a logit: the log-softmax in fp32, or where the loss is compiled the logit itself."""
    return s.value_bytes if s.implementation.whole_graph else WIDE


def _norm_inputs(s: Shard) -> float:
    """Bytes that a layer's norms keep of a value beside their results; those behind blocks read what products give."""
    apart = pytorch_norm.unfused(s) or pytorch_norm.widens(s)
    count = s.config.layer_norms if apart else s.config.norm_inputs
    behind = s.config.halves if eager_layer.after_block(s) else 0
    return (count - behind) * _norm_input(_read_by_norms(s)) + behind * _norm_input(s)


def _read_by_norms(s: Shard) -> Shard:
    """The type in which norms in front of blocks keep what they read: Nemotron's cast it to the products' type."""
    return s if s.config.norm_formula == "shifted" else s.stream


def _norm_input(s: Shard) -> float:
    """Bytes that a norm keeps of a value of this type beside its result."""
    size = WIDE if pytorch_norm.widens(s) else s.value_bytes
    if not pytorch_norm.unfused(s):
        return size
    if s.implementation.lora is not None:  # nothing of what a frozen weight multiplies
        return 2 * WIDE if s.config.norm_formula == "centred" else WIDE
    if s.config.norm_formula == "centred":  # twice without the mean, and divided by the root
        return 3 * WIDE
    return WIDE + (size if s.config.norm_formula == "rounded" else WIDE)


def _attention_width(s: Shard) -> int:
    """Rotated queries and keys, values and the result, of a joint product all of it, and a result that was turned."""
    there = not s.implementation.whole_graph or s.config.rotary_fraction < 1
    tokens_first = s.dtype == "fp32"  # PyTorch's memory-efficient kernel gives it so
    turned = (
        transformers_rotary.attention_turned(s) and there and not tokens_first and lora_kept.keeps_input("output", s)
    )
    return s.attention_width * bool(turned) + gated_attention.kept_width(s) + _read_by_attention(s)


def _read_by_attention(s: Shard) -> int:
    dim = s.config.head_dim
    written = transformers_attention.applies(s)
    if s.family == "falcon" and s.config.kv_heads == 1 and not written:
        return s.qkv_width + s.attention_width
    if math_attention.applies(s):  # which keeps copies of queries, keys and values alone
        return s.attention_width
    rotated = (s.heads + s.kv_heads) * dim if s.config.rotary and s.implementation.rotary else 0
    joint = len(linear.projections(s)) == 1
    if written or s.implementation.whole_graph or masked_attention.masked(s) or _repeats_for_flex(s):
        # One head is expanded, not copied. Where values are a slice of the joint product, all of it is kept with them.
        copied = 1 < s.kv_heads < s.heads or written
        slices = s.config.sliced_projections or (joint and rotated > 0)
        kept = (s.heads if copied else s.kv_heads) * dim
        return s.heads * dim + kept + (s.qkv_width if slices and not copied else kept) + s.attention_width
    return s.qkv_width + s.attention_width + (rotated if joint else 0)


def _repeats_for_flex(s: Shard) -> bool:
    """Whether flex attention is given a key for every head: transformers does so where heads are no power of two."""
    run = s.implementation
    return run.attention_backend == FLEX and run.modules == "transformers" and s.heads.bit_count() > 1


def mlp_bytes(s: Shard) -> float:
    """Of the MLP's width: what an attention's backward finds gone."""
    return s.tokens * s.between.value_bytes * _mlp_width(s)


def gate_gradient_bytes(s: Shard) -> float:
    """Gradients of a gated MLP's product and of both that it multiplies, less the product, which is gone by then.

    PyTorch's allocator on a CPU shows them so in transformers' modules, and peaks of joint products on H200s. Liger's
    kernel writes both over what was kept.
    """
    if s.implementation.megatron or liger_kernels.swaps_gate(s):
        return 0.0
    if not s.config.gated_mlp or not s.config.feeds_forward or s.config.experts is not None:
        return 0.0
    kept = lora_kept.keeps_input("down", s) and not s.implementation.casts_anew
    return float(s.tokens * DTYPE_BYTES[s.between.dtype] * s.ffn * (3 - kept))


def _mlp_width(s: Shard) -> int:
    return _mlp_tensors_width(s) - (0 if lora_kept.keeps_input("down", s) else s.ffn)


def _mlp_tensors_width(s: Shard) -> int:
    """Of all that the gradients of activation and weights read."""
    if s.config.gated_mlp:
        again = s.implementation.compiled or liger_kernels.swaps_gate(s)
        return s.ffn * (GATED_COMPILED - s.implementation.casts_anew if again else GATED_TENSORS)
    if modules_activation.formula(s):
        mixed = modules_activation.wide_powers(s) and not s.implementation.prepared
        return s.ffn * (FORMULA_AUTOCAST if mixed else FORMULA_TENSORS)
    if modules_activation.squared(s):
        return s.ffn * SQUARE_AUTOCAST
    return s.ffn * (PLAIN_TENSORS + modules_activation.quick(s) - s.implementation.casts_anew)


def _statistics(s: Shard) -> float:
    """Norms of heads, and of rows their scales, means and sums of exponentials."""
    moments = 2 if s.config.norm == "layernorm" else 1
    kept = WIDE * (s.config.layer_norms * moments * s.norm_tokens + s.heads * s.tokens)
    for _, rows, columns in normed_parts(s):
        kept += rows * (columns * _norm_input(s) + WIDE)
    return kept
