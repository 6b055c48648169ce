"""Attention of models whose code in transformers is like no other's: Falcon, GPT-J, BLOOM and MPT.

All but Falcon have no other attention than these kernels, one for each operation on the scores:

    ``falcon``  everything in the products' type; of one key and value for a group of queries each is copied out of the
                joint product, and where there are several repeated for its queries; PyTorch's own attention is given
                a mask, nothing of the square skipped
    ``gptj``    queries and keys are widened, scores stay in fp32 up to their softmax; every layer makes the table of
                its rotation anew, in eight operations on positions
    ``bloom``   ALiBi is copied to where the scores will be, and added to by their product; it scales the gradients of
                queries and keys
    ``mpt``     ALiBi is in fp32, and so are the scores that it is added to

Source: ``modeling_falcon``, ``modeling_gptj``, ``modeling_bloom`` and ``modeling_mpt`` of transformers 5.17, as many
kernels as they dispatch forward and backward. BLOOM and MPT were forecast within 3 % before anybody looked at them, and
their kernels then gave the cycles below (`validate/recorded/h200_sxm/train_families_third.jsonl`); GPT-J was not
measured. The sort of the one index that Falcon's copies take is left out.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, issued, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import masked_values, transformers_attention, transformers_rotary
from joulecast.model.transformer.expert_weights import MIXED_SHARED
from joulecast.model.transformer.row_operators import from_fp32, to_fp32
from joulecast.model.transformer.unfused_attention import product, score_count

#: Cycles of an SM for a score: a head's ALiBi copied to where BLOOM's scores will be, and MPT's in fp32 added to narrow
#: scores [estimates, +-10 %].
ALIBI_COPIED, ALIBI_ADDED = 0.54, 1.4
#: What happens to scores between the products, and to their gradients, in order.
SCORES = {
    "falcon": ("scale", "masked", "softmax"),
    "gptj": ("scale wide", "masked mixed", "softmax wide", "softmax.round"),
    "bloom": ("masked", "softmax.widen", "softmax wide", "softmax.round"),
    "mpt": ("scale", "bias mixed", "filled wide", "softmax wide", "softmax.round"),
}
GRADIENTS = {
    "falcon": ("softmax", "scale"),
    "gptj": ("softmax.widen", "softmax wide", "scale wide"),
    "bloom": ("softmax.widen", "softmax wide", "softmax.round"),
    "mpt": ("softmax.widen", "softmax wide", "filled wide", "softmax.round", "scale"),
}
#: What scores are products of.
PARTS = ("query", "key")
#: Operations on positions that make the table of a layer's rotation.
TABLE = ("all", "places", "gather", "round", "sine1", "cosine1", "sine2", "cosine2")


def grouped(s: Shard) -> bool:
    """Whether Falcon repeats keys and values for the queries of a group, before their rotation."""
    return s.family == "falcon" and 1 < s.config.kv_heads < s.config.heads


def before_rotation(s: Shard) -> tuple[Launch, ...]:
    """Between the products and the rotation: Falcon's copies of keys and values, GPT-J's table."""
    dtype, rotated = s.dtype, int(s.config.head_dim * s.config.rotary_fraction)
    if s.family == "gptj":
        return tuple(streaming("unary", f"rotary.table.{step}", s.sequence * rotated, dtype="fp32") for step in TABLE)
    if s.family != "falcon" or s.config.kv_heads == s.config.heads:
        return ()
    values = s.tokens * s.kv_heads * s.config.head_dim
    copies = tuple(streaming("strided_unary", f"qkv.{part}.index", values, dtype=dtype) for part in ("key", "value"))
    return (*copies, _cloned("query", s), *transformers_attention.repeated(s)) if grouped(s) else copies


def forward(s: Shard) -> tuple[Launch, ...]:
    """From queries, keys and values to the heads' results, tokens first."""
    code, width, wide = s.family, s.config.head_dim, "fp32" if s.family == "gptj" else ""
    scores, dtype = score_count(s), s.dtype
    added = (
        issued(
            "unary", "attention.bias", scores, ALIBI_COPIED * scores, activity=1.0, reads=1 / s.sequence, dtype=dtype
        ),
    )
    return (
        *(one for part in PARTS for one in to_fp32(f"attention.{part}.widen", _values(s), dtype) if wide),
        *(_cloned(part, s, wide) for part in (*PARTS, *(("value",) if code == "bloom" else ()))),
        *(added if code == "bloom" else ()),
        product("attention.scores", s, s.sequence, s.sequence, width, "tn", wide),
        *_steps("", SCORES[code], s),
        *(() if code == "bloom" else (_cloned("value", s),)),
        product("attention.values", s, s.sequence, width, s.sequence, "nn"),
        _cloned("result", s),
    )


