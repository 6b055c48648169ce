"""Slopes of time and power in every parameter of a card and its workloads, through the clock that a limit sets.

At a clock x that meets the limit, ∂x/∂θ = −(∂P/∂θ − ∂L/∂θ)/(∂P/∂x) by the implicit function theorem; at the lowest
clock x follows that parameter alone; elsewhere x is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.calibrate.clock_sweeps import parameters as p
from joulecast.calibrate.clock_sweeps.parameters import Array
from joulecast.calibrate.clock_sweeps.physics import (
    Settled,
    Setup,
    combine,
    gap_power_w,
    settle,
    share,
    soft,
    squared_voltage,
    voltage_slopes,
)


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
    x = settled.x
    time, energy, time_x, energy_x, time_p, energy_p = _phase_slopes(x, card, work, given)
    value, whole, joule, weight = combine(time, energy, card, work, given)
    x_p = _clock_slopes(settled, time, energy, time_x, energy_x, time_p, energy_p)
    time_p += time_x[..., None] * x_p
    energy_p += energy_x[..., None] * x_p
    whole_p = np.einsum("nk,nkp->np", weight, time_p)
    joule_p = np.einsum("nk,nkp->np", weight, energy_p)
    _add_gaps_and_weights(whole_p, joule_p, time, energy, card, work, given)
    slopes = np.stack([whole_p / whole[:, None], joule_p / joule[:, None] - whole_p / whole[:, None]], 1)
    slopes[:, 0, p.CARD_SIZE + p.TIME] = 1.0
    return Response(value, slopes[..., : p.CARD_SIZE], slopes[..., p.CARD_SIZE :])


def _phase_slopes(x: Array, card: Array, work: Array, given: Setup) -> tuple[Array, ...]:
    """Time and energy of phases, their slopes in the clock, ``(n, k)``, and in all parameters, ``(n, k, c + w)``."""
    memory, constant = share(work[:, p.MEMORY, None]), share(work[:, p.CONSTANT, None])
    dynamic = soft(work[:, p.DYNAMIC, None], p.SOFTNESS)
    roof, host = np.exp(card[p.ROOF_SHARPNESS]), np.exp(card[p.HOST_SHARPNESS])
    idle, tree, scale = np.exp(card[p.IDLE]), np.exp(card[p.TREE]), given.scale_w
    launch = np.exp(work[:, p.HOST, None])
    compute = (1.0 - memory) / x
    gpu = (compute**roof + memory**roof) ** (1.0 / roof)
    time = (gpu**host + launch**host) ** (1.0 / host)
    square = squared_voltage(x, card)
    square_x, square_c = voltage_slopes(x, card)
    still = idle + tree * x * square + soft(work[:, p.ACTIVE, None], p.ACTIVE_SOFTNESS)
    moving = (1.0 - constant) * square + constant
    energy = scale * (still * time + dynamic * given.activity * moving)

    in_gpu = (gpu / time) ** (host - 1.0)
    in_compute = in_gpu * (compute / gpu) ** (roof - 1.0)
    time_x = -in_compute * compute / x
    energy_square = scale * (tree * x * time + dynamic * given.activity * (1.0 - constant))
    energy_x = scale * (still * time_x + tree * square * time) + energy_square * square_x

    time_p = np.zeros((*x.shape, p.CARD_SIZE + p.WORK_SIZE))
    energy_p = np.zeros_like(time_p)
    c, w = time_p[..., : p.CARD_SIZE], time_p[..., p.CARD_SIZE :]
    c[..., p.HOST_SHARPNESS] = time * _sharpness_slope(gpu, launch, time, host)
    c[..., p.ROOF_SHARPNESS] = in_gpu * gpu * _sharpness_slope(compute, memory, gpu, roof)
    odds = memory * (1.0 - memory)
    w[..., p.MEMORY] = odds * (in_gpu * (memory / gpu) ** (roof - 1.0) - in_compute / x)
    w[..., p.HOST] = (launch / time) ** (host - 1.0) * launch
    energy_p += (scale * still)[..., None] * time_p
    energy_p[..., : p.CARD_SIZE] += energy_square[..., None] * square_c
    energy_p[..., p.IDLE] += scale * idle * time
    energy_p[..., p.TREE] += scale * tree * x * square * time
    at = p.CARD_SIZE
    energy_p[..., at + p.DYNAMIC] = scale * given.activity * moving * share(work[:, p.DYNAMIC, None] / p.SOFTNESS)
    energy_p[..., at + p.CONSTANT] = scale * dynamic * given.activity * (1.0 - square) * constant * (1.0 - constant)
    energy_p[..., at + p.ACTIVE] = scale * share(work[:, p.ACTIVE, None] / p.ACTIVE_SOFTNESS) * time
    return time, energy, time_x, energy_x, time_p, energy_p


def _sharpness_slope(one: Array, other: Array, both: Array, exponent: float) -> Array:
    """Relative slope of (one^q + other^q)^(1/q) in log q."""
    a, b = (one / both) ** exponent, (other / both) ** exponent
    return np.asarray(a * np.log(one / both) + b * np.log(np.maximum(other / both, 1e-300)))


def _clock_slopes(
    settled: Settled, time: Array, energy: Array, time_x: Array, energy_x: Array, time_p: Array, energy_p: Array
) -> Array:
    """Slope of each phase's clock in all parameters, ``(n, k, c + w)``."""
    power = energy / time
    power_x = (energy_x - power * time_x) / time
    power_p = (energy_p - power[..., None] * time_p) / time[..., None]
    for place in (p.LIMIT, p.CARD_SIZE + p.SETTLED):
        power_p[..., place] -= settled.limit_w
    safe = np.where(np.abs(power_x) > 1e-9, power_x, 1e-9)
    slopes = np.where(settled.held[..., None], -power_p / safe[..., None], 0.0)
    slopes[..., p.LOWEST] = np.where(settled.lowest, settled.x, slopes[..., p.LOWEST])
    return np.asarray(slopes)


def _add_gaps_and_weights(
    whole_p: Array, joule_p: Array, time: Array, energy: Array, card: Array, work: Array, given: Setup
) -> None:
    """Slopes through the gaps and through the share of light work, in place."""
    gap, gap_w = np.exp(work[:, p.GAP]), gap_power_w(card, given)
    joule_p[:, p.IDLE] += gap * given.scale_w * np.exp(card[p.IDLE])
    joule_p[:, p.TREE] += gap * given.scale_w * np.exp(card[p.TREE])
    at = p.CARD_SIZE
    whole_p[:, at + p.GAP] += gap
    joule_p[:, at + p.GAP] += gap * gap_w
    light = share(work[:, p.LIGHT])
    odds = (light * (1.0 - light))[:, None] * (given.light - given.heavy)
    whole_p[:, at + p.LIGHT] += (odds * time).sum(1)
    joule_p[:, at + p.LIGHT] += (odds * energy).sum(1)
