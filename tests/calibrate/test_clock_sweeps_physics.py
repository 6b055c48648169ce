"""Time and power at a clock or under a limit: known behaviour, and slopes against finite differences."""

import numpy as np
import pytest

from joulecast.calibrate.clock_sweeps import parameters as p
from joulecast.calibrate.clock_sweeps.physics import (
    Phases,
    gap_power_w,
    respond,
    settle,
    setup,
    squared_voltage,
)
from joulecast.calibrate.clock_sweeps.slopes import respond_with_slopes

STEP = 1e-5


def card_of(kind, **changes):
    card, _ = p.card_prior(kind)
    card[p.LIMIT] = 0.0
    for name, value in changes.items():
        card[list(p.CARD).index(name)] = value
    return card


def works(kind, count=12, seed=3):
    mean, _ = p.population_prior(kind)
    work = mean + np.random.default_rng(seed).normal(0.0, 0.4, (count, p.WORK_SIZE))
    work[:, p.SETTLED] *= 0.02
    return work


SWEEPS = {"clock": np.linspace(0.3, 1.0, 12), "limit": np.linspace(60.0, 330.0, 12)}


@pytest.mark.parametrize("kind", ["clock", "limit"])
def test_slopes_are_those_of_the_response(kind):
    card, work, given = card_of(kind) + 0.01, works(kind), setup(kind, 300.0)
    if kind == "clock":
        card[p.LIMIT] = np.log(0.8)
    setting = SWEEPS[kind]
    settled = settle(setting, card, work, given)
    assert settled.held.any() and not settled.held.all()
    response = respond_with_slopes(setting, card, work, given)
    assert np.allclose(response.value, respond(setting, card, work, given))
    for k in range(p.CARD_SIZE):
        up, down = card.copy(), card.copy()
        up[k] += STEP
        down[k] -= STEP
        slope = (respond(setting, up, work, given) - respond(setting, down, work, given)) / (2 * STEP)
        assert response.in_card[:, :, k] == pytest.approx(slope, abs=1e-3)
    for k in range(p.WORK_SIZE):
        up, down = work.copy(), work.copy()
        up[:, k] += STEP
        down[:, k] -= STEP
        slope = (respond(setting, card, up, given) - respond(setting, card, down, given)) / (2 * STEP)
        assert response.in_work[:, :, k] == pytest.approx(slope, abs=1e-3)


def test_voltage_is_flat_below_the_knee_and_one_at_the_top():
    card = card_of("clock", knee=0.7, floor=0.75)
    assert squared_voltage(np.array([0.2, 0.5, 0.7]), card) == pytest.approx(0.75**2)
    assert squared_voltage(np.array([1.0]), card) == pytest.approx(1.0)
    above = squared_voltage(np.linspace(0.7, 1.0, 20), card)
    assert (np.diff(above) > 0).all()


def test_voltage_deviates_where_its_knots_say():
    card = card_of("clock")
    card[len(p.CARD) + 4] = 0.1  # at half of the highest clock
    x = np.array([0.5, 0.55, 0.7])
    raised = squared_voltage(x, card) / squared_voltage(x, card_of("clock"))
    assert raised == pytest.approx([np.exp(0.2), np.exp(0.1), 1.0])


def test_compute_slows_with_the_clock_and_memory_does_not():
    card, given = card_of("clock"), setup("clock", 300.0)
    work = np.tile(p.population_prior("clock")[0], (2, 1))
    work[:, p.HOST] = -30.0
    work[:, p.MEMORY] = [-30.0, 30.0]
    full, half = (Phases(card, work, given).at(np.full((2, 1), x)).time.ravel() for x in (1.0, 0.5))
    assert half / full == pytest.approx([2.0, 1.0])


