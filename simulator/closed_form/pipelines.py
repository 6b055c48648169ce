"""Lengths and waits of many plans' pipelines, and what travels between their stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Operator
from joulecast.model.power.governor import REMEMBERED
from joulecast.model.power.kernel_power import at_clock
from joulecast.simulator.closed_form.clocks import (
    GridPositions,
    Load,
    Settled,
    grid_positions,
    interpolated,
    row_starts,
)
from joulecast.simulator.closed_form.keys import goes_round, transfer_key, with_whole_backward
from joulecast.simulator.closed_form.layout import Layout
from joulecast.simulator.closed_form.pipeline_formula import StageTimes, iteration_time_s, length_s
from joulecast.simulator.closed_form.pipeline_walk import Order, walked
from joulecast.simulator.closed_form.shape import in_phases, power_keys
from joulecast.simulator.closed_form.tabulated import Parts
from joulecast.simulator.closed_form.trust import has_uneven_chunks
from joulecast.simulator.closed_form.work import Work
from joulecast.simulator.fluid.rendezvous import transfers_wait_on_sms
from joulecast.simulator.instructions.program import stage_transfers
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import BOTH_ENDS, SHIPPED

#: Share of the most demanding kind's power from which on another kind is held as it is.
NEARLY = 0.98


class Pipelines:
    """Lengths and waits of plans' pipelines at any clocks of their ranks."""

    def __init__(self, plans: Sequence[Plan], layout: Layout, work: Work, parts: Parts) -> None:
        self._layout, self._work, self._clocks = layout, work, parts.clocks_mhz
        self._transfer_s = transfers_s(plans, parts)
        self._drains = bool(work.drain_s.any())
        self._stage_starts = row_starts(work.stages.time_s, layout.stages.index)
        self._rank_starts = row_starts(work.tails.time_s)
        self._microbatches = np.array([float(plan.microbatches) for plan in plans])
        self._chunks = np.array([float(plan.chunks) for plan in plans])
        self._ranks = np.array([plan.pp for plan in plans])
        self._phases = np.array([in_phases(plan) for plan in plans])
        self._starts = layout.first_rank_row
        groups: dict[tuple[str, int], list[int]] = {}
        for number, plan in enumerate(plans):
            groups.setdefault((plan.schedule.name, plan.pp), []).append(number)
        self._groups = [
            (name, np.array(own), np.stack([layout.first_rank_row[n] + layout.shapes[n].kind_of_rank for n in own]))
            for (name, _), own in groups.items()
        ]
        self._stretch = np.ones(len(plans))
        self._spare = np.full((len(plans), self._ranks.max(initial=1)), np.nan)
        self._remembered_s, self._slow_s = REMEMBERED * parts.gpu["governor.fast_s"], parts.gpu["governor.slow_s"]
        self._counted, self._pieces_s = (np.full(self._spare.shape, np.nan) for _ in range(2))
        self._walked = self._orders(plans)
        self._walk(self._work.stages.time_s[:, layout.stages.index, -1])

    def load(self) -> Load:
        """What each rank row does in an iteration, at every clock."""
        layout, stages, tails = self._layout, self._work.stages, self._work.tails
        starts = np.flatnonzero(np.diff(layout.rank_of_stage, prepend=-1))
        time, energy = (
            np.add.reduceat((layout.often[..., None] * of[:, layout.stages.index]).sum(0), starts, axis=0)
            for of in (stages.time_s, stages.energy_j)
        )
        power = np.divide(energy, time, out=np.zeros_like(time), where=time > 0)
        each = np.divide(stages.energy_j, stages.time_s, out=np.zeros_like(stages.time_s), where=stages.time_s > 0)
        most = np.maximum.reduceat(each[:, layout.stages.index].max(0), starts, axis=0)
        power = np.where(self._phases[layout.plan_of_rank, None], most, power)
        # Fewer micro-batches than ranks: a rank waits for each of its chunks' turns.
        pauses = np.where(self._microbatches < self._ranks, 2.0 * self._chunks - 1.0, 1.0)[layout.plan_of_rank]
        return Load(
            time,
            energy,
            power,
            most,
            *self._of_most(each, starts),
            tails.time_s,
            tails.energy_j,
            *self._pieces(),
            pauses,
        )

    def _of_most(self, each_w: Array, starts: Int) -> tuple[Array, Array]:
        """Time of an instruction of the most demanding kind of each rank row's work, and its share of all, ``(r,)``."""
        index, rank = self._layout.stages.index, self._layout.rank_of_stage
        power, time = each_w[:, index, -1], self._work.stages.time_s[:, index, -1]
        most = np.maximum.reduceat(power.max(0), starts)[rank]
        own_s = np.where(power >= NEARLY * most, time, 0.0)
        whole, part = (np.add.reduceat((self._layout.often * of).sum(0), starts) for of in (time, own_s))
        share = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
        return np.maximum.reduceat(own_s.max(0), starts), share

    def _pieces(self) -> tuple[Array, Array]:
        """Pieces of each rank row's work, and their time as far as the board looks back."""
        rounds, pieces = (self._mean_of_kinds(of) for of in (self._counted, self._pieces_s))
        every = (self._microbatches * self._chunks)[self._layout.plan_of_rank]
        return np.where(np.isnan(rounds), every, np.maximum(rounds, 1.0)), pieces

    def _mean_of_kinds(self, of_ranks: Array) -> Array:
        """Mean over the ranks that each rank row stands for, from values of every plan's ranks."""
        total = np.zeros(len(self._layout.ranks))
        for _, plans, ranks in self._groups:
            np.add.at(total, ranks, of_ranks[plans, : ranks.shape[1]])
        return np.asarray(total / self._layout.ranks)

    def of_iteration(self, stage: Array, tail: Array, settled: Settled) -> Array:
        """Sum over an iteration of distinct stages ``(k, u, c)`` and tails ``(r, c)``, at settled clocks, ``(r,)``."""
        clock = settled.clock_mhz[self._layout.rank_of_stage]
        once = [interpolated(kind, self._clocks, clock, self._layout.stages.index) for kind in stage]
        of_work: Array = self._spent(np.array(once)).sum(0)
        return of_work + interpolated(tail, self._clocks, settled.tail_clock_mhz)

    def time_s(self, clock_mhz: Array, tail_clock_mhz: Array) -> Array:
        """Length of every plan's iteration at clocks of work and tail, shape ``(r,)`` [s]."""
        clock, tail_clock = (grid_positions(self._clocks, mhz) for mhz in (clock_mhz, tail_clock_mhz))
        return self._lengths(self._stages(clock), *self._ends(tail_clock))

    def waits(self, clock: GridPositions, tail_clock: GridPositions) -> tuple[Array, Array]:
        """What each rank row waits for slower ranks in the steady state, and while the pipeline fills and drains."""
        layout = self._layout
        stages, (tail, drain) = self._stages(clock), self._ends(tail_clock)
        work = self._spent(stages).sum(0)
        pace = np.maximum.reduceat(work, self._starts)[layout.plan_of_rank]
        wait = self._lengths(stages, tail, drain)[layout.plan_of_rank] - work - tail
        wait = np.maximum(wait, 0.0)
        short = np.minimum(pace - work, wait)
        return short, wait - short

    def _stages(self, clock: GridPositions) -> Array:
        """Forward, backward, weight gradient and pair of each stage row, shape ``(k, q)`` [s]."""
        return clock.take(self._layout.rank_of_stage).interpolate(self._work.stages.time_s, self._stage_starts)

    def _ends(self, clock: GridPositions) -> tuple[Array, Array]:
        """Tail of each rank row, and what of it the rank before waits for, each of shape ``(r,)`` [s]."""
        tail = clock.interpolate(self._work.tails.time_s, self._rank_starts)
        drain = clock.interpolate(self._work.drain_s, self._rank_starts) if self._drains else np.zeros_like(tail)
        return tail, drain

    def _spent(self, stages: Array) -> Array:
        """What each rank row does of each kind in an iteration, from stage rows' ``(k, q)``: shape ``(k, r)``."""
        layout = self._layout
        of = (np.bincount(layout.rank_of_stage, part, len(layout.ranks)) for part in layout.often * stages)
        return np.array(list(of), np.float64)

    def _lengths(self, stages: Array, tail_s: Array, drain_s: Array) -> Array:
        out = np.empty(len(self._microbatches))
        for name, plans, times in self._times(stages, tail_s, drain_s):
            out[plans] = iteration_time_s(name, times)
        return out

    def _times(self, stages: Array, tail_s: Array, drain_s: Array) -> Iterator[tuple[str, Int, StageTimes]]:
        """Times of plans with one schedule and number of ranks, with the schedule and the plans."""
        layout = self._layout
        work = self._spent(stages) / self._microbatches[layout.plan_of_rank]
        work[1] += work[3:].sum(0)  # a pair counts as a backward
        of_ranks = np.array([*work[:3], tail_s, drain_s])
        first, last = stages[:2, layout.first_chunk], stages[:2, layout.last_chunk]
        for name, plans, ranks in self._groups:
            forward, backward, weight, tail, drain = of_ranks[:, ranks]
            times = StageTimes(
                forward_s=forward,
                backward_s=backward,
                weight_s=weight,
                first_s=first[:, ranks],
                last_s=last[:, ranks],
                tail_s=tail,
                drain_s=drain,
                transfer_s=self._transfer_s[plans],
                microbatches=self._microbatches[plans],
                chunks=self._chunks[plans],
                stretch=self._stretch[plans],
                spare=self._spare[plans, : ranks.shape[1]],
            )
            yield name, plans, times

    def walk_again(self, load: Load, clock: GridPositions) -> Load:
        """The load once pipelines have been walked through at other clocks of their work."""
        if not self._walked:
            return load
        self._walk(self._stages(clock))
        rounds, pieces = self._pieces()
        return replace(load, rounds=rounds, pieces_s=pieces)

    def _orders(self, plans: Sequence[Plan]) -> list[tuple[Order, Int, Int]]:
        """Orders of pipelines that are walked through, with the plans and the stage rows of their ranks' chunks."""
        groups: dict[Order, list[int]] = {}
        for number, plan in enumerate(plans):
            if _is_walked(plan):
                order = Order(plan.schedule.name, plan.pp, plan.microbatches, plan.chunks, transfers_wait_on_sms(plan))
                groups.setdefault(order, []).append(number)
        layout = self._layout
        return [
            (
                order,
                np.array(own),
                np.stack([layout.first_stage_row[n] + layout.shapes[n].stage_row_of_chunk for n in own]),
            )
            for order, own in groups.items()
        ]

    def _walk(self, stages: Array) -> None:
        """How much longer pipelines are of which no formula holds, and how they wait, from :meth:`_stages`."""
        if not self._walked:
            return
        length = np.full(len(self._microbatches), np.nan)
        for order, own, rows in self._walked:
            of_chunks = np.moveaxis(with_whole_backward(stages[:, rows]), 0, -1)
            found = walked(order, of_chunks, self._transfer_s[own], self._remembered_s, self._slow_s)
            length[own] = found.length_s
            self._spare[own, : order.ranks] = found.spare_s / found.length_s[:, None]
            self._counted[own, : order.ranks] = found.remembered_s / self._remembered_s
            self._pieces_s[own, : order.ranks] = found.pieces_s
        nothing = np.zeros(len(self._layout.ranks))
        for name, some, times in self._times(stages, nothing, nothing):
            waits = ~np.isnan(length[some])
            if waits.any():
                self._stretch[some] = np.where(waits, length[some] / length_s(name, times), 1.0)


