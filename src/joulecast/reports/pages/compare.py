"""The report of a comparison: what differs between plans, and where the differences come from."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from joulecast.command_line.compare_lines import key_lines, ledger_lines, result_lines
from joulecast.plan.comparison.ledgers import Item
from joulecast.reports.charts.chart import Chart, Series, View, axis, told
from joulecast.reports.charts.time_energy import Dot, Group, time_energy_chart
from joulecast.reports.html import bullets, folded, table
from joulecast.reports.numbers import Unit, interval, percent, spaced, unit_for
from joulecast.reports.page import Figure, Page, Section
from joulecast.reports.palette import series_role, series_symbol, word
from joulecast.reports.sections import provenance, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulecast.plan.comparison.compare import Against, Comparison
    from joulecast.plan.comparison.ledgers import LedgerDifference

#: Quantities of ledgers: how a view of the chart and its axis are called, and their unit.
QUANTITIES = {
    "time_s": ("time", "s"),
    "energy_j": ("energy of GPUs", "J"),
    "facility_energy_j": ("energy of the facility", "J"),
    "money": ("money", "currency"),
    "carbon_kg": ("carbon", "kgCO2e"),
}


def compare_page(found: Comparison) -> Page:
    """Page of a comparison."""
    keys = table(key_lines(found)) if found.keys else "<p>The plans do not differ in any key.</p>"
    sections = [Section("What differs in the plans", keys), results_section(found)]
    for number, one in enumerate(found.against):
        lines = table(ledger_lines(found, one.plan), name="these ledgers")
        title = f"Why {one.plan} differs from {found.names[0]}"
        about = bullets(f"{reason}.".replace(" -", " −") for reason in one.reasons)
        about += "<p>What each item adds to the difference; the items of a view sum to it exactly.</p>"
        chart = ledgers_chart(one, number, found.currency)
        sections.append(Section(title, about, (chart,), folded("Every item as numbers", lines)))
    sections += [provenance(gpu) for gpu in found.descriptions]
    more = " ".join(map(sentence, found.notes))
    title = " against ".join((", ".join(found.names[1:]), found.names[0]))
    return Page(title, f"Comparison of {len(found.names)} plans", answer(found), more, figures(found), sections)


def results_section(found: Comparison) -> Section:
    """Time and energy of every plan with their intervals, and all results as numbers."""
    groups = [
        Group(name, series_role(i), series_symbol(i), (_dot(found, i),), size=12) for i, name in enumerate(found.names)
    ]
    label = "Time and energy of every plan, with 90 % intervals"
    chart = time_energy_chart("results", label, groups, "an iteration")
    return Section("Results", "<p>Bars: 90 % intervals.</p>", (chart,), table(result_lines(found)))


def _dot(found: Comparison, place: int) -> Dot:
    """A plan with its intervals."""

    def result(key: str) -> float:
        return found.results[key][place] or 0.0

    shares, texts = [], []
    for key, base in (("time_s", "s"), ("energy_j", "J")):
        value, low, high = (result(key + end) for end in ("", "_p05", "_p95"))
        shares.append((low / value, high / value))
        texts.append(interval(low, high, unit_for(base, value)))
    text = f"{escape(found.names[place])}<br>90 %: {', '.join(texts)}"
    return Dot(result("time_s"), result("energy_j"), text, *shares)


def answer(found: Comparison) -> str:
    """The answer in one sentence."""
    first, name = found.names[0], found.names[1]
    if len(found.names) == 2:
        words = {"time_s": "time", "energy_j": "energy"}
        parts = [f"{_more(found.results[key])} {noun}" for key, noun in words.items()]
        return f"{name} takes {' and '.join(parts)} {'than' if 'as much' not in parts[-1] else 'as'} {first}."
    time, energy = _least(found, "time_s"), _least(found, "energy_j")
    faster, leaner = _saved(found, "time_s", time), _saved(found, "energy_j", energy)
    if time == energy:
        gain = "" if time == first else f": {faster} and {leaner} less than {first}"
        return f"Of {len(found.names)} plans {time} takes the least time and energy{gain}."
    faster, leaner = (
        "" if best == first else f" ({gain} less than {first})" for best, gain in ((time, faster), (energy, leaner))
    )
    return f"Of {len(found.names)} plans {time} takes the least time{faster}, {energy} the least energy{leaner}."


def figures(found: Comparison) -> list[Figure]:
    """The second plan's distance from the reference, or the best of several."""
    labels = {"time_s": "time", "energy_j": "energy, GPUs", "facility_energy_j": "energy, facility"}
    labels |= {"money": "money", "carbon_kg": "carbon"}
    shown = []
    for key, label in labels.items():
        values = [value for value in found.results.get(key, ()) if value is not None]
        if len(values) < len(found.names) or not values[0]:
            continue
        best = _least(found, key)
        if len(found.names) == 2:
            shown.append(Figure(label, _change(*values)))
        elif best == found.names[0]:
            shown.append(Figure(label, "least", f"{best}, the reference"))
        else:
            shown.append(Figure(label, _change(values[0], min(values)), f"least: {best}"))
    return shown


