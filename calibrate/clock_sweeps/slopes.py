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
    activity,
    activity_slopes,
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


@dataclass(frozen=True, slots=True)
class _Curve:
    """Values of all phases, ``(n, k)``, their slopes in the clock and in all parameters, ``(n, k, c + w)``."""

    value: Array
    in_clock: Array
    in_all: Array


def respond_with_slopes(setting: Array, card: Array, work: Array, given: Setup) -> Response:
    """As :func:`~joulecast.calibrate.clock_sweeps.physics.respond`, with slopes."""
    settled = settle(setting, card, work, given)
    gpu, time = _times(settled.x, card, work)
    busy = gpu if given.waits_apart else time
    within = _energy(settled.x, busy, card, work, given)
    energy = _with_waits(time, busy, within, card, given)
    value, whole, joule, weight = combine(time.value, energy.value, card, work, given)
    x_p = _clock_slopes(settled, busy, within)
    whole_p = np.einsum("nk,nkp->np", weight, time.in_all + time.in_clock[..., None] * x_p)
    joule_p = np.einsum("nk,nkp->np", weight, energy.in_all + energy.in_clock[..., None] * x_p)
    _add_gaps_and_weights(whole_p, joule_p, time.value, energy.value, card, work, given)
    slopes = np.stack([whole_p / whole[:, None], joule_p / joule[:, None] - whole_p / whole[:, None]], 1)
    slopes[:, 0, p.CARD_SIZE + p.TIME] = 1.0
    return Response(value, slopes[..., : p.CARD_SIZE], slopes[..., p.CARD_SIZE :])


def _times(x: Array, card: Array, work: Array) -> tuple[_Curve, _Curve]:
    """Time of the GPU alone, and with the host's launches."""
    memory, launch = share(work[:, p.MEMORY, None]), np.exp(work[:, p.HOST, None])
    roof, host = np.exp(card[p.ROOF_SHARPNESS]), np.exp(card[p.HOST_SHARPNESS])
    compute = (1.0 - memory) / x
    gpu = (compute**roof + memory**roof) ** (1.0 / roof)
    in_compute = (compute / gpu) ** (roof - 1.0)
    in_all = np.zeros((*x.shape, p.CARD_SIZE + p.WORK_SIZE))
    in_all[..., p.ROOF_SHARPNESS] = gpu * _sharpness_slope(compute, memory, gpu, roof)
    odds = memory * (1.0 - memory)
    in_all[..., p.CARD_SIZE + p.MEMORY] = odds * ((memory / gpu) ** (roof - 1.0) - in_compute / x)
    alone = _Curve(gpu, -in_compute * compute / x, in_all)

    time = (gpu**host + launch**host) ** (1.0 / host)
    in_gpu = (gpu / time) ** (host - 1.0)
    in_all = in_gpu[..., None] * in_all
    in_all[..., p.HOST_SHARPNESS] = time * _sharpness_slope(gpu, launch, time, host)
    in_all[..., p.CARD_SIZE + p.HOST] = (launch / time) ** (host - 1.0) * launch
    return alone, _Curve(time, in_gpu * alone.in_clock, in_all)


def _energy(x: Array, busy: _Curve, card: Array, work: Array, given: Setup) -> _Curve:
    """Energy over the busy time."""
    constant, dynamic = share(work[:, p.CONSTANT, None]), soft(work[:, p.DYNAMIC, None], p.SOFTNESS)
    idle, tree, scale = np.exp(card[p.IDLE]), np.exp(card[p.TREE]), given.scale_w
    active = activity(card, given)
    square = squared_voltage(x, card)
    square_x, square_c = voltage_slopes(x, card)
    still = idle + tree * x * square + soft(work[:, p.ACTIVE, None], p.ACTIVE_SOFTNESS)
    moving = (1.0 - constant) * square + constant
    in_square = scale * (tree * x * busy.value + dynamic * active * (1.0 - constant))
    in_clock = scale * (still * busy.in_clock + tree * square * busy.value) + in_square * square_x

    in_all = (scale * still)[..., None] * busy.in_all
    in_all[..., : p.CARD_SIZE] += in_square[..., None] * square_c
    in_all[..., : p.CARD_SIZE] += (scale * dynamic * moving)[..., None] * activity_slopes(card, given)
    in_all[..., p.IDLE] += scale * idle * busy.value
    in_all[..., p.TREE] += scale * tree * x * square * busy.value
    at = p.CARD_SIZE
    in_all[..., at + p.DYNAMIC] = scale * active * moving * share(work[:, p.DYNAMIC, None] / p.SOFTNESS)
    in_all[..., at + p.CONSTANT] = scale * dynamic * active * (1.0 - square) * constant * (1.0 - constant)
    in_all[..., at + p.ACTIVE] = scale * share(work[:, p.ACTIVE, None] / p.ACTIVE_SOFTNESS) * busy.value
    return _Curve(scale * (still * busy.value + dynamic * active * moving), in_clock, in_all)


def _with_waits(time: _Curve, busy: _Curve, within: _Curve, card: Array, given: Setup) -> _Curve:
    """Energy over the whole time: waits that are apart draw what gaps draw."""
    if not given.waits_apart:
        return within
    gap_w = gap_power_w(card, given)
    waits = time.value - busy.value
    in_all = within.in_all + gap_w * (time.in_all - busy.in_all)
    in_all[..., p.IDLE] += waits * given.scale_w * np.exp(card[p.IDLE])
    in_all[..., p.TREE] += waits * given.scale_w * np.exp(card[p.TREE])
    return _Curve(within.value + gap_w * waits, within.in_clock + gap_w * (time.in_clock - busy.in_clock), in_all)


def _sharpness_slope(one: Array, other: Array, both: Array, exponent: float) -> Array:
    """Relative slope of (one^q + other^q)^(1/q) in log q."""
    a, b = (one / both) ** exponent, (other / both) ** exponent
    return np.asarray(a * np.log(one / both) + b * np.log(np.maximum(other / both, 1e-300)))


def _clock_slopes(settled: Settled, busy: _Curve, within: _Curve) -> Array:
    """Slope of each phase's clock in all parameters, ``(n, k, c + w)``."""
    power = within.value / busy.value
    power_x = (within.in_clock - power * busy.in_clock) / busy.value
    power_p = (within.in_all - power[..., None] * busy.in_all) / busy.value[..., None]
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
