"""Standard errors are as large as estimates scatter, whatever share of the parameters priors hold."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.descriptions.assemble import IDENTIFIED
from joulecast.calibrate.descriptions.from_rows import facts_of
from joulecast.calibrate.fit.device_priors import priors_for
from joulecast.calibrate.fit.power import at_rest, fit_power, power_at_observed_clock_w
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.solve import residual_variance, solve
from joulecast.calibrate.fit.tables import POWER_NOISE, SHORT_POWER_NOISE, collect
from joulecast.calibrate.rows.measured import recorded_rows
from joulecast.model.hardware.gpu_model import gpu_model

#: Rows, parameters that they determine, and parameters that they hardly tell anything about.
ROWS, TOLD, UNTOLD = 40, 6, 30
NOISE = 1.3
NAMES = [f"x{i}" for i in range(TOLD + UNTOLD)]
WIDE = Prior(0.0, -50.0, 50.0, 1.0)


def slopes(random, told=10.0, untold=0.2):
    """Of rows along parameters, in units of their noise and of the priors."""
    columns = np.linalg.qr(random.normal(size=(ROWS, TOLD + UNTOLD)))[0]
    return columns * np.repeat([told, untold], [TOLD, UNTOLD])


def fitted(slope, observed):
    """Residuals of the linear problem at its solution, and its posterior before they were looked at."""
    posterior = np.linalg.inv(slope.T @ slope + np.eye(slope.shape[1]))
    return observed - slope @ (posterior @ slope.T @ observed), posterior


def mean_variance(slope, count=2000):
    """Mean of s² over parameters as their priors expect them and noise as it is stated."""
    random = np.random.default_rng(7)
    observed = random.normal(size=(count, slope.shape[1])) @ slope.T + random.normal(size=(count, len(slope)))
    return np.mean([residual_variance(*fitted(slope, each)) for each in observed])


@pytest.mark.parametrize(("told", "untold"), [(10.0, 0.2), (1.0, 1.0), (0.1, 0.1), (100.0, 100.0)])
def test_the_variance_of_residuals_is_met_in_the_mean(told, untold):
    assert mean_variance(slopes(np.random.default_rng(3), told, untold)) == pytest.approx(1.0, abs=0.04)


def test_without_priors_every_parameter_takes_a_row():
    slope = slopes(np.random.default_rng(3), 1e5, 1e5)
    residuals, posterior = fitted(slope, np.random.default_rng(4).normal(size=ROWS))
    expected = residuals @ residuals / (ROWS - TOLD - UNTOLD)
    assert residual_variance(residuals, posterior) == pytest.approx(expected, rel=1e-6)


def test_parameters_that_priors_hold_take_none():
    slope = slopes(np.random.default_rng(3), 1e-5, 1e-5)
    residuals, posterior = fitted(slope, np.random.default_rng(4).normal(size=ROWS))
    assert residual_variance(residuals, posterior) == pytest.approx(residuals @ residuals / ROWS, rel=1e-6)


def test_a_row_that_determines_a_parameter_says_nothing_of_its_own_scatter():
    """A thousandth of a degree of freedom would make a thousand of any residual."""
    assert residual_variance(np.array([0.5]), np.array([[0.001]])) == pytest.approx(0.25)


def test_standard_errors_are_as_large_as_estimates_scatter():
    random = np.random.default_rng(11)
    slope = slopes(random)
    truth = random.normal(size=TOLD + UNTOLD)
    priors = dict.fromkeys(NAMES, WIDE)
    found = []
    for _ in range(60):
        observed = slope @ truth + NOISE * random.normal(size=ROWS)
        found.append(solve(lambda x, y=observed: slope @ [x[name] for name in NAMES] - y, priors, NAMES))
    scatter = np.std([one.values[:TOLD] for one in found], axis=0, ddof=1)
    stated = np.sqrt(np.mean([np.diag(one.covariance)[:TOLD] for one in found], axis=0))
    assert np.mean(stated) == pytest.approx(np.mean(scatter), rel=0.1)
    assert np.mean(scatter) == pytest.approx(NOISE / 10.0, rel=0.1)


@pytest.fixture(scope="module")
def card():
    """A card as the priors have it, what they are, and as many rows of kernels as a calibration takes."""
    facts = facts_of("h200-sxm")
    priors = priors_for(facts.device)
    rows = recorded_rows(files_=("kernels.jsonl", "kernels_steady.jsonl", "kernels_training.jsonl"))
    rows = collect([row for row in rows if row.measured.power_w and not row.configuration.get("card")]).rows
    return gpu_model(facts).with_values(priors.starts()), priors.power, rows[:: len(rows) // 90]


def with_powers(rows, power_w):
    """The same rows with other powers, their temperatures steady."""
    return [
        replace(row, measured=replace(row.measured, power_w=float(power), temperature_change_k=None))
        for row, power in zip(rows, power_w, strict=True)
    ]


def test_power_comes_back_as_far_off_as_it_is_said_to(card):
    """Of cards as their priors expect them, and with the noise that rows are taken to have."""
    model, priors, rows = card
    data, random = collect(rows), np.random.default_rng(2)
    noise = np.where(data.settled, POWER_NOISE, SHORT_POWER_NOISE)
    told, off = [], []
    for _ in range(3):
        drawn = {n: float(np.clip(random.normal(p.start, p.sd), p.lower, p.upper)) for n, p in priors.items()}
        power = power_at_observed_clock_w(data, model.with_values(drawn)) * np.exp(
            noise * random.normal(size=len(rows))
        )
        made = collect(with_powers(data.rows, power))
        solution = fit_power(made, collect([]), at_rest([]), model, priors)[1][0]
        errors = (solution.values - [drawn[name] for name in solution.names]) / np.sqrt(np.diag(solution.covariance))
        told.append(np.sum(solution.identified > IDENTIFIED))
        off += errors[solution.identified > IDENTIFIED].tolist()
    assert len(rows) - len(solution.names) < 30  # so few rows more than parameters, of which they tell a third
    assert min(told) > 20
    assert 0.6 < np.mean(np.square(off)) < 1.2
