"""Divergence of a model's next tokens from its teacher's, over the whole vocabulary (knowledge distillation).

Made in the tiles of :mod:`joulecast.model.transformer.log_probabilities`. Both heads' products give fp32; a kernel
folds both into their rows' greatest values, sums and weighted differences. The backward makes both again and turns the
student's into its gradient, which is rounded for its two products. So in TRL 1.16
(``trl/kernels/chunked_divergence.py``), of the divergence of either model from the other (``beta`` 0 or 1).

Sources: Hinton et al., arXiv 1503.02531; Agarwal et al., on-policy distillation, 2306.13649.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.launches import Launch, issued, linear_forward, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import Gemm
from joulecast.model.transformer.row_operators import rounded

#: Cycles of an SM for a logit of both models that is folded, with two exponentials and six sums where a kernel of
#: log-probabilities has one and five, and for one that becomes its gradient, with one or two. Written down before any
#: was measured; memory binds both kernels on an H100 [estimates, +-40 %].
FOLDED, TURNED = 0.60, 0.35


def applies(s: Shard) -> bool:
    """Whether tiles are of a model and its teacher."""
    return s.implementation.teacher is not None


def folded(s: Shard, positions: int, words: int) -> tuple[Launch, ...]:
    """A tile's part of the divergence."""
    pairs = positions * words
    fold = issued("reduce", "divergence.fold", pairs, FOLDED * pairs, activity=1.0, reads=2, writes=0, dtype="fp32")
    return (*_logits(s, positions, words), fold)


def turned(s: Shard, positions: int, words: int) -> tuple[Launch, ...]:
    """A tile's gradient with respect to the student's logits."""
    pairs = positions * words
    turn = issued("unary", "divergence.turn", pairs, TURNED * pairs, activity=1.0, reads=2, dtype="fp32")
    return (*_logits(s, positions, words), turn, rounded("divergence.round", pairs))


def _logits(s: Shard, positions: int, words: int) -> tuple[Launch, ...]:
    teacher = s.implementation.teacher
    heads = [("head", s.config), *((("teacher.head", teacher),) if teacher is not None else ())]
    return tuple(launch for name, config in heads for launch in _of_one(name, config, s, positions, words))


def _of_one(name: str, config: ModelConfig, s: Shard, positions: int, words: int) -> tuple[Launch, ...]:
    run = s.implementation
    cast = (rounded(f"{name}.weight.round", words * config.hidden),) if run.autocast else ()
    product = linear_forward(name, positions, words, config.hidden, run.dtype)
    if isinstance(product.operator, Gemm):
        product = replace(product, operator=replace(product.operator, out_dtype="fp32"))
    bias = (streaming("add", f"{name}.bias.add", positions * words, dtype="fp32"),) if config.head_bias else ()
    return (*cast, product, *bias)
