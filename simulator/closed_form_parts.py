"""Parts of many plans' instructions: each distinct one is lowered once, and tabulated on a grid of clocks.

Stages of one model differ in how many layers they have and in what stands before and behind them. A stage's instruction
is therefore ``ends + layers · layer``; where communication runs beside compute, kernels influence those near them, and
it is ``T(k) + (layers − k)·(T(k + 1) − T(k))`` from some number k of layers on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from joulecast.model.gpu_model import GpuModel
from joulecast.model.launches import Launch
from joulecast.simulator.closed_form_clocks import at
from joulecast.simulator.overlap_steady import WALKED
from joulecast.simulator.part_limits import limited, mean_clock_mhz
from joulecast.simulator.plan import Cluster, Overlap, Parallelism, Plan, Power, Schedule, Workload
from joulecast.simulator.plan_gpu import launch_s
from joulecast.simulator.program import implementation_of, instruction_launches, nanobatches_of
from joulecast.simulator.rendezvous import transfers_wait_on_sms
from joulecast.simulator.replicas import OWN_STREAM
from joulecast.simulator.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, OPTIMIZER, Instruction
from joulecast.simulator.tables import InstructionTable, Kernels, host_launches, instruction_table, kernels_of

Array = NDArray[np.float64]
T = TypeVar("T")

#: A sum of parts: rows of :class:`Parts` and how often each counts.
Recipe = tuple[tuple[int, float], ...]
#: Layers from which on an overlapped stage grows evenly.
STEADY_LAYERS = WALKED + 1
#: Parts tabulated in one call.
_AT_ONCE = 96
#: Every how many of the GPU's clocks one is tabulated; what lies between is interpolated, 0.05 % off at most.
_CLOCK_STRIDE = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A stage: its layers, whether embedding or head stand on it, and how many layers lack the model's experts."""

    layers: int
    first: bool
    last: bool
    dense: int = 0


@dataclass(frozen=True, eq=False)
class Tabulated:
    """Every part at every clock of the grid, shape ``(parts, clocks)`` [s], [J].

    ``exposed_s`` is communication without compute beside it, ``host_s`` what the host needs to launch a part;
    ``clock_mhz`` is the mean clock of a part's kernels, below the grid's where parts of the GPU are limited.
    """

    duration_s: Array
    exposed_s: Array
    energy_j: Array
    host_s: Array
    clock_mhz: Array


class Parts:
    """Distinct parts of plans on one GPU, tabulated when they are first asked for.

    Parameters
    ----------
    limits_w
        Limits of parts of the GPU's package, by name [W].
    """

    def __init__(self, gpu: GpuModel, limits_w: Mapping[str, float] | None = None) -> None:
        self.gpu, self.limits_w = gpu, limits_w or {}
        self.clocks_mhz = coarse_clocks(gpu)
        self._launches: list[tuple[Launch, ...]] = [()]
        self._beside: list[bool] = [False]
        self._launch_s: list[float] = [0.0]
        self._stages: dict[object, Stages] = {}
        self._tails: dict[object, Tails] = {}
        self._tables: dict[float, list[Tabulated]] = {}
        self._once: dict[object, Any] = {}

    def stages_of(self, plan: Plan) -> Stages:
        """Recipes of a plan's stages."""
        split, beside = plan.schedule.name == "zb-h1", transfers_wait_on_sms(plan)
        key = (_stage_key(plan), split, beside)
        if key not in self._stages:
            kinds = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT) if split else (FORWARD, BACKWARD)
            self._stages[key] = Stages(self, _stage_plan(plan), kinds, beside)
        return self._stages[key]

    def tails_of(self, plan: Plan) -> Tails:
        """Recipes of what follows the last backward on a plan's ranks."""
        key = tail_key(plan)
        if key not in self._tails:
            self._tails[key] = Tails(self, _tail_plan(plan))
        return self._tails[key]

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What ``make`` gives, made when it is asked for first."""
        if key not in self._once:
            self._once[key] = make()
        found: T = self._once[key]
        return found

    def add(self, plan: Plan, kind: str, place: Place, *, beside: bool = False, reduces: bool = False) -> int:
        """Row of what a stage at a place launches for one instruction.

        ``beside``: pipeline transfers wait on the SMs; ``reduces``: gradients are reduced among the launches.
        """
        at, rank = _at_place(plan, place), _rank_of(place)
        self._launches.append(instruction_launches(at, implementation_of(at), Instruction(kind), rank, reduces))
        self._beside.append(beside)
        self._launch_s.append(launch_s(at, self.gpu))
        return len(self._launches) - 1

    def tabulate(self, limit_w: float) -> Tabulated:
        """All parts asked for so far, under the board's instant limit that comes with a power limit."""
        done = self._tables.setdefault(limit_w, [])
        start = sum(len(table.duration_s) for table in done)
        while start < len(self._launches):
            end = min(start + _AT_ONCE, len(self._launches))
            done.append(self._tabulate(range(start, end), limit_w * self.gpu["governor.peak_share"]))
            start = end
        if len(done) > 1:
            done[:] = [Tabulated(*(np.vstack([getattr(t, f.name) for t in done]) for f in fields(Tabulated)))]
        return done[0]

    def _tabulate(self, rows: range, peak_w: float) -> Tabulated:
        launches = [self._launches[row] for row in rows]
        kernels = kernels_of([launches], self.clocks_mhz, self.gpu, peak_w, (), self.limits_w)
        shape = (len(rows), len(self.clocks_mhz))
        host = np.array([[self._launch_s[row] * host_launches(self._launches[row])] for row in rows])
        duration, exposed, energy, clock = (np.empty(shape) for _ in range(4))
        out = Tabulated(duration, exposed, energy, np.broadcast_to(host, shape), clock)
        for beside in {self._beside[row] for row in rows}:
            own = [i for i, row in enumerate(rows) if self._beside[row] == beside]
            table = instruction_table([launches[i] for i in own], kernels, self.gpu, None, beside)
            found = table.duration_s, table.energy_j, table.communication_s[..., 1], self._clock_mhz(table, kernels)
            if self.limits_w:
                found = self._limited(table, found[3])
            out.duration_s[own], out.energy_j[own], out.exposed_s[own], out.clock_mhz[own] = found
        return out

    def _clock_mhz(self, table: InstructionTable, kernels: Kernels) -> Array:
        """Mean clock of each part's kernels, shape ``(parts, clocks)`` [MHz]."""
        grid = np.broadcast_to(self.clocks_mhz, table.duration_s.shape)
        return np.array(grid) if kernels.held_mhz is None else mean_clock_mhz(table, kernels)

    def _limited(self, table: InstructionTable, clock_mhz: Array) -> tuple[Array, Array, Array, Array]:
        """Duration, energy, exposed communication and clock of parts whose kernels' powers add up, at their limit."""
        table, ceiling = limited(table, self.clocks_mhz, self.limits_w, self.gpu)
        free = self.clocks_mhz <= ceiling[:, None]

        def held(values: Array) -> Array:
            return np.where(free, values, at(values, self.clocks_mhz, ceiling)[:, None])

        return held(table.duration_s), held(table.energy_j), held(table.communication_s[..., 1]), held(clock_mhz)


