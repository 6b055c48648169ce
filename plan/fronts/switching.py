"""Fronts for boards that take their time to change a clock."""

from __future__ import annotations

from dataclasses import replace

from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.front import Front
from joulecast.plan.exact.problem import FrontProblem
from joulecast.simulator.schedules import ONCE


def front_of_problem(
    problem: FrontProblem, *, switch_s: float, simple: str | None = None, time_limit_s: float | None = None
) -> Front:
    """Front whose plans do not change clocks faster than the board can.

    Where an instruction is shorter than ``switch_s``, every rank keeps one clock, and a note says so. The other
    parameters are those of :func:`joulecast.plan.exact.exact_front.exact_front`.
    """
    shortest = shortest_instruction_s(problem)
    if simple != "rank" and shortest < switch_s:
        simple = "rank"
        note = (
            f"every stage keeps one clock: there are instructions of {shortest * 1e3:.3g} ms, "
            f"and a change of clock takes {switch_s * 1e3:.3g} ms"
        )
        problem = replace(problem, notes=(*problem.notes, note))
    return exact_front(problem, simple=simple, time_limit_s=time_limit_s)


def shortest_instruction_s(problem: FrontProblem) -> float:
    """Shortest time of any instruction but the optimizer's, which runs once an iteration [s]."""
    flat = (instruction for order in problem.dag.ranks for instruction in order)
    kinds = {int(k) for k, i in zip(problem.kind, flat, strict=True) if i.kind not in ONCE}
    return min((float(problem.sets[k].time_s[0]) for k in kinds), default=float("inf"))
