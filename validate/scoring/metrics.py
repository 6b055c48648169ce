"""Figures of merit as pure functions of arrays; missing values are NaN and never counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from joulecast.arrays import Array


def as_array(values: Sequence[float | None]) -> Array:
    """Floats with NaN for ``None``.

    >>> as_array([1.0, None]).tolist()
    [1.0, nan]
    """
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def relative_errors(predicted: Array, measured: Array) -> Array:
    """Signed error ``predicted / measured − 1`` [1], NaN where either is missing or the measurement is zero."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        errors = predicted / measured - 1.0
    return np.where(np.isfinite(errors), errors, np.nan)


def mean_absolute(errors: Array) -> float | None:
    """Mean of absolute errors over those present, ``None`` without any.

    >>> mean_absolute(np.array([0.1, -0.3, np.nan]))
    0.2
    """
    return _of_present(np.abs(errors), np.mean)


def largest_absolute(errors: Array) -> float | None:
    """Largest absolute error, ``None`` without any."""
    return _of_present(np.abs(errors), np.max)


def mean_signed(errors: Array) -> float | None:
    """Mean error with its sign (bias), ``None`` without any."""
    return _of_present(errors, np.mean)


def _of_present(values: Array, reduce: Callable[[Array], Any]) -> float | None:
    present = values[np.isfinite(values)]
    return float(reduce(present)) if present.size else None


def coverage(measured: Array, low: Array, high: Array) -> float | None:
    """Share of the measured values that lie within their interval [1]."""
    known = np.isfinite(measured) & np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return None
    inside = (measured >= low) & (measured <= high)
    return float(np.mean(inside[known]))


def mean_half_width(predicted: Array, low: Array, high: Array, measured: Array) -> float | None:
    """Mean relative half-width of the intervals of the measured rows, ``(high − low) / (2·predicted)`` [1]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        widths = (high - low) / (2.0 * predicted)
    return _of_present(widths[np.isfinite(measured)], np.mean)


def geometric_mean(values: Array) -> float | None:
    """Geometric mean of the positive values, ``None`` without any."""
    present = values[np.isfinite(values) & (values > 0)]
    return float(np.exp(np.mean(np.log(present)))) if present.size else None
