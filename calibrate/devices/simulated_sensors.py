"""What a simulated card's sensors show of its truth, and how they can be wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from joulecast.calibrate.devices.protocol import PowerReading
from joulecast.calibrate.devices.simulated_board import Board

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
#: What a driver may not tell.
Reading = Literal[
    "energy_j", "power_w", "average_power_w", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "utilisation"
]


@dataclass(frozen=True, slots=True)
class Sensors:
    """Sensors; the defaults are those of a Hopper card, as far as they are known.

    Attributes
    ----------
    counter_step_s, counter_phase_s
        The energy counter moves at ``phase + k·step`` [s].
    counter_noise_j
        Standard deviation of each reading of the counter; it does not accumulate [J].
    power_step_s, power_window_s, power_noise_w
        Polled power is renewed every step, as the mean of the window before [s], with this noise [W].
    average_window_s
        Window of the driver's own average [s].
    call_s
        Time of a reading [s].
    repeat_noise
        Relative standard deviation of the time of a run of kernels.
    components
        Whether energy is also reported by component (``xcd``, ``aid``, ``hbm``; static power counts with ``xcd``).
    history_step_s, history_noise_w, history_lag_s, history_s
        The driver writes down the mean power of every step, with this noise, shows it so late, and keeps it so long;
        a step of 0 is a card without a history [s, W].
    """

    counter_step_s: Positive = 0.1
    counter_phase_s: NotNegative = 0.037
    counter_noise_j: NotNegative = 0.05
    power_step_s: Positive = 0.1
    power_window_s: Positive = 0.025
    power_noise_w: NotNegative = 1.0
    average_window_s: Positive = 1.0
    call_s: NotNegative = 0.002
    repeat_noise: NotNegative = 0.0005
    components: bool = False
    history_step_s: NotNegative = 0.02
    history_noise_w: NotNegative = 3.0
    history_lag_s: NotNegative = 0.011
    history_s: NotNegative = 2.4


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with a simulated card; the defaults are a healthy one, and a user who may set it.

    Attributes
    ----------
    stall_every_s, stall_s
        Once in so long a reading takes ``stall_s``; 0 for never [s].
    counter
        ``"ok"``, ``"still"``, ``"backward"``, or ``"jumps"``: by :data:`JUMP_J` once in :data:`JUMP_EVERY_S`.
    energy_counter
        Whether there is one.
    power_error
        Relative error of the polled power against the counter.
    inlet_offset_c
        Warmer air than the description says [K].
    neighbour_w, neighbour_visible
        Power of another process on the card [W], and whether the driver tells its process number.
    privileged
        Whether this user may set clocks and power limit.
    mig
        Whether the card is partitioned.
    missing
        Fields of :class:`~joulecast.calibrate.devices.protocol.Sample` that the driver does not give.
    dies_at_s
        From when on the card does not answer any more [s].
    """

    stall_every_s: NotNegative = 0.0
    stall_s: NotNegative = 1.0
    counter: Literal["ok", "still", "backward", "jumps"] = "ok"
    energy_counter: bool = True
    power_error: Annotated[float, Field(gt=-1.0, allow_inf_nan=False)] = 0.0
    inlet_offset_c: Finite = 0.0
    neighbour_w: NotNegative = 0.0
    neighbour_visible: bool = True
    privileged: bool = True
    mig: bool = False
    missing: tuple[Reading, ...] = ()
    dies_at_s: Finite | None = None


#: The counter of a card that has run before: readings are far from zero.
COUNTER_START_J = 5.0e6
#: How far a broken counter jumps [J], and how often [s].
JUMP_J, JUMP_EVERY_S = 65536.0, 8.0


def counter_j(board: Board, sensors: Sensors, faults: Faults, seed: int) -> float | None:
    """Reading of the energy counter, whole millijoules [J]."""
    if not faults.energy_counter:
        return None
    if faults.counter == "still":
        return COUNTER_START_J
    when = newest_step(board.state.time_s, sensors.counter_step_s, sensors.counter_phase_s)
    energy = board.energy_at(when) + noise(seed, "counter", when, sensors.counter_noise_j)
    if faults.counter == "jumps":
        energy += JUMP_J * (when // JUMP_EVERY_S)
    return round(COUNTER_START_J + (-energy if faults.counter == "backward" else energy), 3)


def polled_power_w(board: Board, sensors: Sensors, faults: Faults, seed: int) -> float:
    """Newest reading of the polled power, whole milliwatts [W]."""
    when = newest_step(board.state.time_s, sensors.power_step_s, sensors.counter_phase_s)
    power = board.power_between(when - sensors.power_window_s, when) * (1.0 + faults.power_error)
    return round(power + noise(seed, "power", when, sensors.power_noise_w), 3)


def average_power_w(board: Board, sensors: Sensors, faults: Faults) -> float:
    """The driver's own average [W]."""
    when = newest_step(board.state.time_s, sensors.power_step_s, sensors.counter_phase_s)
    return round(board.power_between(when - sensors.average_window_s, when) * (1.0 + faults.power_error), 3)


def power_history(
    board: Board, sensors: Sensors, faults: Faults, seed: int, now_s: float, since_s: float
) -> list[PowerReading]:
    """Readings that the driver wrote down after a time and still keeps, whole milliwatts."""
    step, found = sensors.history_step_s, []
    oldest = max(since_s + 0.5 * step, now_s - sensors.history_s)
    when = newest_step(now_s - sensors.history_lag_s, step, sensors.counter_phase_s)
    while when > oldest:
        power = board.power_between(when - step, when) * (1.0 + faults.power_error)
        found.append(PowerReading(when, round(power + noise(seed, "history", when, sensors.history_noise_w), 3)))
        when -= step
    return found[::-1]


def newest_step(now_s: float, step_s: float, phase_s: float) -> float:
    """The last time at which a sensor with this step was renewed [s].

    >>> round(newest_step(1.0, 0.1, 0.03), 9)
    0.93
    """
    return phase_s + step_s * math.floor((now_s - phase_s) / step_s + 1e-9)


@lru_cache(maxsize=4096)  # polls come faster than sensors are renewed
def noise(seed: int, name: str, when_s: float, sd: float) -> float:
    """Normal noise that is the same whenever and wherever the same reading is taken."""
    return Random(f"{seed} {name} {round(when_s * 1e6)}").gauss(0.0, sd) if sd else 0.0
