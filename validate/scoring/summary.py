"""Figures of merit of a suite: errors, intervals and trivial baselines for every group of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from joulecast.arrays import Array
from joulecast.validate.scoring import metrics
from joulecast.validate.scoring.result import Prediction, ScoredRow

#: Quantity to the short word in the summary's keys.
WORDS = {
    "time_s": "time",
    "energy_j": "energy",
    "power_w": "power",
    "sm_clock_mhz": "clock",
    "peak_mem_bytes": "memory",
}
#: Quantities whose forecasts have an interval.
WITH_INTERVAL = ("time_s", "energy_j", "power_w")


def summarise(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    """Figures of all rows, of each family and of each further group."""
    summary: dict[str, Any] = {"all": figures(rows)}
    for family in sorted({row.family for row in rows}):
        summary[family] = figures([row for row in rows if row.family == family])
    for group in sorted({group for row in rows for group in row.groups}):
        summary[group] = figures([row for row in rows if group in row.groups])
    return summary


def summarise_beside(rows: Sequence[ScoredRow], beside: Mapping[str, Sequence[Prediction]]) -> dict[str, Any]:
    """As :func:`summarise`, with ``time_…_percent`` and the like of further rules beside the trivial one's."""
    summary = summarise(rows)
    for name, rule in beside.items():
        others = summarise([replace(row, baseline=one) for row, one in zip(rows, rule, strict=True)])
        for group, word in product(summary, ("time", "energy", "power")):
            summary[group][f"{word}_{name}_percent"] = others[group][f"{word}_baseline_percent"]
    return summary


def figures(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    """Errors [%] of one group of rows.

    ``…_error_percent`` is the mean absolute relative error, ``…_worst_percent`` the largest, ``…_bias_percent`` the
    mean with its sign, ``…_baseline_percent`` the mean absolute error of the trivial rule, ``…_inside_percent`` the
    share of measured values within the 90 % interval and ``…_half_width_percent`` the interval's mean half-width.
    """
    result: dict[str, Any] = {"rows": len(rows)}
    for quantity, word in WORDS.items():
        measured, predicted, baseline = (
            _column(rows, side, quantity) for side in ("measured", "prediction", "baseline")
        )
        errors = metrics.relative_errors(predicted, measured)
        result[f"{word}_error_percent"] = _percent(metrics.mean_absolute(errors))
        result[f"{word}_baseline_percent"] = _percent(
            metrics.mean_absolute(metrics.relative_errors(baseline, measured))
        )
        result[f"{word}_worst_percent"] = _percent(metrics.largest_absolute(errors))
        result[f"{word}_bias_percent"] = _percent(metrics.mean_signed(errors))
        if quantity in WITH_INTERVAL:
            low, high = (_column(rows, "prediction", f"{quantity}_{end}") for end in ("p05", "p95"))
            result[f"{word}_inside_percent"] = _percent(metrics.coverage(measured, low, high))
            result[f"{word}_half_width_percent"] = _percent(metrics.mean_half_width(predicted, low, high, measured))
    return result


def _column(rows: Sequence[ScoredRow], side: str, quantity: str) -> Array:
    return metrics.as_array([getattr(getattr(row, side), quantity) for row in rows])


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100.0 * value, 3)
