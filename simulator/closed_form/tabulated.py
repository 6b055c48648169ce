"""Parts of many plans' instructions: each distinct one is lowered once, and tabulated on a grid of clocks.

Stages of one model differ only in how many layers they have and in what stands before and behind these. The time of a
stage's instruction is therefore ``ends + layers · layer``. Where communication runs beside compute, kernels influence
those near them; from some number k of layers on it is then ``T(k) + (layers − k)·(T(k + 1) − T(k))``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from joulecast.arrays import Array
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.kernel_power import idle_power_w, wait_power_w
from joulecast.simulator.closed_form.clocks import interpolated
from joulecast.simulator.closed_form.keys import Place, at_place, rank_of, stage_key, stage_plan, tail_key, tail_plan
from joulecast.simulator.fluid.part_limits import limited, mean_clock_mhz, wait_columns
from joulecast.simulator.fluid.rendezvous import transfers_wait_on_sms
from joulecast.simulator.instructions.host import host_s, of_towers
from joulecast.simulator.instructions.overlap_steady import WALKED
from joulecast.simulator.instructions.program import instruction_launches, paired, tail_of
from joulecast.simulator.instructions.replicas import reduces_among_launches
from joulecast.simulator.instructions.tables import (
    beside_each_other,
    instruction_table,
    kernel_counts,
    kernels_of,
)
from joulecast.simulator.plan_file.implementation import implementation_of, nanobatches_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    BOTH_ENDS,
    FORWARD,
    PAIRS,
    SPLITS_BACKWARD,
    Instruction,
)

T = TypeVar("T")

#: A sum of parts: rows of :class:`Parts` and how often each counts.
Recipe = tuple[tuple[int, float], ...]
#: Layers from which on an overlapped stage grows evenly.
STEADY_LAYERS = WALKED + 1
#: Parts tabulated in one call.
_AT_ONCE = 96
#: Every how many of the GPU's clocks one is tabulated; what lies between is interpolated, 0.05 % off at most.
_CLOCK_STRIDE = 4


class _Part(NamedTuple):
    """What a part launches, whether pipeline transfers wait on the SMs meanwhile, and the host's time for it [s].

    ``tower_host_s`` is what of that is a vision tower's.
    """

    launches: tuple[Launch, ...]
    beside_transfers: bool
    host_s: float
    tower_host_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Tabulated:
    """Every part at every clock of the grid, shape ``(parts, clocks)`` [s], [J].

    ``exposed_s`` is communication without compute beside it, ``host_s`` what the host needs to launch a part;
    ``tower_s`` and ``tower_host_s`` are a vision tower's kernels among it, and the host's time for these;
    ``clock_mhz`` is the mean clock of a part's kernels, below the grid's where parts of the GPU are limited.
    """

    duration_s: Array
    exposed_s: Array
    energy_j: Array
    host_s: Array
    tower_s: Array
    tower_host_s: Array
    clock_mhz: Array

    @cached_property
    def is_launched(self) -> bool:
        """Whether the host needs time for any part."""
        return bool(self.host_s.any())


class Parts:
    """Distinct parts of plans on one GPU, tabulated when they are first asked for.

    Parameters
    ----------
    component_limits_w
        Limits of parts of the GPU's package, by name [W].

    Attributes
    ----------
    stage_recipes
        Parts of forward, backward, weight gradient and forward with a backward beside it of every distinct stage; the
        last two are empty unless there are such.
    tail_recipes
        Parts of every distinct tail, which is what follows the last backward.
    drain_recipes
        What of these is the last backward's reduction of gradients, for which the rank before it waits.
    idle_w, waiting_w
        Power of a GPU that runs nothing, and of one that waits, where the governor sets a clock, shape ``(clocks,)``
        [W].
    """

    def __init__(self, gpu: GpuModel, component_limits_w: Mapping[str, float] | None = None) -> None:
        self.gpu, self.component_limits_w = gpu, component_limits_w or {}
        self.clocks_mhz = clocks = coarse_clocks(gpu)
        self.idle_w = idle_power_w(clocks, gpu)
        self.waiting_w = wait_power_w(clocks[wait_columns(clocks, self.component_limits_w, gpu)], gpu)
        self.stage_recipes: list[tuple[Recipe, Recipe, Recipe, Recipe]] = []
        self.tail_recipes: list[Recipe] = []
        self.drain_recipes: list[Recipe] = []
        self._rows: dict[_Part, int] = {_Part((), False, 0.0): 0}
        self._tables: dict[float, list[Tabulated]] = {}
        self._cache: dict[object, Any] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def stages_of(self, plan: Plan) -> Stages:
        """A plan's stages."""
        split, beside_transfers = plan.schedule.name in SPLITS_BACKWARD, transfers_wait_on_sms(plan)
        key = (Stages, stage_key(plan), split, beside_transfers, plan.schedule.name in PAIRS)
        kinds = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT) if split else (FORWARD, BACKWARD)
        return self.cached(key, lambda: Stages(self, stage_plan(plan), kinds, beside_transfers))

    def tails_of(self, plan: Plan) -> Tails:
        """What follows the last backward on a plan's ranks."""
        split = plan.schedule.name in SPLITS_BACKWARD
        key = (Tails, tail_key(plan), split, plan.schedule.name if plan.schedule.name in BOTH_ENDS else "")
        return self.cached(key, lambda: Tails(self, tail_plan(plan), split))

    def cached(self, key: object, make: Callable[[], T]) -> T:
        """What ``make`` returns, called once for each key."""
        if key not in self._cache:
            self._cache[key] = make()
        found: T = self._cache[key]
        return found

    def add(self, plan: Plan, kind: str, place: Place, *, beside_transfers: bool = False, reduces: bool = False) -> int:
        """Row of what a stage at a place launches for one instruction.

        ``beside_transfers``: pipeline transfers wait on the SMs; ``reduces``: gradients are reduced among the launches.
        """
        at, rank = at_place(plan, place), rank_of(place)
        launches = instruction_launches(at, implementation_of(at), Instruction(kind), rank, reduces)
        return self._row(at, launches, beside_transfers)

    def add_pair(self, plan: Plan, place: Place, other: Place) -> int:
        """Row of what the forward of a stage at a place launches in one with the backward of another stage."""
        ways = zip((place, other), (FORWARD, BACKWARD), strict=True)
        at = [(at_place(plan, one), rank_of(one), kind) for one, kind in ways]
        both = [instruction_launches(own, implementation_of(own), Instruction(kind), rank) for own, rank, kind in at]
        return self._row(plan, paired(plan, *both), beside_transfers=False)

    def _row(self, plan: Plan, launches: tuple[Launch, ...], beside_transfers: bool) -> int:
        seen = of_towers([launches]) if plan.workload.images is not None else []
        part = _Part(launches, beside_transfers, *host_s(plan, self.gpu, [launches, *seen]).tolist())
        return self._rows.setdefault(part, len(self._rows))

    def tabulate(self, limit_w: float) -> Tabulated:
        """All parts asked for so far, under the board's instant limit that comes with a power limit."""
        done = self._tables.setdefault(limit_w, [])
        start = sum(len(table.duration_s) for table in done)
        left = list(self._rows)[start:]
        for first in range(0, len(left), _AT_ONCE):
            done.append(self._tabulate(left[first : first + _AT_ONCE], limit_w * self.gpu["governor.peak_share"]))
        if len(done) > 1:
            done[:] = [_stacked(done)]
        return done[0]

    def _tabulate(self, parts: Sequence[_Part], peak_w: float) -> Tabulated:
        """As :func:`~joulecast.simulator.instructions.tables.instruction_table`, but sums depend on no other part."""
        if self.component_limits_w:
            return _stacked([self._limited(part, peak_w) for part in parts])
        gpu, types = self.gpu, [part.launches for part in parts]
        kernels = kernels_of([types], self.clocks_mhz, gpu, peak_w)
        times = kernels.times

        def sums_of(lists: Sequence[Sequence[Launch]]) -> Sums:
            return Sums([tuple((kernels.row[x.operator], float(x.repeat)) for x in launches) for launches in lists])

        sums = sums_of(types)
        serial, communication = sums.of(times.time_s.T), sums.of(kernels.communication_s.T)
        duration, exposed = serial.copy(), communication.copy()
        for beside_transfers in (False, True):
            own = [i for i, part in enumerate(parts) if part.beside_transfers == beside_transfers]
            duration[own], exposed[own], _ = beside_each_other(
                [types[i] for i in own], serial[own], communication[own], kernels, gpu, beside_transfers
            )
        energy = sums.of(times.energy_j.T) + (duration - serial) * self.idle_w
        grid = np.broadcast_to(self.clocks_mhz, serial.shape)
        hosts = _host_s(parts, serial.shape)
        towers = np.zeros_like(serial)
        if hosts[1].any():
            towers = sums_of(of_towers(types)).of(times.time_s.T)
        return Tabulated(duration, exposed, energy, hosts[0], towers, hosts[1], grid)

    def _limited(self, part: _Part, peak_w: float) -> Tabulated:
        """A part whose kernels' powers add up, at the limits of the GPU's parts."""
        types = [part.launches]
        kernels = kernels_of([types], self.clocks_mhz, self.gpu, peak_w, (), self.component_limits_w)
        table = instruction_table(types, kernels, self.gpu, None, part.beside_transfers)
        clock = mean_clock_mhz(table, kernels)
        table, ceiling = limited(table, self.clocks_mhz, self.component_limits_w, self.gpu)
        free = self.clocks_mhz <= ceiling[:, None]

        def held(values: Array) -> Array:
            return np.where(free, values, interpolated(values, self.clocks_mhz, ceiling)[:, None])

        exposed = held(table.exposed_s)
        hosts, towers = _host_s([part], clock.shape), kernel_counts(of_towers(types), kernels) @ kernels.times.time_s.T
        energy, spent = held(table.energy_j), held(clock)
        return Tabulated(held(table.duration_s), exposed, energy, hosts[0], held(towers), hosts[1], spent)


