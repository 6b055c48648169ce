"""Comparing plans: what differs, why, and shares that add up."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import command
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import EXAMPLES
from row_files import csv_text

import joulecast as jc
from joulecast.command_line.compare_lines import key_lines, result_lines
from joulecast.errors import DoesNotFitError, InputError
from joulecast.plan.comparison.compare import Comparison, compare, differing_keys, names_of
from joulecast.plan.comparison.ledgers import difference_of, time_by_part_s
from joulecast.plan.comparison.reasons import reasons
from joulecast.reports.pages.compare import figures
from joulecast.simulator.iteration.nearest_fit import forecast_or_nearest
from joulecast.simulator.plan_file.plan import Plan, load_plan, plan_from_dict

SMALL = EXAMPLES / "llama-3.1-8b-4xh200.toml"
DDP, GPT = EXAMPLES / "llama-3.2-3b-4xh200-ddp.toml", EXAMPLES / "gpt3-175b-64xa100.toml"


def test_whole_runs_are_compared_as_predict_says_them() -> None:
    said = ["workload.training_tokens=1e12"]
    plans = [load_plan(EXAMPLES / f"llama-3.1-8b-4xh200{name}.toml", said) for name in ("", "-nanobatches")]
    found = jc.compare(plans)
    runs = [jc.predict(plan).site.to_dict()["run"] for plan in plans]
    for key in ("time_s", "energy_j", "money", "carbon_kg"):
        assert found.results[f"run_{key}"] == pytest.approx([run[key] for run in runs])
    line = next(line for line in result_lines(found) if line[""] == "whole run [days]")
    assert line[found.names[0]] == pytest.approx(runs[0]["time_s"] / 86400)


def test_keys_are_shown_as_a_plan_has_them() -> None:
    """Switches in lower case, lists with quotes, as TOML does."""
    plans = [load_plan(SMALL, said) for said in ((), ("implementation.rotary=true", "power.clock_mhz=[1500, 1605]"))]
    lines = {line["key"]: line for line in key_lines(jc.compare(plans))}
    assert list(lines["implementation.rotary"].values())[1:] == ["false", "true"]
    assert list(lines["power.clock_mhz"].values())[1:] == ["-", "[1500.0, 1605.0]"]


@pytest.fixture(scope="module")
def three() -> Comparison:
    return jc.compare([SMALL, str(DDP), load_plan(GPT)])


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return command.run(capsys, "compare", *arguments)


def test_a_comparison_is_shown_in_a_line_for_each_plan(three: Comparison) -> None:
    head, first, *_ = lines = repr(three).splitlines()
    assert head.startswith("Comparison(") and len(lines) == 4 and len(repr(three)) < 300
    assert first.startswith(f"  {three.names[0]}: ") and first.endswith(" J")


def test_iterations_may_stand_in_sets() -> None:
    assert len({jc.predict(SMALL), jc.predict(SMALL)}) == 1


def test_differences_and_shares_add_up(three: Comparison) -> None:
    items: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in three.rows():
        items[row["plan"], row["quantity"], row["split"]].append(row)
    assert len(items) == 2 * 6
    for (plan, quantity, _), (*parts, total) in items.items():
        assert total["item"] == "total"
        assert sum(part["difference"] for part in parts) == pytest.approx(total["difference"], rel=1e-12)
        assert sum(part["share"] for part in parts) == pytest.approx(1.0, abs=1e-12)
        results = dict(zip(three.names, three.results[quantity], strict=True))
        assert total["reference"] == pytest.approx(results[three.names[0]], rel=1e-9)
        assert total["other"] == pytest.approx(results[plan], rel=1e-9)


def test_amounts_are_for_the_references_tokens(three: Comparison) -> None:
    one, other = jc.predict(SMALL), jc.predict(GPT)
    scale = one.tokens / other.tokens
    assert three.results["time_s"][2] == pytest.approx(other.time_s * scale)
    assert three.results["energy_j"][2] == pytest.approx(other.energy_j * scale)
    assert three.results["power_w"][2] == pytest.approx(other.power_w)
    for end in ("time_s_p05", "time_s_p95", "energy_j_p05", "energy_j_p95"):
        assert three.results[end][2] == pytest.approx(getattr(other, end) * scale)
    assert any(str(one.tokens) in note for note in three.notes)
    assert any("different models" in note for note in three.notes)


def test_a_plan_does_not_differ_from_itself() -> None:
    iteration = jc.predict(SMALL)
    same = compare([iteration, iteration], ["one", "two"])
    assert not same.keys
    assert not same.notes
    for row in same.rows():
        assert row["difference"] == 0.0
        assert row["share"] is None


def test_what_follows_from_other_keys_is_no_difference() -> None:
    """Nor is over how many ranks parameters would be sharded, where no plan shards them."""
    fsdp = ["implementation.framework=megatron", "parallelism.fsdp=true"]
    rest = ["cluster.gpus=8", "workload.global_batch_size=16", "implementation.rotary=true"]
    found = differing_keys([load_plan(SMALL), load_plan(SMALL, rest)])
    assert "implementation.rotary" in found and "cluster.gpus" in found
    assert not [key for key in found if key.startswith("workload.model") or "fsdp" in key]
    flat = [*fsdp, "parallelism.pipeline_model_parallel_size=1"]
    sharded = differing_keys([load_plan(SMALL, flat), load_plan(SMALL, [*flat, *rest])])
    assert sharded["parallelism.fsdp_shard_size"] == (2, 4)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e6), min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e6), min_size=1),
)
def test_any_two_ledgers_add_up(reference: dict[str, float], other: dict[str, float]) -> None:
    found = difference_of(("energy_j", "component"), reference, other)
    assert {item.name for item in found.items} == {*reference, *other}
    size = max(found.reference, found.other)
    assert sum(item.difference for item in found.items) == pytest.approx(found.difference, abs=1e-9 * size)
    shares = [item.share for item in found.items]
    if found.differs:
        slack = 1e-12 * size / abs(found.difference)
        assert sum(share for share in shares if share is not None) == pytest.approx(1.0, abs=1e-9 + slack)
    else:
        assert set(shares) == {None}


def test_a_lower_clock_costs_time_in_compute_and_saves_dynamic_energy() -> None:
    plans = [load_plan(SMALL, [f"power.clock_mhz={clock}"]) for clock in (1305, 1110)]
    found = compare([jc.predict(plan) for plan in plans], names_of([None, None]))
    assert found.keys == {"power.clock_mhz": (1305.0, 1110.0)}
    share = {(r["quantity"], r["item"]): r["share"] for r in found.rows() if r["split"] != "instruction"}
    change = {(r["quantity"], r["item"]): r["difference"] for r in found.rows() if r["split"] != "instruction"}
    assert share["time_s", "compute"] > 0.6
    assert change["energy_j", "tensor"] < 0 < change["energy_j", "static"]


def test_reasons_say_what_the_ledgers_say(three: Comparison) -> None:
    ddp = three.against[0]
    time, energy = ddp.ledgers[0], ddp.ledgers[1]
    largest = max(energy.items, key=lambda item: abs(item.difference))
    assert largest.name == "tensor"
    assert f"tensor cores {largest.difference:+.3g} J" in ddp.reasons[1]
    assert "compute -" in ddp.reasons[0]
    assert f"{-100 * time.difference / time.reference:.3g} % less time" in ddp.reasons[0]
    assert "64 instead of 4 GPUs" in three.against[1].reasons
    iteration = jc.predict(SMALL)
    assert compare([iteration, iteration], ["one", "two"]).against[0].reasons == ()


def test_a_reason_names_the_three_largest_changes_of_a_tenth_or_more() -> None:
    one, slower = jc.predict(SMALL), jc.predict(SMALL, ["power.clock_mhz=1500"])
    key, names = ("energy_j", "component"), ("hbm", "tensor", "vector", "link", "static")
    before = dict.fromkeys(names, 100.0)

    def said(*changes: float) -> str:
        after = {name: 100.0 + change for name, change in zip(names, changes, strict=True)}
        return reasons({key: difference_of(key, before, after)}, one, slower)[0]

    assert (
        said(15, -32, 38, 12, 3) == "7.2 % more energy of the GPUs: vector units +38 J, tensor cores -32 J, HBM +15 J"
    )
    assert said(0, 11, -80, 0, -9) == "15.6 % less energy of the GPUs: vector units -80 J, tensor cores +11 J"
    assert f"SM clock 1500 instead of {one.clock_mhz:.0f} MHz" in compare([one, slower], ["a", "b"]).against[0].reasons


def test_rent_is_not_called_hardware() -> None:
    bought, rented = (jc.predict(load_plan(SMALL, rent)) for rent in ([], ["site.gpu_price_per_hour=3.2"]))
    found = compare([bought, rented], ["bought", "rented"])
    items = {row["item"]: row for row in found.rows() if row["quantity"] == "money"}
    assert list(items) == ["electricity", "hardware", "rent", "total"]
    paid = 4 * 3.2 * rented.time_s / 3600
    assert items["rent"]["difference"] == items["total"]["other"] == pytest.approx(paid)
    assert items["hardware"]["difference"] < 0 > items["electricity"]["difference"]
    assert any("more money: rent +" in reason for reason in found.against[0].reasons)


def test_hardware_and_cost_alone() -> None:
    plans = [load_plan(SMALL), load_plan(SMALL, ["site.carbon_intensity_kg_per_kwh=0.02", "site.pue=1.1"])]
    found = compare([jc.predict(plan) for plan in plans], ["grid", "hydro"])
    assert sorted(found.keys) == ["site.carbon_intensity_kg_per_kwh", "site.pue"]
    change = {(r["quantity"], r["item"]): r["difference"] for r in found.rows()}
    assert change["energy_j", "total"] == 0.0
    assert change["facility_energy_j", "gpu"] == 0.0
    assert change["facility_energy_j", "cooling and distribution"] < 0
    assert change["carbon_kg", "electricity"] < 0 == change["carbon_kg", "hardware"]


def test_derived_parts_of_a_plan_are_left_out() -> None:
    keys = differing_keys([load_plan(SMALL), load_plan(GPT)])
    assert {"workload.model", "cluster.gpu", "schedule.recompute"} <= set(keys)
    assert not any(key.startswith(("workload.model.", "cluster.links", "file")) for key in keys)
    inline = differing_keys([load_plan(SMALL), load_plan(SMALL, ["implementation.rotary=true"])])
    assert inline["implementation.rotary"] == (False, True)


WRITTEN: list[tuple[dict[str, Any], tuple[Any, Any]]] = [
    ({"workload.fp8_recipe": "tensorwise"}, ("blockwise", "tensorwise")),
    ({"workload.fp8_param_gather": True}, (False, True)),
    ({"workload.moe_load_imbalance": 1.3}, (1.1, 1.3)),
    ({"workload.num_layers_at_start_in_bf16": 2}, (0, 2)),
    ({"workload.num_layers_at_end_in_bf16": 3}, (0, 3)),
    ({"workload.moe_expert_capacity_factor": 1.1, "workload.moe_load_imbalance": None}, (None, 1.1)),
    ({"overlap.grad_bucket_mb": 50.0}, (152.587890625, 50.0)),
    ({"power.clock_mhz": {"forward": 1410}}, (None, {"forward": 1410.0})),
    ({"power.clock_mhz": [1410, 1500]}, (None, [1410.0, 1500.0])),
    ({"power.component_limits_w": {"compute": 400}}, (None, {"compute": 400.0})),
    ({"network.nic_gbit_per_s": 200.0}, (400.0, 200.0)),
    ({"network.step_latency_us": 20.0}, (7.3, 20.0)),
    ({"network.oversubscription": 2.0}, (1.0, 2.0)),
    ({"network.name": "roce-400g"}, (None, "roce-400g")),
    ({"network.rails": 2}, (8, 2)),
    ({"implementation.fused_loss": "native"}, (False, "native")),
    ({"implementation.tie_embeddings": True}, (False, True)),
    (
        {"implementation.tiles": {"norm1": {"rows": 4, "warps": 8}}},
        (None, {"norm1": {"rows": 4, "columns": 0, "warps": 8, "staged": False}}),
    ),
    ({"schedule.recompute": "selective", "schedule.recompute_modules": ["moe"]}, ("none", "selective")),
]


@pytest.mark.parametrize(("changes", "values"), WRITTEN, ids=lambda v: next(iter(v), "") if isinstance(v, dict) else "")
def test_keys_are_those_of_the_file(changes: dict[str, Any], values: tuple[Any, Any]) -> None:
    """What a reader can set; they were those of the checked plan, such as cluster.links.nic_bytes_per_s."""
    tables: dict[str, dict[str, Any]] = {
        "workload": {"model": "qwen3-30b-a3b", "sequence_length": 4096, "global_batch_size": 64, "precision": "fp8"},
        "cluster": {"gpu": "h200-sxm", "gpus": 16},
        "parallelism": {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 4},
        "overlap": {"grad_reduce": "overlapped"},
        "implementation": {"framework": "megatron"},
    }
    tables["parallelism"] |= {"distributed_optimizer": True}
    tables["workload"] |= {"fp8_recipe": "blockwise"}
    changed = {name: dict(table) for name, table in tables.items()}
    for key, value in changes.items():
        table, _, name = key.partition(".")
        changed.setdefault(table, {})[name] = value
    found = differing_keys([plan_from_dict(tables), plan_from_dict(changed)])
    assert found[next(iter(changes))] == values
    assert set(found) == set(changes)


MUON: list[tuple[str, Any, tuple[Any, Any]]] = [
    ("muon_num_ns_steps", 6, (5, 6)),
    ("muon_nesterov", True, (False, True)),
    ("muon_tp_mode", "duplicated", ("blockwise", "duplicated")),
    ("muon_split_qkv", False, (True, False)),
    ("muon_fp32_matmul_prec", "high", ("medium", "high")),
    ("optimizer", "adamw", ("muon", "adamw")),
]


@pytest.mark.parametrize(("key", "value", "values"), MUON)
def test_keys_of_muon_are_those_of_the_file(key: str, value: Any, values: tuple[Any, Any]) -> None:
    tables: dict[str, Any] = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 4096, "global_batch_size": 64},
        "cluster": {"gpu": "h200-sxm", "gpus": 8},
        "parallelism": {"tensor_model_parallel_size": 2},
        "implementation": {"framework": "megatron", "optimizer": "muon"},
    }
    other = tables | {"implementation": tables["implementation"] | {key: value}}
    found = differing_keys([plan_from_dict(tables), plan_from_dict(other)])
    assert found == {f"implementation.{key}": values}


#: Changes of a plan, and what its file says beside them.
BESIDE: list[tuple[dict[str, Any], dict[str, tuple[Any, Any]]]] = [
    ({"cluster.gpu": "h100-sxm"}, {"network.step_latency_us": (7.3, 20.0)}),
    ({"cluster.gpus": 32}, {"network.rails": (8, 1)}),
    ({"network.name": "roce-400g"}, {"network.step_latency_us": (7.3, 20.0)}),
    ({"cluster.gpus_per_node": 4}, {"network.nvls": (False, True)}),
    ({"parallelism.pipeline_model_parallel_size": 4}, {"parallelism.stage_layers": ([8, 8], [5, 3, 4, 4])}),
    ({"implementation.optimizer": "muon"}, {"implementation.muon_num_ns_steps": (None, 6)}),
    ({"network.nics_per_node": 4}, {"network.rails": (8, 2)}),
    ({"workload.model": "llama-3.2-3b"}, {"workload.layers": (16, 20)}),
    ({"workload.model": "llama-3.2-3b"}, {"implementation.tie_embeddings": (True, False)}),
    ({"workload.model": "llama-3.2-3b"}, {"implementation.rotary": (True, False)}),
]


@pytest.mark.parametrize(("change", "beside"), BESIDE)
def test_what_a_file_says_is_named_beside_what_else_decides_it(
    change: dict[str, Any], beside: dict[str, tuple[Any, Any]]
) -> None:
    """A slower network was not named where the GPUs differed too, as their number and kind decide its usual speed."""
    tables: dict[str, dict[str, Any]] = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 64},
        "cluster": {"gpu": "h200-sxm", "gpus": 16},
        "parallelism": {"pipeline_model_parallel_size": 2},
        "implementation": {"framework": "megatron"},
    }

    def found(changes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        changed = {name: dict(table) for name, table in tables.items()}
        for key, value in changes.items():
            table, _, name = key.partition(".")
            changed.setdefault(table, {})[name] = value
        return differing_keys([plan_from_dict(tables), plan_from_dict(changed)])

    said = {key: values[1] for key, values in beside.items()}
    assert set(found(change)) == set(change)
    assert found(change | said) == found(change) | beside


def test_layers_of_a_model_beside_its_plan_are_named_where_the_file_says_them(tmp_path: Path) -> None:
    shape = '"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "vocab_size": 1000'
    shape += ', "num_hidden_layers": 16, "model_type": "llama"'
    (tmp_path / "config.json").write_text(f"{{{shape}}}", encoding="utf-8")
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[workload]\nmodel = "config.json"\nlayers = 8\nsequence_length = 512\nglobal_batch_size = 8\n'
        '[cluster]\ngpu = "h200-sxm"\ngpus = 1\n'
    )
    named = differing_keys([load_plan(plan), load_plan(plan, ["workload.model=llama-3.2-1b", "workload.layers=9"])])
    assert set(named) == {"workload.model", "workload.layers"} and named["workload.layers"] == (8, 9)


def test_weights_that_are_kept_in_fp4_have_a_key_of_their_own() -> None:
    def plan(**workload: Any) -> Plan:
        usual = {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 8, "precision": "fp4"}
        where = {"cluster": {"gpu": "b200", "gpus": 1}, "implementation": {"framework": "megatron"}}
        return plan_from_dict({"workload": usual | workload, **where})

    assert differing_keys([plan(), plan(fp4_param_gather=True)]) == {"workload.fp4_param_gather": (False, True)}
    other = plan(precision="fp8", fp8_param_gather=True)
    assert differing_keys([plan(), other]) == {
        "workload.precision": ("fp4", "fp8"),
        "workload.fp8_recipe": (None, "delayed"),
        "workload.fp8_param_gather": (False, True),
    }


def test_how_log_probabilities_are_made_is_said_in_words_of_the_file() -> None:
    tables: dict[str, Any] = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 8},
        "cluster": {"gpu": "h200-sxm", "gpus": 1},
        "implementation": {"modules": "transformers"},
    }
    objectives = ("next-token", "dpo", "reward")
    plans = [plan_from_dict(tables | {"workload": tables["workload"] | {"objective": one}}) for one in objectives]
    assert differing_keys(plans)["implementation.log_probabilities"] == ("whole", "chunked", None)


def test_a_teacher_is_named_and_not_measured() -> None:
    tables: dict[str, Any] = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 8},
        "cluster": {"gpu": "h200-sxm", "gpus": 1},
        "implementation": {"modules": "transformers"},
    }
    plans = [
        plan_from_dict(tables | {"workload": tables["workload"] | {"objective": "distillation", "teacher": teacher}})
        for teacher in ("llama-3.1-8b", "llama-3.2-3b")
    ]
    assert differing_keys(plans) == {"workload.teacher": ("llama-3.1-8b", "llama-3.2-3b")}


def test_keys_of_images_and_completions_are_those_of_the_file() -> None:
    """A tower that is frozen, a side in the patches that its model has, and what an engine waits in its unit."""
    usual: dict[str, Any] = {
        "workload": {"model": "qwen2.5-vl-3b", "sequence_length": 4096, "global_batch_size": 4, "images": {}},
        "cluster": {"gpu": "h100-sxm", "gpus": 1},
        "implementation": {"modules": "transformers", "attention_backend": "cudnn"},
    }

    def plan(host_launch_us: float | None = None, **workload: Any) -> Plan:
        host = {} if host_launch_us is None else {"host_launch_us": host_launch_us}
        implementation = {**usual["implementation"], **host}
        return plan_from_dict({**usual, "workload": usual["workload"] | workload, "implementation": implementation})

    images = {"images": {"freeze_vision_tower": True, "height": 448}}
    assert differing_keys([plan(), plan(40.0, **images)]) == {
        "implementation.host_launch_us": (None, 40.0),
        "workload.images.freeze_vision_tower": (False, True),
        "workload.images.height": ("54 patches", "32 patches"),
    }
    texts = {"model": "qwen2.5-3b", "images": None, "objective": "grpo", "completion_tokens": 1024}
    waits = [plan(**texts, rollout={"num_generations": 4, **own}) for own in ({}, {"step_overhead_us": 900})]
    assert differing_keys(waits) == {"workload.rollout.step_overhead_us": (None, 900.0)}


def test_a_missing_node_type_is_noted() -> None:
    bare = ["workload.model=llama-3.2-1b", "workload.layers=2"]
    plans = [load_plan(SMALL, bare), load_plan(SMALL, [*bare, "cluster.gpu=rtx-4090"])]
    found = compare([jc.predict(plan) for plan in plans], ["a", "b"])
    assert found.results["money"][1] is None
    assert {row["quantity"] for row in found.rows()} == {"time_s", "energy_j"}
    assert "no node type" in found.notes[0]


def test_models_of_other_sizes_under_one_name_are_noted() -> None:
    two, four = (jc.predict(SMALL, [f"workload.layers={layers}"]) for layers in (2, 4))
    assert any("different models" in note for note in compare([two, four], ["a", "b"]).notes)
    assert not any("different models" in note for note in compare([two, two], ["a", "b"]).notes)


def test_other_currencies_are_noted() -> None:
    own = ["site.currency=EUR", "site.electricity_price_per_kwh=0.2", "site.hardware_price_per_gpu=25000"]
    found = compare([jc.predict(SMALL), jc.predict(SMALL, own)], ["a", "b"])
    assert any("EUR and USD" in note for note in found.notes)


def test_the_command_prints_a_table_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run(capsys, SMALL, DDP)
    assert status == 0
    for part in ("Keys of the plans that differ", "overlap.grad_reduce", "exposed communication", "share [%]"):
        assert part in text
    assert "llama-3.2-3b-4xh200-ddp against llama-3.1-8b-4xh200" in text
    status, text, _ = run(capsys, SMALL, DDP, GPT, "--json")
    report = json.loads(text)
    assert report["reference"] == SMALL.stem
    assert report["plans"] == [SMALL.stem, DDP.stem, GPT.stem]
    assert report["keys"]["cluster.gpus"] == {SMALL.stem: 4, DDP.stem: 4, GPT.stem: 64}
    status, text, _ = run(capsys, SMALL, DDP, "--csv")
    rows = csv_text(text)
    assert {row["quantity"] for row in rows} == {"time_s", "energy_j", "facility_energy_j", "money", "carbon_kg"}


def test_the_report_shows_every_ledger(three: Comparison, tmp_path: Path) -> None:
    from joulecast.reports.pages.compare import compare_page

    page = compare_page(three)
    drawn = [chart for section in page.sections for chart in section.charts]
    charts = [chart for chart in drawn if chart.name.startswith("differences")]
    assert [chart.name for chart in charts] == ["differences0", "differences1"]
    for chart, one in zip(charts, three.against, strict=True):
        for view, ledger in zip(chart.views, one.ledgers, strict=True):
            *parts, whole = view.data
            added = sum(sum(trace["x"]) for trace in parts)
            assert added == pytest.approx(whole["x"][0], rel=1e-3, abs=1e-3 * max(map(abs, parts[0]["x"])))
            assert len(whole["x"]) == 1
            assert len(ledger.items) >= 2
    assert "least time" in page.answer and f"less than {three.names[0]}" in page.answer
    assert "different models" in page.more
    text = page.html()
    for gpu in {"h200-sxm", "a100-sxm-80gb"}:
        assert f"Where the numbers of {gpu} come from" in text
    assert three.currency == "USD" and "money [USD]" in text
    page.write(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_head_of_the_report_says_where_the_reference_is_best(three: Comparison) -> None:
    alone, same = jc.compare([SMALL, DDP]), jc.compare([SMALL, SMALL])
    assert [(one.text, one.note) for one in figures(same)] == [("the same", "")] * 5
    time = alone.results["time_s"]
    assert figures(alone)[0].text == f"{100 * (time[1] / time[0] - 1):+.1f} %".replace("-", "−")
    best = min(zip(three.results["time_s"], three.names, strict=True))
    first = dataclasses.replace(
        three,
        names=(best[1], *(name for name in three.names if name != best[1])),
        results={key: tuple(sorted(values)) for key, values in three.results.items() if None not in values},
    )
    assert {(one.text, one.note) for one in figures(first)} == {("least", f"{best[1]}, the reference")}
    last = dataclasses.replace(first, results={key: values[::-1] for key, values in first.results.items()})
    assert all(one.text.startswith("−") and one.note == f"least: {last.names[-1]}" for one in figures(last))


def test_overrides_reach_every_plan(capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, SMALL, SMALL, "--set", "site.pue=1", "--json")
    report = json.loads(text)
    assert report["plans"] == [f"{SMALL} (1)", f"{SMALL} (2)"]
    assert not report["keys"]
    parts = {row["item"]: row["other"] for row in report["differences"] if row["quantity"] == "facility_energy_j"}
    assert parts["cooling and distribution"] == pytest.approx(0.0, abs=1e-9)


def test_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = run(capsys, SMALL)
    assert status == 2
    assert "two plans" in err
    status, _, err = run(capsys, SMALL, tmp_path / "none.toml")
    assert (status, "no such file" in err) == (2, True)
    with pytest.raises(DoesNotFitError, match=GPT.name):
        jc.compare([SMALL, load_plan(GPT, ["schedule.recompute=none", "workload.micro_batch_size=8"])])
    with pytest.raises(InputError, match="name of its own"):
        compare([jc.predict(SMALL)] * 2, ["same", "same"])


def test_a_plan_that_does_not_fit_is_answered_with_the_nearest_that_does(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_text(
        '[workload]\nmodel = "llama-3.1-8b"\nsequence_length = 2048\nglobal_batch_size = 8\n'
        '[cluster]\ngpu = "a100-sxm-40gb"\ngpus = 4\n'
    )
    with pytest.raises(DoesNotFitError) as alone:
        forecast_or_nearest(lambda more: load_plan(large, more))
    with pytest.raises(DoesNotFitError) as beside:
        jc.compare([SMALL, large])
    assert "The nearest plan that fits: --set parallelism.fsdp=true, which takes" in str(alone.value)
    # --set would change the other plan too.
    assert "The nearest plan that fits has in its file: parallelism.fsdp=true, which takes" in str(beside.value)
    assert (beside.value.file, "--set" in str(beside.value)) == (str(large), False)


def test_ends_of_intervals_are_not_compared():
    found = jc.compare([SMALL, SMALL], ["power.clock_mhz=1200"])
    lines = {line[""]: line for line in result_lines(found)}
    name = found.names[1]
    assert lines["time [s]"][f"{name} [%]"] == 0.0
    assert lines["time, 95 % [s]"][name] > lines["time [s]"][name]
    assert lines["time, 95 % [s]"][f"{name} [%]"] is None


def test_time_is_that_of_the_mean_gpu() -> None:
    """Each stage of the pipeline has as many GPUs, so that its mean is the stages'."""
    iteration = jc.predict(SMALL)
    parts, ranks = time_by_part_s(iteration), iteration.ranks
    assert len(ranks) > 1 and sum(parts.values()) == pytest.approx(iteration.time_s)
    assert parts["compute"] == pytest.approx(sum(rank.compute_s for rank in ranks) / len(ranks))
    beside = parts["exposed communication"] + parts["waiting for the slowest"]
    assert beside == pytest.approx(sum(rank.exposed_communication_s for rank in ranks) / len(ranks))


