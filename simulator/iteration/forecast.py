"""Forecasts a training iteration: instructions under the board's governor, in the steady state of a training loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.derivation_supplement import VENDOR_LONGER
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.memory.footprint import MemoryFootprint
from joulecast.model.power.component_power import by_part
from joulecast.model.power.kernel_power import COMPONENTS, clock_tree_power_w, idle_power_w
from joulecast.model.training.factors import LONGER
from joulecast.simulator.events.guards import reported_with
from joulecast.simulator.fluid.part_limits import check_parts, spent_at_clocks
from joulecast.simulator.fluid.power_over_time import power_of_iterations
from joulecast.simulator.fluid.prepared import Prepared, prepare
from joulecast.simulator.fluid.steady_state import SteadyState, simulate
from joulecast.simulator.instructions.clock_columns import is_locked
from joulecast.simulator.instructions.footprints import footprints
from joulecast.simulator.iteration.host_pace import SLOW_HOST_S, SLOW_MODULES_S, host_changes, launch_pace_s
from joulecast.simulator.iteration.ledger_guards import check_iteration
from joulecast.simulator.iteration.own_kernels import own_kernel_assumptions
from joulecast.simulator.iteration.plan_interval import interval, peak_ends
from joulecast.simulator.iteration.result import Iteration, RankForecast
from joulecast.simulator.plan_file.assumptions import plan_assumptions
from joulecast.simulator.plan_file.gpu import gpu_of, launch_s
from joulecast.simulator.plan_file.placement import ranks_in_step
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import GENERATION

#: A mean power so far above the limit is not held; boards that hold it stay below.
NOT_HELD = 1.01
#: Share of its limit from which on a board's clock is taken to move under the governor.
NEAR_LIMIT = 0.85
#: What every forecast takes for granted.
ASSUMPTIONS = (
    "training data toggles bits like random-normal values",
    "replicas and tensor-parallel ranks behave alike; one GPU of each pipeline stage is simulated",
)


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
    steady = simulate(prepared)
    ranks = tuple(_rank(steady, r, memory[r]) for r in range(plan.pp))
    time = steady.step_time_s
    energy = sum(rank.energy_j * rank.gpus for rank in ranks)
    generated = max(rank.time_by_instruction_s.get(GENERATION, 0.0) for rank in ranks)
    host = host_changes(steady, energy)
    low_high = interval(steady, description, host, energy / time / plan.cluster.gpus)
    over_time = power_of_iterations(steady)
    iteration = Iteration(
        time_s=time,
        energy_j=energy,
        power_w=energy / time,
        clock_mhz=float(np.mean([r.clock_mhz for r in ranks])),
        time_s_p05=time * low_high.time[0],
        time_s_p95=time * low_high.time[1],
        energy_j_p05=energy * low_high.energy[0],
        energy_j_p95=energy * low_high.energy[1],
        power_w_p05=energy / time * low_high.power[0],
        power_w_p95=energy / time * low_high.power[1],
        tokens=plan.tokens,
        ranks=ranks,
        plan=plan,
        power_over_time=over_time,
        peak_ends=peak_ends(steady, description, float(over_time.power_w.max()), low_high.demand),
        assumptions=(
            *ASSUMPTIONS,
            *_framework_assumptions(prepared, time - generated, 0.0 if host is None else float(host.time[1, 0])),
            *plan_assumptions(plan, description),
            *own_kernel_assumptions(prepared.kernels[0].operators, description),
            *_memory_assumptions(memory, description),
            *_limit_assumptions(ranks, prepared.power_limits_w),
            *_lock_assumptions(plan, ranks, prepared.power_limits_w),
        ),
        description=description,
    )
    check_iteration(iteration, steady)
    check_parts(steady)
    return iteration


def _framework_assumptions(prepared: Prepared, time_s: float, slow_host: float) -> list[str]:
    """What is taken for granted of the framework, and of the host that launches its kernels.

    ``slow_host`` is the logarithm of how much longer a slow host makes the iteration; 0 where that is negligible.
    """
    plan, gpu = prepared.program.plan, prepared.gpu
    if (one := launch_s(plan, gpu)) > 0:
        what = "a module" if plan.implementation.framework == "megatron" else "a kernel"
        said = [f"{what} takes the host {1e6 * one:.0f} us to launch; the GPU waits where what it launches is shorter"]
        if slow_host > 0 and plan.implementation.host_launch_us is None:
            said.append(
                f"in layers of experts the GPU waits for it: with a host that needs {1e6 * SLOW_MODULES_S:.0f} us, the "
                f"slowest seen, the iteration takes {100 * math.expm1(slow_host):.0f} % longer; implementation."
                "host_launch_us states yours, implementation.cuda_graphs that graphs replay its launches"
            )
    elif plan.implementation.cuda_graphs:
        said = ["launches are replayed as graphs: no kernel waits for the host"]
    else:
        pace = 1e6 * launch_pace_s(prepared, time_s)
        said = [f"the host launches kernels faster than the GPU runs them, here one every {pace:.0f} us"]
        if slow_host > 0:
            said.append(
                f"with a host that needs {1e6 * SLOW_HOST_S:.0f} us for each, the slowest seen, the iteration takes "
                f"{100 * math.expm1(slow_host):.0f} % longer; joulecast doctor --host measures yours, for "
                "implementation.host_launch_us"
            )
    if gpu.get(f"kernel.{LONGER}", 0.0) > 0:
        named = "a generation of Megatron named as implementation.generation narrows it"
        said.append(f"what runs the plan may be any framework, which the interval of the time allows for; {named}")
    if gpu.get(f"kernel.{VENDOR_LONGER}", 0.0) > 0:
        said.append(
            "how far the GPU's software is tuned for training is not known, which the interval of the time allows for"
        )
    return said


def _memory_assumptions(memory: Sequence[MemoryFootprint], description: GpuDescription) -> tuple[str, ...]:
    """What it means where PyTorch's allocator would reserve more than a GPU has."""
    most = max(one.total_bytes + one.cached for one in memory)
    capacity = description.number("memory_bytes")
    if most <= capacity or max(one.cached for one in memory) == 0.0:
        return ()
    return (
        f"with what PyTorch's allocator would reserve a GPU holds {most / 1e9:.1f} GB, more than its "
        f"{capacity / 1e9:.1f}: the allocator gives memory back in each iteration, whose time is not forecast",
    )


