"""Descriptions from files of rows, and the report on their parameters."""

import json
from importlib.resources import files

import numpy as np
import pytest
from command import status_of

from joulecast.calibrate.descriptions.from_rows import (
    STRONG_CORRELATION,
    facts_of,
    fit_rows,
    parameter_reports,
    report_dict,
)
from joulecast.errors import DataError, InputError, UnknownNameError
from joulecast.model.hardware.catalogue import load_gpu


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A few recorded rows in a file of their own."""
    recorded = files("joulecast.calibrate").joinpath("recorded", "h200_sxm", "kernels_steady.jsonl")
    path = tmp_path_factory.mktemp("rows") / "mine.jsonl"
    path.write_text("".join(recorded.read_text("utf-8").splitlines(keepends=True)[:8]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def fit(rows):
    return fit_rows([rows], name="mine", cross_validate=False)


def test_every_parameter_is_reported(fit):
    reports = parameter_reports(fit)
    assert len(reports) == sum(len(table) for table in fit.description.tables.values())
    for report in reports:
        parameter = fit.description.tables[report.table].parameters[report.name]
        assert (report.value, report.sd, report.status) == (parameter.number, parameter.sd, parameter.status)
        if report.status == "fitted":
            assert report.identified is not None and report.identified >= 0.1
            assert report.sd > 0


def test_rows_of_a_card_know_it(fit):
    """How cards differ is in no description of one that was measured; in one of any card of a kind it is."""
    for name in ("card_core", "card_memory"):
        assert (fit.description.power[name], fit.description.power.parameters[name].sd) == (1.0, 0.0)
        assert load_gpu("h200-sxm").power.parameters[name].sd > 0.0


def test_rows_are_named_as_the_source(fit):
    assert all("mine.jsonl" in table.provenance for table in fit.description.tables.values())
    assert fit.description.name == "mine"
    assert json.loads(json.dumps(report_dict(fit)))["rows"] == 8


def test_only_strong_correlations_are_told(fit):
    for report in parameter_reports(fit):
        if report.correlation is None:
            assert not report.correlated_with
            continue
        table = fit.description.tables[report.table]
        i, j = (table.covariance_names.index(n) for n in (report.name, report.correlated_with))
        spread = np.sqrt(np.diag(table.covariance))
        value = table.covariance[i, j] / (spread[i] * spread[j])
        assert abs(value) >= STRONG_CORRELATION
        assert report.correlation == pytest.approx(value, abs=0.005)


def test_facts_have_no_tables():
    facts = facts_of("h200-sxm")
    assert all(len(table) == 0 for table in facts.tables.values())
    assert facts.number("sm_count") == 132
    with pytest.raises(UnknownNameError, match="h200-sxm"):
        facts_of("h200-smx")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl"):
        fit_rows([tmp_path / "none.jsonl"])


@pytest.mark.slow
def test_the_command_writes_a_description_that_loads(rows, tmp_path, capsys):
    out = tmp_path / "card.toml"
    assert status_of("calibrate", "--rows", rows, "--base", "h200-sxm", "--out", out, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    description = load_gpu(out)
    assert description.name == printed["name"] == "card"
    assert list(tmp_path.iterdir()) == [out]
    assert description.kernel.discrepancy == printed["discrepancy"]["kernel"]
    values = {(p["table"], p["name"]): p["value"] for p in printed["parameters"]}
    assert values["kernel", "gemm.eta"] == description.kernel["gemm.eta"]


def test_one_product_alone_can_be_fitted(tmp_path, capsys):
    file, out = tmp_path / "one.jsonl", tmp_path / "one.toml"
    row = {"name": "one", "op": "gemm", "M": 8192, "N": 8192, "K": 8192, "dtype": "bf16", "time_s": 0.00168}
    file.write_text(json.dumps(row | {"power_w": 692.6, "sm_clock_mhz": 1440.0, "target_window_s": 1.8}) + "\n")
    assert status_of("calibrate", "--rows", file, "--base", "h200-sxm", "--out", out) == 0
    assert f"fitted 1 row; wrote {out}" in capsys.readouterr().err
    assert load_gpu(out).kernel.discrepancy == {}  # nothing was left to hold it against


def test_a_file_without_a_usable_row_is_named(tmp_path):
    file = tmp_path / "empty.jsonl"
    file.write_text("")
    with pytest.raises(InputError, match=r"empty\.jsonl: no row of a kernel with time and clock"):
        fit_rows([file])


def test_rows_of_another_product_need_no_label_to_be_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    row = {"op": "gemm", "M": 64, "N": 64, "K": 64, "time_s": 1e-5, "products": ["AMD Instinct MI300X"]}
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=r"none of 1 rows was measured on NVIDIA H200, but on another card"):
        fit_rows([file])
