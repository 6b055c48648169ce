"""The clock that a board settles at."""

import numpy as np
import pytest

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.operators import Gemm, Streaming
from joulecast.model.power.governor import settle_clock_mhz, settled_power_w, tensor_clock_mhz
from joulecast.model.power.settled import burst_share_of_window
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work

CLOCKS = np.arange(345.0, 1981.0, 15.0)
LARGE = Work((Gemm(8192, 8192, 8192),))
COPY = Work((Streaming("copy", 1e9, 1e9),))


def cubic(at_top_w):
    """Power of workloads that draw ``at_top_w`` at the highest clock, shape ``(clocks, workloads)``."""
    return 100.0 + (np.atleast_1d(at_top_w) - 100.0) * (CLOCKS[:, None] / CLOCKS[-1]) ** 3


def test_the_settled_clock_meets_the_limit():
    power = cubic([900.0, 750.0, 701.0])
    clock = settle_clock_mhz(CLOCKS, power, 700.0, 1980.0)
    for column, one in enumerate(clock):
        assert np.interp(one, CLOCKS, power[:, column]) == pytest.approx(700.0, abs=0.1)


def test_forecasts_meet_the_limit_within_a_tenth_of_a_watt(h200):
    for limit in (400.0, 550.0, 700.0):
        forecast = predict_work([LARGE], h200, power_limit_w=limit)
        assert forecast.power_w[0] == pytest.approx(float(settled_power_w(limit, h200)), abs=0.1)
        assert forecast.clock_mhz[0] < 1980.0


def test_processors_of_a_module_draw_under_its_limit():
    gpu = gpu_model(load_gpu("gh200-120gb"))
    beside = gpu.device["limit_beside_gpu_w"]
    for limit in (None, 600.0):
        left = (680.0 if limit is None else limit) - beside
        assert gpu.own_limit_w(limit) == left
        assert predict_work([LARGE], gpu, power_limit_w=limit).power_w[0] == pytest.approx(
            float(settled_power_w(left, gpu)), abs=0.1
        )
    assert gpu_model(load_gpu("h200-sxm")).own_limit_w() == 700.0


def test_what_stays_below_the_limit_runs_at_the_highest_clock(h200):
    assert settle_clock_mhz(CLOCKS, cubic(500.0), 700.0, 1980.0)[0] == 1980.0
    forecast = predict_work([COPY], h200, power_limit_w=700.0)
    assert forecast.clock_mhz[0] == h200.max_clock_mhz
    assert forecast.power_w[0] < 690.0


def test_what_exceeds_the_limit_at_every_clock_runs_at_the_lowest():
    assert settle_clock_mhz(CLOCKS, cubic(900.0), 50.0, 1980.0)[0] == CLOCKS[0]


def test_at_the_limit_itself_nothing_gives_way():
    """Clocks between two steps are in proportion; of clocks that draw the same, the highest is taken."""
    clocks, power = np.array([1000.0, 1100.0, 1200.0, 1300.0]), np.array([[100.0], [200.0], [200.0], [300.0]])
    settled = {limit: settle_clock_mhz(clocks, power, limit, 1290.0)[0] for limit in (99.0, 100.0, 150.0, 200.0, 250.0)}
    assert settled == {99.0: 1000.0, 100.0: 1000.0, 150.0: 1050.0, 200.0: 1200.0, 250.0: 1250.0}
    assert settle_clock_mhz(clocks, power, 300.0, 1290.0)[0] == 1290.0


def test_a_ceiling_binds_below_the_limit():
    assert settle_clock_mhz(CLOCKS, cubic([500.0, 900.0]), 700.0, np.array([1725.0, 1980.0]))[0] == 1725.0


def test_a_lower_limit_is_slower_and_a_little_more_efficient(h200):
    limits = (350.0, 450.0, 550.0, 650.0)
    found = [predict_work([LARGE], h200, power_limit_w=limit) for limit in limits]
    times, energies = (np.array([getattr(f, name)[0] for f in found]) for name in ("time_s", "energy_j"))
    assert np.all(np.diff(times) < 0)
    assert energies[1] < energies[-1]


def test_zeros_sit_below_the_maximum_clock_far_from_the_limit(h200):
    """The second limiter: all-zero bf16 products were seen at 1725 MHz and 422 W."""
    forecast = predict_work([Work((Gemm(8192, 8192, 8192, data="zeros"),))], h200)
    assert forecast.power_w[0] < 600.0
    assert 1500.0 < forecast.clock_mhz[0] < 1980.0


def test_the_second_limiter_follows_the_use_of_the_tensor_units(h200):
    clocks = tensor_clock_mhz(np.array([0.0, 0.5, 0.8, 0.9]), h200)
    assert clocks[0] == clocks[1] == h200.max_clock_mhz
    assert clocks[2] / clocks[3] == pytest.approx(min(0.9 / 0.8, clocks[2] / clocks[3]))
    assert clocks[3] == pytest.approx(h200["governor.tensor_clock_mhz"] / 0.9)


def test_a_short_window_sees_the_faster_beginning(h200):
    early, late = predict_work(
        [LARGE, LARGE], h200, settle_s=np.array([0.1, 1.0]), window_s=np.array([0.3, 2.0])
    ).time_s
    assert early < late
    shares = burst_share_of_window(np.array([0.0, 0.0, 5.0]), np.array([0.25, 5.0, 1.0]), h200)
    assert shares[0] == 1.0 > shares[1] > shares[2] == 0.0


def test_a_sequence_sums(h200):
    """At a clock that no limiter lowers: not the instant one, nor that of busy matrix units."""
    sequence = Work((LARGE.operators[0], COPY.operators[0]), (1, 40))
    together, alone = (predict_work(work, h200, clock_mhz=1200.0) for work in ([sequence], [LARGE, COPY]))
    assert together.time_s[0] == pytest.approx(alone.time_s[0] + 40 * alone.time_s[1], rel=1e-9)
    assert together.energy_j[0] == pytest.approx(alone.energy_j[0] + 40 * alone.energy_j[1], rel=1e-9)


def test_a_sequence_shares_one_clock(h200):
    """Between the clocks that its kernels run at alone: copies leave to products what they do not draw."""
    sequence = Work((LARGE.operators[0], COPY.operators[0]), (1, 2))
    together, (product, copy) = predict_work([sequence], h200), predict_work([LARGE, COPY], h200).clock_mhz
    assert product < together.clock_mhz[0] < copy
    assert together.power_w[0] == pytest.approx(float(settled_power_w(700.0, h200)), abs=0.1)


def test_a_locked_clock_gives_way_to_the_power_limit(h200):
    free = predict_work([LARGE], h200)
    high, low = (predict_work([LARGE], h200, clock_mhz=clock) for clock in (1980.0, 900.0))
    assert high.clock_mhz[0] == pytest.approx(free.clock_mhz[0])
    assert low.clock_mhz[0] == 900.0


def test_pauses_idle_at_the_same_clock(h200):
    busy = predict_work([LARGE], h200, clock_mhz=1200.0)
    half = predict_work([Work(LARGE.operators, (1,), busy_share=0.5)], h200, clock_mhz=1200.0)
    assert half.time_s[0] == pytest.approx(2 * busy.time_s[0], rel=1e-6)
    assert busy.energy_j[0] < half.energy_j[0] < 2 * busy.energy_j[0]
