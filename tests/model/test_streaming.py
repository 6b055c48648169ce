"""Kernels that move data: bandwidth, issue rate and residency in L2."""

import numpy as np
import pytest

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Gemm, Streaming
from joulecast.model.kernels.streaming import (
    EDGE,
    FROM_L2_S,
    ROW_WAIT_S,
    extra_read_passes,
    reread_share,
    residency,
    streaming_work,
)
from joulecast.model.power.kernel_power import at_clock, kernel_time_s

GB = 1e9


def copies(*sizes, pattern="copy", **more):
    return [Streaming(pattern, size / 2, size / 2, elements=size / 4, **more) for size in sizes]


def bandwidth(operators, gpu, clock=1980.0):
    moved = np.array([o.bytes_read + o.bytes_written for o in operators])
    return moved / kernel_time_s(lower(operators, gpu), clock, gpu)


def test_a_large_copy_reaches_its_share_of_the_memory(h200):
    share = h200["kernel.streaming.copy.bandwidth_share"]
    peak = h200.device["memory_bandwidth_bytes_per_s"]
    reached = bandwidth(copies(10 * GB), h200)[0]
    assert share * peak == pytest.approx(reached, rel=0.02)
    assert 4.0e12 < reached < 4.5e12


def test_small_copies_are_bound_by_latency(h200):
    assert np.all(np.diff(bandwidth(copies(1e5, 1e8, 1e9, 1e10), h200)[1:]) > 0)
    tiny = kernel_time_s(lower(copies(1e3), h200), 1980.0, h200)[0]
    assert tiny == pytest.approx(h200["kernel.streaming.copy.fixed_s"] - FROM_L2_S, rel=0.05)


def test_a_kernel_is_sooner_over_where_l2_holds_its_data(h200):
    half_full = (1.0 - EDGE / 2) * h200["kernel.l2.capacity_share"] * h200.device["l2_bytes"]
    warm, half, cold = lower([copies(2e6, footprint_bytes=size)[0] for size in (1.0, half_full, np.inf)], h200).fixed_s
    assert cold == h200["kernel.streaming.copy.fixed_s"]
    assert cold - warm == pytest.approx(FROM_L2_S) and cold - half == pytest.approx(FROM_L2_S / 2)
    never_less = lower(copies(2e6), h200.with_values({"kernel.streaming.copy.fixed_s": FROM_L2_S / 2})).fixed_s
    assert never_less == 0.0


def test_sms_wait_for_the_rows_of_a_columns_sum_and_are_at_work_meanwhile(h200):
    def costs(rows):
        size = 2.0 * 8192 * 4096
        return lower([Streaming("bias_reduce", size, 8192.0, rows=rows, footprint_bytes=np.inf)], h200)

    few, many = costs(4096), costs(8192)
    assert many.wait_s[0] == pytest.approx(8192 * ROW_WAIT_S["bias_reduce"] / h200.sm_count)
    assert (many.fixed_s, many.core_cycles, many.memory_s) == (few.fixed_s, few.core_cycles, few.memory_s)
    for clock in (1000.0, 1980.0):
        longer = kernel_time_s(many, clock, h200) - kernel_time_s(few, clock, h200)
        assert longer == pytest.approx(many.wait_s - few.wait_s)
    power = [at_clock(one, 1980.0, h200) for one in (few, many)]
    sms = [one.components_j["sm"][0] for one in power]
    assert sms[1] > 1.05 * sms[0]
    assert lower(copies(1e8), h200).wait_s[0] == 0.0


def test_data_that_stay_in_l2_are_faster_and_spare_the_memory(h200):
    size = 20e6
    resident, streamed = copies(size) + copies(size, footprint_bytes=float("inf"))
    near, far = bandwidth([resident, streamed], h200)
    assert near > far
    costs = lower([resident, streamed], h200)
    assert costs.hbm_j[0] == 0.0 < costs.hbm_j[1]
    assert costs.onchip_j[0] == costs.onchip_j[1] > 0.0


def test_residency_falls_from_all_to_nothing_at_the_capacity(h200):
    capacity = h200["kernel.l2.capacity_share"] * h200.device["l2_bytes"]
    at = residency(capacity * np.array([0.1, 0.63, 0.815, 1.0, 5.0]), h200)
    assert at.tolist() == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0])
    a40 = gpu_model(load_gpu("a40"))  # of one piece
    capacity = a40["kernel.l2.capacity_share"] * a40.device["l2_bytes"]
    at = residency(capacity * np.array([0.1, 1.0, 1.05, 1.1, 5.0]), a40)
    assert at.tolist() == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0])


@pytest.mark.parametrize("schedule", [{}, {"warps": 8, "tile_rows": 1, "tile_columns": 2048}])
def test_more_bytes_never_take_less_time(h200, schedule):
    """Where part of the data stay in L2, the two levels do not work side by side without a limit."""
    capacity = h200["kernel.l2.capacity_share"] * h200.device["l2_bytes"]
    sizes = 4.0 * 2048 * np.unique(np.round(capacity * np.linspace(0.9, 1.2, 200) / (4.0 * 2048)))
    for pattern in ("exp", "rmsnorm") if schedule else ("copy", "add", "softmax", "fill"):
        operators = [
            Streaming(pattern, b / 2, b / 2, b / 4, rows=round(b / 8192), columns=2048, **schedule)
            for b in sizes.tolist()
        ]
        for clock in (1400.0, 1980.0):  # at which L2 is faster than memory
            time = kernel_time_s(lower(operators, h200), clock, h200)
            assert np.all(time[1:] > 0.999 * np.maximum.accumulate(time)[:-1]), (pattern, clock)


