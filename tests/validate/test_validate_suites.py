"""Suites: selection, cross-validation without leaks, the form of the result, and plans of training rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paths import ROOT, SHARED_DATA

from joulecast.calibrate.rows.measured import Measured, Row, recorded_rows
from joulecast.calibrate.rows.operators import group_key
from joulecast.errors import DataError, InputError, UnknownNameError
from joulecast.validate import run_suite, suites
from joulecast.validate.row_plans import gradient_reduction, head_is_sharded, plan_of_row
from joulecast.validate.scoring import folds
from joulecast.validate.scoring.baselines import baselines, transformer_flops, trivial_work
from joulecast.validate.scoring.result import Answer, Prediction, Unpredicted

RECORDED = ROOT / "calibrate" / "recorded" / "h200_sxm"
SHARED = SHARED_DATA / "h200_sxm"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the measured rows are not at {SHARED}")

TRAIN = {
    "name": "t",
    "op": "train_iter",
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 128256,
    "layers": 32,
    "tp": 2,
    "pp": 2,
    "dp": 1,
    "micro_batch": 1,
    "microbatches": 8,
    "seq": 4096,
    "schedule": "1F1B",
    "gpus": 4,
    "head": "not tensor-parallel",
    "recompute": "none",
    "grad_allreduce": "after the last backward, per parameter, not overlapped",
    "dtype": "bf16",
}


@pytest.fixture(autouse=True)
def any_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests need no description: their predictors ignore it."""
    monkeypatch.setattr(suites, "load_gpu", lambda name: SimpleNamespace(name=name, device={}))


def oracle(gpu: Any, rows: Sequence[Row]) -> list[Answer]:
    """What no forecast may do: repeats the measurement."""
    return [
        Prediction(m.time_s, m.energy_j, m.power_w, m.sm_clock_mhz, 0.0, 1e9, 0.0, 1e9)
        if m.time_s
        else Unpredicted("no time")
        for m in (row.measured for row in rows)
    ]


def twice(gpu: Any, rows: Sequence[Row]) -> list[Answer]:
    """Twice the measured time."""
    return [replace(a, time_s=2 * (a.time_s or 0)) if isinstance(a, Prediction) else a for a in oracle(gpu, rows)]


def test_perfect_predictions_have_no_error_and_wrong_ones_have() -> None:
    data = RECORDED / "kernels_steady.jsonl"
    good = run_suite("kernels", data, predict=oracle).to_dict()
    bad = run_suite("kernels", data, predict=twice).to_dict()
    assert good["summary"]["all"]["time_error_percent"] == 0.0
    assert bad["summary"]["all"]["time_error_percent"] == pytest.approx(100.0)
    assert bad["summary"]["gemm"]["time_error_percent"] > good["summary"]["gemm"]["time_error_percent"]
    assert good["summary"]["gemm"]["time_baseline_percent"] > 1.0
    assert len(good["rows"]) + len(good["skipped"]) == 75


def test_form_of_the_result() -> None:
    result = run_suite("collectives", RECORDED / "collectives.jsonl", predict=oracle)
    report = json.loads(json.dumps(result.to_dict()))
    assert report["gpu"] == "h200-sxm"
    first = report["rows"][0]
    assert first["measured"].keys() == {"time_s", "energy_j", "power_w", "sm_clock_mhz", "peak_mem_bytes"}
    assert first["predicted"].keys() == first["measured"].keys() | {
        "time_s_p05",
        "time_s_p95",
        "energy_j_p05",
        "energy_j_p95",
        "power_w_p05",
        "power_w_p95",
    }
    assert len(report["rows"]) == 84
    assert {"all", "collective", ">= 16 MB", "< 16 MB"} <= report["summary"].keys()


def test_to_frame() -> None:
    pytest.importorskip("pandas")
    frame = run_suite("collectives", RECORDED / "collectives.jsonl", predict=oracle).to_frame()
    assert {"name", "measured_time_s", "predicted_energy_j_p95"} <= set(frame.columns)


def test_rows_that_are_no_kernels_are_named() -> None:
    report = run_suite("kernels", RECORDED / "kernels.jsonl", predict=oracle).to_dict()
    assert {"idle_context", "duty_0.2"} <= {entry["name"] for entry in report["skipped"]}


def test_unknown_rows_are_skipped_with_a_reason(tmp_path: Path) -> None:
    lines = [
        {"op": "conv", "time_s": 1.0},
        {"op": "all_reduce", "gpus": 2, "bytes": 8, "time_s": 1.0},
        {"op": "copy", "bytes": 8, "time_s": 1.0},
        {"case": "x", "kernel": "y"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    one = run_suite("kernels", path, predict=oracle)
    assert len(one.rows) == 1
    assert [reason.split("'")[1] for _, reason in one.skipped] == ["conv", "all_reduce", "kernel_profile"]
    folder = run_suite("kernels", tmp_path, predict=oracle)
    assert [name for name, _ in folder.skipped] == ["rows.jsonl:1"]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("kernel",), UnknownNameError, "'kernels'"),
        (("blocks", None, 5), InputError, "never fitted"),
        (("kernels", None, 1), InputError, "1 folds"),
        (("kernels", None, 5, "x"), InputError, "exclude each other"),
    ],
)
def test_wrong_options(arguments: tuple[Any, ...], error: type[InputError], text: str) -> None:
    suite, *rest = arguments
    with pytest.raises(error, match=text):
        run_suite(suite, RECORDED, *rest, predict=oracle)


