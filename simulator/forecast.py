"""Forecasts a training iteration: instructions under the board's governor, in the steady state of a training loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.model.component_power import by_part
from joulecast.model.description import GpuDescription
from joulecast.model.governor import settle_clock_mhz, settled_power_w
from joulecast.model.gpu_model import GpuModel, gpu_model
from joulecast.model.launches import Launch
from joulecast.model.limits import group_lag, group_limit_share
from joulecast.model.lowering import lower
from joulecast.model.memory_footprint import MemoryFootprint, check_fits, memory_footprint
from joulecast.model.power import COMPONENTS, at_clock, clock_tree_power_w, idle_power_w, wait_power_w
from joulecast.simulator.behind import with_communication_behind
from joulecast.simulator.clock_columns import (
    at_columns,
    clock_columns,
    is_locked,
    locked_index,
    mean_power_w,
)
from joulecast.simulator.fluid import (
    FixedClocks,
    FluidProgram,
    FluidResult,
    Governor,
    make_fluid_program,
    simulate_fluid,
)
from joulecast.simulator.governor import PowerGovernor
from joulecast.simulator.iteration import Iteration, RankForecast
from joulecast.simulator.ledger_guards import check_iteration, reported_with
from joulecast.simulator.part_limits import check_parts, index_below, limited, spent_at_clocks, wait_columns
from joulecast.simulator.plan import Plan
from joulecast.simulator.plan_attention import attention_assumptions
from joulecast.simulator.plan_experts import expert_assumptions
from joulecast.simulator.plan_gpu import gpu_of, launch_s
from joulecast.simulator.plan_network import network_assumptions
from joulecast.simulator.plan_overlap import overlap_assumptions
from joulecast.simulator.plan_prediction import prediction_assumptions
from joulecast.simulator.power_over_time import power_of_iterations
from joulecast.simulator.program import PlanProgram, implementation_of, plan_program
from joulecast.simulator.rendezvous import transfers_wait_on_sms, with_transfers_in_order
from joulecast.simulator.replicas import state_shards
from joulecast.simulator.schedules import SHIPPED, build_schedule, peak_in_flight
from joulecast.simulator.tables import InstructionTable, Kernels, instruction_table, kernels_of, under_limits
from joulecast.simulator.uncertainty import interval

Array = NDArray[np.float64]

#: Length of a governor's tick [s], and ticks of a short iteration.
TICK_S, TICKS_PER_ITERATION = 10e-3, 60
#: Most ticks of a long iteration: its phases last many ticks anyway.
MOST_TICKS = 10_000
#: Simulated time before the iterations that count, so that the loops have settled [s].
WARM_UP_S = 2.0
#: Time over which iterations are averaged [s].
WINDOW_S = 2.0
#: Most iterations simulated; an iteration of many seconds settles within itself.
MOST_ITERATIONS = 12


@dataclass(frozen=True, eq=False)
class Prepared:
    """A plan with its tables, ready to be simulated.

    ``tables`` say what an instruction takes and draws where the governor sets a clock, ``columns`` at which clock it
    then runs: the plan and the board's instant limit may hold it below. ``kernels`` are those of each pipeline rank,
    the same where the ranks' limits ``limits_w`` are. ``transfer_s`` is the time of a transfer from each pipeline rank
    to the next. Clocks stand ``still`` where the plan sets all of them and no instruction reaches the power limit.
    ``wait_columns`` says at which clock a GPU waits where the governor sets one.
    """

    program: PlanProgram
    kernels: tuple[Kernels, ...]
    tables: tuple[InstructionTable, ...]
    columns: tuple[NDArray[np.int64], ...]
    limits_w: tuple[float, ...]
    gpu: GpuModel
    transfer_s: Array
    still: bool
    wait_columns: NDArray[np.int64]

    @property
    def wait_power_w(self) -> Array:
        """Power of a waiting GPU where the governor sets a clock, shape ``(clocks,)`` [W]."""
        return np.asarray(wait_power_w(self.clocks_mhz[self.wait_columns], self.gpu))

    @property
    def clocks_mhz(self) -> Array:
        """The grid of clocks, shape ``(clocks,)`` [MHz]."""
        return self.kernels[0].clocks_mhz


def forecast(plan: Plan, gpu: GpuDescription | None = None, *, must_fit: bool = True) -> Iteration:
    """Time, power and energy of one iteration of a training loop.

    Parameters
    ----------
    plan
        What runs where.
    gpu
        Description to use in place of the plan's own.
    must_fit
        Whether a plan whose memory is forecast to exceed a GPU's is an error; one that was run did fit.

    Raises
    ------
    DoesNotFitError
        The plan needs more memory than a GPU has.
    GuardError
        A law of conservation does not hold: a defect, reported with the plan.
    """
    with reported_with(plan):
        return _forecast(plan, gpu if gpu is not None else gpu_of(plan), must_fit)


def _forecast(plan: Plan, description: GpuDescription, must_fit: bool) -> Iteration:
    memory = footprints(plan, description, must_fit=must_fit)
    prepared = prepare(plan, gpu_model(description))
    result, first = simulate(prepared)
    ranks = tuple(_rank(prepared, result, first, r, memory[r]) for r in range(plan.pp))
    time = step_time_s(result, first)
    energy = sum(rank.energy_j * rank.gpus for rank in ranks)
    low_high = interval(prepared, description, result, first)
    w = plan.workload
    iteration = Iteration(
        time_s=time,
        energy_j=energy,
        power_w=energy / time,
        clock_mhz=float(np.mean([r.clock_mhz for r in ranks])),
        time_s_p05=time * low_high.time[0],
        time_s_p95=time * low_high.time[1],
        energy_j_p05=energy * low_high.energy[0],
        energy_j_p95=energy * low_high.energy[1],
        tokens=w.sequence_length * w.global_batch_size,
        ranks=ranks,
        plan=plan,
        power_over_time=power_of_iterations(prepared, result, first, prepared.wait_power_w),
        assumptions=(
            *ASSUMPTIONS,
            _host_assumption(plan, prepared.gpu),
            *network_assumptions(plan, description),
            *overlap_assumptions(plan),
            *attention_assumptions(plan, description),
            *expert_assumptions(plan),
            *prediction_assumptions(plan),
        ),
        description=description,
    )
    check_iteration(iteration, result, first, prepared.wait_power_w)
    check_parts(prepared, result, first)
    return iteration


#: What every forecast takes for granted.
ASSUMPTIONS = (
    "training data toggles bits like random-normal values",
    "replicas and tensor-parallel ranks behave alike; one GPU of each pipeline stage is simulated",
)


def _host_assumption(plan: Plan, gpu: GpuModel) -> str:
    """What is taken for granted of the host that launches kernels."""
    if (one := launch_s(plan, gpu)) > 0:
        return f"a launch takes the host {1e6 * one:.0f} us, for which the GPU waits where its kernels are shorter"
    return "the host launches kernels faster than the GPU runs them"


def memory_per_rank(plan: Plan, gpu: GpuDescription, *, must_fit: bool = True) -> list[float]:
    """Peak memory of a GPU of each pipeline rank [bytes]; a plan that ``must_fit`` and does not is an error."""
    return [float(footprint.allocated_bytes) for footprint in footprints(plan, gpu, must_fit=must_fit)]


def footprints(plan: Plan, gpu: GpuDescription, *, must_fit: bool = True) -> list[MemoryFootprint]:
    """Memory of a GPU of each pipeline rank; a plan that ``must_fit`` and does not is an error."""
    found = [footprint_of(plan, rank) for rank in range(plan.pp)]
    if must_fit:
        for footprint in found:
            check_fits(footprint, gpu.number("memory_bytes"), file=plan.file)
    return found


def footprint_of(plan: Plan, rank: int) -> MemoryFootprint:
    """Memory of a GPU of one pipeline rank."""
    w = plan.workload
    return memory_footprint(
        w.model,
        implementation_of(plan),
        w.micro_batch_size,
        w.sequence_length,
        layers=[plan.parallelism.stage_layers[s] for s in plan.stages_of_rank(rank)],
        stage=rank,
        stages=plan.pp,
        micro_batches=plan.microbatches,
        schedule=plan.schedule.name,
        shards=state_shards(plan),
        communicators=_communicators(plan),
        dense_layers=[plan.stage_models(s)[0][1] for s in plan.stages_of_rank(rank)],
        forwards=_forwards_of_added_schedule(plan, rank),
    )


def _forwards_of_added_schedule(plan: Plan, rank: int) -> int | None:
    """Most forwards that a rank holds in a schedule that was added from outside; of the others a formula is known."""
    if plan.schedule.name in SHIPPED:
        return None
    order = build_schedule(plan.schedule.name, plan.pp, plan.microbatches, virtual_stages_per_rank=plan.vp)
    return peak_in_flight(order, rank)


def _communicators(plan: Plan) -> int:
    """Groups that a GPU communicates in."""
    sizes = [plan.tp, plan.cp, plan.pp, plan.replicas]
    if plan.workload.model.experts is not None:
        split = plan.parallelism
        sizes += [split.expert_model_parallel_size, split.expert_tensor_parallel_size, plan.expert_replicas]
    return sum(size > 1 for size in sizes)


def prepare(plan: Plan, gpu: GpuModel, *, governed: bool = True) -> Prepared:
    """Lower a plan's kernels and tabulate its instructions at every clock.

    Where not ``governed``, the tables are those of clocks that stand still, whatever clocks the plan sets.
    """
    program = plan_program(plan)
    limits = board_limits_w(plan, gpu)
    peaks = [limit * gpu["governor.peak_share"] for limit in limits]
    parts = dict(plan.power.component_limits_w)
    waits = wait_columns(gpu.clocks_mhz, parts, gpu)
    beside = [item.operator for rank in program.ranks for item in rank.behind]
    unlimited = kernels_of([rank.types for rank in program.ranks], gpu.clocks_mhz, gpu, others=beside)
    by_peak = {peak: under_limits(unlimited, gpu, peak, parts) for peak in dict.fromkeys(peaks)}
    kernels = tuple(by_peak[peak] for peak in peaks)
    transfer = np.zeros(len(program.ranks))
    if program.transfers:
        transfer = np.asarray(at_clock(lower(program.transfers, gpu), gpu.max_clock_mhz, gpu).time_s)
    if not governed or is_locked(plan):
        tables = _tables(program, kernels, gpu, peaks, None, governed)
        still = Prepared(program, kernels, *tables, limits, gpu, transfer, True, waits)
        if not governed or (_highest_power_w(still) <= settled_power_w(limits, gpu)).all():
            return still
    lag = lag_of(plan, gpu.clocks_mhz, gpu)
    tables = _tables(program, kernels, gpu, peaks, lag, governed)
    return Prepared(program, kernels, *tables, limits, gpu, transfer, False, waits)


def lag_of(plan: Plan, clocks_mhz: Array, gpu: GpuModel) -> Array:
    """How far the pace of a plan's groups stays behind their mean clock, at each mean clock [1]."""
    if plan.cluster.nodes == 1:
        return group_lag(clocks_mhz, plan.tp, plan.tp * plan.replicas, gpu)
    # The slowest of all GPUs slows its stage, and the slowest stage the pipeline.
    return group_lag(clocks_mhz, plan.tp, plan.cluster.gpus, gpu, plan.cluster.node_clock_spread)


