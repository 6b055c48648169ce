"""Cross-entropy of the next token.

``forward`` and ``backward`` choose between PyTorch's own (log-softmax and negative log-likelihood in the logits' type),
Megatron's vocabulary-parallel one (in fp32, with three small all-reduces where the vocabulary is split) and fused ones.
Transformer Engine's takes a pass over the logits for each row's maximum and sum, another that writes the gradient over
them; FlashAttention's and Apex's for PyTorch write the gradient in the backward alone.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, collective, issued, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import liger_loss, log_probabilities
from joulecast.model.transformer.row_operators import rounded, widened

#: Cycles of an SM for a logit whose exponential Inductor's kernels take, in the loss and in its gradient: one kernel
#: each of a row of `validate/recorded/h200_sxm/train_modules.jsonl` [estimate, +-5 %].
FUSED = 0.35
#: Cycles of an SM for a logit, and for a row, of Transformer Engine's kernel that finds each row's maximum and sum:
#: rows of 32,000 and 128,256 logits in iterations on an H200. Of PyTorch's kernels of Megatron's own loss, for a logit
#: that is widened, less its row's maximum, divided by its sum, and scaled in the gradient: rows of 50,304 and 128,256
#: [estimates, +-5 %]. Of those that its own fusion compiles, for a logit's exponential and for its scaled gradient:
#: rows of 151,936 [estimates, +-10 %].
STATISTICS, STATISTICS_ROW = 0.134, 3570.0
WIDENED, SUBTRACTED, DIVIDED, SCALED = 0.62, 0.65, 0.70, 0.715
EXPONENTIATED, NARROWED = 0.81, 0.47


def _parallel(s: Shard) -> bool:
    return s.implementation.splits_head or s.implementation.megatron


def logits_dtype(s: Shard) -> str:
    """Type of PyTorch's own loss: users' modules widen the logits first."""
    return s.dtype if s.implementation.modules == "joint" else "fp32"


def forward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """Loss of ``tokens x vocab`` logits on one rank, and metrics that take it again."""
    own = (*loop(s, vocab), *_forward(s, vocab))
    return (*own, *_metric(s, vocab) * s.implementation.loss_metrics)


def loop(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """What the loop that trains adds: a kernel for which the host is waited, and a copy of the logits to fp32."""
    run = s.implementation
    late = streaming("fill", "loop.wait", 1, reads=0, late_s=run.loop_wait_s) if run.loop_wait_s else None
    copied = widened("loop.widen", s.tokens * vocab, run.dtype) if run.widens_outputs else None
    return tuple(launch for launch in (late, copied) if launch is not None)


def _metric(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """PyTorch's cross-entropy once more, whose log-softmax ``torch.autocast`` takes in fp32."""
    tokens, logits, dtype = s.tokens, s.tokens * vocab, s.dtype
    return (
        widened("metric.widen", logits, dtype),
        row_wise("log_softmax", "metric.log_softmax", tokens, vocab, dtype="fp32"),
        streaming("nll_loss", "metric.nll", tokens, dtype="fp32", rows=tokens),
    )


def _forward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    if s.implementation.log_probabilities:
        return log_probabilities.whole_forward(s, vocab)
    if s.implementation.fused_loss:
        return _fused_forward(s, vocab)
    if _parallel(s):
        return _parallel_forward(s, vocab)
    tokens, dtype = s.tokens, logits_dtype(s)
    logits = tokens * vocab
    if s.implementation.whole_graph:
        return (
            issued("unary", "loss.log_softmax", logits, FUSED * logits, activity=1.0, writes=0),
            streaming("nll_loss", "loss.nll", tokens, dtype=dtype, rows=tokens),
        )
    if liger_loss.alone(s):
        return liger_loss.alone_forward(s, vocab)
    return (
        *((widened("loss.widen", logits, s.dtype),) if dtype != s.dtype else ()),
        row_wise("log_softmax", "loss.log_softmax", tokens, vocab, dtype=dtype),
        streaming("nll_loss", "loss.nll", tokens, dtype=dtype, rows=tokens),
    )


