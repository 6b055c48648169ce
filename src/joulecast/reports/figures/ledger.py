"""The energy ledger drawn with Matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.reports.figures.figure import new_figure, styled
from joulecast.reports.numbers import unit_for
from joulecast.reports.palette import BRIGHT, role_of, scheme, word

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from joulecast.reports.series.ledger import Ledger

#: Share of the longest row from which a part has its share written on it.
LABELLED = 0.07


@styled
def ledger_figure(ledger: Ledger, width_in: float) -> Figure:
    """Energy of a GPU on average and of every stage, by part, with the 90 % interval of the mean."""
    colour, totals = scheme(False), ledger.total_j
    figure, (axis,) = new_figure(width_in, 1.2 + 0.36 * len(ledger.rows))
    unit = unit_for("J", max(totals))
    rows = range(len(ledger.rows))
    left = [0.0] * len(ledger.rows)
    for name, values in ledger.parts.items():
        role = role_of(name)
        lengths = [v / unit.factor for v in values]
        axis.barh(rows, lengths, left=left, height=0.62, color=colour[role], ec="white", lw=0.5, label=word(name))
        for row, value in enumerate(values):
            if value >= LABELLED * max(totals):
                text = f"{100 * value / totals[row]:.0f} %"
                axis.text(left[row] + lengths[row] / 2, row, text, ha="center", va="center_baseline", fontsize=7,
                          color=colour["ink"] if role in BRIGHT else "white")  # fmt: skip
        left = [a + b for a, b in zip(left, lengths, strict=True)]
    if ledger.low_j is not None and ledger.high_j is not None:
        whole = totals[0] / unit.factor
        ends = [[whole - ledger.low_j / unit.factor], [ledger.high_j / unit.factor - whole]]
        axis.errorbar([whole], [-0.46], xerr=ends, fmt="o", color=colour["ink"], ms=2.5, lw=0.9, capsize=2)
    axis.set_ylim(len(ledger.rows) - 0.5, -0.7)
    axis.set_yticks(list(rows), list(ledger.rows))
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
    axis.spines["left"].set_visible(False)
    axis.set_xlabel(f"energy of one GPU in an iteration [{unit.name}]; bar: 90 % interval")
    figure.legend(loc="outside upper center", ncols=min(len(ledger.parts), 4), handlelength=1.0, columnspacing=1.0)
    return figure
