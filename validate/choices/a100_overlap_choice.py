"""What the configuration that a forecast calls the most economical at a time limit really takes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.calibrate.studies.a100_overlap_rows import LayerRow
from joulecast.validate.scoring.result import Prediction

#: Repeats of a row differ by about a thousandth; windows whose times never differ by more than this are the same.
SAME_TIME, LEAST_SETTINGS = 0.003, 10
#: First and last operator.
Window = tuple[int, int]
#: Clock, window, SMs and threads.
Setting = tuple[float | None, Window, int, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """Choices at many time limits, of measured energies and times.

    Attributes
    ----------
    limits
        How many; each measured time is one.
    mean_regret, worst_regret
        Energy of the chosen configuration over that of the best one that keeps the limit, less 1.
    worst_overrun
        Time of the chosen configuration over the limit, less 1, at worst.
    unmet
        Limits that no configuration keeps by the forecast, though one does; the fastest one is chosen there.
    """

    limits: int
    mean_regret: float
    worst_regret: float
    worst_overrun: float
    unmet: int

    def to_dict(self) -> dict[str, float]:
        """Figures for the report [%]."""
        return {
            "limits": self.limits,
            "mean_regret_percent": round(100.0 * self.mean_regret, 3),
            "worst_regret_percent": round(100.0 * self.worst_regret, 3),
            "worst_overrun_percent": round(100.0 * self.worst_overrun, 3),
            "limits_unmet": self.unmet,
        }


def by_neighbours(rows: Sequence[LayerRow]) -> list[Prediction]:
    """What the measured rows of one SM fewer and one more say of each row: a forecaster that knows all but the row.

    No forecast of a left-out window can be expected to choose better. Rows without neighbours have no answer.
    """
    known = {(row.clock_mhz, row.window, row.threads, row.sms): row for row in rows}
    found = []
    for row in rows:
        near = [known.get((row.clock_mhz, row.window, row.threads, row.sms + step)) for step in (-1, 1)]
        measured = [(n.time_s, n.energy_j) for n in near if n and n.time_s is not None and n.energy_j is not None]
        means = np.mean(measured, axis=0).tolist() if measured else (None, None)
        found.append(Prediction(time_s=means[0], energy_j=means[1]))
    return found


def telling_window(rows: Sequence[LayerRow], answers: Sequence[Prediction]) -> tuple[tuple[int, int], Choice] | None:
    """The window without whose rows the choice costs least, and what it then costs; ``None`` without two windows."""
    found = []
    for window in sorted({row.window for row in rows}):
        kept = [(row, answer) for row, answer in zip(rows, answers, strict=True) if row.window != window]
        choice = choices([row for row, _ in kept], [answer for _, answer in kept])
        if choice is not None:
            found.append((window, choice))
    return min(found, key=lambda pair: pair[1].mean_regret) if len(found) > 1 else None


def averaged_twins(rows: Sequence[LayerRow]) -> tuple[list[LayerRow], list[tuple[Window, Window]]]:
    """Rows in which windows that are one and the same experiment have the mean of both readings; and those windows.

    Where an operator keeps all SMs until it ends, a window that begins with it begins with the next one. Their times
    tell: at every setting they are the same within :data:`SAME_TIME`.
    """
    known: dict[Setting, LayerRow] = {(row.clock_mhz, row.window, row.sms, row.threads): row for row in rows}
    windows = sorted({row.window for row in rows})
    twins = [pair for pair in itertools.combinations(windows, 2) if _are_twins(rows, *pair, known)]
    other = {a: b for pair in twins for a, b in (pair, pair[::-1])}
    found = []
    for row in rows:
        near = known.get((row.clock_mhz, other.get(row.window, row.window), row.sms, row.threads), row)
        time, energy = _mean(row.time_s, near.time_s), _mean(row.energy_j, near.energy_j)
        found.append(replace(row, time_s=time, energy_j=energy))
    return found, twins


def _mean(one: float | None, other: float | None) -> float | None:
    return one if one is None or other is None else 0.5 * (one + other)


def _are_twins(rows: Sequence[LayerRow], one: Window, other: Window, known: Mapping[Setting, LayerRow]) -> bool:
    own = [row for row in rows if row.window == one]
    pairs = [(row, known.get((row.clock_mhz, other, row.sms, row.threads))) for row in own]
    ratios = [a.time_s / b.time_s for a, b in pairs if b is not None and a.time_s and b.time_s]
    return len(ratios) >= LEAST_SETTINGS and max(abs(ratio - 1.0) for ratio in ratios) < SAME_TIME


def choices(rows: Sequence[LayerRow], answers: Sequence[Prediction]) -> Choice | None:
    """Choose by the forecasts at every measured time as limit; ``None`` without measured rows."""
    pairs = [
        (row.time_s, row.energy_j, answer.time_s, answer.energy_j)
        for row, answer in zip(rows, answers, strict=True)
        if None not in (row.time_s, row.energy_j, answer.time_s, answer.energy_j)
    ]
    if not pairs:
        return None
    time, energy, said_time, said_energy = np.array(pairs, dtype=np.float64).T
    regret, overrun, unmet = [], [], 0
    for limit in np.unique(time):
        best = energy[time <= limit].min()
        allowed = np.flatnonzero(said_time <= limit)
        unmet += not len(allowed)
        chosen = allowed[np.argmin(said_energy[allowed])] if len(allowed) else np.argmin(said_time)
        regret.append(energy[chosen] / best - 1.0)
        overrun.append(time[chosen] / limit - 1.0)
    return Choice(len(regret), float(np.mean(regret)), float(np.max(regret)), max(float(np.max(overrun)), 0.0), unmet)
