"""Inner loops of rounding; see :mod:`joulecast.plan.exact.rounding` for what they are for.

Of ``n`` instructions, in an order that respects dependencies, all functions take

- ``plan``: position of the option of each, shape ``(n,)``; ``plans`` of several, shape ``(p, n)``;
- ``end`` and ``late``: its earliest and latest end, shape ``(n,)`` [s], which the functions write;
- ``corner``: :attr:`Graph.corner` or :attr:`Graph.near`; ``free``: which may change, shape ``(n,)``;
- ``deadline`` or a row of ``deadlines``: when each should have ended, shape ``(n,)`` [s]; ``limit_s``: when all must;
- ``times`` and ``costs``: of every plan, shape ``(p,)`` [s], [J], written together with ``plans`` or ``joined``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.plan.exact.compiled import compiled, copy_into


class Graph(NamedTuple):
    """Instructions with neighbours and options.

    Attributes
    ----------
    before_first, before, before_s
        Instructions that ``v`` waits for are ``before[before_first[v] : before_first[v + 1]]``, with latencies [s].
    after_first, after, after_s
        The same of those that wait for it.
    fastest, slowest
        Positions of every instruction's first and last option worth choosing; time rises and cost falls between them.
    time_s, rounded_s, cost_j
        Of every option: time, time rounded up to a quantum, and cost [s], [s], [J].
    corner, near
        Position of the last option up to this one that lies on the convex hull of its kind, or near it.
    """

    before_first: Int
    before: Int
    before_s: Array
    after_first: Int
    after: Int
    after_s: Array
    fastest: Int
    slowest: Int
    time_s: Array
    rounded_s: Array
    cost_j: Array
    corner: Int
    near: Int


class Gains(NamedTuple):
    """In which order slack is given away.

    Attributes
    ----------
    least_w
        Saving for each second of slack that counts in each round, falling to zero [W].
    last
        Position of the slowest option of every instruction that a hull's segment of such a saving leads to, shape
        ``(rounds, n)``.
    """

    least_w: Array
    last: Int


@compiled
def start_of(g: Graph, v: int, end: Array) -> float:
    """Earliest start of an instruction, given the ends of those before it."""
    start = 0.0
    for e in range(g.before_first[v], g.before_first[v + 1]):
        start = max(start, end[g.before[e]] + g.before_s[e])
    return start


@compiled
def length(g: Graph, time_s: Array, plan: Int, end: Array) -> float:
    """Iteration time of a plan; ``end`` receives the earliest ends."""
    longest = 0.0
    for v in range(len(plan)):
        end[v] = start_of(g, v, end) + time_s[plan[v]]
        longest = max(longest, end[v])
    return longest


@compiled
def cost(g: Graph, plan: Int) -> float:
    """Sum of the costs of a plan's options."""
    total = 0.0
    for position in plan:
        total += g.cost_j[position]
    return total


@compiled
def slowest_within(time_s: Array, low: int, high: int, room_s: float) -> int:
    """Last position from ``low`` to ``high`` whose time does not exceed the room; ``low`` where none does."""
    while low < high:
        middle = (low + high + 1) >> 1
        if time_s[middle] <= room_s:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def corner_around(g: Graph, corner: Int, v: int, room_s: float, threshold: float) -> int:
    """Of the two corners around a time, the slower one where the time reaches the threshold between them."""
    best: int = corner[slowest_within(g.time_s, g.fastest[v], g.slowest[v], room_s)]
    if best == g.slowest[v]:
        return best
    slower = best + 1
    while corner[slower] != slower:
        slower += 1
    return slower if room_s - g.time_s[best] >= threshold * (g.time_s[slower] - g.time_s[best]) else best


@compiled
def round_to_corners(g: Graph, corner: Int, deadline: Array, threshold: float, plan: Int, end: Array) -> float:
    """Choose corners of the hulls so that instructions end near their deadlines; returns the iteration's time.

    What an instruction leaves of its time, or takes beyond it, is carried to those behind it. It takes the slower of
    two corners where the time left reaches ``threshold`` of the way between them.
    """
    longest = 0.0
    for v in range(len(plan)):
        start = start_of(g, v, end)
        plan[v] = corner_around(g, corner, v, deadline[v] - start, threshold)
        end[v] = start + g.time_s[plan[v]]
        longest = max(longest, end[v])
    return longest


@compiled
def latest_ends(g: Graph, plan: Int, limit_s: float, late: Array) -> None:
    """When every instruction must have ended so that those behind it still end within ``limit_s``."""
    for v in range(len(plan) - 1, -1, -1):
        latest = limit_s
        for e in range(g.after_first[v], g.after_first[v + 1]):
            w = g.after[e]
            latest = min(latest, late[w] - g.time_s[plan[w]] - g.after_s[e])
        late[v] = latest


