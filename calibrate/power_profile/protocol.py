"""What a profile is made of: runs in the GPU's time, readings in the host's, and what ties the two clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from joulecast.arrays import Array

#: Channels of the whole card, the finest first: what the driver writes down by itself, what is polled, and the counter.
WHOLE = ("history", "power", "energy")


@dataclass(frozen=True, slots=True)
class ClockRead:
    """The GPU's time, read once.

    Attributes
    ----------
    before_s, after_s
        Host time just before the read was asked for and just after its answer came.
    gpu_s
        The answer: GPU time of some moment in between.
    """

    before_s: float
    after_s: float
    gpu_s: float

    @property
    def delay_s(self) -> float:
        """How long the read took [s]."""
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One burst of kernels without a pause, after a time of rest.

    Attributes
    ----------
    steps
        Shape (m,), rising from 0 to the number of kernels in the burst: kernels that had ended at each mark.
    times_s
        Shape (m,): GPU time of each mark; the first is the start of the first kernel.
    """

    steps: Array
    times_s: Array

    def time_at(self, step: Array | float) -> Array:
        """GPU time at a position counted in kernels; between marks they run evenly [s]."""
        return np.asarray(np.interp(np.asarray(step, dtype=float), self.steps, self.times_s))

    def filled(self, kernels: int) -> Run:
        """The same run with a mark after every kernel of an interleaving.

        Where whole passes lie between two marks, each pass takes an equal part and each kernel its share of a pass, as
        in the passes that are marked kernel by kernel.
        """
        if kernels == 1:
            return self
        single = np.flatnonzero(np.diff(self.steps) == 1.0)
        kernel = self.steps[single].astype(int) % kernels
        typical = np.array([np.median(np.diff(self.times_s)[single[kernel == k]]) for k in range(kernels)])
        share = np.concatenate([[0.0], np.cumsum(typical) / typical.sum()])
        steps = np.arange(self.steps[-1] + 1)
        # Positions in passes, stretched so that equal steps are equal times inside a pass.
        place = steps // kernels + share[steps.astype(int) % kernels]
        marked = np.searchsorted(steps, self.steps)
        return Run(steps, np.interp(place, place[marked], self.times_s))


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """Readings of one sensor.

    Attributes
    ----------
    name
        One of :data:`WHOLE` for the whole card, otherwise the component's name.
    kind
        ``power``: watts, averaged over the sensor's window; ``energy``: joules accumulated so far.
    times_s, values
        Shape (n,): host time of each reading, ascending, and what was read.
    fresh
        Whether every reading is a new one that carries its own time, as from a logger; otherwise the same value is read
        again until the sensor moves.
    window_s, lag_s
        Time that a reading averages over, and time from the end of that window to the reading's time; ``None`` where
        it must be found out. Of an accumulated energy only the lag counts.
    """

    name: str
    kind: Literal["power", "energy"]
    times_s: Array
    values: Array
    fresh: bool = False
    window_s: float | None = None
    lag_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Runs of equal length one after the other, and all that was read meanwhile.

    Attributes
    ----------
    passes
        How often each run goes through the kernels.
    runs
        In their order.
    clock_reads
        Spread over the whole series.
    channels
        One per sensor.
    """

    passes: int
    runs: tuple[Run, ...]
    clock_reads: tuple[ClockRead, ...]
    channels: tuple[Channel, ...]


class Bench(Protocol):
    """Launches runs on a card and logs its power meanwhile."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels of one pass, in order."""

    @property
    def power_limit_w(self) -> float | None:
        """The card's power limit, ``None`` where it tells none [W]."""

    def now_s(self) -> float:
        """Time on the clock that its series take; simulated benches have one of their own [s]."""

    def series(self, passes: int, delays_s: Sequence[float]) -> Series:
        """Launch one run after each delay.

        Parameters
        ----------
        passes
            How often each run goes through the kernels.
        delays_s
            Rest before each run.

        Raises
        ------
        MeasurementError
            A kernel failed, or nothing could be logged.
        """

    def close(self) -> None:
        """Free the card."""
