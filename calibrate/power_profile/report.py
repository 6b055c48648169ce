"""A profile as files: data as CSV, a plot as PNG."""

from __future__ import annotations

import csv
import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.power_profile.protocol import WHOLE
from joulecast.calibrate.power_profile.resolve import averaging_boxes
from joulecast.calibrate.power_profile.result import Curve, PowerProfile
from joulecast.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Titles of the curves, in the order of the panels.
TITLES = {"run": "run, from rest", "sse": "first execution of steady time", "ssp": "execution of steady power"}
INK, BAND, POINTS, TREND, UNRESOLVED = "#1f3a5f", "#9db8d9", "#b0b0b0", "#c0392b", "#e0e0e0"


def curve_csv(profile: PowerProfile) -> str:
    """The curves, one line per bin; a trend or component that there is not is empty."""
    parts = sorted(profile.components)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["curve", "time_s", "width_s", "power_w", "standard_error_w", "resolution_s", "resolved", "trend_w"]
    writer.writerow([*head, *(f"{part}_power_w" for part in parts)])
    for curve in profile.curves.values():
        trend = None if curve.trend is None else curve.trend.power_w(curve.time_s)
        for i in range(len(curve.time_s)):
            values = [
                curve.time_s[i],
                curve.width_s[i],
                curve.power_w[i],
                curve.standard_error_w[i],
                curve.resolution_s,
            ]
            shown = [_number(value) for value in values]
            extra = ["" if trend is None else _number(trend[i]), *(_number(curve.components_w[p][i]) for p in parts)]
            writer.writerow([curve.name, *shown, str(bool(curve.resolved[i])).lower(), *extra])
    return text.getvalue()


def points_csv(profile: PowerProfile) -> str:
    """The stitched readings; ``execution`` counts from 0 and includes the share of it that was done."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "run_time_s", "execution", "power_w", "golden"])
    points, kernels = profile.points, len(profile.kernels)
    for run, run_s, step, power, golden in zip(
        points.run, points.run_s, points.step, points.power_w, points.golden, strict=True
    ):
        place = _number(step / kernels)
        writer.writerow([int(run), _number(run_s), place, _number(power), str(bool(golden)).lower()])
    return text.getvalue()


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def write_plot(profile: PowerProfile, path: Path) -> None:
    """Draw the curves with their readings, trend and what is not resolved, and write a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * max(len(profile.curves), 1.35), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(profile.curves), squeeze=False)[0]
    for axis, curve in zip(axes, profile.curves.values(), strict=True):
        _panel(axis, profile, curve)
    axes[0].set_ylabel("power [W]")
    figure.suptitle(f"{' + '.join(profile.kernels)} on {profile.device}", fontsize=11)
    write_whole(path, lambda draft: figure.savefig(draft, format="png", dpi=130))


