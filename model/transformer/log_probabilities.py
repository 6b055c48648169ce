"""Log-probabilities of tokens, from which losses on pairs of sequences (DPO and its kin) are made, and of next tokens.

``whole``    all logits are widened to fp32, and a log-softmax of all but each sequence's last position takes the
             tokens' values; the policy's are averaged once for the log. So in LLaMA-Factory 0.9
             (``src/llamafactory/train/dpo/trainer.py``), and nearly so in versions of TRL that have the logits.
``chunked``  logits are made in tiles, of scored positions alone, and never kept: behind the product of each tile a
             kernel folds its rows' greatest values and sums. The backward makes each tile again, turns it into its own
             gradient, and adds both products' gradients up in fp32. So in TRL 1.16 (``trl/kernels/chunked_logprob.py``,
             ``add_fused_lm_head``), where the policy's kernel also takes entropy, mean and the likeliest word, and that
             of supervised finetuning (``SFTTrainer``) all but the mean.

Next tokens' whole logits have a cross-entropy instead (:mod:`joulecast.model.transformer.loss`). Two further words
are of objectives that take none: ``value``, a head of one output (:mod:`joulecast.model.transformer.value_head`), and
``divergence`` (:mod:`joulecast.model.transformer.divergence`), in the same tiles, from a teacher, whose own forward
ends at its last norm.

Positions of the last token, sums over sequences and the loss itself are few values and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from joulecast.model.framework.launches import (
    Launch,
    added_up,
    input_gradient,
    issued,
    linear_forward,
    reordered,
    row_wise,
    streaming,
    weight_gradient,
)
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.transformer import divergence
from joulecast.model.transformer.row_operators import accumulated, rounded, widened

#: How log-probabilities are made, by the word of ``implementation.log_probabilities``.
WHOLE, CHUNKED = "whole", "chunked"
#: What an objective that takes none makes behind the last norm.
VALUE, DIVERGENCE = "value", "divergence"
#: Positions and words of a tile of logits.
TILE_TOKENS, TILE_WORDS = 4096, 32768
#: Cycles of an SM for a logit that is folded, with all that the policy logs and without, and for one that becomes its
#: gradient: instructions of these kernels' inner loops, and reductions of a block of 1,024 values over its four warps,
#: written down before any was measured. Four iterations on an H200 then took 0.30 to 0.35 for the former two in the
#: mean, one whose tiles have 1,024 rows 0.50 for the first; the last is bound by memory
#: (`validate/recorded/h200_sxm/train_pairs.jsonl`) [estimates, +-25 %].
FOLDED, FOLDED_ALONE, TURNED = 0.40, 0.20, 0.25
#: The same for a cap on a logit, in either kernel: a sigmoid, two divisions and their exponential [estimate, +-50 %].
CAPPED = 0.20


def in_tiles(s: Shard) -> bool:
    """Whether logits are made in tiles."""
    return s.implementation.log_probabilities in (CHUNKED, DIVERGENCE)


def head_outputs(vocab: int, log_probabilities: str) -> int:
    """Outputs of the head for each position: the words of its vocabulary, or one value."""
    return 1 if log_probabilities == VALUE else vocab


def scored(s: Shard) -> int:
    """Positions of a micro-batch whose next token is scored: no sequence's last one."""
    return min(round(s.tokens * s.implementation.scored_share), s.tokens - s.batch)


def whole_forward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """Log-probabilities of logits that are there; a loop that widens its model's outputs has done it."""
    run, logits = s.implementation, s.tokens * vocab
    return (
        *(() if run.widens_outputs else (widened("log_probs.widen", logits, run.dtype),)),
        reordered("log_probs.rows", logits, "fp32"),
        row_wise("log_softmax", "log_probs.log_softmax", s.tokens, vocab, dtype="fp32"),
        streaming("nll_loss", "log_probs.gather", s.tokens, dtype="fp32", rows=s.tokens),
        *(() if run.gradient_free else (streaming("reduce", "log_probs.mean", logits, writes=0, dtype="fp32"),)),
    )