def backward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """Gradient of the loss with respect to the logits."""
    if s.implementation.log_probabilities:
        return log_probabilities.whole_backward(s, vocab)
    if s.implementation.fused_loss:
        name = "loss.scale.grad" if s.implementation.megatron else "loss.gradient"
        return (streaming("unary", name, s.tokens * vocab, dtype=s.dtype),)
    if _parallel(s):
        return _parallel_backward(s, vocab)
    tokens, dtype = s.tokens, logits_dtype(s)
    logits = tokens * vocab
    if s.implementation.whole_graph:
        return (
            streaming("fill", "loss.grad.fill", logits, reads=0, dtype=s.dtype),
            issued("unary", "loss.log_softmax.grad", logits, FUSED * logits, activity=1.0),
        )
    if liger_loss.alone(s):
        return liger_loss.alone_backward(s, vocab)
    narrow = rounded("loss.round", logits)
    return (
        streaming("fill", "loss.grad.one", 1, reads=0, dtype=dtype),
        streaming("fill", "loss.grad.fill", logits, reads=0, dtype=dtype),
        streaming("nll_loss_backward", "loss.nll.grad", tokens, dtype=dtype, rows=tokens),
        row_wise("log_softmax_backward", "loss.log_softmax.grad", tokens, vocab, reads=2, dtype=dtype),
        *((narrow,) if dtype != s.dtype else ()),
    )


def _fused_forward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    tokens, logits, dtype = s.tokens, s.tokens * vocab, s.dtype
    if not s.implementation.megatron:
        return (row_wise("reduce", "loss.statistics", tokens, vocab, writes=0, dtype=dtype),)
    statistics = 3 * 4.0 * tokens * s.implementation.tensor_parallel  # maximum, sum and the target's logit of each rank
    cycles = STATISTICS * logits + STATISTICS_ROW * tokens
    return (
        issued("reduce", "loss.statistics", logits, cycles, activity=1.0, writes=0, dtype=dtype),
        *_among_ranks(s, "all_gather", "loss.all_gather", statistics),
        streaming("unary", "loss.gradient", logits, dtype=dtype),
    )


def _among_ranks(s: Shard, kind: str, name: str, size_bytes: float) -> tuple[Launch, ...]:
    """A communication of numbers of each row, where the vocabulary is split."""
    return (collective(kind, name, size_bytes, s.implementation),) if s.implementation.splits_head else ()


def _parallel_forward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    tokens, logits = s.tokens, s.tokens * vocab

    def exchange(name: str) -> tuple[Launch, ...]:
        return _among_ranks(s, "all_reduce", f"loss.{name}.all_reduce", 4.0 * tokens)

    if s.implementation.native_loss:
        return (
            streaming("unary", "loss.max", logits, reads=0.5, dtype="fp32"),
            *exchange("max"),
            _walked("loss.exp", logits, EXPONENTIATED),
            *exchange("sum"),
            streaming("unary", "loss.divide", logits, dtype="fp32"),
        )
    return (
        _walked("loss.to_fp32", logits, WIDENED, reads=0.5),
        row_wise("reduce", "loss.max", tokens, vocab, writes=1 / vocab, dtype="fp32"),
        *exchange("max"),
        _walked("loss.subtract", logits, SUBTRACTED),
        streaming("nll_loss", "loss.pick", tokens, dtype="fp32", rows=tokens),
        *exchange("pick"),
        streaming("unary", "loss.exp", logits, dtype="fp32"),
        row_wise("reduce", "loss.sum", tokens, vocab, writes=1 / vocab, dtype="fp32"),
        *exchange("sum"),
        _walked("loss.divide", logits, DIVIDED),
    )


def _parallel_backward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    tokens, logits = s.tokens, s.tokens * vocab
    if s.implementation.native_loss:
        narrow = _walked("loss.scale.grad", logits, NARROWED, writes=0.5)
        return (streaming("unary", "loss.pick.grad", logits, dtype="fp32"), narrow)
    return (
        streaming("nll_loss_backward", "loss.pick.grad", tokens, dtype="fp32", rows=tokens),
        _walked("loss.scale.grad", logits, SCALED),
        rounded("loss.from_fp32", logits),
    )


def _walked(name: str, logits: float, cycles: float, reads: float = 1.0, writes: float = 1.0) -> Launch:
    """A kernel over fp32 logits that the SMs' instructions bind, of so many cycles for each."""
    return issued("unary", name, logits, cycles * logits, activity=1.0, reads=reads, writes=writes, dtype="fp32")