def test_no_group_stands_on_both_sides_of_a_fold() -> None:
    rows = recorded_rows(files_=["kernels_steady.jsonl"])
    parts = folds.split(rows, recorded_rows(), 5)
    assert len(parts) == 5
    assert sorted(i for _, positions in parts for i in positions) == list(range(len(rows)))
    for training, positions in parts:
        held_out = {group_key(rows[i].configuration) for i in positions}
        assert not held_out & {group_key(row.configuration) for row in training}
        assert len({(r.name, r.settle_s, r.measured.time_s) for r in training}) == len(training)


def test_folds_do_not_depend_on_the_order_of_rows() -> None:
    rows = recorded_rows(files_=["kernels_steady.jsonl"])
    assert folds.fold_of_groups(rows, 5) == folds.fold_of_groups(rows[::-1], 5)


def test_collectives_are_left_out_by_the_number_of_gpus() -> None:
    rows = recorded_rows(files_=["collectives.jsonl"])
    for training, positions in folds.split(rows, recorded_rows(), 2):
        (gpus,) = {rows[i].gpus for i in positions}
        assert gpus not in {row.gpus for row in training if row.op == "all_reduce"}
        assert any(row.op == "gemm" for row in training)


def test_each_fold_is_predicted_by_its_own_fit() -> None:
    seen: list[set[Any]] = []

    def fit(rows: Sequence[Row], base: Any) -> Any:
        seen.append({group_key(row.configuration) for row in rows})
        return SimpleNamespace(name="fitted", device={}, groups=seen[-1])

    def predict(gpu: Any, rows: Sequence[Row]) -> list[Answer]:
        assert all(group_key(row.configuration) not in gpu.groups for row in rows)
        return oracle(gpu, rows)

    result = run_suite("kernels", RECORDED / "kernels_steady.jsonl", folds=5, predict=predict, fit=fit)
    assert len(seen) == 5
    assert "5 folds" in result.protocol
    assert len(result.rows) == 75


def test_fits_that_take_long_are_told_of_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    for most_s, count in ((3600.0, 0), (-1.0, 1)):
        monkeypatch.setattr("joulecast.validate.suites.LONG_S", most_s)
        data = RECORDED / "kernels_steady.jsonl"
        run_suite("kernels", data, folds=7, predict=oracle, fit=lambda rows, base: base, say=told.append)
        assert told == ["7 fits, one for each fold, take some 0:00; fewer --folds take less"] * count


def test_calibrate_rows_scores_the_others() -> None:
    used: list[int] = []

    def fit(rows: Sequence[Row], base: Any) -> Any:
        used.append(len(rows))
        return base

    result = run_suite("kernels", RECORDED / "kernels_steady.jsonl", calibrate_rows=10, predict=oracle, fit=fit)
    assert used == [10]
    assert len(result.rows) == 65
    assert "10 rows of the data, scored on the others, 11 of them near-duplicates of those" in result.protocol
    run_suite("collectives", RECORDED, fit_rows=RECORDED / "kernels_steady.jsonl", predict=oracle, fit=fit)
    assert used == [10, 75]


def test_data_without_any_row_of_the_suite() -> None:
    with pytest.raises(DataError, match=r"no rows of suite 'train'.*train_iter"):
        run_suite("train", RECORDED, predict=oracle)


def test_trivial_baselines() -> None:
    rows = recorded_rows(files_=["kernels_steady.jsonl"])
    gemm = [r for r in rows if r.name == "gemm_bf16_8192x8192x8192_randn"]
    rule = baselines(gemm, ["gemm"])[0]
    assert rule.time_s == pytest.approx(2 * 8192**3 / 662e12)
    assert rule.power_w == 690.0
    bus = {"all_reduce": 12.0, "all_gather": 6.0, "reduce_scatter": 6.0, "broadcast": 8.0, "send_recv": 8.0}
    assert {op: trivial_work({"op": op, "gpus": 4, "bytes": 8}).amount for op in bus} == bus
    copies = [Row("a", "copy", {"op": "copy", "bytes": 4.3e12}, Measured(time_s=2.0, power_w=5.0))]
    rule = baselines(copies, ["streaming"])[0]
    assert (rule.time_s, rule.power_w) == (pytest.approx(1.0), pytest.approx(5.0))


def test_flops_of_an_iteration() -> None:
    one_gpu = transformer_flops(TRAIN | {"tp": 1, "pp": 1})
    tokens, weights = 8 * 4096, 8.03e9 - 128256 * 4096
    assert one_gpu == pytest.approx(6 * tokens * weights + 3 * 32 * 2 * tokens * 4096 * 4096, rel=0.01)
    assert transformer_flops(TRAIN) == pytest.approx(one_gpu / 4)


