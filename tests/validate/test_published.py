"""``validate published``: reading the rows, their plans, the trivial rule and the order of variants."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from published_lines import LINE
from row_files import csv_rows, write_csv

from joulecast.arrays import Bool
from joulecast.calibrate.published import separate_factors, shipped
from joulecast.calibrate.published.fit import Fitted, Linearised
from joulecast.calibrate.published.generations import generation_of
from joulecast.calibrate.published.left_out import (
    Refitted,
    StepTime,
    by_gpu,
    by_source,
    left_out,
    log_measured,
    may_be_fitted,
    unseen_spread,
)
from joulecast.calibrate.published.plans import PlannedRow, plan_row, stage_layers
from joulecast.calibrate.published.rows import PublishedRow, read_published
from joulecast.calibrate.published.shipped import separate_toml, training_toml
from joulecast.errors import DataError, InputError
from joulecast.model.hardware.description_file import parse_training
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan
from joulecast.validate import run_suite
from joulecast.validate.published.order import order_of_pairs
from joulecast.validate.published.rates import constant_rate_s, executed_flops
from joulecast.validate.published.step_times import every_other
from joulecast.validate.scoring.result import SuiteResult


def row(**changes: str) -> PublishedRow:
    return PublishedRow.model_validate({**LINE, **changes})


def test_reads_file_and_folder(tmp_path: Path) -> None:
    file = write_csv(
        tmp_path / "published_iterations.csv", LINE, {**LINE, "id": "other", "vpp": "", "recompute": "unknown"}
    )
    rows = read_published(tmp_path)
    assert rows == read_published(file)
    assert (rows[0].micro_batch, rows[0].recompute, rows[0].measured_step_time_s) == (4, "full", 1.5)
    assert (rows[1].vpp, rows[1].recompute, rows[1].line) == (None, None, 3)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"hidden": "many"}, r":2 \[hidden\]: 'many'"),
        ({"hidden": ""}, r":2 \[hidden\]: empty"),
        ({"measured_step_time_s": "-1"}, r":2 \[measured_step_time_s\]"),
        ({"measured_step_time_s": "nan"}, r":2 \[measured_step_time_s\]"),
        ({"dtype": "int3"}, r":2 \[dtype\].*'bf16'"),
        ({"sequence_parallel": "perhaps"}, r":2 \[sequence_parallel\]"),
    ],
)
def test_a_broken_value_is_named_by_line_and_column(tmp_path: Path, change: dict[str, str], place: str) -> None:
    with pytest.raises(DataError, match=place):
        read_published(write_csv(tmp_path / "rows.csv", {**LINE, **change}))


def test_other_broken_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_published(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="no column hidden"):
        read_published(write_csv(tmp_path / "a.csv", {k: v for k, v in LINE.items() if k != "hidden"}))
    renamed = {("micro_bach" if k == "micro_batch" else k): v for k, v in LINE.items()}
    with pytest.raises(DataError, match="Did you mean 'micro_batch'"):
        read_published(write_csv(tmp_path / "b.csv", renamed))
    with pytest.raises(DataError, match="stands already on line 2"):
        read_published(write_csv(tmp_path / "c.csv", LINE, LINE))
    (tmp_path / "e.csv").write_text(",".join(LINE))
    with pytest.raises(DataError, match="no rows"):
        read_published(tmp_path / "e.csv")
    (tmp_path / "f.csv").write_text(",".join(LINE) + "\na,b\n")
    with pytest.raises(DataError, match=r"f\.csv:2: not as many values"):
        read_published(tmp_path / "f.csv")


def test_a_plan_says_what_it_assumes() -> None:
    stated = plan_row(row())
    assert stated.assumptions == ()
    assert (stated.plan.tp, stated.plan.microbatches, stated.plan.schedule.recompute) == (8, 1, "full")
    assert stated.plan.implementation.framework == "megatron"
    unknown = plan_row(row(recompute="", sequence_parallel="", distributed_optimizer="false"))
    assert unknown.plan.sequence_parallel
    assert unknown.plan.schedule.recompute == "none"
    assert len(unknown.assumptions) == 2


def test_rows_that_contradict_themselves_are_named() -> None:
    with pytest.raises(DataError, match="8 GPUs are not tp 8 x pp 2"):
        plan_row(row(pp="2"))
    with pytest.raises(DataError, match="'h9000' is not in the catalogue"):
        plan_row(row(gpu="h9000"))


def test_uneven_layers() -> None:
    assert stage_layers(96, 8) is None
    assert stage_layers(126, 32) == (3, *(4,) * 30, 3)
    assert sum(stage_layers(105, 8) or ()) == 105


def test_generations_follow_the_framework() -> None:
    assert generation_of(row()).name == "megatron-lm-2021"
    assert generation_of(row(source="MLPerf Training v5.0 (NVIDIA)")).overlapped
    assert generation_of(row(source="somebody's own launcher")).name == ""


@pytest.mark.parametrize(
    ("source", "recipe", "model", "kernels", "gradients"),
    [
        ("NVIDIA NeMo performance summary (docs v2.0.0)", "performance.md", "GPT-3 175B", "flash-attn-2", "bf16"),
        ("NVIDIA NeMo performance summary (docs v2.0.0)", "performance.md", "GPT-3 5B", "flash-attn-2", "fp32"),
        ("NVIDIA dgxc-benchmarking v25.02", "nemo_megatron/README_175b.md", "GPT-3 175B", "flash-attn-2", "bf16"),
        ("NVIDIA dgxc-benchmarking v25.02", "nemotron/README_340b.md", "", "flash-attn-2", "bf16"),
        ("NVIDIA dgxc-benchmarking v25.02", "llama3.1/README_8b.md", "Llama-3.1 8B", "cudnn", "fp32"),
        ("NVIDIA dgxc-benchmarking v25.02", "nemotron/README_15b.md", "", "cudnn", "fp32"),
        ("NVIDIA dgxc-benchmarking v25.05", "nemotron/README.md", "nemotron4-340b", "cudnn", "bf16"),
        ("NVIDIA Megatron-Bridge performance summary (25.09)", "NVIDIA-NeMo/Megatron-Bridge", "", "cudnn", "bf16"),
        ("MLPerf Training v4.1 (NVIDIA)", "results/eos_n32_ngc24.09_nemo/gpt3", "GPT-3 175B", "cudnn", "bf16"),
        ("MLPerf Training v5.1 (AMD)", "llama31_8b/result_0.txt", "llama3.1-8b", "cudnn", "fp32"),
        ("SimuMax B200", "", "Llama-3 70B", "cudnn", "fp32"),
    ],
)  # fmt: skip
def test_attention_and_gradients_are_what_recipes_set(
    source: str, recipe: str, model: str, kernels: str, gradients: str
) -> None:
    """NeMo 1's launcher and some recipes of its time kept cuDNN's attention away; some sum gradients in bf16."""
    one = row(source=source, source_url_or_repo_path=recipe, model=model, dtype="bf16", recompute="none")
    run = plan_row(one).plan.implementation
    assert (run.attention_backend, run.gradient_precision) == (kernels, gradients)


def test_notes_say_in_what_gradients_are_summed() -> None:
    plain, noted = (plan_row(row(dtype="bf16", notes=notes)).plan for notes in ("", "gradients in bf16"))
    assert plain.implementation.gradient_precision == "fp32"
    assert noted.implementation.gradient_precision == "bf16"


def test_the_trivial_rule_reads_only_what_it_is_given() -> None:
    one, twice = plan_row(row()), plan_row(row(id="b", global_batch="8", measured_step_time_s="2.8"))
    executed = executed_flops(one)
    assert executed is not None
    known = [(one.row, executed / 8 / 1.5)]
    assert constant_rate_s(twice, known) == pytest.approx(3.0)
    assert constant_rate_s(twice, []) is None
    elsewhere = plan_row(row(id="c", source="another"))
    assert constant_rate_s(elsewhere, known) == pytest.approx(1.5)
    assert constant_rate_s(plan_row(row(id="d", dtype="bf16")), known) is None


def test_pairs_are_ranked_by_speed() -> None:
    slow = plan_row(row(measured_step_time_s="1.5"))
    fast = plan_row(row(id="b", micro_batch="1", measured_step_time_s="1.2"))
    close = plan_row(row(id="c", micro_batch="2", measured_step_time_s="1.21"))
    repeat = plan_row(row(id="d", measured_step_time_s="2.0"))
    order = order_of_pairs([slow, fast, close], [1.4, 1.3, 1.5])
    assert (order.pairs, order.correct) == (2, 1)
    assert order.wrong == ("gpt-22b and c",)
    assert order_of_pairs([slow, repeat], [1.0, 1.0]).pairs == 0


def test_every_published_row_is_read(data: Path) -> None:
    rows = read_published(data / "published")
    assert len(rows) == 158
    assert sum(r.measured_step_time_s is None for r in rows) == 3
    assert {r.fsdp for r in rows} == {None, 8, 64}


#: Sources whose rows are forecast quickly, all of GPUs and data types that the factors know.
QUICK = ("SimuMax", "MLPerf Training v4.0", "NeMo performance summary (docs v2.1.0)", "SC'21", "Korthikanti")


@pytest.fixture(scope="module")
def quick(data: Path, tmp_path_factory: pytest.TempPathFactory) -> SuiteResult:
    """Scored rows of few sources on at most eight pipeline stages."""
    file = tmp_path_factory.mktemp("published") / "rows.csv"
    lines = csv_rows(data / "published" / "published_iterations.csv")
    few = [line for line in lines if int(line["pp"]) <= 8 and any(word in line["source"] for word in QUICK)]
    write_csv(file, *few)
    return run_suite("published", file)


def test_published_steps_are_forecast_better_than_by_a_constant_rate(quick: SuiteResult) -> None:
    every = quick.summary["all"]
    assert not quick.skipped
    assert every["time_error_percent"] < 5.0
    assert every["time_error_percent"] < every["time_baseline_percent"]
    assert every["time_inside_percent"] > 80.0


def test_megatron_lm_on_a100(quick: SuiteResult) -> None:
    errors = {row.row.name: abs(row.prediction.time_s / row.measured.time_s - 1.0) for row in quick.rows}
    sc21 = [error for name, error in errors.items() if name.startswith("sc21")]
    korthikanti = [error for name, error in errors.items() if name.startswith("korth")]
    assert np.mean(sc21) < 0.08
    assert np.mean(korthikanti) < 0.037


def test_gpt3_on_512_h100_which_calibrates_nothing(quick: SuiteResult) -> None:
    row = next(row for row in quick.rows if row.row.name == "mlperf40_smc_gpt3_512h100")
    assert row.prediction.time_s == pytest.approx(10.63, rel=0.05)
    planned = plan_row(read_published(row.row.file)[row.row.line - 2])
    assert not may_be_fitted(planned)


def test_sources_are_left_out_whole(data: Path) -> None:
    planned = [plan_row(one) for one in read_published(data / "published") if one.measured_step_time_s]
    parts = by_source(planned, len(planned))
    assert sum(part.sum() for part in parts) == len(planned)
    for part in parts:
        sources = {one.row.source for one, inside in zip(planned, part, strict=True) if inside}
        assert len(sources) == 1
    half = every_other(planned, 70)
    assert half.sum() == 70
    assert all(may_be_fitted(one) for one, chosen in zip(planned, half, strict=True) if chosen)


def test_what_is_left_out_does_not_reach_its_forecast() -> None:
    changes = [
        {"id": f"r{i}", "source": s, "measured_step_time_s": t}
        for i, (s, t) in enumerate([("NeMo a", "1.0"), ("NeMo a", "1.1"), ("NeMo b", "2.0"), ("MLPerf c", "3.0")])
    ]
    rows = [plan_row(row(**change)) for change in changes]
    slopes = np.ones((4, 1))
    model = Linearised(("generation.nemo-2024",), np.zeros(1), np.zeros(4), slopes, np.array([10.0]))
    found = left_out(rows, by_source(rows, 4), model)
    times = [step.time_s for step in found.times if step]
    assert times[0] == times[1] == pytest.approx(2.0, rel=0.01)
    assert times[2] == pytest.approx(np.sqrt(1.1), rel=0.01)
    assert found.seen[3].tolist() == [True, True, True, False]


def test_what_differs_between_sources_widens_the_interval_of_another() -> None:
    sources, each = 15, 2
    off = np.exp(np.repeat(np.random.default_rng(5).normal(0.0, 0.1, sources), each))

    def steps(times: Sequence[float]) -> list[PlannedRow]:
        return [
            plan_row(row(id=f"r{i}", source=f"NeMo {i // each}", measured_step_time_s=str(time)))
            for i, time in enumerate(times)
        ]

    model = Linearised(("host",), np.zeros(1), np.zeros(30), np.ones((30, 1)), np.array([1.0]))
    use = np.ones(30, dtype=bool)
    assert unseen_spread(steps([1.0] * 30), use, model) == pytest.approx(0.03)
    assert unseen_spread(steps(off.tolist()), use, model) == pytest.approx(0.1, rel=0.3)
    use[:each] = False
    seen = unseen_spread(steps(off.tolist()), use, model)
    assert unseen_spread(steps([9.0, 9.0, *off[each:]]), use, model) == pytest.approx(seen)


def test_an_unknown_gpu_adds_what_left_out_gpus_are_off_beyond_left_out_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And an unknown framework how far the known ones differ; MLPerf's rows tell about neither."""
    modern = {"dtype": "bf16", "recompute": "none"}
    lines = [("NeMo 1", "h100-sxm"), ("NeMo 2", "h100-sxm"), ("Megatron-Bridge", "b200"), ("MLPerf", "h100-sxm")]
    steps = [plan_row(row(id=f"r{i}", source=s, gpu=g, **modern)) for i, (s, g) in enumerate(lines)]
    off = {"source": [0.1, 0.1, 0.1, 0.9], "gpu": [0.2, 0.2, -0.3, 0.9]}

    def forecasts(planned: Sequence[PlannedRow], parts: Sequence[Bool], _: Linearised, *, far: bool) -> Refitted:
        assert far
        errors = off["gpu" if len(parts) == 2 else "source"]
        times = tuple(StepTime(1.5 * float(np.exp(error)), 0.0, 9.0) for error in errors)
        return Refitted(times, np.zeros((4, 4), dtype=bool))

    monkeypatch.setattr(shipped, "left_out", forecasts)
    names = ("generation.megatron-bridge-2025", "generation.nemo-2024")
    slopes = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    model = Linearised(names, np.zeros(2), log_measured(steps) - slopes @ [0.02, -0.04], slopes, np.full(2, 10.0))
    found = {
        name: p.number for name, p in parse_training(shipped.shipped_factors(steps, model), file="factors.toml").items()
    }
    assert found["Hopper.spread.bf16"] == pytest.approx(np.sqrt((2 * 0.1**2 + 0.9**2) / 3), rel=1e-3)
    assert found["Blackwell.spread.bf16"] == pytest.approx(0.1, rel=1e-3)
    assert found["unseen.gpu"] == pytest.approx(np.sqrt((0.2**2 + 0.3**2) / 2 - 0.1**2), rel=1e-3)
    scalars = np.log([found[name] for name in names])
    assert np.abs(scalars).min() > 0.01
    assert found["unseen.generation"] == pytest.approx(1.6 * np.sqrt(np.mean(scalars**2)), rel=1e-3)
    assert (found["rows.h100-sxm"], found["rows.b200"]) == (2, 1)


