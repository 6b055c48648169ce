"""Slopes of time and power in every parameter of a card and its workloads, through the clock that a limit sets.

All are differences of :mod:`joulecast.calibrate.clock_sweeps.physics` over a small step of a parameter. The clock x
that meets a limit moves with it by ∂x/∂θ = −(∂P/∂θ − ∂L/∂θ)/(∂P/∂x) (implicit function theorem); the lowest clock is a
parameter itself; elsewhere x is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.clock_sweeps import parameters as p
from joulecast.calibrate.clock_sweeps.physics import Phases, Setup, combine, limit_w, settle

#: Step of a parameter or a clock: a slope keeps its first six digits, whatever curvature and rounding take of the rest.
STEP = 1e-6


@dataclass(frozen=True, slots=True)
class Response:
    """Logarithms of time [s] and power [W], ``(n, 2)``, and their slopes in the card's and the workload's parameters.

    ``in_card`` has shape ``(n, 2, c)`` and ``in_work`` ``(n, 2, w)``.
    """

    value: Array
    in_card: Array
    in_work: Array


def respond_with_slopes(setting: Array, card: Array, work: Array, given: Setup) -> Response:
    """As :func:`~joulecast.calibrate.clock_sweeps.physics.respond`, with slopes."""
    settled = settle(setting, card, work, given)
    x, phases = settled.x, Phases(card, work, given)
    value, power_w = combine(phases.at(x), card, work, given), phases.busy_power_w(x)
    excess_w = power_w - limit_w(setting, card, work, given)
    tilt = (phases.busy_power_w(x + STEP) - power_w) / STEP
    tilt = np.where(np.abs(tilt) > 1e-9, tilt, 1e-9)
    one_faster = [combine(phases.at(x + step), card, work, given) for step in STEP * np.eye(x.shape[1])]
    in_clock = (np.stack(one_faster, -1) - value[..., None]) / STEP

    def slope(card_: Array, work_: Array) -> Array:
        phases = Phases(card_, work_, given)
        further_w = phases.busy_power_w(x) - limit_w(setting, card_, work_, given) - excess_w
        clock = np.where(settled.held, -further_w / tilt, 0.0) / STEP
        clock = np.where(settled.lowest, x * np.expm1(card_[p.LOWEST] - card[p.LOWEST]) / STEP, clock)
        at_clock = (combine(phases.at(x), card_, work_, given) - value) / STEP
        return np.asarray(at_clock + np.einsum("nqk,nk->nq", in_clock, clock))

    in_card = [slope(card + step, work) for step in STEP * np.eye(p.CARD_SIZE)]
    in_work = [slope(card, work + step) for step in STEP * np.eye(p.WORK_SIZE)]
    return Response(value, np.stack(in_card, -1), np.stack(in_work, -1))
