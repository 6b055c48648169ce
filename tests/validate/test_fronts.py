"""Fronts of time against energy that others published, forecast from workload and clocks."""

from dataclasses import replace

import numpy as np
import pytest
from paths import ROOT
from row_files import csv_rows, write_csv

from joulecast.errors import DataError
from joulecast.validate import run_suite
from joulecast.validate.published.fronts import WAIT_POWER_W, _forecast
from joulecast.validate.published.fronts_files import FILE, read_fronts

FOLDER = ROOT / "validate/recorded/published"


@pytest.fixture(scope="module")
def rows():
    return read_fronts(FOLDER)


def test_the_table_holds_together(rows):
    """As the solver takes one millisecond off each plan, time and number of all plans of a front have one sum."""
    assert len(rows) == 61
    fronts = {}
    for row in rows:
        fronts.setdefault(row.front, set()).add(round(1e3 * row.time_s) + int(row.plan))
        assert row.orders == ("FF" + "BF" * 6 + "BB", "FB" * 8)
    assert all(len(sums) == 1 for sums in fronts.values())


def test_every_plan_is_forecast_without_what_was_measured(rows):
    front = [row for row in rows if row.front == rows[0].front]
    found = _forecast(front, None)
    other = _forecast([replace(row, time_s=1.0, energy_j=1.0) for row in front], None)
    assert np.array_equal(found.time_s, other.time_s)
    assert np.array_equal(found.energy_j, other.energy_j)


def test_a_plan_of_one_clock_is_the_longest_chain(rows):
    """At one clock the slower stage is never left waiting but at the ends."""
    one = replace(rows[0], clocks_mhz=((1410.0,) * 16, (1410.0,) * 16))
    slower = replace(rows[0], clocks_mhz=((1410.0,) * 16, (1200.0,) * 16))
    time, energy = (
        x.tolist() for x in (_forecast([one, slower], None).time_s, _forecast([one, slower], None).energy_j)
    )
    assert time[1] > time[0]
    assert energy[1] < energy[0]
    assert min(energy) > 2 * WAIT_POWER_W * time[0]


def test_figures():
    """Bounds of what the pages quote."""
    result = run_suite("fronts", FOLDER)
    assert not result.skipped
    summary = result.summary
    fronts = {row.row.name.rpartition(", plan ")[0] for row in result.rows}
    assert summary["fastest plan of each front"]["rows"] == len(fronts)
    assert summary["megatron, relative to the fastest"]["time_error_percent"] < 2.3
    assert summary["megatron, relative to the fastest"]["energy_error_percent"] < 2.8
    for relative in ("megatron, relative to the fastest", "nano-batches, relative to the fastest"):
        assert all(summary[relative][f"{quantity}_inside_percent"] > 70.0 for quantity in ("time", "energy"))
    assert summary["all"]["time_error_percent"] < 4.8
    assert summary["all"]["energy_error_percent"] < 4.9


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("stage_0", "F1410 B", "no order of instructions"),
        ("time_s", "-1", "not a positive number"),
        ("method", "domino", "unknown method 'domino'"),
    ],
)
def test_a_broken_line_is_named(tmp_path, column, value, said):
    lines = csv_rows(FOLDER / FILE)[:2]
    lines[1][column] = value
    path = write_csv(tmp_path / FILE, *lines)
    with pytest.raises(DataError, match=said) as caught:
        read_fronts(path)
    assert caught.value.line == 3
