"""What a sensor makes of the power: each reading is a mean over a window, hence a row of weights on the unknowns.

How badly a window and a lag explain the readings is what the best such unknowns leave unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.calibrate.power_profile.clocks import ClockFit
from joulecast.calibrate.power_profile.inverse import differences
from joulecast.calibrate.power_profile.layout import OUTSIDE, Layout
from joulecast.calibrate.power_profile.readings import Readings


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

    row: Int
    label: Int
    weight: Array
    usable: Bool


def response_entries(start_s: Array, end_s: Array, edges_s: Array, labels: Int) -> Entries:
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


def response_rows(start_s: Array, end_s: Array, edges_s: Array, labels: Int, size: int) -> tuple[Array, Bool]:
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


def windows(readings: Readings, window_s: float, lag_s: float, clock: ClockFit) -> tuple[Array, Array]:
    """Start and end of what each reading averages over, on the GPU's clock."""
    stop = readings.times_s - lag_s
    start = stop - np.where(readings.span_s > 0.0, readings.span_s, window_s)
    return clock.gpu_time(start), clock.gpu_time(stop)


class Misfit:
    """What the best powers leave unexplained under a window and a lag [W²].

    Parameters
    ----------
    readings, clocks, pieces
        Shape (batches,).
    layout
        Of the unknown powers.
    step_w
        Steps between neighbouring powers are counted in units of it.
    """

    def __init__(
        self,
        readings: Sequence[Readings],
        clocks: Sequence[ClockFit],
        pieces: Sequence[tuple[Array, Int]],
        layout: Layout,
        step_w: float = np.inf,
    ) -> None:
        self._batches = tuple(zip(readings, clocks, pieces, strict=True))
        self._size = layout.size
        self._steps = differences(layout.size, layout.groups()) / step_w
        self._prior = self._steps.T @ self._steps

    def __call__(self, window_s: float, lag_s: float) -> float:
        """Sum of squares over all readings, and of the steps."""
        found = [
            response_entries(*windows(readings, window_s, lag_s, clock), *cut) for readings, clock, cut in self._batches
        ]
        # A reading that is left out has no weights, and reads nothing.
        read = np.concatenate(
            [
                np.where(entries.usable, batch[0].power_w, 0.0)
                for entries, batch in zip(found, self._batches, strict=True)
            ]
        )
        before = np.cumsum([0, *(len(entries.usable) for entries in found)])
        row = np.concatenate([entries.row + first for entries, first in zip(found, before[:-1], strict=True)])
        label = np.concatenate([entries.label for entries in found])
        weight = np.concatenate([entries.weight for entries in found])
        level_w = 1e3 * float(np.max(read))
        normal = _squared(row, label, weight, self._size) + self._prior + np.eye(self._size) / level_w**2
        power = np.linalg.solve(normal, np.bincount(label, weight * read[row], self._size))
        left = float(np.sum((read - np.bincount(row, weight * power[label], len(read))) ** 2))
        return left + float(np.sum((self._steps @ power) ** 2)) + float(np.sum(power**2)) / level_w**2


def _squared(row: Int, label: Int, weight: Array, size: int) -> Array:
    """``Aᵀ A`` of rows that have few entries each, which stand together."""
    places, products = [label * (size + 1)], [weight**2]
    for apart in range(1, int(np.bincount(row).max(initial=0))):
        first = np.flatnonzero(row[apart:] == row[:-apart])
        second = first + apart
        places += [label[first] * size + label[second], label[second] * size + label[first]]
        products += [weight[first] * weight[second]] * 2
    flat = np.bincount(np.concatenate(places), np.concatenate(products), size * size)
    return np.asarray(flat, dtype=np.float64).reshape(size, size)
