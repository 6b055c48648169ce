"""Orders of instructions on a pipeline rank, from its number, the ranks, the micro-batches and the chunks on a rank.

- ``none``: one stage; the micro-batches in a loop, forward then backward.
- ``gpipe``: all forwards, then all backwards in the same order of micro-batches (``ScheduleGPipe`` of PyTorch).
- ``1f1b``: ``p - r - 1`` forwards of warm-up on rank ``r``, then one forward and one backward in turn (Megatron-LM's
  non-interleaved schedule and PyTorch's ``Schedule1F1B`` execute the same order).
- ``interleaved-1f1b``: rank ``r`` holds the virtual stages ``r, r + p, …``. Warm-up of ``2 (p - r - 1) + (v - 1) g``
  forwards, where ``g`` micro-batches of one chunk follow each other. This is PyTorch's ``ScheduleInterleaved1F1B`` with
  ``g = m / max(1, m // p)``; Megatron-LM has the same rule with ``g = p`` by default, so where ``p`` divides ``m``
  the two orders are one.
- ``zb-h1``: the backward is split into input gradient and weight gradient; rank ``r`` warms up with ``p - r - 1``
  forwards and delays weight gradients by ``r`` micro-batches, so that every rank holds the activations of ``p``
  micro-batches (PyTorch's ``ScheduleInterleavedZeroBubble`` with one stage a rank).

Folded pipelines: rank ``r`` holds the stages ``r`` and ``2 p - 1 - r``, so that the first and the last lie together and
a micro-batch that has gone down the ranks comes up again.

- ``zb-v``: input and weight gradients apart. Where forward, input and weight gradient take as long, no rank waits once
  it has begun, and each holds the activations of 1F1B's first rank (PyTorch's ``ScheduleZBVZeroBubble``).
- ``dualpipe-v``: between warm-up and cool-down the forward of one chunk and the backward of the other are one
  instruction, in which communication of either may run beside the other's computation; weight gradients are split off
  where they fill what is left (PyTorch's ``ScheduleDualPipeV``).

Pipelines with two ways: two copies of the model, whose stages stand on the ranks in opposite orders.

- ``dualpipe``: half of the micro-batches enter at either end. Both halves of the ranks do what ``dualpipe-v`` does on
  half as many, the second in mirror image.

References: Narayanan et al., arXiv:2104.04473; Qi et al., arXiv:2401.10241; Qi et al., arXiv:2405.15362; DeepSeek-AI,
arXiv:2412.19437, section 3.2.1, and its repository DualPipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

FORWARD = "forward"
BACKWARD = "backward"
BACKWARD_INPUT = "backward_input"
BACKWARD_WEIGHT = "backward_weight"
OPTIMIZER = "optimizer"
#: What methods that learn from a model's own completions run beside training.
GENERATION, SCORING = "generation", "scoring"
#: Kinds that belong to no micro-batch's forward or backward.
ONCE = (OPTIMIZER, GENERATION, SCORING)
#: A forward and a backward of another micro-batch and chunk in one.
FORWARD_BACKWARD = "forward_backward"


@dataclass(frozen=True, slots=True)
class Instruction:
    """What a rank does for one micro-batch of one model chunk, or (micro-batch −1) once an iteration.

    A forward and a backward in one have those of the forward; ``beside`` are micro-batch and chunk of the backward.
    """

    kind: str
    microbatch: int = -1
    chunk: int = 0
    beside: tuple[int, int] | None = None

    @property
    def parts(self) -> tuple[Instruction, ...]:
        """The forward and the backward of which it consists, or itself."""
        if self.beside is None:
            return (self,)
        return Instruction(FORWARD, self.microbatch, self.chunk), Instruction(BACKWARD, *self.beside)


#: A kind of instruction and the chunk that it is of.
Step = tuple[str, int]


def none(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    """Instructions of ``none``."""
    for k in range(microbatches):
        yield Instruction(FORWARD, k)
        yield Instruction(BACKWARD, k)


def gpipe(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    """Instructions of ``gpipe``; one rank has nothing to fill, and keeps one micro-batch as in ``none``."""
    if size == 1:
        yield from none(rank, size, microbatches, chunks)
        return
    for kind in (FORWARD, BACKWARD):
        for k in range(microbatches):
            yield Instruction(kind, k)


def one_f_one_b(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    """Instructions of ``1f1b``."""
    warmup = min(microbatches, size - rank - 1)
    for k in range(microbatches + warmup):
        if k < microbatches:
            yield Instruction(FORWARD, k)
        if k >= warmup:
            yield Instruction(BACKWARD, k - warmup)


def interleaved(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    """Instructions of ``interleaved-1f1b``."""
    group = microbatches // max(1, microbatches // size)
    total = microbatches * chunks
    warmup = min(total, 2 * (size - rank - 1) + (chunks - 1) * group)
    for k in range(total + warmup):
        if k < total:
            block, place = divmod(k, group * chunks)
            yield Instruction(FORWARD, block * group + place % group, place // group)
        if k >= warmup:
            block, place = divmod(k - warmup, group * chunks)
            yield Instruction(BACKWARD, block * group + place % group, chunks - 1 - place // group)


def zero_bubble_h1(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    """Instructions of ``zb-h1``."""
    warmup = min(microbatches, size - rank - 1)
    done = 0
    for k in range(microbatches + warmup):
        if k < microbatches:
            yield Instruction(FORWARD, k)
        if k >= warmup:
            yield Instruction(BACKWARD_INPUT, k - warmup)
            if k - warmup >= rank:
                yield Instruction(BACKWARD_WEIGHT, done)
                done += 1
    for k in range(done, microbatches):
        yield Instruction(BACKWARD_WEIGHT, k)


def zero_bubble_v(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    """Instructions of ``zb-v``; few micro-batches run as the first of ``2 p - 1``."""
    (f0, f1), (i0, i1), (w0, w1) = (((kind, 0), (kind, 1)) for kind in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT))
    count, below = max(microbatches, 2 * size - 1), size - rank
    steps = [f0] * (2 * below - 1) + [f1, f0] * rank + [f1, i1, w1] * below
    steps += [f0, i0, w0, f1, i1, w1] * (count - (2 * size - 1) + rank)
    steps += [i0, w0, f1, i1, w1] * (below - 1)
    steps += [i0, i1] * rank + [i0, w0] * below + [w1] * rank + [w0] * rank
    return (one for one in _numbered([step] for step in steps) if one.microbatch < microbatches)


def dual_pipe_v(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    """Instructions of ``dualpipe-v``, which has at least twice as many micro-batches as ranks.

    The weight gradients of the last ``rank + 1`` backwards of the second last stretch are split off, and fill those
    behind it.
    """
    below, turns = size - rank - 1, microbatches - 2 * size + rank + 1
    down, up = _beside(0), _beside(1)
    back = [(BACKWARD, 1 - k % 2) for k in range(2 * (rank + 1))]
    split = [(BACKWARD_INPUT, chunk) for _, chunk in back[rank + 1 :]]
    weights = [(BACKWARD_WEIGHT, chunk) for _, chunk in split] + [(BACKWARD_WEIGHT, 0)] * below
    steps = [[(FORWARD, 0)]] * (2 * below) + [[(FORWARD, 0)], [(FORWARD, 1)]] * (rank + 1)
    steps += [[(BACKWARD_INPUT, 1)], [(BACKWARD_WEIGHT, 1)], [(FORWARD, 1)]] * below
    if not below:  # nothing has come back yet beside which the next could go
        steps += [[step] for step in down] + [up]
    steps += [down, up] * (turns - (not below))
    steps += [[(BACKWARD, 1)], up] * below + [[step] for step in (*back[: rank + 1], *split)]
    steps += [[step] for weight in weights[:below] for step in (weight, (BACKWARD_INPUT, 0))]
    return _numbered([*steps, *([weight] for weight in weights[below:])])


def dual_pipe(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    """Instructions of ``dualpipe``: an even number of ranks and of micro-batches, at least twice as many as ranks.

    Chunk 0 is of the copy that the first half of the micro-batches goes down, chunk 1 of the other.
    """
    half = microbatches // 2
    far = rank >= size // 2

    def placed(microbatch: int, chunk: int) -> tuple[int, int]:
        return microbatch + (chunk != far) * half, int(chunk != far)

    for one in dual_pipe_v(min(rank, size - 1 - rank), size // 2, half, chunks):
        beside = None if one.beside is None else placed(*one.beside)
        yield Instruction(one.kind, *placed(one.microbatch, one.chunk), beside)


def _beside(chunk: int) -> list[Step]:
    """A forward of a chunk and a backward of the other one."""
    return [(FORWARD, chunk), (BACKWARD, 1 - chunk)]


def _numbered(steps: Iterable[Sequence[Step]]) -> Iterator[Instruction]:
    """Steps with their micro-batches, which come in order: forwards, backwards and weight gradients of each chunk.

    A forward and a backward in one are a step of two.
    """
    following: Counter[Step] = Counter()
    split: dict[int, list[int]] = {0: [], 1: []}  # micro-batches of each chunk whose weight gradients are to come

    def numbered(step: Step) -> Instruction:
        kind, chunk = step
        if kind == BACKWARD_WEIGHT:
            return Instruction(kind, split[chunk].pop(0), chunk)
        counted = FORWARD if kind == FORWARD else BACKWARD, chunk
        following[counted] += 1
        if kind == BACKWARD_INPUT:
            split[chunk].append(following[counted] - 1)
        return Instruction(kind, following[counted] - 1, chunk)

    for step in steps:
        first, *second = map(numbered, step)
        yield first if not second else _together(first, second[0])


def _together(forward: Instruction, backward: Instruction) -> Instruction:
    return Instruction(FORWARD_BACKWARD, forward.microbatch, forward.chunk, (backward.microbatch, backward.chunk))
