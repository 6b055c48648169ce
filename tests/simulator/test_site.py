"""A forecast beyond its GPUs: levels that add up, power over time, costs, limits, and bad input."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import status_of
from paths import EXAMPLES

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.simulator.fluid.power_over_time import PowerOverTime, groups_of_stages, spread_of
from joulecast.simulator.iteration.site import SiteForecast
from joulecast.simulator.iteration.site_model import site_model
from joulecast.simulator.plan_file.plan import Plan, load_plan

SMALL, LARGE = EXAMPLES / "llama-3.1-8b-4xh200.toml", EXAMPLES / "gpt3-175b-64xa100.toml"


def test_an_exceeded_limit_is_a_warning_whatever_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("--json", "--csv"):
        assert status_of("predict", SMALL, "--set", "site.power_limit_w=2000", form) == 0
        assert "warning: site.power_limit_w = 2000 W is exceeded" in capsys.readouterr().err


def test_what_is_asked_beyond_gpus_of_no_known_node_is_said_not_to_be_looked_at() -> None:
    asked = ("site.power_limit_w=2000", "workload.training_tokens=1e12")
    alone = jc.predict(SMALL, [*asked, "cluster.gpu=h800-sxm"])
    assert alone.site is None
    said = [each for each in alone.assumptions if "is not looked at" in each]
    assert [each.split()[0] for each in said] == ["site.power_limit_w", "workload.training_tokens"]
    for known in ([], ["cluster.gpu=h800-sxm", "cluster.node=hgx-h100"]):
        assert not any("is not looked at" in each for each in jc.predict(SMALL, [*asked, *known]).assumptions)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert status_of(*list(arguments)) == 0
    return capsys.readouterr().out


def site_of(*overrides: str, path: Path = SMALL) -> SiteForecast:
    site = jc.predict(path, overrides).site
    assert site is not None
    return site


def plan(*overrides: str) -> Plan:
    return load_plan(SMALL, overrides)


@pytest.fixture(scope="module")
def large() -> Any:
    return jc.predict(LARGE, ["workload.training_tokens=3e11", "site.nodes_per_rack=2", "site.rack_power_limit_w=1"])


def test_levels_add_up(large: Any) -> None:
    site = large.site
    power, parts = site.power_w, site.node_power
    assert power.gpu == pytest.approx(large.power_w)
    assert power.node_dc == pytest.approx(8 * parts.dc_w)
    assert parts.gpu_w * 8 == pytest.approx(large.power_w)
    model = site_model(large.plan, load_gpu("a100-sxm-80gb"))
    assert model is not None
    assert power.node_ac == pytest.approx(8 * float(model.ac_w(parts.dc_w)))
    assert power.facility == pytest.approx(1.25 * (power.node_ac + power.network))
    assert power.facility == pytest.approx(model.facility_power_w(large.power_w / 64, 64, _activity(large)))
    assert model.facility_power_w([large.power_w / 64, 0.0], 64, 0.0).shape == (2,)
    assert site.to_dict()["token"]["energy_j"] * large.tokens == pytest.approx(site.energy_j.facility)
    assert power.gpu < power.node_dc < power.node_ac < power.facility
    for name, value in asdict(site.energy_j).items():
        assert value == pytest.approx(getattr(power, name) * large.time_s)


def _activity(iteration: Any) -> float:
    communicating = sum(r.gpus * (r.exposed_communication_s + r.overlapped_communication_s) for r in iteration.ranks)
    return float(communicating / iteration.gpus / iteration.time_s)


def test_levels_as_a_frame(large: Any) -> None:
    frame = large.site.to_frame()
    assert list(frame.index) == ["gpu", "node_dc", "node_ac", "network", "facility"]
    assert frame.loc["facility", "energy_j"] == large.site.energy_j.facility


def test_the_run_is_so_many_iterations(large: Any) -> None:
    site = large.site
    count = 3e11 / large.tokens
    assert site.run.iterations == pytest.approx(count)
    assert site.run.time_s == pytest.approx(count * large.time_s)
    assert site.run.energy_j == pytest.approx(count * site.energy_j.facility)
    assert site.run.cost.money == pytest.approx(count * site.cost.money)
    assert site.run.cost.carbon_kg == pytest.approx(count * site.cost.carbon_kg)
    assert site.to_dict()["token"]["money"] * 3e11 == pytest.approx(float(site.run.cost.money))
    assert site_of().run is None


def test_the_run_is_as_uncertain_as_its_iterations(large: Any) -> None:
    """Days between those of a quick and a slow iteration, megawatt-hours as at the facility's meter."""
    site, run = large.site, large.site.run
    for end in ("p05", "p95"):
        time, energy = getattr(large, f"time_s_{end}"), getattr(site, f"energy_j_{end}").facility
        assert getattr(run, f"time_s_{end}") == pytest.approx(run.paid_iterations * time)
        assert getattr(run, f"energy_j_{end}") == pytest.approx(run.paid_iterations * energy)
        assert site.to_dict()["run"][f"time_s_{end}"] == getattr(run, f"time_s_{end}")