def backward(s: Shard) -> tuple[Launch, ...]:
    """Gradient of :func:`forward`, to what the rotation or the joint product gave."""
    code, width, wide = s.family, s.config.head_dim, "fp32" if s.family == "gptj" else ""
    values, dtype = _values(s), s.dtype
    return (
        _cloned("grad", s),
        product("attention.values.dgrad", s, s.sequence, width, s.sequence, "nt"),
        product("attention.softmax.dgrad", s, s.sequence, s.sequence, width, "tn"),
        *_steps(".grad", GRADIENTS[code], s),
        product("attention.keys.dgrad", s, width, s.sequence, s.sequence, "nt", wide),
        product("attention.queries.dgrad", s, s.sequence, width, s.sequence, "nn", wide),
        *(one for part in PARTS for one in from_fp32(f"attention.{part}.grad.round", values, dtype) if wide),
        *(streaming("unary", f"attention.{part}.scale.grad", values, dtype=dtype) for part in PARTS if code == "bloom"),
        *(transformers_attention.summed(s) if code == "falcon" else ()),
        *((_cloned("query.grad", s), _cloned("value.grad", s)) if code == "mpt" else ()),
    )


def _steps(suffix: str, steps: tuple[str, ...], s: Shard) -> tuple[Launch, ...]:
    """Kernels on every score."""
    return tuple(one for step in steps for one in _step(*step.partition(" ")[::2], suffix, s))


def _step(name: str, kind: str, suffix: str, s: Shard) -> tuple[Launch, ...]:
    scores, dtype, named = score_count(s), s.dtype, f"attention.{name}{suffix}"
    at = "fp32" if kind else dtype
    if name == "softmax.widen":
        return to_fp32(f"attention.softmax{suffix}.widen", scores, dtype)
    if name == "softmax.round":
        return from_fp32(f"attention.softmax{suffix}.round", scores, dtype)
    if name == "softmax":
        gradient = transformers_attention.row_softmax_gradient(s, at)
        return gradient if suffix else (transformers_attention.row_softmax(s, at),)
    if name == "filled":
        return masked_values.masked(f"attention.masked{suffix}", scores, at)
    if kind == "mixed" and dtype != "fp32":
        cycles, reads = (ALIBI_ADDED, 0.5) if name == "bias" else (MIXED_SHARED, 1.0 + 0.5 / s.heads)
        return (issued("unary", named, scores, cycles * scores, activity=1.0, reads=reads, dtype="fp32"),)
    if name in ("masked", "bias"):
        return (transformers_attention.mask_added(named, s, at),)
    return (streaming("unary", named, scores, dtype=at),)


def _cloned(part: str, s: Shard, dtype: str = "") -> Launch:
    """Copy of a part of all heads, between tokens first and heads first."""
    return transformers_rotary.turn(f"attention.{part}.clone", _values(s), s, dtype)


def _values(s: Shard) -> int:
    return s.tokens * s.heads * s.config.head_dim


def kept_bytes(s: Shard) -> float:
    """Softmax as it was taken and rounded, of Falcon the same tensor; GPT-J's queries and keys, which are wider."""
    size = s.value_bytes
    wide = 4.0 - size
    if s.family == "falcon":
        return score_count(s) * size
    softmax = score_count(s) * (size + (4.0 if wide else 0.0))
    return softmax + (2 * wide * _values(s) if s.family == "gptj" else 0.0)
