"""Physics of a node, its supplies, the network's switches, and of money and carbon."""

from __future__ import annotations

import numpy as np
import pytest

from joulecast.errors import InputError
from joulecast.model.cluster.node_power import (
    FAN_FLOOR,
    cpu_power_w,
    design_power_w,
    fan_power_w,
    network_switch_power_w,
    nic_power_w,
    node_ac_w,
    node_dc_w,
    node_power_w,
    supply_efficiency,
    switch_tiers,
)
from joulecast.model.cluster.site_cost import S_PER_YEAR, Prices, cost_of
from joulecast.model.hardware.catalogue import load_network, load_node, load_site, node_names, site_names

NODE, NETWORK = load_node("hgx-h100"), load_network("infiniband-ndr")
PRICES = Prices(0.1, 0.4, 30_000.0, 300.0, 5.0, 0.8)


def test_a_node_is_the_sum_of_its_parts() -> None:
    parts = node_power_w(5000.0, 700.0, NODE, NETWORK, nic_activity=0.5)
    named = parts.to_dict()
    assert set(named) == {"gpu_w", "cpu_w", "switch_w", "nic_w", "fan_w", "other_w"}
    assert parts.dc_w == pytest.approx(sum(named.values()))
    assert named["gpu_w"] == 5000.0
    assert all(value > 0 for value in named.values())


def test_many_nodes_at_once() -> None:
    powers = [0.0, 2000.0, 5600.0]
    each = [node_power_w(power, 700.0, NODE, NETWORK, nic_activity=0.3).dc_w for power in powers]
    assert node_dc_w(powers, 700.0, NODE, NETWORK, nic_activity=0.3) == pytest.approx(each)


def test_fans_follow_the_cube_of_the_heat_between_their_floor_and_the_design() -> None:
    power = fan_power_w(np.array([0.0, 400.0, 500.0, 1000.0, 2000.0]), 1000.0, 800.0)
    assert power == pytest.approx([800 * FAN_FLOOR**3, 800 * FAN_FLOOR**3, 100.0, 800.0, 800.0])


def test_a_node_at_its_design_has_the_fans_and_the_efficiency_of_its_description() -> None:
    design = design_power_w(700.0, NODE, NETWORK)
    parts = node_power_w(8 * 700.0, 700.0, NODE, NETWORK, nic_activity=1.0)
    assert parts.fan_w == pytest.approx(NODE["fan_power_w"])
    assert parts.dc_w == pytest.approx(design.dc_w)
    assert design.dc_w / node_ac_w(design.dc_w, 700.0, NODE, NETWORK) == pytest.approx(NODE["supply_efficiency"])


def test_an_air_cooled_node_at_its_limit_draws_what_was_published() -> None:
    busy = node_power_w(8 * 692.0, 700.0, NODE, NETWORK)
    drawn = float(node_ac_w(busy.dc_w, 700.0, NODE, NETWORK))
    assert drawn == pytest.approx(8400.0, rel=0.03)  # the most that Latif et al. saw, arXiv 2412.08602


def test_supplies_are_best_at_middle_load_and_follow_the_titanium_minima() -> None:
    half = np.array([0.2, 0.4, 1.0, 2.0])  # of the load at which the node trains: 10, 20, 50 and 100 % of rated power
    found = supply_efficiency(half * 5000.0, 5000.0, 0.96)
    assert found == pytest.approx([0.90, 0.94, 0.96, 0.95], abs=0.012)
    fine = supply_efficiency(np.linspace(100, 12_000, 400), 5000.0, 0.96)
    assert 0.8 < np.linspace(100, 12_000, 400)[fine.argmax()] / 5000.0 < 1.6
    assert (fine < 1).all()
    assert [float(supply_efficiency(700.0, 700.0, of)) for of in (0.4, 0.96, 1.0)] == pytest.approx([0.4, 0.96, 1.0])
    for wrong in (0.0, 1.2):
        with pytest.raises(InputError, match="efficiency"):
            supply_efficiency(1.0, 1.0, wrong)


