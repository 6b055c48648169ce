"""How `joulecast validate` prints a result, with a result made up here."""

import json
from pathlib import Path

import pytest
from command import run, status_of
from row_files import csv_text, write_json

from joulecast import validate
from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.commands.validate import summary_lines
from joulecast.validate.scoring.result import Prediction, ScoredRow, SuiteResult
from joulecast.validate.scoring.summary import summarise


@pytest.fixture
def result(monkeypatch):
    """The result that every suite gives in these tests."""
    rows = (
        ScoredRow(
            Row("a gemm", "gemm", {}, Measured(time_s=2.0, energy_j=100.0, power_w=50.0)),
            Prediction(2.1, 99.0, 48.0, 1400.0, 1.9, 2.3, 90.0, 110.0),
            "gemm",
            baseline=Prediction(time_s=3.0),
        ),
        ScoredRow(Row("a copy", "copy", {}, Measured(time_s=1.0)), Prediction(0.9, 10.0, 11.0, 1500.0), "streaming"),
    )
    made_up = SuiteResult("kernels", "h200-sxm", rows, summarise(rows), skipped=(("odd", "no such kernel"),))
    calls = []
    monkeypatch.setattr(validate, "run_suite", lambda *a, **k: calls.append((a, k)) or made_up, raising=False)
    return calls


def printed(capsys, *arguments):
    assert status_of("validate", "kernels", "--data", "rows.jsonl", *arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_json(capsys, result):
    report = json.loads(printed(capsys, "--json", "--csv"))
    measured = {"time_s": 2.0, "energy_j": 100.0, "power_w": 50.0, "sm_clock_mhz": None, "peak_mem_bytes": None}
    assert report["rows"][0]["measured"] == measured
    assert report["rows"][0]["predicted"]["time_s_p05"] == 1.9
    assert report["skipped"] == [{"name": "odd", "reason": "no such kernel"}]


def test_csv(capsys, result):
    table = csv_text(printed(capsys, "--csv"))
    assert [row["name"] for row in table] == ["a gemm", "a copy"]
    assert table[0]["error_time_s_percent"] == "5.0"
    assert table[1]["error_energy_j_percent"] == ""


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",), ("--report", "page.html")])
def test_where_every_row_was_skipped_nothing_was_compared_and_the_status_says_so(tmp_path, monkeypatch, capsys, form):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"name": name, "op": "gemm", "M": size, "N": 64, "K": 64, "dtype": "bf16"}
        for name, size in (("a", 0), ("b", "x"))
    ]
    write_json(Path("rows.jsonl"), *rows)
    status, out, err = run(capsys, "validate", "kernels", "--data", "rows.jsonl", *form)
    assert status == 2
    assert "rows.jsonl: nothing was compared: all 2 rows were skipped, 2 for this reason: field 'M' is missing" in err
    if form == ("--json",):
        assert [row["name"] for row in json.loads(out)["skipped"]] == ["a", "b"]
    assert not Path("page.html").exists()


def test_text_has_rows_baselines_and_what_was_skipped(capsys, result):
    text = printed(capsys)
    (row,) = [line for line in text.splitlines() if line.startswith("a gemm")]
    assert row.split()[2:5] == ["2", "2.1", "5"]
    assert "skipped: odd (no such kernel)" in text
    (line,) = [line.split() for line in text.splitlines() if line.startswith("gemm") and " time " in line]
    assert line[1:5] == ["1", "time", "5", "50"]


def test_options_reach_the_suite(capsys, result):
    printed(capsys, "--gpu", "h100-sxm", "--folds", "5", "--calibrate-rows", "3", "--leave-out", "gpu", "--json")
    ((arguments, options),) = result
    assert arguments[0] == "kernels"
    assert callable(options.pop("say"))
    assert options == {"gpu": "h100-sxm", "folds": 5, "fit_rows": None, "calibrate_rows": 3, "leave_out": "gpu"}


def test_a_group_that_holds_every_row_is_not_said_twice():
    """Rows of one file or one kind: what they are together stands once, also where a smaller group has lines."""
    figures = {"rows": 2, "time_error_percent": 5.0}
    summary = {"all": figures, "gemm": {**figures, "rows": 1}, "file kernels.jsonl": figures}
    assert [line["rows of"] for line in summary_lines(summary)] == ["all", "gemm"]