def test_lost_time_costs_as_much_as_used_time() -> None:
    whole = site_of("workload.training_tokens=1e12").run
    lossy = site_of("workload.training_tokens=1e12", "site.goodput=0.8")
    assert whole is not None
    assert lossy.run is not None
    assert lossy.run.iterations == whole.iterations
    for name in ("time_s", "energy_j"):
        assert getattr(lossy.run, name) == pytest.approx(getattr(whole, name) / 0.8)
    assert lossy.run.cost.money == pytest.approx(whole.cost.money / 0.8)
    assert lossy.to_dict()["run"]["money"] == pytest.approx(float(lossy.run.cost.money))


def test_costs_follow_the_plan_and_nothing_else_does() -> None:
    once, twice = site_of(), site_of("site.electricity_price_per_kwh=0.164", "site.carbon_intensity_kg_per_kwh=0.74")
    assert twice.cost.electricity == pytest.approx(2 * once.cost.electricity)
    assert twice.cost.operational_kg == pytest.approx(2 * once.cost.operational_kg)
    assert twice.cost.hardware == once.cost.hardware
    assert twice.energy_j == once.energy_j
    free = site_of("site.pue=1", "site.hardware_price_per_gpu=0", "site.embodied_kg_per_gpu=0")
    assert free.energy_j.facility == pytest.approx(free.energy_j.node_ac)
    assert free.cost.hardware == free.cost.embodied_kg == 0


def test_what_the_plan_states_is_certain() -> None:
    stated = {
        "pue": 1.25,
        "electricity_price_per_kwh": 0.082,
        "carbon_intensity_kg_per_kwh": 0.37,
        "hardware_price_per_gpu": 42750,
        "embodied_kg_per_gpu": 318,
        "hardware_lifetime_years": 5,
        "hardware_utilisation": 0.85,
    }
    loose, tight = site_of(), site_of(*(f"site.{key}={value}" for key, value in stated.items()))
    assert tight.cost.money == pytest.approx(loose.cost.money)
    iteration = jc.predict(SMALL)
    time = np.log([iteration.time_s / iteration.time_s_p05, iteration.time_s_p95 / iteration.time_s])
    facility = np.array([one.facility for one in (tight.energy_j_p05, tight.energy_j, tight.energy_j_p95)])
    share = tight.cost.electricity / tight.cost.money
    expected = np.hypot(share * np.diff(np.log(facility)), (1 - share) * time)
    assert tight.money_half_widths == pytest.approx(expected)
    assert (np.array(loose.money_half_widths) > 3 * np.array(tight.money_half_widths)).all()
    assert (np.array(loose.carbon_half_widths) > tight.carbon_half_widths).all()
    cost = tight.to_dict()["token"]
    assert cost["money_p05"] < cost["money"] < cost["money_p95"]