def _tables(
    program: PlanProgram,
    kernels: Sequence[Kernels],
    gpu: GpuModel,
    peaks_w: Sequence[float],
    lag: Array | None,
    locked: bool,
) -> tuple[tuple[InstructionTable, ...], tuple[NDArray[np.int64], ...]]:
    """Tables and columns of every rank, with the plan's clocks where ``locked``."""
    tables, columns = [], []
    limits = dict(program.plan.power.component_limits_w)
    top = np.array(len(gpu.clocks_mhz) - 1)
    taken_s: dict[float, dict[tuple[Launch, ...], Array]] = {peak: {} for peak in peaks_w}
    for rank, (run, own, peak) in enumerate(zip(program.ranks, kernels, peaks_w, strict=True)):
        beside, launch = transfers_wait_on_sms(program.plan), launch_s(program.plan, gpu)
        table = instruction_table(run.types, own, gpu, lag, beside, taken_s[peak], launch)
        table = with_communication_behind(table, run.order, run.behind, own, gpu)
        highest = locked_index(program, rank, gpu.clocks_mhz) if locked else top
        if limits:
            table, ceiling = limited(table, gpu.clocks_mhz, limits, gpu)
            highest = np.minimum(highest, index_below(gpu.clocks_mhz, ceiling))
        columns.append(clock_columns(table, highest, peak))
        tables.append(at_columns(table, columns[-1]))
    return tuple(tables), tuple(columns)


