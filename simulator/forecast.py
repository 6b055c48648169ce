"""Forecasts a training iteration: instructions under the board's governor, in the steady state of a training loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.model.catalogue import load_gpu
from joulecast.model.description import GpuDescription
from joulecast.model.governor import settle_clock_mhz, settled_power_w
from joulecast.model.gpu_model import GpuModel, gpu_model
from joulecast.model.lowering import lower
from joulecast.model.memory_footprint import check_fits, memory_footprint
from joulecast.model.power import COMPONENTS, at_clock, idle_power_w, wait_power_w
from joulecast.simulator.fluid import FixedClocks, FluidResult, Governor, make_fluid_program, simulate_fluid
from joulecast.simulator.governor import PowerGovernor
from joulecast.simulator.iteration import Iteration, RankForecast
from joulecast.simulator.plan import Plan
from joulecast.simulator.program import PlanProgram, implementation_of, plan_program
from joulecast.simulator.tables import InstructionTable, Kernels, instruction_table, kernels_of
from joulecast.simulator.uncertainty import interval

Array = NDArray[np.float64]

#: Length of a governor's tick [s], and ticks of a short iteration.
TICK_S, TICKS_PER_ITERATION = 10e-3, 60
#: Simulated time before the iterations that count, so that the loops have settled [s].
WARM_UP_S = 2.0
#: Time over which iterations are averaged [s].
WINDOW_S = 2.0
#: Most iterations simulated; an iteration of many seconds settles within itself.
MOST_ITERATIONS = 12


@dataclass(frozen=True, eq=False)
class Prepared:
    """A plan with its tables, ready to be simulated."""

    program: PlanProgram
    kernels: Kernels
    tables: tuple[InstructionTable, ...]
    gpu: GpuModel
    transfer_s: float


def forecast(plan: Plan, gpu: GpuDescription | None = None) -> Iteration:
    """Time, power and energy of one iteration of a training loop.

    Parameters
    ----------
    plan
        What runs where.
    gpu
        Description to use in place of the plan's own.

    Raises
    ------
    DoesNotFitError
        The plan needs more memory than a GPU has.
    """
    description = gpu if gpu is not None else load_gpu(plan.cluster.gpu)
    memory = memory_per_rank(plan, description)
    prepared = prepare(plan, gpu_model(description))
    result, first = simulate(prepared)
    ranks = tuple(_rank(prepared, result, first, r, memory[r]) for r in range(plan.pp))
    time = _time_s(result, first)
    energy = sum(rank.energy_j * rank.gpus for rank in ranks)
    low_high = interval(prepared, description, result, first)
    w = plan.workload
    return Iteration(
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
        assumptions=ASSUMPTIONS,
    )


#: What every forecast takes for granted.
ASSUMPTIONS = (
    "training data toggles bits like random-normal values",
    "the host launches kernels faster than the GPU runs them",
    "replicas and tensor-parallel ranks behave alike; one GPU of each pipeline stage is simulated",
)


def memory_per_rank(plan: Plan, gpu: GpuDescription) -> list[float]:
    """Peak memory of a GPU of each pipeline rank [bytes]; a plan that does not fit is an error."""
    w, found = plan.workload, []
    for rank in range(plan.pp):
        stages = plan.stages_of_rank(rank)
        footprint = memory_footprint(
            w.model,
            implementation_of(plan),
            w.micro_batch_size,
            w.sequence_length,
            layers=[plan.parallelism.stage_layers[s] for s in stages],
            stage=rank,
            stages=plan.pp,
            micro_batches=plan.microbatches,
            schedule=plan.schedule.name,
            data_parallel=plan.dp,
        )
        check_fits(footprint, gpu.number("memory_bytes"))
        found.append(float(footprint.allocated_bytes))
    return found


def prepare(plan: Plan, gpu: GpuModel) -> Prepared:
    """Lower a plan's kernels and tabulate its instructions at every clock."""
    program = plan_program(plan)
    kernels = kernels_of([rank.types for rank in program.ranks], gpu.clocks_mhz, gpu)
    tables = tuple(instruction_table(rank.types, kernels, gpu) for rank in program.ranks)
    transfer = 0.0
    if program.transfer is not None:
        transfer = float(at_clock(lower([program.transfer], gpu), gpu.max_clock_mhz, gpu).time_s[0])
    return Prepared(program, kernels, tables, gpu, transfer)


