"""Tiles to choose from: reading them from a SPACE.toml, and the combinations that can be worth their energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.framework.tiling import Tiles, tile_word
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import RowTile, Tile
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.plan.knobs.overlap_space import Knobs
from joulecast.simulator.fluid.prepared import board_limits_w
from joulecast.simulator.instructions.layer_options import TiledKernels
from joulecast.simulator.plan_file.implementation import batch_of_part, implementation_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.source import Source
from joulecast.simulator.plan_file.tiles import KEY, check_tiles, read_tile

#: Pairs (operator, its tiles to choose from), ``None`` for the library's.
TileLists: TypeAlias = tuple[tuple[str, tuple[Tile | RowTile | None, ...]], ...]


def read_tile_lists(value: Any, source: Source) -> TileLists:
    """Lists of tiles by operator, as they stand under ``[implementation.tiles]`` of a SPACE.toml.

    Raises
    ------
    InputError
        It is no table of tiles or lists of tiles.
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise source.error(f"{value!r} is no table", KEY, remedy="Write [implementation.tiles] with lists of tiles.")
    return tuple((str(name), _list(value[name], str(name), source)) for name in sorted(value))


def _list(value: Any, name: str, source: Source) -> tuple[Tile | RowTile | None, ...]:
    several = isinstance(value, list) and (not value or type(value[0]) is not int)
    found = tuple(dict.fromkeys(read_tile(one, name, source) for one in (value if several else [value])))
    if not found:
        raise source.error("no tile to choose from", f"{KEY}.{name}", remedy='Write ["library", [128, 256, 64], …].')
    return found


def check_tile_lists(plan: Plan, lists: TileLists, gpu: GpuDescription, source: Source) -> None:
    """Every tile of the lists fits its kernels and the GPU."""
    for name, tiles in lists:
        for tile in tiles:
            chosen, library = (((name, tile),), ()) if tile is not None else ((), (name,))
            check_tiles(with_plan_tiles(plan, chosen), gpu, source, library)


def with_plan_tiles(plan: Plan, tiles: Tiles) -> Plan:
    """The plan with other tiles."""
    return replace(plan, implementation=replace(plan.implementation, tiles=tiles))


def tiles_of(lists: TileLists, combination: Sequence[int]) -> Tiles:
    """The tiles of one combination of choices, without the library's."""
    chosen = ((name, tiles[i]) for (name, tiles), i in zip(lists, combination, strict=True))
    return tuple((name, tile) for name, tile in chosen if tile is not None)


def tile_knobs(lists: TileLists, combination: Sequence[int]) -> Knobs:
    """The same as values of knobs, the library's included."""
    return tuple((f"tiles.{name}", tile_word(tiles[i])) for (name, tiles), i in zip(lists, combination, strict=True))


def library_first(lists: TileLists) -> TileLists:
    """The same lists, each with the library's own choice first where it is in it."""
    return tuple((name, tuple(sorted(tiles, key=lambda tile: tile is not None))) for name, tiles in lists)


def fewest_tiles_first(lists: TileLists, combinations: Int) -> Int:
    """Combinations by how many operators have other tiles than the library's, else in the order that they have.

    ``combinations`` are rows of indices into lists that stand :func:`library_first`.
    """
    chosen = np.array([[tile is not None for tile in tiles[:1]] for _, tiles in lists], dtype=bool).reshape(-1)
    return combinations[np.argsort(np.count_nonzero((combinations > 0) | chosen, axis=1), kind="stable")]


def tile_variants(plan: Plan, lists: TileLists, gpu: GpuModel, clocks: Int) -> list[tuple[Knobs, Plan]]:
    """Plans with the combinations of tiles that minimise a layer's ``energy + λ·time`` for some λ at some clock.

    ``clocks`` are indices among the GPU's.
    """
    if not lists:
        return [((), plan)]
    own = tuple(pair for pair in plan.implementation.tiles if pair[0] not in dict(lists))
    return [
        (tile_knobs(lists, found), with_plan_tiles(plan, (*own, *tiles_of(lists, found))))
        for found in worthwhile(plan, lists, gpu, clocks)
    ]


def worthwhile(plan: Plan, lists: TileLists, gpu: GpuModel, clocks: Int) -> list[tuple[int, ...]]:
    """Indices of the choices in those combinations, each of one λ for all operators of a layer.

    Exact for kernels of a forward and backward one after the other at these clocks, under the boards' instant limits:
    sums of what kernels take are least where each kernel's is. A heuristic for what is chosen then, as communication
    may run beside kernels, forwards and backwards choose each for themselves, and other clocks lie between these.
    """
    found: dict[tuple[int, ...], None] = {}
    for limit_w in dict.fromkeys(board_limits_w(plan, gpu)):
        time, energy = _alone(plan, lists, gpu, clocks, limit_w * gpu["governor.peak_share"])
        for clock in range(len(clocks)):
            at = [(t[:, clock], e[:, clock]) for t, e in zip(time, energy, strict=True)]
            for weight in _weights(at):
                found.setdefault(tuple(int(np.argmin(e + weight * t)) for t, e in at))
    return list(found)


def _weights(options: Sequence[tuple[Array, Array]]) -> Array:
    """A λ [W] between every two at which some operator changes its best choice, and beyond them."""
    slopes = []
    for t, e in options:
        slower = t[:, None] - t[None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = (e[None, :] - e[:, None]) / slower
        slopes.append(gain[(slower > 0) & np.isfinite(gain) & (gain > 0)])
    changes = np.unique(np.concatenate(slopes)) if slopes else np.zeros(0)
    edges = np.concatenate([[0.0], changes, [2.0 * (changes[-1] if len(changes) else 0.0) + 1.0]])
    return np.asarray((edges[1:] + edges[:-1]) / 2.0)


def _alone(plan: Plan, lists: TileLists, gpu: GpuModel, clocks: Int, peak_w: float) -> tuple[list[Array], list[Array]]:
    """Time and energy of each operator's kernels of a layer with each of its tiles, shape ``(choices, clocks)`` each.

    Zero where a name means no kernel. ``peak_w`` is the board's instant limit [W].
    """
    implementation = replace(implementation_of(plan), tiles=())
    arguments = (plan.workload.model, implementation, batch_of_part(plan), plan.workload.sequence_length)
    launches = [
        launch for launch in (*layer_forward(*arguments), *layer_backward(*arguments)) if launch.stream == "compute"
    ]
    choices = dict(lists)
    kernels = TiledKernels([launches], choices, gpu, clocks, peak_w, dict(plan.power.component_limits_w))
    time, energy = [], []
    for place, (name, tiles) in enumerate(lists):
        own = [launch for launch in launches if kernels.governed([launch]) == (name,)]
        combinations = np.zeros((len(tiles), len(lists)), dtype=np.int64)
        combinations[:, place] = np.arange(len(tiles))
        nothing = np.zeros((len(tiles), len(clocks)))
        scores = kernels.score(own, combinations) if own else None
        time.append(nothing if scores is None else scores.time_s)
        energy.append(nothing if scores is None else scores.energy_j)
    return time, energy