def test_part_of_a_node_pays_its_share() -> None:
    site = site_of()
    assert site.power_w.node_dc == pytest.approx(0.5 * site.node_power.dc_w)
    assert site.power_w.network == 0.0


def test_the_interval_holds_the_forecast_and_a_stated_pue_narrows_it() -> None:
    default, stated = site_of(), site_of("site.pue=1.25")
    assert stated.energy_j == default.energy_j
    assert default.energy_j_p05.facility < stated.energy_j_p05.facility < stated.energy_j.facility
    assert stated.energy_j.facility < stated.energy_j_p95.facility < default.energy_j_p95.facility
    iteration = jc.predict(SMALL)
    ends = [(getattr(default.energy_j_p05, x), getattr(default.energy_j_p95, x)) for x in ("gpu", "node_dc", "node_ac")]
    width = [high / low for low, high in ends]
    assert width == sorted(width)
    assert default.energy_j_p95.gpu / default.energy_j_p05.gpu == pytest.approx(
        iteration.energy_j_p95 / iteration.energy_j_p05
    )


def test_power_over_time_has_the_iterations_mean(large: Any) -> None:
    for iteration in (large, jc.predict(SMALL), jc.predict(SMALL, ["power.clock_mhz=1200"])):
        over_time = iteration.power_over_time
        held = np.array([rank.gpus for rank in iteration.ranks])[None, :]
        assert over_time.group_w(held).mean() == pytest.approx(iteration.power_w, rel=0.02)
        spread = iteration.site.spread_w
        assert spread["gpu"].mean_w in [pytest.approx(rank.power_w) for rank in iteration.ranks]
        assert spread["job"].mean_w == pytest.approx(iteration.site.power_w.facility, rel=1e-9)
        for one in spread.values():
            assert one.p50_w <= one.p95_w <= one.p99_w <= one.peak_w
            assert one.mean_w < one.peak_w
        assert spread["gpu"].peak_w * iteration.gpus < spread["job"].peak_w * 1.25


def test_how_sure_peaks_are(large: Any) -> None:
    """As wide as the demand below the board's instant limit; a GPU's hardly above it, a facility's less sure."""
    small = jc.predict(SMALL)
    for iteration in (large, small):
        spread = iteration.site.spread_w
        for one in spread.values():
            assert one.peak_w_p05 < one.peak_w < one.peak_w_p95
        up = {name: np.log(one.peak_w_p95 / one.peak_w) for name, one in spread.items()}
        assert up["gpu"] < up["job"]
    free, held = small.site.spread_w["gpu"], site_of("power.power_limit_w=300").spread_w["gpu"]
    assert held.peak_w_p95 < 1.06 * 1.36 * 300.0 < free.peak_w
    (check,) = site_of("site.power_limit_w=5000").limits
    assert check.peak_w_p05 < check.peak_w < check.peak_w_p95
    assert f"to {check.peak_w_p95:.0f})" in str(check)


def test_fixed_clocks_keep_their_energy_and_show_every_instruction() -> None:
    locked = jc.predict(LARGE, ["power.clock_mhz=1005"])
    over_time = locked.power_over_time
    assert over_time.step_s == pytest.approx(0.01, rel=0.01)
    held = np.array([rank.gpus for rank in locked.ranks])
    assert over_time.group_w(held[None, :]).mean() == pytest.approx(locked.power_w, rel=1e-6)
    assert over_time.power_w.max() < max(rank.power_w for rank in locked.ranks) * 1.5
    assert over_time.power_w.min() > 50.0


