"""Figures of merit: missing values never count, and a worse prediction never looks better."""

from __future__ import annotations

import numpy as np
import pytest

from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.validate.scoring import metrics
from joulecast.validate.scoring.regret import line, regret
from joulecast.validate.scoring.result import Prediction, ScoredRow
from joulecast.validate.scoring.summary import figures, summarise


def scored(time_s: float, family: str = "gemm", measured: float | None = 1.0) -> ScoredRow:
    prediction = Prediction(
        time_s=time_s, energy_j=time_s, time_s_p05=0.9, time_s_p95=1.1, energy_j_p05=0.5, energy_j_p95=0.6
    )
    row = Row("r", "gemm", {}, Measured(time_s=measured, energy_j=measured))
    return ScoredRow(row, prediction, family, ("group",), Prediction(time_s=1.5))


def test_relative_errors_ignore_what_is_missing() -> None:
    errors = metrics.relative_errors(metrics.as_array([1.1, None, 2.0, 1.0]), metrics.as_array([1.0, 1.0, None, 0.0]))
    assert errors[0] == pytest.approx(0.1)
    assert np.isnan(errors[1:]).all()
    assert metrics.mean_absolute(errors) == pytest.approx(0.1)
    assert metrics.mean_signed(errors) == pytest.approx(0.1)
    assert metrics.largest_absolute(errors) == pytest.approx(0.1)


def test_nothing_measured_gives_no_figure() -> None:
    nothing = metrics.as_array([None])
    assert metrics.mean_absolute(nothing) is None
    assert metrics.largest_absolute(nothing) is None
    assert metrics.mean_signed(nothing) is None
    assert metrics.coverage(nothing, nothing, nothing) is None
    assert metrics.mean_half_width(nothing, nothing, nothing, nothing) is None
    assert metrics.geometric_mean(nothing) is None


def test_coverage_and_half_width() -> None:
    measured = metrics.as_array([1.0, 2.0, None])
    low, high = metrics.as_array([0.9, 2.1, 0.0]), metrics.as_array([1.1, 2.3, 9.0])
    assert metrics.coverage(measured, low, high) == 0.5
    assert metrics.coverage(measured, measured, high) == 1.0  # the ends are inside
    predicted = metrics.as_array([1.0, 2.0, 1.0])
    assert metrics.mean_half_width(predicted, low, high, measured) == pytest.approx((0.1 + 0.05) / 2)


def test_factors_of_a_forecast_lie_to_either_side() -> None:
    found = Prediction.within(2.0, 600.0, 300.0, (1.25, 1.5, 1.2), clock_mhz=1400.0)
    assert (found.time_s, found.time_s_p05, found.time_s_p95) == pytest.approx((2.0, 1.6, 2.5))
    assert (found.energy_j, found.energy_j_p05, found.energy_j_p95) == pytest.approx((600.0, 400.0, 900.0))
    assert (found.power_w, found.power_w_p05, found.power_w_p95) == pytest.approx((300.0, 250.0, 360.0))
    assert found.sm_clock_mhz == 1400.0


def test_regrets_of_several_problems() -> None:
    told = line("time_s", "forecast", [0.01, 0.02, 0.0612])
    assert (told["problems"], told["mean_regret_percent"], told["worst_regret_percent"]) == (3, 3.04, 6.12)
    said, measured = (metrics.as_array(values) for values in ([1.0, 0.9, None], [4.0, 6.0, 1.0]))
    assert regret(said, measured) == pytest.approx(0.5)


def test_geometric_mean() -> None:
    assert metrics.geometric_mean(metrics.as_array([1.0, 4.0])) == pytest.approx(2.0)


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.2, 10.0])
def test_a_broken_prediction_raises_the_error(factor: float) -> None:
    good = figures([scored(1.01), scored(0.99)])
    bad = figures([scored(1.01), scored(0.99 * factor)])
    for key in ("time_error_percent", "time_worst_percent", "energy_error_percent"):
        assert bad[key] > good[key]
    assert good["time_inside_percent"] == 100.0
    assert good["time_baseline_percent"] == 50.0


def test_every_row_counts_in_its_family_and_groups() -> None:
    summary = summarise([scored(1.0), scored(5.0), scored(1.1, family="tile")])
    assert summary["all"]["rows"] == summary["group"]["rows"] == 3
    assert summary["gemm"]["time_error_percent"] == pytest.approx(200.0)
    assert summary["tile"]["rows"] == 1


def test_unmeasured_rows_are_not_scored() -> None:
    summary = summarise([scored(1.02), scored(9.0, measured=None)])
    assert summary["all"]["rows"] == 2
    assert summary["all"]["time_error_percent"] == pytest.approx(2.0)