def _stacked(tables: Sequence[Tabulated]) -> Tabulated:
    return Tabulated(*(np.vstack([getattr(table, f.name) for table in tables]) for f in fields(Tabulated)))


def _host_s(parts: Sequence[_Part], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Time of the host for parts, and for their towers' kernels."""
    whole, towers = (np.array([[getattr(part, name)] for part in parts]) for name in ("host_s", "tower_host_s"))
    return np.broadcast_to(whole, shape), np.broadcast_to(towers, shape)


class Stages:
    """Stages that differ in their place and number of layers alone."""

    def __init__(self, parts: Parts, plan: Plan, kinds: Sequence[str], beside_transfers: bool) -> None:
        self._parts, self._plan, self._kinds, self._beside_transfers = parts, plan, kinds, beside_transfers
        self._interval = plan.implementation.recompute_interval  # after which layers repeat
        # With adapters the first layer is another, and a teacher's layers are behind those of the whole model.
        alike = self._interval == 1 and plan.workload.lora is None and plan.workload.teacher is None
        self._layers_apart = nanobatches_of(plan).parts == 1 and not plan.parallelism.fsdp and alike
        self._rows: dict[Place, tuple[int, ...]] = {}
        self._stages: dict[Place, int] = {}

    def stage(self, place: Place) -> int:
        """Which of :attr:`Parts.stage_recipes` stands at a place."""
        if place not in self._stages:
            terms = [(self._rows_at(part), share) for part, share in self._terms(place)]
            recipes = [tuple((rows[kind], share) for rows, share in terms) for kind in range(len(self._kinds))]
            self._stages[place] = len(self._parts.stage_recipes)
            pair: Recipe = ()
            if place.beside is not None:
                pair = ((self._parts.add_pair(self._plan, place, place.beside), 1.0),)
            self._parts.stage_recipes.append((recipes[0], recipes[1], recipes[2] if len(recipes) > 2 else (), pair))
        return self._stages[place]

    def _terms(self, place: Place) -> list[tuple[Place, float]]:
        """Places whose instructions a stage's are the sum of, and how often each counts."""
        place = place._replace(beside=None)
        layers, first, last, others, _ = place
        if self._layers_apart:
            ends = [(Place(0, first, last, (0,) * len(others)), 1.0)] if first or last else []
            counts = (*others, layers - sum(others))
            return [*ends, *((_one(kind, len(others)), float(n)) for kind, n in enumerate(counts) if n)]
        few = sum(others) + STEADY_LAYERS
        few += (layers - few) % self._interval
        turns = first and last and self._plan.workload.model.takes_turns  # what is gathered hides beside another kind
        if layers <= few or turns:
            return [(place, 1.0)]
        more = (layers - few) / self._interval
        steady = place._replace(layers=few), place._replace(layers=few + self._interval)
        return [(steady[0], 1.0 - more), (steady[1], more)]

    def _rows_at(self, place: Place) -> tuple[int, ...]:
        """Rows of every kind of instruction of a stage at a place."""
        if place not in self._rows:
            beside = self._beside_transfers
            self._rows[place] = tuple(
                self._parts.add(self._plan, kind, place, beside_transfers=beside) for kind in self._kinds
            )
        return self._rows[place]


def _one(kind: int, others: int) -> Place:
    """A single layer of one of the model's kinds, the last of which is beyond the ``others``."""
    return Place(1, False, False, tuple(int(other == kind) for other in range(others)))


class Tails:
    """What follows the last backward, of ranks that differ in their place alone; ``split``: in two parts."""

    def __init__(self, parts: Parts, plan: Plan, split: bool) -> None:
        self._parts, self._plan, self._split = parts, plan, split
        self._tails: dict[Place, int] = {}

    def tail(self, place: Place) -> int:
        """Which of :attr:`Parts.tail_recipes` a rank has, all its chunks taken as one stage."""
        if place not in self._tails:
            reduction: Recipe = ()
            if reduces_among_launches(self._plan):
                kind = BACKWARD_WEIGHT if self._split else BACKWARD
                last, other = (self._parts.add(self._plan, kind, place, reduces=r) for r in (True, False))
                reduction = ((last, 1.0), (other, -1.0))
            self._tails[place] = len(self._parts.tail_recipes)
            own = (
                (self._parts.add(self._plan, kind, place), float(often))
                for kind, often in Counter(tail_of(self._plan)).items()
            )
            self._parts.tail_recipes.append((*own, *reduction))
            # Nobody waits for the gradients of weights where they are split off.
            self._parts.drain_recipes.append(() if self._split else reduction)
        return self._tails[place]


def coarse_clocks(gpu: GpuModel) -> Array:
    """Some of the GPU's clocks, the lowest and the highest among them, ascending [MHz]."""
    clocks = gpu.clocks_mhz
    return np.array(sorted({*clocks[::-_CLOCK_STRIDE].tolist(), float(clocks[0])}))


class Sums:
    """Sums of parts, one for each recipe."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        full = [recipe or _NOTHING for recipe in recipes]
        self._rows = np.array([row for recipe in full for row, _ in recipe], dtype=np.int64)
        self._share = np.array([share for recipe in full for _, share in recipe])[:, None]
        self._starts = np.cumsum([0, *(len(recipe) for recipe in full[:-1])])

    def of(self, values: Array) -> Array:
        """Of a table of parts, shape ``(recipes, clocks)``."""
        return np.asarray(np.add.reduceat(values[self._rows] * self._share, self._starts, axis=0))


#: No part: a share of 0 of the first.
_NOTHING: Recipe = ((0, 0.0),)
