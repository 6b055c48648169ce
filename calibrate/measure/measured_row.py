"""From the windows of a microbenchmark to the fields of its row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.measure.history_window import batch_error
from joulecast.calibrate.measure.settings import PULSED_OPS, UNTIMED_OPS, MeasureSettings
from joulecast.calibrate.measure.window import Window
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.rows.measured import COUNTED_CLOCK, WARMING, mean_of_present

#: Relative difference of the energy by power history from that by the counter, below which the counter has jumped.
JUMPED = -2.0 / 3.0


@dataclass(frozen=True, eq=False)
class Take:
    """One window of work on all cards.

    Attributes
    ----------
    windows
        What each card showed.
    repetitions, seconds
        Of each run in the window: repetitions, and the seconds that they took; shape (runs,).
    wall_s
        From the begin of the first run to the end of the last [s].
    counted_clocks_mhz
        Mean clock of each run by the card's own count [MHz], ``None`` where it was not counted.
    """

    windows: tuple[Window, ...]
    repetitions: Array
    seconds: Array
    wall_s: float
    counted_clocks_mhz: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A mean and its relative standard error."""

    value: float
    error: float


def measured_row(
    benchmark: Microbenchmark,
    takes: Sequence[Take],
    pause_powers_w: Sequence[float | None],
    settings: MeasureSettings,
    settled_s: float,
    spoilt: int,
) -> dict[str, Any]:
    """Configuration and measurements of a microbenchmark.

    Of steady work ``energy_j`` is power times the time of one repetition. Idling has power alone; duty cycles and
    pulses have no energy of one repetition, and work beside other work has neither energy nor power of its own.
    ``pause_powers_w`` is what each card drew right after the last pulse, ``None`` where that is not known.
    """
    op = benchmark.row.get("op")
    rest = {key: value for key, value in benchmark.row.items() if key not in ("name", "settle_s", "target_window_s")}
    row: dict[str, Any] = {"name": benchmark.name, **rest}
    row |= {"settle_s": round(settled_s, 3), "target_window_s": settings.window_s}
    cards = range(len(takes[0].windows))
    power = [_power(takes, card) for card in cards]
    time = _time(takes)
    beside = "companion" in benchmark.row
    if op not in UNTIMED_OPS:
        row |= {"time_s": time.value, "measured_time_sd": time.error}
    if not beside:
        row |= of_cards("power_w", [p.value for p in power])
    elif len(power) == 1:
        row["measured_loop_power_w"] = power[0].value
    row |= of_cards("sm_clock_mhz", [_median_clock_mhz(takes, card) for card in cards])
    row |= of_cards("gpu_temp_c", [_mean(takes, card, "temperature_c") for card in cards])
    row["power_cap_fraction"] = float(np.mean([_share(takes, card, "power_limit") for card in cards]))
    if op not in (*UNTIMED_OPS, *PULSED_OPS) and not beside:
        row["energy_j"] = sum(p.value for p in power) * time.value
    if op == "pulse" and len(power) == 1 and pause_powers_w[0] is not None:
        row |= _busy_power(power[0].value, _busy_share(takes), pause_powers_w[0])
    elif op == "duty":
        row["measured_busy_share"] = _busy_share(takes)
    worst = max(power, key=lambda p: p.error)
    row |= _steps(takes, cards)
    row |= {
        "measured_window_s": min(sum(take.windows[card].length_s for take in takes) for card in cards),
        "measured_repeats": len(takes),
        "measured_energy_sd": math.hypot(worst.error, time.error) if "energy_j" in row else worst.error,
        "measured_stall_s": max(take.windows[card].stall_s for take in takes for card in cards),
    }
    counted = _counted_clock_mhz(takes)
    if counted is not None:
        row[COUNTED_CLOCK] = counted
    return {**row, **_details(takes, cards, spoilt)}


def _details(takes: Sequence[Take], cards: range, spoilt: int) -> dict[str, Any]:
    """What a reader of the recording wants to know; of it the fit reads only how the temperature changed."""
    reasons = sorted({name for take in takes for window in take.windows for name in window.reasons})
    components = sorted({name for take in takes for window in take.windows for name in window.components_w})
    found: dict[str, Any] = {
        "measured_sm_clock_mean_mhz": mean_of_present([_mean(takes, card, "sm_clock_mean_mhz") for card in cards]),
        "measured_memory_clock_mhz": mean_of_present([_mean(takes, card, "memory_clock_mhz") for card in cards]),
        WARMING: mean_of_present([_warming(takes, card) for card in cards]),
        "measured_polled_power_w": mean_of_present([_mean(takes, card, "polled_power_w") for card in cards]),
        "measured_reasons": {name: float(np.mean([_share(takes, card, name) for card in cards])) for name in reasons},
        "measured_energy_source": "+".join(sorted({w.source for take in takes for w in take.windows})),
        "measured_history_over_counter": mean_of_present([window.over_counter for window in takes[-1].windows]),
    }
    for name in components:
        found[f"measured_{name}_w"] = mean_of_present([_component(takes, card, name) for card in cards])
    if spoilt:
        found["measured_spoilt_windows"] = spoilt
    return {key: value for key, value in found.items() if value is not None}


def _steps(takes: Sequence[Take], cards: range) -> dict[str, int]:
    """Steps of what the energy comes from, of the card with the fewest."""
    found: dict[str, int] = {}
    for card in cards:
        source = "history" if takes[0].windows[card].source == "history" else "counter"
        count = sum(take.windows[card].steps for take in takes)
        key = f"measured_{source}_steps"
        found[key] = min(found.get(key, count), count)
    return found


