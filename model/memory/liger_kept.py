"""What Liger's fused head and loss hold: gradients in place of logits.

The forward leaves the gradient of the head's input, and where the head is trained that of its weight, for the backward.
While it runs the head's input is there, and the logits of one chunk; under ``torch.autocast`` the weight as products
take it, once for the logits and once for gradients.
"""

from __future__ import annotations

from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import liger_loss


def input_gradient_bytes(s: Shard) -> float:
    """Gradient of the head's input, in the residual stream's type."""
    return s.tokens * s.hidden * s.stream.value_bytes


def weight_gradient_bytes(s: Shard, vocab: int) -> float:
    """Gradient of the head's weight, in the type that it is kept in; nothing beside adapters, or of another loss."""
    if not liger_loss.fused(s) or s.implementation.lora is not None:
        return 0.0
    return vocab * s.hidden * s.stream.value_bytes


def transient_bytes(s: Shard, vocab: int) -> float:
    """What the forward holds beside what it leaves."""
    size, hidden = s.value_bytes, s.hidden
    logits = size * liger_loss.chunk_rows(s.tokens, vocab, hidden) * vocab
    weights = 2 * size * vocab * hidden if s.implementation.autocast else 0.0
    return input_gradient_bytes(s) + logits + weights
