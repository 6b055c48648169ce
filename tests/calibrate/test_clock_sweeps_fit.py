"""The fit of a sweep: known cards are found again from noisy rows, spoilt rows count little, copies count once."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.clock_sweeps import parameters as p
from joulecast.calibrate.clock_sweeps.forecast import Question, forecast
from joulecast.calibrate.clock_sweeps.likeness import likeness
from joulecast.calibrate.clock_sweeps.newton import Observed
from joulecast.calibrate.clock_sweeps.physics import respond, setup
from joulecast.calibrate.clock_sweeps.residuals import learn_correction
from joulecast.calibrate.clock_sweeps.rows import SweepRow
from joulecast.calibrate.rows.measured import Measured

CLOCKS = np.arange(510.0, 1411.0, 45.0)
LIMITS = np.arange(100.0, 301.0, 25.0)


def rows_of(kind, settings, *, noise=0.003, workloads=6, seed=5, limit=0.0, scale=300.0, lowest=0.3):
    """Rows of a card whose voltage, idle power, limit and lowest clock are known, and of different workloads."""
    random = np.random.default_rng(seed)
    card, _ = p.card_prior(kind)
    card[p.KNEE], card[p.FLOOR], card[p.IDLE], card[p.LOWEST] = 0.73, 0.77, np.log(0.2), np.log(lowest)
    card[p.LIMIT] = limit if kind == "clock" else np.log(0.985)
    given = setup(kind, scale)
    mean, _ = p.population_prior(kind)
    rows = []
    for j in range(workloads):
        work = mean.copy()
        work[[p.TIME, p.MEMORY, p.DYNAMIC, p.CONSTANT, p.HOST]] = [
            random.normal(-2, 1),
            random.normal(-0.8, 0.7),
            random.uniform(0.6, 1.0),
            random.normal(-1.0, 0.5),
            random.normal(-1.5, 0.5),
        ]
        x = settings / 1410.0 if kind == "clock" else settings
        value = respond(x, card, np.tile(work, (len(x), 1)), given) + random.normal(0, noise, (len(x), 2))
        for setting, (time, power) in zip(settings, np.exp(value).tolist(), strict=True):
            measured = Measured(time_s=time, energy_j=time * power, power_w=power)
            rows.append(SweepRow(kind, "card", {"network": f"n{j}", "batch": 8.0 + j}, float(setting), measured))
    return rows


def errors(rows, left_out, **options):
    """Mean absolute errors of time and energy [%] of the rows that are left out."""
    training = [row for row in rows if not left_out(row)]
    asked = [row for row in rows if left_out(row)]
    answer = forecast(training, [Question(row.key, row.setting) for row in asked], **options)
    time = answer.time_s / np.array([row.measured.time_s for row in asked]) - 1
    energy = answer.time_s * answer.power_w / np.array([row.measured.energy_j for row in asked]) - 1
    return 100 * np.abs(time).mean(), 100 * np.abs(energy).mean(), answer


def test_clocks_inside_the_range():
    rows = rows_of("clock", CLOCKS)
    time, energy, answer = errors(rows, lambda row: row.setting in CLOCKS[2:-1:3])
    assert time < 0.6 and energy < 0.8
    assert (answer.time_sd > 0.002).all() and (answer.time_sd < 0.02).all()


def test_clocks_beyond_the_range():
    rows = rows_of("clock", CLOCKS)
    time, energy, _ = errors(rows, lambda row: row.setting in (*CLOCKS[:2], *CLOCKS[-2:]))
    assert time < 1.5 and energy < 2.5


def test_clocks_that_the_board_does_not_grant():
    rows = rows_of("clock", CLOCKS, limit=np.log(0.7))
    highest = max(row.measured.power_w for row in rows)
    assert highest < 0.72 * 300.0
    time, energy, answer = errors(rows, lambda row: row.setting in CLOCKS[-2:])
    assert time < 1.0 and energy < 1.5
    assert answer.held.any() and (answer.clock_mhz < 1411).all()
    assert answer.clock_mhz[answer.held].max() < 1365


def test_a_limit_known_beforehand_holds_clocks_that_no_row_came_near():
    rows = rows_of("clock", CLOCKS, limit=np.log(0.7), workloads=1)
    top = [row for row in rows if row.setting > 1300]
    training = [row for row in rows if row.setting < 1000]
    asked = [Question(row.key, row.setting) for row in top]
    measured = np.mean([row.measured.power_w for row in top])
    assert measured == pytest.approx(210.0, rel=0.02)
    known = forecast(training, asked, limit_w=210.0)
    assert known.power_w.mean() == pytest.approx(measured, rel=0.05)
    assert forecast(training, asked, limit_w=900.0).power_w.mean() > 1.1 * measured


def test_a_row_that_is_said_to_be_at_the_limit_gives_it():
    rows = [row for row in rows_of("clock", CLOCKS, workloads=1) if row.setting <= 1005.0]
    asked = [Question(rows[0].key, 1410.0)]
    highest = rows[-1].measured.power_w
    marked = [replace(row, at_limit=row.setting == 1005.0) for row in rows]
    assert forecast(marked, asked).power_w[0] == pytest.approx(highest, rel=0.04)
    assert forecast(rows, asked).power_w[0] > 1.3 * highest


def test_limits_inside_and_limits_that_the_card_cannot_hold():
    rows = rows_of("limit", LIMITS, workloads=10, lowest=0.55)
    floor = [row.measured.power_w for row in rows if row.setting == 100.0]
    assert np.mean(floor) > 108.0
    time, energy, _ = errors(rows, lambda row: row.setting in (150.0, 225.0))
    assert time < 1.0 and energy < 1.0
    one = rows[0].key
    time, energy, answer = errors(rows, lambda row: row.key == one and row.setting in (100.0, 125.0, 275.0, 300.0))
    assert time < 2.0 and energy < 2.0
    assert answer.power_w[0] > 105.0


def test_a_workload_known_at_one_clock():
    rows = rows_of("clock", CLOCKS, workloads=8)
    one = rows[-1].key
    time, energy, answer = errors(rows, lambda row: row.key == one and row.setting != 960.0)
    assert time < 6.0 and energy < 6.0
    assert answer.time_sd.max() > 0.01, "what one row says is uncertain"


def test_rows_that_a_busy_host_delayed_count_little():
    rows = rows_of("clock", CLOCKS, workloads=3)
    spoilt = []
    for i, row in enumerate(rows):
        late = 1.25 if row.key == rows[0].key and i % 3 == 1 else 1.0
        measured = Measured(
            time_s=row.measured.time_s * late,
            energy_j=row.measured.energy_j * (1 + 0.4 * (late - 1)),
            power_w=row.measured.power_w * (1 + 0.4 * (late - 1)) / late,
        )
        spoilt.append(replace(row, measured=measured))
    mine = [row for row in rows if row.key == rows[0].key]
    answer = forecast(spoilt, [Question(row.key, row.setting) for row in mine])
    ratio = answer.time_s / np.array([row.measured.time_s for row in mine])
    assert np.abs(ratio - 1).max() < 0.03


def test_copies_of_one_measurement_count_once():
    rows = rows_of("clock", CLOCKS[::2], workloads=3)
    copies = [
        replace(r, workload={**r.workload, "batch": 900.0 + k}) for k in range(4) for r in rows if r.key == rows[0].key
    ]
    asked = [Question(rows[0].key, 777.0), Question(rows[-1].key, 777.0)]
    once, many = forecast(rows, asked), forecast([*rows, *copies], asked)
    assert many.time_s == pytest.approx(once.time_s, rel=1e-6)
    assert many.power_w == pytest.approx(once.power_w, rel=1e-6)


def test_the_order_of_rows_does_not_matter():
    rows = rows_of("clock", CLOCKS[::2], workloads=3)
    asked = [Question(row.key, 777.0) for row in rows[::10]]
    assert forecast(rows[::-1], asked).time_s == pytest.approx(forecast(rows, asked).time_s, rel=1e-9)


def test_likeness():
    alike = likeness(
        [
            {"network": "a", "batch": 8.0},
            {"network": "a", "batch": 16.0},
            {"network": "b", "batch": 8.0},
            {"network": "b", "batch": 4096.0},
        ]
    )
    assert np.diag(alike) == pytest.approx(1.0)
    assert alike[0, 1] > alike[0, 2] > alike[0, 3] >= 0.0
    assert (np.linalg.eigvalsh(alike) > 0).all()


def test_residuals_that_neighbours_share_are_forecast_and_noise_is_not():
    place = np.tile(np.linspace(0, 1, 30), 2)
    observed = Observed(place, np.zeros((60, 2)), np.repeat([0, 1], 30), 2)
    noise, weight = np.full(60, 0.02), np.ones(60)
    wave = 0.02 * np.sin(9 * place)
    correction = learn_correction(wave, weight, observed, noise)
    at = np.array([0.217, 0.5])
    mean, variance = correction.at(at, np.array([0, 1]), noise[:2])
    assert mean == pytest.approx(0.02 * np.sin(9 * at), abs=0.003)
    assert (variance < 0.02**2).all()
    beyond, _ = correction.at(np.array([9.0]), np.array([0]), noise[:1])
    assert abs(beyond[0]) < 1e-6
    scatter = np.random.default_rng(1).normal(0, 0.02, 60)
    assert learn_correction(scatter, weight, observed, noise) is None
