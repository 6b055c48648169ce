"""A plan's kernels and instructions, tabulated at every clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.lowering import lower
from joulecast.model.power.kernel_power import at_clock, wait_power_w
from joulecast.model.power.limits import card_lag, group_lag, group_limit_share, held_clock_mhz
from joulecast.simulator.fluid.part_limits import index_below, limited, wait_columns
from joulecast.simulator.fluid.rendezvous import transfers_wait_on_sms
from joulecast.simulator.instructions.clock_columns import (
    at_columns,
    clock_columns,
    is_locked,
    locked_index,
)
from joulecast.simulator.instructions.host import host_s, of_towers
from joulecast.simulator.instructions.overlapped_buckets import with_overlapped_buckets
from joulecast.simulator.instructions.program import PlanProgram, plan_program
from joulecast.simulator.instructions.tables import (
    InstructionTable,
    Kernels,
    instruction_table,
    kernels_of,
    under_limits,
)
from joulecast.simulator.plan_file.placement import ranks_in_step
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import ONCE

#: How far the slowest of a group lies behind, of instructions with these highest clocks and those at which the limit
#: holds the mean card, both of shape ``(types, 1)`` [MHz].
Lag = Callable[[Array, Array | None], Array]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A plan with its tables, ready to be simulated.

    An index into the grid of clocks is called a column. A GPU may run at a lower clock than the governor sets: the
    plan, the board's instant limit or limits on parts of the GPU can hold it there.

    Attributes
    ----------
    program
        What every pipeline rank runs.
    kernels
        Kernels of each pipeline rank at every clock; the same object for ranks with the same limit.
    tables
        Of each pipeline rank, time and energy of its instructions at every clock that the governor may set.
    columns
        Of each pipeline rank, the column at which an instruction runs where the governor sets another, shape
        ``(types, clocks)``.
    power_limits_w
        Power limit of a GPU of each pipeline rank [W].
    transfer_s
        Time of a transfer from each pipeline rank to the next [s].
    locked
        Whether clocks never move: the plan sets all of them, and its limit lets the mean card hold each.
    held_mhz
        Of each pipeline rank, highest clocks at which its limit lets the mean card run each type, shape ``(types, 1)``;
        none where the board sets clocks.
    wait_columns
        Column at which a GPU waits where the governor sets another, shape ``(clocks,)``.
    """

    program: PlanProgram
    kernels: tuple[Kernels, ...]
    tables: tuple[InstructionTable, ...]
    columns: tuple[Int, ...]
    power_limits_w: tuple[float, ...]
    gpu: GpuModel
    transfer_s: Array
    locked: bool
    wait_columns: Int
    held_mhz: tuple[Array, ...] = ()

    @property
    def wait_power_w(self) -> Array:
        """Power of a waiting GPU where the governor sets a clock, shape ``(clocks,)`` [W]."""
        return np.asarray(wait_power_w(self.clocks_mhz[self.wait_columns], self.gpu))

    @property
    def clocks_mhz(self) -> Array:
        """The grid of clocks, shape ``(clocks,)`` [MHz]."""
        return self.kernels[0].clocks_mhz


def prepare(plan: Plan, gpu: GpuModel, *, governed: bool = True, alike: bool = True) -> Prepared:
    """Lower a plan's kernels and tabulate its instructions at every clock.

    Parameters
    ----------
    governed
        Whether the board's governor moves the clocks and the plan may set some. If not, the tables are those of clocks
        that never move, and clocks that the plan sets play no part.
    alike
        Of clocks that never move: whether all cards hold them. If not, instructions keep to those that the fast loop
        of the mean card's limit holds, and GPUs wait for cards that their limit holds below them, as they do where the
        plan locks them.
    """
    program = plan_program(plan)
    limits = board_limits_w(plan, gpu)
    peaks = [limit * gpu["governor.peak_share"] for limit in limits]
    parts = dict(plan.power.component_limits_w)
    waits = wait_columns(gpu.clocks_mhz, parts, gpu)
    beside = [item.operator for rank in program.ranks for item in rank.overlapped]
    unlimited = kernels_of([rank.types for rank in program.ranks], gpu.clocks_mhz, gpu, others=beside)
    by_peak = {peak: under_limits(unlimited, gpu, peak, parts) for peak in dict.fromkeys(peaks)}
    kernels = tuple(by_peak[peak] for peak in peaks)
    transfer = np.zeros(len(program.ranks))
    if program.transfers:
        transfer = np.asarray(at_clock(lower(program.transfers, gpu), gpu.max_clock_mhz, gpu).time_s)

    def lag(highest: Array, held: Array | None) -> Array:
        # Where clocks never move, each is one that the plan might lock.
        return lag_of(plan, gpu.clocks_mhz, gpu, highest if governed else gpu.clocks_mhz, held)

    locks = is_locked(plan) if governed else not alike
    waiting = lag if governed or locks else None
    tables, columns, held = _tables(program, kernels, gpu, limits, waiting, governed, locks)
    locked = not governed or (locks and all(map(_holds, held, [gpu.clocks_mhz[c[:, -1]] for c in columns])))
    return Prepared(program, kernels, tables, columns, limits, gpu, transfer, locked, waits, held)


