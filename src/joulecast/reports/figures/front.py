"""The time-energy front drawn with Matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.reports.figures.figure import new_figure, styled
from joulecast.reports.numbers import unit_for
from joulecast.reports.palette import scheme
from joulecast.reports.series.front import BAND, MARGIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from joulecast.reports.series.front import FrontSeries


@styled
def front_figure(front: FrontSeries, width_in: float) -> Figure:
    """Plans over time and energy, with the lower bound, the chosen plan and the plan as it stands."""
    colour = scheme(False)
    figure, (axis,) = new_figure(width_in, 0.62 * width_in)
    time = unit_for("s", max(p.time_s for p in front.points))
    energy = unit_for("J", max(p.energy_j for p in front.points))
    if front.bound_s:
        bound = time.of(front.bound_s), energy.of(front.bound_j)
        axis.plot(*bound, color=colour["bound"], lw=1, label="lower bound", zorder=2)
    low, high = front.band_j
    x, y = time.of(p.time_s for p in front.points), energy.of(p.energy_j for p in front.points)
    if low:
        band = energy.of(low), energy.of(high)
        axis.fill_between(x, *band, color=colour["band"], alpha=0.2, lw=0, label=BAND, zorder=1)
    axis.plot(x, y, "o", color=colour["plan"], ms=3, mec="white", mew=0.3, label="plans", zorder=3)
    chosen = [x[front.chosen]], [y[front.chosen]]
    axis.plot(*chosen, "*", color=colour["chosen"], ms=11, mec="white", mew=0.6, label="chosen plan", zorder=5)
    plan = front.forecast
    if plan is not None:
        bars = {
            name: [unit.of([value - low]), unit.of([high - value])]
            for name, unit, value, low, high in (
                ("xerr", time, plan.time_s, plan.time_s_p05, plan.time_s_p95),
                ("yerr", energy, plan.energy_j, plan.energy_j_p05, plan.energy_j_p95),
            )
        }
        at = time.of([plan.time_s]), energy.of([plan.energy_j])
        axis.errorbar(*at, fmt="none", ecolor=colour["ink"], elinewidth=0.8, capsize=2, zorder=4, **bars)
        axis.plot(*at, "x", color=colour["ink"], ms=6, mew=1.6, label="plan as it stands", zorder=4)
    if front.time_limit_s is not None:
        (limit,), end = time.of([front.time_limit_s]), max(x) + MARGIN * (max(x) - min(x))
        axis.set_xlim(right=end)  # beyond it there is nothing but the bound
        if limit <= end:
            name = f"time limit {limit:g} {time.name}"
            axis.axvline(limit, color=colour["limit"], lw=1, ls="--", label=name, zorder=2)
    axis.set_xlabel(f"time of an iteration [{time.name}]")
    axis.set_ylabel(f"energy of all GPUs [{energy.name}]")
    axis.legend(loc="upper right", frameon=True, facecolor="white", edgecolor="none", framealpha=0.9)
    return figure
