"""What ``joulecast front`` tells beside a front: plans while something is slow, and one power limit for a whole job."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from joulecast.command_line.front_asked import FrontAsked
    from joulecast.plan.exact.front import Front
    from joulecast.plan.exact.problem import FrontProblem
    from joulecast.plan.fronts.stragglers import StragglerRow
    from joulecast.plan.limits.power_limits import JobPoint


def straggler_report(front: Front, times_s: Sequence[float]) -> list[dict[str, Any]]:
    """The plan for each iteration time, with what it saves."""
    from joulecast.plan.fronts.stragglers import straggler_table

    return [_with_plan(front, row) for row in straggler_table(front, times_s)]


def slow_rank_report(front: Front, text: str, solve: Callable[[FrontProblem], Front]) -> tuple[Front, dict[str, Any]]:
    """The front of the pipeline with a slow rank, and what planning saves there and in its replicas."""
    from joulecast.plan.fronts.stragglers import parse_slow_rank, throttled

    result = throttled(front, parse_slow_rank(text), solve)
    report = result.to_dict()
    report["own"] = _with_plan(result.slowed, result.own)
    report["replica"] = _with_plan(result.healthy, result.replica)
    return result.slowed, report


def _with_plan(front: Front, row: StragglerRow) -> dict[str, Any]:
    return row.to_dict() | {"plan": front.clocks_mhz(row.point)}


def power_limit_report(asked: FrontAsked) -> tuple[tuple[JobPoint, ...], dict[str, Any]]:
    """Points at every power limit (and batch size), and their front with the best point of every weight.

    Raises
    ------
    InputError
        Neither a plan nor measurements, measurements of several jobs without the name of one, or no batch size that
        reaches the target.
    """
    from joulecast.plan.limits import power_limits as pl
    from joulecast.plan.limits.power_limits_read import mean_epochs, read_epochs

    epochs = None if asked.epochs is None else mean_epochs(read_epochs(asked.epochs))
    is_forecast = asked.plan is not None
    job, gpus, points = _forecast(asked, epochs) if is_forecast else _measured(asked)
    points, above = _within_site(points)
    left_out: tuple[int, ...] = ()
    if epochs is not None:
        points, left_out = pl.to_target(points, epochs)
        if is_forecast:  # at those that reach it alone
            left_out = tuple(size for size, count in epochs.items() if not math.isfinite(count))
        if not points:
            remedy = "Give epochs of at least one of them."
            raise InputError("no batch size reaches the target", file=str(asked.epochs), key="--epochs", remedy=remedy)
    power = pl.max_power_w(points, gpus)
    of = "training to the target" if epochs is not None else "an iteration" if is_forecast else "a measurement"
    report: dict[str, Any] = {
        "job": job,
        "of": of,
        "max_power_w": power,
        "front": [p.to_dict() for p in pl.limit_front(points)],
        "by_weight": [
            {"eta_from": c.eta_from, "eta_to": c.eta_to, **c.point.to_dict()}
            for c in pl.choices_by_weight(points, power)
        ],
        "never_reach_the_target": list(left_out),
        "site_limits": list(above),
        "notes": list(_notes(asked, points)) if is_forecast else [],
    }
    if asked.eta is not None:
        chosen = pl.choose(points, asked.eta, power)
        report["choice"] = {"eta": asked.eta, "cost_j": chosen.cost_j(asked.eta, power), **chosen.to_dict()}
    return points, report


def _notes(asked: FrontAsked, points: Sequence[JobPoint]) -> tuple[str, ...]:
    """What forecasts at these limits take for granted beyond what they do at the default one."""
    from joulecast.simulator.plan_file.gpu import gpu_of
    from joulecast.simulator.plan_file.power import limit_assumptions

    return limit_assumptions(gpu_of(asked.loaded_plan()), [point.power_limit_w for point in points])


def _within_site(points: Sequence[JobPoint]) -> tuple[tuple[JobPoint, ...], tuple[str, ...]]:
    """Points that keep the power limits of their site, and what is said of the others."""
    from joulecast.plan.exact.site_limits import left_out, nothing_kept

    checks = [point.checks for point in points]
    kept = tuple(point for point in points if point.kept)
    if points and not kept:
        raise nothing_kept(checks, "Add lower ones to --power-limits")
    return kept, left_out(checks, "power limit")


def _forecast(asked: FrontAsked, epochs: Mapping[int, float] | None) -> tuple[str, int, tuple[JobPoint, ...]]:
    """Name, GPUs and points of a plan: of an iteration, or of an epoch at each batch size with known epochs."""
    from dataclasses import replace

    from joulecast.plan.limits.power_limits import forecast_limits

    limits = None if asked.power_limits is None else watts(asked.power_limits)
    plan = asked.loaded_plan()
    name, gpus = plan.workload.model_name, plan.cluster.gpus
    if epochs is None:
        return name, gpus, forecast_limits(plan, limits)
    if asked.samples is None:
        raise InputError("the number of samples is missing", key="--samples", remedy="Say how many an epoch has.")
    points: list[JobPoint] = []
    for size in (size for size, count in epochs.items() if math.isfinite(count)):
        steps = math.ceil(asked.samples / size)
        sized = forecast_limits(asked.loaded_plan((f"workload.global_batch_size={size}",)), limits)
        points += [replace(p, time_s=steps * p.time_s, energy_j=steps * p.energy_j) for p in sized]
    return name, gpus, tuple(points)


def _measured(asked: FrontAsked) -> tuple[str, int, tuple[JobPoint, ...]]:
    """Name, GPUs and points of a measured job."""
    from joulecast.plan.limits.power_limits_read import read_job_points

    if asked.power_limits is None:
        raise InputError(
            "a plan is missing", remedy="Power limits are of a PLAN.toml, or measured: --power-limits FILE.csv."
        )
    jobs = read_job_points(asked.power_limits)
    if asked.job is None and len(jobs) > 1:
        raise InputError(
            f"measurements of {len(jobs)} jobs",
            file=asked.power_limits,
            key="--job",
            remedy=f"Name one: {', '.join(jobs)}.",
        )
    name = asked.job if asked.job is not None else next(iter(jobs))
    if name not in jobs:
        raise UnknownNameError("job", name, jobs, file=asked.power_limits, key="--job")
    return name, asked.gpus or 1, jobs[name]


def watts(text: str) -> list[float]:
    """Watts that are separated by commas, each once."""
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise InputError(
            f"{text!r} is no list of watts", key="--power-limits", remedy="With a plan, write it as 700,600,500."
        ) from None
