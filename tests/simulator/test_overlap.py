"""Compute and communication of one instruction beside each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.operators import Collective, Gemm
from joulecast.model.power.contention import Alone
from joulecast.simulator.instructions.overlap import contended, follow


@pytest.fixture(scope="module")
def gpu() -> GpuModel:
    return gpu_model(load_gpu("h200-sxm-rows"))


GEMM = Launch(Gemm(8, 8, 8))


def reduce(waits: bool = False, ctas: int | None = None) -> Launch:
    return Launch(Collective("all_reduce", 8.0, 2, ctas=ctas), "communication", waits=waits)


def beside(times: object) -> Alone:
    """Kernels bound by the SMs alone, collectives by their blocks' copying."""
    time = np.asarray(times, dtype=np.float64)
    nothing = np.zeros_like(time)
    return Alone(time, nothing, time, nothing, nothing, nothing, nothing)


def drags(gpu: GpuModel, ctas: float | None = None) -> tuple[float, float]:
    """What a product loses to a collective of so many blocks, and the collective to the product."""
    lost = (ctas or gpu["collective.default_ctas"]) / gpu.sm_count
    return (1 - lost) ** -gpu["contention.compute_slowdown"], gpu["contention.cta_slowdown"]


def test_only_what_runs_beside_the_other_is_slowed(gpu: GpuModel) -> None:
    drag, slow = drags(gpu)
    launches = [GEMM, reduce(), GEMM, GEMM]
    taken = contended(launches, beside([[1.0], [100.0], [2.0], [1.0]]), gpu)[:, 0]
    assert taken[0] == 1.0
    assert taken[2] == 2.0  # it had filled the SMs before the collective's blocks came
    assert taken[3] == pytest.approx(drag)
    assert taken[1] == pytest.approx(2.0 + drag + 100 - drag / slow)
    taken = contended(launches, beside([[1.0], [1.0], [2.0], [100.0]]), gpu)[:, 0]
    assert taken[1] == pytest.approx(2.0 + slow)
    assert taken[3] == pytest.approx(slow + 100 - slow / drag)


def test_a_collective_issued_before_one_long_product_gains_nothing(gpu: GpuModel) -> None:
    launches = [reduce(), GEMM]
    total, _ = follow(launches, contended(launches, beside([[3.0], [5.0]]), gpu))
    assert total[0] == pytest.approx(8.0)


def test_memory_bound_kernels_slow_the_copying_of_blocks_but_not_the_link(gpu: GpuModel) -> None:
    times = np.array([[1.0], [100.0], [1.0], [1.0]])
    nothing, launches = np.zeros_like(times), [GEMM, reduce(), GEMM, GEMM]
    bound = np.array([[0.0], [0.0], [1.0], [1.0]])
    copying = contended(launches, Alone(times, nothing, times - bound, bound, nothing, nothing, nothing), gpu)[:, 0]
    on_link = np.array([[0.0], [100.0], [0.0], [0.0]])
    linked = contended(launches, Alone(times, nothing, times - bound - on_link, bound, on_link, nothing, nothing), gpu)[
        :, 0
    ]
    assert copying[3] == linked[3] == 1.0
    assert copying[1] == pytest.approx(101.0 + 1.0 - 1.0 / gpu["contention.cta_slowdown_memory"])
    assert linked[1] == pytest.approx(101.0)


def test_fewer_thread_blocks_slow_compute_less(gpu: GpuModel) -> None:
    times = beside([[1.0], [100.0], [1.0], [1.0]])
    few, many = (contended([GEMM, reduce(ctas=n), GEMM, GEMM], times, gpu)[3, 0] for n in (2, 32))
    assert 1.0 < few < many


def test_alone_both_streams_take_their_own_time(gpu: GpuModel) -> None:
    launches = [GEMM, reduce(waits=True), GEMM, reduce()]
    times = np.array([[3.0, 1.0], [5.0, 1.0], [7.0, 1.0], [11.0, 1.0]])
    taken = contended(launches, beside(times), gpu)
    np.testing.assert_allclose(taken, times)
    total, exposed = follow(launches, taken)
    np.testing.assert_allclose(total, [26.0, 4.0])
    np.testing.assert_allclose(exposed, [16.0, 2.0])


def test_several_collectives_in_flight_share_the_stream(gpu: GpuModel) -> None:
    launches = [GEMM, reduce(), reduce(), GEMM, replace(GEMM, waits=True, outstanding=1), replace(GEMM, waits=True)]
    times = beside([[1.0], [4.0], [4.0], [1.0], [1.0], [1.0]])
    total, _ = follow(launches, contended(launches, times, gpu))
    drag, slow = drags(gpu)
    # The first product runs alone, the second hides one of both collectives' last parts, the third runs alone again.
    assert total[0] == pytest.approx(1.0 + 1.0 + 8.0 + drag * (1 - 1 / slow) + 1.0)
