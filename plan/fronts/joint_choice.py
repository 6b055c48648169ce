"""Overlap and tiles chosen together at every clock: for each half of a layer alone, and composed over a stage.

An option has a time and an energy at every clock; it is kept if no other is better in both. First the halves of a layer
are scored alone, with every combination of their tiles. Then the combinations that some half keeps are scored again in
the whole stack of a stage's layers. Times of halves do not simply add up there, because the communication of one half
runs beside the other.

Options that take the same time and energy but for rounding are one, of which the simplest is shown: that of the fewest
thread blocks of communication, then of the fewest nano-batches, then with most else as it is by default, tiles last.
Where that leaves several, the first in the order of the space is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.errors import InputError, NotYetError
from joulecast.model.framework.launch_shares import shares
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.power.governor import settled_power_w
from joulecast.model.training.nanobatches import (
    HALVES,
    half_of,
    operator_of,
    take_turns,
)
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.model.uncertainty import FEW_DIRECTIONS, deviations
from joulecast.plan.fronts.choice_result import Choice, ClockChoices, JointChoice
from joulecast.plan.fronts.forecast_front import comm_ctas_of
from joulecast.plan.knobs.front_space import FrontSpace
from joulecast.plan.knobs.overlap_space import Knobs, overlap_variants, simplest_first
from joulecast.plan.knobs.pareto import pareto_in_order
from joulecast.plan.knobs.tile_space import (
    TileLists,
    check_tile_lists,
    fewest_tiles_first,
    library_first,
    tile_knobs,
    with_plan_tiles,
)
from joulecast.simulator.instructions.layer_options import Scores, TiledKernels, every_combination
from joulecast.simulator.instructions.program import layers_as_run, stacked_layers
from joulecast.simulator.iteration.uncertainty import Conditions
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.implementation import batch_of_part, implementation_of, nanobatches_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.site import stated_limits

STAGE = "stage"
DIRECTIONS = ("forward", "backward")
CLOCKS_AND_BLOCKS = (
    "clocks and thread blocks alone are chosen from: a space (SPACE.toml) may list nano-batches, windows, launch points"
    " and tiles as well"
)
SHARDED = "what FSDP gathers and reduces is left out: layers run alone, and their communication is tensor parallelism's"
#: Of each power limit of the site.
SITE = "site.{} is not looked at: it holds for whole iterations, of which front and predict speak"


def joint_choice(
    plan: Plan,
    *,
    space: FrontSpace | None = None,
    direction: str = "forward",
    stage: int = 0,
) -> JointChoice:
    """The ways to run a stage's layers at every clock that no other way beats.

    Parameters
    ----------
    space
        Clocks, knobs of overlap and tiles to choose from.
    direction
        ``forward`` or ``backward``.
    stage
        Virtual stage whose layers are composed, under the power limit of its rank.

    Raises
    ------
    InputError
        An unknown direction or stage, or a choice that the plan cannot have.
    """
    if direction not in DIRECTIONS:
        known = ", ".join(DIRECTIONS)
        raise InputError(f"unknown direction {direction!r}", key="--direction", remedy=f"Known: {known}.")
    if not 0 <= stage < len(plan.parallelism.stage_layers):
        last = len(plan.parallelism.stage_layers) - 1
        raise InputError(f"the plan has no stage {stage}", key="--stage", remedy=f"It has 0 to {last}.")
    if plan.workload.model.takes_turns:
        raise NotYetError(
            "options of layers that take turns with others are not composed yet",
            key="workload.model",
            remedy="Use a model whose layers are alike, or sequences shorter than its window.",
        )
    description, space = gpu_of(plan), space or FrontSpace()
    space.refuse_limits()
    search = _Search(plan, description, space, direction, stage)
    return search.run()


@dataclass(frozen=True, eq=False)
class _Part:
    """Scores of one part: for every way of overlap the time and energy, shape ``(combinations, clocks)``.

    Ways and combinations stand in order of preference.

    ``names`` are the operators of it that have tiles to choose from, ``programs`` its launches in every way of overlap.
    """

    names: tuple[str, ...]
    combinations: Int
    scores: list[Scores]
    programs: list[tuple[Launch, ...]]

    @property
    def size(self) -> int:
        return sum(score.time_s.size for score in self.scores)


class _Search:
    """The ways of one plan and direction."""

    def __init__(self, plan: Plan, description: GpuDescription, space: FrontSpace, direction: str, stage: int) -> None:
        self.plan, self.direction, self.stage = plan, direction, stage
        self.layers = plan.parallelism.stage_layers[stage]
        self.gpu: GpuModel = gpu_model(description)
        self.description = description
        self.space = space
        check_tile_lists(plan, space.tiles, description, space.source)
        self.lists: TileLists = library_first(space.tiles)
        own = tuple(pair for pair in plan.implementation.tiles if pair[0] not in dict(space.tiles))
        choices = {**dict(space.overlap), "comm_ctas": comm_ctas_of(plan, space)}
        ways = overlap_variants(with_plan_tiles(plan, own), choices, description, space.source)
        self.ways = simplest_first(ways, self.gpu["collective.default_ctas"])
        self.columns: Int = space.clock_indices(self.gpu.clocks_mhz)
        self.clocks: Array = self.gpu.clocks_mhz[self.columns]
        on = (rank for rank in range(plan.pp) if stage in plan.stages_of_rank(rank))  # two where there are two copies
        self.limit_w = min(self.gpu.own_limit_w(plan.power.limit_w(rank)) for rank in on)
        self.held_w = float(settled_power_w(self.limit_w, self.gpu))

    def run(self) -> JointChoice:
        """Halves alone, then the stage."""
        programs = {part: [self._launches(way, part) for _, way in self.ways] for part in (*HALVES, STAGE)}
        listed = [launches for part in programs.values() for launches in part]
        peak = self.limit_w * self.gpu["governor.peak_share"]
        limits = dict(self.plan.power.component_limits_w)
        self.tiled = kernels = TiledKernels(listed, dict(self.lists), self.gpu, self.columns, peak, limits)
        parts: dict[str, _Part] = {}
        for half in HALVES:
            names = tuple(sorted({name for launches in programs[half] for name in kernels.governed(launches)}))
            combinations = fewest_tiles_first(self.lists, every_combination(dict(self.lists), names))
            scores = [kernels.score(launches, combinations) for launches in programs[half]]
            parts[half] = _Part(names, combinations, scores, programs[half])
        kept = [self._kept(part) for part in parts.values()]
        together = fewest_tiles_first(self.lists, _compose(*kept))
        names = tuple(dict.fromkeys(name for part in parts.values() for name in part.names))
        scores = [kernels.score(launches, together) for launches in programs[STAGE]]
        parts[STAGE] = _Part(names, together, scores, programs[STAGE])
        size = sum(part.size for part in parts.values())
        found = {name: self._choices(part) for name, part in parts.items()}
        precision = self.plan.workload.precision
        # Every kernel runs at the clock shown: no limit of the board acts on what a deviation of a parameter changes.
        conditions = Conditions(self.gpu, self.description, np.inf, limits or None, True, precision)
        named = self.direction, self.layers, self.plan.tp
        return JointChoice(found, *named, size, self._notes(bool(limits)), kernels.kernels, conditions)

    def _launches(self, way: Plan, part: str) -> tuple[Launch, ...]:
        """What a part launches, over the links that the plan's ranks have."""
        impl = implementation_of(way)
        alone = part != STAGE
        found = _half(way, self.direction, part) if alone else stacked_layers(way, impl, self.stage, self.direction)
        return layers_as_run(way, impl, found)

    def _notes(self, limited: bool) -> tuple[str, ...]:
        """What is assumed; with ``limited`` parts of the GPU have limits of their own."""
        return (
            "every kernel runs at the clock shown, also where the board would not hold it",
            "the host launches well ahead of the GPU",
            "halves are run alone; in the stage the communication of one runs beside the other",
            *((SHARDED,) * self.plan.parallelism.fsdp),
            *(SITE.format(key) for key in stated_limits(self.plan.site)),
            *((CLOCKS_AND_BLOCKS,) * (not self.space.overlap and not self.space.tiles)),
            *(("kernels whose part of the GPU is limited run below the clock shown",) * limited),
        )

    def _kept(self, part: _Part) -> Int:
        """Combinations of tiles that are best for something: with some way of overlap, at some clock."""
        time = np.stack([score.time_s for score in part.scores])
        energy = np.stack([score.energy_j for score in part.scores])
        rows: set[int] = set()
        for clock in range(len(self.clocks)):
            for way in range(len(part.scores)):
                rows.update(pareto_in_order(time[way, :, clock], energy[way, :, clock]).tolist())
        return part.combinations[sorted(rows)]

    def _choices(self, part: _Part) -> tuple[ClockChoices, ...]:
        time = np.concatenate([score.time_s for score in part.scores])
        energy = np.concatenate([score.energy_j for score in part.scores])
        best = [pareto_in_order(time[:, at], energy[:, at]) for at in range(len(self.clocks))]
        ways = {row: self._way(part, row) for row in sorted({int(i) for points in best for i in points})}
        found = []
        for at, points in enumerate(best):
            choices = (self._choice(at, float(time[i, at]), float(energy[i, at]), *ways[int(i)]) for i in points)
            found.append(ClockChoices(float(self.clocks[at]), tuple(choices)))
        return tuple(found)

    def _way(self, part: _Part, row: int) -> tuple[Knobs, Array, Array]:
        """Knobs of one way to run a part, how often it runs each kernel, and its changes as ``Choice`` has them."""
        way, combination = divmod(row, len(part.combinations))
        wanted = {f"tiles.{name}" for name in part.names}
        tiles = tuple(pair for pair in tile_knobs(self.lists, part.combinations[combination]) if pair[0] in wanted)
        ran = part.programs[way], part.combinations[combination]
        varied = deviations(self.description, FEW_DIRECTIONS)
        return (*self.ways[way][0], *tiles), self.tiled.runs(*ran), self.tiled.stretches(*ran, varied)

    def _choice(self, at: int, time_s: float, energy_j: float, knobs: Knobs, runs: Array, stretch: Array) -> Choice:
        held, clock = energy_j <= self.held_w * time_s, float(self.clocks[at])
        return Choice(clock, time_s, energy_j * self.plan.tp, held, knobs, runs, stretch[:, at])


