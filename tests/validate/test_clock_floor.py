"""Rows from all other rows: a smooth sweep is met, noise is not, and a row never says anything of itself."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.clock_sweeps.rows import SweepRow
from joulecast.calibrate.rows.measured import Measured
from joulecast.validate.left_out.clock_floor import from_all_others

LIMITS = np.arange(100.0, 301.0, 25.0)


def sweep(noise=0.0, sizes=(8.0, 16.0, 32.0, 64.0), seed=1, curve=lambda limit: 1.0 + (100.0 / limit) ** 2):
    """Rows of workloads that differ in size, whose time falls smoothly with the limit."""
    random = np.random.default_rng(seed)
    rows = []
    for size in sizes:
        for limit in LIMITS:
            time = float(size * curve(limit) * np.exp(random.normal(0.0, noise)))
            energy = 0.9 * float(limit) * time
            measured = Measured(time_s=time, energy_j=energy, power_w=0.9 * float(limit))
            rows.append(SweepRow("limit", "card", {"network": "n", "batch": size}, float(limit), measured))
    return rows


def errors(rows):
    found = from_all_others(rows)
    return np.array([found[i].time_s / row.measured.time_s - 1.0 for i, row in enumerate(rows)])


def test_a_smooth_sweep_is_met_between_its_rows():
    rows = sweep()
    inner = [100.0 < row.setting < 300.0 for row in rows]
    assert np.abs(errors(rows)[inner]).max() < 0.01


def test_noise_is_what_remains():
    flat = sweep(noise=0.04, curve=lambda limit: 1.0, sizes=(8.0, 16.0, 32.0, 64.0, 128.0, 256.0))
    expected = 0.04 * np.sqrt(2.0 / np.pi)
    assert 0.85 * expected < np.abs(errors(flat)).mean() < 1.25 * expected


def test_a_row_says_nothing_of_itself():
    rows = sweep(noise=0.01)
    before = from_all_others(rows)[4]
    spoilt = replace(rows[4], measured=replace(rows[4].measured, time_s=1.02 * rows[4].measured.time_s))
    after = from_all_others([*rows[:4], spoilt, *rows[5:]])[4]
    assert after.time_s == pytest.approx(before.time_s, rel=1e-6)
    assert after.energy_j == before.energy_j


def test_rows_that_stand_alone_or_were_not_measured_are_absent():
    rows = sweep(sizes=(8.0,))
    assert from_all_others(rows[:3]) == {}
    lacking = [replace(rows[0], unusable="not measured: time"), *rows[1:]]
    assert sorted(from_all_others(lacking)) == list(range(1, len(rows)))