def _panel(axis: Any, profile: PowerProfile, curve: Curve) -> None:
    scale, unit = (1e6, "µs") if curve.width_s.sum() < 2e-3 else (1e3, "ms")
    power, told = _told_apart(profile, curve)
    low, high = power - 2 * curve.standard_error_w, power + 2 * curve.standard_error_w
    x = curve.time_s * scale
    readings = _readings(profile, curve)
    if readings is not None:
        axis.plot(readings[0] * scale, readings[1], ".", ms=2, color=POINTS, zorder=1, label="readings")
    axis.fill_between(x, low, high, color=BAND, alpha=0.6, lw=0, zorder=2, label="± 2 standard errors")
    axis.plot(x, power, color=INK, lw=1.4, zorder=4, label="profile")
    if not told:
        axis.plot(x, curve.power_w, color=INK, lw=0.5, alpha=0.4, zorder=3, label="finer than the resolution")
    if curve.trend is not None:
        axis.plot(x, curve.trend.power_w(curve.time_s), "--", color=TREND, lw=1, zorder=3, label="trend, degree 4")
    for number, (start, stop) in enumerate(_stretches(~curve.resolved)):
        left, right = x[start] - curve.width_s[start] * scale / 2, x[stop] + curve.width_s[stop] * scale / 2
        axis.axvspan(left, right, color=UNRESOLVED, lw=0, zorder=0, label=None if number else "not resolved")
    for name, values in curve.components_w.items():
        axis.plot(x, values, lw=1, alpha=0.9, label=name)
    if curve.name == "run":
        steady = profile.ssp.power_w
        axis.axhline(steady, color=INK, lw=0.8, ls=":", label=f"steady power {steady:.0f} W")
        if profile.time_to_ssp_s:
            axis.axvline(profile.time_to_ssp_s * scale, color=INK, lw=0.8, ls="-.", label="time to steady power")
    shown = np.concatenate([curve.power_w[curve.resolved], [profile.ssp.power_w]])
    if readings is not None and len(readings[1]) and not _averaged(profile, curve):
        shown = np.concatenate([shown, np.quantile(readings[1], [0.02, 0.98])])
    span = max(float(np.ptp(shown)), 0.05 * float(shown.max()))
    bottom = 0.0 if curve.components_w else float(shown.min()) - span
    axis.set_ylim(bottom, float(shown.max()) + span)
    axis.set_xlim(0.0, float(curve.width_s.sum()) * scale)
    axis.set_xlabel(f"time [{unit}]")
    resolution = f"{curve.resolution_s * scale:.3g} {unit}" if np.isfinite(curve.resolution_s) else "not resolved"
    axis.set_title(f"{TITLES[curve.name]} (resolution {resolution})", fontsize=9)
    axis.legend(fontsize=7, loc="best", frameon=False)


def _readings(profile: PowerProfile, curve: Curve) -> tuple[Any, Any] | None:
    """Time and power of the golden readings that belong to a curve; none where their window is no moment of it."""
    if _averaged(profile, curve) and curve.name != "run":
        return None
    points, kernels = profile.points, len(profile.kernels)
    if curve.name == "run":
        chosen = points.golden & (points.run_s < curve.width_s.sum())
        return points.run_s[chosen], points.power_w[chosen]
    first = (profile.sse_index if curve.name == "sse" else profile.ssp_index) * kernels
    chosen = points.within(first, first + kernels if curve.name == "sse" else np.inf)
    return (points.step[chosen] % kernels) / kernels * curve.width_s.sum(), points.power_w[chosen]


def _told_apart(profile: PowerProfile, curve: Curve) -> tuple[Array, bool]:
    """Power as it is drawn, and whether that is all of the curve.

    Where no feature shorter than the sensor's window is told apart, a ripple as long as the window is the sensor's and
    not the card's: the mean over the resolution is drawn.
    """
    window = _window_s(profile)
    if not np.isfinite(curve.resolution_s) or not 0.0 < window < curve.resolution_s:
        return curve.power_w, True
    edges = np.concatenate([[0.0], np.cumsum(curve.width_s)])
    return averaging_boxes(edges, curve.resolution_s) @ curve.power_w, False


def _averaged(profile: PowerProfile, curve: Curve) -> bool:
    """Whether readings are means over a good part of the curve."""
    return _window_s(profile) > float(curve.width_s.sum()) / 50


def _window_s(profile: PowerProfile) -> float:
    """Shortest averaging window of the sensors of the whole board [s]."""
    return min((s.window_s for s in profile.sensors if s.name in WHOLE), default=0.0)


def _stretches(flags: Any) -> Iterator[tuple[int, int]]:
    """First and last index of every stretch of true values."""
    index = np.flatnonzero(flags)
    for part in np.split(index, np.flatnonzero(np.diff(index) > 1) + 1):
        if len(part):
            yield int(part[0]), int(part[-1])


def _number(value: float) -> str:
    return f"{float(value):.9g}"
