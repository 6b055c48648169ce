"""How products are cut is found once for what it follows from, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels import product_cut
from joulecast.model.kernels.gemm import GemmShapes, GemmWork, gemm_work
from joulecast.model.kernels.product_cut import Cutter, cut_of
from joulecast.model.kernels.product_tiles import NEWER, OLDER, product_tiles


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    product_cut._cut.cache_clear()
    yield
    product_cut._cut.cache_clear()


def work(gpu: GpuModel, rows: float = 1.0) -> GemmWork:
    """Of three products, with so many times their rows."""
    m, n, k = (np.array([value, 4096.0, 1032.0]) for value in (1024.0, 8192.0, 512.0))
    return gemm_work(GemmShapes(rows * m, n, k, np.ones(3), np.full(3, np.nan)), "bf16", "tn", gpu)


def same(one: GemmWork, other: GemmWork) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


def test_a_fit_finds_it_once(h200: GpuModel, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    choose = product_cut._choice
    monkeypatch.setattr(product_cut, "_choice", lambda *args: chosen.append(1) or choose(*args))
    names = ("eta", "tile_penalty", "load_bytes_per_sm_cycle", "tile_overhead_cycles", "fixed_s", "reread_share")
    for name in names:
        key = f"kernel.gemm.{name}"
        moved = work(h200.with_values({key: 0.9 * h200[key]}))
        assert not same(moved, work(h200)), f"{key} still counts"
    assert len(chosen) == 1
    work(h200, rows=2.0)
    assert len(chosen) == 2


def test_each_fact_is_among_those_by_which_it_is_kept() -> None:
    """Of two that differ in one alone, neither is answered with the other's."""
    library, older = product_tiles(NEWER, "bf16", "tn"), product_tiles(OLDER, "bf16", "tn")
    by = Cutter(library, "tn", 2.0, 4096.0, 132, 1980.0, separate=False)
    others = {
        "library": older, "layout": "nt", "size": 1.0, "rate": 2048.0, "sm_count": 66, "max_clock_mhz": 990.0,
        "separate": True,
    }  # fmt: skip
    sizes = [np.array([size]) for size in (1024.0, 2048.0, 4096.0, 2.0, 0.0)]
    first = cut_of(by, *sizes)
    assert cut_of(by, *sizes) is first
    assert others.keys() == set(Cutter.__dataclass_fields__)
    for name, value in others.items():
        assert cut_of(replace(by, **{name: value}), *sizes) is not first, name
    for place in range(len(sizes)):
        other = cut_of(by, *sizes[:place], sizes[place] + 1000.0, *sizes[place + 1 :])
        assert other is not first and cut_of(by, *sizes) is first
        assert (other.outputs > first.outputs)[0] == (place != 2), "more rows, columns or products have more tiles"


def test_what_is_kept_cannot_be_written_to(h200: GpuModel) -> None:
    with pytest.raises(ValueError, match="read-only"):
        work(h200).splits[0] = 5.0