@compiled
def reclaim(g: Graph, plan: Int, limit_s: float, gains: Gains, free: Bool, end: Array, late: Array) -> None:
    """Slow instructions down where the iteration still ends within ``limit_s``, most profitable first.

    In each round only changes that save at least so many joules for each second count, and only instructions that are
    ``free`` change. An instruction takes the slowest option that fits, or the corner before it where that one saves too
    little.
    """
    room_for_rounding = 1e-12 * limit_s
    for r in range(len(gains.least_w)):
        least = gains.least_w[r]
        latest_ends(g, plan, limit_s, late)
        for v in range(len(plan)):
            start = start_of(g, v, end)
            now = plan[v]
            if free[v] and gains.last[r, v] > now:
                room = late[v] - start + room_for_rounding
                k = slowest_within(g.time_s, now, gains.last[r, v], room)
                if g.cost_j[now] - g.cost_j[k] < least * (g.time_s[k] - g.time_s[now]):
                    k = max(now, g.corner[k])
                    if g.cost_j[now] - g.cost_j[k] < least * (g.time_s[k] - g.time_s[now]):
                        k = now
                plan[v] = k
            end[v] = start + g.time_s[plan[v]]


@compiled
def round_all(
    g: Graph,
    corner: Int,
    deadlines: Array,
    limits_s: Array,
    thresholds: Array,
    gains: Gains,
    times: Array,
    costs: Array,
    plans: Int,
) -> None:
    """Plans for every row of deadlines and every threshold, with their times and costs."""
    n = len(g.fastest)
    plan, end, late = np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n)
    free = np.ones(n, dtype=np.bool_)
    row = 0
    for i in range(len(deadlines)):
        for threshold in thresholds:
            time = round_to_corners(g, corner, deadlines[i], threshold, plan, end)
            reclaim(g, plan, max(time, limits_s[i]), gains, free, end, late)
            times[row] = length(g, g.time_s, plan, end)
            costs[row] = cost(g, plan)
            copy_into(plans[row], plan)
            row += 1


@compiled
def join(
    g: Graph, plans: Int, pairs: Int, place: Array, cuts: Array, gains: Gains, times: Array, costs: Array, joined: Int
) -> None:
    """Plans that begin as one and end as another, with their slack reclaimed.

    Parameters
    ----------
    pairs
        Numbers of the plans to begin and to end with, shape ``(p, 2)``.
    place, cuts
        Where each instruction stands in the iteration, shape ``(n,)``, and before which place those of the first of a
        pair are taken, shape ``(p,)``.
    """
    n = len(g.fastest)
    plan, end, late = np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n)
    free = np.ones(n, dtype=np.bool_)
    for i in range(len(pairs)):
        begins, ends = plans[pairs[i, 0]], plans[pairs[i, 1]]
        for v in range(n):
            plan[v] = begins[v] if place[v] < cuts[i] else ends[v]
        reclaim(g, plan, length(g, g.time_s, plan, end), gains, free, end, late)
        times[i] = length(g, g.time_s, plan, end)
        costs[i] = cost(g, plan)
        copy_into(joined[i], plan)


@compiled
def hand_on(g: Graph, times: Array, costs: Array, plans: Int, gains: Gains) -> None:
    """Try every plan, with its slack reclaimed, in place of the next slower one; plans stand fastest first."""
    n = len(g.fastest)
    plan, end, late = np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n)
    free = np.ones(n, dtype=np.bool_)
    for i in range(1, len(times)):
        copy_into(plan, plans[i - 1])
        reclaim(g, plan, times[i], gains, free, end, late)
        total = cost(g, plan)
        if total < costs[i]:
            costs[i] = total
            copy_into(plans[i], plan)


@compiled
def draw(state: int) -> int:
    """Next state of a linear congruential generator: the same numbers everywhere, compiled or not."""
    return (state * 1103515245 + 12345) & 0x7FFFFFFF


@compiled
def exchange(g: Graph, plan: Int, limit_s: float, gains: Gains, trials: int, seed: int) -> float:
    """Local search: speed up one or two instructions, reclaim what others gain by it, keep what costs less.

    Returns the cost of the plan, which is changed in place and takes no longer than ``limit_s``.
    """
    n = len(plan)
    end, late, tried = np.zeros(n), np.zeros(n), plan.copy()
    free = np.ones(n, dtype=np.bool_)
    best = cost(g, plan)
    state = draw(seed)
    for _ in range(trials):
        copy_into(tried, plan)
        state = draw(state)
        v = (state >> 8) % n
        state = draw(state)
        tried[v] = max(g.fastest[v], tried[v] - 1 - (state >> 8) % 2)
        state = draw(state)
        w = min(max(v - 20 + (state >> 8) % 41, 0), n - 1)
        state = draw(state)
        if (state >> 8) % 2 and tried[w] > g.fastest[w]:
            tried[w] -= 1
        reclaim(g, tried, limit_s, gains, free, end, late)
        total = cost(g, tried)
        if total < best:
            best = total
            copy_into(plan, tried)
    return best


@compiled
def lengths(g: Graph, time_s: Array, plans: Int) -> Array:
    """Iteration time of every plan with these times of the options."""
    end = np.zeros(len(g.fastest))
    times = np.zeros(len(plans))
    for i in range(len(plans)):
        times[i] = length(g, time_s, plans[i], end)
    return times
