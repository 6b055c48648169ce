"""A plan's kernels and instructions, tabulated at every clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.lowering import lower
from joulecast.model.power.governor import settled_power_w
from joulecast.model.power.kernel_power import at_clock, wait_power_w
from joulecast.model.power.limits import card_lag, card_lag_at_lock, group_lag
from joulecast.simulator.fluid.part_limits import index_below, limited, wait_columns
from joulecast.simulator.fluid.rendezvous import transfers_wait_on_sms
from joulecast.simulator.instructions.clock_columns import (
    at_columns,
    clock_columns,
    is_locked,
    locked_index,
    mean_power_w,
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

Array = NDArray[np.float64]
#: How far the slowest of a group lies behind, of instructions with these highest clocks, shape ``(types, 1)`` [MHz].
Lag = Callable[[Array], Array]


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
        Whether clocks never move: the plan sets all of them, and no instruction reaches the mean card's limit.
    wait_columns
        Column at which a GPU waits where the governor sets another, shape ``(clocks,)``.
    """

    program: PlanProgram
    kernels: tuple[Kernels, ...]
    tables: tuple[InstructionTable, ...]
    columns: tuple[NDArray[np.int64], ...]
    power_limits_w: tuple[float, ...]
    gpu: GpuModel
    transfer_s: Array
    locked: bool
    wait_columns: NDArray[np.int64]

    @property
    def wait_power_w(self) -> Array:
        """Power of a waiting GPU where the governor sets a clock, shape ``(clocks,)`` [W]."""
        return np.asarray(wait_power_w(self.clocks_mhz[self.wait_columns], self.gpu))

    @property
    def clocks_mhz(self) -> Array:
        """The grid of clocks, shape ``(clocks,)`` [MHz]."""
        return self.kernels[0].clocks_mhz


def prepare(plan: Plan, gpu: GpuModel, *, governed: bool = True) -> Prepared:
    """Lower a plan's kernels and tabulate its instructions at every clock.

    Parameters
    ----------
    governed
        Whether the board's governor moves the clocks and the plan may set some. If not, the tables are those of clocks
        that never move, and clocks that the plan sets play no part.
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

    def tabulated(lag: Lag | None, *, locked: bool = False) -> Prepared:
        """With ranks that wait for the slowest of their groups, or all alike."""
        tables, columns = _tables(program, kernels, gpu, peaks, lag, governed)
        return Prepared(program, kernels, tables, columns, limits, gpu, transfer, locked, waits)

    if not governed:
        return tabulated(None, locked=True)
    if is_locked(plan):
        alike = tabulated(None, locked=True)
        share = float((_highest_power_w(alike) / settled_power_w(limits, gpu)).max())
        if share <= 1.0:
            lag = lag_at_lock(plan, gpu.clocks_mhz, gpu, share)
            return tabulated(lambda _: lag, locked=True) if lag.any() else alike
    return tabulated(lambda highest: lag_of(plan, gpu.clocks_mhz, gpu, highest))


def lag_of(plan: Plan, clocks_mhz: Array, gpu: GpuModel, highest_mhz: Array | None = None) -> Array:
    """How far the slowest GPU of a group lies below its mean clock, at each mean clock [1].

    Of shape ``(clocks,)``, or ``(types, clocks)`` where the plan sets all clocks: each instruction wanders below its
    own alone, ``highest_mhz`` of shape ``(types, 1)``.
    """
    locked = highest_mhz if is_locked(plan) else None
    return group_lag(clocks_mhz, ranks_in_step(plan), *_members(plan, gpu), locked)


def lag_at_lock(plan: Plan, clocks_mhz: Array, gpu: GpuModel, limit_share: float) -> Array:
    """The same at clocks that the plan sets and the mean card holds at ``limit_share`` of its limit."""
    return card_lag_at_lock(card_lag(clocks_mhz, *_members(plan, gpu)), limit_share)


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
    peaks_w: Sequence[float],
    lag: Lag | None,
    governed: bool,
) -> tuple[tuple[InstructionTable, ...], tuple[NDArray[np.int64], ...]]:
    """Tables and columns of every rank; instructions keep to the plan's clocks where ``governed``."""
    tables, columns = [], []
    alone: dict[object, InstructionTable] = {}  # of ranks that run the same instructions
    limits = dict(program.plan.power.component_limits_w)
    taken_s: dict[float, dict[tuple[Launch, ...], Array]] = {peak: {} for peak in peaks_w}
    for rank, (run, own, peak) in enumerate(zip(program.ranks, kernels, peaks_w, strict=True)):
        top = np.full(len(run.types), len(gpu.clocks_mhz) - 1)
        highest = locked_index(program, rank, gpu.clocks_mhz) if governed else top
        key = peak, run.types, tuple(highest.tolist())
        if key not in alone:
            beside, host = transfers_wait_on_sms(program.plan), host_s(program.plan, gpu, run.types)
            of_tower = host_s(program.plan, gpu, of_towers(run.types)) if program.plan.workload.images else None
            behind = lag and lag(gpu.clocks_mhz[highest][:, None])
            alone[key] = instruction_table(run.types, own, gpu, behind, beside, taken_s[peak], host, of_tower)
        table = with_overlapped_buckets(alone[key], run.order, run.overlapped, own, gpu)
        if limits:
            table, ceiling = limited(table, gpu.clocks_mhz, limits, gpu)
            highest = np.minimum(highest, index_below(gpu.clocks_mhz, ceiling))
        columns.append(clock_columns(table, highest, peak))
        tables.append(at_columns(table, columns[-1]))
    return tuple(tables), tuple(columns)


def _highest_power_w(prepared: Prepared) -> Array:
    """Power of the most demanding instruction of each rank at its highest clock, shape ``(ranks,)`` [W]."""
    return np.array([mean_power_w(table)[:, -1].max() for table in prepared.tables])


def board_limits_w(plan: Plan, gpu: GpuModel) -> tuple[float, ...]:
    """Power limit of each GPU of every pipeline rank, the plan's or the board's own, less what is not the GPU's [W]."""
    return tuple(gpu.own_limit_w(plan.power.limit_w(rank)) for rank in range(plan.pp))
