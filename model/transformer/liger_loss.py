"""Liger's cross-entropy: of logits that are there, or fused with the head's product, so that they never are.

The fused one cuts the tokens into chunks whose logits take no more memory than the head's input:

    rows = 2^⌈log2⌈tokens / ⌈vocabulary / hidden⌉⌉⌉

Of each chunk the forward makes logits, in one kernel their loss and over them their gradient, and from that the
gradient of the chunk's input and its share of the head's weight's, which is added to that of the chunks before. The
backward multiplies both by the loss's gradient where that is not one. ``torch.autocast`` rounds the weight for each
chunk's logits, and once for gradients; that of the weight is summed in fp32.

Without the fusion transformers widens the logits to fp32, and their gradient takes their place.

Source: ``fused_linear_cross_entropy.py`` and ``cross_entropy.py`` in ``liger_kernel/ops`` of Liger 0.8.5.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import (
    Launch,
    added_up,
    input_gradient,
    issued,
    linear_forward,
    streaming,
    weight_gradient,
)
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer import autocast_linear, pytorch_norm
from joulecast.model.transformer.liger_kernels import SMS
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.row_operators import from_fp32, rounded, to_fp32, widened

#: Cycles of an SM for a logit, for one that is capped beside that, and for a row, of the kernel of loss and gradient,
#: of which an SM has one row at a time, so that the last ones are alone: rows of 32,000 to 262,144 logits on an H200,
#: alone and in iterations, are met within 15 % (`validate/recorded/liger`) [estimates, +-8 %].
LOGIT, CAPPED, ROW = 0.365, 0.3, 2000.0
#: Bytes of a row from which L2 does not keep those of all SMs until they are read again: a third of a megabyte.
LONG_ROW_BYTES = 4e5
#: Cycles of an SM for a row, and for a value, that are multiplied by the loss's gradient, in blocks of 1,024 threads:
#: four matrices on an H200 are met within 3 % [estimates, +-10 %].
SCALED_ROW, SCALED_VALUE = 820.0, 0.124


def fused(s: Shard) -> bool:
    """Whether head and loss are one."""
    return "fused_linear_cross_entropy" in s.implementation.liger


def alone(s: Shard) -> bool:
    """Whether the loss of logits that are there is Liger's."""
    return "cross_entropy" in s.implementation.liger


def chunk_rows(tokens: int, vocab: int, hidden: int) -> int:
    """Tokens of a chunk.

    >>> chunk_rows(8192, 128256, 4096)
    256
    """
    share = -(-tokens // -(-vocab // hidden))
    return min(1 << (share - 1).bit_length(), tokens)


def fused_forward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """Logits, loss and all gradients, chunk by chunk."""
    hidden, rows = s.hidden, chunk_rows(s.tokens, vocab, s.hidden)
    whole, rest = divmod(s.tokens, rows)
    run, stream = s.implementation, s.stream.dtype
    zeros = [streaming("fill", "head.dgrad.fill", s.tokens * hidden, reads=0, dtype=stream)]
    if run.lora is None:
        zeros.append(streaming("fill", "head.wgrad.fill", vocab * hidden, reads=0, dtype=stream))
    once = (rounded("head.weight.again.round", vocab * hidden),) if run.autocast else ()
    last = _chunk(s, rest, vocab) if rest else ()
    return (*zeros, *once, *_chunk(s, rows, vocab) * whole, *last)


def _chunk(s: Shard, rows: int, vocab: int) -> tuple[Launch, ...]:
    hidden, run, dtype = s.hidden, s.implementation, s.dtype
    values = rows * hidden
    casts = autocast_linear.casts(
        Linear("head", vocab, hidden), replace(s, tokens=rows), wide=pytorch_norm.gives_fp32(s)
    )
    summed = added_up(weight_gradient("head", rows, vocab, hidden, dtype), "fp32" if run.autocast else "")
    return (
        *casts,
        linear_forward("head", rows, vocab, hidden, dtype),
        gradients("head.liger", rows, vocab, dtype, capped=s.config.logit_softcap),
        input_gradient("head", rows, vocab, hidden, dtype),
        *((widened("head.dgrad.widen", values, dtype),) if run.autocast else ()),
        *((rounded("head.wgrad.round", values),) if run.autocast and run.lora is None else ()),
        *((summed,) if run.lora is None else ()),
    )


def fused_backward(s: Shard, vocab: int, completes: str) -> tuple[Launch, ...]:
    """What the forward made times the loss's gradient."""
    run, dtype = s.implementation, s.stream.dtype
    if not run.scaled_loss:
        return (streaming("fill", "loss.grad.one", 1, reads=0, completes=completes),)
    hidden = s.hidden
    own = (_scaled("head.dgrad.liger.scale", s.tokens, hidden, dtype),)
    if run.lora is not None:
        return own
    return (*own, replace(_scaled("head.wgrad.liger.scale", vocab, hidden, dtype), completes=completes))


def _scaled(name: str, rows: int, columns: int, dtype: str) -> Launch:
    """Rows times a number, in place."""
    return issued(
        "unary", name, rows * columns, rows * (SCALED_ROW + SCALED_VALUE * columns), activity=1.0, dtype=dtype
    )


def alone_forward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """Loss of logits that were made, in fp32."""
    logits = s.tokens * vocab
    wide = to_fp32("loss.widen", logits, s.dtype)
    return (*wide, gradients("loss.liger", s.tokens, vocab, "fp32", capped=False))


def alone_backward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """Its gradient, which the forward made, times the loss's and rounded."""
    logits = s.tokens * vocab
    scale = (_scaled("loss.liger.grad.scale", s.tokens, vocab, "fp32"),) if s.implementation.scaled_loss else ()
    return (*scale, *from_fp32("loss.grad.round", logits, s.dtype))


def gradients(name: str, rows: int, vocab: int, dtype: str, *, capped: bool) -> Launch:
    """Loss of so many rows of logits, whose gradient is written over them; each row is read twice."""
    row_bytes, cycles = DTYPE_BYTES[dtype] * vocab, ROW + (LOGIT + CAPPED * capped) * vocab
    at_once = -(-rows // SMS) * SMS
    reads = 2.0 if row_bytes > LONG_ROW_BYTES else 1.0
    return issued("unary", name, rows * vocab, cycles * at_once, activity=1.0, reads=reads, dtype=dtype)