def test_a_host_bound_workload_takes_the_hosts_time():
    card, given = card_of("clock"), setup("clock", 300.0)
    work = np.tile(p.population_prior("clock")[0], (1, 1))
    work[:, p.HOST] = np.log(20.0)
    times = [Phases(card, work, given).at(np.full((1, 1), x)).time[0, 0] for x in (0.3, 1.0)]
    assert times == pytest.approx([20.0, 20.0], rel=1e-3)


def test_a_limit_is_met_by_the_clock_or_not_at_all():
    card, given = card_of("limit", log_lowest_clock=np.log(0.2)), setup("limit", 300.0)
    work = np.tile(works("limit", 1), (5, 1))
    work[:, p.SETTLED] = 0.0
    limits = np.array([10.0, 120.0, 160.0, 200.0, 2000.0])
    settled = settle(limits, card, work, given)
    power = Phases(card, work, given).busy_power_w(settled.x)
    assert settled.held[1:4].any()
    assert power[settled.held] == pytest.approx(np.broadcast_to(limits[:, None], power.shape)[settled.held], rel=2e-3)
    assert settled.lowest[0].all() and (settled.x[0] == pytest.approx(0.2)) and (power[0] > 10.0).all()
    assert (settled.x[4] == 1.0).all() and not settled.held[4].any()


def test_a_limit_holds_busy_time_and_waits_draw_what_an_idle_card_draws():
    card, given = card_of("limit"), setup("limit", 300.0)
    work = np.tile(p.population_prior("limit")[0], (1, 1))
    work[:, p.HOST] = np.log(1.2)
    limit = np.array([150.0])
    x, phases = settle(limit, card, work, given).x, Phases(card, work, given)
    costs, busy, power = phases.at(x), phases.busy_time(x), phases.busy_power_w(x)
    waits = costs.time - busy
    assert (waits > 0.005).all()
    assert power[0, 1:] == pytest.approx(150.0, rel=2e-3)
    assert costs.energy - busy * power == pytest.approx(waits * gap_power_w(card, given))
    assert gap_power_w(card, given) < (costs.energy / costs.time)[0, 1:].max() < 150.0
    locked, one = Phases(card_of("clock"), work, setup("clock", 300.0)), np.ones((1, 1))
    assert (locked.busy_time(one) == locked.at(one).time).all()
    assert locked.busy_power_w(one) == pytest.approx(locked.at(one).energy / locked.at(one).time, rel=1e-12)


def test_tighter_limits_take_longer_at_less_power():
    card, given = card_of("limit"), setup("limit", 300.0)
    limits = np.linspace(80.0, 320.0, 30)
    value = respond(limits, card, np.tile(works("limit", 1), (30, 1)), given)
    assert (np.diff(value[:, 0]) <= 1e-9).all()
    assert (np.diff(value[:, 1]) >= -1e-9).all()


def test_a_locked_clock_above_the_boards_limit_is_not_reached():
    card, given = card_of("clock", log_limit=np.log(0.6)), setup("clock", 300.0)
    work = np.tile(p.population_prior("clock")[0], (3, 1))
    clocks = np.array([0.4, 0.95, 1.0])
    settled = settle(clocks, card, work, given)
    assert settled.x[0, 0] == 0.4
    assert settled.x[1, 0] == pytest.approx(settled.x[2, 0], rel=1e-3) and settled.x[1, 0] < 0.95
    value = respond(clocks, card, work, given)
    assert np.exp(value[1:, 1]) == pytest.approx(180.0, rel=1e-3)


def test_neighbouring_clocks_deviate_alike_from_the_smooth_voltage():
    covariance = np.linalg.inv(p.card_prior("clock")[1][len(p.CARD) :, len(p.CARD) :])
    spread = np.sqrt(np.diag(covariance))
    assert spread == pytest.approx(p.DEVIATION_SD, rel=0.01)
    alike = np.diag(covariance, 1) / (spread[1:] * spread[:-1])
    assert alike == pytest.approx(np.full(len(p.KNOTS) - 1, np.exp(-0.5 * (0.1 / p.DEVIATION_LENGTH) ** 2)), rel=0.01)
