"""Clocks of a zero bubble's kinds of instructions: under a power limit each settles at a clock of its own.

Weight gradients are products alone and draw a tenth to a fifth more than forwards at the same clock. The fast loop
holds each kind at the same power, so that forwards and backwards, which set how long a pipeline fills and drains, run
at higher clocks than weight gradients.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.power.governor import REMEMBERED, clock_between
from joulecast.simulator.closed_form.clocks import grid_positions, row_starts


def tables_at_mean_clock(tables: Array, clocks_mhz: Array, fast_s: float) -> Array:
    """Tables of kinds at one clock, as tables at the mean of their own clocks.

    At a power level ``P`` kind ``k`` runs at the clock ``c_k`` at which it draws ``P``, or at the highest; one shorter
    than the fast loop remembers stays at the mean ``c``: ``c + (1 − exp(−t_k/(2·fast)))·(c_k − c)``.

    Parameters
    ----------
    tables
        Time, energy and others of kinds ``k`` of stages ``u`` at clocks ``c``, shape ``(n, k, u, c)`` [s], [J].
    clocks_mhz
        Ascending grid, shape ``(c,)`` [MHz].
    fast_s
        Time constant of the fast loop; 0 where many instructions of a kind follow each other [s].

    Returns
    -------
    Array
        The same at mean clocks, shape ``(n, k, u, c)``.
    """
    time, energy = tables[:2]
    power = np.divide(energy, time, out=np.zeros_like(time), where=time > 0)
    own = _drawing(np.maximum.accumulate(power, axis=-1), clocks_mhz)
    middle = (own * time).sum(0) / time.sum(0)
    follows = -np.expm1(-time / (REMEMBERED * fast_s)) if fast_s > 0 else np.ones_like(time)
    clock = middle + follows * (own - middle)
    at_level = grid_positions(clocks_mhz, clock).interpolate(tables, row_starts(tables)[..., None])
    mean = (clock * at_level[0]).sum(0) / at_level[0].sum(0)
    return _at(at_level, np.maximum.accumulate(mean, axis=-1), clocks_mhz)


def _drawing(rising_w: Array, clocks_mhz: Array) -> Array:
    """Clocks at which kinds draw what the most demanding kind of their stage draws at each clock, or the highest.

    Powers that nowhere fall, and clocks, have shape ``(k, u, c)``.
    """
    level = np.broadcast_to(rising_w.max(0), rising_w.shape)
    above = _places(rising_w, level, "right")
    upper = above.clip(1, len(clocks_mhz) - 1)
    low, high = (np.take_along_axis(rising_w, at, axis=-1) for at in (upper - 1, upper))
    return np.where(above < len(clocks_mhz), clock_between(clocks_mhz, upper, low, high, level), clocks_mhz[-1])


def _places(rising: Array, values: Array, side: Literal["left", "right"]) -> Int:
    """Where each row's values lie in a row that nowhere falls, shape ``(…, c)``."""
    count = rising.shape[-1]
    rows = zip(rising.reshape(-1, count), values.reshape(-1, count), strict=True)
    return np.array([row.searchsorted(own, side) for row, own in rows]).reshape(rising.shape)


def _at(values: Array, found_mhz: Array, clocks_mhz: Array) -> Array:
    """Values of shape ``(n, k, u, c)`` at clocks ``found_mhz`` of shape ``(u, c)``, read on the grid."""
    last = len(clocks_mhz) - 1
    upper = _places(found_mhz, np.broadcast_to(clocks_mhz, found_mhz.shape), "left").clip(1, last)
    low, high = (np.take_along_axis(found_mhz, at, axis=-1) for at in (upper - 1, upper))
    share = np.divide(clocks_mhz - low, high - low, out=np.ones_like(low), where=high > low).clip(0.0, 1.0)
    below, above = (np.take_along_axis(values, at[None, None], axis=-1) for at in (upper - 1, upper))
    return np.asarray(below + share * (above - below))
