"""Power by component, temperature and idling."""

from dataclasses import fields, replace

import numpy as np
import pytest

from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Streaming
from joulecast.model.power.kernel_power import (
    COMPONENTS,
    REFERENCE_TEMPERATURE_C,
    at_clock,
    clock_tree_power_w,
    idle_power_w,
    kernel_time_s,
    static_power_at_w,
    static_power_w,
)

OPERATORS = (
    Gemm(8192, 8192, 8192),
    Gemm(4096, 4096, 4096, data="zeros"),
    Attention(4, 32, 8, 4096, 128),
    Streaming("copy", 1e9, 1e9),
    Streaming("copy", 1e6, 1e6),
    Collective("all_reduce", 1e8, 4),
)


@pytest.fixture(scope="session")
def costs(h200):
    return lower(OPERATORS, h200)


def test_parts_sum_to_the_whole(costs, h200):
    times = at_clock(costs, h200.clocks_mhz[:, None], h200)
    assert set(times.components_j) == set(COMPONENTS)
    total = sum(np.broadcast_to(part, times.energy_j.shape) for part in times.components_j.values())
    assert total == pytest.approx(times.energy_j, rel=1e-12)
    # Vector energy is what a pattern draws beyond a copy's bytes: it may be a little less than nothing.
    positive = {c: p for c, p in times.components_j.items() if c != "vector"}
    assert all((np.asarray(part) >= 0).all() for part in positive.values())
    moved = times.components_j["vector"] + times.components_j["onchip"] + times.components_j["hbm"]
    assert (moved >= 0).all()


def test_a_lower_clock_is_never_faster_and_draws_less(costs, h200):
    times = at_clock(costs, h200.clocks_mhz[:, None], h200)
    assert np.all(np.diff(times.time_s, axis=0) <= 0)
    assert np.all(np.diff(times.power_w, axis=0) > 0)


def test_time_is_a_smooth_maximum(costs, h200):
    clock = 1500.0
    core, floor = costs.core_cycles / (clock * 1e6), costs.fixed_s
    longest = np.max([core, costs.memory_s, costs.link_s], axis=0)
    time = kernel_time_s(costs, clock, h200) - floor
    assert np.all(time >= longest * (1.0 - 1e-12))  # a start was added and taken away
    assert np.all(time <= core + costs.memory_s + costs.link_s + 1e-15)
    sharp = h200.with_values({"kernel.overlap_exponent": 200.0})
    assert kernel_time_s(costs, clock, sharp) - floor == pytest.approx(longest, rel=0.01)


def test_dynamic_energy_follows_the_square_of_the_voltage(costs, h200):
    low = h200.clocks_mhz[0]
    high, slow = at_clock(costs, h200.max_clock_mhz, h200), at_clock(costs, low, h200)
    ratio = h200["voltage.floor_ratio"] ** 2
    assert slow.components_j["tensor"] == pytest.approx(ratio * high.components_j["tensor"])
    assert slow.components_j["hbm"] == pytest.approx(high.components_j["hbm"])
    assert slow.components_j["link"] == pytest.approx(high.components_j["link"])


def test_a_hungrier_card_pays_for_its_chip_and_its_memory(costs, h200):
    own = h200.with_values({"power.card_core": 1.1, "power.card_memory": 1.3})
    usual, hungry = (at_clock(costs, 1500.0, gpu).components_j for gpu in (h200, own))
    factors = {"hbm": 1.3, "link": 1.0, **dict.fromkeys(("clock", "sm", "tensor", "vector", "onchip"), 1.1)}
    assert all(hungry[c] == pytest.approx(factor * usual[c]) for c, factor in factors.items())
    assert clock_tree_power_w(1500.0, own) == pytest.approx(1.1 * clock_tree_power_w(1500.0, h200))


def test_leakage_at_a_temperature_is_that_of_the_power_that_brings_it(h200):
    static = static_power_w(500.0, h200)
    warm = h200["power.inlet_c"] + h200["power.thermal_resistance_k_per_w"] * (500.0 + static)
    assert static_power_at_w(warm, h200) == pytest.approx(static)


def test_static_power_solves_for_the_temperature_that_it_brings(h200):
    """P = P_s + λ·(T − T₀) with T = T_inlet + R·(P + P_other)."""
    other = np.array([0.0, 300.0, 600.0])
    static = static_power_w(other, h200)
    temperature = h200["power.inlet_c"] + h200["power.thermal_resistance_k_per_w"] * (static + other)
    expected = h200["power.static_w"] + h200["power.leakage_w_per_k"] * (temperature - REFERENCE_TEMPERATURE_C)
    assert static == pytest.approx(expected)


def test_idle_power_rises_from_the_lowest_clock_to_the_highest(h200):
    """Idle is 85 W at 885 MHz and 121-123 W at 1980 MHz on the measured card."""
    low, high = idle_power_w(np.array([885.0, 1980.0]), h200)
    assert low == pytest.approx(85.0, abs=3.0)
    assert high == pytest.approx(122.0, abs=3.0)


def test_an_operator_that_does_nothing_draws_idle_power(costs, h200):
    nothing = replace(
        costs, **{f.name: np.zeros(len(costs)) for f in fields(costs) if f.name not in ("fixed_s", "family")}
    )
    assert at_clock(nothing, 1500.0, h200).power_w == pytest.approx(float(idle_power_w(1500.0, h200)), rel=1e-6)


def test_zeros_are_cheaper_than_random_values(h200):
    random, zeros, ones = (
        at_clock(lower([Gemm(8192, 8192, 8192, data=d)], h200), 1500.0, h200).power_w[0]
        for d in ("randn", "zeros", "pow2")
    )
    assert zeros < ones < random
    assert random / zeros > 1.4


def test_links_and_memory_are_only_paid_where_they_are_used(costs, h200):
    parts = at_clock(costs, 1980.0, h200).components_j
    link, tensor = np.asarray(parts["link"]), np.asarray(parts["tensor"])
    assert (link > 0).tolist() == [False] * 5 + [True]
    assert (tensor > 0).tolist() == [True, True, True, False, False, False]


def test_clocks_broadcast_over_kernels(costs, h200):
    grid = at_clock(costs, np.array([[1000.0], [1500.0]]), h200)
    each = at_clock(costs, np.full(len(costs), 1500.0), h200)
    assert grid.time_s.shape == (2, len(costs))
    assert grid.energy_j[1] == pytest.approx(each.energy_j, rel=1e-12)