def test_intervals_are_compared_for_as_many_tokens() -> None:
    """Twice the batch takes twice as long: for the same tokens neither card is surely faster."""
    small = ["workload.model=llama-3.2-1b", "workload.layers=2"]
    twice = ["cluster.gpu=h100-sxm", "workload.global_batch_size=16"]
    found = compare([jc.predict(SMALL, small), jc.predict(SMALL, [*small, *twice])], ["h200", "h100"])
    assert any(note.startswith("the 90 % intervals of h100 and h200 overlap in time") for note in found.notes)


def test_what_a_lower_limit_saves_is_noted_to_be_no_measured_fact() -> None:
    found = jc.compare([load_plan(SMALL, [f"power.power_limit_w={limit}"]) for limit in ("700", "[700, 500]")])
    assert [note.partition(" save is no measured fact")[0] for note in found.notes] == [
        "what limits below h200-sxm's default of 700 W"
    ]


def test_what_the_intervals_do_not_tell_apart_is_noted() -> None:
    """H100 and H200 take about as long; an A100 takes longer beyond doubt. On one GPU the errors are common."""
    small = ["workload.model=llama-3.2-1b", "workload.layers=2"]
    gpus = ["cluster.gpu=h200-sxm", "cluster.gpu=h100-sxm", "cluster.gpu=a100-sxm-80gb", "power.power_limit_w=690"]
    found = compare([jc.predict(SMALL, [*small, gpu]) for gpu in gpus], ["h200", "h100", "a100", "less power"])
    said = [note for note in found.notes if "overlap" in note]
    assert len(said) == 1 or "a100 and h200 overlap in energy," in said[1]
    assert said[0].startswith("the 90 % intervals of h100 and h200 overlap in time and energy")
    assert not any("less power" in note for note in said)
