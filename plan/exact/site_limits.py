"""The power limits of a plan's site, which plans of its front must keep as what ``predict`` forecasts must.

Limits hold for peaks: means over about ten milliseconds of what a node, a rack or the whole job draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from joulecast.errors import InputError, counted
from joulecast.model.hardware.description import GpuDescription
from joulecast.plan.exact.front import FrontPoint, falling
from joulecast.plan.exact.front_guards import AT_ONCE, ends_of_plans, of_choices
from joulecast.simulator.fluid.power_over_time import PowerOverTime, power_of_instructions
from joulecast.simulator.iteration.site_model import SiteModel, site_model
from joulecast.simulator.iteration.site_peaks import LimitCheck, checks_of_power
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.site import stated_limits

if TYPE_CHECKING:
    from joulecast.plan.exact.problem import FrontProblem


@dataclass(frozen=True, eq=False)
class SiteLimits:
    """A plan whose site limits power, and what surrounds its GPUs."""

    plan: Plan
    model: SiteModel

    def checks(self, over_time: PowerOverTime, gpu_power_w: float) -> tuple[LimitCheck, ...]:
        """The limits beside the peaks of a power over time, in which a GPU draws ``gpu_power_w`` on average."""
        return checks_of_power(over_time, self.plan, self.model, gpu_power_w)

    def within(self, problem: FrontProblem, points: Sequence[FrontPoint]) -> tuple[list[FrontPoint], tuple[str, ...]]:
        """Plans of a front that keep all limits, and what is said of the others.

        Raises
        ------
        InputError
            No plan keeps them.
        """
        checks = [
            self.checks(over_time, p.power_w / self.plan.cluster.gpus) for p, over_time in _powers(problem, points)
        ]
        kept = [p for p, every in zip(points, checks, strict=True) if all(one.met for one in every)]
        if not kept:
            raise nothing_kept(checks, "Choose from lower clocks alone (--space)")
        shown = falling(points)
        of_shown = [every for p, every in zip(points, checks, strict=True) if p in shown]
        return kept, left_out(of_shown)


def site_limits(plan: Plan, gpu: GpuDescription) -> SiteLimits | None:
    """The limits of a plan's site; ``None`` where it states none.

    Raises
    ------
    InputError
        It states one, but what stands around these GPUs is not known.
    """
    stated = stated_limits(plan.site)
    if not stated:
        return None
    model = site_model(plan, gpu)
    if model is None:
        raise InputError(
            f"no node type of {plan.cluster.gpu} is known, so that nothing is known of power beyond its GPUs",
            key=f"site.{stated[0]}",
            remedy="Add cluster.node, or leave out this key.",
        )
    return SiteLimits(plan, model)


def left_out(checks: Sequence[Sequence[LimitCheck]], one: str = "plan") -> tuple[str, ...]:
    """What each limit does to plans, or what else ``one`` is, of which the checks of each are given."""
    notes = []
    for of_one in zip(*checks, strict=True):
        first, over = of_one[0], [check.peak_w for check in of_one if not check.met]
        stated = f"{first.key} = {first.limit_w:g} W"
        if over:
            ends = " to ".join(dict.fromkeys(f"{w:.0f}" for w in (min(over), max(over))))
            notes.append(f"{stated} leaves out {counted(len(over), one)} with peaks of {ends} W there")
        else:
            notes.append(f"every {one} keeps {stated}: the highest peak there is {max(c.peak_w for c in of_one):.0f} W")
    return tuple(notes)


def nothing_kept(checks: Sequence[Sequence[LimitCheck]], lower: str) -> InputError:
    """The error where no plan keeps all limits: the one that is exceeded the most by the plan that comes nearest.

    ``lower`` says how plans of less power can be had.
    """
    nearest = min(checks, key=lambda every: max(check.peak_w / check.limit_w for check in every))
    worst = max(nearest, key=lambda check: check.peak_w / check.limit_w)
    return InputError(
        f"no plan keeps {worst.key} = {worst.limit_w:g} W",
        key=worst.key,
        remedy=f"The nearest has a peak of {ceil(worst.peak_w)} W there. {lower}, or raise it.",
    )


def _powers(problem: FrontProblem, points: Sequence[FrontPoint]) -> Iterator[tuple[FrontPoint, PowerOverTime]]:
    """Power of one GPU of each stage over an iteration of each plan."""
    ends = np.cumsum([len(order) for order in problem.dag.ranks])[:-1]
    wait = problem.wait_power_w / problem.gpus_per_rank
    wait_of = wait[problem.dag.rank_of, None]
    at_once = max(1, AT_ONCE // problem.dag.instructions)
    for first in range(0, len(points), at_once):
        block = points[first : first + at_once]
        time, energy = of_choices(problem, np.stack([point.choice for point in block], axis=1))
        end = ends_of_plans(problem, time)
        beyond = energy / problem.gpus_per_rank - wait_of * time
        for column, point in enumerate(block):
            begun, done, above = (np.split(v[:, column], ends) for v in (end - time, end, beyond))
            instants = list(zip(begun, done, strict=True))
            yield point, power_of_instructions(0.0, point.time_s, instants, above, wait.tolist())
