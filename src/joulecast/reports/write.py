"""Reports as the commands write them: one function for each kind of result."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.command_line.output import progress, working
from joulecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulecast.calibrate.descriptions.describe import RowsFit
    from joulecast.model.hardware.description import GpuDescription
    from joulecast.plan.comparison.compare import Comparison
    from joulecast.plan.exact.front import Front
    from joulecast.plan.limits.power_limits import JobPoint
    from joulecast.plan.limits.rank_limits import RankLimitFront
    from joulecast.plan.sweep.result import SweepResult
    from joulecast.plan.sweep.space import Space
    from joulecast.reports.html import Rows
    from joulecast.reports.page import Page
    from joulecast.simulator.iteration.result import Iteration
    from joulecast.simulator.plan_file.plan import Plan

#: Instructions above which a forecast's report leaves the front out: finding it takes longer than a reader waits.
MOST_INSTRUCTIONS = 1100
#: The same where no numba is installed: a few seconds.
MOST_IN_PLAIN_PYTHON = 100


def report_of_iteration(iteration: Iteration, path: Path) -> None:
    """Write the report of a forecast, with the front of its plan."""
    from joulecast.reports.pages.predict import predict_page

    front, why = _front(iteration)
    _write(predict_page(iteration, front, no_front=why), path)


def report_of_front(
    front: Front, path: Path, *, plan: Plan | None = None, about: str = "", time_limit_s: float | None = None
) -> None:
    """Write the report of a front; with a plan also of how it is forecast as it stands."""
    from joulecast.reports.pages.front import front_page

    iteration = None
    if plan is not None:
        from joulecast.simulator.iteration.forecast import forecast

        iteration = forecast(plan)
        about = f"{plan.workload.model_name} on {plan.cluster.gpus} × {plan.cluster.gpu}"
    _write(front_page(front, about, iteration=iteration, time_limit_s=time_limit_s), path)


def report_of_limits(
    points: Sequence[JobPoint], found: Mapping[str, Any], path: Path, *, plan: Plan | None = None
) -> None:
    """Write the report of one power limit for a whole job, from what ``front --power-limits`` found."""
    from joulecast.reports.pages.limits import limits_page

    _write(limits_page(points, found, plan), path)


def report_of_rank_limits(front: RankLimitFront, path: Path, *, plan: Plan, eta: float | None = None) -> None:
    """Write the report of power limits of ranks."""
    from joulecast.reports.pages.limits import rank_limits_page

    _write(rank_limits_page(front, plan, eta), path)


def report_of_comparison(found: Comparison, path: Path) -> None:
    """Write the report of a comparison of plans."""
    from joulecast.reports.pages.compare import compare_page

    _write(compare_page(found), path)


def report_of_validation(report: Mapping[str, Any], rows: Rows, summary: Rows, path: Path) -> None:
    """Write the report of a validation, from what ``validate`` prints."""
    from joulecast.reports.pages.validate import validate_page

    _write(validate_page(report, rows, summary, _description(report.get("gpu"))), path)


def report_of_fit(fit: RowsFit, path: Path) -> None:
    """Write the report of a calibration."""
    from joulecast.reports.pages.calibrate import calibrate_page

    _write(calibrate_page(fit), path)


def report_of_sweep(result: SweepResult, lines: Rows, of_each: Rows, space: Space, path: Path) -> None:
    """Write the report of a sweep; ``lines`` and ``of_each`` are the tables of the command."""
    from joulecast.reports.pages.sweep import sweep_page

    _write(sweep_page(result, lines, of_each, space), path)


def _write(page: Page, path: Path) -> None:
    page.write(path)
    progress(f"wrote {path}")


def _front(iteration: Iteration) -> tuple[Front | None, str]:
    """The front of a forecast's plan, or why there is none."""
    plan = iteration.plan
    count = plan.pp * plan.vp * plan.microbatches * 2
    compiled = find_spec("numba") is not None
    if count > (MOST_INSTRUCTIONS if compiled else MOST_IN_PLAIN_PYTHON):
        slow = "" if compiled else ", which take long without numba"
        return None, f"it has {count} instructions{slow}; joulecast front PLAN.toml --report shows them."
    from joulecast.plan.fronts.forecast_front import forecast_front

    try:
        with working("finding plans of less energy"):
            return forecast_front(plan, iteration.description), ""
    except InputError as error:
        return None, f"{error.message}."


def _description(name: object) -> GpuDescription | None:
    """The catalogue's description of a GPU; a suite may be of a GPU, or a protocol, that no description made."""
    from joulecast.model.hardware.catalogue import load_gpu

    try:
        return load_gpu(str(name)) if name else None
    except InputError:
        return None
