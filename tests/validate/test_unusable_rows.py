"""Rows that cannot be used are named one by one; the others are predicted all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from row_files import write_json

from joulecast.calibrate.rows.operators import operator_of
from joulecast.errors import DataError, InputError
from joulecast.model.kernels.toggling import memory_toggle
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.validate.row_plans import gradient_reduction, head_is_sharded, inline_model, plan_of_row
from joulecast.validate.suites import run_suite

GEMM = {"op": "gemm", "M": 512, "N": 512, "K": 512, "dtype": "bf16"}
NORM = {"op": "rms_norm", "shape": [512, 4096], "bytes": 8388608.0}
BLOCK = {"op": "block", "hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 5632, "B": 1, "S": 1024, "direction": "fwd"}
ITERATION = {"op": "train_iter", "hidden": 2048, "heads": 16, "vocab": 32000, "layers": 2, "seq": 1024}


def suite(tmp_path: Path, name: str, *rows: dict[str, Any]) -> dict[str, Any]:
    named = [{"name": str(number), **row} for number, row in enumerate(rows)]
    return run_suite(name, write_json(tmp_path / "rows.jsonl", *named)).to_dict()


@pytest.mark.parametrize(
    "row",
    [
        GEMM | {"M": "x"},
        GEMM | {"M": 512.5},
        GEMM | {"data": "uniform"},
        GEMM | {"data": "sparseX"},
        GEMM | {"data": "sparse2"},
        GEMM | {"dtype": "fp64"},
        NORM | {"shape": ["a", "b"]},
        NORM | {"shape": 4096},
        {"op": "adamw", "params": "many", "bytes": 1e9, "dtype": "fp32"},
        {"op": "interleave", "n8": "x", "nv": 1, "n2": 1},
        {"op": "interleave", "n8": 0, "nv": 0, "n2": 0},
        {"op": "duty", "duty": 1.5},
    ],
)
def test_one_unusable_kernel_is_skipped_with_its_reason(tmp_path: Path, row: dict[str, Any]) -> None:
    report = suite(tmp_path, "kernels", GEMM, row, NORM)
    assert [entry["name"] for entry in report["rows"]] == ["0", "2"]
    assert [entry["name"] for entry in report["skipped"]] == ["1"]
    assert report["skipped"][0]["reason"]


@pytest.mark.parametrize("change", [{"ctas": "x"}, {"ctas": 0}, {"nodes": "x"}, {"gpus": 2.5}, {"bytes": 0}])
def test_one_unusable_collective_is_skipped(tmp_path: Path, change: dict[str, Any]) -> None:
    row = {"op": "all_reduce", "gpus": 4, "bytes": 2**26, "ctas": None}
    report = suite(tmp_path, "collectives", row, row | change)
    assert (len(report["rows"]), len(report["skipped"])) == (1, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"tp": "x"},
        {"B": 1.5},
        {"S": None},
        {"hidden": "wide"},
        {"heads": 24},
        {"kv_heads": 5},
        {"direction": "bwd"},
        {"bias": "no"},
    ],
)
def test_one_unusable_block_is_skipped(tmp_path: Path, change: dict[str, Any]) -> None:
    report = suite(tmp_path, "blocks", BLOCK, BLOCK | change)
    assert (len(report["rows"]), len(report["skipped"])) == (1, 1)


@pytest.mark.parametrize("change", [{"layers": "many"}, {"layers": 2.5}, {"hidden": [1]}, {"sequence_parallel": "yes"}])
def test_one_unusable_iteration_is_skipped(tmp_path: Path, change: dict[str, Any]) -> None:
    report = suite(tmp_path, "train", ITERATION, ITERATION | change)
    assert (len(report["rows"]), len(report["skipped"])) == (1, 1)


def test_an_idle_gpu_is_predicted_alone_and_after_others(tmp_path: Path) -> None:
    idle = {"op": "idle", "settle_s": 0.0, "target_window_s": 3.0}
    for rows in ([idle], [GEMM, idle], [idle, GEMM]):
        report = suite(tmp_path, "kernels", *rows)
        assert len(report["rows"]) == len(rows)
        predicted = [{**row["predicted"]} for row in report["rows"]]
        assert {row.pop("peak_mem_bytes") for row in predicted} == {None}  # kernels have no memory of their own
        assert all(value > 0 for row in predicted for value in row.values())


def test_an_idle_gpu_whose_time_was_measured_without_its_clock_is_scored(tmp_path: Path) -> None:
    idle = {"op": "idle", "settle_s": 0.0, "target_window_s": 3.0, "time_s": 3.0, "energy_j": 300.0, "power_w": 100.0}
    (row,) = suite(tmp_path, "kernels", idle)["rows"]
    assert row["measured"]["power_w"] == 100.0


def test_a_setting_that_is_no_number_names_its_line(tmp_path: Path) -> None:
    for key in ("settle_s", "target_window_s", "gpus"):
        with pytest.raises(DataError, match=rf"rows.jsonl:2 \[{key}\]: 'x' is not a number"):
            suite(tmp_path, "kernels", GEMM, GEMM | {key: "x"})


def test_whole_numbers_may_be_written_as_floats() -> None:
    floats = GEMM | {"M": 512.0, "N": 512.0, "K": 512.0}
    assert operator_of(floats) == operator_of(GEMM)
    assert inline_model(ITERATION | {"hidden": 2048.0, "layers": 2.0}) == inline_model(ITERATION)


def test_words_of_rows_are_read_in_several_wordings() -> None:
    for words in ("not overlapped", "non-overlapped", "no overlap", "without overlap", "none", None):
        assert gradient_reduction({"grad_allreduce": words}) == {"grad_reduce": "after"}, words
    for words in ("DDP, 25 MB buckets, overlapped with the last backward", "DDP 25MB buckets"):
        expected = {"grad_reduce": "overlapped", "grad_bucket_mb": 25.0}
        assert gradient_reduction({"grad_allreduce": words}) == expected, words
    assert not any(map(head_is_sharded, (None, False, "on the last stage", "unsharded", "not tensor-parallel")))
    assert all(map(head_is_sharded, (True, "tensor-parallel", "sharded", "split over the ranks")))
    for word, meant in ((True, "full"), (False, "none"), ("full, per block", "full"), (None, "none")):
        assert plan_of_row(ITERATION | {"recompute": word}, "h200-sxm")["schedule"]["recompute"] == meant


@pytest.mark.parametrize("clock", [float("nan"), float("inf"), [1410, float("nan")]])
def test_a_clock_must_be_finite(clock: Any) -> None:
    plan = plan_of_row(ITERATION | {"pp": 2}, "h200-sxm") | {"power": {"clock_mhz": clock}}
    with pytest.raises(InputError, match="is not a clock"):
        plan_from_dict(plan, file="plan.toml")


def test_a_share_of_zeros_lies_between_0_and_1() -> None:
    assert memory_toggle("sparse0.25") == 0.75
    with pytest.raises(InputError, match="sparse-1"):
        memory_toggle("sparse-1")
