"""The answers of ``joulecast front``, one for each kind of front: printed, written to files, and as reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.command_line import front_lines, output
from joulecast.command_line.front_asked import JOB_LIMITS, RANK_LIMITS, ZEUS_LIMITS, ZEUS_PFO, FrontAsked
from joulecast.errors import InputError

if TYPE_CHECKING:
    from joulecast.command_line.output import Rows
    from joulecast.plan.exact.front import Front
    from joulecast.plan.knobs.front_space import FrontSpace
    from joulecast.plan.limits.power_limits import JobPoint
    from joulecast.plan.limits.rank_limits import RankLimitFront


def answer(asked: FrontAsked) -> Instructions | JobLimits | RankLimitsFound:
    """Find the front that is asked for.

    Raises
    ------
    InputError
        The options or their files cannot be used, or there is no such plan.
    """
    space = asked.loaded_space()
    kind = asked.kind(space)
    if kind == RANK_LIMITS:
        return _rank_limits(asked, space)
    if kind == JOB_LIMITS:
        from joulecast.command_line.front_reports import power_limit_report

        with output.working("forecasting power limits"):
            return JobLimits(asked, *power_limit_report(asked))
    return _instructions(asked, space)


@dataclass(frozen=True, eq=False)
class Instructions:
    """Plans with a choice for every instruction; ``extra`` is what was asked of slow ones beside them."""

    asked: FrontAsked
    made: Front
    extra: dict[str, Any]

    def rows(self) -> Rows:
        """One line for each plan."""
        return self.made.rows()

    def print_json(self) -> None:
        """Print every plan."""
        front_lines.print_front(self.made, self.extra)

    def print(self) -> None:
        """Print some of the plans."""
        front_lines.print_table(self.made)
        front_lines.print_slow_ones(self.extra)

    def write(self, path: Path, form: str) -> None:
        """Write it in a format of :mod:`joulecast.plan.exact.exports`.

        JSON has what was asked of slow ones as well; beside the others, which have no place for it, it is printed.
        """
        if form == "json":
            _write_json(path, self.made.to_dict() | self.extra)
            return
        self.made.write(path, form)
        if not (self.asked.json or self.asked.csv):
            front_lines.print_slow_ones(self.extra)

    def report(self, path: Path) -> None:
        """Plans, bound, what each GPU does, and where the numbers come from."""
        from joulecast.reports.write import report_of_front

        asked = self.asked
        plan = None if asked.plan is None or asked.slow_rank is not None else asked.loaded_plan()
        about = Path(asked.profile or asked.plan or "").name
        report_of_front(self.made, path, plan=plan, about=about, time_limit_s=asked.time_limit)


@dataclass(frozen=True, eq=False)
class JobLimits:
    """One limit for a whole job, of which ``found`` tells the front and the best for every weight."""

    asked: FrontAsked
    points: tuple[JobPoint, ...]
    found: dict[str, Any]

    def rows(self) -> Rows:
        """One line for each limit and batch size."""
        return [point.to_dict() for point in self.points]

    def print_json(self) -> None:
        """Print all points, their front and choices."""
        output.print_json(self._plain())

    def print(self) -> None:
        """Print every limit and where it is best, or measurements as Zeus reads them."""
        if self.asked.form == ZEUS_LIMITS:
            from joulecast.plan.limits.power_limits import zeus_power_limits

            print(zeus_power_limits(self.points), end="")
        else:
            front_lines.print_power_limits(self.points, self.found)

    def write(self, path: Path, form: str) -> None:
        """Write all points; for Zeus, or as JSON, CSV or Parquet."""
        from joulecast.files import write_text
        from joulecast.plan.limits.power_limits import zeus_power_limits

        if form == ZEUS_LIMITS:
            write_text(path, zeus_power_limits(self.points))
        else:
            _write(path, form, self._plain(), [point.to_dict() for point in self.points])

    def report(self, path: Path) -> None:
        """Limits over time and energy, and the best of every weight."""
        from joulecast.reports.pages.limits import limits_page
        from joulecast.reports.write import write_report

        plan = None if self.asked.plan is None else self.asked.loaded_plan()
        write_report(limits_page(self.points, self.found, plan), path)

    def _plain(self) -> dict[str, Any]:
        return self.found | {"points": [point.to_dict() for point in self.points]}


@dataclass(frozen=True, eq=False)
class RankLimitsFound:
    """A limit for each pipeline rank; ``choice`` is the plan of the weight that was asked for."""

    asked: FrontAsked
    front: RankLimitFront
    choice: dict[str, Any] | None

    def rows(self) -> Rows:
        """One line for each rank of each plan."""
        return self.front.rows()

    def print_json(self) -> None:
        """Print every plan."""
        output.print_json(self._plain())

    def print(self) -> None:
        """Print some of the plans."""
        front_lines.print_rank_limits(self.front, self.choice)

    def write(self, path: Path, form: str) -> None:
        """Write it as JSON, CSV or Parquet."""
        _write(path, form, self._plain(), self.front.rows())

    def report(self, path: Path) -> None:
        """Plans beside those with one limit for all."""
        from joulecast.reports.pages.limits import rank_limits_page
        from joulecast.reports.write import write_report

        write_report(rank_limits_page(self.front, self.asked.loaded_plan(), self.asked.eta), path)

    def _plain(self) -> dict[str, Any]:
        return self.front.to_dict() | ({} if self.choice is None else {"choice": self.choice})


def _write(path: Path, form: str, plain: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    from joulecast.tables import write_rows

    if form not in ("json", "csv", "parquet"):
        raise InputError(
            f"{form} is no format of these power limits", key="--format", remedy="There are json, csv, parquet."
        )
    if form == "json":
        _write_json(path, output.plain(plain))
    else:
        write_rows(rows, path, form)


def _write_json(path: Path, plain: Any) -> None:
    from joulecast.files import write_text

    write_text(path, json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _rank_limits(asked: FrontAsked, space: FrontSpace | None) -> RankLimitsFound:
    from joulecast.command_line.front_reports import watts
    from joulecast.plan.limits.rank_limits_search import rank_limit_front

    limits = None if asked.power_limits is None else watts(asked.power_limits)
    plan = asked.loaded_plan()
    with output.working("simulating plans"):
        front = rank_limit_front(plan, limits, budget_w=asked.power_budget, space=space)
    if asked.time_limit is not None:
        front = front.within(asked.time_limit)
    choice: dict[str, Any] | None = None
    if asked.eta is not None:
        best = front.best(asked.eta)
        choice = {"eta": asked.eta, "time_s": best.time_s, "energy_j": best.energy_j}
        choice |= {"power_limit_w": list(best.power_limit_w), **dict(best.knobs)}
    return RankLimitsFound(asked, front, choice)


def _instructions(asked: FrontAsked, space: FrontSpace | None) -> Instructions:
    if asked.simple is not None:
        from joulecast.plan.exact.simple_plans import check_tie

        check_tie(asked.simple)  # before anything is forecast
    made = _of_plan(asked, space) if asked.profile is None else _of_profile(asked, asked.profile)
    extra: dict[str, Any] = {}
    if asked.slow_rank is not None:
        from joulecast.command_line.front_reports import slow_rank_report
        from joulecast.plan.fronts.switching import front_of_problem

        made, extra["slow_rank"] = slow_rank_report(
            made,
            asked.slow_rank,
            lambda problem: front_of_problem(problem, switch_s=asked.switch_time or 0.0, simple=asked.simple),
        )
    if asked.straggler_time:
        from joulecast.command_line.front_reports import straggler_report

        extra["stragglers"] = straggler_report(made, asked.straggler_time)
    return Instructions(asked, made, extra)


def _of_plan(asked: FrontAsked, space: FrontSpace | None) -> Front:
    from joulecast.plan.fronts.forecast_front import forecast_front
    from joulecast.plan.knobs.front_space import FrontSpace

    plan = asked.loaded_plan()
    if asked.form == ZEUS_PFO:
        space = (space or FrontSpace()).clocks_alone(plan.overlap.comm_ctas)
    with output.working("finding plans"):
        return forecast_front(
            plan, space=space, simple=asked.simple, time_limit_s=asked.time_limit, switch_s=asked.switch_time
        )


def _of_profile(asked: FrontAsked, profile: Path) -> Front:
    from joulecast.plan.exact.dag_file import load_dag
    from joulecast.plan.fronts.profile_front import problem_from_profile
    from joulecast.plan.fronts.switching import front_of_problem
    from joulecast.simulator.events.guards import reported_with
    from joulecast.simulator.plan_file.schedule_names import schedule_alias, unknown_schedule
    from joulecast.simulator.schedules import schedule_names

    if asked.wait_power is None:
        raise InputError("the waiting power is missing", key="--wait-power", remedy="Give it in watts for one GPU.")
    if asked.dag is None and asked.microbatches is None:
        raise InputError("the number of micro-batches is missing", key="--microbatches", remedy="Give it, or --dag.")
    name = schedule_alias(asked.schedule or "1f1b")
    if name not in schedule_names():
        error = unknown_schedule(name)
        raise InputError(error.message, key="--schedule", remedy=error.remedy)
    problem = problem_from_profile(
        profile,
        None if asked.dag is None else load_dag(asked.dag),
        schedule=name,
        microbatches=asked.microbatches or 1,
        wait_power_w=asked.wait_power,
        stages=None if asked.stages is None else _stages(asked.stages),
        virtual_stages_per_rank=asked.virtual_stages or 1,
        transfer_s=asked.transfer_time or 0.0,
    )
    with reported_with(asked):
        return front_of_problem(
            problem, switch_s=asked.switch_time or 0.0, simple=asked.simple, time_limit_s=asked.time_limit
        )


def _stages(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"{text!r} is no list of stages", key="--stages", remedy="Write it as 0,1,2,7.")
    return [int(part) for part in parts]
