"""The reports of power limits: one for a whole job, and one for each pipeline rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joulecast.plan.limits.power_limits import JobPoint, interval_ends, limit_front
from joulecast.reports.charts.time_energy import Dot, Group, time_energy_chart
from joulecast.reports.html import bullets, folded, table
from joulecast.reports.numbers import percent, spaced, unit_for
from joulecast.reports.page import Figure, Page, Section
from joulecast.reports.palette import series_role, series_symbol
from joulecast.reports.sections import assumptions, plan_section, provenance

if TYPE_CHECKING:
    from joulecast.plan.limits.rank_limits import RankLimitFront, RankLimits
    from joulecast.simulator.plan_file.plan import Plan

#: Weight of energy against time of the limit that is pointed out where none was asked for.
USUAL_WEIGHT = 0.5


def limits_page(points: Sequence[JobPoint], found: Mapping[str, Any], plan: Plan | None) -> Page:
    """Page of one power limit for a whole job.

    Parameters
    ----------
    points
        Every limit and batch size.
    found
        What :func:`joulecast.command_line.front_reports.power_limit_report` says of them.
    plan
        Where they are forecast.
    """
    front, chosen = limit_front(points), _chosen(found)
    weight = found.get("choice", {}).get("eta", USUAL_WEIGHT)
    sizes = list(dict.fromkeys(point.batch_size for point in points))
    several = len(sizes) > 1
    groups = [_group(points, size, i, several) for i, size in enumerate(sizes)]
    groups.append(Group("chosen", "chosen", "star", (_dot(chosen, several),), size=16))
    bars = " Bars: 90 % intervals." if any(point.time_ends for point in points) else ""
    about = (
        f"<p>Each dot is a limit for every GPU of the job. The star costs least at a weight of {weight:g} of energy "
        f"against time, as Zeus counts: η·energy + (1 − η)·{found['max_power_w']:.0f} W·time.{bars}</p>"
    )
    everything = folded(f"All {len(points)} limits as numbers", table([_row(p.to_dict(), several) for p in points]))
    label = f"Time and energy of {found['of']} at every power limit"
    chart = time_energy_chart("limits", label, groups, found["of"])
    weights = [{"weight from": w["eta_from"], "to": w["eta_to"]} | _row(w, several) for w in found["by_weight"]]
    sections = [
        Section("Time and energy under power limits", about, (chart,), everything),
        Section("The best limit at every weight", table(weights)),
    ]
    said = [f"batch size {size} does not always reach the target" for size in found["never_reach_the_target"]]
    said += found["site_limits"]
    if said:
        sections.append(Section("Left out", bullets(said)))
    if found["notes"]:
        sections.append(assumptions(found["notes"]))
    kicker = f"{found['job']}: {len(points)} points of {found['of']}"
    more = f"The limit of least energy takes {_against(front[0], front[-1])} than the fastest."
    says = f"At a weight of {weight:g} of energy against time {_what(chosen, several)} is best"
    says += f": {_taken(chosen)} for {found['of']}"
    says += "." if chosen == front[0] else f", {_against(front[0], chosen)} than at {_what(front[0], several)}."
    ends = (("fastest", front[0]), ("chosen", chosen), ("least energy", front[-1]))
    figures = [Figure(name, _taken(p), _what(p, several)) for name, p in ends]
    return Page("Power limits", kicker, says, more, figures, [*sections, *_origin(plan)])


def rank_limits_page(front: RankLimitFront, plan: Plan, eta: float | None) -> Page:
    """Page of power limits for each pipeline rank, beside one limit for all."""
    fastest = front.points[0]
    weight = USUAL_WEIGHT if eta is None else eta
    chosen = front.best(weight)
    groups = [
        Group("one limit for all", "bound", "square", tuple(_dot(p, False) for p in front.uniform), True, 13),
        Group("a limit for each rank", "plan", "circle", tuple(_rank_dot(front, p) for p in front.points)),
        Group("chosen", "chosen", "star", (_rank_dot(front, chosen, bars=True),), size=16),
    ]
    about = (
        "<p>Each round dot is a plan with a power limit for each pipeline rank; a square has one limit for all. "
        f"The star costs least at a weight of {weight:g} of energy against time. Bars: its 90 % intervals, much the "
        "same for all plans and mostly common to them.</p>"
    )
    rows = [_line(front, p, p is chosen) for p in front.points]
    label = "Time and energy of an iteration with power limits by rank, beside one limit for all ranks"
    chart = time_energy_chart("limits", label, groups, "an iteration")
    after = folded(f"All {len(rows)} plans as numbers", table(rows))
    sections = [
        Section("Which rank gets how many watts", about, (chart,), after),
        assumptions(front.notes),
    ]
    says = f"Limits of {_watts(chosen)} W by stage"
    says += " are best." if chosen is fastest else f" take {_against(fastest, chosen)} than the fastest."
    ends = (("fastest", fastest), ("chosen", chosen), ("least energy", front.points[-1]))
    figures = [Figure(name, _taken(p), f"limits {front.together_w(p):.0f} W together") for name, p in ends]
    kicker = (
        f"{plan.workload.model_name} on {plan.cluster.gpus} × {plan.cluster.gpu}: {front.simulated} plans simulated"
    )
    return Page("Power limits of ranks", kicker, says, _beside(front, chosen), figures, [*sections, *_origin(plan)])


def _beside(front: RankLimitFront, chosen: RankLimits) -> str:
    """What one limit for all would take, and the plan of least energy."""
    least = f"The plan of least energy takes {_against(front.points[0], front.points[-1])} than the fastest."
    alike = [p.energy_j for p in front.uniform if p.time_s <= chosen.time_s]
    if not alike:
        return least
    return f"One limit for all, no slower, takes {percent(min(alike) / chosen.energy_j - 1.0)} more energy. {least}"


def _origin(plan: Plan | None) -> list[Section]:
    """The plan, and where the numbers of its GPU come from."""
    if plan is None:
        return []
    from joulecast.simulator.plan_file.gpu import gpu_of

    return [plan_section(plan), provenance(gpu_of(plan))]


def _chosen(found: Mapping[str, Any]) -> JobPoint:
    """The limit of the weight that was asked for, else of the usual one."""
    line = found.get("choice")
    if line is None:
        line = next(one for one in found["by_weight"] if one["eta_to"] >= USUAL_WEIGHT)
    return JobPoint(line["power_limit_w"], line["time_s"], line["energy_j"], line.get("batch_size"))


def _group(points: Sequence[JobPoint], size: int | None, index: int, several: bool) -> Group:
    own = sorted((p for p in points if p.batch_size == size), key=lambda p: p.time_s)
    name = f"batch size {size}" if several else "power limits"
    return Group(name, series_role(index), series_symbol(index), tuple(_dot(p, several) for p in own), True)


def _dot(point: JobPoint, several: bool) -> Dot:
    return Dot(point.time_s, point.energy_j, _what(point, several), point.time_ends, point.energy_ends)


def _what(point: JobPoint, several: bool) -> str:
    return f"{point.power_limit_w:g} W" + (f" at batch size {point.batch_size}" if several else "")


def _rank_dot(front: RankLimitFront, point: RankLimits, *, bars: bool = False) -> Dot:
    limits = f"limits {_watts(point)} W, {front.together_w(point):.0f} W together"
    knobs = [f"{name} {value}" for name, value in point.knobs]
    clocks = " ".join(f"{clock:.0f}" for clock in point.clock_mhz)
    ends = (point.time_ends, point.energy_ends) if bars else ()
    return Dot(point.time_s, point.energy_j, "<br>".join([limits, f"clocks {clocks} MHz", *knobs]), *ends)


def _line(front: RankLimitFront, point: RankLimits, is_chosen: bool) -> dict[str, Any]:
    return {
        "time [s]": point.time_s,
        "energy [J]": point.energy_j,
        "limits by stage [W]": _watts(point),
        "together [W]": front.together_w(point),
        "mean power by stage [W]": " ".join(f"{power:.0f}" for power in point.power_w),
        **_ends(point),
        **dict(point.knobs),
        "": "chosen" if is_chosen else "",
    }


def _ends(point: RankLimits) -> dict[str, str]:
    """Ends of a plan's intervals by what the table calls them."""
    ends = interval_ends(point)
    names = (("time", "time_s", "s"), ("energy", "energy_j", "J"), ("power, all GPUs", "power_w", "W"))
    return {
        f"{word}, 5 to 95 % [{unit}]": f"{spaced(ends[f'{name}_p05'])} to {spaced(ends[f'{name}_p95'])}"
        for word, name, unit in names
        if f"{name}_p05" in ends
    }


def _watts(point: RankLimits) -> str:
    return ", ".join(f"{limit:g}" for limit in point.power_limit_w)


def _against(first: JobPoint | RankLimits, other: JobPoint | RankLimits) -> str:
    saved, slower = 1.0 - other.energy_j / first.energy_j, other.time_s / first.time_s - 1.0
    return f"{percent(saved)} less energy and {percent(slower)} longer"


def _taken(point: JobPoint | RankLimits) -> str:
    return f"{unit_for('s', point.time_s).text(point.time_s)}, {unit_for('J', point.energy_j).text(point.energy_j)}"


def _row(line: Mapping[str, Any], several: bool) -> dict[str, Any]:
    size = {"batch size": line["batch_size"]} if several else {}
    rest = {"time [s]": line["time_s"], "energy [J]": line["energy_j"], "power, all GPUs [W]": line["power_w"]}
    return {**size, "limit [W]": line["power_limit_w"], **rest}