def test_a_gpu_left_out_is_forecast_from_its_relatives(tmp_path: Path) -> None:
    gated = {"gated_mlp": "true", "dtype": "bf16", "recompute": "none", "source": "NeMo performance summary"}
    others = [{**LINE, **gated, "id": f"h{i}", "gpu": "h100-sxm", "micro_batch": str(2**i)} for i in range(2)]
    file = write_csv(tmp_path / "rows.csv", LINE, *others)
    planned = [plan_row(one) for one in read_published(file)]
    assert [part.tolist() for part in by_gpu(planned)] == [[True, False, False], [False, True, True]]
    result = run_suite("published", file, leave_out="gpu")
    assert [r.row.name for r in result.rows] == ["gpt-22b", "h0", "h1"]
    assert "each GPU left out" in result.protocol
    shipped = {r.row.name: r.prediction.time_s for r in run_suite("published", file).rows}
    write_csv(file, {**LINE, "measured_step_time_s": "3.0"}, *others)
    changed = run_suite("published", file, leave_out="gpu")
    assert changed.rows[0].prediction == result.rows[0].prediction
    assert changed.rows[1].prediction.time_s != pytest.approx(shipped["h0"], rel=1e-3)
    low, high = result.rows[0].prediction.time_s_p05, result.rows[0].prediction.time_s_p95
    assert low is not None and high is not None and high / low > 1.2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"leave_out": "model"}, "nothing is known of 'model'"),
        ({"leave_out": "gpu", "folds": 3}, "exclude"),
        ({"leave_out": "gpu", "gpu": "a40"}, "--gpu"),
        ({"folds": 1}, "1 folds"),
        ({"folds": 2, "calibrate_rows": 9}, "exclude"),
        ({"folds": 2, "gpu": "a40"}, "--gpu"),
        ({"calibrate_rows": 5}, "only 1 rows"),
        ({"fit_rows": "rows.csv"}, "--fit-rows"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        run_suite("published", write_csv(tmp_path / "rows.csv", LINE), **options)


def test_other_suites_leave_nothing_out_in_turn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--leave-out"):
        run_suite("kernels", tmp_path, leave_out="gpu")


def forecast_s(one: PublishedRow) -> float:
    """Step time of a row by the shipped factors [s]."""
    return forecast(plan_row(one).plan, None, must_fit=False).time_s


RECORDED = ROOT / "validate" / "recorded" / "published"
CALIBRATING = ROOT / "calibrate" / "recorded" / "published"


def test_shipped_rows_are_planned_and_say_where_they_stand() -> None:
    blind, fitted = read_published(RECORDED), read_published(CALIBRATING)
    assert (len(blind), len(fitted)) == (362, 41)
    assert not {r.id for r in blind} & {r.id for r in fitted}
    assert all(plan_row(one).plan.cluster.gpus == one.num_gpus and one.measured_step_time_s for one in blind)
    for folder in (RECORDED, CALIBRATING):
        lines = csv_rows(folder / "published_iterations.csv")
        assert all(line["source_url_or_repo_path"].startswith("https://") for line in lines)


def test_what_is_shipped_as_unseen_calibrates_nothing(data: Path) -> None:
    seen = [*read_published(data / "published"), *read_published(CALIBRATING)]
    plans = {plan_row(one).plan for one in seen if one.measured_step_time_s}
    known = [one.id for one in read_published(RECORDED) if plan_row(one).plan in plans]
    # The same plans of NeMo and of one Bridge recipe were published again with other times.
    assert all(name.startswith("nemo2407c_") for name in known)


#: Of other models, GPUs and frameworks, and quick to forecast.
UNSEEN = ("sc21_18B", "dgxc2502_nemotron4-15b_bf16_16", "dgxc2502_nemotron4-15b_fp8_16", "nemo2407c_gpt3-20b_64",
          "bridge25.11_llama3-8b_gb200_8_fp8-cs", "bridge25.11_llama3-70b_gb200_64_fp8-cs",
          "titan_h200_llama3-8b_fp8_32", "mpt_a100-sxm-80gb_7b_2048_8_amp_96",
          "mpt_a100-sxm-40gb_13b_2048_16_pure_160")  # fmt: skip


def test_steps_of_other_models_gpus_and_frameworks(tmp_path: Path) -> None:
    lines = [line for line in csv_rows(RECORDED / "published_iterations.csv") if line["id"] in UNSEEN]
    result = run_suite("published", write_csv(tmp_path / "rows.csv", *lines))
    assert len(result.rows) == len(UNSEEN)
    assert result.summary["all"]["time_error_percent"] < 7.0
    assert result.summary["all"]["time_inside_percent"] > 85.0


def test_pytorchs_own_attention_is_flash_attention_2_and_llm_foundrys_the_first() -> None:
    mosaic = row(source="MosaicML llm-foundry", dtype="bf16", recompute="none", notes="FSDP=8", tp="1", dp="8")
    plan = plan_row(mosaic.model_copy(update={"micro_batch": 1, "global_batch": 8})).plan
    assert plan.implementation.attention_backend == "flash-attention-1"
    assert plan.parallelism.fsdp
    titan = plan_row(mosaic.model_copy(update={"source": "torchtitan", "micro_batch": 1, "global_batch": 8})).plan
    assert titan.implementation.attention_backend == "flash-attention-2"


@pytest.mark.parametrize("size", ["1b_8192_8_amp_96", "13b_16384_8_amp_72"])
@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm"])
def test_long_sequences_of_llm_foundry_take_as_long_as_its_first_flash_attention(gpu: str, size: str) -> None:
    """With FlashAttention-2's rate they would be 13 to 30 % too short."""
    one = next(r for r in read_published(RECORDED) if r.id == f"mpt_{gpu}_{size}")
    assert one.measured_step_time_s is not None
    assert forecast_s(one) == pytest.approx(one.measured_step_time_s, rel=0.10)


def test_megatron_in_deepspeed_has_neither_fused_attention_nor_overlap() -> None:
    one = row(source="BigScience (Megatron-DeepSpeed)", dtype="fp16", recompute="full", notes="4 x 100 Gbit/s a node")
    plan = plan_row(one).plan
    assert (plan.implementation.attention_backend, plan.implementation.fused_loss) == ("unfused", False)
    assert (plan.overlap.grad_reduce, plan.implementation.generation) == ("after", "deepspeed")
    assert (plan.cluster.links.nics_per_domain, plan.cluster.links.nic_bytes_per_s) == (4, 12.5e9)


@pytest.mark.parametrize(
    ("name", "off"),
    [("lumi_65b_64", 0.06), ("neox_20b_96", 0.12), ("bloom_0228_100x12288x64_tp8pp6_mb4_2048", 0.12)],
)
def test_sources_that_the_factor_of_deepspeed_has_not_seen(name: str, off: float) -> None:
    """Without it they are 14 to 21 % too short."""
    one = next(r for r in read_published(RECORDED) if r.id == name)
    assert one.measured_step_time_s is not None
    assert forecast_s(one) == pytest.approx(one.measured_step_time_s, rel=off)


@pytest.mark.parametrize("name", ["long_nemo2403_llama2-7b_32k_h100", "long_nemo2403_llama2-7b_256k_h100"])
def test_nemos_of_2024_ran_the_package_of_flash_attention_2(name: str) -> None:
    """With cuDNN's kernels long sequences would be 22 to 26 % too short."""
    one = next(r for r in read_published(RECORDED) if r.id == name)
    assert one.measured_step_time_s is not None
    assert plan_row(one).plan.implementation.attention_backend == "flash-attn-2"
    assert forecast_s(one) == pytest.approx(one.measured_step_time_s, rel=0.06)


def test_notes_name_what_is_computed_again() -> None:
    one = next(r for r in read_published(RECORDED) if r.id == "paxml_gpt3-175b_fp8_128h100")
    plan = plan_row(one).plan
    assert plan.implementation.recompute_modules == ("core_attn", "mlp")
    assert (plan.implementation.gradient_precision, plan.parallelism.fsdp_shard_size) == ("bf16", 128)


def fake_log_times(plans: Sequence[Plan], factors: Mapping[str, float]) -> np.ndarray:
    """Steps of 1 s whose logarithm grows by 0.5 with the factor's."""
    return np.array([0.5 * np.log(factors["generation.deepspeed"]) for _ in plans])


def test_a_separate_factor_counts_every_source_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separate_factors, "log_times", fake_log_times)
    kind = {"dtype": "fp16", "recompute": "full", "distributed_optimizer": True}
    times = [("MT-NLG", np.exp(0.1)), *[("BigScience (Megatron-DeepSpeed)", np.exp(0.2))] * 3]
    planned = [
        plan_row(row(id=f"d{i}", source=source, measured_step_time_s=time, **kind))
        for i, (source, time) in enumerate(times)
    ]
    assert not any(may_be_fitted(one) for one in planned)
    found = separate_factors.separate_factor(planned, {})
    assert found.value == pytest.approx(np.exp(0.3))
    assert found.sd == pytest.approx(found.value * 0.1)
    assert found.spread == pytest.approx(0.1)  # 0.2 in the factor, times the slope
    head = training_toml(Fitted((), np.zeros(0), np.zeros((0, 0))), {}, "none", {}, {})
    text = head + separate_toml("deepspeed", found, "two")
    read = parse_training(text, file="factors.toml")
    assert read["generation.deepspeed"].number == pytest.approx(found.value, rel=1e-4)
    assert read["generation-spread.deepspeed"].number == pytest.approx(found.spread, rel=1e-4)
    with pytest.raises(DataError, match="one source"):
        separate_factors.separate_factor(planned[1:], {})


