"""Plans of a sweep over time and what it costs, drawn with Plotly: GPU by GPU, with the best over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.plan.knobs.pareto import pareto
from joulecast.plan.sweep.clusters import GPU
from joulecast.reports.charts.chart import Chart, Series, Trace, View, axis, dots, error_bar, limit_line, polyline
from joulecast.reports.html import pairs
from joulecast.reports.numbers import Unit, interval, unit_for
from joulecast.reports.palette import series_role, series_symbol

if TYPE_CHECKING:
    from joulecast.plan.sweep.result import SweepResult
    from joulecast.plan.sweep.space import Space

#: Points of a chart beyond which a browser becomes slow; the best plans are always there.
MOST_POINTS = 4000
#: What stands against time, by the name of its column: its word and unit.
AGAINST = {"energy_j": ("energy of all GPUs", "J"), "money": ("money", ""), "carbon_kg": ("carbon, CO₂e", "kg")}
#: A limit this much above all plans is not drawn: it would make them small.
FAR = 1.2
#: Opacity of marks that may lie on each other.
FILLED, HOLLOW = 0.55, 0.8
#: Buttons of the legend.
PLANS, OUTSIDE, BEST = "plans", "outside the constraints", "best"


@dataclass(frozen=True, slots=True)
class Group:
    """Plans that are drawn alike.

    Attributes
    ----------
    buttons
        What shows or hides them.
    rows
        The plans.
    roles
        Their colours, one for all or one for each.
    symbol
        Their marker.
    """

    buttons: tuple[str, ...]
    rows: Sequence[dict[str, Any]]
    roles: str | list[str]
    symbol: str

    @property
    def best(self) -> bool:
        """Whether these are the best plans."""
        return self.buttons == (BEST,)


@dataclass(frozen=True, slots=True)
class Look:
    """Groups as they are drawn, the lowest first, and role and mark of each button."""

    groups: tuple[Group, ...]
    buttons: Mapping[str, tuple[str, str]]


def gpus_of(space: Space) -> tuple[str, ...]:
    """GPUs between which a space lets choose, in its order; none where there is one."""
    offered = tuple(dict.fromkeys(map(str, dict(space.axes).get(GPU) or ())))
    return offered if len(offered) > 1 else ()


def sweep_chart(
    result: SweepResult, rows: Sequence[dict[str, Any]], space: Space, limits: Mapping[str, float]
) -> Chart:
    """Plans over time and energy, money or carbon, one view for each; GPUs, and those outside constraints, apart."""
    from joulecast.plan.sweep.choose import is_feasible

    keeps = is_feasible(rows, space)
    inside, outside = list(compress(rows, keeps)), list(compress(rows, ~keeps))
    gpus = gpus_of(space)
    look = _by_gpu(gpus, inside, outside, result.best) if gpus else _of_one_gpu(inside, outside, result.best)
    views = tuple(_view(result, look, limits, key, *what) for key, what in against(result, rows).items())
    return Chart("sweep", "Every plan that fits memory by time and energy, money or carbon", views)


def _of_one_gpu(inside: Sequence[Any], outside: Sequence[Any], best: Sequence[Any]) -> Look:
    groups = (
        Group((PLANS,), inside, "plan", "circle"),
        Group((OUTSIDE,), outside, "bound", "x"),
        Group((BEST,), best, "chosen", "star"),
    )
    return Look(groups, {PLANS: ("plan", "circle"), OUTSIDE: ("bound", "x"), BEST: ("chosen", "star")})


def _by_gpu(gpus: Sequence[str], inside: Sequence[Any], outside: Sequence[Any], best: Sequence[Any]) -> Look:
    """Each GPU in a colour and a marker of its own, hollow outside the constraints; the best in their GPU's colour."""
    looks = {gpu: (series_role(i), series_symbol(i)) for i, gpu in enumerate(gpus)}

    def of(rows: Sequence[Any], gpu: str) -> list[Any]:
        return [row for row in rows if str(row[GPU]) == gpu]

    groups = (
        *(Group((g, OUTSIDE), of(outside, g), role, f"{symbol}-open") for g, (role, symbol) in looks.items()),
        *(Group((g,), of(inside, g), role, symbol) for g, (role, symbol) in looks.items()),
        Group((BEST,), best, [looks[str(row[GPU])][0] for row in best], "star"),
    )
    return Look(groups, {**looks, OUTSIDE: ("bound", "circle-open"), BEST: ("ink", "star")})


