"""Finds the power limits of ranks that are worth simulating.

Where there are few combinations, all are simulated, and the front is exact on its grid. Where there are many, the front
of one locked clock for each rank says what power every rank needs at its plans; the limits next above these are
simulated, then their neighbours, as long as some improve the front. That is a heuristic, and said so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from joulecast.errors import InputError
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.power.limits import group_limit_share
from joulecast.plan.exact.exact_front import exact_front
from joulecast.plan.exact.site_limits import left_out, nothing_kept, site_limits
from joulecast.plan.fronts.forecast_front import problem_from_plan, ways_of
from joulecast.plan.knobs.front_space import FrontSpace
from joulecast.plan.knobs.overlap_space import Knobs
from joulecast.plan.knobs.time_limit import ROOM
from joulecast.plan.limits.power_limits import JobPoint, board_steps_w, check_limits, ends_of
from joulecast.plan.limits.rank_limits import RankLimitFront, RankLimits, undominated
from joulecast.simulator.events.guards import reported_with
from joulecast.simulator.fluid.power_over_time import power_of_iterations
from joulecast.simulator.fluid.prepared import Prepared, prepare
from joulecast.simulator.fluid.steady_state import simulate
from joulecast.simulator.instructions.clock_columns import is_locked
from joulecast.simulator.instructions.footprints import footprints
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.power import limit_assumptions

#: Most combinations of limits that are all simulated, and plans simulated for a way of overlap where there are more.
ALL, MOST = 640, 256
#: Steps of the board's range where no limits are given.
STEPS = 10
#: Steps of the grid between neighbours, in turn.
STRIDES = (4, 2, 1)
#: Share of energy that a plan must save for its neighbours to be tried: the search spreads over the whole front.
WORTH = 0.004
#: Locked plans of the front of clocks whose powers are tried as limits.
STARTS = 32
#: Limits at which ways of overlap are compared before any is searched, and how many are searched.
WAYS_AT, MOST_WAYS = 3, 3

#: Places of a plan's limits on the grid, by rank.
Places = tuple[int, ...]


def rank_limit_front(
    plan: Plan,
    limits_w: Sequence[float] | None = None,
    *,
    budget_w: float | None = None,
    space: FrontSpace | None = None,
) -> RankLimitFront:
    """Time-energy front over a power limit for each pipeline rank.

    Parameters
    ----------
    limits_w
        Limits to choose from; by default those of ``space``, else steps of a tenth of the board's range [W].
    budget_w
        What the limits of all GPUs together may be at most [W].
    space
        Knobs of overlap and tiles to choose from as well, for all ranks together.

    Raises
    ------
    InputError
        A limit that the board cannot be set to, or a budget below the lowest limits.
    DoesNotFitError
        The plan needs more memory than a GPU has.
    GuardError
        A law of conservation does not hold in a simulation: a defect, reported with the plan.
    """
    description = gpu_of(plan)
    footprints(plan, description)  # refuses a plan that does not fit
    grid = _grid(limits_w, space, description)
    search = _Search(plan, description, grid, budget_w, space)
    if not search.affords(grid[:1] * plan.pp):
        gpus = search.gpus * plan.pp
        raise InputError(
            f"{budget_w:g} W for {gpus} GPUs",
            key="--power-budget",
            remedy=f"The lowest limits take {ceil(grid[0] * gpus)} W together; give more, or lower limits.",
        )
    return search.run()


def _grid(limits_w: Sequence[float] | None, space: FrontSpace | None, description: GpuDescription) -> tuple[float, ...]:
    """Limits to choose from, ascending, all of them possible."""
    offered = None if space is None else space.power_limits_w
    grid = tuple(sorted({float(w) for w in limits_w or offered or board_steps_w(description, STEPS)}))
    try:
        check_limits(grid, description)
    except InputError as error:
        if space is None or limits_w or not offered:
            raise
        raise space.source.error(error.message, "power.power_limit_w", remedy=error.remedy) from None
    return grid


class _Search:
    """Plans of one model, GPU and grid of limits; all simulated ones are kept."""

    def __init__(
        self,
        plan: Plan,
        description: GpuDescription,
        grid: tuple[float, ...],
        budget_w: float | None,
        space: FrontSpace | None,
    ) -> None:
        self.plan, self.description, self.grid = plan, description, grid
        self.gpu: GpuModel = gpu_model(description)
        self.gpus = plan.tp * plan.replicas
        self.site = site_limits(plan, description)
        self.budget_w = np.inf if budget_w is None else budget_w
        self.ways: dict[Knobs, Plan] = {(): plan} if space is None else dict(ways_of(plan, self.gpu, space))
        self.tables: dict[tuple[Knobs, float], Prepared] = {}
        self.found: dict[tuple[Knobs, Places], RankLimits] = {}

    def affords(self, limits_w: Sequence[float]) -> bool:
        """Whether the budget is enough for these limits of the ranks."""
        return self.gpus * sum(limits_w) <= self.budget_w * ROOM

    def run(self) -> RankLimitFront:
        """Search every way of overlap that is worth it, and forecast what is left in full."""
        every = len(self.grid) ** self.plan.pp
        for knobs in self._worthwhile():
            if every <= ALL:
                self._simulate(knobs, itertools.product(range(len(self.grid)), repeat=self.plan.pp))
            else:
                self._search(knobs)
        allowed = [point for point in self.found.values() if self.affords(point.power_limit_w)]
        allowed, said = _within_site(allowed)
        points = tuple(self._in_full(point) for point in undominated(allowed))
        kept = "" if np.isinf(self.budget_w) else " within the budget"
        how = f"all {every} combinations of limits{kept}" if every <= ALL else "limits are searched, not proven"
        return RankLimitFront(
            points,
            self._uniform(points[0].knobs),
            self.gpus,
            None if np.isinf(self.budget_w) else self.budget_w,
            len(self.found),
            (
                f"{how}; each plan shown is simulated under its boards' governors",
                "tensor-parallel ranks and replicas share the limit of their stage",
                *limit_assumptions(self.description, self.grid),
                *said,
            ),
        )

    def _worthwhile(self) -> list[Knobs]:
        """Ways of overlap that are on the front with one limit for all ranks, at some limits."""
        if len(self.ways) == 1:
            return list(self.ways)
        few = np.unique(np.linspace(0, len(self.grid) - 1, WAYS_AT).round().astype(int)).tolist()
        for knobs in self.ways:
            self._simulate(knobs, [(place,) * self.plan.pp for place in few], budget=False)
        best = list(dict.fromkeys(point.knobs for point in undominated(list(self.found.values()))))
        return best[:MOST_WAYS]

    def _uniform(self, knobs: Knobs) -> tuple[JobPoint, ...]:
        """One limit for all ranks, highest first."""
        same = [(place,) * self.plan.pp for place in reversed(range(len(self.grid)))]
        self._simulate(knobs, same, budget=False)
        found = ((self.grid[places[0]], self.found[knobs, places]) for places in same)
        return tuple(JobPoint(limit, point.time_s, point.energy_j) for limit, point in found)

    def _search(self, knobs: Knobs) -> None:
        """Limits that the plans of locked clocks need, then neighbours of what is best."""
        ranks = self.plan.pp
        self._simulate(knobs, [(place,) * ranks for place in range(len(self.grid))])
        needed, top = self._needed(knobs), len(self.grid) - 1
        self._simulate(knobs, needed)
        self._simulate(knobs, [tuple(min(place + 1, top) for place in at) for at in needed])
        strides = [stride for stride in STRIDES if 2 * stride < len(self.grid)]
        for share, stride in enumerate(strides, start=1):
            self._improve(knobs, stride, MOST * share // len(strides))

    def _improve(self, knobs: Knobs, stride: int, most: int) -> None:
        """Simulate neighbours of the front until none is better, or so many plans are simulated."""
        tried: set[Places] = set()
        while True:
            own = {p: at for (k, at), p in self.found.items() if k == knobs and self._fits(at) and p.kept}
            fresh = [at for p in undominated(list(own), WORTH) if (at := own[p]) not in tried]
            if not fresh:
                return
            for at in fresh:
                tried.add(at)
                self._simulate(knobs, self._neighbours(at, stride))
                if sum(k == knobs for k, _ in self.found) >= most:
                    return

    def _needed(self, knobs: Knobs) -> list[Places]:
        """Places of the limits next above the powers of plans with one locked clock for each rank."""
        way = replace(self.ways[knobs], power=replace(self.plan.power, power_limit_w=None))
        own = FrontSpace(comm_ctas=(way.overlap.comm_ctas,))
        problem = replace(problem_from_plan(way, self.gpu, own), power_limit_w=None)
        front = exact_front(problem, simple="rank")
        share = self.gpu["governor.settled_share"] * group_limit_share(self.plan.tp, self.gpu) * self.gpus
        chosen = np.unique(np.linspace(0, len(front.plans) - 1, STARTS).round().astype(int))
        found = []
        for point in (front.plans[i] for i in chosen):
            needed = problem.rank_energies_j(point.choice, point.time_s) / point.time_s / share
            found.append(tuple(self._place(power) for power in needed))
        return list(dict.fromkeys(found))

    def _place(self, power_w: float) -> int:
        return min(int(np.searchsorted(self.grid, power_w)), len(self.grid) - 1)

    def _neighbours(self, at: Places, stride: int) -> Iterable[Places]:
        """One rank's limit some steps lower or higher, or these given from one rank to another."""
        ranks = range(self.plan.pp)
        steps = [{rank: step} for rank in ranks for step in (-1, 1)]
        steps += [{a: -1, b: 1} for a, b in itertools.permutations(ranks, 2)] if np.isfinite(self.budget_w) else []
        for step in steps:
            moved = tuple(place + stride * step.get(rank, 0) for rank, place in enumerate(at))
            if min(moved) >= 0 and max(moved) < len(self.grid):
                yield moved

    def _fits(self, at: Places) -> bool:
        return self.affords([self.grid[place] for place in at])

    def _simulate(self, knobs: Knobs, every: Iterable[Places], *, budget: bool = True) -> None:
        """Simulate those that are not known and, where asked, keep to the budget."""
        for at in dict.fromkeys(every):
            if (knobs, at) in self.found or (budget and not self._fits(at)):
                continue
            limits = tuple(self.grid[place] for place in at)
            with reported_with(self._limited(knobs, limits)):
                steady = simulate(self._prepared(knobs, limits))
            time, energy = steady.step_time_s, steady.energy_j()
            power = tuple((energy / time).tolist())
            checks = () if self.site is None else self.site.checks(power_of_iterations(steady), float(np.mean(power)))
            total = float(self.gpus * energy.sum())
            self.found[knobs, at] = RankLimits(limits, time, total, power, (), knobs, checks=checks)

    def _prepared(self, knobs: Knobs, limits_w: tuple[float, ...]) -> Prepared:
        """A plan's tables: those of a rank are the same whatever the limits of the others."""
        limited = self._limited(knobs, limits_w)
        if is_locked(limited):
            return prepare(limited, self.gpu)
        for limit in limits_w:
            if (knobs, limit) not in self.tables:
                self.tables[knobs, limit] = prepare(self._limited(knobs, (limit,) * self.plan.pp), self.gpu)
        each = [self.tables[knobs, limit] for limit in limits_w]
        return replace(
            each[0],
            program=replace(each[0].program, plan=limited),
            kernels=tuple(one.kernels[rank] for rank, one in enumerate(each)),
            tables=tuple(one.tables[rank] for rank, one in enumerate(each)),
            columns=tuple(one.columns[rank] for rank, one in enumerate(each)),
            power_limits_w=limits_w,
        )

    def _limited(self, knobs: Knobs, limits_w: tuple[float, ...]) -> Plan:
        return replace(self.ways[knobs], power=replace(self.plan.power, power_limit_w=limits_w))

    def _in_full(self, point: RankLimits) -> RankLimits:
        """The same from a whole forecast, with its ledger and guards."""
        iteration = forecast(self._limited(point.knobs, point.power_limit_w), self.description)
        power = tuple(rank.power_w for rank in iteration.ranks)
        clock = tuple(rank.clock_mhz for rank in iteration.ranks)
        return replace(
            point,
            time_s=iteration.time_s,
            energy_j=iteration.energy_j,
            power_w=power,
            clock_mhz=clock,
            **ends_of(iteration),
        )


def _within_site(points: list[RankLimits]) -> tuple[list[RankLimits], tuple[str, ...]]:
    """Plans that keep the power limits of their site, and what is said of those that would be shown without these."""
    kept = [point for point in points if point.kept]
    if not kept:
        raise nothing_kept([point.checks for point in points], "Give lower limits")
    return kept, left_out([point.checks for point in undominated(points)])
