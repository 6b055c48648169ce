"""Whether a kernel with an explicit tile can be launched on a GPU, and the nearest tile that can.

Shared memory, threads and registers of a block are limited. Accumulators beyond a thread's registers would run, many
times slower: such a tile is refused as one that does not fit, unless spills are asked for. Of attention the compiler
computes some values again, or keeps what no step needs in memory, which costs little.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from joulecast.errors import InputError
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.attention_tiles import COMPUTED_AGAIN, attention_blocks
from joulecast.model.kernels.occupancy import MOST_THREADS, WARP, Blocks, available_registers, most_shared_bytes
from joulecast.model.kernels.operators import Attention, Gemm, Operator, RowTile, Streaming
from joulecast.model.kernels.row_registers import WHOLE_ROWS
from joulecast.model.kernels.row_tiles import base_pattern, tile_blocks
from joulecast.model.kernels.tiles import gemm_blocks

#: Least side of a tile of matrix instructions.
LEAST_SIDE = 8
#: Most stages, steps of one knob beside another, and other tiles that are tried to find one that fits.
MOST_STAGES, MOST_STEPS, MOST_TRIED = 16, 8, 2000


def check_tile(operator: Operator, gpu: GpuModel, *, may_spill: bool = False, key: str = "tile") -> None:
    """Refuse a tile that the GPU cannot hold.

    Parameters
    ----------
    may_spill
        Whether values may be kept in memory that do not fit into registers.
    key
        Where the tile stands, for errors.

    Raises
    ------
    InputError
        One message with the limit and the nearest legal value.
    """
    if isinstance(operator, Gemm) and operator.tile is not None:
        _check_sides(key, m=operator.tile.m, n=operator.tile.n, k=operator.tile.k)
        _check_counts(key, warps=operator.tile.warps, stages=operator.tile.stages, split_k=operator.tile.split_k)
        _check_split(operator, key)
    elif isinstance(operator, Attention) and operator.tile is not None:
        _check_sides(key, m=operator.tile.m, n=operator.tile.n)
        _check_counts(key, warps=operator.tile.warps, stages=operator.tile.stages)
    elif isinstance(operator, Streaming) and operator.warps:
        _check_counts(key, warps=operator.warps, rows=operator.tile_rows, columns=operator.tile_columns or 1)
        _check_row_shape(operator, key)
    else:
        return
    _check_room(operator, gpu, may_spill, key)


def _check_sides(key: str, **sides: int) -> None:
    for name, side in sides.items():
        if side < LEAST_SIDE or side % LEAST_SIDE:
            near = max(LEAST_SIDE, round(side / LEAST_SIDE) * LEAST_SIDE)
            raise InputError(
                f"{name} = {side} is no side of a tile",
                key=f"{key}.{name}",
                remedy=f"Sides are multiples of {LEAST_SIDE}; the nearest is {near}.",
            )


def _check_counts(key: str, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name} = {count} must be at least 1", key=f"{key}.{name}", remedy="The nearest is 1.")
    warps = counts["warps"]
    if warps * WARP > MOST_THREADS:
        most = MOST_THREADS // WARP
        raise InputError(
            f"{warps} warps are {warps * WARP} threads, and a block has at most {MOST_THREADS}",
            key=f"{key}.warps",
            remedy=f"The nearest is {most}.",
        )


def _check_split(operator: Gemm, key: str) -> None:
    tile = operator.tile
    most = max(1, math.ceil(operator.k / tile.k)) if tile else 1
    if tile and tile.split_k > most:
        raise InputError(
            f"K = {operator.k} has {most} steps of {tile.k}, which cannot be split {tile.split_k}-fold",
            key=f"{key}.split_k",
            remedy=f"The nearest is {most}.",
        )


def _check_row_shape(operator: Streaming, key: str) -> None:
    pattern = base_pattern(operator.pattern)
    if pattern in WHOLE_ROWS and operator.tile_columns not in (0, operator.columns):
        raise InputError(
            f"{pattern} needs whole rows of {operator.columns}, not {operator.tile_columns} columns at a time",
            key=f"{key}.columns",
            remedy=f"The nearest is {operator.columns}; leave the key out.",
        )
    if not operator.tile_columns and not operator.columns:
        raise InputError(f"{pattern} has no rows", key=f"{key}.columns", remedy="Give the columns of a block.")


def _check_room(operator: Operator, gpu: GpuModel, may_spill: bool, key: str) -> None:
    """Shared memory and registers of a thread block."""
    blocks = _needs(operator, gpu)
    shared, most_shared = float(blocks.shared_bytes[0]), most_shared_bytes(gpu)
    registers = float(blocks.registers[0])
    if shared > most_shared:
        raise InputError(
            f"the tile does not fit: {shared:.0f} bytes of shared memory, and a block of {gpu.name} has at most "
            f"{most_shared:.0f}",
            key=key,
            remedy=_nearest(operator, gpu, may_spill),
        )
    if registers > _most_registers(operator, blocks, gpu) and not may_spill:
        raise InputError(
            f"the tile does not fit: about {registers:.0f} registers in each of {blocks.threads[0]:.0f} threads, "
            f"which have at most {available_registers(blocks.threads, gpu)[0]:.0f}",
            key=key,
            remedy=_nearest(operator, gpu, may_spill),
        )


def _nearest(operator: Operator, gpu: GpuModel, may_spill: bool) -> str:
    """The first tile that fits, as a remedy."""
    for text, other in itertools.islice(_alternatives(operator), MOST_TRIED):
        blocks = _needs(other, gpu)
        fits = blocks.shared_bytes[0] <= most_shared_bytes(gpu)
        if fits and (may_spill or blocks.registers[0] <= _most_registers(other, blocks, gpu)):
            return f"The nearest that fits has {text}."
    return "Use a tile of half the size."


def _most_registers(operator: Operator, blocks: Blocks, gpu: GpuModel) -> float:
    """Registers that a thread can need before any step keeps values in memory."""
    again = COMPUTED_AGAIN if isinstance(operator, Attention) else 0.0
    return float(available_registers(blocks.threads, gpu)[0]) + again


def _needs(operator: Operator, gpu: GpuModel) -> Blocks:
    if isinstance(operator, Gemm) and operator.tile is not None:
        return gemm_blocks([operator.tile], operator.dtype, gpu)
    if isinstance(operator, Attention):
        return attention_blocks([operator], gpu)
    if isinstance(operator, Streaming):
        return tile_blocks([operator], gpu).blocks
    raise InputError(f"{operator.name} takes no tile", key="tile", remedy="Leave it out.")


def _alternatives(operator: Operator) -> Iterator[tuple[str, Operator]]:
    """Smaller tiles, nearest first: fewer stages, more warps, shorter steps, smaller sides; one of them, else several.

    Each stage less, and each halving or doubling, is one step away.
    """
    from joulecast.model.framework.tiling import tiled_operator  # refusals alone need it

    if isinstance(operator, Streaming):
        tile: Any = RowTile(operator.tile_rows, operator.tile_columns, operator.warps, operator.staged)
        knobs = {"warps": _doubled(tile.warps), "rows": _halved(tile.rows, 1)}
    elif isinstance(operator, Gemm | Attention) and operator.tile is not None:
        tile = operator.tile
        knobs = {"stages": list(range(min(tile.stages - 1, MOST_STAGES), 0, -1)), "warps": _doubled(tile.warps)}
        knobs |= {"k": _halved(tile.k, 2 * LEAST_SIDE)} if isinstance(operator, Gemm) else {}
        knobs |= {side: _halved(getattr(tile, side), LEAST_SIDE) for side in ("n", "m")}
    else:
        return
    single = [{name: value} for name, values in knobs.items() for value in values]
    for change in (*single, *_several(knobs)):
        text = ", ".join(f"{name} = {value}" for name, value in change.items())
        yield text, tiled_operator(operator, replace(tile, **change))


def _several(knobs: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Changes of more than one knob, those of fewest steps first."""
    steps = itertools.product(*(range(min(len(values), MOST_STEPS) + 1) for values in knobs.values()))
    several = [chosen for chosen in steps if sum(step > 0 for step in chosen) > 1]
    ordered = sorted(several, key=lambda chosen: (sum(chosen), sum(step > 0 for step in chosen)))
    return [
        {name: values[step - 1] for (name, values), step in zip(knobs.items(), chosen, strict=True) if step}
        for chosen in ordered
    ]


def _doubled(warps: int) -> list[int]:
    return [warps * 2**i for i in range(1, 6) if warps * 2**i * WARP <= MOST_THREADS]


def _halved(size: int, least: int) -> list[int]:
    return [size >> i for i in range(1, size.bit_length()) if size >> i >= least]