def against(result: SweepResult, rows: Sequence[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """What can be held against time, the first of what is minimised first."""
    found = [key for key in AGAINST if rows and all(key in row for row in rows)]
    goals = [goal for goal in result.minimise if goal != "time"]
    asked = [key for goal in goals for key in found if key.startswith(goal)]
    return {key: AGAINST[key] for key in [*asked, *found]}


@dataclass(slots=True)
class _Drawn:
    """Traces of a view, those that each button of the legend shows, and what the points of each tell."""

    data: list[Trace] = field(default_factory=list)
    shown: dict[str, list[int]] = field(default_factory=dict)
    details: dict[int, list[str]] = field(default_factory=dict)

    def add(self, group: Group, trace: Trace, details: Sequence[str] = ()) -> None:
        """Draw a trace over the others."""
        for name in group.buttons:
            self.shown.setdefault(name, []).append(len(self.data))
        if details:
            self.details[len(self.data)] = list(details)
        self.data.append(trace)


def _view(result: SweepResult, look: Look, limits: Mapping[str, float], key: str, word: str, base: str) -> View:
    rows = [row for group in look.groups if not group.best for row in group.rows]
    base = base or str(rows[0].get("currency", ""))
    time = unit_for("s", float(np.median([row["time_s"] for row in rows])))
    unit = unit_for(base, float(np.median([row[key] for row in rows])))
    drawn, few = _Drawn(), len(rows) <= MOST_POINTS // 4
    for group in look.groups:
        steps = front_steps(group.rows, key) if group.best and _is_front(result.minimise, key) else []
        if len(steps) > 1:
            drawn.add(group, _front(steps, key, time, unit))
        if group.rows:
            details = [pairs(_all(row)) for row in group.rows] if few else []
            drawn.add(group, _points(group, result.keys, key, time, unit), details)
    series = list(_legend(look, drawn))
    for name, line in _limits(rows, limits, key, time, unit):
        series.append(Series(name, "limit", (len(drawn.data),), "dash"))
        drawn.data.append(line)
    wide = max(row[key] for row in rows) > 20 * min(row[key] for row in rows)
    kind = {"type": "log"} if wide else {}
    layout = {
        "xaxis": axis(f"time of an iteration [{time.name}]", **kind),
        "yaxis": axis(f"{word} of an iteration [{unit.name}]".replace(" []", ""), **kind),
        "hovermode": "closest",
    }
    return View(word, drawn.data, layout, tuple(series), 480, drawn.details)


def _legend(look: Look, drawn: _Drawn) -> Iterator[Series]:
    """A button for all that is drawn under its name, with how many plans that are."""
    for name, (role, mark) in look.buttons.items():
        if name in drawn.shown:
            count = sum(len(group.rows) for group in look.groups if name in group.buttons)
            yield Series(f"{name} ({count})", role, tuple(drawn.shown[name]), mark)


def _is_front(minimise: Sequence[str], key: str) -> bool:
    """Whether the best are a front of time and what stands against it."""
    return "time" in minimise and any(key.startswith(goal) for goal in minimise)


def front_steps(rows: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Rows that no other one beats in both time and ``key``, the fastest first.

    >>> rows = [{"time_s": t, "money": m} for t, m in ((2.0, 5.0), (1.0, 6.0), (3.0, 5.5))]
    >>> [row["time_s"] for row in front_steps(rows, "money")]
    [1.0, 2.0]
    """
    time, other = (np.array([row[name] for row in rows]) for name in ("time_s", key))
    return [rows[place] for place in pareto(time, other).tolist()]


def _front(rows: Sequence[dict[str, Any]], key: str, time: Unit, unit: Unit) -> Trace:
    """Steps from plan to plan: what lies between two plans is no plan."""
    at = time.of(row["time_s"] for row in rows), unit.of(row[key] for row in rows)
    return polyline(*at, {"color": "@ink", "width": 1.6, "shape": "hv"})


def _limits(
    rows: Sequence[dict[str, Any]], limits: Mapping[str, float], key: str, time: Unit, unit: Unit
) -> Iterator[tuple[str, Trace]]:
    """Lines of the constraints on time and on what stands against it, with their names."""
    times, others = ([row[name] for row in rows] for name in ("time_s", key))
    bound = limits.get("max_time_s")
    if bound is not None and bound <= FAR * max(times):
        yield f"at most {time.text(bound)}", limit_line(time.of([bound] * 2), unit.of([min(others), max(others)]))
    bound = limits.get(f"max_{key}")
    if bound is not None and bound <= FAR * max(others):
        yield f"at most {unit.text(bound)}", limit_line(time.of([min(times), max(times)]), unit.of([bound] * 2))


def _points(group: Group, keys: Sequence[str], key: str, time: Unit, unit: Unit) -> Trace:
    rows, best = group.rows, group.best
    common = group.roles if isinstance(group.roles, str) else ""
    marker = {
        "color": f"@{common}" if common else [f"@{role}" for role in group.roles],
        "symbol": group.symbol,
        "size": 15 if best else 7,
        "opacity": 1.0 if best else HOLLOW if group.symbol.endswith("-open") else FILLED,
        "line": {"color": "@paper" if common else "@ink", "width": 1.2 if best else 0.5},
    }
    at = time.of(row["time_s"] for row in rows), unit.of(row[key] for row in rows)
    trace = dots(*at, [_text(row, keys, key, time, unit) for row in rows], marker)
    if not best:
        return trace
    role = common or "ink"
    bars = {"error_x": _bars(rows, "time_s", time, role), "error_y": _bars(rows, key, unit, role)}
    return trace | {axis: bar for axis, bar in bars.items() if bar is not None}


def _bars(rows: Sequence[dict[str, Any]], key: str, unit: Unit, role: str) -> dict[str, Any] | None:
    """Intervals of a quantity, where every row has one."""
    ends = [(row.get(f"{key}_p05"), row.get(f"{key}_p95"), row[key]) for row in rows]
    if any(low is None or high is None for low, high, _ in ends):
        return None
    return error_bar(unit.of(high - v for _, high, v in ends), unit.of(v - low for low, _, v in ends), f"@{role}/70")


def _text(row: dict[str, Any], keys: Sequence[str], key: str, time: Unit, unit: Unit) -> str:
    lines = [f"<b>plan {row['plan']}: {time.text(row['time_s'])}, {unit.text(row[key])}</b>"]
    if row.get("time_s_p05") is not None:
        lines.append(f"90 %: {interval(row['time_s_p05'], row['time_s_p95'], time)}")
    lines += [f"{escape(name.rpartition('.')[2])}: {escape(str(row.get(name)))}" for name in keys]
    return "<br>".join([*lines, f"{row['gpus']} GPUs"])


def _all(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value if isinstance(value, int | float) else str(value)) for name, value in row.items()]
