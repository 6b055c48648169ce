"""Inner loops of plans whose instructions share choices; see :mod:`joulecast.plan.exact.simple_plans`.

Beside what :mod:`joulecast.plan.exact.rounding_kernels` names, functions take ``choice``, that of each of ``m`` groups,
shape ``(m,)``, and ``frozen``, 1 for groups that keep theirs, shape ``(m,)``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.plan.exact.compiled import compiled, copy_into
from joulecast.plan.exact.rounding_kernels import Gains, Graph, cost, draw, length, reclaim


class Ties(NamedTuple):
    """Groups of instructions that share a choice.

    Attributes
    ----------
    group
        Group of every instruction, -1 where it is free, in the graph's order.
    row
        Row of ``position`` of every instruction: the options of its kind at each choice of its group.
    position
        Position of the option, shape ``(rows, choices)``.
    choices
        Number of choices of every group, fastest first.
    time_s, cost_j
        Sums over all members at each choice: time rises and cost falls, shape ``(groups, choices)``.
    """

    group: Int
    row: Int
    position: Int
    choices: Int
    time_s: Array
    cost_j: Array


@compiled
def set_group(ties: Ties, plan: Int, j: int, choice: int) -> None:
    """Give all members of a group their options of a choice."""
    for v in range(len(plan)):
        if ties.group[v] == j:
            plan[v] = ties.position[ties.row[v], choice]


@compiled
def slow_groups(
    g: Graph, ties: Ties, plan: Int, choice: Int, frozen: Int, limit_s: float, gains: Gains, end: Array
) -> None:
    """Slow groups down while the iteration still ends within ``limit_s``, most profitable first."""
    for least in gains.least_w:
        for j in range(len(choice)):
            time_s, cost_j = ties.time_s[j], ties.cost_j[j]
            k = choice[j] + 1
            while not frozen[j] and k < ties.choices[j]:
                if cost_j[choice[j]] - cost_j[k] >= least * (time_s[k] - time_s[choice[j]]):
                    set_group(ties, plan, j, k)
                    if length(g, g.time_s, plan, end) > limit_s:
                        set_group(ties, plan, j, choice[j])
                        break
                    choice[j] = k
                k += 1


@compiled
def settle(
    g: Graph, ties: Ties, choice: Int, frozen: Int, limit_s: float, gains: Gains, plan: Int, end: Array, late: Array
) -> float:
    """Plan of a choice after groups and free instructions have taken up the slack; returns its cost."""
    free = ties.group < 0
    for v in range(len(plan)):
        plan[v] = g.fastest[v] if free[v] else ties.position[ties.row[v], choice[ties.group[v]]]
    slow_groups(g, ties, plan, choice, frozen, limit_s, gains, end)
    if free.any():
        reclaim(g, plan, limit_s, gains, free, end, late)
    return cost(g, plan)


@compiled
def fitting(g: Graph, ties: Ties, choice: Int, limit_s: float, plan: Int, end: Array) -> None:
    """Speed all groups up, step by step, until the iteration ends within ``limit_s``."""
    while True:
        for v in range(len(plan)):
            j = ties.group[v]
            plan[v] = g.fastest[v] if j < 0 else ties.position[ties.row[v], choice[j]]
        if choice.max() == 0 or length(g, g.time_s, plan, end) <= limit_s:
            return
        for j in range(len(choice)):
            choice[j] = max(0, choice[j] - 1)


@compiled
def tied_front(g: Graph, ties: Ties, limits_s: Array, starts: Int, gains: Gains, trials: int, plans: Int) -> None:
    """A plan for every limit, which rise: the plan before it or the one from ``starts``, improved by a local search.

    The search speeds up one or two groups and keeps them there, lets the others take up the slack, and keeps what costs
    less.
    """
    n, groups = len(g.fastest), len(ties.choices)
    end, late, plan = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64)
    none, frozen = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    choice, tried = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    state = 1
    for i in range(len(limits_s)):
        best = settle(g, ties, choice, none, limits_s[i], gains, plan, end, late)
        copy_into(plans[i], plan)
        copy_into(tried, starts[i])
        fitting(g, ties, tried, limits_s[i], plan, end)
        total = settle(g, ties, tried, none, limits_s[i], gains, plan, end, late)
        if total < best:
            best = total
            copy_into(choice, tried)
            copy_into(plans[i], plan)
        for _ in range(trials):
            copy_into(tried, choice)
            frozen[:] = 0
            state = draw(state)
            pairs = 1 + (state >> 8) % 2
            for _ in range(pairs):
                state = draw(state)
                j = (state >> 8) % groups
                state = draw(state)
                tried[j] = max(0, tried[j] - 1 - (state >> 8) % 3)
                frozen[j] = 1
            total = settle(g, ties, tried, frozen, limits_s[i], gains, plan, end, late)
            if total < best:
                best = total
                copy_into(choice, tried)
                copy_into(plans[i], plan)