def _highest_power_w(prepared: Prepared) -> Array:
    """Power of the most demanding instruction of each rank at its highest clock, shape ``(ranks,)`` [W]."""
    return np.array([mean_power_w(table)[:, -1].max() for table in prepared.tables])


def simulate(prepared: Prepared) -> tuple[FluidResult, int]:
    """Iterations back to back, and the first one that counts."""
    fluid = fluid_program(prepared)
    start, governor, length, tick = _start(prepared)
    warm_up = min(MOST_ITERATIONS // 2, max(1, round(WARM_UP_S / length)))
    iterations = warm_up + min(MOST_ITERATIONS // 2, max(1, round(WINDOW_S / length)))
    return simulate_fluid(fluid, governor, start, iterations=iterations, tick_s=tick), warm_up


def fluid_program(prepared: Prepared) -> FluidProgram:
    """What every rank executes in an iteration, and who waits for whom."""
    program = prepared.program
    durations = [table.duration_s for table in prepared.tables]
    powers = [mean_power_w(table) for table in prepared.tables]
    waits = [prepared.wait_power_w] * len(program.ranks)
    edges = program.schedule.edges
    delays = prepared.transfer_s[np.where(edges.backward, edges.target_rank, edges.source_rank)]
    fluid = make_fluid_program(program.schedule, [r.order for r in program.ranks], durations, powers, waits, delays)
    if program.plan.implementation.framework == "pytorch-eager":
        fluid = with_transfers_in_order(fluid, program.schedule, float(prepared.transfer_s.mean()))
    return fluid


def board_limits_w(plan: Plan, gpu: GpuModel) -> tuple[float, ...]:
    """Power limit of each GPU of every pipeline rank, the plan's or the board's own [W]."""
    stated = [plan.power.limit_w(rank) for rank in range(plan.pp)]
    return tuple(gpu.device["power_limit_w"] if limit is None else limit for limit in stated)


def _start(prepared: Prepared) -> tuple[list[int], Governor, float, float]:
    """Clocks to start from, what moves them, and the rough length of an iteration and a tick."""
    plan, gpu, clocks = prepared.program.plan, prepared.gpu, prepared.clocks_mhz
    index, length = [], 0.0
    for rank, table, limit in zip(prepared.program.ranks, prepared.tables, prepared.limits_w, strict=True):
        order = np.array(rank.order)
        time, energy = table.duration_s[order].sum(0), table.energy_j[order].sum(0)
        clock = settle_clock_mhz(clocks, (energy / time)[:, None], settled_power_w(limit, gpu), gpu.max_clock_mhz)
        index.append(int(np.searchsorted(clocks, clock[0] + 1e-6) - 1))
        length = max(length, float(time[index[-1]]))
    tick = max(min(TICK_S, length / TICKS_PER_ITERATION), length / MOST_TICKS)
    tops = [int(columns.max()) for columns in prepared.columns]
    if prepared.still:
        return tops, FixedClocks(tuple(tops)), length, length / TICKS_PER_ITERATION
    start = [min(i, top) for i, top in zip(index, tops, strict=True)]
    reached = [limit * group_limit_share(plan.tp, gpu) for limit in prepared.limits_w]
    return start, PowerGovernor(gpu, reached, tops, start, tick), length, tick


def step_time_s(result: FluidResult, first: int) -> float:
    """Mean time of the iterations that count [s]."""
    ends = result.iteration_end_s.max(axis=1)
    return float((ends[-1] - ends[first - 1]) / (len(ends) - first))


def _median(values: Array, weights: Array) -> float:
    """Value in the middle of weights, both of shape ``(n,)``, in ascending order of the values."""
    return float(values[np.searchsorted(weights.cumsum(), 0.5 * weights.sum())])


def _rank(prepared: Prepared, result: FluidResult, first: int, rank: int, memory: MemoryFootprint) -> RankForecast:
    plan, gpu, table = prepared.program.plan, prepared.gpu, prepared.tables[rank]
    clocks, names = prepared.clocks_mhz, prepared.program.ranks[rank].names
    waits_at = clocks[prepared.wait_columns]
    time, count = step_time_s(result, first), len(result.iteration_end_s) - first
    executed = result.executed[rank][first:].sum(0) / count
    waited = result.wait_s[rank][first:].sum(0) / count
    parts = np.einsum("tc,tcp->tp", executed, table.components_j)
    waiting = prepared.wait_power_w * waited
    by_component = dict(zip(COMPONENTS, parts.sum(0).tolist(), strict=True))
    tree = float((clock_tree_power_w(waits_at, gpu) * waited).sum())
    resting = float((idle_power_w(waits_at, gpu) * waited).sum())
    by_component["clock"] += tree
    by_component["static"] += resting - tree
    by_component["sm"] += float(waiting.sum()) - resting
    by_instruction = dict(zip(names, parts.sum(1).tolist(), strict=True)) | {"waiting": float(waiting.sum())}
    energy = float(sum(by_component.values()))
    busy = executed * table.duration_s
    spoken = float((executed * table.communication_s[..., 1]).sum())
    ends = result.iteration_end_s[:, rank]
    drift = time - float(ends[-1] - ends[first - 1]) / count
    return RankForecast(
        stage=rank,
        gpus=plan.tp * plan.replicas,
        power_w=energy / time,
        clock_mhz=_median(*spent_at_clocks(prepared, rank, busy, waited)),
        energy_j=energy,
        compute_s=float(busy.sum()) - spoken,
        exposed_communication_s=spoken,
        overlapped_communication_s=float((executed * table.communication_s[..., 0]).sum()),
        waiting_s=max(float(waited.sum()) + drift, 0.0),
        memory_bytes=float(memory.allocated_bytes),
        memory_by_part_bytes={name: float(value) for name, value in asdict(memory).items()},
        memory_margin_bytes=gpu.device["memory_bytes"] - float(memory.total_bytes),
        energy_by_component_j=by_component,
        energy_by_instruction_j=by_instruction,
        power_by_part_w={part: float(energy) / time for part, energy in by_part(by_component, gpu).items()},
    )