def test_flops_of_passes() -> None:
    """Forward, backward, and what is read once more: for a reference model, head included, or by recomputation."""
    plain = transformer_flops(TRAIN)
    whole, headless = (4 / 3 * plain, 4 / 3 * transformer_flops(TRAIN | {"vocab": 0}))
    again = transformer_flops(TRAIN | {"recompute": "full"})
    assert again == pytest.approx(plain + headless / 4)
    pairs = {"objective": "dpo", "reference": "copy"}
    assert transformer_flops(TRAIN | pairs) == pytest.approx(2 * whole)
    assert transformer_flops(TRAIN | pairs | {"reference": "precomputed"}) == pytest.approx(2 * plain)
    forward = 2 * 8 * 4096 * 8.03e9 / 4  # of a teacher of 8.03 billion parameters, on a quarter of the GPUs' layers
    taught = {"objective": "distillation", "teacher": "llama-3.1-8b"}
    assert transformer_flops(TRAIN | taught) == pytest.approx(plain + forward, rel=1e-3)
    assert transformer_flops(TRAIN | taught | {"recompute": "full"}) == pytest.approx(again + forward, rel=1e-3)


def test_flops_of_a_block() -> None:
    block = {"op": "block", "hidden": 4096, "heads": 32, "B": 2, "S": 1024, "gated_mlp": False, "direction": "fwd"}
    weights = 4 * 4096**2 + 2 * 4096 * 4 * 4096
    forward = transformer_flops(block)
    assert forward == pytest.approx(2 * 2048 * (weights + 1024 * 4096))
    assert transformer_flops(block | {"direction": "bwd"}) == pytest.approx(3 * forward)
    assert transformer_flops(block | {"tp": 4, "kv_heads": 32, "ffn": 4 * 4096}) == pytest.approx(forward / 4)


def plan_of(**changes: Any) -> dict[str, Any]:
    return plan_of_row(TRAIN | changes, "h200-sxm")


def test_plan_of_a_measured_iteration() -> None:
    plan = plan_of()
    assert plan["workload"]["global_batch_size"] == 8
    assert plan["cluster"] == {"gpu": "h200-sxm", "gpus": 4}
    assert plan["schedule"] == {"name": "1F1B", "recompute": "none"}
    assert plan["overlap"] == {"grad_reduce": "after"}
    assert plan["implementation"]["shard_head"] is False
    assert plan["workload"]["model"]["rotary"] is False


def test_plans_of_announced_rows() -> None:
    loop = plan_of(pp=1, dp=2, schedule="none", micro_batch=2)
    assert loop["schedule"]["name"] == "none"
    assert loop["workload"]["global_batch_size"] == 32
    interleaved = plan_of(schedule="interleaved-1F1B", virtual_stages_per_rank=2, sequence_parallel=True)
    assert interleaved["parallelism"]["virtual_pipeline_model_parallel_size"] == 2
    assert interleaved["parallelism"]["sequence_parallel"] is True
    gpt = plan_of(gated_mlp=False, bias=True, norm="LayerNorm", activation="GELU", recompute="full")
    model = gpt["workload"]["model"]
    assert (model["norm"], model["activation"], model["bias"], model["gated_mlp"]) == ("layernorm", "gelu", True, False)
    step = plan_of_row(TRAIN | {"op": "train_step", "B": 4, "S": 2048}, "h200-sxm")
    assert step["cluster"]["gpus"] == 1
    assert step["workload"]["micro_batch_size"] == 4
    with pytest.raises(DataError, match="norm"):
        plan_of(norm="batch")
    with pytest.raises(DataError, match="hidden"):
        plan_of(hidden=None)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (None, {"grad_reduce": "after"}),
        ("after the last backward, per parameter, not overlapped", {"grad_reduce": "after"}),
        (
            "DDP, 25 MB buckets, overlapped with the last backward",
            {"grad_reduce": "overlapped", "grad_bucket_mb": 25.0},
        ),
        ("overlapped", {"grad_reduce": "overlapped"}),
    ],
)
def test_gradient_reduction_in_words(words: str | None, expected: dict[str, Any]) -> None:
    assert gradient_reduction({"grad_allreduce": words}) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), ("not tensor-parallel", False), ("unsharded", False), ("tensor-parallel", True), (True, True)],
)
def test_head_in_words(value: object, expected: bool) -> None:
    assert head_is_sharded(value) is expected


@needs_shared
@pytest.mark.parametrize(("suite", "count"), [("blocks", 16), ("train", 5), ("collectives", 84), ("kernels", 293)])
def test_every_shared_row_is_listed(suite: str, count: int) -> None:
    result = run_suite(suite, SHARED, predict=oracle)
    assert len(result.rows) + len(result.skipped) == count
    baseline = result.summary["all"]["time_baseline_percent"]
    assert 0.0 < baseline < 200.0