def _compose(attention: Int, mlp: Int) -> Int:
    """Combinations of both halves' tiles; where one name means kernels of both halves, they agree."""
    pairs = {tuple(np.maximum(a, m).tolist()) for a in attention for m in mlp if _agree(a, m)}
    return np.array(sorted(pairs), dtype=np.int64).reshape(len(pairs), attention.shape[1])


def _agree(a: Int, b: Int) -> bool:
    return bool(np.all((a == b) | (a == 0) | (b == 0)))


def _half(way: Plan, direction: str, half: str) -> tuple[Launch, ...]:
    """One half of a layer by itself, in the plan's nano-batches."""
    cut = nanobatches_of(way)
    w = way.workload
    arguments = (w.model, implementation_of(way), batch_of_part(way), w.sequence_length)
    layer = layer_forward(*arguments) if direction == "forward" else layer_backward(*arguments)
    last = ""
    launches = []
    for launch in layer:
        last = operator_of(launch) or last  # what joins gradients belongs to the kernels before it
        if half_of(last) == half:
            launches.append(launch)
    if direction == "forward":  # the addition behind one layer's MLP begins the next one's attention
        launches.sort(key=lambda launch: operator_of(launch) != "residual2")
    if cut.parts == 1 or (cut.shared and w.model.experts is None):
        return tuple(launches)
    return take_turns(shares(tuple(launches), cut.parts) if cut.shared else launches, cut)
