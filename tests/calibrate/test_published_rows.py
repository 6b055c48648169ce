"""Lines of measured steps whose columns are keys of a plan."""

from pathlib import Path

import pytest
from row_files import write_csv

import joulecast as jc
from joulecast.calibrate.published.plans import plan_row
from joulecast.calibrate.published.rows import read_published
from joulecast.errors import DataError

LINE = {
    "workload.model": "llama-3.2-1b",
    "cluster.gpu": "h100-sxm",
    "cluster.gpus": "4",
    "workload.sequence_length": "2048",
    "workload.global_batch_size": "16",
    "parallelism.fsdp": "true",
    "schedule.recompute": "full",
    "measured_step_time_s": "1.5",
}


@pytest.mark.parametrize("flag", ["true", "TRUE"])
def test_a_line_of_a_plans_keys_is_forecast_as_that_plan(tmp_path: Path, flag: str) -> None:
    (row,) = read_published(write_csv(tmp_path / "steps.csv", {**LINE, "parallelism.fsdp": flag}))
    assert (row.gpu, row.num_gpus, row.tp, row.dtype, row.id) == ("h100-sxm", 4, 1, "bf16", "line 2")
    planned = plan_row(row)
    assert not planned.assumptions
    whole = {
        "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 16},
        "cluster": {"gpu": "h100-sxm", "gpus": 4},
        "parallelism": {"fsdp": True},
        "schedule": {"recompute": "full"},
    }
    assert jc.predict(planned.plan).time_s == jc.predict(whole).time_s


def test_a_line_with_less_than_a_plan_has_what_is_usual_of_published_steps(tmp_path: Path) -> None:
    line = {**LINE, "seq_len": "2048", "parallelism.fsdp": "", "cluster.gpus": "8"}
    del line["workload.sequence_length"]
    (row,) = read_published(write_csv(tmp_path / "steps.csv", line))
    assert "distributed optimizer (not stated)" in plan_row(row).assumptions


@pytest.mark.parametrize(
    ("old", "new", "remedy"),
    [
        ("measured_step_time_s", "time_s", "Measured times stand in 'measured_step_time_s'."),
        ("cluster.gpus", "gpus", "As a key of a plan it is called 'cluster.gpus'."),
        ("workload.global_batch_size", "workload.global_batchsize", "Did you mean 'workload.global_batch_size'?"),
    ],
)
def test_a_column_that_is_none_says_what_it_should_be_called(tmp_path: Path, old: str, new: str, remedy: str) -> None:
    renamed = {new if name == old else name: text for name, text in LINE.items()}
    with pytest.raises(DataError) as caught:
        read_published(write_csv(tmp_path / "steps.csv", renamed))
    assert str(caught.value).endswith(f"steps.csv:1: unknown column {new!r}. {remedy}")


def test_what_a_line_says_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"steps.csv:2 \[num_gpus\]: the line says it twice"):
        read_published(write_csv(tmp_path / "steps.csv", {**LINE, "num_gpus": "8"}))
