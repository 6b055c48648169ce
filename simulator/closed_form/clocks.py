"""The clocks at which the boards of many pipelines settle, from averages instead of a simulation.

A board holds the average power of its work and its waits at the settled limit, so that work may draw what waits leave
over: ``P_work = P_settled + (P_settled − P_wait)·t_wait/t_work``. A wait that is longer than the fast loop remembers
leaves less. After it the board runs above the burst limit until the loops of
:mod:`joulecast.simulator.fluid.governor` have brought the clock down, and then at the burst limit for as long as the
slow average looks back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.model.power.governor import REMEMBERED, clock_of_rising
from joulecast.simulator.fluid.governor import CLOCK_TO_AVERAGE, POWER_PER_CLOCK

#: Rounds of clocks and waits; they agree to 0.01 % after three.
ROUNDS = 5
#: Rounds after which clocks tell how a pipeline waits.
NEARLY_SETTLED = 1
#: How long a clock takes to fall when an instruction begins that draws more than a burst may, in the same: recorded
#: clocks reach their plateau after 40 to 60 ms.
FALLS = 8.0
#: Share of the work's time below which its most demanding kind is the lesser part.
LESSER = 0.5


@dataclass(frozen=True, eq=False)
class Board:
    """What holds the clocks of ``r`` kinds of ranks.

    Attributes
    ----------
    clocks_mhz, wait_power_w
        Grid of clocks, and the power of waiting at each, shape ``(c,)`` [MHz], [W].
    settled_w, burst_w, top_mhz
        Averages over long and short times, and the highest clock, shape ``(r,)`` [W], [MHz].
    governed
        False where the clocks stand still at the top, shape ``(r,)``.
    slow_s, fast_s
        Time constants of the two loops [s].
    """

    clocks_mhz: Array
    wait_power_w: Array
    settled_w: Array
    burst_w: Array
    top_mhz: Array
    governed: Bool
    slow_s: float
    fast_s: float


@dataclass(frozen=True, eq=False)
class Load:
    """What ``r`` kinds of ranks do in an iteration at every clock, shape ``(r, c)`` [s], [J].

    The tail is what follows the last backward, the work all before it, in ``rounds`` pieces of shape ``(r,)``, which
    last ``pieces_s`` in all, each no longer than the slow loop looks back; NaN of equal ones, shape ``(r,)`` [s]. Long
    waits are in so many ``pauses``, of shape ``(r,)``. ``power_w`` is what the limit holds: the power of the work, or
    of its most demanding kind where one follows the other in long phases. ``most_w`` is the power of that kind, one
    instruction of which takes ``most_s`` at the highest clock, all of them ``most_share`` of the work's time, of shape
    ``(r,)`` [s], [1].
    """

    work_s: Array
    work_j: Array
    power_w: Array
    most_w: Array
    most_s: Array
    most_share: Array
    tail_s: Array
    tail_j: Array
    rounds: Array
    pieces_s: Array
    pauses: Array


@dataclass(frozen=True, eq=False)
class Settled:
    """Kinds of ranks at their clocks: all of shape ``(r,)`` [MHz], [s], [J]; ``energy_j`` is with waiting."""

    clock_mhz: Array
    tail_clock_mhz: Array
    wait_s: Array
    wait_j: Array
    energy_j: Array


class GridPositions:
    """Where ``r`` clocks lie on the grid, to interpolate tables there."""

    __slots__ = ("_rest", "_share", "_upper")

    def __init__(self, upper: Int, share: Array, rest: Array) -> None:
        self._upper, self._share, self._rest = upper, share, rest

    def interpolate(self, values: Array, starts: Int) -> Array:
        """A value of the table for each clock; ``starts`` from :func:`row_starts`, shape ``(…, r)``."""
        index = starts + self._upper
        return np.asarray(self._rest * values.take(index - 1) + self._share * values.take(index))

    def take(self, rows: Int) -> GridPositions:
        """Some of the clocks, in any order and number."""
        return GridPositions(self._upper[rows], self._share[rows], self._rest[rows])


def grid_positions(clocks_mhz: Array, clock_mhz: Array) -> GridPositions:
    """Where clocks lie on an ascending grid."""
    upper = np.minimum(np.maximum(clocks_mhz.searchsorted(clock_mhz), 1), len(clocks_mhz) - 1)
    below = clocks_mhz[upper - 1]
    share = (clock_mhz - below) / (clocks_mhz[upper] - below)
    return GridPositions(upper, share, 1.0 - share)


def row_starts(values: Array, rows: Int | None = None) -> Int:
    """Where rows of a table of shape ``(…, r, c)`` begin when it is flat: all in order, or those named."""
    *lead, height, width = values.shape
    rows = np.arange(height) if rows is None else rows
    tables = np.arange(math.prod(lead)).reshape(*lead, 1)
    return np.asarray((tables * height + rows) * width)


#: From the clocks of work and tail: waiting within the steady state, and while the pipeline fills and
#: empties [s].
Waits = Callable[[GridPositions, GridPositions], tuple[Array, Array]]
#: From the clocks of work: the load with pieces and waits as they are then.
Again = Callable[[Load, GridPositions], Load]


def settle(load: Load, board: Board, waits: Waits, again: Again) -> Settled:
    """Clocks at which every rank's average power meets its limit.

    Parameters
    ----------
    load
        What the ranks do.
    waits
        What they wait at given clocks.
    again
        What their pieces and waits are once the clocks have nearly settled.
    """
    rows, clocks = row_starts(load.work_s), board.clocks_mhz
    power_w, target, at_top_w = _rising_powers_w(load), board.settled_w, _power_at_top_w(load, board)
    step = off = np.zeros(len(target))
    outdone = np.zeros(len(target), dtype=bool)
    for number in range(ROUNDS):
        clock, tail_clock = _clocks_mhz(load, board, power_w, target)
        at_work, at_tail = grid_positions(clocks, clock), grid_positions(clocks, tail_clock)
        if number == NEARLY_SETTLED:
            load = again(load, at_work)
        short, long = waits(at_work, at_tail)
        busy = at_work.interpolate(load.work_s, rows)
        tail, tail_j = (at_tail.interpolate(of_tail, rows) for of_tail in (load.tail_s, load.tail_j))
        spare = _spare_w(load, board, at_top_w, clock, _Spent(busy, tail, tail_j, short, long))
        before, off = off, board.settled_w + spare - target
        # A tail that draws more than the work leaves this less, and then less than it: swings that grow are cut short.
        outdone |= (off * before < 0) & (np.abs(off) > np.abs(before))
        step = np.divide(off * step, before - off, out=off.copy(), where=outdone & (before != off))
        target = target + step
    energy = at_work.interpolate(load.work_j, rows) + tail_j
    waited = _power_w(board, _clock_of_wait(board, clock, short / load.rounds)) * short
    waited = waited + _power_w(board, _clock_of_wait(board, clock, long)) * long
    return Settled(clock, tail_clock, short + long, waited, energy + waited)


def _rising_powers_w(load: Load) -> Array:
    """Power of work, of its most demanding kind and of the tail, where no higher clock draws less, ``(c, 3·r)`` [W]."""
    tail = np.divide(load.tail_j, load.tail_s, out=np.zeros_like(load.tail_j), where=load.tail_s > 0)
    return np.asarray(np.maximum.accumulate(np.concatenate([load.power_w, load.most_w, tail]).T, axis=0))


def _clocks_mhz(load: Load, board: Board, power_w: Array, target_w: Array) -> tuple[Array, Array]:
    """Clocks of work and tail that draw the target; a short tail still has that of the work, shape ``(r,)`` [MHz].

    No kind of work draws more than a burst for long, or than the target where that is more: within an instruction of
    ``t`` the clock falls from ``c`` towards that at which it draws so much, ``c_b``, and is in the mean
    ``c_b + (c − c_b)·τ/t·(1 − exp(−t/τ))``. Where the limit holds the mean as well, and that kind is the lesser part of
    the work, the greater part takes up what it may not draw.
    """
    clocks = board.clocks_mhz
    governed, top = (np.concatenate([of] * 3) for of in (board.governed, board.top_mhz))
    target = np.concatenate([target_w, np.maximum(target_w, board.burst_w), target_w])
    met = np.where(governed, clock_of_rising(clocks, power_w, target, top), top)
    of_work, of_most, own = np.split(met, 3)
    turns = np.maximum(load.most_s, 1e-9) / (FALLS * board.fast_s)
    falls = np.where((of_work < board.top_mhz) & (load.most_share < LESSER), 0.0, 1.0 + np.expm1(-turns) / turns)
    clock = of_work - np.maximum(of_work - of_most, 0.0) * falls
    tail_s = grid_positions(clocks, own).interpolate(load.tail_s, row_starts(load.tail_s))
    mixed = np.exp(-tail_s / (REMEMBERED * board.fast_s))
    return clock, mixed * clock + (1.0 - mixed) * own


@dataclass(frozen=True, slots=True)
class _Spent:
    """Time of work, tail, short and long waits, and the tail's energy, at the clocks of a round, shape ``(r,)``."""

    busy_s: Array
    tail_s: Array
    tail_j: Array
    short_s: Array
    long_s: Array


