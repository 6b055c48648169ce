"""Kernels from all others: what varies smoothly with size is met, noise is not, no row says anything of itself."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.validate.left_out.kernel_floor import from_all_others
from joulecast.validate.scoring.result import Prediction, ScoredRow

SIZES = (512, 1024, 2048, 4096, 8192)


def scored(noise=0.0, wrong=lambda m, n, layout: 1.0, seed=1, layouts=("tn", "nt"), **measured):
    """Products whose forecasts are off by a factor."""
    random = np.random.default_rng(seed)
    rows = []
    for layout in layouts:
        for m in SIZES:
            for n in SIZES:
                forecast = 1e-12 * m * n
                time = forecast * wrong(m, n, layout) * float(np.exp(random.normal(0.0, noise)))
                fields = {"op": "gemm", "dtype": "bf16", "M": m, "N": n, "K": 1024, "layout": layout}
                row = Row(f"{layout} {m} {n}", "gemm", fields, Measured(time_s=time, **measured))
                rows.append(ScoredRow(row, Prediction(time_s=forecast), "gemm"))
    return rows


def errors(rows):
    found = from_all_others(rows)
    return np.array([one.time_s / row.measured.time_s - 1.0 for one, row in zip(found, rows, strict=True)])


def test_what_forecasts_miss_smoothly_is_known_from_the_neighbours():
    rows = scored(wrong=lambda m, n, layout: 1.0 + 0.3 * np.sin(0.4 * np.log(m * n)) + 0.1 * (layout == "nt"))
    missed = np.abs([row.prediction.time_s / row.measured.time_s - 1.0 for row in rows]).mean()
    assert np.abs(errors(rows)).mean() < 0.2 * missed


def test_noise_is_what_remains():
    found = errors(scored(noise=0.1, layouts=("tn", "nn", "nt")))
    expected = 0.1 * np.sqrt(2.0 / np.pi)
    assert 0.85 * expected < np.abs(found).mean() < 1.25 * expected


def test_what_lasts_from_row_to_row_is_known_in_the_order_of_measurement_alone():
    rows = scored(layouts=("tn", "nn", "nt"))
    mixed = [rows[i] for i in np.random.default_rng(5).permutation(len(rows))]  # else order would stand for size
    slow = 1.0 + 0.3 * (np.arange(len(mixed)) // 15 % 2)
    rows = [
        replace(row, row=replace(row.row, measured=Measured(time_s=factor * row.measured.time_s)))
        for row, factor in zip(mixed, slow.tolist(), strict=True)
    ]
    sorted_again = sorted(rows, key=lambda row: row.row.name)
    assert np.abs(errors(rows)).mean() < 0.6 * np.abs(errors(sorted_again)).mean()


def test_a_row_says_nothing_of_itself():
    rows = scored(noise=0.03)
    spoilt = replace(rows[7], row=replace(rows[7].row, measured=Measured(time_s=1.01 * rows[7].measured.time_s)))
    before, after = from_all_others(rows), from_all_others([*rows[:7], spoilt, *rows[8:]])
    assert after[7].time_s == pytest.approx(before[7].time_s, rel=1e-3)
    assert after[8].time_s != pytest.approx(before[8].time_s, rel=1e-6)


def test_near_duplicates_say_nothing_of_each_other():
    rows = scored(noise=0.03, layouts=("tn",))
    off = replace(rows[7], row=replace(rows[7].row, measured=Measured(time_s=1.3 * rows[7].measured.time_s)))
    alone, doubled = from_all_others([*rows[:7], off, *rows[8:]]), from_all_others([*rows[:7], off, *rows[8:], off])
    assert doubled[7].time_s == pytest.approx(doubled[-1].time_s)
    assert doubled[7].time_s == pytest.approx(alone[7].time_s, rel=0.05)


def test_rows_that_tell_clocks_or_stand_alone_are_not_answered():
    assert from_all_others(scored(sm_clock_mhz=1500.0)) == []
    assert from_all_others(scored()[:5]) == [Prediction()] * 5
