"""The report of a forecast."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulecast.command_line.predict_lines import memory_line, stage_line
from joulecast.errors import InputError
from joulecast.plan.comparison.ledgers import time_by_part_s
from joulecast.reports.charts.front import front_chart
from joulecast.reports.charts.ledger import ledger_chart
from joulecast.reports.charts.timeline import timeline_chart
from joulecast.reports.html import folded, table
from joulecast.reports.numbers import Unit, percent, spaced, unit_for
from joulecast.reports.page import Figure, Page, Section
from joulecast.reports.pages.site_section import nothing_beyond, run_figures, site_figures, site_section
from joulecast.reports.palette import word
from joulecast.reports.sections import assumptions, figure_of, plan_section, provenance
from joulecast.reports.series import timeline as timeline_series
from joulecast.reports.series.front import of_front
from joulecast.reports.series.ledger import ledger_of
from joulecast.reports.series.slots import crowded
from joulecast.reports.series.timeline import limit_words, limits_w
from joulecast.simulator.iteration.site import SITE_ASSUMPTIONS

if TYPE_CHECKING:
    from joulecast.plan.exact.front import Front
    from joulecast.plan.exact.plan_ends import PlanInterval
    from joulecast.simulator.iteration.result import Iteration


def predict_page(iteration: Iteration, front: Front | None = None, *, no_front: str = "") -> Page:
    """Page of a forecast.

    Parameters
    ----------
    front
        Of the same plan, to show the forecast among its alternatives.
    no_front
        Why there is none, where one was wanted.

    Raises
    ------
    InputError
        The forecast has no energy.
    """
    check_energy(iteration.time_s, iteration.energy_j)
    sections = [front_section(front, iteration)] if front is not None else []
    if no_front:
        sections.append(Section("Time and energy with other clocks", f"<p>Left out: {no_front}</p>"))
    sections += [timeline_section(iteration), ledger_section(iteration), stages_section(iteration)]
    sections.append(memory_section(iteration))
    if iteration.site is not None:
        sections.append(site_section(iteration.site))
    else:
        sections.append(nothing_beyond(iteration.plan.cluster.gpu))
    granted = [*iteration.assumptions, *(SITE_ASSUMPTIONS if iteration.site is not None else ())]
    sections += [assumptions(granted), plan_section(iteration.plan)]
    if iteration.description is not None:
        sections.append(provenance(iteration.description))
    site = iteration.site
    numbers = [*head(iteration), *([] if site is None else [*site_figures(site), *run_figures(site)])]
    w = iteration.plan.workload
    about = f"{w.model_name} on {iteration.gpus} × {iteration.plan.cluster.gpu}"
    kicker = f"{about}, {spaced(iteration.tokens, 9)} tokens an iteration"
    return Page(about, kicker, answer(iteration), more(iteration, front), numbers, sections)


def check_energy(time_s: float, energy_j: float) -> None:
    """Refuse to report what has no energy."""
    if not (energy_j > 0.0 and time_s > 0.0):
        raise InputError("there is no energy to report", key="energy_j", remedy="Forecast or measure the energy first.")


def answer(iteration: Iteration) -> str:
    """The answer in one sentence."""
    time, energy = unit_for("s", iteration.time_s), unit_for("J", iteration.energy_j)
    each = iteration.power_w / iteration.gpus
    return (
        f"One iteration takes {time.text(iteration.time_s, 3)} and {energy.text(iteration.energy_j, 3)}: "
        f"{spaced(iteration.tokens_per_s, 3 if iteration.tokens_per_s < 1e3 else 5)} tokens a second "
        f"at {each:.0f} W a GPU."
    )


def more(iteration: Iteration, front: Front | None) -> str:
    """Where most of the energy goes, how much of the time is lost, and what other clocks would save."""
    parts = sorted(iteration.energy_by_component_j.items(), key=lambda item: -item[1])
    largest = " and ".join(f"{word(n)} ({percent(e / iteration.energy_j, 2)})" for n, e in parts[:2])
    computed, communicated, *waited = time_by_part_s(iteration).values()
    computes, speaks, waits = (percent(part / iteration.time_s, 2) for part in (computed, communicated, sum(waited)))
    text = (
        f"Most energy goes into {largest}. A GPU computes {computes} of the time, only communicates for {speaks}, and "
        f"waits {waits}."
    )
    return text if front is None else f"{text} {what_clocks_save(front, iteration)}"


def what_clocks_save(front: Front, iteration: Iteration) -> str:
    """How much less energy the front's plan of the same time takes."""
    if front.points[0].time_s > iteration.time_s:
        return "No plan with clocks of its own is as fast."
    saved = 1.0 - front.at(iteration.time_s).energy_j / iteration.energy_j
    if saved <= 0.0:
        return "No choice of clocks would save energy without taking longer."
    return f"A clock for every instruction would save {percent(saved)} of the energy without taking longer."


