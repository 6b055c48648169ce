"""Reports as the commands write them; where more is found for one, by a function for its kind of result."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.command_line.output import progress, working
from joulecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulecast.model.hardware.description import GpuDescription
    from joulecast.plan.exact.front import Front
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
    write_report(predict_page(iteration, front, no_front=why), path)


def report_of_front(front: Front, path: Path, *, plan: Plan | None, about: str, time_limit_s: float | None) -> None:
    """Write the report of a front; with a plan also of how it is forecast as it stands."""
    from joulecast.reports.pages.front import front_page

    iteration = None
    if plan is not None:
        from joulecast.simulator.iteration.forecast import forecast

        iteration = forecast(plan)
        about = f"{plan.workload.model_name} on {plan.cluster.gpus} × {plan.cluster.gpu}"
    write_report(front_page(front, about, iteration=iteration, time_limit_s=time_limit_s), path)


def report_of_validation(report: Mapping[str, Any], rows: Rows, summary: Rows, path: Path) -> None:
    """Write the report of a validation, from what ``validate`` prints."""
    from joulecast.reports.pages.validate import validate_page

    write_report(validate_page(report, rows, summary, _description(report.get("gpu"))), path)


def write_report(page: Page, path: Path) -> None:
    """Write a page, and say so."""
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
