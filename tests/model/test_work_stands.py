"""The work of kernels with every option, and what explicit tiles make of a card, stand as they were last accepted.

A forecast shows the longest of a kernel's parts alone; here each part is told: fixed time, cycles, memory, links, and
the energy by component. ``make forecasts`` accepts what is found now.
"""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import Any

import accepted
import numpy as np
import pytest
from kernel_cases import KINDS, TILED

from joulecast.errors import InputError
from joulecast.model.framework.tile_limits import check_tile
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.families import FAMILIES
from joulecast.model.kernels.gemm import GemmShapes, gemm_work
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Operator
from joulecast.model.kernels.tile_use import tile_use

FILE = "work"
#: Relative difference that other processors' arithmetic makes, and that rounding makes, with a margin.
ALIKE = 1e-5
CARDS = ("a100-sxm-80gb", "b200", "h200-sxm", "mi300x")


def of_work(card: str, kind: str) -> list[list[float]]:
    """Each kernel's costs that are not zero, in the order of :class:`Costs`; none where the card cannot run it."""
    gpu = gpu_model(load_gpu(card))
    there = [operator for operator in KINDS[kind]() if _runs(operator, gpu)]
    costs = lower(there, gpu)
    table = np.stack([getattr(costs, field.name) for field in fields(Costs)], axis=1)
    return [[accepted.short(v) for v in row if v] for row in table]


def _runs(operator: Operator, gpu: GpuModel) -> bool:
    try:
        lower([operator], gpu)
    except InputError:
        return False
    return True


def of_choices(card: str) -> dict[str, list[float]]:
    """The library's tiles and splits for products of many sizes: how many take each, and their cycles together."""
    sides = [
        32 * size for size in (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 30, 35, 45, 48, 60, 72, 90, 128, 160, 200, 256)
    ]
    m, n, k = (np.ravel(one).astype(np.float64) for one in np.meshgrid(sides, sides, (512, 2048, 8192, 32768)))
    shapes = GemmShapes(m, n, k, np.ones(len(m)), np.full(len(m), np.nan))
    work = gemm_work(shapes, "bf16", "tn", gpu_model(load_gpu(card)))
    taken = np.column_stack([work.tile, work.splits])
    found = {}
    for choice in np.unique(taken, axis=0):
        of = np.all(taken == choice, axis=1)
        found["{:.0f}x{:.0f}/{:.0f}".format(*choice)] = [int(of.sum()), accepted.short(work.cycles[of].sum())]
    return found


def of_tiles(kind: str) -> list[list[float | str]]:
    """How tiles use an H200; what is said of those that it cannot hold, and whether they may spill."""
    gpu, found = gpu_model(load_gpu("h200-sxm")), []
    for operator in KINDS[kind]():
        line: list[float | str] = [accepted.short(v) for v in astuple(tile_use(operator, gpu))]
        for spills in (False, True):
            try:
                check_tile(operator, gpu, may_spill=spills)
            except InputError as refused:
                line.append(str(refused))
        found.append(line)
    return found


@pytest.fixture(scope="module")
def stands() -> dict[str, Any]:
    return accepted.read(FILE)


def moved(found: list[Any], before: list[Any]) -> list[int]:
    """Places of what differs."""
    assert len(found) == len(before)
    return [i for i, (one, other) in enumerate(zip(found, before, strict=True)) if not _alike(one, other)]


def _alike(one: list[Any], other: list[Any]) -> bool:
    return [v for v in one if isinstance(v, str)] == [v for v in other if isinstance(v, str)] and [
        v for v in one if not isinstance(v, str)
    ] == pytest.approx([v for v in other if not isinstance(v, str)], rel=ALIKE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("card", CARDS)
def test_work_stands(card: str, kind: str, stands: dict[str, Any]) -> None:
    assert not moved(of_work(card, kind), stands["work"][card][kind])


@pytest.mark.parametrize("card", CARDS)
def test_choices_of_tiles_stand(card: str, stands: dict[str, Any]) -> None:
    found, before = of_choices(card), stands["choices"][card]
    assert found.keys() == before.keys()
    assert not moved(list(found.values()), list(before.values()))


@pytest.mark.parametrize("kind", TILED)
def test_use_of_tiles_stands(kind: str, stands: dict[str, Any]) -> None:
    assert not moved(of_tiles(kind), stands["tiles"][kind])


def test_every_family_of_kernels_is_among_them() -> None:
    found: set[str] = set()
    for card in ("h200-sxm", "b200"):
        gpu = gpu_model(load_gpu(card))
        there = [o for kernels in KINDS.values() for o in kernels() if _runs(o, gpu)]
        found |= {FAMILIES[i] for i in lower(there, gpu).family}
    assert found == set(FAMILIES)


if __name__ == "__main__":
    accepted.write(
        FILE,
        {
            "work": {card: {kind: of_work(card, kind) for kind in KINDS} for card in CARDS},
            "choices": {card: of_choices(card) for card in CARDS},
            "tiles": {kind: of_tiles(kind) for kind in TILED},
        },
    )
