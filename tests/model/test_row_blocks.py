"""Row-wise kernels of one block of threads a row: cycles of waves, and energy by where the bytes lie."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.kernels.operators import Streaming
from joulecast.model.kernels.row_blocks import lower_row_blocks

PATTERN = "vllm_rms_norm"
PREFIX = f"kernel.row_blocks.{PATTERN}."


@pytest.fixture
def gpu(h200):
    """An H200 with round numbers of such kernels."""
    numbers = {"block_cycles": 500.0, "sweep_cycles": 700.0, "bytes_per_sm_cycle": 64.0, "bandwidth_share": 0.8}
    own = {PREFIX + name: value for name, value in {**numbers, "fixed_s": 2e-6}.items()}
    return replace(h200, parameters={**h200.parameters, **own})


def norm(rows, columns=4096, **more):
    return Streaming(PATTERN, 2.0 * rows * columns, 2.0 * rows * columns, rows=rows, columns=columns, **more)


def lowered(gpu, *operators):
    return lower_row_blocks(operators, gpu)


def resident(gpu):
    """Blocks of 1024 threads, for rows of 4096 columns, that all SMs hold together."""
    return int(gpu.device["max_threads_per_sm"] // 1024) * int(gpu.sm_count)


def test_a_row_takes_the_latency_of_its_sweeps(gpu):
    alone = lowered(gpu, norm(1, 1024), norm(1, 4096), norm(1, 4097))["core_cycles"]
    assert alone == pytest.approx([500 + 700, 500 + 4 * 700, 500 + 5 * 700])


def test_full_waves_come_one_after_the_other(gpu):
    """Each wave costs as much as the first, unless what the SM must issue takes longer than the latency."""
    one, two, three = lowered(gpu, *(norm(waves * resident(gpu)) for waves in (1, 2, 3)))["core_cycles"]
    assert two == pytest.approx(2 * one) and three == pytest.approx(3 * one)
    rest = lowered(gpu, norm(resident(gpu) + 1))["core_cycles"][0]
    assert rest == pytest.approx(one + lowered(gpu, norm(1))["core_cycles"][0])


def test_many_blocks_are_bound_by_what_an_sm_issues(gpu):
    slow = replace(gpu, parameters={**gpu.parameters, PREFIX + "bytes_per_sm_cycle": 1.0})
    cycles = lowered(slow, norm(resident(slow)))["core_cycles"][0]
    shared = resident(slow) / slow.sm_count
    assert cycles == pytest.approx(500 + shared * 4 * 4096)
    assert lowered(slow, norm(int(slow.sm_count)))["core_cycles"][0] == pytest.approx(500 + 4 * 4096)


def test_bytes_beyond_l2_cost_the_memory_and_its_energy(gpu):
    large, small = norm(65536), norm(64)
    found = lowered(gpu, large, small)
    per_byte = gpu["power.hbm_base_pj_per_byte"] + gpu["power.hbm_toggle_pj_per_byte"]
    bytes_ = np.array([one.bytes_read + one.bytes_written for one in (large, small)])
    assert found["hbm_j"] == pytest.approx([bytes_[0] * per_byte * 1e-12, 0.0])
    speed = 0.8 * gpu.device["memory_bandwidth_bytes_per_s"]
    assert found["memory_s"] == pytest.approx([bytes_[0] / speed, 0.0])
    assert found["onchip_j"] == pytest.approx(bytes_ * gpu["power.l2_pj_per_byte"] * 1e-12)
    assert found["vector_j"] == pytest.approx(bytes_ * gpu["power.streaming_pj_per_byte.rmsnorm"] * 1e-12)
    assert found["activity"] == pytest.approx([1.0, 1.0])


def test_what_is_touched_between_two_uses_decides_whether_l2_has_it(gpu):
    found = lowered(gpu, norm(64, footprint_bytes=1e9), norm(65536, footprint_bytes=1e3))
    assert found["memory_s"][0] > 0.0 == found["memory_s"][1]