def test_input_power_rises_with_output_power() -> None:
    output = np.linspace(500, 8000, 50)
    drawn = node_ac_w(output, 700.0, NODE, NETWORK)
    assert (np.diff(drawn) > np.diff(output)).all()


def test_processors_and_cards_lie_between_rest_and_work() -> None:
    assert cpu_power_w(0.0, NODE) == NODE["cpu_idle_power_w"]
    assert cpu_power_w(1.0, NODE) == NODE["cpu_training_power_w"]
    cards = NODE["nics_per_node"] * (NETWORK["nic_power_w"] - NETWORK["nic_idle_power_w"])
    assert nic_power_w(1.0, NODE, NETWORK) - nic_power_w(0.0, NODE, NETWORK) == pytest.approx(cards)
    assert cpu_power_w(0.25, NODE) == pytest.approx(0.75 * cpu_power_w(0.0, NODE) + 0.25 * cpu_power_w(1.0, NODE))
    assert cpu_power_w(0.5, {"cpu_training_power_w": 400.0}) == 200.0  # nothing at rest where nothing is stated
    with pytest.raises(InputError, match="share"):
        cpu_power_w(1.5, NODE)


def test_a_fat_tree_grows_by_tiers() -> None:
    assert [switch_tiers(n, 64) for n in (1, 64, 65, 2048, 2049, 65_536)] == [1, 1, 2, 2, 3, 3]
    port = NETWORK["switch_port_power_w"] + NETWORK["transceiver_power_w"]
    assert network_switch_power_w(1, NETWORK) == 0.0
    assert network_switch_power_w(2, NETWORK) == pytest.approx(2 * port / 0.93)
    assert network_switch_power_w(512, NETWORK) == pytest.approx(512 * 3 * port / 0.93)


def test_what_a_node_or_a_network_leaves_out() -> None:
    network = {"switch_port_power_w": 10.0, "transceiver_power_w": 5.0, "nic_power_w": 30.0, "nic_idle_power_w": 20.0}
    assert network_switch_power_w(64, network) == pytest.approx(64 * 15.0 / 0.93)  # one switch of 64 ports
    assert network_switch_power_w(65, network) == pytest.approx(65 * 3 * 15.0 / 0.93)
    bare = node_power_w(800.0, 400.0, {"gpus_per_node": 2, "nics_per_node": 2, "other_power_w": 50.0}, network)
    assert bare.to_dict() == {
        "gpu_w": 800.0, "cpu_w": 0.0, "switch_w": 0.0, "nic_w": 2 * 25.0, "fan_w": 0.0, "other_w": 50.0,
    }  # fmt: skip


def test_money_and_carbon_are_linear() -> None:
    once, twice = cost_of(3.6e6, 100.0, 8, PRICES), cost_of(7.2e6, 200.0, 8, PRICES)
    assert once.electricity == pytest.approx(0.1)
    assert once.operational_kg == pytest.approx(0.4)
    assert once.hardware == pytest.approx(800.0 * 30_000.0 / (5 * S_PER_YEAR * 0.8))
    for name in ("electricity", "hardware", "operational_kg", "embodied_kg", "money", "carbon_kg"):
        assert getattr(twice, name) == pytest.approx(2 * getattr(once, name))
    assert once.money == pytest.approx(once.electricity + once.hardware)
    assert once.carbon_kg == pytest.approx(once.operational_kg + once.embodied_kg)
    many = cost_of(np.array([1e6, 2e6]), np.array([1.0, 2.0]), np.array([[8], [16]]), PRICES)
    assert many.money.shape == (2, 2)


def test_the_catalogue_has_what_costs_need() -> None:
    assert site_names() == ["default"]
    assert load_site("default")["pue"] >= 1.0
    for name in node_names():
        node = load_node(name)
        assert node["price"] > 0
        assert 0.9 < node["supply_efficiency"] < 1.0
        assert load_network(node.text("network"))["nic_power_w"] > 0
