"""Pipeline schedules: which instruction every pipeline rank executes, and in which order.

The orders are those of real frameworks:

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

References: Narayanan et al., arXiv:2104.04473; Qi et al., arXiv:2401.10241.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import InputError, UnknownNameError

FORWARD = "forward"
BACKWARD = "backward"
BACKWARD_INPUT = "backward_input"
BACKWARD_WEIGHT = "backward_weight"
OPTIMIZER = "optimizer"

_FROM_NEXT_STAGE = (BACKWARD, BACKWARD_INPUT)


@dataclass(frozen=True, slots=True)
class Instruction:
    """What a rank does for one micro-batch of one model chunk, or (micro-batch −1) once an iteration."""

    kind: str
    microbatch: int = -1
    chunk: int = 0


@dataclass(frozen=True)
class Edges:
    """Dependencies between instructions, each an array of shape ``(e,)``.

    Attributes
    ----------
    source, target
        Flat indices of instructions (see :attr:`Schedule.offsets`): ``target`` needs the output of ``source``.
    source_rank, target_rank
        Pipeline ranks of the two.
    backward
        True where gradients travel, false where activations do.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    source_rank: NDArray[np.int64]
    target_rank: NDArray[np.int64]
    backward: NDArray[np.bool_]


@dataclass(frozen=True)
class Schedule:
    """Instructions of one iteration in order of execution, per pipeline rank."""

    name: str
    pipeline_size: int
    microbatches: int
    chunks: int
    ranks: tuple[tuple[Instruction, ...], ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Flat index of each rank's first instruction, and the total number at the end."""
        return tuple(int(n) for n in np.cumsum([0, *(len(order) for order in self.ranks)]))

    @property
    def virtual_stages(self) -> int:
        """Number of virtual stages, ``pipeline_size * chunks``."""
        return self.pipeline_size * self.chunks

    def virtual_stage(self, rank: int, chunk: int) -> int:
        """Place of a rank's chunk along the model."""
        return chunk * self.pipeline_size + rank

    def flat(self) -> Iterator[tuple[int, Instruction]]:
        """All instructions as (rank, instruction), in flat order."""
        for rank, order in enumerate(self.ranks):
            for instruction in order:
                yield rank, instruction

    @cached_property
    def edges(self) -> Edges:
        """Dependencies between neighbouring virtual stages; those on a rank's own earlier work are in its order."""
        where: dict[tuple[bool, int, int], int] = {}
        flat = list(self.flat())
        for i, (rank, ins) in enumerate(flat):
            if ins.kind == FORWARD or ins.kind in _FROM_NEXT_STAGE:
                where[ins.kind != FORWARD, self.virtual_stage(rank, ins.chunk), ins.microbatch] = i
        rows: list[tuple[int, int, int, int, bool]] = []
        for (is_backward, stage, microbatch), target in where.items():
            source = where.get((is_backward, stage + (1 if is_backward else -1), microbatch))
            if source is not None:
                rows.append((source, target, flat[source][0], flat[target][0], is_backward))
        rows.sort(key=lambda row: (row[1], row[0]))
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        return Edges(table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4].astype(bool))


def build_schedule(
    name: str,
    pipeline_size: int,
    microbatches: int,
    *,
    virtual_stages_per_rank: int = 1,
    tail: Sequence[str] = (OPTIMIZER,),
) -> Schedule:
    """Order of execution on every pipeline rank.

    Parameters
    ----------
    name
        One of :func:`schedule_names`.
    pipeline_size
        Number of pipeline ranks; 1 for ``none``.
    microbatches
        Micro-batches of one iteration.
    virtual_stages_per_rank
        Model chunks on each rank; more than 1 only for ``interleaved-1f1b``.
    tail
        Kinds of the instructions that follow once an iteration, e.g. ``("grad_reduce", "optimizer")``.

    Raises
    ------
    InputError
        Where the schedule does not exist for these numbers.
    """
    _validate(name, pipeline_size, microbatches, virtual_stages_per_rank)
    end = tuple(Instruction(kind) for kind in tail)
    order = _ORDERS[name]
    ranks = tuple(
        (*order(rank, pipeline_size, microbatches, virtual_stages_per_rank), *end) for rank in range(pipeline_size)
    )
    return Schedule(name, pipeline_size, microbatches, virtual_stages_per_rank, ranks)


