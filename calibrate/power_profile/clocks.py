"""The GPU's clock as a line over the host's, from reads whose delay is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.calibrate.power_profile.protocol import ClockRead
from joulecast.errors import MeasurementError

#: The series is cut into so many stretches; the quickest reads of each are kept, so that they span the drift.
STRETCHES = 24
#: Reads that took no longer than this multiple of the quickest are kept besides.
NEAR_QUICKEST = 1.1
#: Two clocks driven by quartz differ by tens of parts per million; more than this is a mistaken reading.
LARGEST_DRIFT = 1e-3


@dataclass(frozen=True, slots=True)
class ClockFit:
    """GPU time = ``gpu_s`` + (1 + ``drift``)·(host time − ``host_s``).

    Attributes
    ----------
    host_s, gpu_s
        A moment in the middle of the series, on both clocks.
    drift
        Seconds that the GPU's clock gains on the host's in a second.
    drift_standard_error
        Of the drift.
    standard_error_s
        Of the line at the ends of the series, as the scatter of the kept reads tells.
    bound_s
        Half the quickest read's delay: however unevenly it splits into way there and way back, the line is not further
        off than this beyond the scatter.
    read_delay_s
        The quickest read.
    reads
        Reads kept.
    """

    host_s: float
    gpu_s: float
    drift: float
    drift_standard_error: float
    standard_error_s: float
    bound_s: float
    read_delay_s: float
    reads: int

    def gpu_time(self, host_s: Array) -> Array:
        """GPU time of a moment of the host [s]."""
        return self.gpu_s + (1.0 + self.drift) * (np.asarray(host_s, dtype=float) - self.host_s)


def fit_clock(reads: Sequence[ClockRead]) -> ClockFit:
    """Fit offset and drift to the reads that took least time.

    A read is answered somewhere between its two host times; the middle is off by at most half the delay, so that the
    quick reads are the good ones (as in the clock filter of NTP: Mills, RFC 5905, section 10). The quickest of each
    stretch of the series are kept, weighted by the inverse square of how much longer than the quickest they took, and
    a line is fitted to GPU time over the middle.

    Raises
    ------
    MeasurementError
        Fewer than four reads, or clocks that do not run alike.
    """
    if len(reads) < 4:
        raise MeasurementError(
            f"{len(reads)} reads of the GPU's clock are too few",
            remedy="Four are needed, spread over the runs.",
        )
    middle = np.array([(r.before_s + r.after_s) / 2 for r in reads])
    gpu = np.array([r.gpu_s for r in reads])
    delay = np.array([r.delay_s for r in reads])
    keep = _quick(middle, delay)
    quickest = float(delay.min())
    # The excess over the quickest read is what may have fallen on one side only.
    weight = 1.0 / (0.05 * quickest + (delay[keep] - quickest)) ** 2
    x, y = middle[keep], gpu[keep]
    host_s = float(np.average(x, weights=weight))
    x = x - host_s
    gpu_s = float(np.average(y, weights=weight))
    # Differences of the two clocks are small numbers; fitting them keeps all digits.
    gain = (y - gpu_s) - x
    spread = float(np.sum(weight * x * x))
    if not spread > 0.0:
        raise MeasurementError("all reads of the GPU's clock fall together", remedy="Spread them over the runs.")
    drift = float(np.sum(weight * x * gain)) / spread
    if abs(drift) > LARGEST_DRIFT:
        raise MeasurementError(
            f"the GPU's clock and the host's differ by {drift:.1%}", remedy="The GPU's time stamps are not in seconds."
        )
    residual = gain - drift * x
    variance = float(np.sum(weight * residual**2)) / max(len(x) - 2, 1)
    at_ends = variance * (1.0 / float(np.sum(weight)) + float(np.max(x * x)) / spread)
    return ClockFit(
        host_s,
        gpu_s,
        drift,
        float(np.sqrt(variance / spread)),
        float(np.sqrt(at_ends)),
        quickest / 2,
        quickest,
        len(x),
    )


def _quick(middle: Array, delay: Array) -> Bool:
    """The quickest two reads of every stretch, and all that are about as quick as the quickest."""
    keep: Bool = delay <= NEAR_QUICKEST * delay.min()
    edges = np.linspace(middle.min(), middle.max(), STRETCHES + 1)
    stretch = np.clip(np.searchsorted(edges, middle, side="right") - 1, 0, STRETCHES - 1)
    for index in range(STRETCHES):
        members = np.flatnonzero(stretch == index)
        keep[members[np.argsort(delay[members], kind="stable")[:2]]] = True
    return keep