def _holds(held_mhz: Array, clocks_mhz: Array) -> bool:
    """Whether the limit lets the mean card run all instructions at these clocks."""
    return bool((clocks_mhz <= held_mhz[:, 0]).all())


def lag_of(
    plan: Plan, clocks_mhz: Array, gpu: GpuModel, highest_mhz: Array | None = None, held_mhz: Array | None = None
) -> Array:
    """How far the slowest GPU of a group lies below its mean clock, at each mean clock [1].

    Of shape ``(clocks,)``, or ``(types, clocks)`` where ``held_mhz`` is given, as where the plan sets all clocks: each
    instruction wanders below its own ``highest_mhz`` alone, and only cards that would exceed their limit lag. Both of
    shape ``(types, 1)``.
    """
    highest = None if held_mhz is None else highest_mhz
    return group_lag(clocks_mhz, ranks_in_step(plan), *_members(plan, gpu), highest, held_mhz)


def lag_of_cards(plan: Plan, clocks_mhz: Array, gpu: GpuModel) -> Array:
    """Of :func:`lag_of` what is due to cards that differ, where all are held by their limit."""
    return card_lag(clocks_mhz, *_members(plan, gpu))


def _members(plan: Plan, gpu: GpuModel) -> tuple[int, GpuModel, float]:
    """How many GPUs wait for the slowest card, which kind they are, and how far nodes differ."""
    if plan.cluster.nodes == 1:
        return plan.tp * plan.replicas, gpu, 0.0
    # The slowest of all GPUs slows its stage, and the slowest stage the pipeline.
    return plan.cluster.gpus, gpu, plan.cluster.node_clock_spread


def _tables(
    program: PlanProgram,
    kernels: Sequence[Kernels],
    gpu: GpuModel,
    limits_w: Sequence[float],
    lag: Lag | None,
    governed: bool,
    locks: bool,
) -> tuple[tuple[InstructionTable, ...], tuple[Int, ...], tuple[Array, ...]]:
    """Tables, columns and held clocks of every rank; instructions keep to the plan's clocks where ``governed``."""
    tables, columns, held = [], [], []
    # Of ranks that run the same instructions.
    alone: dict[object, tuple[InstructionTable, Array | None, Int]] = {}
    parts, reached = dict(program.plan.power.component_limits_w), group_limit_share(program.plan.tp, gpu)
    taken_s: dict[float, dict[tuple[Launch, ...], Array]] = {limit: {} for limit in limits_w}
    for rank, (run, own, limit) in enumerate(zip(program.ranks, kernels, limits_w, strict=True)):
        top = np.full(len(run.types), len(gpu.clocks_mhz) - 1)
        highest = locked_index(program, rank, gpu.clocks_mhz) if governed else top
        often = often_of(program, rank)
        key = limit, run.types, tuple(highest.tolist()), tuple(often.tolist()) if locks else None
        if key not in alone:
            beside, host = transfers_wait_on_sms(program.plan), host_s(program.plan, gpu, run.types)
            of_tower = host_s(program.plan, gpu, of_towers(run.types)) if program.plan.workload.images else None
            shared = beside, taken_s[limit], host, of_tower
            at = None
            if locks:
                cards = lag_of_cards(program.plan, gpu.clocks_mhz, gpu)
                held_back = instruction_table(run.types, own, gpu, cards, *shared)
                amounts = held_back.duration_s, held_back.energy_j
                burst, at = held_clock_mhz(gpu.clocks_mhz, *amounts, often, limit * reached, gpu)
                if not governed:
                    highest = np.minimum(highest, index_below(gpu.clocks_mhz, burst[:, 0]))
            behind = lag and lag(gpu.clocks_mhz[highest][:, None], at)
            alone[key] = instruction_table(run.types, own, gpu, behind, *shared), at, highest
        table, at, highest = alone[key]
        table = with_overlapped_buckets(table, run.order, run.overlapped, own, gpu)
        if parts:
            table, ceiling = limited(table, gpu.clocks_mhz, parts, gpu)
            highest = np.minimum(highest, index_below(gpu.clocks_mhz, ceiling))
        columns.append(clock_columns(table, highest, limit * gpu["governor.peak_share"]))
        tables.append(at_columns(table, columns[-1]))
        held.append(at)
    return tuple(tables), tuple(columns), tuple(at for at in held if at is not None)


def often_of(program: PlanProgram, rank: int) -> Array:
    """How often a rank runs each type of instruction for micro-batches, shape ``(types,)``."""
    run, kinds = program.ranks[rank], program.schedule.ranks[rank]
    runs = [kind for kind, instruction in zip(run.order, kinds, strict=True) if instruction.kind not in ONCE]
    return np.bincount(runs, minlength=len(run.types)).astype(np.float64)


def board_limits_w(plan: Plan, gpu: GpuModel) -> tuple[float, ...]:
    """Power limit of each GPU of every pipeline rank, the plan's or the board's own, less what is not the GPU's [W]."""
    return tuple(gpu.own_limit_w(plan.power.limit_w(rank)) for rank in range(plan.pp))
