"""What log-probabilities take beside layers: kept, for a moment, and by the reference model that pairs have.

Of ``whole`` logits the log-softmax is kept, in fp32. While the reference's logits are made, the policy's are still
there; its own are first in their type, then in fp32, then copied without the sequences' last positions. ``chunked``
ones, also of next tokens, keep only the positions that are scored; their backward adds up the gradients of these, and
of the weight, in fp32.
"""

from __future__ import annotations

from joulecast.model.framework.layer_shard import Shard, shard
from joulecast.model.memory import liger_kept, modules_kept
from joulecast.model.transformer import liger_loss, value_head
from joulecast.model.transformer.expert_rows import expert_shard, row_width
from joulecast.model.transformer.log_probabilities import TILE_TOKENS, TILE_WORDS, in_tiles, scored

#: Bytes of a value in fp32.
WIDE = 4.0
#: fp32 tensors of all logits beside the log-softmax that the backward keeps: in the policy's own forward its logits and
#: their copy, in the backward the gradients of what was gathered and of the log-softmax; and in the reference's forward
#: the policy's logits, its own, their copy and their log-softmax.
OWN_TENSORS, REFERENCE_TENSORS = 2, 4
#: Tensors of the MLP's and of the residual stream's width that a layer's forward without gradients holds at once.
MLP_TENSORS, STREAM_TENSORS = 3, 2


def head_bytes(s: Shard) -> float:
    """Kept of the final norm's input, and of the positions that are scored, by logits in tiles."""
    size, teacher = s.stream.value_bytes, s.implementation.teacher
    width = s.hidden + (0 if teacher is None else teacher.hidden)
    return modules_kept.final_norm_input_bytes(s) + scored(s) * width * size


def loss_transient_bytes(s: Shard, vocab: int, weight: float) -> float:
    """Highest of what a policy's own forward and backward of the loss hold beside what was kept.

    ``weight``: bytes of the gradient of the head's weight, 0 where it has none.
    """
    if not in_tiles(s):
        stream = s.tokens * s.hidden * s.value_bytes
        return max(OWN_TENSORS * WIDE * s.tokens * vocab, weight + stream)
    values, trained = scored(s) * s.hidden, vocab * s.hidden * (weight > 0.0)
    kept = s.stream.value_bytes
    narrowed = 0.0 if kept == WIDE else kept
    return (WIDE + narrowed) * (values + trained) + tile_bytes(s)


def reference_transient_bytes(s: Shard) -> float:
    """What a reference's forward holds beside what the policy has kept, at its highest; 0 where none runs."""
    run = s.implementation
    if run.teacher is not None:
        return _layer_bytes(shard(run.teacher, run.of_reference, s.batch, s.sequence))
    if run.compared_apart or not run.reference:
        return 0.0
    head = tile_bytes(s) if in_tiles(s) else REFERENCE_TENSORS * WIDE * s.tokens * s.config.vocab
    return max(_layer_bytes(s), head)


def forward_bytes(s: Shard, *, last: bool) -> float:
    """The most that a forward whose layers keep nothing holds at once beside what is kept, the ``last`` stage's too."""
    if not last:
        return _layer_bytes(s)
    size, vocab = s.value_bytes, s.config.vocab
    if value_head.applies(s):
        head = 0.0
    elif in_tiles(s):
        head = tile_bytes(s) + size * TILE_WORDS * s.hidden  # and the words' weights, rounded
    elif liger_loss.fused(s):
        head = liger_kept.transient_bytes(s, vocab)
    else:
        head = (size + WIDE) * s.tokens * vocab + WIDE * s.tokens * s.hidden  # and what the last norm gave, in fp32
    return max(_layer_bytes(s), head)


def _layer_bytes(s: Shard) -> float:
    """Of a layer with experts their rows as gathered, and what is between their products, or within shared experts."""
    size, between, gathered = s.value_bytes, s.tokens * s.ffn, 0
    if s.config.experts is not None:
        e = expert_shard(s)
        between, gathered = max(between, e.all_rows * e.ffn), e.sent * row_width(s)
    return float(size * (MLP_TENSORS * between + gathered + STREAM_TENSORS * s.tokens * s.hidden))


def tile_bytes(s: Shard) -> float:
    """The buffer of one tile of logits; of a teacher's beside the model's two in fp32, and the gradient rounded."""
    size = s.value_bytes
    return min(scored(s), TILE_TOKENS) * TILE_WORDS * (size if s.implementation.teacher is None else 2 * WIDE + size)