def _limit_assumptions(ranks: Sequence[RankForecast], limits_w: Sequence[float]) -> tuple[str, ...]:
    """Where a board cannot hold its limit, since the work draws more at its lowest clock too."""
    rank, limit = max(zip(ranks, limits_w, strict=True), key=lambda one: one[0].power_w / one[1])
    if rank.power_w <= NOT_HELD * limit:
        return ()
    drawn = f"a GPU of stage {rank.stage} draws {rank.power_w:.0f} W at {rank.clock_mhz:.0f} MHz"
    return (f"the power limit leaves a GPU {limit:.0f} W, which no clock holds with this work: {drawn}",)


def _lock_assumptions(plan: Plan, ranks: Sequence[RankForecast], limits_w: Sequence[float]) -> tuple[str, ...]:
    """That locked boards near their limit keep in step, where many wait for each other."""
    near = any(rank.power_w > NEAR_LIMIT * limit for rank, limit in zip(ranks, limits_w, strict=True))
    if not near or not is_locked(plan) or ranks_in_step(plan) == 1:
        return ()
    return (
        "boards at a locked clock keep in step, which saves what GPUs that wait for each other lose where each board's "
        "governor moves its own clock near the limit; nobody measured how much",
    )


def _median(values: Array, weights: Array) -> float:
    """Weighted median of ascending values; both of shape ``(n,)``."""
    return float(values[np.searchsorted(weights.cumsum(), 0.5 * weights.sum())])


def _rank(steady: SteadyState, rank: int, memory: MemoryFootprint) -> RankForecast:
    """What one GPU of a pipeline rank does and draws, as a mean over the iterations that count."""
    prepared = steady.prepared
    plan, gpu, table = prepared.program.plan, prepared.gpu, prepared.tables[rank]
    names = prepared.program.ranks[rank].names
    time, iterations = steady.step_time_s, steady.iterations
    executed, waited = steady.executed(rank) / iterations, steady.waited_s(rank) / iterations
    parts = np.einsum("tc,tcp->tp", executed, table.components_j)
    waiting = float((prepared.wait_power_w * waited).sum())
    by_component = dict(zip(COMPONENTS, parts.sum(0).tolist(), strict=True))
    for name, more in _waiting_by_component_j(prepared, waited, waiting).items():
        by_component[name] += more
    by_instruction = dict(zip(names, parts.sum(1).tolist(), strict=True)) | {"waiting": waiting}
    energy = float(sum(by_component.values()))
    busy = executed * table.duration_s
    overlapped, exposed, lagging = np.einsum("tc,tcp->p", executed, table.communication_s).tolist()
    ends = steady.result.iteration_end_s[:, rank]
    drift = time - float(ends[-1] - ends[steady.warm_up - 1]) / iterations
    waited_s = max(float(waited.sum()) + drift, 0.0)
    return RankForecast(
        stage=rank,
        gpus=plan.tp * plan.replicas,
        power_w=energy / time,
        clock_mhz=_median(*spent_at_clocks(prepared, rank, busy, waited)),
        energy_j=energy,
        compute_s=float(busy.sum()) - exposed,
        exposed_communication_s=exposed,
        group_waiting_s=lagging,
        overlapped_communication_s=overlapped,
        waiting_s=waited_s,
        memory_bytes=float(memory.allocated_bytes),
        memory_reserved_bytes=float(memory.reserved_bytes),
        memory_by_part_bytes={name: float(value) for name, value in asdict(memory).items() if name != "cached"},
        memory_margin_bytes=gpu.device["memory_bytes"] - float(memory.total_bytes),
        energy_by_component_j=by_component,
        energy_by_instruction_j=by_instruction,
        time_by_instruction_s=dict(zip(names, busy.sum(1).tolist(), strict=True)) | {"waiting": waited_s},
        power_by_part_w={part: float(energy) / time for part, energy in by_part(by_component, gpu).items()},
    )


def _waiting_by_component_j(prepared: Prepared, waited_s: Array, waiting_j: float) -> dict[str, float]:
    """What a GPU draws while it waits, by component: that of a resting one, and of SMs that wait beside [J]."""
    gpu, clocks = prepared.gpu, prepared.clocks_mhz[prepared.wait_columns]
    tree = float((clock_tree_power_w(clocks, gpu) * waited_s).sum())
    resting = float((idle_power_w(clocks, gpu) * waited_s).sum())
    return {"clock": tree, "static": resting - tree, "sm": waiting_j - resting}