def _power_w(board: Board, clock_mhz: Array) -> Array:
    """Power of waiting at a clock [W]."""
    return np.interp(clock_mhz, board.clocks_mhz, board.wait_power_w)


def interpolated(values: Array, clocks_mhz: Array, clock_mhz: Array, rows: Int | None = None) -> Array:
    """Each row's value at its own clock, between the grid's; ``(…, r, c)`` at ``(r,)`` gives ``(…, r)``.

    ``rows`` names the row of each clock where they are others than all in order.
    """
    return grid_positions(clocks_mhz, clock_mhz).interpolate(values, row_starts(values, rows))


def _power_at_top_w(load: Load, board: Board) -> Array:
    """Power of a rank's work at its highest clock [W]."""
    return interpolated(load.power_w, board.clocks_mhz, board.top_mhz)


def _spare_w(load: Load, board: Board, at_top_w: Array, clock_mhz: Array, spent: _Spent) -> Array:
    """Power above the settled limit that waits and a modest tail leave to the work of a rank [W]."""
    busy, tail = spent.busy_s, spent.tail_s
    left = board.settled_w - _power_w(board, clock_mhz)
    left_by_tail = board.settled_w * tail - spent.tail_j
    everything = left * (spent.short_s + spent.long_s) + left_by_tail
    above = board.burst_w - board.settled_w
    burst = above * np.minimum(busy, board.slow_s)
    credit = load.pauses * _credit_j(board, at_top_w, clock_mhz, (spent.long_s + tail) / load.pauses)
    behind = np.minimum(left * spent.long_s + left_by_tail, credit)
    between = _spare_between_j(load, board, busy, spent.short_s, left, above)
    return np.asarray(np.minimum(everything, between + burst + behind) / busy)


