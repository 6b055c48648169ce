"""The tiles of a plan's ``[implementation]`` table: reading them, and what must hold of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError, UnknownNameError, did_you_mean
from joulecast.model.framework.tiling import LINEAR, Tiles, is_meant, tile_of, tiled_operator
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.operators import Attention, Gemm, Operator, RowTile, Streaming, Tile
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.simulator.plan_file.implementation import batch_of_part, implementation_of
from joulecast.simulator.plan_file.names import place
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.model.hardware.description import GpuDescription
    from joulecast.simulator.plan_file.plan import Plan

KEY = "implementation.tiles"
LIBRARY = "library"


def read_tiles(value: Any, source: Source) -> Tiles:
    """Tiles by operator from what a plan says.

    Parameters
    ----------
    value
        Table of operators' names; each has ``"library"``, ``[m, n, k]`` or a table of the fields of a
        :class:`~joulecast.model.kernels.operators.Tile` or :class:`~joulecast.model.kernels.operators.RowTile`.

    Raises
    ------
    InputError
        It is something else.
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise source.error(f"{value!r} is no table", KEY, remedy="Write [implementation.tiles] with operators' names.")
    found = [(str(name), read_tile(value[name], str(name), source)) for name in sorted(value)]
    return tuple((name, tile) for name, tile in found if tile is not None)


def read_tile(value: Any, name: str, source: Source) -> Tile | RowTile | None:
    """One tile; ``None`` is the library's choice."""
    key = f"{KEY}.{name}"
    if value == LIBRARY:
        return None
    if isinstance(value, list | tuple) and 2 <= len(value) <= 3 and all(type(v) is int for v in value):
        return Tile(*value)
    if not isinstance(value, Mapping):
        remedy = 'Write "library", [m, n, k], {m = …, n = …, k = …, warps = …, stages = …} or {rows = …, warps = …}.'
        raise source.error(f"{value!r} is no tile", key, remedy=remedy)
    kind = RowTile if "rows" in value or "columns" in value else Tile
    types = {f.name: bool if f.name == "staged" else int for f in fields(kind)}
    for field, size in value.items():
        if field not in types:
            raise source.error(f"unknown key {field!r}", f"{key}.{field}", remedy=did_you_mean(field, types, 1))
        if type(size) is not types[field]:
            word = "true or false" if types[field] is bool else "a whole number"
            raise source.error(f"{size!r} is not {word}", f"{key}.{field}", remedy=f"Write {word}.")
    if kind is Tile and not {"m", "n"} <= value.keys():
        raise source.error("a tile needs m and n", key, remedy="Write {m = …, n = …}; of rows {rows = …}.")
    return kind(**value)


def left_to_library(value: Any) -> list[str]:
    """Names that such a table gives the library's choice."""
    return [str(name) for name, tile in value.items() if tile == LIBRARY] if isinstance(value, Mapping) else []


def check_tiles(plan: Plan, gpu: GpuDescription, source: Source, library: Iterable[str]) -> None:
    """Every name is an operator's that takes such a tile, ``library`` ones any operator's; every tile fits the GPU."""
    tiles = plan.implementation.tiles
    named = (*tiles, *((name, None) for name in library))
    if not named:
        return
    operators = tileable_operators(plan)
    for name, tile in named:
        meant = [o for o in operators if is_meant(o, name, tile)]
        if not meant:
            raise _no_such(name, tile, operators, source)
        for operator in meant:
            if tile is not None and tile_of(operator, tiles) is tile:
                _check_one(operator, tile, name, gpu, source)


def _check_one(operator: Operator, tile: Tile | RowTile, name: str, gpu: GpuDescription, source: Source) -> None:
    from joulecast.model.framework.tile_limits import check_tile  # few plans have tiles

    key = f"{KEY}.{name}"
    try:
        check_tile(tiled_operator(operator, tile), gpu_model(gpu), key=key)
    except InputError as error:
        where = "" if operator.name == name else f" (of {operator.name})"
        at = error.key if error.key and error.key.startswith(key) else f"{key}.{error.key}" if error.key else key
        raise source.error(f"{error.message}{where}", at, remedy=error.remedy) from None


def tileable_operators(plan: Plan) -> list[Operator]:
    """Distinct kernels of a layer's forward and backward, as the library runs them."""
    implementation = replace(implementation_of(plan), tiles=())
    w = plan.workload
    arguments = (w.model, implementation, batch_of_part(plan), w.sequence_length)
    launches = (*layer_forward(*arguments), *layer_backward(*arguments))
    kernels = dict.fromkeys(launch.operator for launch in launches)
    return [o for o in kernels if isinstance(o, Gemm | Attention | Streaming)]


def _no_such(name: str, tile: Tile | RowTile | None, operators: list[Operator], source: Source) -> InputError:
    key = f"{KEY}.{name}"
    if any(is_meant(o, name, None) for o in operators):
        right = "{m = …, n = …}" if isinstance(tile, RowTile) else "{rows = …, warps = …}"
        return source.error(f"{name!r} takes another kind of tile", key, remedy=f"Write {right}.")
    known = [LINEAR, *dict.fromkeys(o.name for o in operators)]
    return place(UnknownNameError("operator of a layer", name, known), source, key)
