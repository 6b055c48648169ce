"""The graph of instructions of one iteration: what every stage runs in which order, and who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array, Int
from joulecast.errors import InputError
from joulecast.simulator.schedules import Instruction, Schedule, stage_of_chunk

Value = TypeVar("Value")
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, eq=False)
class InstructionDag:
    """Instructions of one iteration, flat by pipeline rank and order of execution.

    Attributes
    ----------
    ranks
        Instructions of every pipeline rank in order of execution.
    names
        A name for each of the ``n`` instructions, for messages and results.
    source, target
        Flat indices of instructions that follow each other, shape ``(e,)``: those on one rank, and those that need the
        output of another.
    latency_s
        From the end of ``source`` to the earliest start of ``target``, shape ``(e,)`` [s].
    order
        Flat indices in an order in which every instruction stands behind all that it waits for, shape ``(n,)``.
    schedule
        Name of the schedule, which places the chunks; empty for a graph of the user's own.
    """

    ranks: tuple[tuple[Instruction, ...], ...]
    names: tuple[str, ...]
    source: Int
    target: Int
    latency_s: Array
    order: Int
    schedule: str = ""

    def stage(self, rank: int, chunk: int) -> int:
        """Place of a rank's chunk along the model."""
        return stage_of_chunk(self.schedule, len(self.ranks), rank, chunk)

    @property
    def instructions(self) -> int:
        """Number of instructions."""
        return len(self.names)

    @property
    def rank_of(self) -> Int:
        """Pipeline rank of each instruction, shape ``(n,)``."""
        return np.repeat(np.arange(len(self.ranks)), [len(order) for order in self.ranks])

    def split(self, values: Sequence[Value]) -> list[list[Value]]:
        """Values of all instructions as one list for each pipeline rank."""
        ends = np.cumsum([0, *(len(order) for order in self.ranks)])
        return [list(values[a:b]) for a, b in pairwise(ends)]

    def starts(self, time: Sequence[Number], latency: Sequence[Number]) -> list[Number]:
        """Earliest start of every instruction, by what each takes and each dependency's latency, all in one unit."""
        needs: list[list[tuple[int, Number]]] = [[] for _ in range(self.instructions)]
        for u, v, after in zip(self.source.tolist(), self.target.tolist(), latency, strict=True):
            needs[v].append((u, after))
        start: list[Number] = [type(time[0])(0)] * self.instructions
        for v in self.order.tolist():
            if needs[v]:
                start[v] = max(start[u] + time[u] + after for u, after in needs[v])
        return start


def make_dag(
    ranks: Sequence[Sequence[Instruction]],
    source: ArrayLike = (),
    target: ArrayLike = (),
    latency_s: ArrayLike = 0.0,
    *,
    names: Sequence[str] | None = None,
    file: str | None = None,
    lines: Sequence[int | None] = (),
    schedule: str = "",
) -> InstructionDag:
    """Checked graph of instructions.

    Parameters
    ----------
    ranks
        Instructions of every pipeline rank in order of execution; each waits for the one before it.
    source, target
        Flat indices of instructions of which the second needs the output of the first.
    latency_s
        From the end of the first to the earliest start of the second: one number or one for each pair [s].
    names
        Names for messages and results; by default rank, kind and micro-batch.
    file, lines
        Where the graph came from, and the line of each pair of ``source`` and ``target``, for errors.
    schedule
        Name of the schedule that the instructions are of.

    Raises
    ------
    InputError
        Instructions wait for each other in a circle, or a latency is negative or not finite.
    """
    flat = tuple(tuple(order) for order in ranks)
    labels = tuple(names) if names is not None else tuple(_label(r, i) for r, order in enumerate(flat) for i in order)
    if not labels:
        raise InputError("a graph without instructions", file=file, remedy="Give at least one instruction.")
    ends = np.cumsum([0, *(len(order) for order in flat)])
    chain = np.array([i for a, b in pairwise(ends) for i in range(a, b - 1)], dtype=np.int64)
    across = np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)
    latency = np.broadcast_to(np.asarray(latency_s, dtype=np.float64), across[0].shape)
    if not np.isfinite(latency).all() or (latency < 0).any():
        raise InputError("a latency is negative or not a number", file=file, key="latency_s", remedy="Use seconds ≥ 0.")
    sources = np.concatenate([chain, across[0]])
    targets = np.concatenate([chain + 1, across[1]])
    order = _topological(len(labels), sources, targets)
    if len(order) < len(labels):
        circle = _circle(sources, targets, set(order))
        known = zip(across[0].tolist(), across[1].tolist(), lines or [None] * len(across[0]), strict=True)
        line_of = {(u, v): line for u, v, line in known}
        raise InputError(
            f"instructions wait for each other in a circle: {' -> '.join(labels[i] for i in circle)}",
            file=file,
            line=next((line_of[pair] for pair in pairwise(circle) if pair in line_of), None),
            remedy="Remove one of these dependencies, or change the order of instructions on a stage.",
        )
    latencies = np.concatenate([np.zeros(len(chain)), latency])
    return InstructionDag(flat, labels, sources, targets, latencies, np.array(order, dtype=np.int64), schedule)


def dag_of_schedule(schedule: Schedule, transfer_s: float = 0.0) -> InstructionDag:
    """Graph of a pipeline schedule, whose transfers between ranks take ``transfer_s``.

    A transfer is a latency between instructions: it takes no time of either rank.
    """
    edges = schedule.edges
    latency = np.where(edges.source_rank == edges.target_rank, 0.0, transfer_s)
    return make_dag(schedule.ranks, edges.source, edges.target, latency, schedule=schedule.name)


def _label(rank: int, instruction: Instruction) -> str:
    name = f"{instruction.kind} of stage {rank}"
    if instruction.chunk:
        name += f", chunk {instruction.chunk}"
    return name if instruction.microbatch < 0 else f"{name}, micro-batch {instruction.microbatch}"


def _topological(n: int, source: Int, target: Int) -> list[int]:
    """Kahn's order, smallest index first among those that are ready; shorter than ``n`` where there is a circle."""
    followers: list[list[int]] = [[] for _ in range(n)]
    missing = [0] * n
    for u, v in zip(source.tolist(), target.tolist(), strict=True):
        followers[u].append(v)
        missing[v] += 1
    ready = [i for i in reversed(range(n)) if not missing[i]]
    order: list[int] = []
    while ready:
        u = ready.pop()
        order.append(u)
        for v in followers[u]:
            missing[v] -= 1
            if not missing[v]:
                ready.append(v)
    return order


def _circle(source: Int, target: Int, done: set[int]) -> list[int]:
    """Instructions of one circle, the first repeated at the end."""
    before = {v: u for u, v in zip(source.tolist(), target.tolist(), strict=True) if u not in done and v not in done}
    walk, seen = [next(iter(before))], set()
    while walk[-1] not in seen:
        seen.add(walk[-1])
        walk.append(before[walk[-1]])
    circle = walk[walk.index(walk[-1]) :]
    return circle[::-1]
