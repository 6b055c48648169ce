"""How measurements are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from joulecast.errors import InputError

#: Work in whose pauses the power falls: it never drifts to one value, and a window holds whole periods.
PULSED_OPS = ("duty", "pulse")
#: Work of which no time of a repetition is measured.
UNTIMED_OPS = ("idle", "duty")
#: What a window by the power history runs longer: a step at its begin, and what the driver shows late [s].
HISTORY_MARGIN_S = 0.06
#: Time between two steps of a card's energy counter, where it is not known yet [s].
USUAL_STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """Settings of the measurement protocol; the defaults cost 3.6 to 3.8 s for a steady kernel.

    Attributes
    ----------
    settle_s, most_settle_s
        Least and longest time under load before the first window [s].
    drift
        Relative change of power and clock between the halves of the last half settling time below which it has settled;
        so it has too where the change is within its own error.
    window_s, least_steps
        Least length of a window [s], and of the history's or the counter's steps in it.
    polled_window_s
        Least length of a window where there is no counter [s].
    error
        Relative standard error of time and power at which no further window is taken.
    most_windows
        Windows that are taken at most.
    segments
        Runs in a window; their times give the error of the time.
    stall_s
        A gap between readings from this length on spoils a window [s].
    most_stalls
        Spoilt windows that are taken again.
    disagreement
        Relative difference of counter and polled power that is reported.

    Raises
    ------
    InputError
        A setting that is not positive.
    """

    settle_s: float = 1.0
    most_settle_s: float = 3.0
    drift: float = 0.02
    window_s: float = 2.5
    least_steps: int = 20
    polled_window_s: float = 5.0
    error: float = 0.005
    most_windows: int = 4
    segments: int = 5
    stall_s: float = 0.25
    most_stalls: int = 3
    disagreement: float = 0.05

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InputError("is not positive", key=field.name, remedy="Give a number above zero.")

    def of(self, row: Mapping[str, Any]) -> MeasureSettings:
        """These settings with what a row asks for itself: ``settle_s`` and ``target_window_s`` are least lengths."""
        settle = float(row.get("settle_s") or self.settle_s)
        window = float(row.get("target_window_s") or self.window_s)
        return replace(
            self,
            settle_s=settle,
            most_settle_s=max(self.most_settle_s, settle),
            window_s=window,
            polled_window_s=max(self.polled_window_s, window),
        )


def period_s(row: Mapping[str, Any]) -> float:
    """Time after which a pulsed row repeats itself [s]; 0 for steady work, and where the row does not tell."""
    if row.get("op") != "pulse":
        return 0.0
    return float(row.get("busy_s") or 0.0) + float(row.get("idle_s") or 0.0)


def run_s(least_s: float, row: Mapping[str, Any]) -> float:
    """The time rounded up to whole periods of a row [s].

    >>> run_s(2.5, {"op": "pulse", "busy_s": 1.0, "idle_s": 0.5}), run_s(2.5, {"op": "gemm"})
    (3.0, 2.5)
    """
    period = period_s(row)
    return period * math.ceil(least_s / period - 1e-9) if period > 0.0 else least_s


def expected_cost_s(row: Mapping[str, Any], settings: MeasureSettings) -> float:
    """What measuring a row in one window will take, without its preparation [s].

    Parameters
    ----------
    row
        The configuration.
    settings
        Of the protocol.
    """
    mine = settings.of(row)
    return run_s(mine.settle_s, row) + window_run_s(mine, row, USUAL_STEP_S)


def history_run_s(settings: MeasureSettings, step_s: float) -> float:
    """How long steady work must run so that a window of a power history with this step fits into it [s]."""
    return max(settings.window_s, settings.least_steps * step_s) + 2.0 * step_s + HISTORY_MARGIN_S


def window_run_s(settings: MeasureSettings, row: Mapping[str, Any], step_s: float | None) -> float:
    """How long work must run so that a window fits into it [s]; ``step_s`` is ``None`` without a counter."""
    if step_s is None:
        return run_s(settings.polled_window_s, row) + 2.0 * period_s(row)
    least = max(run_s(settings.window_s, row), settings.least_steps * step_s)
    return run_s(least + 2.5 * step_s, row)
