"""Pipeline schedules: which instruction every pipeline rank executes, and in which order.

The orders themselves are in :mod:`joulecast.simulator.schedule_orders`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from joulecast.arrays import Bool, Int
from joulecast.errors import InputError, UnknownNameError
from joulecast.simulator import schedule_orders as orders
from joulecast.simulator.schedule_orders import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FORWARD_BACKWARD,
    GENERATION,
    ONCE,
    OPTIMIZER,
    SCORING,
    Instruction,
)

__all__ = [
    "BACKWARD",
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "FORWARD",
    "FORWARD_BACKWARD",
    "GENERATION",
    "ONCE",
    "OPTIMIZER",
    "SCORING",
    "Instruction",
    "Schedule",
    "add_schedule",
    "build_schedule",
    "peak_in_flight",
    "schedule_names",
]

_FROM_NEXT_STAGE = (BACKWARD, BACKWARD_INPUT)
#: Schedules of folded pipelines: the second chunk of a rank is as far from the end as the first is from the beginning.
FOLDED = ("zb-v", "dualpipe-v")
#: Schedules of two copies of the model, whose stages stand on the ranks in opposite orders.
TWO_WAY = ("dualpipe",)
#: Those whose first rank holds the first and the last stage, on a chunk each.
BOTH_ENDS = (*FOLDED, *TWO_WAY)
#: Schedules that run a forward and a backward in one instruction.
PAIRS = ("dualpipe-v", *TWO_WAY)
#: Schedules that compute weight gradients, all or some, apart from their input gradients.
SPLITS_BACKWARD = ("zb-h1", "zb-v", *PAIRS)


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
    link
        Pipeline rank whose link to the next rank is crossed.
    """

    source: Int
    target: Int
    source_rank: Int
    target_rank: Int
    backward: Bool
    link: Int


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
        """Number of virtual stages of one copy of the model."""
        return self.pipeline_size * self.chunks // copies_of_model(self.name)

    def virtual_stage(self, rank: int, chunk: int) -> int:
        """Place of a rank's chunk along the model."""
        return stage_of_chunk(self.name, self.pipeline_size, rank, chunk)

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
            for part in ins.parts:
                if part.kind == FORWARD or part.kind in _FROM_NEXT_STAGE:
                    where[part.kind != FORWARD, self.virtual_stage(rank, part.chunk), part.microbatch] = i
        rows: list[tuple[int, int, int, int, bool]] = []
        for (is_backward, stage, microbatch), target in where.items():
            source = where.get((is_backward, stage + (1 if is_backward else -1), microbatch))
            if source is not None:
                rows.append((source, target, flat[source][0], flat[target][0], is_backward))
        rows.sort(key=lambda row: (row[1], row[0]))
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        source_rank, target_rank, backward = table[:, 2], table[:, 3], table[:, 4].astype(bool)
        upper, lower = np.where(backward, target_rank, source_rank), np.minimum(source_rank, target_rank)
        link = lower if self.name in BOTH_ENDS else upper
        return Edges(table[:, 0], table[:, 1], source_rank, target_rank, backward, link)


def stage_of_chunk(name: str, pipeline_size: int, rank: int, chunk: int) -> int:
    """Virtual stage that a rank's chunk is.

    Examples
    --------
    >>> [stage_of_chunk("interleaved-1f1b", 4, 1, chunk) for chunk in (0, 1)]
    [1, 5]
    >>> [stage_of_chunk("zb-v", 4, 1, chunk) for chunk in (0, 1)]
    [1, 6]
    >>> [stage_of_chunk("dualpipe", 4, 1, chunk) for chunk in (0, 1)]
    [1, 2]
    """
    if name in TWO_WAY:
        return pipeline_size - 1 - rank if chunk else rank
    if name in FOLDED and chunk % 2:
        return (chunk + 1) * pipeline_size - 1 - rank
    return chunk * pipeline_size + rank


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
        Model chunks on each rank: 2 where the first rank holds both ends (:data:`BOTH_ENDS`), otherwise more than 1
        only for ``interleaved-1f1b``.
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
    return max((sum(held) for held in _held(schedule, rank)), default=0)