def test_what_runs_in_step_adds_up() -> None:
    over_time = PowerOverTime(0.01, np.array([[100.0, 300.0], [200.0, 0.0]]))
    assert groups_of_stages(2, 4, 8).tolist() == [[4, 4]]
    assert over_time.group_w(np.array([[4, 4], [4, 0]])).tolist() == [[1600.0, 400.0], [800.0, 800.0]]
    assert spread_of(over_time.power_w, over_time.mean.power_w).peak_w == 300.0
    rng = np.random.default_rng(7).normal(500.0, 50.0, (301, 1))
    spread = spread_of(rng, rng.mean(axis=0, keepdims=True))
    assert [spread.p50_w, spread.p95_w, spread.p99_w] == pytest.approx(np.percentile(rng, [50, 95, 99]).tolist())
    assert groups_of_stages(3, 8, 16).sum(axis=1).tolist() == [8, 16]


def test_a_limit_is_met_or_not(large: Any) -> None:
    (check,) = large.site.limits
    assert (check.key, check.limit_w, check.met) == ("site.rack_power_limit_w", 1.0, False)
    assert check.peak_w == large.site.spread_w["rack"].peak_w
    assert large.site.spread_w["rack"].peak_w <= 2 * large.site.spread_w["node"].peak_w
    (job,) = site_of("site.power_limit_w=1e9").limits
    assert job.met


def test_a_report_shows_levels_cost_and_limits(large: Any) -> None:
    from joulecast.reports.pages.site_section import cost_lines, level_lines, site_section, spread_lines

    site = large.site
    assert [line["power [W]"] for line in level_lines(site)] == list(site.power_w.values)
    whole = cost_lines(site)[-1]
    assert whole["of"] == "the whole run"
    assert whole["money [USD]"] == pytest.approx(float(site.run.cost.money))
    assert whole["energy [kWh]"] == pytest.approx(site.run.energy_j / 3.6e6)
    assert spread_lines(site)[2]["peak"] == site.spread_w["rack"].peak_w
    assert "is exceeded" in site_section(site).before


def test_no_node_type_no_site(capsys: pytest.CaptureFixture[str]) -> None:
    bare = ["cluster.gpu=rtx-4090", "workload.model=llama-3.2-1b", "workload.layers=2"]
    assert jc.predict(SMALL, bare).site is None
    assert jc.predict(SMALL, bare).to_dict()["site"] is None
    settings = [part for setting in bare for part in ("--set", setting)]
    assert "set cluster.node" in printed(capsys, "predict", str(SMALL), *settings)


def test_the_command_prints_levels_cost_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "workload.training_tokens=1e15", "--set", "site.node_power_limit_w=100"]
    text = printed(capsys, "predict", str(SMALL), *settings)
    for part in ("hgx-h200", "facility", "kgCO2e", "1e+15 tokens", "site.node_power_limit_w = 100 W is exceeded"):
        assert part in text
    (run,) = [line for line in text.splitlines() if line.startswith("1e+15 tokens")]
    assert re.search(r" MWh .* million USD \([\d.]+ to [\d.]+\) .*, \d+ tCO2e \(\d+ to \d+\)", run)
    assert "e+" not in run.removeprefix("1e+15 tokens")
    assert json.loads(printed(capsys, "predict", str(SMALL), "--json"))["site"]["power_w"]["facility"] > 0