def test_strided_kernels_slow_with_the_clock_and_copies_do_not(h200):
    for pattern, least, most in (("copy", 1.0, 1.05), ("strided_unary", 1.3, 2.0)):
        operators = copies(1 * GB, pattern=pattern)
        fast, slow = (kernel_time_s(lower(operators, h200), clock, h200)[0] for clock in (1980.0, 990.0))
        assert least <= slow / fast <= most


def test_time_is_proportional_to_bytes(h200):
    once, twice = lower(copies(1 * GB, 2 * GB), h200).memory_s
    assert twice == pytest.approx(2 * once)


def test_a_pattern_with_a_wider_type_has_its_own_figures(h200):
    wide, narrow = (Streaming("adamw", 1 * GB, 1 * GB, dtype=d) for d in ("fp32", "bf16"))
    work = lower([wide, narrow], h200).memory_s
    ratio = h200["kernel.streaming.adamw.bandwidth_share"] / h200["kernel.streaming.adamw_fp32.bandwidth_share"]
    assert work[0] / work[1] == pytest.approx(ratio)


def test_rows_that_no_sm_keeps_are_read_twice_more_from_l2_or_from_memory(h200):
    """Registers keep 9,216 values, a block's shared memory 48 KB, L2 rows of 80 KB on 132 SMs, nothing those of 512."""
    columns = np.array([9216.0, 12000.0, 20480.0, 131072.0])
    from_memory, from_l2 = extra_read_passes("log_softmax", columns, 4.0 * columns, h200)
    assert from_memory.tolist() == [0.0, 0.0, 0.0, 2.0] and from_l2.tolist() == [0.0, 0.0, 2.0, 0.0]
    between = extra_read_passes("log_softmax", np.array([36000.0]), np.array([144000.0]), h200)
    assert 0.2 < between[0][0] < 1.8 and sum(between)[0] == pytest.approx(2.0)
    assert not np.any(extra_read_passes("copy", columns, 4.0 * columns, h200))


def test_constant_writes_hardly_toggle_the_memory(h200):
    values, constant = (Streaming(pattern, 0.0, 1 * GB) for pattern in ("copy", "fill"))
    toggled, still = lower([values, constant], h200).hbm_j
    base, flip = h200["power.hbm_base_pj_per_byte"], h200["power.hbm_toggle_pj_per_byte"]
    assert still == pytest.approx(base * 1e-12 * GB)
    assert toggled - still == pytest.approx(flip * 1e-12 * GB)


def test_work_of_arrays_equals_that_of_each_alone(h200):
    sizes = np.array([1e6, 4e7, 1e9])
    together = streaming_work("copy", sizes, sizes, h200)
    for i, size in enumerate(sizes):
        alone = streaming_work("copy", np.array([size]), np.array([size]), h200)
        assert alone.memory_s[0] == together.memory_s[i]
        assert alone.cycles[0] == together.cycles[i]


def test_a_copy_runs_at_the_highest_clock_within_the_power_limit_and_a_product_does_not(h200):
    copy, product = at_clock(lower([*copies(4 * GB), Gemm(8192, 8192, 8192)], h200), 1980.0, h200).power_w
    assert 400.0 < copy < 700.0 < product


def test_what_goes_one_after_the_other_is_not_shared_by_more_sms() -> None:
    kernel = Streaming("copy", 1e6, 1e6, elements=5e5, sm_cycles=1e6, chain_cycles=1e6)
    cycles = [
        float(lower((kernel,), gpu_model(load_gpu(name))).core_cycles[0]) for name in ("h200-sxm", "a100-sxm-80gb")
    ]
    assert cycles == [1e6, 1e6]


def test_a_softmax_takes_the_energy_of_its_values_not_of_their_bytes(h200):
    """Only softmax: the instructions of a value are the same in every type; an exponential's energy goes by bytes."""
    wide, narrow = (
        {
            pattern: lower(
                [Streaming(pattern, size * 2.0**24, size * 2.0**24, dtype=dtype, rows=2**12, columns=2**12)], h200
            )
            for pattern in ("softmax", "exp")
        }
        for dtype, size in (("fp32", 4.0), ("bf16", 2.0))
    )
    assert wide["softmax"].vector_j[0] == pytest.approx(narrow["softmax"].vector_j[0])
    assert wide["exp"].vector_j[0] == pytest.approx(2.0 * narrow["exp"].vector_j[0])


def test_all_rows_at_work_decide_for_a_norm(h200):
    """Of 16 rows of a norm on an SM each has a sixteenth of its L1."""
    whole = h200.device["shared_memory_per_sm_bytes"]
    rows = 16.0 * np.floor(np.array([whole / 20.0, whole / 10.0, whole, 1.01 * whole]) / 16.0)
    assert reread_share("rmsnorm", rows, h200).tolist() == [0.0, 1.0, 1.0, 1.0]
    assert not reread_share("log_softmax", rows, h200).any()
