"""Iterations in fp32, TF32 and fp16 on H200s, forecast before they were measured."""

from pathlib import Path

from joulecast.validate import run_suite

ROWS = Path(__file__).parents[2] / "validate" / "recorded" / "h200_sxm"


def test_iterations():
    found = run_suite("plans", ROWS / "train_wide.jsonl").to_dict()
    summary = found["summary"]["all"]
    assert summary["rows"] == 12 and not found.get("skipped")
    assert summary["time_error_percent"] < 1.7 and summary["time_worst_percent"] < 4.6
    assert summary["energy_error_percent"] < 2.7 and summary["energy_worst_percent"] < 5.7
    assert summary["time_inside_percent"] == 100.0
    memory = [row["predicted"]["peak_mem_bytes"] / row["measured"]["peak_mem_bytes"] - 1.0 for row in found["rows"]]
    assert max(map(abs, memory)) < 0.03
    assert sum(abs(error) < 0.0003 for error in memory) == 11  # all but recomputed layers


def test_iterations_on_two_gpus():
    """Under DDP and FSDP, forecast before they were measured too."""
    summary = run_suite("plans", ROWS / "train_two_gpus_wide.jsonl").to_dict()["summary"]["all"]
    assert summary["rows"] == 5
    assert summary["time_error_percent"] < 1.7 and summary["time_worst_percent"] < 4.7
    assert summary["energy_error_percent"] < 1.5 and summary["energy_worst_percent"] < 4.6
    assert summary["time_inside_percent"] == summary["energy_inside_percent"] == 100.0


def test_iterations_in_fp16_with_a_scaled_loss():
    found = run_suite("plans", ROWS / "train_half.jsonl").to_dict()
    summary = found["summary"]["all"]
    assert summary["rows"] == 5
    assert summary["time_error_percent"] < 1.7 and summary["memory_error_percent"] < 0.01
    assert summary["time_inside_percent"] == 100.0
    scaled = [row for row in found["rows"] if row["name"].startswith("train_fp16") and "llama" in row["name"]]
    errors = [row["predicted"]["time_s"] / row["measured"]["time_s"] - 1.0 for row in scaled]
    assert len(errors) == 2 and max(map(abs, errors)) < 0.01
