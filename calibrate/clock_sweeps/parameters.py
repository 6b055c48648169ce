"""What is fitted to a sweep: the parameters of a card and of each of its workloads, and what is known before any row.

All are kept in transformed form (logarithms of what is positive, log-odds of shares), where a normal prior makes sense.
Clocks are shares of the highest clock of the sweep, powers are shares of the highest power seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Literal

import numpy as np

from joulecast.arrays import Array, Bool

#: Whether rows differ by locked clock [MHz] or by power limit [W].
Kind = Literal["clock", "limit"]


@dataclass(frozen=True, slots=True)
class Belief:
    """Normal prior of one transformed parameter, and where it comes from."""

    mean: float
    sd: float
    source: str


#: Clocks (shares of the highest) at which the voltage may deviate from its smooth curve, and how far and how alike.
#: Below the usual knee it hardly does: the regulator stands at its lowest voltage.
KNOTS = np.linspace(0.1, 1.0, 10)
DEVIATION_SD = np.where(KNOTS < 0.65, 0.004, 0.02)
DEVIATION_LENGTH = 0.12

#: Parameters of a card. Their order is that of the vectors.
CARD: dict[str, Belief] = {
    "knee": Belief(0.66, 0.10, "clock below which the voltage is flat: A100 0.72, A40 0.69, H100 and H200 0.5"),
    "floor": Belief(0.72, 0.08, "voltage there against the highest: A100 0.78, H200 0.66"),
    "log_bend": Belief(log(1.3), 0.25, "exponent of the rise above the knee: A100 1.4, idle power of H100 1.1"),
    "log_idle": Belief(
        log(0.17), 0.4, "idle power at low clocks against the highest power: A100 0.19, H100 0.1, A40 0.28"
    ),
    "log_clock_tree": Belief(log(0.07), 0.6, "rise of idle power to the highest clock: A100 0.09, H100 0.07"),
    "log_limit": Belief(log(1.5), 0.5, "the limit of a sweep of clocks, against the highest power seen: unknown"),
    "log_lowest_clock": Belief(log(0.15), 0.25, "lowest clock: V100 0.09, A40 0.12, A100 0.15, H100 and H200 0.17"),
    "log_host_sharpness": Belief(log(6.0), 0.2, "how sharply a workload becomes bound by the host's launches"),
    "log_roof_sharpness": Belief(
        log(2.5), 0.4, "how sharply a workload becomes bound by memory: 1 where kernels follow each other, A100 1.5-3.6"
    ),
    "light_activity": Belief(-0.3, 0.15, "log-odds of the power of light work, as a share of that of heavy work"),
    "log_spread": Belief(log(0.12), 0.3, "spread of the power of heavy work"),
}
#: Average power at the limit against that limit, of sweeps of limits: the boards' loops hold 0.97 to 0.99.
SETTLED_SHARE = Belief(log(0.98), 0.02, "H200 0.988, V100 and A40 0.98")
#: How well the limit is known that rows are said to have reached, or that a data sheet gives.
REACHED_LIMIT_SD, SHEET_LIMIT_SD = 0.02, 0.05

(KNEE, FLOOR, BEND, IDLE, TREE, LIMIT, LOWEST, HOST_SHARPNESS, ROOF_SHARPNESS, LIGHT_ACTIVITY, SPREAD) = range(
    len(CARD)
)
CARD_SIZE = len(CARD) + len(KNOTS)

#: Parameters of a workload: mean over workloads and spread between them, before any row.
WORKLOAD: dict[str, Belief] = {
    "log_time": Belief(0.0, 5.0, "time at the highest clock, were the GPU alone the limit [s]; replaced by the rows'"),
    "memory": Belief(-0.8, 1.0, "log-odds of the part bound by memory, which no clock changes"),
    "dynamic": Belief(0.8, 0.5, "dynamic power at the highest clock (softened to stay positive)"),
    "constant": Belief(-1.0, 1.0, "log-odds of the part of dynamic energy that no voltage changes (memory)"),
    "light": Belief(-1.5, 1.2, "log-odds of the part of the work that draws little"),
    "log_gap": Belief(-3.0, 1.2, "idle gaps too long for the governor to average over, against the busy time"),
    "log_host": Belief(-1.2, 1.4, "host's time against the GPU's at the highest clock"),
    "active": Belief(0.03, 0.05, "power beyond idle while it runs, at any speed: awake memory (softened)"),
    "log_settled": Belief(0.0, 0.015, "average at which it settles against the card's usual: how its power fluctuates"),
}
(TIME, MEMORY, DYNAMIC, CONSTANT, LIGHT, GAP, HOST, ACTIVE, SETTLED) = range(len(WORKLOAD))
WORK_SIZE = len(WORKLOAD)
#: Scale at which a small dynamic power turns from linear to exponential in its parameter.
SOFTNESS = 0.15
ACTIVE_SOFTNESS = 0.02


def card_prior(kind: Kind, known: Mapping[str, Belief] | None = None) -> tuple[Array, Array]:
    """Mean and precision of the card's parameters, shapes ``(c,)`` and ``(c, c)``; ``known`` replaces some beliefs."""
    beliefs = {**CARD, **(known or {})}
    if kind == "limit":
        beliefs["log_limit"] = SETTLED_SHARE
    mean = np.array([b.mean for b in beliefs.values()] + [0.0] * len(KNOTS))
    precision = np.zeros((CARD_SIZE, CARD_SIZE))
    first = len(CARD)
    precision[range(first), range(first)] = [b.sd**-2 for b in beliefs.values()]
    apart = (KNOTS[:, None] - KNOTS) / DEVIATION_LENGTH
    covariance = np.outer(DEVIATION_SD, DEVIATION_SD) * np.exp(-0.5 * apart**2) + 1e-8 * np.eye(len(KNOTS))
    precision[first:, first:] = np.linalg.inv(covariance)
    return mean, precision


def free_workload_parameters(kind: Kind) -> Bool:
    """Which workload parameters are fitted: at a locked clock nobody sees how the power of the work is spread."""
    free = np.ones(WORK_SIZE, dtype=bool)
    if kind == "clock":
        free[[LIGHT, GAP]] = False
    return free


def population_prior(kind: Kind) -> tuple[Array, Array]:
    """Mean and spread of the workload parameters before any row; what is not fitted has no effect."""
    mean = np.array([b.mean for b in WORKLOAD.values()])
    if kind == "clock":
        mean[[LIGHT, GAP]] = -30.0
    return mean, np.array([b.sd for b in WORKLOAD.values()])
