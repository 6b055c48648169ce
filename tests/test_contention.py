"""What computation and communication cost each other on one GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.catalogue import load_gpu
from joulecast.model.contention import MOST_MEMORY, alone, compute_drag, wave_loss
from joulecast.model.gpu_model import GpuModel, gpu_model
from joulecast.model.launches import streaming
from joulecast.model.lowering import lower
from joulecast.model.operators import Collective, Gemm, Operator
from joulecast.model.power import kernel_time_s

CLOCKS = np.array([1400.0, 1700.0])
GATHER = Collective("all_gather", 4.36e8, 4, dtype="bf16")


@pytest.fixture(scope="module")
def gpu() -> GpuModel:
    return gpu_model(load_gpu("h200-sxm"))


def drag(operator: Operator, beside: Operator, ctas: float, gpu: GpuModel) -> np.ndarray:
    costs = lower([operator, beside], gpu)
    kernels = alone(costs, np.arange(2), kernel_time_s(costs, CLOCKS[:, None], gpu).T, CLOCKS)
    return compute_drag(kernels, 0, 1, ctas, gpu)


def test_products_take_whole_waves_on_the_sms_that_are_left(gpu: GpuModel) -> None:
    """1,440 tiles: 11 waves of 132 SMs, 13 of 116, 14 of 108, 15 of 100 and 16 of 92."""
    tiles = np.array([1440.0])
    waves = [11 * float(wave_loss(tiles, ctas, gpu)[0]) for ctas in (0, 8, 16, 24, 32)]
    assert waves == pytest.approx([11, 13, 14, 15, 16])
    unclustered = gpu.with_values({"contention.stranded_sms": 0.0})
    assert 11 * float(wave_loss(tiles, 24, unclustered)[0]) == pytest.approx(14)
    older = gpu_model(load_gpu("a100-sxm-80gb"))  # no clusters: a whole wave fills all SMs that are left
    assert float(wave_loss(np.array([float(older.sm_count - 24)]), 24, older)[0]) == 1.0


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_large_products_beside_collectives_as_measured(kind: str, gpu: GpuModel) -> None:
    """Weight gradients of 4,096 x 14,336 beside NCCL's 24 blocks: 945 us at the power limit, 640-680 alone."""
    slower = drag(Gemm(4096, 14336, 4096, layout="nt"), replace(GATHER, kind=kind), 24, gpu)
    assert np.all((slower > 1.30) & (slower < 1.48))


def test_streams_lose_the_memory_that_the_collective_takes(gpu: GpuModel) -> None:
    """Measured beside four H200s' collectives: all-gather 1.00-1.08, all-reduce 1.12, reduce-scatter 1.20."""
    stream = streaming("mul", "product", 4096 * 14336, reads=2, dtype="bf16").operator
    gather, reduce, scatter = (
        drag(stream, replace(GATHER, kind=kind), 24, gpu) for kind in ("all_gather", "all_reduce", "reduce_scatter")
    )
    assert np.all((gather > 1.03) & (gather < reduce) & (reduce < scatter) & (scatter < 1.22))


def test_copy_engines_hold_no_sms_but_take_memory(gpu: GpuModel) -> None:
    stream = streaming("copy", "copy", 1e9, dtype="bf16").operator
    engine = drag(stream, replace(GATHER, copy_engine=True), 0, gpu)
    assert np.all(engine > 1.0)
    product = Gemm(8192, 8192, 8192)
    assert drag(product, replace(GATHER, copy_engine=True), 0, gpu) == pytest.approx(1.0, abs=0.01)


def test_a_collective_leaves_half_of_the_memory(gpu: GpuModel) -> None:
    """However fast the links are; Memory of its own is not modelled below that."""
    fast = replace(gpu, device={**gpu.device, "link_bandwidth_bytes_per_s": 1e14})
    fast = fast.with_values({"collective.bytes_per_cta_cycle": 1e6})
    stream = streaming("copy", "copy", 1e9, dtype="bf16").operator
    assert np.all(drag(stream, replace(GATHER, kind="reduce_scatter"), 0, fast) <= 1.0 / MOST_MEMORY + 1e-9)
