"""Intervals of power: what kernels would draw is uncertain, what a board holds them to hardly is."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.families import FAMILIES
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Gemm, Streaming
from joulecast.model.power.uncertain_power import HELD_SD, Margin, margin, power_changes
from joulecast.model.predict import parameter_spread, predict_work
from joulecast.model.repeated_work import Work
from joulecast.model.uncertainty import (
    COMPOSITION,
    MOVING,
    NETWORK_DISCREPANCY,
    NINETY_PERCENT,
    composed_power_spread,
    discrepancy,
)

PRODUCT, COPY = Gemm(8192, 8192, 8192), Streaming("copy", 1e9, 1e9)


@pytest.fixture(scope="module")
def description():
    return load_gpu("h200-sxm")


def of_family(description, family, quantity="power"):
    return float(discrepancy(description, quantity)[FAMILIES.index(family)])


def widths(forecast):
    """Distances of both ends from the power, as logarithms."""
    power = forecast.power_w[0]
    return np.log(power / forecast.power_w_p05[0]), np.log(forecast.power_w_p95[0] / power)


def test_a_power_that_the_limit_holds_is_almost_known(description):
    """A large product draws 700 W at whatever clock; at 1,200 MHz its own power counts."""
    gpu = gpu_model(description)
    held = predict_work([Work((PRODUCT,))], gpu)
    free = predict_work([Work((PRODUCT,))], gpu, clock_mhz=1200.0)
    assert held.demand_w[0] > 1.2 * held.power_w[0] and held.power_w[0] == pytest.approx(held.held_w[0], rel=0.01)
    assert max(widths(held)) < 0.021
    own = np.hypot(of_family(description, "gemm"), parameter_spread([Work((PRODUCT,))], gpu, 1200.0)[2][0])
    assert free.demand_w[0] == pytest.approx(free.power_w[0])
    down, up = widths(free)
    assert down > 3.0 * widths(held)[0]
    level = NINETY_PERCENT * np.hypot(HELD_SD, 0.0049 / 0.99)
    assert down == pytest.approx(np.hypot(NINETY_PERCENT * own, level), rel=0.01) and up == pytest.approx(down)


def test_no_end_lies_far_above_what_a_board_allows(description):
    """Whatever the limit, the upper end stays within what is uncertain of the level itself."""
    gpu = gpu_model(description)
    for limit in (300.0, 400.0, 550.0, 700.0):
        found = predict_work([Work((PRODUCT,)), Work((COPY,))], gpu, power_limit_w=limit)
        assert np.all(found.power_w_p95 <= found.held_w * np.exp(NINETY_PERCENT * 0.013) * 1.001)
        assert np.all(found.power_w_p05 < found.power_w) and np.all(found.power_w < found.power_w_p95)


def test_a_limit_below_what_the_lowest_clock_draws_holds_nothing(description):
    found = predict_work([Work((COPY,))], gpu_model(description), power_limit_w=200.0)
    assert found.power_w[0] > 1.1 * found.held_w[0]
    assert min(widths(found)) > NINETY_PERCENT * of_family(description, "streaming")


def test_just_below_the_limit_only_the_lower_half_is_open(description):
    gpu = gpu_model(description)
    free = predict_work([Work((COPY,))], gpu)
    limit = 1.01 * free.power_w[0] / gpu["governor.settled_share"]
    near = predict_work([Work((COPY,))], gpu, power_limit_w=limit)
    assert near.power_w == pytest.approx(free.power_w)
    assert widths(near)[0] == pytest.approx(widths(free)[0], rel=0.02)
    assert widths(near)[1] < 0.5 * widths(free)[1]


def test_ends_are_the_minimum_at_the_ends_of_the_demand():
    """Against draws of the demand and of nothing else."""
    rng = np.random.default_rng(2)
    for demand, level in ((500.0, 700.0), (680.0, 700.0), (740.0, 700.0), (900.0, 700.0)):
        power = min(demand, level)
        drawn = np.minimum(demand * np.exp(0.1 * rng.standard_normal(400_000)), level)
        of = replace(margin(*np.array([[power], [demand], [level]]), np.zeros(1)), held_sd=np.zeros(1))
        wide = np.full(1, 0.1 * NINETY_PERCENT)
        down, up = power_changes(wide, wide, of, NINETY_PERCENT)
        ends = power * np.exp(-down[0]), power * np.exp(up[0])
        assert ends == pytest.approx(np.quantile(drawn, [0.05, 0.95]), rel=0.002)


def test_averages_over_less_than_a_second_are_less_sure(description):
    """The board's slow average has not settled within them: 2.1 % of the level where longer ones have 0.9 %."""
    levels = np.full((3, 4), 700.0)
    of = margin(*levels, np.zeros(4), np.array([0.1, 0.99, 1.0, 1.4]))
    assert of.held_sd == pytest.approx([0.021, 0.021, 0.009, 0.009])
    gpu = gpu_model(description)
    short, long = (predict_work([Work((PRODUCT,))], gpu, window_s=window) for window in (0.5, 1.4))
    governor = 0.0049 / 0.99
    assert widths(long)[0] == pytest.approx(NINETY_PERCENT * np.hypot(0.009, governor), rel=0.02)
    assert widths(short)[0] == pytest.approx(NINETY_PERCENT * np.hypot(0.021, governor), rel=0.02)


