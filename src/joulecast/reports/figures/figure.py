"""Figures for papers with Matplotlib: one style, and files that are the same bytes every time."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from joulecast.errors import InputError, UnknownNameError
from joulecast.extras import install
from joulecast.files import write_whole
from joulecast.reports.palette import scheme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")

#: Nothing of the moment or the machine stands in a file.
METADATA: dict[str, dict[str, None]] = {
    ".pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
}
#: Endings of the files that can be written.
ENDINGS = tuple(METADATA)
INK, MUTED, GRID = (scheme(False)[role] for role in ("ink", "muted", "grid"))
#: Matplotlib types its keys one by one; the names here are checked when a figure is made.
STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,
    "svg.hashsalt": "joulecast",
}


def check_figure(path: Path) -> None:
    """Refuse a figure that could not be written, before the work is done.

    Raises
    ------
    UnknownNameError
        The file's ending is none that can be written.
    InputError
        No such folder, or Matplotlib is not installed.
    """
    if path.suffix.lower() not in ENDINGS:
        raise UnknownNameError("ending of a figure", path.suffix or path.name, ENDINGS, file=str(path), key="--out")
    if not path.parent.is_dir():
        raise InputError("no such folder", file=str(path.parent), key="--out", remedy="Create it first.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("figures need Matplotlib", remedy=install("plot")) from None


def save(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all, in the format of the file's ending.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    from matplotlib import rc_context

    ending = path.suffix.lower()
    buffer = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format=ending[1:], dpi=200, metadata=METADATA[ending])
    write_whole(path, lambda draft: draft.write_bytes(buffer.getvalue()))


def new_figure(width_in: float, height_in: float, rows: int = 1) -> tuple[Figure, list[Any]]:
    """A figure and its axes, below each other and over one horizontal axis.

    Parameters
    ----------
    width_in, height_in
        Size in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Let a function draw in the one style."""

    @wraps(draw)
    def within(*args: P.args, **more: P.kwargs) -> Figure:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return draw(*args, **more)

    return within
