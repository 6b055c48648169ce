"""Plans next to a power limit, which the front without it passes by.

What a rank's boards may draw on average over a second holds for instructions together: how much each may draw follows
from the plan. As a governor does, but for whole iterations, the power of each is lowered by what exceeds its limit and
raised by what is left, until both are met; the continuous optimum under such caps is then rounded to options.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.plan.exact.parametric_flow import TimeCostCurve, time_cost_curve
from joulecast.plan.exact.power_means import excess_w
from joulecast.plan.exact.problem import FrontProblem
from joulecast.plan.exact.rounding import Plans, joined, rounded
from joulecast.plan.exact.simple_plans import simple_plans
from joulecast.plan.knobs.options import TIME_QUANTUM_S, OptionSet, make_options, quanta

#: Most rounds in which caps follow the excess, and the excess at which they have met it, as a share of the limit.
ROUNDS, MET = 4, 1e-3
#: Caps are whole multiples of this share of the limit, so that most instructions have one of few.
STEP = 1e-3
#: Shares of the caps under which simple plans are sought: their choices lie on both sides of the spans between them.
SHARES = (1.02, 1.0, 0.98)
#: Instructions visited in search of simple plans, roughly, and how much fewer where they stand beside others.
SEARCHED, BESIDE = 60_000_000, 6
#: Relative difference of powers that is rounding.
ROUNDING = 1e-9
#: Times for which plans are sought, as shares of the fastest one under the caps.
TIMES = np.array([0.998, 1.0, 1.002, 1.004, 1.006, 1.009, 1.012, 1.02, 1.04, 1.06])


def plans_at_limit(problem: FrontProblem, limit_w: Array, simple: str | None) -> Plans:
    """Plans around the fastest that keeps the power limit; some of them may not keep it.

    Parameters
    ----------
    limit_w
        Of mean powers, shape ``(ranks,)`` [W].
    simple
        As of :func:`joulecast.plan.exact.exact_front.exact_front`.
    """
    found, searched = [], SEARCHED // len(SHARES)
    if simple is None:
        _, curve = _caps(problem, limit_w, np.arange(problem.dag.instructions))
        found.append(rounded(problem, curve, TIMES * curve.time_s[-1]))
        simple, searched = "stage", searched // BESIDE
    cap_w, curve = _caps(problem, limit_w, problem.kind)
    times_s = TIMES * curve.time_s[-1]
    found += [_simple(problem, share * cap_w, curve, simple, times_s, searched) for share in SHARES]
    return joined(*found)


def _caps(problem: FrontProblem, limit_w: Array, group: Int) -> tuple[Array, TimeCostCurve]:
    """How much each instruction may draw, alike in each group, shape ``(n,)`` [W], and the curve under these caps."""
    of_rank = limit_w[problem.dag.rank_of]
    powers = [_powers_w(problem, k) for k in range(len(problem.sets))]
    most, least = (np.array([of_kind[end] for of_kind in powers]) for end in (0, -1))
    cap_w = most[problem.kind]
    found: tuple[Array, TimeCostCurve] | None = None
    for _ in range(ROUNDS):
        whole = np.maximum(np.round(cap_w / (STEP * of_rank)) * STEP * of_rank, least[problem.kind])
        curve = _curve(problem, whole)
        time, energy = _fastest(problem, curve)
        excess = excess_w(problem, limit_w, time, energy)
        if (excess <= MET * of_rank).all():
            if found is not None and curve.time[-1] > (1.0 - MET) * found[1].time[-1]:
                break
            found = whole, curve
        lowered = np.where(excess > 0.0, np.minimum(cap_w, energy / time), cap_w) - excess
        shared = np.full(group.max() + 1, np.inf)
        np.minimum.at(shared, group, lowered)
        cap_w = np.clip(shared[group], least[problem.kind], most[problem.kind])
    return found or (whole, curve)


def _powers_w(problem: FrontProblem, kind: int) -> Array:
    """Power of a kind at the corners of its hull, which falls [W]."""
    options = problem.sets[kind]
    wait = problem.wait_power_w[problem.dag.rank_of[problem.kind == kind][0]]
    return np.asarray(wait + options.cost_j[options.hull] / options.time_s[options.hull])


def _curve(problem: FrontProblem, cap_w: Array) -> TimeCostCurve:
    """The curve where instructions take at least as long as they do at their caps."""
    keys, kind = np.unique(np.stack([problem.kind, cap_w], axis=1), axis=0, return_inverse=True)
    sets = [_slower(problem, int(k), cap) for k, cap in keys.tolist()]
    return time_cost_curve(problem.dag, sets, kind.ravel())


def _slower(problem: FrontProblem, kind: int, cap_w: float) -> OptionSet:
    """The part of a kind's hull that draws no more."""
    options = problem.sets[kind]
    time, cost = options.time_s[options.hull], options.cost_j[options.hull]
    first = float(np.interp(cap_w, _powers_w(problem, kind)[::-1], time[::-1]))
    time = np.append(first, time[time > first + TIME_QUANTUM_S])
    whole, spent = quanta(time), np.interp(time, options.time_s[options.hull], cost)
    return OptionSet(options.name, (), len(time), time, spent, whole, np.arange(len(time)))


def _fastest(problem: FrontProblem, curve: TimeCostCurve) -> tuple[Array, Array]:
    """Time and energy of every instruction in the fastest optimum of a curve, shape ``(n,)`` [s], [J]."""
    time = (curve.end[-1] - curve.start[-1]) * TIME_QUANTUM_S
    cost = np.empty_like(time)
    for k, options in enumerate(problem.sets):
        own, hull = problem.kind == k, options.hull
        time[own] = np.clip(time[own], options.time_s[hull[0]], options.time_s[hull[-1]])
        cost[own] = np.interp(time[own], options.time_s[hull], options.cost_j[hull])
    return time, cost + problem.wait_power_w[problem.dag.rank_of] * time


def _simple(
    problem: FrontProblem, cap_w: Array, curve: TimeCostCurve, simple: str, times_s: Array, searched: int
) -> Plans:
    """Simple plans of options that draw no more than caps, which instructions of a kind share."""
    sets, numbers = [], []
    for k, options in enumerate(problem.sets):
        own = np.flatnonzero(problem.kind == k)[0]
        power = _option_powers_w(options)
        kept = np.flatnonzero(power <= max(float(cap_w[own]), float(power.min())) * (1.0 + ROUNDING))
        number = {id(options.options[i]): i for i in kept.tolist()}
        wait = float(problem.wait_power_w[problem.dag.rank_of[own]])
        sets.append(make_options([options.options[i] for i in kept.tolist()], wait, options.name))
        numbers.append(np.array([number[id(option)] for option in sets[-1].options]))
    below = replace(problem, sets=tuple(sets))
    found = simple_plans(below, curve, simple, times_s, searched)
    choice = found.position - below.graph.fastest
    kind = problem.kind[problem.dag.order]
    of_all = [numbers[k][choice[:, v]] for v, k in enumerate(kind.tolist())]
    return Plans(found.time_s, found.cost_j, np.stack(of_all, axis=1) + problem.graph.fastest)


def _option_powers_w(options: OptionSet) -> Array:
    return np.array([option.energy_j / option.time_s for option in options.options])
