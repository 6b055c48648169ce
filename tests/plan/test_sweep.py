"""Sweeps: every plan of a space, the best of them, constraints and memory."""

import json
import re
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.errors import DoesNotFitError, InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.plan.sweep.choose import best, is_undominated, to_simulate
from joulecast.plan.sweep.legal import combinations
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.rows import Forecaster, fullest_of
from joulecast.plan.sweep.space import space_from_dict
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.iteration.forecast import forecast

TP, PP = "parallelism__tensor_model_parallel_size", "parallelism__pipeline_model_parallel_size"
VP, MICRO = "parallelism__virtual_pipeline_model_parallel_size", "workload__micro_batch_size"

SPLITS = {TP: [1, 2, 4, 8], PP: [1, 2, 4], MICRO: [1, 2, 4]}


def plans_of(space):
    """Every plan of a space in which all combinations of sizes that divide each other are legal."""
    plans = Plans(space)
    found = combinations(space, plans)
    return [plans.plan(found.of(number)) for number in range(len(found))]


@pytest.fixture(scope="module")
def small(tables):
    """Every plan of a small space, in closed form alone."""
    return jc.sweep(tables(**SPLITS, schedule__recompute=["none", "full"]))


def test_every_plan_is_there_and_the_best_is_the_fastest(small):
    assert small.counts["legal"] == len(small.rows) + small.legal - small.fitting
    assert small.best[0]["time_s"] == min(row["time_s"] for row in small.rows)
    assert [row["plan"] for row in small.rows] == sorted(row["plan"] for row in small.rows)
    assert all(row["source"] == "closed-form" for row in small.rows)
    assert all(0.0 <= row["memory_margin"] < 1.0 for row in small.rows)


def test_overrides_win_over_the_space(tables):
    space = tables(**SPLITS)
    found = jc.sweep(space, overrides=["workload.micro_batch_size=2", "power.power_limit_w=500"])
    assert (
        found.rows
        == jc.sweep(space | {"power": {"power_limit_w": 500}}, overrides=[f"{MICRO.replace('__', '.')}=2"]).rows
    )
    assert MICRO.replace("__", ".") not in found.keys


def test_the_best_plans_are_simulated_exactly_as_predict_does(tables):
    space = tables(**SPLITS, objective__top=3)
    found = jc.sweep(space)
    assert [row["source"] for row in found.best] == ["simulated"] * 3
    first = found.best[0]
    overrides = [f"{key}={json.dumps(first[key])}" for key in found.keys]
    plain = {name: table for name, table in tables().items() if name not in ("constraints", "objective")}
    from joulecast.simulator.plan_file.plan import plan_from_dict

    iteration = jc.predict(plan_from_dict(plain, overrides=overrides))
    assert (first["time_s"], first["energy_j"]) == (iteration.time_s, iteration.energy_j)
    assert first["money"] == pytest.approx(float(iteration.site.cost.money))
    assert first["time_s_p05"] < first["time_s"] < first["time_s_p95"]
    quick = {row["plan"]: row for row in jc.sweep(tables(**SPLITS)).rows}
    for row in found.best:
        assert quick[row["plan"]]["money"] == pytest.approx(row["money"], rel=0.03)


def test_a_simulated_row_has_the_columns_of_closed_form_and_nearly_their_figures(tables):
    """Of jobs that fill a part of their rack, and that fill several."""
    sizes = {PP: [2], "cluster__gpus": [4, 8, 16, 48], "workload__global_batch_size": 192}
    space = space_from_dict(tables(**sizes, workload__training_tokens=1e12, site__nodes_per_rack=2))
    known = Forecaster(space)
    rows = [row for row in known.forecast(range(4)) if isinstance(row, dict)]
    assert len(rows) == 4
    for row in rows:
        simulated = known.simulate(row["plan"])
        figures = {key: value for key, value in row.items() if isinstance(value, float)}
        for level in ("node", "rack"):  # a simulation knows the peaks
            assert 1.0 <= simulated[f"peak_{level}_power_w"] / figures.pop(f"{level}_power_w") < 2.0
        assert {key: simulated[key] for key in figures} == pytest.approx(figures, rel=0.03)