def test_the_level_has_an_uncertainty_of_its_own():
    nothing, governor = np.zeros(2), np.array([0.0, 0.02])
    of = margin(*np.full((3, 2), 700.0), governor)
    assert of.held_sd == pytest.approx(np.hypot(HELD_SD, governor))
    down, up = power_changes(nothing, nothing, of, 2.0)
    assert down == pytest.approx(2.0 * of.held_sd) and up == pytest.approx(down)
    assert isinstance(of, Margin)


def test_the_power_of_pieces_of_several_kernels(description):
    """Of one kernel it is the family's; of two each counts by the mean and the difference of its shares."""
    known = {**description.kernel.discrepancy, "streaming": {"time": 0.011, "energy": 0.026, "power": 0.036}}
    description = replace(description, kernel=replace(description.kernel, discrepancy=known))
    costs = lower([PRODUCT, COPY, PRODUCT], gpu_model(description))
    time, energy = np.array([3.0, 1.0, 5.0]), np.array([9.0, 1.0, 7.0])
    found = composed_power_spread((time, energy), np.array([0, 0, 1]), costs, description, 3)
    product, copy = of_family(description, "gemm"), of_family(description, "streaming")
    assert list(found[1:]) == pytest.approx([product, 0.0])

    def both(family, power):
        time_sd, energy_sd = (of_family(description, family, quantity) for quantity in ("time", "energy"))
        return max((time_sd**2 + energy_sd**2) / 2 - power**2 / 4, 0.0)

    own = (0.825 * product) ** 2 + (0.175 * copy) ** 2
    differing = 0.15**2 * (both("gemm", product) + both("streaming", copy))
    assert both("streaming", copy) > 0.0
    assert found[0] == pytest.approx(np.sqrt(own + differing + COMPOSITION**2 + (0.175 * MOVING) ** 2))


def test_shares_of_time_and_energy_follow_draws(description):
    """Against draws of correlated errors of two kernels, of which one takes the time and the other the energy."""
    power = {"gemm": 0.05, "streaming": 0.03}
    known = {family: {"time": 0.04, "energy": 0.04, "power": sd} for family, sd in power.items()}
    stated = replace(description, kernel=replace(description.kernel, discrepancy=known))
    costs = lower([PRODUCT, COPY], gpu_model(description))
    time, energy = np.array([1.0, 3.0]), np.array([2.0, 1.0])
    found = composed_power_spread((time, energy), np.zeros(2, dtype=np.int64), costs, stated, 1)[0]
    rng, changed = np.random.default_rng(5), [np.zeros(200_000), np.zeros(200_000)]
    for at, sd in enumerate(power.values()):
        common = 1.0 - 0.5 * (sd / 0.04) ** 2
        errors = 0.04 * rng.multivariate_normal([0.0, 0.0], [[1.0, common], [common, 1.0]], 200_000).T
        changed = [
            old + amount[at] * np.exp(error) for old, amount, error in zip(changed, (time, energy), errors, strict=True)
        ]
    drawn = np.std(np.log(changed[1] / changed[0]))
    added = COMPOSITION**2 + (MOVING * 0.5 * (3.0 / 4.0 + 1.0 / 3.0)) ** 2
    assert np.sqrt(found**2 - added) == pytest.approx(drawn, rel=0.03)


def test_families_without_a_spread_of_power_err_independently(description):
    known = {**description.kernel.discrepancy, "gemm": {"time": 0.03, "energy": 0.04}}
    stated = replace(description, kernel=replace(description.kernel, discrepancy=known))
    assert of_family(stated, "gemm") == pytest.approx(0.05)
    assert of_family(description, "network") == NETWORK_DISCREPANCY


def test_derived_cards_are_less_sure_of_power(description):
    derived = load_gpu("h100-sxm")
    relative = load_gpu("h200-sxm-rows")
    assert of_family(derived, "gemm") > of_family(relative, "gemm")
    clock = {"clock_mhz": 1200.0}
    widest = [widths(predict_work([Work((PRODUCT,))], gpu_model(of), **clock))[0] for of in (relative, derived)]
    assert widest[1] > 1.5 * widest[0]
