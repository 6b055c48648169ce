"""The report of a sweep: every plan of a space over what is minimised, the best ones pointed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.command_line.key_words import short_key
from joulecast.command_line.output import listed
from joulecast.plan.sweep.clusters import GPU
from joulecast.reports.charts.sweep import MOST_POINTS, against, gpus_of, sweep_chart
from joulecast.reports.html import pairs, table
from joulecast.reports.numbers import Unit, spaced, unit_for
from joulecast.reports.page import Figure, Page, Section
from joulecast.reports.sections import assumptions, figure_of, plan_section, provenance

if TYPE_CHECKING:
    from joulecast.plan.sweep.result import SweepResult
    from joulecast.plan.sweep.space import Space
    from joulecast.reports.html import Rows

#: Columns that mean for the run what they mean for an iteration; the energy of a run is at the meter.
OF_RUN = ("money", "carbon_kg")
#: Why plans that seem to keep to all constraints may be better than the best.
PEAKS = (
    "Limits on the power of nodes, racks and the site hold for peaks, which simulated plans alone have: a plan in "
    "closed form that seems better than the best may break one."
)


def sweep_page(result: SweepResult, lines: Rows, of_each: Rows, space: Space) -> Page:
    """Page of a sweep.

    Parameters
    ----------
    lines, of_each
        The best plans, and the best of each cluster, as the command's tables show them.
    space
        What was swept.
    """
    from joulecast.plan.sweep.choose import stated_constraints

    rows, shown = result.rows, thinned(result)
    stated = stated_constraints(space.constraints)
    limits = {limit.key: bound for limit, bound in stated}
    gpus = gpus_of(space)
    star = "a star is one of the best" + (", simulated, with its 90 % interval" if result.simulated else "")
    about = f"<p>Each {'mark' if gpus else 'dot'} is a plan that fits memory, in closed form; {star}"
    about += ", in the colour of its GPU" if gpus else ""
    about += "; hollow marks are outside the constraints" if gpus and limits else ""
    about += ". Point at one to see what it sets.</p>"
    if result.simulated and any(limit.columns[0].startswith("peak_") for limit, _ in stated):
        about += f"<p>{PEAKS}</p>"
    if len(shown) < len(rows):
        about += f"<p>Of {len(rows)} plans {len(shown)} are drawn, evenly chosen, with all of the best.</p>"
    goal, each = listed(result.minimise), f"The best by {result.minimise[0]} of each GPU and number of them"
    sections = [
        Section("Every plan", about, (sweep_chart(result, shown, space, limits),)),
        Section(f"The best by {goal}", table(lines) if lines else "<p>No plan keeps to the constraints.</p>"),
        *([Section(each, table(of_each))] if of_each else []),
        Section("How many combinations there are", pairs(result.counts.items())),
        *([Section("Constraints", table(_left_out(result, limits)))] if limits else []),
        assumptions(result.to_dict()["notes"]),
        *_origin(result, space),
    ]
    kicker = f"{result.offered:,} combinations of {len(result.keys)} keys".replace(",", "\u202f")
    return Page("Sweep", kicker, answer(result), more(result), head(result), sections)


def _left_out(result: SweepResult, limits: Mapping[str, float]) -> list[dict[str, Any]]:
    return [
        {"constraint": key, "bound": bound, "plans left out": result.beyond.get(key, 0)}
        for key, bound in limits.items()
    ]


def answer(result: SweepResult) -> str:
    """The answer in one sentence."""
    goal = listed(result.minimise)
    if not result.best:
        return f"None of {result.legal} legal plans keeps to the constraints."
    best = result.best[0]
    other_key, (_, base) = next(iter(against(result, result.best).items()))
    base = base or str(best.get("currency", ""))
    of_run = f"run_{other_key}" in best and other_key in OF_RUN
    span, prefix = ("for the run", "run_") if of_run else ("an iteration", "")
    time = Unit(86400.0, "days") if of_run else unit_for("s", best["time_s"])
    other = _unit_of_run(base, best[f"run_{other_key}"]) if of_run else unit_for(base, best[other_key])
    shown = [
        (time.text(r[f"{prefix}time_s"], 3), other.text(r[prefix + other_key], 3)) for r in (best, result.best[-1])
    ]
    ends = [f"{time} and {other}" for time, other in shown]
    if len(result.minimise) > 1 and len(result.best) > 1:
        return f"{len(result.best)} plans are the front of {goal}, from {ends[0]} to {ends[1]} {span}."
    return f"The plan of least {goal} takes {ends[0]} {span}: {setting(best, result.keys)}."


def _unit_of_run(base: str, value: float) -> Unit:
    """Tonnes, and millions of money."""
    if base == "kg":
        return Unit(1e3, "t")
    return Unit(1e6, f"million {base}") if value >= 1e6 else Unit(1.0, base)


def setting(row: dict[str, Any], keys: Sequence[str]) -> str:
    """What a plan sets, in words."""
    return ", ".join(f"{short_key(key).replace('_', ' ')} {row.get(key)}" for key in keys)


def more(result: SweepResult) -> str:
    """How far the best is from the worst."""
    if not result.best or len(result.rows) < 2:
        return ""
    worst = max(row["energy_j"] for row in result.rows) / result.best[0]["energy_j"]
    slowest = max(row["time_s"] for row in result.rows) / result.best[0]["time_s"]
    return (
        f"Of {result.fitting} plans that fit memory the most wasteful takes {spaced(worst, 2)} times the first one's "
        f"energy, and the slowest {spaced(slowest, 2)} times its time."
    )


def head(result: SweepResult) -> list[Figure]:
    """The best plan's numbers and the size of the search."""
    figures = []
    if result.best:
        best = result.best[0]
        for label, key, base in (("time of the best", "time_s", "s"), ("its energy", "energy_j", "J")):
            figures.append(figure_of(best, key, label, unit_for(base, best[key])))
        figures.append(Figure("GPUs", str(best["gpus"]), str(best.get(GPU, ""))))
    return [*figures, Figure("legal plans", spaced(result.legal, 9)), Figure("fit memory", spaced(result.fitting, 9))]


def thinned(result: SweepResult) -> list[dict[str, Any]]:
    """At most about :data:`MOST_POINTS` rows, evenly by number."""
    rows = result.rows
    if len(rows) <= MOST_POINTS:
        return list(rows)
    return [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, MOST_POINTS).round().astype(int)).tolist()]


def _origin(result: SweepResult, space: Space) -> list[Section]:
    """The best plan, and where the numbers of the GPUs of the best come from."""
    from joulecast.plan.sweep.plans import Plans
    from joulecast.simulator.plan_file.gpu import gpu_of

    plans = Plans(space)
    best = [plans.plan({key: row[key] for key in result.keys}) for row in result.best]
    gpus = {(plan.cluster.gpu, plan.implementation.framework): plan for plan in best}
    return [*(plan_section(plan) for plan in best[:1]), *(provenance(gpu_of(plan)) for plan in gpus.values())]
