"""Explicit tiles for the kernels of a layer, by the operators' names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from joulecast.model.framework.launches import Launch, each_once
from joulecast.model.kernels.operators import Attention, Gemm, Operator, RowTile, Streaming, Tile

#: Pairs (operator, its tile); kernels without one run as the library picks.
Tiles: TypeAlias = tuple[tuple[str, Tile | RowTile], ...]
#: Stands for every matrix product of a layer that has no tile of its own.
LINEAR = "linear"


def with_tiles(launches: Sequence[Launch], tiles: Tiles) -> tuple[Launch, ...]:
    """The same launches with their operators' tiles; equal launches stay the same object."""

    def tiled(launch: Launch) -> Launch:
        tile = tile_of(launch.operator, tiles)
        return launch if tile is None else replace(launch, operator=tiled_operator(launch.operator, tile))

    return each_once(launches, tiled) if tiles else tuple(launches)


def tile_of(operator: Operator, tiles: Tiles) -> Tile | RowTile | None:
    """Tile of an operator, by the longest name that means it: ``qkv.wgrad`` before ``qkv`` before ``linear``."""
    return max(
        ((name, tile) for name, tile in tiles if is_meant(operator, name, tile)),
        key=lambda pair: (pair[0] != LINEAR, len(pair[0])),
        default=("", None),
    )[1]


def is_meant(operator: Operator, name: str, tile: Tile | RowTile | None) -> bool:
    """Whether a name stands for an operator, and the tile is of its kind (any kind where it is ``None``).

    Of products and attention the operator's name stands for its gradients too, as these have names behind its dot.
    """
    if isinstance(operator, Streaming):
        return operator.name == name and (tile is None or isinstance(tile, RowTile))
    if not isinstance(operator, Gemm | Attention) or isinstance(tile, RowTile):
        return False
    if name == LINEAR:
        return isinstance(operator, Gemm)
    return operator.name == name or operator.name.startswith(f"{name}.")


def tiled_operator(operator: Operator, tile: Tile | RowTile) -> Operator:
    """An operator with an explicit tile."""
    if isinstance(operator, Streaming) and isinstance(tile, RowTile):
        return operator.with_tile(tile)
    if isinstance(operator, Gemm | Attention) and isinstance(tile, Tile):
        return replace(operator, tile=tile)
    return operator


def tile_word(tile: Tile | RowTile | None) -> str:
    """A tile in a few letters, for tables and exports.

    >>> tile_word(Tile(128, 256, 64, warps=8, stages=3)), tile_word(RowTile(4, warps=8)), tile_word(None)
    ('128x256x64w8s3', '4xallw8', 'library')
    """
    if tile is None:
        return "library"
    if isinstance(tile, RowTile):
        return f"{tile.rows}x{tile.columns or 'all'}w{tile.warps}{'-staged' * tile.staged}"
    split = f"k{tile.split_k}" if tile.split_k > 1 else ""
    return f"{tile.m}x{tile.n}x{tile.k}w{tile.warps}s{tile.stages}{split}{'' if tile.staged else '-unstaged'}"