def simulate(prepared: Prepared) -> tuple[FluidResult, int]:
    """Iterations back to back, and the first one that counts."""
    program, gpu = prepared.program, prepared.gpu
    durations, powers = _limited_tables(prepared)
    waits = [np.asarray(wait_power_w(prepared.kernels.clocks_mhz, gpu))] * len(program.ranks)
    fluid = make_fluid_program(
        program.schedule, [r.order for r in program.ranks], durations, powers, waits, prepared.transfer_s
    )
    start, governor, length, tick = _start(prepared)
    warm_up = min(MOST_ITERATIONS // 2, max(1, round(WARM_UP_S / length)))
    iterations = warm_up + min(MOST_ITERATIONS // 2, max(1, round(WINDOW_S / length)))
    return simulate_fluid(fluid, governor, start, iterations=iterations, tick_s=tick), warm_up


def _limited_tables(prepared: Prepared) -> tuple[list[Array], list[Array]]:
    """Durations and powers with the board's instant limit: above it the clock is skipped, whatever was asked for."""
    gpu = prepared.gpu
    peak = _limit_w(prepared) * gpu["governor.peak_share"]
    durations, powers = [], []
    for table in prepared.tables:
        power = table.energy_j / table.duration_s
        allowed = np.maximum((power <= peak).sum(axis=1) - 1, 0)
        column = np.minimum(np.arange(power.shape[1]), allowed[:, None])
        durations.append(np.take_along_axis(table.duration_s, column, 1))
        powers.append(np.take_along_axis(power, column, 1))
    return durations, powers


def _limit_w(prepared: Prepared) -> float:
    stated = prepared.program.plan.power.power_limit_w
    return prepared.gpu.device["power_limit_w"] if stated is None else stated


def _start(prepared: Prepared) -> tuple[list[int], Governor, float, float]:
    """Clocks to start from, what moves them, and the rough length of an iteration and a tick."""
    plan, gpu, clocks = prepared.program.plan, prepared.gpu, prepared.kernels.clocks_mhz
    limit = _limit_w(prepared)
    index, length = [], 0.0
    for rank, table in zip(prepared.program.ranks, prepared.tables, strict=True):
        order = np.array(rank.order)
        time, energy = table.duration_s[order].sum(0), table.energy_j[order].sum(0)
        clock = settle_clock_mhz(clocks, (energy / time)[:, None], settled_power_w(limit, gpu), gpu.max_clock_mhz)
        index.append(int(np.searchsorted(clocks, clock[0] + 1e-6) - 1))
        length = max(length, float(time[index[-1]]))
    tick = min(TICK_S, length / TICKS_PER_ITERATION)
    locked = plan.power.clock_mhz()
    if locked is not None:
        chosen = [int(np.searchsorted(clocks, plan.power.clock_mhz(r) or locked)) for r in range(plan.pp)]
        return chosen, FixedClocks(tuple(chosen)), length, tick
    return index, PowerGovernor(gpu, limit, len(clocks), index, tick), length, tick


def _time_s(result: FluidResult, first: int) -> float:
    """Mean time of the iterations that count [s]."""
    ends = result.iteration_end_s.max(axis=1)
    return float((ends[-1] - ends[first - 1]) / (len(ends) - first))


def _rank(prepared: Prepared, result: FluidResult, first: int, rank: int, memory: float) -> RankForecast:
    plan, gpu, table = prepared.program.plan, prepared.gpu, prepared.tables[rank]
    count = len(result.iteration_end_s) - first
    executed = result.executed[rank][first:].sum(0) / count
    waited = result.wait_s[rank][first:].sum(0) / count
    clocks = prepared.kernels.clocks_mhz
    parts = np.einsum("tc,tcp->tp", executed, table.components_j)
    names = prepared.program.ranks[rank].names
    by_component = dict(zip(COMPONENTS, parts.sum(0).tolist(), strict=True))
    waiting = wait_power_w(clocks, gpu) * waited
    resting = idle_power_w(clocks, gpu) * waited
    by_component["static"] += float(resting.sum())
    by_component["sm"] += float((waiting - resting).sum())
    by_instruction = dict(zip(names, parts.sum(1).tolist(), strict=True)) | {"waiting": float(waiting.sum())}
    energy = float(sum(by_component.values()))
    spoken = float((executed * table.communication_s[..., 1]).sum())
    ticks = result.clock_index[int(result.iteration_end_s[first - 1].max() / result.tick_s) :, rank]
    return RankForecast(
        stage=rank,
        gpus=plan.tp * plan.dp,
        power_w=energy / _time_s(result, first),
        clock_mhz=float(np.median(clocks[ticks])) if len(ticks) else float(clocks[-1]),
        energy_j=energy,
        compute_s=float((executed * table.duration_s).sum()) - spoken,
        exposed_communication_s=spoken,
        waiting_s=float(waited.sum()),
        memory_bytes=memory,
        energy_by_component_j=by_component,
        energy_by_instruction_j=by_instruction,
    )
