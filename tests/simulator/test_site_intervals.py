"""How sure powers around the GPUs are, worked out by hand, and which powers a job's share of its nodes has."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log

import pytest
from paths import EXAMPLES

import joulecast as jc
from joulecast.model.cluster.node_power import NodePower
from joulecast.model.cluster.site_cost import Cost, PriceSpread, cost_rel_sd
from joulecast.model.hardware.catalogue import load_gpu, load_site
from joulecast.model.hardware.description import Facts, Parameter
from joulecast.model.uncertainty import NINETY_PERCENT
from joulecast.simulator.iteration.result import Iteration
from joulecast.simulator.iteration.site_model import SiteModel, half_widths, site_model
from joulecast.simulator.iteration.site_peaks import LimitCheck, checks_of_power
from joulecast.simulator.plan_file.plan import load_plan

SMALL, LARGE = EXAMPLES / "llama-3.1-8b-4xh200.toml", EXAMPLES / "gpt3-175b-64xa100.toml"
PARTS = NodePower(gpu_w=4000.0, cpu_w=400.0, switch_w=150.0, nic_w=150.0, fan_w=100.0, other_w=200.0)


@pytest.fixture(scope="module")
def large() -> Iteration:
    return jc.predict(LARGE)


def of(path: object = SMALL) -> SiteModel:
    model = site_model(load_plan(str(path)), load_gpu("h200-sxm"))
    assert model is not None
    return model


def by_hand() -> SiteModel:
    """Processors ± 40 W, switch chips ± 30 W, fans ± a quarter, the rest ± 50 W, supplies ± 2 %, ports ± a fifth."""
    node = {
        "cpu_training_power_w": Parameter(400.0, 40.0),
        "switch_power_w": Parameter(150.0, 30.0),
        "other_power_w": Parameter(200.0, 50.0),
        "fan_power_w": Parameter(800.0, 200.0),
        "supply_efficiency": Parameter(0.95, 0.019),
    }
    network = {"switch_port_power_w": Parameter(10.0, 2.0)}
    return replace(of(), node=Facts("node", "n", node), network=Facts("network", "w", network), pue=1.25, pue_sd=0.125)


def test_intervals_by_hand() -> None:
    """GPUs 5 % of 4,000 W, all others 10 % of 1,000 W by time, fans a quarter of the 100 W that they draw."""
    found = half_widths(by_hand(), PARTS, gpu_rel_sd=0.05, time_rel_sd=0.1, network_share=0.2)
    dc = hypot(200.0, 100.0, 40.0, 30.0, 50.0, 25.0) / 5000.0
    ac, network = hypot(dc, 0.02), hypot(0.2, 0.1)
    facility = hypot(0.8 * ac, 0.2 * network, 0.1)
    expected = [NINETY_PERCENT * sd for sd in (0.05, dc, ac, network, facility)]
    assert list(found.values) == pytest.approx(expected)


def test_what_a_node_lacks_adds_no_doubt() -> None:
    """No chips, no fans, no network, and a power that no time multiplies."""
    model = by_hand()
    kept = {key: model.node.parameters[key] for key in ("other_power_w", "supply_efficiency")}
    bare = replace(model, node=Facts("node", "n", kept | {"fan_power_w": Parameter(0.0, 0.0)}), pue_sd=0.0)
    found = half_widths(bare, PARTS, gpu_rel_sd=0.05)
    dc = hypot(200.0, 50.0) / 5000.0
    assert found.node_dc == pytest.approx(NINETY_PERCENT * dc)
    assert found.facility == found.node_ac == pytest.approx(NINETY_PERCENT * hypot(dc, 0.02))
    assert found.network == pytest.approx(NINETY_PERCENT * 0.2)


def test_doubts_of_money_and_carbon_by_hand() -> None:
    """Money is half electricity, carbon a fifth making; what costs nothing is in no doubt."""
    spread = PriceSpread(electricity=0.3, carbon=0.4, hardware=0.2, embodied=0.1, working_life=0.12)
    money, carbon = cost_rel_sd(Cost(*map(float, (5, 5, 8, 2))), spread, energy_rel_sd=0.04, time_rel_sd=0.05)  # type: ignore[arg-type]
    used = hypot(0.12, 0.05)
    assert money == pytest.approx(hypot(5 * hypot(0.3, 0.04), 5 * hypot(used, 0.2)) / 10)
    assert carbon == pytest.approx(hypot(8 * hypot(0.4, 0.04), 2 * hypot(used, 0.1)) / 10)
    assert cost_rel_sd(Cost(*map(float, (0, 0, 0, 0))), spread, 0.04, 0.05) == (0.0, 0.0)  # type: ignore[arg-type]


def test_powers_have_the_ends_of_the_gpus_and_of_all_around_them(large: Iteration) -> None:
    """Power has no doubt of time: that of the GPUs' own power, of the node's parts, supplies, switches and PUE."""
    site, model = large.site, site_model(large.plan, load_gpu("a100-sxm-80gb"))
    assert site is not None and model is not None
    assert site.power_w_p05.gpu == pytest.approx(large.power_w_p05)
    assert site.power_w_p95.gpu == pytest.approx(large.power_w_p95)
    share = site.power_w.network / (site.power_w.node_ac + site.power_w.network)
    for found, end in ((site.power_w_p05, large.power_w_p05), (site.power_w_p95, large.power_w_p95)):
        far = log(end / large.power_w)
        half = half_widths(model, site.node_power, abs(far) / NINETY_PERCENT, network_share=share)
        for level in ("node_dc", "node_ac", "network", "facility"):
            sign = 1.0 if far > 0 else -1.0
            expected = getattr(site.power_w, level) * exp(sign * getattr(half, level))
            assert getattr(found, level) == pytest.approx(expected), level
    for end, number in zip(("p05", "p95"), large.peak_ends, strict=True):
        half = half_widths(model, site.node_power, abs(log(number)) / NINETY_PERCENT, network_share=share)
        for name, level in (("gpu", "gpu"), ("node", "node_ac"), ("job", "facility")):
            spread, sign = site.spread_w[name], -1.0 if end == "p05" else 1.0
            assert getattr(spread, f"peak_w_{end}") == pytest.approx(spread.peak_w * exp(sign * getattr(half, level)))


def test_a_gpus_price_is_as_sure_as_its_node_and_cards() -> None:
    model, site = of(), load_site(load_plan(str(SMALL)).site.name)
    cards, parts = (
        model.node["nics_per_node"],
        (model.node.parameters["price"], site.parameters["network_price_per_nic"]),
    )
    whole = parts[0].number + cards * parts[1].number
    assert model.prices.hardware_per_gpu == pytest.approx(whole / 8)
    assert model.price_spread.hardware == pytest.approx(hypot(parts[0].sd, cards * parts[1].sd) / whole)


def test_lopsided_intervals_stay_lopsided_beyond_the_gpus() -> None:
    """A slow host makes a step of experts far longer, hardly ever shorter: GPUs, nodes and money follow it."""
    tables = {
        "workload": {"model": "qwen3-30b-a3b", "sequence_length": 4096, "global_batch_size": 128},
        "cluster": {"gpu": "h200-sxm", "gpus": 16},
        "parallelism": {"expert_model_parallel_size": 8, "distributed_optimizer": True},
        "implementation": {"framework": "megatron"},
    }
    slow = jc.predict(tables)
    site = slow.site
    assert site is not None
    assert log(slow.time_s_p95 / slow.time_s) > 1.5 * log(slow.time_s / slow.time_s_p05)
    ends = [getattr(site, f"energy_j{end}") for end in ("_p05", "", "_p95")]
    assert [one.gpu for one in ends] == pytest.approx([slow.energy_j_p05, slow.energy_j, slow.energy_j_p95])
    for level in ("node_ac", "facility"):
        low, middle, high = (getattr(one, level) for one in ends)
        assert high / middle > middle / low, level
    money = site.to_dict()["token"]
    assert money["money_p95"] / money["money"] > money["money"] / money["money_p05"]


def test_cards_rest_and_no_switch_works_within_a_node() -> None:
    site, model = jc.predict(SMALL).site, of()
    assert site is not None
    cards = model.network["nic_idle_power_w"] + model.network["transceiver_power_w"]
    assert site.node_power.nic_w == pytest.approx(8 * cards)
    port = model.network["switch_port_power_w"] + model.network["transceiver_power_w"]
    assert [model.switches_w(gpus) for gpus in (4, 8)] == [0.0, 0.0]
    assert [model.switches_w(gpus) for gpus in (12, 16)] == pytest.approx([12 * port / 0.93, 16 * port / 0.93])


def test_peaks_of_a_shared_node_are_those_of_the_whole_node(large: Iteration) -> None:
    """Four GPUs of eight: the outlet feeds the other four too, the job's meter counts the job's half alone."""
    small = jc.predict(SMALL)
    assert small.site is not None and large.site is not None
    spread, power = small.site.spread_w, small.site.power_w
    assert spread["node"].mean_w == pytest.approx(2 * power.node_ac, rel=0.02)
    assert spread["job"].mean_w == pytest.approx(power.facility, rel=0.02)
    assert large.site.spread_w["node"].mean_w == pytest.approx(large.site.power_w.node_ac / 8, rel=0.05)


def test_cards_are_taken_to_work_all_the_time_between_nodes_and_never_within_one(large: Iteration) -> None:
    for iteration, gpu in ((jc.predict(SMALL), "h200-sxm"), (large, "a100-sxm-80gb")):
        plan = replace(iteration.plan, site=replace(iteration.plan.site, power_limit_w=1e6))
        model = site_model(plan, load_gpu(gpu))
        assert model is not None and iteration.site is not None
        (check,) = checks_of_power(iteration.power_over_time, plan, model, iteration.power_w / iteration.gpus)
        more = check.peak_w / iteration.site.spread_w["job"].peak_w
        assert more == pytest.approx(1.0) if iteration is not large else 1.0 < more < 1.05


def test_peaks_of_racks_and_of_a_job_with_replicas() -> None:
    """Two nodes of 16 GPUs, each a stage of four replicas: a rack of both draws what both draw."""
    two = ["cluster.gpus=16", "workload.global_batch_size=32", "site.nodes_per_rack=2", "site.rack_power_limit_w=1e5"]
    site = jc.predict(SMALL, two).site
    assert site is not None
    spread, power = site.spread_w, site.power_w
    assert spread["rack"].mean_w == pytest.approx(power.node_ac, rel=0.02)
    assert spread["job"].mean_w == pytest.approx(power.facility, rel=0.02)
    assert power.node_ac / 2 < spread["node"].peak_w < spread["rack"].peak_w <= 2 * spread["node"].peak_w
    assert [LimitCheck("site.power_limit_w", 5.0, peak).met for peak in (4.0, 5.0, 5.1)] == [True, True, False]
