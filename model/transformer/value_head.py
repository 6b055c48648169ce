"""Head of one output in place of the vocabulary's, as a reward model has.

transformers' models for classification give every position its value and choose the last of each sequence after that
(``GenericForSequenceClassification``, with ``num_labels=1``); the loss of chosen and rejected values is of few numbers,
``-log sigmoid(chosen - rejected)``, and left out. Its gradient is zero but for a row of each sequence, which no kernel
knows.

Source: Bradley and Terry, Biometrika 39 (1952); ``trl/trainer/reward_trainer.py`` of TRL 1.16.
"""

from __future__ import annotations

from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer.log_probabilities import VALUE


def applies(s: Shard) -> bool:
    """Whether the model has such a head."""
    return s.implementation.log_probabilities == VALUE


def forward(s: Shard) -> tuple[Launch, ...]:
    """A value for each position."""
    return (_read("head", s),)


def backward(s: Shard, completes: str) -> tuple[Launch, ...]:
    """Gradients of the head's one row, and of what it read."""
    run, values = s.implementation, s.tokens * s.hidden
    return (
        streaming("fill", "head.grad.fill", s.tokens, reads=0, dtype=run.dtype),
        _read("head.wgrad", s, completes),
        streaming("fill", "head.dgrad", values, reads=0, dtype=run.dtype),
    )


def _read(name: str, s: Shard, completes: str = "") -> Launch:
    """A product of one row or column, which reads all positions once."""
    values = s.tokens * s.hidden
    return streaming("reduce", name, values, writes=0, dtype=s.dtype, completes=completes)