def test_plans_in_doubt_are_named_and_simulated_where_they_may_be_the_best(tables, small):
    """Pipelines of few micro-batches; one that may well be the best is simulated beside the best."""
    by_count = {row["plan"]: 16 // (row[MICRO.replace("__", ".")] * row["data_parallel_size"]) for row in small.rows}
    for row in small.rows:
        few = row[PP.replace("__", ".")] > 1 and by_count[row["plan"]] <= 3
        assert bool(row["doubt"]) == few
        assert not few or f"{by_count[row['plan']]} micro-batches" in row["doubt"]
    rows = [
        {"plan": n, "time_s": t, "tokens": 1, "doubt": why}
        for n, (t, why) in enumerate([(1.0, ""), (1.03, ""), (1.05, "few"), (1.2, "few"), (1.04, "")])
    ]
    space = space_from_dict(tables(**SPLITS))
    assert [row["plan"] for row in to_simulate(rows, space, 2)] == [0, 1, 2]
    assert [row["plan"] for row in to_simulate(rows[:2], space, 2)] == [0, 1]


def test_objectives_are_counted_for_one_token(tables):
    found = jc.sweep(tables(**SPLITS, workload__global_batch_size=[16, 32]))
    per_token = [row["time_s"] / row["tokens"] for row in found.rows]
    assert found.best[0]["time_s"] / found.best[0]["tokens"] == min(per_token)


def test_a_front_of_two_and_three_objectives(tables, small):
    for names, columns in ((["time", "energy"], 2), (["time", "energy", "money"], 3)):
        found = jc.sweep(tables(**SPLITS, power__power_limit_w=[400, 550, 700], objective__minimise=names))
        values = np.array([[row["time_s"], row["energy_j"], row["money"]][:columns] for row in found.rows])
        front = {row["plan"] for row in found.best}
        for row, own in zip(found.rows, values, strict=True):
            beaten = ((values <= own).all(axis=1) & (values < own).any(axis=1)).any()
            assert (row["plan"] in front) == (not beaten)
        assert len(found.best) > 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=30))
def test_undominated_rows_are_those_that_no_other_beats(rows):
    values = np.array(rows, dtype=float)
    expected = [not any((o <= v).all() and (o < v).any() for o in values) for v in values]
    assert is_undominated(values).tolist() == expected
    front = set(np.flatnonzero(expected))
    assert set(best(values, len(front))) == front
    assert len(set(best(values, 5))) == min(5, len(rows))


def test_constraints_are_kept(tables, small):
    limit = float(np.median([row["time_s"] for row in small.rows]))
    energy = max(row["energy_j"] for row in small.rows if row["time_s"] <= limit) * 0.999
    found = jc.sweep(
        tables(
            **SPLITS,
            schedule__recompute=["none", "full"],
            constraints__max_time_s=limit,
            constraints__max_energy_j=energy,
            constraints__min_memory_margin=0.2,
            objective__minimise="energy",
        )
    )
    kept = [
        row
        for row in small.rows
        if row["time_s"] <= limit and row["energy_j"] <= energy and row["memory_margin"] >= 0.2
    ]
    assert 0 < found.within == len(kept) < len(small.rows)
    assert found.best[0]["energy_j"] == min(row["energy_j"] for row in kept)


def test_the_tightest_of_impossible_constraints_is_named(tables, small):
    fastest = min(row["time_s"] for row in small.rows)
    with pytest.raises(InputError, match=r"tightest is max_time_s") as error:
        jc.sweep(tables(**SPLITS, constraints__max_time_s=0.9 * fastest, constraints__max_gpus=8))
    assert fastest <= float(error.value.message.rpartition(" ")[2]) < 1.0002 * fastest
    with pytest.raises(InputError, match=r"tightest is max_gpus = 4: the nearest feasible value.* is 8"):
        jc.sweep(tables(**SPLITS, constraints__max_gpus=4, constraints__max_time_s=100.0))
    both = r"no single constraint suffices to be loosened; .* has max_gpus 8, max_time_s 0\.\d+\. Loosen these"
    with pytest.raises(InputError, match=both):
        jc.sweep(tables(**SPLITS, constraints__max_gpus=4, constraints__max_time_s=0.9 * fastest))


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        ("max_time_s", 1e-3),
        ("max_run_time_s", 1.0),
        ("max_energy_j", 1.0),
        ("max_run_money", 1e-3),
        ("max_run_carbon_kg", 1e-3),
        ("max_power_w", 500.0),
        ("max_node_power_w", 2000.0),
        ("max_site_power_w", 2000.0),
        ("min_memory_margin", 0.99),
    ],
)
def test_the_nearest_feasible_value_is_feasible(tables, key, asked):
    """Given as the constraint it lets a simulated plan pass, limits on peak power too."""
    space = {PP: [1, 2], MICRO: [1, 2], "workload__training_tokens": 1e9, "objective__top": 2}
    with pytest.raises(InputError, match=f"tightest is {key}") as error:
        jc.sweep(tables(**space, **{f"constraints__{key}": asked}))
    feasible = float(error.value.message.rpartition(" ")[2])
    found = jc.sweep(tables(**space, **{f"constraints__{key}": feasible}))
    assert found.best[0]["source"] == "simulated"
    little = 0.98 if key.startswith("max") else 1.01
    with pytest.raises(InputError, match=f"tightest is {key}"):
        jc.sweep(tables(**space, **{f"constraints__{key}": little * feasible}))


