"""What the configuration that a forecast calls the most economical at a time limit really takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.calibrate.a100_overlap_rows import LayerRow
from joulecast.validate.result import Prediction


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