BAD: list[tuple[list[str], list[str]]] = [
    (["site.pue=0.9"], ["site.pue", "at least 1"]),
    (["site.pue=120"], ["site.pue", "at most 10"]),  # a percentage
    (["site.carbon_intensity_kg_per_kwh=370"], ["carbon_intensity_kg_per_kwh", "at most 5"]),  # grams
    (["site.pue=nan"], ["site.pue"]),
    (["site.electricity_price_per_kwh=-0.1"], ["site.electricity_price_per_kwh", "at least 0"]),
    (["site.hardware_lifetime_years=0"], ["site.hardware_lifetime_years", "above 0"]),
    (["site.hardware_utilisation=1.5"], ["site.hardware_utilisation"]),
    (["site.carbon_intensity=0.1"], ["site.carbon_intensity", "'carbon_intensity_kg_per_kwh'"]),
    (["site.name=mars"], ["site.name", "unknown site 'mars'"]),
    (["site.currency=EUR"], ["site.currency", "electricity_price_per_kwh is in USD"]),
    (["site.currency=EUR"], ["Add site.electricity_price_per_kwh and site.hardware_price_per_gpu."]),
    (["site.currency=EUR", "site.electricity_price_per_kwh=0.2"], ["site.currency", "Add site.hardware_price_per_gpu"]),
    (["site.gpu_price_per_hour=2", "site.hardware_price_per_gpu=1"], ["gpu_price_per_hour", "bought or rented"]),
    (["site.gpu_price_per_hour.b200=4"], ["site.gpu_price_per_hour", "no rent of h200-sxm, but of b200", "Add"]),
    (["site.gpu_price_per_hour=-1"], ["site.gpu_price_per_hour", "at least 0"]),
    (["site.rack_power_limit_w=40000"], ["site.rack_power_limit_w", "Add site.nodes_per_rack"]),
    (["site.goodput=1.2"], ["site.goodput", "at most 1"]),
    (["site.power_limit_w=0"], ["site.power_limit_w", "above 0"]),
    (["workload.training_tokens=-1"], ["workload.training_tokens", "above 0"]),
    (["workload.training_tokens=inf"], ["workload.training_tokens"]),
    (["site=3"], ["site", "a table"]),
]


@pytest.mark.parametrize(("overrides", "parts"), BAD, ids=[" ".join(o) for o, _ in BAD])
def test_bad_input_gives_one_readable_error(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        plan(*overrides)
    assert "\n" not in str(caught.value)
    assert SMALL.name in str(caught.value)
    assert caught.value.remedy
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ("[site]", " (--set) [site.gpu_price_per_hour]"),
        ("[site]\ngpu_price_per_hour = {b200 = 4}", ":LINE [site.gpu_price_per_hour]"),
        ("[site.gpu_price_per_hour]\nb200 = 4", ":LINE [site.gpu_price_per_hour]"),
    ],
)
def test_a_table_that_only_set_fills_is_not_looked_for_in_the_file(tmp_path: Path, table: str, place: str) -> None:
    file = tmp_path / "plan.toml"
    before = SMALL.read_text(encoding="utf-8")
    assert "[site" not in before
    file.write_text(f"{before}\n{table}\n", encoding="utf-8")
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "gpu_price" in text or text == table)
    with pytest.raises(InputError) as caught:
        load_plan(file, ["site.gpu_price_per_hour.h200=3.2"])
    assert f"plan.toml{place.replace('LINE', str(line))}" in str(caught.value)


def test_another_currency_with_its_own_prices() -> None:
    own = ["site.currency=EUR", "site.electricity_price_per_kwh=0.2", "site.hardware_price_per_gpu=25000"]
    assert site_of(*own).currency == "EUR"


def test_rented_gpus_cost_their_hours_and_no_electricity_beside() -> None:
    rented = jc.predict(SMALL, ["site.gpu_price_per_hour=2.5", "site.goodput=0.5", "workload.training_tokens=1e9"])
    site = rented.site
    assert site is not None
    assert site.cost.hardware == pytest.approx(2.5 * rented.gpus * rented.time_s / 3600.0)
    assert site.cost.electricity == 0.0
    assert site.run is not None
    assert site.run.cost.money == pytest.approx(2.5 * rented.gpus * site.run.time_s / 3600.0)
    bought = site_of()
    assert site.cost.carbon_kg == pytest.approx(float(bought.cost.carbon_kg))  # who owns it changes no carbon
    below, above = site.money_half_widths
    assert below < bought.money_half_widths[0]  # of a rent only the time is uncertain
    assert np.exp(above) == pytest.approx(rented.time_s_p95 / rented.time_s)
    assert np.exp(-below) == pytest.approx(rented.time_s_p05 / rented.time_s)