def most_in_flight(schedule: Schedule, rank: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Micro-batches of each chunk whose activations a rank holds, at the moment when they weigh the most.

    ``weights`` are those of a micro-batch of each chunk; of moments that are alike, the one with most of the last.
    """
    moments = _held(schedule, rank)
    return max(moments, key=lambda held: (sum(n * w for n, w in zip(held, weights, strict=True)), held[::-1]))


def _held(schedule: Schedule, rank: int) -> list[tuple[int, ...]]:
    """Micro-batches of each chunk whose activations a rank holds during each of its instructions."""
    held, moments = [0] * schedule.chunks, []
    for instruction in schedule.ranks[rank]:
        for part in instruction.parts:
            held[part.chunk] += part.kind == FORWARD
        moments.append(tuple(held))
        for part in instruction.parts:
            held[part.chunk] -= part.kind in (BACKWARD, BACKWARD_WEIGHT)
    return moments


def first_forwards(order: Sequence[Instruction]) -> set[int]:
    """Places of the forwards with which a rank begins its chunks, where no backward runs beside them."""
    first = {part.chunk: part.microbatch for one in reversed(order) for part in one.parts if part.kind == FORWARD}
    return {i for i, one in enumerate(order) if one.kind == FORWARD and one.microbatch == first[one.chunk]}


def last_backwards(order: Sequence[Instruction]) -> set[int]:
    """Places of the backwards, or weight gradients, with which a rank ends its chunks, with no forward beside them."""
    ends = (BACKWARD, BACKWARD_WEIGHT)
    last = {part.chunk: part.microbatch for one in order for part in one.parts if part.kind in ends}
    return {i for i, one in enumerate(order) if one.kind in ends and one.microbatch == last[one.chunk]}


def schedule_names() -> tuple[str, ...]:
    """Names of the schedules that a plan may ask for."""
    return tuple(_ORDERS)


def chunks_of_schedule(name: str, virtual_stages: int) -> int:
    """Model chunks on each rank of a schedule, where a plan asks for so many virtual stages or (1) for the usual."""
    return 2 if name in BOTH_ENDS and virtual_stages == 1 else virtual_stages


def copies_of_model(name: str) -> int:
    """Copies of the model on the ranks of one pipeline."""
    return 2 if name in TWO_WAY else 1


def fewest_microbatches(name: str, pipeline_size: int) -> int:
    """Micro-batches that a schedule needs on so many ranks."""
    return 2 * pipeline_size if name in PAIRS else 1


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
    _validate_stages(name, pipeline_size, chunks)
    _validate_microbatches(name, pipeline_size, microbatches)


def _validate_stages(name: str, pipeline_size: int, chunks: int) -> None:
    """As many stages on as many ranks as a schedule can have."""
    if name == "none" and pipeline_size != 1:
        raise InputError(
            f"schedule 'none' has one stage, but there are {pipeline_size}",
            key="schedule.name",
            remedy=f"Choose one of {', '.join(schedule_names()[1:])}.",
        )
    if name in BOTH_ENDS and chunks != 2:
        raise InputError(
            f"{chunks} model chunks on a rank with schedule {name!r}, whose ranks have two",
            key="parallelism.virtual_pipeline_model_parallel_size",
            remedy="Set it to 2.",
        )
    if chunks < 1 or (chunks > 1 and name not in ("interleaved-1f1b", *BOTH_ENDS)):
        raise InputError(
            f"{chunks} virtual stages per rank with schedule {name!r}",
            key="parallelism.virtual_pipeline_model_parallel_size",
            remedy="Use schedule 'interleaved-1f1b', or one virtual stage per rank.",
        )


def _validate_microbatches(name: str, pipeline_size: int, microbatches: int) -> None:
    """As many micro-batches as a schedule's ranks need, and can divide."""
    least = fewest_microbatches(name, pipeline_size)
    if microbatches < least:
        raise InputError(
            f"{microbatches} micro-batches on {pipeline_size} ranks, where {name!r} needs {least}",
            key="workload.global_batch_size",
            remedy=f"Use {least} micro-batches or more.",
        )
    if name in TWO_WAY and (pipeline_size % 2 or microbatches % 2):
        raise InputError(
            f"{microbatches} micro-batches on {pipeline_size} ranks cannot be halved",
            key="parallelism.pipeline_model_parallel_size" if pipeline_size % 2 else "workload.global_batch_size",
            remedy=f"Schedule {name!r} needs even numbers of both.",
        )
    rounds = max(1, microbatches // pipeline_size)
    if name == "interleaved-1f1b" and microbatches % rounds:
        raise InputError(
            f"interleaved 1F1B runs {microbatches} micro-batches in {rounds} rounds, which do not divide them",
            key="workload.global_batch_size",
            remedy=f"Choose a number of micro-batches that is a multiple of {pipeline_size}.",
        )


#: Instructions of a rank in order, from rank, ranks, micro-batches and chunks.
Order = Callable[[int, int, int, int], Iterator[Instruction]]
_ORDERS: dict[str, Order] = {
    "none": orders.none,
    "gpipe": orders.gpipe,
    "1f1b": orders.one_f_one_b,
    "interleaved-1f1b": orders.interleaved,
    "zb-h1": orders.zero_bubble_h1,
    "zb-v": orders.zero_bubble_v,
    "dualpipe-v": orders.dual_pipe_v,
    "dualpipe": orders.dual_pipe,
}
#: Schedules that are known from the start.
SHIPPED = tuple(_ORDERS)