def _change(reference: float, other: float) -> str:
    if other == reference:
        return "the same"
    return f"{100.0 * (other / reference - 1.0):+.1f} %".replace("-", "−")


def ledgers_chart(one: Against, number: int, currency: str) -> Chart:
    """Differences of one plan from the reference, item by item, one view for each ledger."""
    views = tuple(_view(ledger, currency) for ledger in one.ledgers)
    return Chart(f"differences{number}", f"What each item adds to the difference of {one.plan}", views)


def _view(ledger: LedgerDifference, currency: str) -> View:
    noun, base = QUANTITIES[ledger.quantity]
    if ledger.quantity == "money":
        base = currency or base
    items = [item for item in reversed(ledger.items) if item.reference or item.other]
    unit = unit_for(base, max((abs(item.difference) for item in items), default=0.0))
    kinds = {
        "more": ("limit", [item for item in items if item.difference >= 0]),
        "less": ("optimizer", [item for item in items if item.difference < 0]),
        "all": ("forecast", [Item("all", ledger.reference, ledger.other, None)]),
    }
    kinds = {name: kind for name, kind in kinds.items() if kind[1]}
    data: list[dict[str, Any]] = [_bars(role, members, unit) for role, members in kinds.values()]
    rows = [word(item.name) for item in items] + ["all"]
    layout = {
        "bargap": 0.35,
        "barmode": "overlay",
        "xaxis": axis(f"difference in {noun} [{unit.name}]", zeroline=True),
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": rows,
            "showgrid": False,
            "fixedrange": True,
            "ticklen": 6,
        },
        "hovermode": "closest",
    }
    series = tuple(Series(name, role, (i,), "bar") for i, (name, (role, _)) in enumerate(kinds.items()))
    return View(f"{noun} by {ledger.split}", data, layout, series, 110 + 30 * len(rows))


def _bars(role: str, items: Sequence[Item], unit: Unit) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "y": [word(item.name) for item in items],
        "x": unit.of([item.difference for item in items]),
        "marker": {"color": f"@{role}"},
        **told([_hover(item, unit) for item in items]),
    }


def _hover(item: Item, unit: Unit) -> str:
    change = f"{unit.text(item.reference)} to {unit.text(item.other)}: {unit.text(item.difference)}"
    text = f"<b>{word(item.name)}</b><br>{change}"
    return text if item.share is None else f"{text}<br>{percent(item.share)} of the difference"


def _more(values: tuple[float | None, ...]) -> str:
    reference, other = values[0], values[1]
    if not reference or other is None or other == reference:
        return "as much"
    change = other / reference - 1.0
    return f"{spaced(100.0 * abs(change), 3)} % {'more' if change > 0 else 'less'}"


def _least(found: Comparison, key: str) -> str:
    known = [(value, name) for name, value in zip(found.names, found.results[key], strict=True) if value is not None]
    return min(known)[1]


def _saved(found: Comparison, key: str, best: str) -> str:
    """How much less than the reference the best plan takes."""
    values = dict(zip(found.names, found.results[key], strict=True))
    reference, least = values[found.names[0]] or 0.0, values[best] or 0.0
    return percent(1.0 - least / reference if reference else 0.0)
