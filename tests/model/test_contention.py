"""What computation and communication cost each other on one GPU."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from paths import ROOT
from row_files import json_rows

from joulecast.errors import GuardError
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective, Gemm, Operator
from joulecast.model.power.contention import (
    MOST_MEMORY,
    Alone,
    alone,
    communication_drag,
    compute_drag,
    fewer_sms_drag,
    memory_share,
    wave_loss,
)
from joulecast.model.power.kernel_power import kernel_time_s
from joulecast.simulator.instructions import overlap
from joulecast.simulator.instructions.overlap import contended

CLOCKS = np.array([1400.0, 1700.0])
GATHER = Collective("all_gather", 4.36e8, 4, dtype="bf16")


@pytest.fixture(scope="module")
def gpu() -> GpuModel:
    return gpu_model(load_gpu("h200-sxm"))


def pair(operator: Operator, beside: Operator, gpu: GpuModel) -> Alone:
    costs = lower([operator, beside], gpu)
    return alone(costs, np.arange(2), kernel_time_s(costs, CLOCKS[:, None], gpu).T, CLOCKS)


def drag(operator: Operator, beside: Operator, ctas: float, gpu: GpuModel) -> np.ndarray:
    return compute_drag(pair(operator, beside, gpu), 0, 1, ctas, gpu)


def fast_links(gpu: GpuModel) -> GpuModel:
    fast = replace(gpu, device={**gpu.device, "link_bandwidth_bytes_per_s": 1e14})
    return fast.with_values({"collective.bytes_per_cta_cycle": 1e6})


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


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_an_all_gather_reads_the_share_that_a_gpu_gives(kind: str) -> None:
    """Kernels that the memory holds up, traced on two H100s at 1,700 MHz; without that share 1.07."""
    card = gpu_model(load_gpu("h100-sxm"))
    rows = json_rows(ROOT / "calibrate" / "recorded" / "h100_sxm_beside" / "kernels.jsonl")
    vectors = [row for row in rows if row["kernel"] == "operator on whole vectors" and row["beside"] == kind]
    alone_us, beside_us = (np.array([row[key] for row in vectors]) for key in ("alone_us", "beside_us"))
    found = float(np.exp(np.average(np.log(beside_us / alone_us), weights=alone_us)))
    stream = streaming("mul", "product", 4096 * 14336, reads=2, dtype="bf16").operator
    assert drag(stream, Collective(kind, 4.36e8, 2, dtype="bf16"), 24, card)[1] == pytest.approx(found, abs=0.08)


def test_copy_engines_hold_no_sms_but_take_memory(gpu: GpuModel) -> None:
    stream = streaming("copy", "copy", 1e9, dtype="bf16").operator
    engine = drag(stream, replace(GATHER, copy_engine=True), 0, gpu)
    assert np.all(engine > 1.0)
    product = Gemm(8192, 8192, 8192)
    assert drag(product, replace(GATHER, copy_engine=True), 0, gpu) == pytest.approx(1.0, abs=0.01)


def test_a_collective_leaves_half_of_the_memory(gpu: GpuModel) -> None:
    """However fast the links are; Memory of its own is not modelled below that."""
    stream = streaming("copy", "copy", 1e9, dtype="bf16").operator
    assert np.all(drag(stream, replace(GATHER, kind="reduce_scatter"), 0, fast_links(gpu)) <= 1.0 / MOST_MEMORY + 1e-9)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("ctas", [0, 4, 24])
@pytest.mark.parametrize("name", ["h200-sxm", "v100-sxm2-16gb", "mi300x"])
def test_two_kernels_never_use_more_than_the_whole_memory(name: str, ctas: int, fast: bool) -> None:
    gpu = gpu_model(load_gpu(name))
    gpu = fast_links(gpu) if fast else gpu
    collective = replace(GATHER, kind="reduce_scatter", ctas=ctas or None, copy_engine=not ctas, dtype="fp16")
    used = []
    for operator in (streaming("copy", "copy", 1e9, dtype="fp16").operator, Gemm(8192, 8192, 8192, dtype="fp16")):
        kernels = pair(operator, collective, gpu)
        drags = compute_drag(kernels, 0, 1, ctas, gpu), communication_drag(kernels, 1, 0, gpu)
        used.append(memory_share(kernels, 0, drags[0], 1, drags[1]))
    assert np.all(np.array(used) <= 1.0 + 1e-9)
    assert np.all(used[0] > 0.8), "a stream and a collective use most of it"


def test_a_breach_by_a_collective_beside_a_stream_is_found(gpu: GpuModel, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, gather = streaming("copy", "copy", 1e9, dtype="bf16"), Launch(GATHER, stream="communication", waits=False)
    kernels = pair(copy.operator, GATHER, gpu)
    contended([gather, copy, copy], Alone(*(getattr(kernels, f.name)[[1, 0, 0]] for f in fields(Alone))), gpu)
    monkeypatch.setattr(overlap, "compute_drag", lambda *_: np.ones(len(CLOCKS)))
    with pytest.raises(GuardError, match=r"copy beside collective: memory used to 1\d\d"):
        contended([gather, copy, copy], Alone(*(getattr(kernels, f.name)[[1, 0, 0]] for f in fields(Alone))), gpu)


def test_kernels_that_leave_sms_free_take_more_waves_all_the_time(gpu: GpuModel) -> None:
    """A product of 11 waves of 132 SMs has 13 of 112, with nothing beside it; a copy waits for the memory."""
    product = Gemm(12288, 3840, 8192)  # 96 x 15 tiles of 128 x 256
    copy = streaming("copy", "copy", 1e9, dtype="bf16").operator
    kernels = pair(product, copy, gpu)
    assert kernels.tiles[0] == pytest.approx(1440.0)
    assert fewer_sms_drag(kernels, 0, 20, gpu) == pytest.approx(13 / 11, rel=0.02)
    assert np.all(fewer_sms_drag(kernels, 1, 20, gpu) < 1.03)
    assert fewer_sms_drag(kernels, 0, 0, gpu) == pytest.approx(1.0)


def test_communication_finds_the_sms_that_are_left_to_it(gpu: GpuModel) -> None:
    """It waits for no kernel, and the compute beside it takes no longer than the SMs that are gone make it."""
    product = Gemm(8192, 8192, 8192)
    gather = Launch(replace(GATHER, ctas=16), stream="communication", waits=False)

    def times(free: int, blocks: int) -> np.ndarray:
        launches = [replace(gather, operator=replace(GATHER, ctas=blocks)), *[Launch(product, free_sms=free)] * 2]
        kernels = pair(product, launches[0].operator, gpu)
        return contended(launches, Alone(*(getattr(kernels, f.name)[[1, 0, 0]] for f in fields(Alone))), gpu)

    whole, left, few = times(0, 16), times(16, 16), times(16, 24)
    alone_s = pair(product, GATHER, gpu).time[0]
    assert whole[1] == pytest.approx(alone_s)  # held back: nothing runs beside the first product
    assert few[1] == pytest.approx(alone_s * fewer_sms_drag(pair(product, GATHER, gpu), 0, 16, gpu))
    assert np.all(left[1] > few[1])  # beside communication that leaves some SMs of clusters empty
    assert np.all(left[0] < whole[0]) and np.all(left[2] < left[1])
