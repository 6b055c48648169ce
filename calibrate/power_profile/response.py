"""What a sensor makes of the power: each reading is a mean over a window, hence a row of weights on the unknowns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.power_profile.layout import OUTSIDE
from joulecast.calibrate.power_profile.protocol import Array


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Shares of unknowns in readings, one by one; each pair of reading and unknown may come several times.

    Attributes
    ----------
    row, label, weight
        Shape (k,): the reading, the unknown and its share; those of readings that are not usable are left out.
    usable
        Shape (n,): whether the reading touches nothing that is labelled outside.
    """

    row: NDArray[np.int64]
    label: NDArray[np.int64]
    weight: Array
    usable: NDArray[np.bool_]


def response_entries(start_s: Array, end_s: Array, edges_s: Array, labels: NDArray[np.int64]) -> Entries:
    """Share of each unknown in each reading.

    A reading that averages power p(t) over [a, b] of a series whose power is x_j where the label is j reads
    ``(1/(b − a))·Σ_j |[a, b] ∩ {label = j}|·x_j``; with b = a it reads x at that moment.

    Parameters
    ----------
    start_s, end_s
        Shape (n,): the windows, on the clock of the edges.
    edges_s, labels
        Shapes (m + 1,) and (m,), from :meth:`Layout.segments`; the first edge may be −∞, the last +∞.
    """
    first = np.searchsorted(edges_s, start_s, side="right") - 1
    last = np.searchsorted(edges_s, end_s, side="left") - 1
    last = np.maximum(last, first)
    pieces = last - first + 1
    row = np.repeat(np.arange(len(start_s)), pieces)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces) + first[row]
    low = np.maximum(edges_s[piece], start_s[row])
    high = np.minimum(edges_s[piece + 1], end_s[row])
    span = (end_s - start_s)[row]
    instant = span <= 0.0
    weight = np.where(instant, 1.0, np.maximum(high - low, 0.0) / np.where(instant, 1.0, span))
    label = labels[piece]
    outside = label == OUTSIDE
    usable = np.bincount(row, weights=weight * outside, minlength=len(start_s)) == 0.0
    inside = ~outside & usable[row]
    return Entries(row[inside], label[inside], weight[inside], usable)


def response_rows(
    start_s: Array, end_s: Array, edges_s: Array, labels: NDArray[np.int64], size: int
) -> tuple[Array, NDArray[np.bool_]]:
    """As :func:`response_entries`, of ``size`` unknowns, as a matrix.

    Returns
    -------
    tuple
        Shape (n, size) weights, each row summing to one, and shape (n,) whether the reading touches nothing that is
        labelled outside. Rows of the others are zero.
    """
    found, count = response_entries(start_s, end_s, edges_s, labels), len(start_s)
    flat = np.bincount(found.row * size + found.label, weights=found.weight, minlength=count * size)
    return np.asarray(flat, dtype=np.float64).reshape(count, size), found.usable