def reached_error(takes: Sequence[Take], configuration: Mapping[str, Any]) -> float:
    """The larger relative standard error of power and, where it is asked, time; infinite where it is not known yet."""
    errors = [_power(takes, card).error for card in range(len(takes[0].windows))]
    if configuration.get("op") not in UNTIMED_OPS:
        errors.append(_time(takes).error)
    return max(errors)


def disagreements(takes: Sequence[Take], settings: MeasureSettings) -> list[str]:
    """Cards whose power history is farther off their energy counter than settings and the counter's readings allow.

    The last windows tell: their comparison reaches back over all windows.
    """
    return [
        _apart(window.over_counter, window.counter_resolution)
        for window in takes[-1].windows
        if window.over_counter is not None
        and abs(window.over_counter) > max(settings.disagreement, window.counter_resolution)
    ]


def _apart(over_counter: float, resolution: float) -> str:
    """The warning of a power history that is off the energy counter; no sensor errs as far as a counter that jumps."""
    if over_counter < JUMPED:
        unseen = f"{-over_counter:.1%} of what it gained is not in the power history"
        return f"the energy counter jumped: {unseen}, on which alone the row rests"
    return f"the power history is {over_counter:+.1%} off the energy counter (known to {resolution:.1%})"


def still_drifting(drift: float, settled_s: float) -> str:
    """The warning of work under which power or clock did not come to rest."""
    return f"power or clock still changed by {drift:.1%} after {settled_s:.1f} s"


def warnings_of(row: Mapping[str, Any], error: float, settings: MeasureSettings) -> list[str]:
    """What is odd about a measured row."""
    found = []
    throttled = row["measured_reasons"].get("thermal", 0.0)
    if throttled > 0.0:
        found.append(f"the card throttled for its temperature in {throttled:.0%} of the readings")
    power, polled = row.get("power_w"), row.get("measured_polled_power_w")
    if row.get("op") not in PULSED_OPS and row["measured_energy_source"] == "counter" and power and polled:
        apart = polled / power - 1.0
        if abs(apart) > settings.disagreement:
            found.append(f"polled power is {apart:+.1%} off the energy counter")
    if not error <= settings.error:
        known = f"{error:.3%}, more than {settings.error:.3%}"
        found.append(f"the standard error is {known if math.isfinite(error) else 'unknown: one window cannot tell it'}")
    return found


def _time(takes: Sequence[Take]) -> _Estimate:
    """Time of one repetition, over all windows."""
    each = np.concatenate([take.seconds / take.repetitions for take in takes])
    whole = np.array([take.seconds.sum() / take.repetitions.sum() for take in takes])
    value = sum(take.seconds.sum() for take in takes) / sum(take.repetitions.sum() for take in takes)
    return _Estimate(float(value), _joint_error(batch_error(each, 1), whole))


def _power(takes: Sequence[Take], card: int) -> _Estimate:
    """Mean power of one card over all windows."""
    windows = [take.windows[card] for take in takes]
    value = sum(w.energy_j for w in windows) / sum(w.length_s for w in windows)
    within = math.sqrt(sum(w.power_error**2 for w in windows)) / len(windows)
    return _Estimate(value, _joint_error(within, np.array([w.power_w for w in windows])))


def _joint_error(within: float, means: Array) -> float:
    """Error from within the windows and from between them: the larger, where both are known."""
    if len(means) < 2:
        return within
    between = float(np.std(means, ddof=1) / math.sqrt(len(means)) / np.mean(means))
    return max(between, within) if math.isfinite(within) else between


def _busy_share(takes: Sequence[Take]) -> float:
    return float(sum(take.seconds.sum() for take in takes) / sum(take.wall_s for take in takes))


def _busy_power(power_w: float, share: float, idle_w: float) -> dict[str, float]:
    """Power of the busy part of pulses: the mean is that of busy parts and pauses."""
    return {
        "measured_busy_share": share,
        "measured_idle_power_w": idle_w,
        "measured_busy_power_w": (power_w - (1.0 - share) * idle_w) / share,
    }


def _counted_clock_mhz(takes: Sequence[Take]) -> float | None:
    """Mean clock over the seconds of all runs [MHz]; ``None`` unless every one was counted."""
    clocks = [clock for take in takes for clock in take.counted_clocks_mhz if clock is not None]
    seconds = np.concatenate([take.seconds for take in takes])
    return float(np.average(clocks, weights=seconds)) if len(clocks) == len(seconds) else None


def _warming(takes: Sequence[Take], card: int) -> float | None:
    """Change of the temperature from the begin of the first window to the end of the last [K]."""
    first, last = takes[0].windows[card].temperature_ends_c, takes[-1].windows[card].temperature_ends_c
    return None if first is None or last is None else last[1] - first[0]


def _share(takes: Sequence[Take], card: int, reason: str) -> float:
    return float(np.mean([take.windows[card].reasons.get(reason, 0.0) for take in takes]))


def _component(takes: Sequence[Take], card: int, name: str) -> float | None:
    values = [take.windows[card].components_w.get(name) for take in takes]
    return None if None in values else float(np.mean([v for v in values if v is not None]))


def _mean(takes: Sequence[Take], card: int, name: str) -> float | None:
    return mean_of_present([getattr(take.windows[card], name) for take in takes])


def _median_clock_mhz(takes: Sequence[Take], card: int) -> float | None:
    values = [clock for take in takes if (clock := take.windows[card].sm_clock_mhz) is not None]
    return float(np.median(values)) if values else None


def of_cards(key: str, values: Sequence[float | None]) -> dict[str, Any]:
    """A field of one card, or the list of several."""
    return {key: values[0]} if len(values) == 1 else {f"{key}_per_gpu": list(values)}