def peak_in_flight(schedule: Schedule, rank: int) -> int:
    """Largest number of (micro-batch, chunk) pairs whose activations a rank holds at once.

    Activations live from the forward until the backward, or until the weight gradient where the backward is split.
    """
    last = BACKWARD_WEIGHT if any(i.kind == BACKWARD_WEIGHT for i in schedule.ranks[rank]) else BACKWARD
    held = peak = 0
    for instruction in schedule.ranks[rank]:
        if instruction.kind == FORWARD:
            held += 1
            peak = max(peak, held)
        elif instruction.kind == last:
            held -= 1
    return peak


def schedule_names() -> tuple[str, ...]:
    """Names of the schedules that a plan may ask for."""
    return tuple(_ORDERS)


def add_schedule(name: str, order: Order) -> None:
    """Make another schedule known, so that plans may name it.

    Parameters
    ----------
    name
        Its name in plans, in lower case.
    order
        Yields the instructions of a rank in order of execution, from rank, number of ranks, micro-batches and model
        chunks on a rank.

    Raises
    ------
    InputError
        The name is taken.
    """
    if name in _ORDERS:
        raise InputError(f"there is a schedule {name!r} already", key="schedule.name", remedy="Choose another name.")
    _ORDERS[name] = order


def _validate(name: str, pipeline_size: int, microbatches: int, chunks: int) -> None:
    if name not in _ORDERS:
        raise UnknownNameError("schedule", name, schedule_names(), key="schedule.name")
    if pipeline_size < 1:
        raise InputError(f"{pipeline_size} pipeline stages", key="parallelism.pipeline_model_parallel_size")
    if microbatches < 1:
        raise InputError(
            f"{microbatches} micro-batches",
            key="workload.global_batch_size",
            remedy="The global batch must hold at least one micro-batch per data-parallel rank.",
        )
    if name == "none" and pipeline_size != 1:
        raise InputError(
            f"schedule 'none' has one stage, but there are {pipeline_size}",
            key="schedule.name",
            remedy=f"Choose one of {', '.join(schedule_names()[1:])}.",
        )
    if chunks < 1 or (chunks > 1 and name != "interleaved-1f1b"):
        raise InputError(
            f"{chunks} virtual stages per rank with schedule {name!r}",
            key="parallelism.virtual_pipeline_model_parallel_size",
            remedy="Use schedule 'interleaved-1f1b', or one virtual stage per rank.",
        )
    rounds = max(1, microbatches // pipeline_size)
    if name == "interleaved-1f1b" and microbatches % rounds:
        raise InputError(
            f"interleaved 1F1B runs {microbatches} micro-batches in {rounds} rounds, which do not divide them",
            key="workload.global_batch_size",
            remedy=f"Choose a number of micro-batches that is a multiple of {pipeline_size}.",
        )


def _none(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    for k in range(microbatches):
        yield Instruction(FORWARD, k)
        yield Instruction(BACKWARD, k)


def _gpipe(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    for kind in (FORWARD, BACKWARD):
        for k in range(microbatches):
            yield Instruction(kind, k)


def _one_f_one_b(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    warmup = min(microbatches, size - rank - 1)
    for k in range(microbatches + warmup):
        if k < microbatches:
            yield Instruction(FORWARD, k)
        if k >= warmup:
            yield Instruction(BACKWARD, k - warmup)


def _interleaved(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
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


def _zero_bubble_h1(rank: int, size: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
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


#: Instructions of a rank in order, from rank, ranks, micro-batches and chunks.
Order = Callable[[int, int, int, int], Iterator[Instruction]]
_ORDERS: dict[str, Order] = {
    "none": _none,
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "interleaved-1f1b": _interleaved,
    "zb-h1": _zero_bubble_h1,
}
#: Schedules that are known from the start.
SHIPPED = tuple(_ORDERS)
