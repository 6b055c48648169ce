"""Choosing: nested sets within a budget, and what sets chosen from recorded rows forecast of rows left out."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from joulecast.calibrate.descriptions.describe import fit_all
from joulecast.calibrate.descriptions.from_rows import facts_of
from joulecast.calibrate.fit.device_priors import DevicePriors
from joulecast.calibrate.fit.tables import family_of
from joulecast.calibrate.rows.measured import Row, recorded_rows
from joulecast.calibrate.sessions.belief import Belief
from joulecast.calibrate.sessions.candidates import Candidate, usable
from joulecast.calibrate.sessions.design import Design
from joulecast.calibrate.sessions.information import Observations
from joulecast.calibrate.sessions.reference import reference_kernels
from joulecast.calibrate.sessions.update import estimate
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.validate import run_suite
from joulecast.validate.adapters import predict_kernels

COST_S = 4.0
STEADY = Path(str(files("joulecast.calibrate").joinpath("recorded", "h200_sxm", "kernels_steady.jsonl")))


@pytest.fixture(scope="module")
def pool(gpu: GpuModel) -> dict[str, tuple[Candidate, Row]]:
    """Recorded rows of one card that a choice may take; the steady ones are left out and scored."""
    found = {}
    for place, row in enumerate(recorded_rows(files_=("idle.jsonl", "kernels.jsonl"))):
        candidate = Candidate(f"{place} {row.name}", row.configuration, stratum_of(row), COST_S)
        measured = row.op == "idle" or (row.measured.time_s is not None and row.measured.sm_clock_mhz is not None)
        if measured and usable([candidate], gpu)[0] and row.op != "duty":
            found[candidate.name] = (candidate, row)
    return found


def stratum_of(row: Row) -> str:
    """A coarse kind of work."""
    operators = Candidate("", row.configuration, "", 1.0).work.operators
    if not operators:
        return row.op
    family = family_of(operators[-1])
    return (
        f"gemm.{operators[-1].dtype}" if family == "gemm" else ".".join(family.split(".")[:1] + family.split(".")[2:])
    )


@pytest.fixture(scope="module")
def design(pool: dict[str, tuple[Candidate, Row]], gpu: GpuModel, priors: DevicePriors) -> list[Candidate]:
    """The order in which a choice takes the first rows."""
    return list(Design([c for c, _ in pool.values()], gpu, priors).choose(count=45).order)


def errors(rows: list[Row]) -> tuple[float, float]:
    """Mean error of forecasts of the steady rows, in time and energy [%]."""
    described = fit_all(rows, facts_of("h200-sxm"), cross_validate=False).description
    found = run_suite("kernels", STEADY, predict=lambda _, measured: predict_kernels(described, measured)).summary[
        "all"
    ]
    return found["time_error_percent"], found["energy_error_percent"]


@pytest.fixture(scope="module")
def errors_of_twenty(design: list[Candidate], pool: dict[str, tuple[Candidate, Row]]) -> tuple[float, float]:
    """Of the first twenty that a choice takes."""
    return errors([pool[c.name][1] for c in design[:20]])


def test_twenty_chosen_rows_forecast_the_others(errors_of_twenty: tuple[float, float]) -> None:
    time, energy = errors_of_twenty
    assert time < 6.0
    assert energy < 6.0


@pytest.mark.slow
def test_more_rows_forecast_better_and_chosen_ones_better_than_random_ones(
    design: list[Candidate], pool: dict[str, tuple[Candidate, Row]], errors_of_twenty: tuple[float, float]
) -> None:
    time, energy = errors([pool[c.name][1] for c in design[:45]])
    assert time < 3.0
    assert energy < 3.0
    rows = [row for _, row in pool.values()]
    random = np.mean(
        [errors([rows[i] for i in np.random.default_rng(s).choice(len(rows), 20, replace=False)]) for s in range(8)], 0
    )
    assert sum(errors_of_twenty) < 0.9 * sum(random)


def test_a_choice_sees_many_kinds_of_work_early(design: list[Candidate]) -> None:
    assert len({c.stratum for c in design[:12]}) >= 10
    assert len({c.stratum for c in design[:20]}) < 20  # but not at any price


def test_choices_are_nested_and_keep_within_the_budget(
    pool: dict[str, tuple[Candidate, Row]], gpu: GpuModel, priors: DevicePriors, design: list[Candidate]
) -> None:
    candidates = [c for c, _ in pool.values()]
    small = Design(candidates, gpu, priors).choose(budget_s=10 * COST_S + 1.0)
    assert [c.name for c in small.order] == [c.name for c in design[:10]]
    assert small.cost_s == 10 * COST_S
    later = Design(candidates, gpu, priors, done=[c.name for c in small.order])
    assert later.uncertainty().time == pytest.approx(small.after.time)
    rest = later.choose(count=10)
    assert [c.name for c in rest.order] == [c.name for c in design[10:20]]
    assert rest.after.energy < small.after.energy < small.before.energy


def test_an_expensive_twin_is_never_preferred(gpu: GpuModel, priors: DevicePriors) -> None:
    row = {"op": "gemm", "M": 4096, "N": 4096, "K": 4096, "dtype": "bf16"}
    twins = [Candidate("dear", row, "gemm", 8.0), Candidate("cheap", row, "gemm", 4.0)]
    choice = Design(twins, gpu, priors).choose()
    assert [c.name for c in choice.order] == ["cheap", "dear"]


def test_near_duplicates_tell_little_new(gpu: GpuModel, priors: DevicePriors) -> None:
    row = {"op": "gemm", "M": 4096, "N": 4096, "K": 4096, "dtype": "bf16"}
    same = Design([Candidate(str(i), row, "gemm", 4.0) for i in range(6)], gpu, priors).choose()
    others = [Candidate(str(i), {**row, "M": 4096 + 1024 * i}, "gemm", 4.0) for i in range(6)]
    different = Design(others, gpu, priors).choose()
    assert different.after.energy < 0.91 * same.after.energy


def test_a_belief_is_the_regression_that_it_stands_for() -> None:
    rng = np.random.default_rng(3)
    slopes, forecasts = rng.normal(size=(6, 5)), rng.normal(size=(4, 5))
    shown = Observations(slopes, np.array([0.1, 0.2, np.inf, 0.3, np.inf, 0.4]), np.array([0, 1]))
    belief = Belief(shown, forecasts, np.array([1.0, 3.0]))
    gain = belief.gains()[1]
    before = belief._weights @ belief._variance
    belief.observe(1)
    noise = np.diag([0.2 + 0.02**2, 0.3 + 0.03**2, 0.4])
    taken = slopes[[1, 3, 5]]
    covariance = np.eye(5) - taken.T @ np.linalg.solve(taken @ taken.T + noise, taken)
    spread = np.sqrt(np.diag(forecasts @ covariance @ forecasts.T))
    assert belief.uncertainty().time == pytest.approx(spread[:2] @ [0.25, 0.75])
    assert belief.uncertainty().energy == pytest.approx(spread[2:] @ [0.25, 0.75])
    assert np.isfinite(gain)
    assert before > belief._weights @ belief._variance


def test_reference_kernels_are_of_training_and_of_every_family(
    pool: dict[str, tuple[Candidate, Row]], gpu: GpuModel
) -> None:
    found = reference_kernels([c for c, _ in pool.values()], gpu)
    assert sum(found.values()) == pytest.approx(1.0)
    lowered = {k.clock_share for k in found}
    assert {None, 0.55} <= lowered
    families = {family_of(k.operator) for k in found}
    assert {"gemm", "attention.cudnn.backward", "streaming.copy", "tile_gemm"} <= families


def test_an_estimate_from_few_rows_moves_towards_the_fit(
    pool: dict[str, tuple[Candidate, Row]], design: list[Candidate], gpu: GpuModel, priors: DevicePriors
) -> None:
    rows = [pool[c.name][1] for c in design]
    fitted = gpu_model(fit_all(rows, facts_of("h200-sxm"), cross_validate=False).description)
    close = estimate(rows, gpu, priors)
    moved = [n for n, p in {**priors.time, **priors.power}.items() if abs(fitted[n] - gpu[n]) > p.sd]
    assert len(moved) >= 5
    apart = [n for n in moved if abs(close[n] - fitted[n]) >= 0.62 * abs(gpu[n] - fitted[n])]
    assert set(apart) <= {"voltage.slope"}  # which rows of one limit hardly tell
    for name, prior in priors.all.items():
        assert prior.lower - 1e-12 <= close[name] <= prior.upper + 1e-12 or prior.sd == 0.0, name