def test_rent_without_electricity_has_it_beside() -> None:
    both = site_of("site.gpu_price_per_hour=2.5", "site.electricity_price_per_kwh=0.3")
    own = site_of("site.electricity_price_per_kwh=0.3")
    assert both.cost.electricity == own.cost.electricity > 0
    assert both.cost.hardware == site_of("site.gpu_price_per_hour=2.5").cost.hardware


def test_rents_are_found_by_the_gpus_name_and_need_no_currency_of_the_catalogue() -> None:
    table = ["site.gpu_price_per_hour.h200-sxm=3.2", "site.gpu_price_per_hour.h100-sxm=2.5", "site.currency=EUR"]
    own, other = (jc.predict(SMALL, [*table, f"cluster.gpu={gpu}"]) for gpu in ("h200-sxm", "h100-sxm"))
    assert own.site is not None
    assert other.site is not None
    assert own.site.currency == "EUR"
    assert (own.site.gpu_price_per_hour, other.site.gpu_price_per_hour) == (3.2, 2.5)


def test_what_is_printed_of_a_rent(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "predict", str(SMALL), "--set", "site.gpu_price_per_hour=2.5")
    (line,) = [line for line in text.splitlines() if line.startswith("million tokens")]
    assert "at 2.5 USD a GPU-hour" in line
    assert "electricity" not in line


def test_a_site_of_ones_own(tmp_path: Path) -> None:
    from joulecast.model.hardware import catalogue

    shipped = Path(catalogue.__file__).parents[1] / "catalogue_data" / "sites" / "default.toml"
    path = tmp_path / "hydro.toml"
    path.write_text(shipped.read_text(encoding="utf-8").replace("value = 0.37", "value = 0.02"), encoding="utf-8")
    own, default = site_of(f"site.name={path}"), site_of()
    assert own.cost.operational_kg == pytest.approx(default.cost.operational_kg * 0.02 / 0.37)
    path.write_text(shipped.read_text(encoding="utf-8").replace("value = 1.25", "value = 0.5"), encoding="utf-8")
    with pytest.raises(InputError, match=r"site\.pue"):
        site_of(f"site.name={path}")


def test_a_node_of_ones_own(tmp_path: Path) -> None:
    from joulecast.model.hardware import catalogue

    shipped = Path(catalogue.__file__).parents[1] / "catalogue_data" / "nodes" / "hgx-h200.toml"
    text, path = shipped.read_text(encoding="utf-8"), tmp_path / "own.toml"
    path.write_text(text.replace("fan_power_w = {value = 900", "fan_power_w = {value = 1800"), encoding="utf-8")
    own, usual = site_of(f"cluster.node={path}"), site_of()
    assert own.node_power.fan_w > 1.5 * usual.node_power.fan_w
    path.write_text(text.replace("supply_efficiency = {value = 0.95", "supply_efficiency = {value = 1.05"), "utf-8")
    with pytest.raises(InputError, match=r"supply_efficiency.*at most 1, found 1\.05"):
        site_of(f"cluster.node={path}")
    path.write_text("\n".join(line for line in text.splitlines() if not line.startswith("price")), encoding="utf-8")
    with pytest.raises(InputError, match=r"site\.hardware_price_per_gpu"):
        site_of(f"cluster.node={path}")
    assert site_of(f"cluster.node={path}", "site.hardware_price_per_gpu=1").cost.hardware > 0


def test_the_mlperf_example_is_forecast_within_five_per_cent() -> None:
    iteration = jc.predict(EXAMPLES / "gpt3-175b-512xh100.toml")
    site = iteration.site
    assert site is not None
    assert iteration.time_s == pytest.approx(10.63, rel=0.05)
    assert site.power_w.node_dc / 64 == pytest.approx(6798.0, rel=0.05)
    assert site.power_w.node_ac / 64 == pytest.approx(6904.0, rel=0.05)
    assert site.energy_j.node_dc == pytest.approx(4.62e6, rel=0.05)
    assert all(check.met for check in site.limits)