def head(iteration: Iteration) -> list[Figure]:
    """The numbers that stand first."""
    time, energy = unit_for("s", iteration.time_s), unit_for("J", iteration.energy_j)
    token = unit_for("J", iteration.energy_per_token_j)
    limits, watts = limits_w(iteration), Unit(float(iteration.gpus), "W")
    power = figure_of(iteration, "power_w", "power of a GPU", watts)
    memory = max(r.memory_bytes for r in iteration.ranks)
    return [
        figure_of(iteration, "time_s", "time", time),
        figure_of(iteration, "energy_j", "energy, all GPUs", energy),
        Figure("energy of a token", token.text(iteration.energy_per_token_j, 3)),
        replace(power, note=f"{power.note}, {limit_words(limits)}") if limits else power,
        Figure("SM clock", f"{iteration.clock_mhz:.0f} MHz", "mean of the stages' medians"),
        Figure("memory", f"{memory / 1e9:.1f} GB", "allocated at the peak of the fullest GPU"),
    ]


def front_section(front: Front, iteration: Iteration | None, time_limit_s: float | None = None) -> Section:
    """The front, with the plan as it stands."""
    series = of_front(front, iteration, time_limit_s)
    rows = [
        {
            "time [s]": p.time_s,
            "energy [J]": p.energy_j,
            "mean power [W]": p.energy_j / p.time_s,
            "lower bound [J]": p.lower_bound_j,
            **({} if p.interval is None else _ends(p.interval)),
            "": "chosen" if i == series.chosen else "",
        }
        for i, p in enumerate(series.points)
    ]
    about = (
        "Each dot is a plan that sets a clock for every instruction; none is both faster and takes less energy. "
        f"The star is the plan of {series.why}. Choose a dot to see its clocks."
    )
    if front.intervals:
        about += (
            " Most of what a forecast may be off by is common to all plans: the band holds 90 % of the energies that a "
            "plan may take if the fastest one takes what is forecast."
        )
    after = folded(f"All {len(rows)} plans as numbers", table(rows))
    return Section("Time and energy with other clocks", f"<p>{about}</p>", (front_chart(series),), after)


def _ends(ends: PlanInterval) -> dict[str, Any]:
    """How sure a plan is, for the table."""
    pairs = {
        "time, 5 to 95 % [s]": (ends.time_s_p05, ends.time_s_p95),
        "energy, 5 to 95 % [J]": (ends.energy_j_p05, ends.energy_j_p95),
        "power, 5 to 95 % [W]": (ends.power_w_p05, ends.power_w_p95),
        "time over the fastest": (ends.time_ratio_p05, ends.time_ratio_p95),
        "energy over the fastest": (ends.energy_ratio_p05, ends.energy_ratio_p95),
    }
    return {name: f"{spaced(low)} to {spaced(high)}" for name, (low, high) in pairs.items()}


def timeline_section(iteration: Iteration) -> Section:
    """What the GPUs do over time."""
    timeline = timeline_series.of_iteration(iteration)
    shown = "the share of time that each kind of instruction takes"
    if not crowded(timeline):
        shown = "instructions with the number of their micro-batch"
    about = (
        f"<p>One GPU of each pipeline stage: {shown}, communication and waiting in it in the thin row below, as high "
        "as their share, power beneath. The board holds the average of its power at the limit, not every "
        "moment's.</p>"
    )
    chart = timeline_chart({"": timeline})
    return Section("What each GPU does", about, (chart,))


def ledger_section(iteration: Iteration) -> Section:
    """Where the energy goes."""
    result = iteration.to_dict()
    splits = {f"by {by}": ledger_of(result, by) for by in ("component", "instruction")}
    rows: list[dict[str, str | float]] = []
    for label, ledger in splits.items():
        columns = [f"{row} [J]" for row in ledger.rows]
        for name, values in ledger.parts.items():
            share = {"share [%]": round(100 * values[0] / ledger.total_j[0], 1)}
            rows.append({"split": label, "part": word(name)} | share | dict(zip(columns, values, strict=True)))
    about = "<p>Of one GPU: on average, and in each pipeline stage.</p>"
    return Section("Where the energy goes", about, (ledger_chart(splits),), folded("As numbers", table(rows)))


def stages_section(iteration: Iteration) -> Section:
    """One line for each stage."""
    about = (
        "<p>What of the communication nothing hides, waiting in it for the slowest of the GPUs that go in step, and "
        "waiting for other stages.</p>"
    )
    lines = table([stage_line(stage) for stage in iteration.to_dict()["stages"]])
    return Section("One GPU of each stage", about + lines)


def memory_section(iteration: Iteration) -> Section:
    """Whether the plan fits memory, part by part."""
    least = min(rank.memory_margin_bytes for rank in iteration.ranks) / 1e9
    lines = [memory_line(stage) for stage in iteration.to_dict()["stages"]]
    kept = "Beyond the total PyTorch keeps memory reserved." if any("with reserved" in line for line in lines) else ""
    about = f"<p>At the peak, in GB. The fullest GPU has {least:.3g} GB left. {kept}</p>"
    return Section("Memory of one GPU of each stage", about + table(lines))