class Stages:
    """Recipes of stages that differ in their place and number of layers alone."""

    def __init__(self, parts: Parts, plan: Plan, kinds: Sequence[str], beside: bool) -> None:
        self._parts, self._plan, self._kinds, self._beside = parts, plan, kinds, beside
        self._rows: dict[tuple[str, Place], int] = {}
        self._recipes: dict[Place, tuple[Recipe, Recipe, Recipe]] = {}

    def recipes(self, place: Place) -> tuple[Recipe, Recipe, Recipe]:
        """Forward, backward and weight gradient of one micro-batch; the last is empty unless split off."""
        if place not in self._recipes:
            found = [self._recipe(kind, place) for kind in self._kinds]
            self._recipes[place] = (found[0], found[1], found[2] if len(found) > 2 else ())
        return self._recipes[place]

    def _recipe(self, kind: str, place: Place) -> Recipe:
        if nanobatches_of(self._plan).parts == 1 and not self._plan.parallelism.fsdp:
            found: Recipe = ()
            if place.first or place.last:
                found = ((self._row(kind, Place(0, place.first, place.last)), 1.0),)
            for dense, count in ((1, place.dense), (0, place.layers - place.dense)):
                if count:
                    found += ((self._row(kind, Place(1, False, False, dense)), float(count)),)
            return found
        if place.layers <= STEADY_LAYERS:
            return ((self._row(kind, place), 1.0),)
        more = float(place.layers - STEADY_LAYERS)
        steady = (replace(place, layers=STEADY_LAYERS), replace(place, layers=STEADY_LAYERS + 1))
        return ((self._row(kind, steady[0]), 1.0 - more), (self._row(kind, steady[1]), more))

    def _row(self, kind: str, place: Place) -> int:
        if (kind, place) not in self._rows:
            self._rows[kind, place] = self._parts.add(self._plan, kind, place, beside=self._beside)
        return self._rows[kind, place]


class Tails:
    """Recipes of what follows the last backward, of ranks that differ in their place alone."""

    def __init__(self, parts: Parts, plan: Plan) -> None:
        self._parts, self._plan = parts, plan
        self._recipes: dict[Place, Recipe] = {}

    def recipe(self, place: Place) -> Recipe:
        """Of a rank, all its chunks taken as one stage."""
        if place not in self._recipes:
            recipe: Recipe = ((self._parts.add(self._plan, OPTIMIZER, place), 1.0),)
            if reduces_among_launches(self._plan):
                last, other = (self._parts.add(self._plan, BACKWARD, place, reduces=r) for r in (True, False))
                recipe += ((last, 1.0), (other, -1.0))
            self._recipes[place] = recipe
        return self._recipes[place]


