"""Steps of optimizers beside AdamW, and iterations with them, on an H100."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joulecast.calibrate.rows.operators import operator_of
from joulecast.calibrate.rows.optimizer_steps import parameters_of
from joulecast.model.framework.implementation import Implementation
from joulecast.model.kernels.operators import Streaming
from joulecast.model.training.bitsandbytes_steps import KINDS
from joulecast.model.training.optimizer import state_bytes, temporary_bytes
from joulecast.validate import run_suite

ROWS = Path(__file__).parents[2] / "validate" / "recorded" / "optimizers"
STEPS = [
    json.loads(line)
    for name in ("calibrates", "checks", "host")
    for line in (ROWS / f"steps_{name}.jsonl").read_text(encoding="utf-8").splitlines()
]
#: A step counter in fp32 for each tensor of PyTorch's AdamW.
COUNTERS = 4


def named(name: str) -> list[Any]:
    return [pytest.param(row, id=row["name"]) for row in STEPS if name in row["name"]]


@pytest.mark.parametrize("row", named("step"))
def test_states_are_met_to_the_byte(row: dict[str, Any]) -> None:
    run = Implementation(modules="transformers", dtype=row["dtype"], optimizer=row["optimizer"])
    parameters = parameters_of(row)
    kind = KINDS.get(row["optimizer"])
    tables = 1024 * kind.moments if kind and kind.narrow and max(p.elements for p in parameters) >= 4096 else 0
    counters = COUNTERS * len(parameters) if row["optimizer"] == "adamw" else 0
    assert sum(state_bytes(p, run) for p in parameters) + tables + counters == row["measured_state_bytes"]


@pytest.mark.parametrize("row", named("adafactor"))
def test_adafactors_temporary_results(row: dict[str, Any]) -> None:
    run = Implementation(modules="transformers", dtype=row["dtype"], optimizer=row["optimizer"])
    of_table = row["tensors"][0][0] == 128256
    needed = max(temporary_bytes(p, run) for p in parameters_of(row))
    if of_table:  # the first parameter has none before it
        needed -= 4 * 128256 * 2048
    assert row["measured_temporary_bytes"] == pytest.approx(needed, rel=0.001)


def test_kernels_are_as_many_as_a_profile_counted() -> None:
    profiled = [row for row in STEPS if row.get("measured_kernels") and row["optimizer"] in KINDS]
    assert len(profiled) >= 10
    for row in profiled:
        work = operator_of(row)
        assert sum(work.counts) == sum(calls for _, calls, _ in row["measured_kernels"])
    (adafactor,) = [row for row in STEPS if row["name"] == "step_adafactor_1b_bf16"]
    counted = sum(calls for name, calls, _ in adafactor["measured_kernels"] if not name.startswith("Memset"))
    assert sum(operator_of(adafactor).counts) == counted


def test_steps_alone() -> None:
    for name, rows, most in (("calibrates", 18, 6.0), ("checks", 32, 10.0)):
        result = run_suite("kernels", ROWS / f"steps_{name}.jsonl", gpu="h100-sxm").to_dict()
        summary = result["summary"]["all"]
        assert not result["skipped"] and summary["rows"] == rows
        assert summary["time_error_percent"] <= most and summary["energy_error_percent"] <= most
        assert summary["power_error_percent"] <= 5.0
        assert summary["energy_inside_percent"] >= 80.0 and summary["power_inside_percent"] == 100.0
        errors = {one["name"]: one["predicted"]["time_s"] / one["measured"]["time_s"] - 1 for one in result["rows"]}
        assert max(abs(error) for row, error in errors.items() if "_sgd" in row) < 0.06


def test_iterations() -> None:
    """15 % off when first looked at; two rows chose what a parameter costs the host."""
    result = run_suite("train", ROWS / "train.jsonl", gpu="h100-sxm").to_dict()
    summary = result["summary"]["all"]
    assert not result["skipped"] and summary["rows"] == 19
    assert summary["time_error_percent"] <= 3.5 and summary["energy_error_percent"] <= 3.0
    assert summary["time_worst_percent"] <= 6.5 and summary["energy_worst_percent"] <= 6.0
    assert summary["time_inside_percent"] == 100.0 and summary["energy_inside_percent"] == 100.0
    assert summary["memory_error_percent"] <= 0.05


def test_a_step_waits_for_its_host() -> None:
    (row,) = [row for row in STEPS if row["name"] == "step_adamw-8bit_lora8b_r16_fp32"]
    quick, slow = (operator_of({**row, "host_launch_us": us}).operators[0] for us in (10.0, 50.0))
    assert isinstance(quick, Streaming) and isinstance(slow, Streaming)
    assert slow.late_s == pytest.approx(5 * quick.late_s) and quick.late_s > 0


@pytest.mark.parametrize("tensors", [None, [], [[4096, 4096]], [[4096, 0.5, 1]], [[0, 4, 1]], "all"])
def test_a_list_of_parameters_that_is_none_says_so(tensors: Any) -> None:
    work = operator_of({"op": "optimizer_step", "optimizer": "adamw-8bit", "tensors": tensors})
    assert not work.operators and "tensors" in work.reason


def test_an_optimizer_that_is_not_known_says_so() -> None:
    work = operator_of({"op": "optimizer_step", "optimizer": "adam", "tensors": [[4096, 4096, 1]]})
    assert work.reason == "unknown optimizer 'adam'"
