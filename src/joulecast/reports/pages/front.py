"""The report of a time-energy front."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.errors import counted
from joulecast.reports.charts.timeline import timeline_chart
from joulecast.reports.numbers import between, percent, unit_for
from joulecast.reports.page import Figure, Page, Section
from joulecast.reports.pages.predict import front_section
from joulecast.reports.sections import assumptions, figure_of, plan_section, provenance, with_interval
from joulecast.reports.series import timeline as timeline_series
from joulecast.reports.series.slots import crowded
from joulecast.reports.series.timeline import limits_w

if TYPE_CHECKING:
    from joulecast.plan.exact.front import Front
    from joulecast.reports.series.front import FrontSeries, PlanPoint
    from joulecast.simulator.iteration.result import Iteration

#: Times that differ by less are called the same: no forecast tells a thousandth.
SAME = 1e-3


def front_page(
    front: Front, about: str, *, iteration: Iteration | None = None, time_limit_s: float | None = None
) -> Page:
    """Page of a front.

    Parameters
    ----------
    about
        What it is a front of.
    iteration
        Forecast of the plan as it stands, where it is a front of a plan.
    time_limit_s
        What was asked for.
    """
    from joulecast.reports.series.front import of_front

    series = of_front(front, iteration, time_limit_s)
    limits = () if iteration is None else limits_w(iteration)
    sections = [front_section(front, iteration, time_limit_s), _timelines(front, series.chosen, limits)]
    notes = [*front.notes, *(() if iteration is None else iteration.assumptions)]
    if notes:
        sections.append(assumptions(notes))
    if iteration is not None:
        sections.append(plan_section(iteration.plan))
        if iteration.description is not None:
            sections.append(provenance(iteration.description))
    kicker = f"{about}: {counted(len(front.points), 'plan')} of {front.problem.dag.instructions} instructions"
    return Page(f"Front: {about}", kicker, answer(series), more(front, series), head(front, series), sections)


def answer(series: FrontSeries) -> str:
    """The answer in one sentence."""
    first, chosen = series.points[0], series.points[series.chosen]
    time, energy = unit_for("s", chosen.time_s), unit_for("J", chosen.energy_j)
    taken = f"takes {time.text(chosen.time_s)} and {energy.text(chosen.energy_j)}"
    saved, slower = _against(series.forecast or first, chosen)
    other = "the fastest" if series.forecast is None else "the plan as it stands"
    return f"The chosen plan {taken}: {saved} than {other}, and {slower}."


def _against(one: PlanPoint | Iteration, other: PlanPoint) -> tuple[str, str]:
    saved, slower = 1.0 - other.energy_j / one.energy_j, other.time_s / one.time_s - 1.0
    pace = "as fast" if abs(slower) < SAME else f"{percent(abs(slower), 2)} {'slower' if slower >= 0 else 'faster'}"
    return f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} energy", pace


def more(front: Front, series: FrontSeries) -> str:
    """How far the front reaches, and how far plans are from the bound."""
    first, last = series.points[0], series.points[-1]
    saved, slower = _against(first, last)
    gaps = [p.gap for p in front.points]
    ends, sure = last.interval, ""
    if ends is not None and len(series.points) > 1:
        sure = f" (90 %: {between(1.0 - ends.energy_ratio_p95, 1.0 - ends.energy_ratio_p05)} less on the same cards)"
    return (
        f"The plan of least energy takes {saved} than the fastest{sure}, and is {slower}. Plans are "
        f"{percent(sum(gaps) / len(gaps), 2)} above the exact lower bound on average, {percent(max(gaps), 2)} at most."
    )


def head(front: Front, series: FrontSeries) -> list[Figure]:
    """Fastest plan, plan of least energy, and the plan as it stands."""
    time, energy = unit_for("s", series.points[-1].time_s), unit_for("J", series.points[0].energy_j)
    first, chosen, last = series.points[0], series.points[series.chosen], series.points[-1]
    ends = chosen.interval
    figures = [Figure("fastest", time.text(first.time_s), energy.text(first.energy_j))]
    if ends is None:
        figures.append(Figure("chosen", time.text(chosen.time_s), energy.text(chosen.energy_j)))
    else:
        figures.append(with_interval("chosen", chosen.time_s, ends.time_s_p05, ends.time_s_p95, time))
        figures.append(with_interval("energy, chosen", chosen.energy_j, ends.energy_j_p05, ends.energy_j_p95, energy))
    figures.append(Figure("least energy", time.text(last.time_s), energy.text(last.energy_j)))
    plan = series.forecast
    if plan is not None:
        figures.append(figure_of(plan, "time_s", "as it stands", time))
        figures.append(figure_of(plan, "energy_j", "energy, as it stands", energy))
    return figures


def _timelines(front: Front, chosen: int, limits_w: tuple[float, ...]) -> Section:
    named = {"chosen": front.points[chosen], "fastest": front.points[0], "least energy": front.points[-1]}
    timelines = {name: timeline_series.of_point(front, point, limits_w) for name, point in named.items()}
    shown = "every instruction at its own clock and with its mean power; point at one to see its clock"
    if any(crowded(timeline) for timeline in timelines.values()):
        shown = "the share of time that each kind of instruction takes, each at its own clock, and their mean power"
    about = f"<p>One GPU of each pipeline stage, {shown}.</p>"
    return Section("What each GPU does", about, (timeline_chart(timelines),))