def _is_walked(plan: Plan) -> bool:
    """Whether instructions of a plan are walked through, because no formula holds of its pipeline.

    That is so where transfers wait for each other, where interleaved ranks have no round of micro-batches after the
    first, clocks or limits of their own or chunks of very different lengths (the formula takes all ranks for equal, all
    chunks for the shortest), for zero bubbles (an output head makes equal numbers of layers unequal), for pipelines
    that are folded or have two ways and for schedules from outside.
    """
    name = plan.schedule.name
    if plan.pp == 1 or name not in SHIPPED:
        return plan.pp > 1
    if name in BOTH_ENDS:
        return True
    if name == "interleaved-1f1b":
        few = plan.microbatches <= plan.pp
        return few or transfers_wait_on_sms(plan) or has_uneven_chunks(plan) or bool(power_keys(plan))
    return name == "zb-h1"


def transfers_s(plans: Sequence[Plan], parts: Parts) -> Array:
    """Mean time of a transfer from one of a plan's stages to the next, 0 with one stage [s]."""
    return np.array([parts.cached(transfer_key(plan), partial(_transfer_s, plan, parts)) for plan in plans])


def _transfer_s(plan: Plan, parts: Parts) -> float:
    hops = stage_transfers(plan)[: plan.pp if goes_round(plan) else plan.pp - 1]
    if not hops:
        return 0.0
    of = {hop: parts.cached(hop, partial(_hop_s, hop, parts.gpu)) for hop in dict.fromkeys(hops)}
    return sum(of[hop] for hop in hops) / len(hops)


def _hop_s(hop: Operator, gpu: GpuModel) -> float:
    return float(at_clock(lower((hop,), gpu), gpu.max_clock_mhz, gpu).time_s[0])
