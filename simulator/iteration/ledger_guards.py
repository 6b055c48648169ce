"""Conservation laws of a forecast's ledger; a breach is a defect of Joulecast and names the stage."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from joulecast.arrays import Array
from joulecast.errors import GuardError
from joulecast.simulator.fluid.simulation import FluidResult
from joulecast.simulator.fluid.steady_state import SteadyState
from joulecast.simulator.iteration.result import Iteration, RankForecast

#: Relative tolerance of sums that must be equal.
TOLERANCE = 1e-9
#: A stage's own iteration may differ by this share from the plan's while the governor still moves its clock.
DRIFT = 0.02


def check_iteration(iteration: Iteration, steady: SteadyState) -> None:
    """Hold a forecast against the simulation that it came from.

    Raises
    ------
    GuardError
        Energy is not the integral of power over time, splits of a stage's energy disagree, or its time does not add up.
    """
    simulated_j, wait_power_w = steady.energy_j(), steady.prepared.wait_power_w
    for rank in iteration.ranks:
        _check_ledger(rank, float(simulated_j[rank.stage]))
        _check_power(rank.stage, steady.result, wait_power_w)
        _check_time(rank, iteration.time_s)
    _equal("all stages", "energy", iteration.energy_j, [r.energy_j * r.gpus for r in iteration.ranks])
    _equal("all stages", "power over the iteration", iteration.energy_j, [iteration.power_w * iteration.time_s])


def _check_ledger(rank: RankForecast, simulated_j: float) -> None:
    who = f"stage {rank.stage}"
    _equal(who, "energy by component", rank.energy_j, rank.energy_by_component_j.values())
    _equal(who, "energy by instruction", rank.energy_j, rank.energy_by_instruction_j.values())
    _equal(who, "simulated energy", rank.energy_j, [simulated_j])


def _check_power(stage: int, result: FluidResult, wait_power_w: Array) -> None:
    """Power over the governor's ticks, against energy by iteration and the waiting after a rank's last one."""
    edges = np.arange(len(result.power_w) + 1) * result.tick_s
    after = np.maximum(edges[1:] - np.maximum(edges[:-1], result.iteration_end_s[-1, stage]), 0.0)
    waited = float(after @ wait_power_w[result.clock_index[:, stage]])
    integral = float(result.power_w[:, stage].sum()) * result.tick_s
    _equal(f"stage {stage}", "power over time", integral, [float(result.energy_j[:, stage].sum()), waited])


def _check_time(rank: RankForecast, time_s: float) -> None:
    parts = (rank.compute_s, rank.exposed_communication_s, rank.waiting_s)
    total = sum(parts)
    allowed = TOLERANCE if rank.waiting_s > 0.0 else DRIFT
    if not abs(total - time_s) <= allowed * time_s or min(parts) < -TOLERANCE * time_s:
        raise GuardError(f"stage {rank.stage}: parts of {parts!r} s in an iteration of {time_s!r} s")


def _equal(who: str, what: str, whole: float, parts: Iterable[float]) -> None:
    total = sum(parts)
    if not abs(total - whole) <= TOLERANCE * max(abs(total), abs(whole)):
        raise GuardError(f"{who}: {what} adds up to {total!r} instead of {whole!r}")