def test_more_heads_of_one_width_take_longer_where_attention_is_not_fused() -> None:
    """BigScience's 106 layers with 64, 96 and 128 heads: 116.5, 118.8 and 121.4 s, less what DeepSpeed adds to all."""
    rows = {one.id: one for one in read_published(RECORDED)}
    plans = [plan_row(rows[f"bloom_0228_106x12288x{heads}_tp4pp12_mb2_2048"]).plan for heads in (64, 96, 128)]
    bare = [replace(plan, implementation=replace(plan.implementation, generation="")) for plan in plans]
    times = [forecast(plan, None, must_fit=False).time_s for plan in bare]
    assert times[1] - times[0] == pytest.approx(2.25, rel=0.2)
    assert times[2] - times[1] == pytest.approx(2.63, rel=0.2)


@pytest.mark.parametrize("gpu", ["mi350x", "mi355x"])
def test_mlperf_on_cards_that_no_row_knows(gpu: str) -> None:
    one = next(r for r in read_published(RECORDED) if r.id == f"mlperf51_llama31-8b_8{gpu}")
    assert one.measured_step_time_s is not None
    assert forecast_s(one) == pytest.approx(one.measured_step_time_s, rel=0.10)


def test_metered_gpus_draw_about_what_is_forecast() -> None:
    result = run_suite("published", RECORDED / "power")
    off = result.summary["all"]
    assert (off["rows"], result.skipped) == (4, ())
    assert off["time_error_percent"] < 7.61
    assert off["energy_error_percent"] < 4.0
    assert off["power_error_percent"] < 7.8
    for row in result.rows:
        assert row.measured.energy_j == (row.measured.power_w or 0.0) * (row.measured.time_s or 0.0)
