"""Experts' results times their weights and back in the tokens' order, as transformers writes it, and the gradients.

Weights are rounded to the products' type, or stay in fp32 (``Experts.wide_weights``): rows that meet those are put back
and summed in fp32, and rounded behind that. A gradient of rows that were indexed is first a copy of zeros.

Source: ``grouped_mm_experts_forward`` of transformers 5.17; ``index_backward`` of PyTorch 2.11, whose sum by rows is
out of place. Kernels of Mixtral and MiniMax-M2 (wide) and of Qwen3-MoE on an H200 gave what operators of two types take
(`validate/recorded/h200_sxm/train_families_third.jsonl`).
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, issued, one_by_one, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import row_operators, unfused_norm
from joulecast.model.transformer.expert_rows import ExpertShard, copies, experts_of
from joulecast.model.transformer.row_operators import MIXED, rounded

#: Cycles of an SM for a narrow value that meets its row's number: as one that meets its column's
#: (:mod:`joulecast.model.transformer.unfused_norm`) [estimate, +-10 %].
BY_ROW = 0.53
#: The same of values of two types, one of them shared by a row or by heads. Weights on rows (1.0 and 1.1) and Falcon's
#: mask on scores (1.03) on an H200 [estimate, +-8 %].
MIXED_SHARED = 1.05


def put_back(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Rows times their weights, in the tokens' order, and summed."""
    values = e.sent * s.hidden
    if not experts_of(s).wide_weights:
        return (by_row("unpermute.weigh", s, values), copies("unpermute.order", s, e), _summed(s, e))
    wide, summed = s.in_fp32, s.stream_values
    weighed = issued("mul", "unpermute.weigh", values, MIXED_SHARED * values, activity=1.0, reads=0.5, dtype="fp32")
    return (weighed, copies("unpermute.order", wide, e), _summed(wide, e), rounded("unpermute.round", summed))


def put_back_backward(s: Shard, e: ExpertShard) -> tuple[Launch, ...]:
    """Gradients of rows and weights."""
    hidden, values, wide = s.hidden, e.sent * s.hidden, experts_of(s).wide_weights
    dtype = "fp32" if wide else s.dtype
    ordered = (
        streaming("copy", "unpermute.grad.spread", values, reads=1.0 / experts_of(s).active, dtype=dtype),
        *indexed_gradient("unpermute.grad.order", e.sent, e.sent, hidden, dtype),
    )
    if wide:
        widened = row_operators.widened("unpermute.grad.widen", s.norm_tokens * hidden, s.dtype)
        return (widened, *ordered, *_weighed_backward(values, hidden))
    return (
        *ordered,
        streaming("mul", "unpermute.grad.weights", values, reads=2, dtype=dtype),
        by_row("unpermute.grad.weigh", s, values),
        streaming("reduce", "unpermute.grad.weights.sum", values, writes=1.0 / hidden, dtype=dtype),
    )


def indexed_gradient(name: str, rows: int, tokens: int, hidden: int, dtype: str) -> tuple[Launch, ...]:
    """Gradient of tokens' rows that were indexed, summed into a copy of zeros."""
    zeros, *rest = row_operators.accumulated(name, rows, tokens, hidden, dtype)
    return (zeros, streaming("copy", f"{name}.zeros.copy", tokens * hidden, dtype=dtype), *rest)


def by_row(name: str, s: Shard, values: int) -> Launch:
    """Values that meet a number of their row."""
    return one_by_one("unary", name, values, BY_ROW, dtype=s.dtype)


def _weighed_backward(values: int, hidden: int) -> tuple[Launch, ...]:
    """Gradients of fp32 weights and of the rows that they multiplied."""
    return (
        one_by_one("mul", "unpermute.grad.weights", values, MIXED, reads=1.5, dtype="fp32"),
        unfused_norm.by_row("unpermute.grad.weigh", values),
        rounded("unpermute.grad.round", values),
        streaming("reduce", "unpermute.grad.weights.sum", values, writes=1.0 / hidden, dtype="fp32"),
    )


def _summed(s: Shard, e: ExpertShard) -> Launch:
    """A token's rows summed."""
    hidden, share = s.hidden, 1.0 / experts_of(s).active
    return streaming("copy", "unpermute", e.sent * hidden, writes=share, dtype=s.dtype)
