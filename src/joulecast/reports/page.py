"""One HTML file that holds everything: text, tables, charts and the library that draws them.

Nothing is fetched: a policy in the head forbids it. The file appears whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path

import joulecast
from joulecast.command_line.output import plain
from joulecast.errors import InputError
from joulecast.files import write_text
from joulecast.reports.charts.chart import Chart
from joulecast.reports.palette import scheme

#: What a page may do: its own scripts and styles, and pictures that it makes itself.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

#: Where the one function of Plotly's script begins and ends, without and with brackets around it.
FACTORY = (("this, () => {", "this, (() => {"), ("return Plotly;\n}));", "return Plotly;\n})));"))

#: Endings of a page; none is well too. Who gives another hopes for another form.
ENDINGS = ("", ".html", ".htm")
#: What the keyboard does in a chart.
KEYS = "Arrow keys move between points, Enter keeps what a point says, plus and minus zoom, 0 shows all."


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that stands at the head of a page.

    Attributes
    ----------
    label
        What it is.
    text
        Value with unit.
    note
        A second line, e.g. the interval.
    place
        Where value and ends of the interval lie between 0 and 1, as (low, value, high); drawn as a bar.
    """

    label: str
    text: str
    note: str = ""
    place: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: a title, some HTML, charts, and more HTML behind them."""

    title: str
    before: str = ""
    charts: tuple[Chart, ...] = ()
    after: str = ""


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes
    ----------
    title
        Of the window.
    kicker
        What this is about, above the answer.
    answer
        The answer in one sentence.
    more
        What else is worth saying first.
    figures, sections
        Numbers below the answer, and the parts of the page.
    """

    title: str
    kicker: str
    answer: str
    more: str = ""
    figures: Sequence[Figure] = ()
    sections: Sequence[Section] = field(default=())

    def html(self) -> str:
        """The whole file."""
        charts = [chart for section in self.sections for chart in section.charts]
        data = {"palettes": [scheme(False), scheme(True)], "charts": [asdict(chart) for chart in charts]}
        style, script, tables = (
            files("joulecast.reports").joinpath(name).read_text("utf-8")
            for name in ("page.css", "page.js", "tables.js")
        )
        body = "\n".join(
            [
                f"<header><p class=kicker>{escape(self.kicker)}</p><h1>{escape(self.answer)}</h1>",
                f"<p class=more>{escape(self.more)}</p></header>" if self.more else "</header>",
                _figures(self.figures),
                *(_section(section) for section in self.sections),
                f"<footer>Joulecast {joulecast.__version__}</footer>",
            ]
        )
        return _WHOLE.format(
            policy=POLICY,
            title=escape(self.title),
            style=style,
            body=body,
            library=plotly_library() if charts else "",
            data=json.dumps(plain(data), separators=(",", ":"), allow_nan=False).replace("</", "<\\/"),
            script=script,
            tables=tables,
        )

    def write(self, path: Path) -> None:
        """Write the page.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        write_text(path, self.html())


_WHOLE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
<p id="live" class="unseen" aria-live="polite"></p>
<script>
{tables}
</script>
<script type="application/json" id="joulecast-data">{data}</script>
<script>{library}</script>
<script>
{script}
</script>
</body>
</html>
"""


def check_report(path: Path) -> None:
    """Refuse a report that could not be written, before the work is done.

    Raises
    ------
    InputError
        No such folder, the path is a folder, or its ending is that of another kind of file.
    """
    if not path.parent.is_dir():
        raise InputError("no such folder", file=str(path.parent), key="--report", remedy="Create it first.")
    if path.is_dir():
        raise InputError("is a folder", file=str(path), key="--report", remedy="Give a file, such as report.html.")
    if path.suffix.lower() not in ENDINGS:
        remedy = f"Call it {path.with_suffix('.html').name}; --json prints data, and `joulecast plot` draws figures."
        raise InputError("a report is an HTML page", file=str(path), key="--report", remedy=remedy)


def plotly_library() -> str:
    """The script of Plotly that can draw lines, dots and bars.

    The function that holds it all is put into brackets: a browser takes that as a sign that it will be called,
    and reads it once instead of twice.
    """
    text = files("joulecast.reports").joinpath("vendored", "plotly-basic.min.js").read_text("utf-8")
    for found, bracketed in FACTORY:
        text = text.replace(found, bracketed, 1)
    return text.replace("</script", "<\\/script")


def _figures(figures: Sequence[Figure]) -> str:
    cards = []
    for figure in figures:
        note = f"<span class=note>{escape(figure.note)}</span>" if figure.note else ""
        cards.append(
            f"<div class=figure><dt>{escape(figure.label)}</dt>"
            f"<dd>{escape(figure.text)}{_whisker(figure)}{note}</dd></div>"
        )
    return f"<dl class=figures>{''.join(cards)}</dl>" if cards else ""


def _whisker(figure: Figure) -> str:
    """The interval as a line with a dot; without words, because the note has them."""
    if figure.place is None:
        return ""
    low, value, high = (f"{100 * x:.1f}" for x in figure.place)
    return (
        "<svg class=whisker viewBox='0 0 100 8' preserveAspectRatio=none aria-hidden=true>"
        f"<line x1={low} x2={high} y1=4 y2=4 /><line x1={value} x2={value} y1=0 y2=8 class=dot /></svg>"
    )


def _section(section: Section) -> str:
    charts = "".join(
        f"<figure><div class=controls data-controls='{chart.name}'></div>"
        f"<div class=chart id='{chart.name}' style='height:{chart.views[0].height}px' tabindex=0 role=application "
        f"aria-label='{escape(chart.label, quote=True)}. {KEYS}'></div>"
        f"<div class=detail data-detail='{chart.name}' hidden></div></figure>"
        for chart in section.charts
    )
    alone = section.before.startswith("<details") and not charts and not section.after
    kind = " class=folded" if alone else ""  # without a heading on paper while it is folded
    return f"<section{kind}><h2>{escape(section.title)}</h2>{section.before}{charts}{section.after}</section>"