def _credit_j(board: Board, at_top_w: Array, clock_mhz: Array, long_s: Array) -> Array:
    """What the fast loop lets work draw above the burst limit behind a long wait [J].

    The work draws what it does at the top clock until the fast average, which the wait has let fall, reaches the burst
    limit again; then as much more as the clock has to come down.
    """
    excess = np.maximum(at_top_w - board.burst_w, 1.0)
    below = np.maximum(board.burst_w - _power_w(board, clock_mhz), 0.0)
    fallen_s = board.fast_s * -np.expm1(-long_s / board.fast_s)
    until = board.fast_s * np.log1p(below * fallen_s / board.fast_s / excess)
    down = (1.0 - clock_mhz / board.top_mhz) * POWER_PER_CLOCK * board.settled_w * CLOCK_TO_AVERAGE * board.fast_s
    return np.asarray(excess * until + np.minimum(down, below * (long_s - fallen_s)))


def _spare_between_j(load: Load, board: Board, busy_s: Array, short_s: Array, left_w: Array, above_w: Array) -> Array:
    """Energy that the waits between a rank's pieces of work leave to these [J].

    That is all that the waits do not draw, but no more than the fast loop grants: power up to the burst limit for as
    long as a piece lasts and the slow average looks back, and more only while the fast average remembers the wait.
    """
    piece, wait = busy_s / load.rounds, short_s / load.rounds
    pieces = np.where(np.isnan(load.pieces_s), load.rounds * np.minimum(piece, board.slow_s), load.pieces_s)
    remembered = load.rounds * np.minimum(wait, REMEMBERED * board.fast_s)
    return np.asarray(np.minimum(left_w * short_s, above_w * pieces + (above_w + left_w) * remembered))


def _clock_of_wait(board: Board, clock_mhz: Array, wait_s: Array) -> Array:
    """Mean clock of a wait: it rises to the top within some time constants of the fast loop."""
    rising = np.minimum(REMEMBERED * board.fast_s / np.maximum(wait_s, 1e-9), 1.0)
    return np.asarray(np.where(board.governed, rising * clock_mhz + (1.0 - rising) * board.top_mhz, clock_mhz))
