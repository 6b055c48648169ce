"""The part of a report that shows what surrounds the GPUs: power by level and over time, cost, and limits."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from joulecast.command_line.output import number
from joulecast.reports.html import bullets, table
from joulecast.reports.numbers import NARROW, Unit, unit_for
from joulecast.reports.page import Figure, Section
from joulecast.reports.sections import figure_of, with_interval

if TYPE_CHECKING:
    from joulecast.simulator.iteration.site import SiteForecast

#: Levels and places by the words that people read.
LEVELS = {
    "gpu": "GPUs",
    "node_dc": "nodes behind their supplies",
    "node_ac": "nodes at the outlet",
    "network": "switches between nodes",
    "facility": "facility",
}
PLACES = {
    "gpu": "GPU",
    "node": "whole node at the outlet",
    "rack": "whole rack at the outlet",
    "job": "whole job at the facility's meter",
}


def site_section(site: SiteForecast) -> Section:
    """Section of a forecast beyond its GPUs."""
    about = f"<p>{site.node} nodes, {site.network}; prices in {site.currency}.</p>"
    parts = [about, table(level_lines(site)), "<h3>Cost</h3>", table(cost_lines(site))]
    parts += [f"<h3>Power over time [W], means of {site.step_s * 1e3:.2g} ms</h3>", table(spread_lines(site))]
    if site.limits:
        parts += ["<h3>Limits</h3>", bullets(f"{check}." for check in site.limits)]
    return Section("Beyond the GPU", "".join(parts))


def nothing_beyond(gpu: str) -> Section:
    """Section in place of that of a site, where no node type is usual for the GPU."""
    from joulecast.model.hardware.catalogue import nodes_of

    known = f" ({' or '.join(nodes_of(gpu))}, or your own)" if nodes_of(gpu) else ""
    about = f"No node type is usual for {escape(gpu)}; set <code>cluster.node</code>{known}."
    return Section("Beyond the GPU", f"<p>{about}</p>")


def site_figures(site: SiteForecast) -> list[Figure]:
    """Energy at the meter, money and carbon of an iteration, for the head of a page."""
    cost, (low, high) = site.cost_of(1.0), (site.energy_j_p05.facility, site.energy_j_p95.facility)
    energy = unit_for("J", site.energy_j.facility)
    carbon = Unit(1e-3, "g") if cost["carbon_kg"] < 1.0 else Unit(1.0, "kg")
    money = Unit(1e-3, f"m{site.currency}") if cost["money"] < 0.1 else Unit(1.0, site.currency)
    return [
        with_interval("energy at the meter", site.energy_j.facility, low, high, energy),
        figure_of(cost, "money", "money", money),
        figure_of(cost, "carbon_kg", "carbon, CO₂e", carbon),
    ]


def run_figures(site: SiteForecast) -> list[Figure]:
    """Time, energy at the meter and money of the whole run, where the plan says how long it is."""
    run = site.run
    if run is None:
        return []
    cost, currency = site.cost_of(run.paid_iterations), Unit(1.0, site.currency)
    days, energy = Unit(86400.0, "days"), Unit(3.6e9, "MWh")
    return [
        figure_of(run, "time_s", "the whole run", days),
        figure_of(run, "energy_j", "run, energy at the meter", energy),
        figure_of(cost, "money", "run, money", currency),
        figure_of(cost, "carbon_kg", "run, CO₂e", Unit(1e3, "t")),
    ]


def level_lines(site: SiteForecast) -> list[dict[str, Any]]:
    """Power and energy of the job at every level."""
    quantities = {
        "power [W]": site.power_w,
        "5 % [W]": site.power_w_p05,
        "95 % [W]": site.power_w_p95,
        "energy [J]": site.energy_j,
        "5 % [J]": site.energy_j_p05,
        "95 % [J]": site.energy_j_p95,
    }
    return [
        {"level": words} | {name: getattr(levels, key) for name, levels in quantities.items()}
        for key, words in LEVELS.items()
    ]


def cost_lines(site: SiteForecast) -> list[dict[str, Any]]:
    """Energy, money and carbon of an iteration, a million tokens and the whole run, with 90 % intervals."""
    shares = {"an iteration": 1.0, "a million tokens": 1e6 / site.tokens}
    if site.run is not None:
        shares["the whole run"] = site.run.paid_iterations
    money, carbon = f"money [{site.currency}]", "carbon [kgCO2e]"
    lines = []
    for words, share in shares.items():
        cost = site.cost_of(share)
        lines.append(
            {
                "of": words,
                "energy [kWh]": site.energy_j.facility * share / 3.6e6,
                money: cost["money"],
                "money, 5 to 95 %": _between(cost["money_p05"], cost["money_p95"]),
                "of it, electricity": cost["electricity"],
                carbon: cost["carbon_kg"],
                "carbon, 5 to 95 %": _between(cost["carbon_kg_p05"], cost["carbon_kg_p95"]),
                "of it, use": cost["operational_kg"],
            }
        )
    return lines


def _between(low: float, high: float) -> str:
    return f"{number(low, 3)} to {number(high, 3)}".replace(" ", NARROW)


def spread_lines(site: SiteForecast) -> list[dict[str, Any]]:
    """Power over time of the most demanding GPU, node and rack, and of the job."""
    return [
        {
            "most demanding": PLACES[key],
            "mean": spread.mean_w,
            "median": spread.p50_w,
            "95 %": spread.p95_w,
            "99 %": spread.p99_w,
            "peak": spread.peak_w,
            "peak, 5 to 95 %": _between(spread.peak_w_p05 or spread.peak_w, spread.peak_w_p95 or spread.peak_w),
        }
        for key, spread in site.spread_w.items()
    ]