def test_a_front_under_a_limit_of_peak_power_reaches_its_ends(tables):
    """Plans whose mean keeps to the limit and whose peak does not leave the front, and others come in their place."""
    space = {TP: [1, 2, 4], "power__power_limit_w": [400, 500, 600, 700], "objective__minimise": ["time", "energy"]}
    open_ = jc.sweep(tables(**space, objective__top=20))
    peaks = sorted(row["peak_job_power_w"] for row in open_.rows if "peak_job_power_w" in row)
    limit = peaks[len(peaks) // 2]
    held = jc.sweep(tables(**space, objective__top=4, constraints__max_site_power_w=limit))
    fastest = min(row["time_s"] for row in open_.rows if row.get("peak_job_power_w", np.inf) <= limit)
    assert all(row["peak_job_power_w"] <= limit for row in held.best)
    assert held.best[0]["time_s"] <= 1.03 * fastest


def test_counts_of_plans_whose_peaks_are_not_known_say_so(tables):
    """Of those that keep to a limit by their mean some do not by their peak; simulated, none is in doubt."""
    space = {TP: [1, 2, 4], "power__power_limit_w": [400, 500, 600, 700]}
    limit = sorted(row["peak_job_power_w"] for row in jc.sweep(tables(**space, objective__top=20)).rows)[6]
    said = "counted by their mean power: of peaks, fewer may keep to max_site_power_w"
    few, all_ = (jc.sweep(tables(**space, objective__top=top, constraints__max_site_power_w=limit)) for top in (1, 20))
    assert few.within >= all_.within == 7
    assert said in " ".join(few.to_dict()["notes"])
    assert said not in " ".join(all_.to_dict()["notes"])
    assert said not in " ".join(jc.sweep(tables(**space, objective__top=1)).to_dict()["notes"])


def test_a_front_under_a_limit_does_not_lose_its_fast_end_to_slower_gpus(tables):
    """A100s that keep to the limit do not take the places of H200s whose peaks do not: others of these are tried."""
    space = {
        "cluster__gpu": ["h200-sxm", "a100-sxm-80gb"],
        "objective__minimise": ["time", "energy"],
        TP: [1, 2, 4],
        PP: [1, 2],
        "power__power_limit_w": [285, 320, 340, 360, 380, 400],
    }
    rows = jc.sweep(tables(**space, objective__top=72)).rows
    peaks = sorted(row["peak_job_power_w"] for row in rows if row["cluster.gpu"] == "h200-sxm")
    tight, limit = 0.995 * peaks[6], peaks[20]
    fastest = min(row["time_s"] for row in rows if row["peak_job_power_w"] <= limit)
    held = jc.sweep(tables(**space, objective__top=2, constraints__max_site_power_w=limit))
    assert held.simulated < 10
    assert held.best[0]["time_s"] <= 1.05 * fastest  # the closed form is trusted to 4 %
    cut = jc.sweep(tables(**space, objective__top=1, constraints__max_site_power_w=tight))
    said = f"of {cut.untried} plans that may be better"
    assert cut.untried and any(said in note for note in cut.to_dict()["notes"])


def test_a_list_that_is_one_value_of_a_plan_is_no_axis(tables):
    modules = {"schedule__recompute": "selective", "implementation__framework": "megatron"}
    one = space_from_dict(tables(**modules, schedule__recompute_modules=["mlp", "core_attn"]))
    assert "schedule.recompute_modules" not in one.keys
    two = space_from_dict(tables(**modules, schedule__recompute_modules=[["mlp"], ["core_attn"]]))
    assert two.values("schedule.recompute_modules") == (["mlp"], ["core_attn"])


def test_constraints_on_the_run_need_its_tokens(tables):
    with pytest.raises(InputError, match=r"max_run_time_s.*needs workload.training_tokens"):
        jc.sweep(tables(**SPLITS, constraints__max_run_time_s=1e6))
    found = jc.sweep(tables(**SPLITS, workload__training_tokens=1e9, constraints__max_run_money=1e6))
    row = found.best[0]
    assert row["run_time_s"] == pytest.approx(row["time_s"] * 1e9 / row["tokens"])


def test_each_gpu_has_its_own_rent(tables):
    rents = {"h200-sxm": 3.0, "h100-sxm": 2.0}
    found = jc.sweep(tables(cluster__gpu=list(rents), site__gpu_price_per_hour=rents))
    assert {row["cluster.gpu"] for row in found.rows} == set(rents)
    for row in found.rows:
        hours = 8 * row["time_s"] / 3600.0
        assert row["money"] == pytest.approx(hours * rents[row["cluster.gpu"]])


@pytest.mark.parametrize("goal", [{"objective__minimise": "money"}, {"constraints__max_money": 1.0}])
def test_amounts_in_several_currencies_are_not_held_against_each_other(tables, goal):
    site = {"site__currency": ["USD", "EUR"], "site__gpu_price_per_hour": 3.0}
    with pytest.raises(InputError, match="plans pay in EUR and USD"):
        jc.sweep(tables(**site, **goal))
    assert len(jc.sweep(tables(**site)).rows) == 2
    assert jc.sweep(tables(**site | {"site__currency": ["EUR"]}, **goal)).best[0]["currency"] == "EUR"


def test_rack_and_site_power(tables):
    racks = {"site__nodes_per_rack": 2, "cluster__gpus": 32, "workload__global_batch_size": 64}
    open_ = jc.sweep(tables(**SPLITS, **racks)).best[0]
    assert open_["rack_power_w"] == pytest.approx(2 * open_["node_power_w"])
    assert open_["rack_power_w"] < open_["facility_power_w"]
    limit = 0.97 * open_["rack_power_w"]
    found = jc.sweep(tables(**SPLITS, **racks, constraints__max_rack_power_w=limit))
    assert all(row["rack_power_w"] <= limit for row in found.best)
    with pytest.raises(InputError, match=r"needs site.nodes_per_rack"):
        jc.sweep(tables(**SPLITS, constraints__max_rack_power_w=limit))


@pytest.mark.parametrize(
    ("goals", "lacks"),
    [
        (
            {"constraints__max_run_money": 1e6, "workload__training_tokens": 1e9},
            "node type that is known for h100-pcie:",
        ),
        ({"constraints__max_rack_power_w": 1e6, "site__nodes_per_rack": 4}, "node type that is known for h100-pcie:"),
        ({"objective__minimise": "money"}, "node type that is known for h100-pcie:"),
        ({"constraints__max_run_money": 1e6}, "workload.training_tokens"),
    ],
)
def test_what_is_not_forecast_names_what_is_missing(tables, goals, lacks):
    """Also which of several GPUs has no node type."""
    with pytest.raises(InputError, match=f"It needs (a )?{lacks}"):
        jc.sweep(tables(**goals, cluster__gpu=["h200-sxm", "h100-pcie"]))


def test_nothing_fits_memory(tables):
    space = tables(**SPLITS, workload__model="llama-3.1-405b", workload__global_batch_size=16)
    plans = plans_of(space_from_dict(space))
    least = min(max(footprint_of(plan, rank).total_bytes for rank in range(plan.pp)) for plan in plans)
    with pytest.raises(InputError, match=r"none of .* fits a GPU's memory; the nearest needs (.*) GB") as error:
        jc.sweep(space)
    assert f"needs {least / 1e9:.1f} GB a GPU" in str(error.value)
    nearest = min(plans_of(space_from_dict(space)), key=lambda plan: fullest_of(plan).total_bytes)
    with pytest.raises(DoesNotFitError) as alone:
        forecast(nearest)
    assert error.value.remedy == alone.value.remedy  # a sweep says what a forecast of the plan does
    said = alone.value.message.removeprefix("the plan needs ")
    assert said.partition(" GB more")[2] == error.value.message.partition(" GB more")[2]


def test_what_does_not_fit_is_left_out_and_counted(tables):
    splits = {TP: [4, 8], MICRO: [1, 4], "schedule__recompute": ["none", "full"]}
    found = jc.sweep(tables(**splits, workload__model="qwen3-32b", parallelism__distributed_optimizer=True))
    assert 0 < found.fitting < found.legal
    for row in found.rows:
        assert row["memory_bytes"] <= 150754820096


def test_memory_of_a_row_is_that_which_a_forecast_says(tables):
    """It was all that a GPU holds, 1.3 GB of context and more, where a forecast has what the framework allocates."""
    found = jc.sweep(tables(**{PP: [1, 2]}, objective__top=1))
    capacity = load_gpu("h200-sxm").number("memory_bytes")
    assert {row["source"] for row in found.rows} == {"closed-form", "simulated"}
    for row, plan in zip(found.rows, plans_of(space_from_dict(tables(**{PP: [1, 2]}))), strict=True):
        ranks = forecast(plan).ranks
        assert row["memory_bytes"] == max(rank.memory_bytes for rank in ranks)
        left = min(rank.memory_margin_bytes for rank in ranks)
        assert row["memory_margin"] == pytest.approx(left / capacity, rel=1e-12)


def test_memory_is_that_of_the_fullest_rank(tables):
    names = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"]
    split = {PP: [2, 4, 8], VP: [1, 2]}
    for plan in plans_of(space_from_dict(tables(**split, schedule__name=names, schedule__recompute=["full"]))):
        each = [footprint_of(plan, rank).total_bytes for rank in range(plan.pp)]
        assert fullest_of(plan).total_bytes == max(each)
        for enough in each:  # what is above it is told, by the first rank or by a later one
            assert (fullest_of(plan, enough).total_bytes > enough) == (max(each) > enough)


def test_interleaved_plans_are_swept(tables):
    found = jc.sweep(tables(**{PP: [2, 4], VP: [1, 2, 4]}, schedule__name=["1f1b", "interleaved-1f1b"]))
    names = {row["schedule.name"] for row in found.rows}
    assert names == {"1f1b", "interleaved-1f1b"}


def test_folded_pipelines_are_offered_once(tables):
    """Their two chunks on a rank are no choice: with virtual stages left open or written, they are one plan."""
    for virtual in (1, 2, [1, 2]):
        space = tables(**{PP: [1, 2, 4], VP: virtual}, schedule__name=["1f1b", "zb-v"])
        folded = [row["plan"] for row in jc.sweep(space).rows if row["schedule.name"] == "zb-v"]
        assert len(set(folded)) == len(folded) == 2


@pytest.mark.parametrize(
    ("batch", "fitting"),
    [
        (16, {(name, pp) for name in ("dualpipe", "dualpipe-v") for pp in (2, 4, 8)}),
        (18, {("dualpipe", 8), ("dualpipe-v", 8), ("dualpipe-v", 4)}),
        (17, {("dualpipe-v", 8)}),
    ],
)
def test_pairs_are_offered_where_their_numbers_fit(tables, batch, fitting):
    """Two micro-batches for each rank, and even numbers of both where there are two ways."""
    names = {PP: [1, 2, 4, 8], "schedule__name": ["dualpipe", "dualpipe-v"], "cluster__gpus": 8}
    rows = jc.sweep(tables(**names, workload__global_batch_size=batch)).rows
    assert {(row["schedule.name"], row["parallelism.pipeline_model_parallel_size"]) for row in rows} == fitting


def test_a_file_that_changed_between_two_sweeps_is_read_again(tables, tmp_path):
    whole = (resources.files("joulecast.model") / "catalogue_data" / "gpus" / "h100-sxm.toml").read_text()
    file, node = tmp_path / "card.toml", tmp_path / "node.toml"
    node.write_text((resources.files("joulecast.model") / "catalogue_data" / "nodes" / "hgx-h100.toml").read_text())
    space = tables(**SPLITS, objective__top=0, cluster__gpu=str(file), cluster__node=str(node))
    found = []
    for number in ("3.35e12", "1.5e12"):
        file.write_text(whole.replace("value = 3.35e12", f"value = {number}", 1))
        found.append(jc.sweep(space).rows)
    assert found[1][0]["time_s"] > 1.1 * found[0][0]["time_s"]
    node.write_text(re.sub(r"(?m)^other_power_w = \{value = [\d.]+", "other_power_w = {value = 5000", node.read_text()))
    (first, *_) = jc.sweep(space).rows
    assert first["facility_energy_j"] > 1.05 * found[1][0]["facility_energy_j"]