def reduces_among_launches(plan: Plan) -> bool:
    """Whether the last backward reduces gradients among its own launches, as PyTorch's buckets do."""
    overlapped = plan.replicas > 1 and plan.overlap.grad_reduce == "overlapped"
    return overlapped and plan.implementation.framework != OWN_STREAM


def coarse_clocks(gpu: GpuModel) -> Array:
    """Some of the GPU's clocks, the lowest and the highest among them, ascending [MHz]."""
    clocks = gpu.clocks_mhz
    return np.unique(np.append(clocks[::-_CLOCK_STRIDE], clocks[0]))


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

_NO_POWER = Power()
#: How the pipeline cuts the model: a stage's own work does not depend on it.
_CUT: dict[str, Any] = {
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": 1,
    "stage_layers": (),
}
_REPLICATED: dict[str, Any] = {"data_parallel_size": 1, "fsdp_shard_size": 1}


def _all_but(kind: type, *names: str) -> Callable[[Any], tuple[Any, ...]]:
    """What reads every other field of a dataclass."""
    return attrgetter(*(f.name for f in fields(kind) if f.name not in names))


_workload_key = _all_but(Workload, "global_batch_size", "training_tokens")
_workload_key_at_end = _all_but(Workload, "micro_batch_size", "global_batch_size", "training_tokens")
_cluster_key = _all_but(Cluster, "gpus")
_overlap_key = _all_but(Overlap, "grad_bucket_bytes")
_split_key = _all_but(Parallelism, *_CUT, *_REPLICATED)
_split_key_at_end = _all_but(Parallelism, *_CUT)
_split_key_between = _all_but(Parallelism, "virtual_pipeline_model_parallel_size", "stage_layers")


def _stage_key(plan: Plan) -> tuple[object, ...]:
    """All that a stage's forward and backward depend on, apart from its place."""
    split = (_split_key_at_end if plan.parallelism.fsdp else _split_key)(plan.parallelism)
    shared = (plan.schedule.recompute, _overlap_key(plan.overlap), plan.implementation)
    return (_workload_key(plan.workload), _cluster_key(plan.cluster), split, *shared)


def transfer_key(plan: Plan) -> tuple[object, ...]:
    """All that transfers between a plan's stages depend on."""
    split = (_split_key_between(plan.parallelism), plan.vp > 1)
    return (_workload_key(plan.workload), _cluster_key(plan.cluster), split, plan.implementation)


def tail_key(plan: Plan) -> tuple[object, ...]:
    """All that the end of an iteration depends on, apart from the rank's place."""
    w = plan.workload
    work = _workload_key_at_end(w)
    if plan.implementation.framework != "megatron":
        work = (*work, w.micro_batch_size, w.global_batch_size, plan.schedule.recompute)
    split = _split_key_at_end(plan.parallelism)
    return (work, _cluster_key(plan.cluster), split, plan.pp == 1, plan.overlap, plan.implementation)


def _stage_plan(plan: Plan) -> Plan:
    """The plan with what :func:`_stage_key` leaves out set to one value."""
    copies = plan.dp if plan.parallelism.fsdp else 1
    return replace(
        plan,
        workload=replace(plan.workload, global_batch_size=plan.workload.micro_batch_size * copies),
        parallelism=replace(plan.parallelism, **_CUT, **({} if plan.parallelism.fsdp else _REPLICATED)),
        schedule=Schedule("1f1b", plan.schedule.recompute),
        power=_NO_POWER,
    )


def _tail_plan(plan: Plan) -> Plan:
    """The plan with what :func:`tail_key` leaves out set to one value."""
    w, schedule = plan.workload, Schedule("1f1b", plan.schedule.recompute)
    if plan.implementation.framework == "megatron":
        w, schedule = replace(w, micro_batch_size=1, global_batch_size=plan.dp), Schedule("1f1b", "none")
    return replace(plan, workload=w, schedule=schedule, power=_NO_POWER)


def _at_place(plan: Plan, place: Place) -> Plan:
    """A plan in which a stage stands at this place: alone, or the first, second or last of three."""
    stages = 1 if place.first and place.last else 3
    split = replace(
        plan.parallelism,
        pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=1,
        stage_layers=tuple(place.layers if stage == _rank_of(place) else 0 for stage in range(stages)),
    )
    workload = plan.workload
    if (experts := workload.model.experts) is not None:
        model = replace(workload.model, experts=replace(experts, dense_layers=place.dense))
        workload = replace(workload, model=model)
    return replace(plan, workload=workload, parallelism=split)


def _rank_of(place: Place) -> int:
    """Rank of a place in the plan that :func:`_at_place` makes."""
    return 0 if place.first else (2 if place.last else 1)
