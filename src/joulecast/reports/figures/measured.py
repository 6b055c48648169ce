"""Forecasts against measurements drawn with Matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.reports.charts.measured import BAND, Families, ends_of
from joulecast.reports.figures.figure import new_figure, styled
from joulecast.reports.numbers import unit_for
from joulecast.reports.palette import scheme, series_role
from joulecast.reports.series.measured import QUANTITIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Markers of families, in the order of the palette's series.
MARKERS = ("o", "s", "D", "^", "P", "X", "v", "h")


@styled
def measured_figure(quantity: str, families: Families, width_in: float) -> Figure:
    """Forecast over measured values with the band of ±5 %, and below it the errors."""
    colour = scheme(False)
    figure, (above, below) = new_figure(width_in, 1.45 * width_in, rows=2)
    word, base = QUANTITIES[quantity]
    pairs = [pair for of in families.values() for pair in of]
    low, high, log = ends_of(pairs)
    unit = unit_for(base, max(pair.measured for pair in pairs))
    x = unit.of([low, high])
    above.fill_between(
        x, [v * (1 - BAND) for v in x], [v * (1 + BAND) for v in x], color=colour["band"], alpha=0.2, lw=0
    )
    above.plot(x, x, color=colour["band"], lw=0.8)
    below.axhspan(-100 * BAND, 100 * BAND, color=colour["band"], alpha=0.2, lw=0, label="±5 %")
    below.axhline(0, color=colour["band"], lw=0.8)
    for i, (family, of) in enumerate(families.items()):
        measured, predicted = unit.of(p.measured for p in of), unit.of(p.predicted for p in of)
        bars = [[max(p.below, 0.0) for p in of], [max(p.above, 0.0) for p in of]]
        shares = [[bar * (100.0 / p.measured) for bar, p in zip(side, of, strict=True)] for side in bars]
        how = {"fmt": MARKERS[i % len(MARKERS)], "color": colour[series_role(i)], "ms": 3.6, "mec": "white", "mew": 0.3,
               "elinewidth": 0.6}  # fmt: skip
        above.errorbar(measured, predicted, yerr=[unit.of(b) for b in bars], label=f"{family} ({len(of)})", **how)
        below.errorbar(measured, [100 * p.error for p in of], yerr=shares, **how)
    if log:
        above.set_xscale("log")
        above.set_yscale("log")
    above.set_xlim(*x)
    above.set_ylabel(f"forecast {word} [{unit.name}]")
    below.set_ylabel("error [%]")
    below.set_xlabel(f"measured {word} [{unit.name}]")
    above.legend(loc="upper left")
    below.legend(loc="upper left")
    return figure
