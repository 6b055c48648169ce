"""Iteration time and energy of many plans at once, where every instruction runs at a fixed clock.

A plan is one clock index per instruction. Times are integer nanoseconds and equal the engine's at the level of
instructions. Two backends give the same times: NumPy, level by level of the dependency graph, and numba, which walks
the instructions one by one with 256 plans side by side. Both read blocks of 256 plans, plan-minor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulecast.arrays import Array, Int
from joulecast.errors import InputError
from joulecast.simulator.schedules import Schedule

Clocks = NDArray[np.uint8]
Backend = Literal["numpy", "numba"]

#: Plans of one block: their times of 512 instructions fit the second-level cache.
BLOCK = 256
#: Clocks of a table: as many as the bytes that plans are made of can count.
TABLE_CLOCKS = 256
#: Duration where the table has no clock: longer than any iteration, so that it is seen in the result [ns].
NO_CLOCK_NS = 1 << 48


@dataclass(frozen=True, eq=False)
class Evaluator:
    """A schedule's dependency graph, in an order that respects it, with tables of durations and energies.

    Attributes
    ----------
    order
        Flat index of the instruction at each place, shape ``(n,)``.
    row
        Row of the tables of each place, shape ``(n,)``.
    previous
        Place of the instruction before on the same rank, ``n`` for none, shape ``(n,)``.
    source
        Places of the instructions whose outputs are needed, ``n`` for none, shape ``(inputs, n)``.
    latency_ns
        From the source's end to arrival, shape ``(inputs, n)`` [ns].
    levels
        Places that do not depend on each other, level by level.
    last
        Place of the last instruction of every rank.
    duration_ns, extra_j
        Per row and clock: duration [ns] and energy above waiting [J], shape ``(rows, 256)``.
    wait_power_w
        Sum of the waiting power of all ranks [W].
    """

    order: Int
    row: Int
    previous: Int
    source: Int
    latency_ns: Int
    levels: tuple[Int, ...]
    last: Int
    duration_ns: Int
    extra_j: Array
    wait_power_w: float

    @property
    def instructions(self) -> int:
        """Number of instructions of a plan."""
        return len(self.order)

    def evaluate(self, clock_index: ArrayLike, *, backend: Backend = "numpy") -> tuple[Int, Array]:
        """Iteration time and energy of every plan.

        Parameters
        ----------
        clock_index
            Shape ``(instructions, plans)`` in the schedule's flat order, or already in blocks (see :func:`blocked`),
            which saves a copy; dtype ``uint8``.
        backend
            ``numba`` is ten times faster, but takes seconds to start for the first time.

        Returns
        -------
        time_ns, energy_j
            Shape ``(plans,)`` [ns], [J]: energy of the instructions, and of waiting until the slowest rank has ended.
        """
        clocks = np.asarray(clock_index)
        if clocks.dtype != np.uint8 or clocks.ndim not in (2, 3) or clocks.shape[-2] != self.instructions:
            raise InputError(
                f"clock indices of shape {clocks.shape} and type {clocks.dtype} for {self.instructions} instructions",
                remedy="Give an array of type uint8 and shape (instructions, plans).",
            )
        if clocks.ndim == 3 and clocks.shape[2] != BLOCK:
            raise InputError(f"blocks of {clocks.shape[2]} plans; they must hold {BLOCK}")
        plans = clocks.shape[1] if clocks.ndim == 2 else clocks.shape[0] * BLOCK
        blocks = blocked(clocks) if clocks.ndim == 2 else np.ascontiguousarray(clocks)
        time, extra = self._compiled(blocks) if backend == "numba" else self._vectorised(blocks)
        time, extra = time.ravel()[:plans], extra.ravel()[:plans]
        if time.max(initial=0) >= NO_CLOCK_NS:
            raise InputError("a clock index lies outside the tables of the evaluator")
        return time, extra + self.wait_power_w * 1e-9 * time

    def _vectorised(self, blocks: Clocks) -> tuple[Int, Array]:
        n = self.instructions
        time = np.empty((len(blocks), BLOCK), dtype=np.int64)
        extra = np.empty((len(blocks), BLOCK))
        end = np.zeros((n + 1, BLOCK), dtype=np.int64)
        row = (self.row * TABLE_CLOCKS)[:, None]
        for b, clocks in enumerate(blocks):
            entry = clocks[self.order] + row
            duration = self.duration_ns.ravel()[entry]
            for level in self.levels:
                start = end[self.previous[level]]
                for source, latency in zip(self.source, self.latency_ns, strict=True):
                    start = np.maximum(start, end[source[level]] + latency[level, None])
                end[level] = start + duration[level]
            time[b] = end[self.last].max(axis=0)
            extra[b] = self.extra_j.ravel()[entry].sum(axis=0)
        return time, extra

    def _compiled(self, blocks: Clocks) -> tuple[Int, Array]:
        from joulecast.simulator.closed_form.evaluator_kernels import evaluate_blocks

        tables = (self.duration_ns, self.extra_j)
        graph = (self.order, self.row, self.previous, self.source, self.latency_ns, self.last)
        time, extra = evaluate_blocks(blocks, *graph, *tables)
        return time, extra


def blocked(clock_index: Clocks) -> Clocks:
    """Plans of shape ``(instructions, plans)`` as ``(blocks, instructions, 256)``, the last block filled with zeros."""
    n, plans = clock_index.shape
    blocks = np.zeros((-(-plans // BLOCK), n, BLOCK), dtype=np.uint8)
    whole = plans // BLOCK
    blocks[:whole] = clock_index[:, : whole * BLOCK].reshape(n, whole, BLOCK).transpose(1, 0, 2)
    if whole < len(blocks):
        blocks[whole, :, : plans - whole * BLOCK] = clock_index[:, whole * BLOCK :]
    return blocks


def make_evaluator(
    schedule: Schedule,
    type_of: Sequence[Sequence[int]],
    duration_ns: ArrayLike,
    energy_j: ArrayLike,
    wait_power_w: ArrayLike,
    latency_ns: ArrayLike = 0,
    edges: tuple[ArrayLike, ArrayLike] | None = None,
) -> Evaluator:
    """Validated :class:`Evaluator` of a schedule.

    Parameters
    ----------
    schedule
        Order and dependencies.
    type_of
        Per rank and instruction, the row of the tables.
    duration_ns, energy_j
        Of each type at each clock, shape ``(types, clocks)``, at most 256 clocks [ns], [J].
    wait_power_w
        One number, or one per rank [W].
    latency_ns
        One number, or one per edge [ns]. The schedule's edges within a rank cost nothing.
    edges
        Flat indices of instructions (sources, targets) that depend on each other, in place of ``schedule.edges``.
    """
    if [len(row) for row in type_of] != [len(row) for row in schedule.ranks] or not schedule.offsets[-1]:
        raise InputError("an evaluator needs one type for every instruction of its schedule")
    kind = np.array([t for row in type_of for t in row], dtype=np.int64)
    wait = np.broadcast_to(np.asarray(wait_power_w, dtype=np.float64), (len(schedule.ranks),))
    row, table_ns, table_j = _tables(schedule, kind, duration_ns, energy_j, wait)
    previous, source, latency = _predecessors(schedule, latency_ns, edges)
    order, depth = _depth_first(previous, source)
    n = len(order)
    place = np.full(n + 1, n)
    place[order] = np.arange(n)
    depth_at = depth[order]
    by_depth = np.argsort(depth_at, kind="stable")
    ends = np.array([b - 1 for a, b in pairwise(schedule.offsets) if b > a])
    return Evaluator(
        order=order,
        row=row[order],
        previous=place[previous[order]],
        source=np.ascontiguousarray(place[source[:, order]]),
        latency_ns=np.ascontiguousarray(latency[:, order]),
        levels=tuple(np.split(by_depth, np.flatnonzero(np.diff(depth_at[by_depth])) + 1)),
        last=place[ends],
        duration_ns=table_ns,
        extra_j=table_j,
        wait_power_w=float(wait.sum()),
    )


def _tables(
    schedule: Schedule, kind: Int, duration_ns: ArrayLike, energy_j: ArrayLike, wait_power_w: Array
) -> tuple[Int, Int, Array]:
    """Row of each flat instruction, and per row (a type on a rank) the duration and the energy above waiting."""
    duration = np.atleast_2d(np.asarray(duration_ns, dtype=np.int64))
    energy = np.atleast_2d(np.asarray(energy_j, dtype=np.float64))
    if duration.shape != energy.shape or not 1 <= duration.shape[1] <= TABLE_CLOCKS or duration.min(initial=0) < 0:
        raise InputError(f"tables of durations {duration.shape} and energies {energy.shape} do not fit together")
    if kind.min() < 0 or kind.max() >= len(duration):
        raise InputError(f"an instruction's type lies outside the {len(duration)} rows of the tables")
    rank = np.repeat(np.arange(len(schedule.ranks)), np.diff(schedule.offsets))
    pairs, row = np.unique(np.stack([kind, rank]), axis=1, return_inverse=True)
    table_ns = np.full((pairs.shape[1], TABLE_CLOCKS), NO_CLOCK_NS)
    table_j = np.zeros((pairs.shape[1], TABLE_CLOCKS))
    table_ns[:, : duration.shape[1]] = duration[pairs[0]]
    extra = energy[pairs[0]] - wait_power_w[pairs[1], None] * duration[pairs[0]] * 1e-9
    table_j[:, : duration.shape[1]] = extra
    return row.ravel(), table_ns, table_j


def _predecessors(
    schedule: Schedule, latency_ns: ArrayLike, edges: tuple[ArrayLike, ArrayLike] | None
) -> tuple[Int, Int, Int]:
    """Per flat instruction: the one before on its rank, those whose output it needs (``n`` for none), the latencies."""
    n = schedule.offsets[-1]
    own = schedule.edges
    sources, targets = own.source, own.target
    if edges is not None:
        sources, targets = (np.asarray(ends, dtype=np.int64) for ends in edges)
    between = np.broadcast_to(np.asarray(latency_ns, dtype=np.int64), sources.shape)
    if edges is None:
        between = np.where(own.source_rank == own.target_rank, 0, between)
    if between.min(initial=0) < 0:
        raise InputError("a transfer's latency must not be negative")
    previous = np.arange(-1, n - 1)
    previous[[first for first in schedule.offsets[:-1] if first < n]] = n
    by_target = np.argsort(targets, kind="stable")
    sorted_targets = targets[by_target]
    number = np.arange(len(targets)) - np.searchsorted(sorted_targets, sorted_targets)  # 0 for a target's first input
    inputs = int(number.max(initial=0)) + 1
    source, latency = np.full((inputs, n), n), np.zeros((inputs, n), dtype=np.int64)
    source[number, sorted_targets] = sources[by_target]
    latency[number, sorted_targets] = between[by_target]
    return previous, source, latency


def _depth_first(previous: Int, source: Int) -> tuple[Int, Int]:
    """Instructions in an order that respects dependencies, and the longest chain before each.

    Depth first, so that what the next instruction reads was mostly written just before.
    """
    n = len(previous)
    needs = [{p for p in all_needed if p < n} for all_needed in zip(previous.tolist(), *source.tolist(), strict=True)]
    missing = [len(need) for need in needs]
    followers: list[list[int]] = [[] for _ in range(n)]
    for i, need in enumerate(needs):
        for p in need:
            followers[p].append(i)
    ready = [i for i in range(n) if not missing[i]]
    order: list[int] = []
    depth = [0] * n
    while ready:
        i = ready.pop()
        order.append(i)
        for j in reversed(followers[i]):
            depth[j] = max(depth[j], depth[i] + 1)
            missing[j] -= 1
            if not missing[j]:
                ready.append(j)
    if len(order) < n:
        raise InputError("the schedule's instructions wait for each other for ever")
    return np.array(order), np.array(depth)