def whole_backward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """Gradient of :func:`whole_forward`."""
    logits = s.tokens * vocab
    return (
        streaming("fill", "log_probs.grad.fill", logits, reads=0, dtype="fp32"),
        streaming("nll_loss_backward", "log_probs.gather.grad", s.tokens, dtype="fp32", rows=s.tokens),
        row_wise("log_softmax_backward", "log_probs.log_softmax.grad", s.tokens, vocab, reads=2, dtype="fp32"),
        streaming("fill", "log_probs.rows.grad.fill", logits, reads=0, dtype="fp32"),
        reordered("log_probs.rows.grad", logits, "fp32"),
        rounded("log_probs.round", logits),
    )


def _tiles(s: Shard, vocab: int) -> Iterator[tuple[int, int, int]]:
    """Distinct sizes of tiles, positions and words, and how many there are of each."""
    for positions, rows in _pieces(scored(s), TILE_TOKENS):
        for words, columns in _pieces(vocab, TILE_WORDS):
            yield positions, words, rows * columns


def _pieces(total: int, size: int) -> Iterator[tuple[int, int]]:
    whole, rest = divmod(total, size)
    if whole:
        yield size, whole
    if rest:
        yield rest, 1


def _logits(s: Shard, positions: int, words: int) -> tuple[Launch, ...]:
    """A tile of logits: the head's product of some positions and words, whose operands autocast rounds each time."""
    run, hidden = s.implementation, s.hidden
    cast = (rounded("head.weight.round", words * hidden),) if run.autocast else ()
    bias = streaming("add", "head.bias.add", positions * words, dtype=run.dtype)
    product = linear_forward("head", positions, words, hidden, run.dtype)
    return (*cast, product, *((bias,) if s.config.head_bias else ()))


def chunked_forward(s: Shard, vocab: int) -> tuple[Launch, ...]:
    """Scored positions out of all, and their log-probabilities tile by tile."""
    run, values = s.implementation, scored(s) * s.hidden
    out = [streaming("embedding", "log_probs.select", values, dtype=s.stream.dtype, rows=scored(s))]
    out += [rounded("head.round", values)] if run.autocast else []
    for positions, words, count in _tiles(s, vocab):
        out += [replace(one, repeat=count) for one in _folded(s, positions, words)]
    return tuple(out)


def _folded(s: Shard, positions: int, words: int) -> tuple[Launch, ...]:
    """A tile of logits, and what is kept of it."""
    if divergence.applies(s):
        return divergence.folded(s, positions, words)
    run, logits = s.implementation, positions * words
    cycles = (FOLDED_ALONE if run.gradient_free else FOLDED) + CAPPED * s.config.logit_softcap
    fold = issued("reduce", "log_probs.fold", logits, cycles * logits, activity=1.0, writes=0, dtype=run.dtype)
    return (*_logits(s, positions, words), fold)


def _turned(s: Shard, positions: int, words: int) -> tuple[Launch, ...]:
    """The tile again, and its gradient."""
    if divergence.applies(s):
        return divergence.turned(s, positions, words)
    logits, cycles = positions * words, TURNED + CAPPED * s.config.logit_softcap
    turn = issued("unary", "log_probs.turn", logits, cycles * logits, activity=1.0, dtype=s.dtype)
    return (*_logits(s, positions, words), turn)


def chunked_backward(s: Shard, vocab: int, completes: str) -> tuple[Launch, ...]:
    """Gradient of :func:`chunked_forward`, of the head's weight too unless that is frozen."""
    run, hidden, trains = s.implementation, s.hidden, s.implementation.lora is None
    values, kept = scored(s) * hidden, s.stream.dtype
    out = [streaming("fill", "log_probs.grad.fill", values, reads=0, dtype="fp32")]
    if trains:
        out.append(streaming("fill", "head.weight.grad.fill", vocab * hidden, reads=0, dtype="fp32"))
    for positions, words, count in _tiles(s, vocab):
        own = [
            *_turned(s, positions, words),
            added_up(input_gradient("head", positions, words, hidden, run.dtype), "fp32"),
        ]
        if trains:
            own.append(added_up(weight_gradient("head", positions, words, hidden, run.dtype), "fp32"))
        out += [replace(one, repeat=count) for one in own]
    if trains and kept != "fp32":
        out.append(rounded("head.weight.grad.round", vocab * hidden, completes=completes))
    elif trains and completes:
        out[-1] = replace(out[-1], completes=completes)
    if kept != "fp32":
        out.append(rounded("log_probs.grad.round", values))
    return (*out, *accumulated("log_probs.select.grad", scored(s), s.tokens, hidden, kept))
