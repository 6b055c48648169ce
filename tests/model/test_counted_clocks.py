"""What kernels get of the clock that a board has set, held against clocks counted on the SMs of an H100 and an H200."""

from __future__ import annotations

import numpy as np
import pytest
from paths import ROOT
from recorded_products import errors_of_products
from row_files import csv_rows

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Gemm
from joulecast.model.power.governor import TENSOR_CLOCK_SHARE
from joulecast.model.power.kernel_power import at_clock
from joulecast.model.power.limits import hold_at_peak

CLOCKS = ROOT / "validate" / "recorded" / "clocks"
PRODUCTS = ("gemm", "gemm_half0", "gemm_zero", "gemm_pm1", "gemm_fp16")
OTHERS = ("copy", "l2_mul_x60", "sgemm", "rmsnorm_x10")
MODELLED = {
    "gemm": Gemm(m=8192, n=8192, k=8192, dtype="bf16"),
    "attn": Attention(batch=4, heads=32, kv_heads=32, sequence=4096, head_dim=128, causal=True, backend="cudnn"),
}


def counted(gpu, kernels):
    """Rows of some kernels whose board's clock is known: that clock and the counted one [MHz], and their times [s]."""
    rows = csv_rows(CLOCKS / "clocks.csv", gpu=gpu)
    rows = [row for row in rows if row["kernel"] in kernels and row["board_clock_mhz"]]
    return np.array([[float(r[key]) for key in ("board_clock_mhz", "counted_clock_mhz", "time_s")] for r in rows]).T


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm"])
def test_products_get_nine_tenths_of_the_clock_whatever_they_draw_and_other_kernels_all_of_it(gpu):
    board, real, _ = counted(gpu, PRODUCTS)
    below = board < 1650.0  # no product meets the instant limit there
    assert below.sum() >= 15
    assert np.mean(real[below] / board[below]) == pytest.approx(TENSOR_CLOCK_SHARE, abs=0.004)
    assert real[below] / board[below] == pytest.approx(TENSOR_CLOCK_SHARE, abs=0.018)
    board, real, _ = counted(gpu, OTHERS)
    assert real / board == pytest.approx(1.0, abs=0.016)


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm"])
@pytest.mark.parametrize("kernel", MODELLED)
def test_near_the_instant_limit_a_kernel_runs_as_at_a_lower_clock(gpu, kernel):
    """Cycles that were skipped at the voltage of the set clock made products 24 % longer at the highest one."""
    model = gpu_model(load_gpu(gpu))
    clocks = model.clocks_mhz
    free = at_clock(lower([MODELLED[kernel]], model), clocks[:, None], model)
    held = hold_at_peak(free, clocks, model.device["power_limit_w"] * model["governor.peak_share"], model)
    board, _, time = counted(gpu, (kernel,))
    forecast = np.interp(board, clocks, held.time_s[:, 0])
    assert len(board) == 10
    assert np.abs(forecast / time - 1.0).mean() < 0.0125
    assert np.abs(forecast / time - 1.0).max() < 0.03


def test_what_is_far_below_the_limit_is_left_alone():
    model = gpu_model(load_gpu("h200-sxm"))
    clocks = model.clocks_mhz
    free = at_clock(lower(list(MODELLED.values()), model), clocks[:, None], model)
    low = clocks < 1500.0
    held = hold_at_peak(free, clocks, 952.0, model)
    assert np.array_equal(held.time_s[low], free.time_s[low])
    assert np.array_equal(held.energy_j[low], free.energy_j[low])
    assert sum(held.components_j.values())[:, 0] == pytest.approx(held.energy_j[:, 0])
    assert (np.diff(held.time_s, axis=0) <= 1e-12).all()


def test_what_exceeds_the_limit_at_the_lowest_clock_skips_cycles_there():
    model = gpu_model(load_gpu("h200-sxm"))
    clocks = model.clocks_mhz[-20:]
    free = at_clock(lower([MODELLED["gemm"]], model), clocks[:, None], model)
    held = hold_at_peak(free, clocks, 500.0, model)
    assert held.power_w == pytest.approx(np.full(held.power_w.shape, 500.0))
    assert (held.time_s > free.time_s[0]).all()


def test_times_of_400_products_of_models_shapes():
    """They showed where products were furthest off; the larger ones decide how long an iteration takes."""
    rows = csv_rows(CLOCKS / "products.csv")
    error, flops = errors_of_products(rows, "h200-sxm")
    error, large = np.abs(error), flops > 1e11
    assert len(rows) == 400 and large.sum() > 200
    assert error.mean() < 0.03
    assert error[large].mean() < 0.017
