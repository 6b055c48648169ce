"""The solver against certified values, and the fits against parameters that made the rows."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.descriptions import describe
from joulecast.calibrate.descriptions.assemble import joint_covariance, settled
from joulecast.calibrate.descriptions.describe import fit_all
from joulecast.calibrate.descriptions.from_rows import facts_of
from joulecast.calibrate.fit.device_priors import priors_for
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.solve import Solution, solve
from joulecast.calibrate.fit.tables import collect, fit_times
from joulecast.calibrate.rows.measured import Measured, Row, recorded_rows
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.description import Parameter
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.power.kernel_power import kernel_time_s

#: NIST StRD, nonlinear least squares: Misra1a, y = b1·(1 − exp(−b2·x)); and DanWood, y = b1·x^b2.
MISRA1A = np.array(
    [
        [10.07, 77.6],
        [14.73, 114.9],
        [17.94, 141.1],
        [23.93, 190.8],
        [29.61, 239.9],
        [35.18, 289.0],
        [40.02, 332.8],
        [44.82, 378.4],
        [50.76, 434.8],
        [55.05, 477.3],
        [61.01, 536.8],
        [66.40, 593.1],
        [75.47, 689.1],
        [81.78, 760.0],
    ]
)
DANWOOD = np.array([[2.138, 1.309], [3.421, 1.471], [3.597, 1.490], [4.340, 1.565], [4.882, 1.611], [5.660, 1.680]])
CASES = {
    "Misra1a": (
        MISRA1A,
        lambda b, x: b["b1"] * (1.0 - np.exp(-b["b2"] * x)),
        (250.0, 5e-4),
        (2.3894212918e2, 5.5015643181e-4),
        (2.7070075241, 7.2668688436e-6),
        1.0187876330e-1,
    ),
    "DanWood": (
        DANWOOD,
        lambda b, x: b["b1"] * x ** b["b2"],
        (0.7, 4.0),
        (7.6886226176e-1, 3.8604055871),
        (1.8281973860e-2, 5.1726610913e-2),
        3.2853114039e-2,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_certified_values_and_standard_errors(case):
    data, form, start, certified, errors, noise = CASES[case]
    y, x = data.T
    priors = {f"b{i + 1}": Prior(s, s / 10, s * 10, 5.0) for i, s in enumerate(start)}
    found = solve(lambda b: (form(b, x) - y) / noise, priors, ["b1", "b2"])
    assert found.values == pytest.approx(certified, rel=1e-5)
    assert np.sqrt(np.diag(found.covariance)) == pytest.approx(errors, rel=1e-3)
    assert np.all(found.identified > 0.99)


def line(slope=2.0, offset=1.0):
    x = np.linspace(0.0, 1.0, 21)
    return x, slope * x + offset


def residuals_of_line(x, y, noise=0.01):
    return lambda v: (v["slope"] * x + v["offset"] - y) / noise


def test_parameters_that_no_row_reads_cost_no_evaluation():
    x, y = line()
    idle = {f"idle{i}": Prior(1.0, 0.0, 2.0, 0.1 * (i + 1)) for i in range(50)}
    busy = {"slope": Prior(1.5, 0.0, 4.0, 1.0), "offset": Prior(0.5, 0.0, 4.0, 1.0)}
    both, of_line = {**idle, **busy}, residuals_of_line(x, y)
    calls = {"alone": 0, "beside": 0}

    def counted(word):
        def residuals(values):
            calls[word] += 1
            return of_line(values)

        return residuals

    alone = solve(counted("alone"), busy, list(busy))
    found = solve(counted("beside"), both, list(both))
    everything_read = solve(lambda values: of_line(dict(values)), both, list(both))
    assert calls["beside"] <= calls["alone"] + 10
    assert found.values[-2:] == pytest.approx(alone.values, rel=1e-6)
    assert np.array_equal(found.values, everything_read.values)
    assert np.array_equal(found.covariance, everything_read.covariance)


def test_forecasts_of_kernels_alone_need_no_fit_of_contention(monkeypatch):
    fitted = []
    monkeypatch.setattr(describe, "fit_contention", lambda rows, gpu, priors: fitted.append(len(rows)) or (gpu, None))
    monkeypatch.setattr(describe, "fit_times", lambda data, gpu, priors: (gpu, []))
    monkeypatch.setattr(describe, "fit_power", lambda data, bursts, rest, gpu, priors: (gpu, []))
    rows = recorded_rows(files_=["kernels_steady.jsonl"])[:8]
    for overlapped in (True, False):
        describe.fit_model(rows, facts_of("h200-sxm"), overlapped=overlapped)
    assert fitted == [8, 0]


LINE_PRIORS = {"slope": Prior(1.0, 0.0, 10.0, 1.0), "offset": Prior(0.5, 0.0, 10.0, 1.0)}


def test_outliers_pull_little():
    x, y = line()
    y[5] += 3.0
    found = solve(residuals_of_line(x, y), LINE_PRIORS, ["slope", "offset"]).as_dict()
    assert found["slope"] == pytest.approx(2.0, abs=0.02)
    assert found["offset"] == pytest.approx(1.0, abs=0.02)


def test_bounds_hold():
    x, y = line()
    priors = {**LINE_PRIORS, "slope": Prior(1.0, 0.0, 1.5, 1.0)}
    assert solve(residuals_of_line(x, y), priors, ["slope", "offset"]).as_dict()["slope"] == pytest.approx(
        1.5, abs=1e-6
    )


def test_what_no_row_identifies_stays_at_its_prior():
    x, y = line()
    priors = {**LINE_PRIORS, "unseen": Prior(7.0, 0.0, 20.0, 0.1)}
    found = solve(residuals_of_line(x, y), priors, ["slope", "offset", "unseen"])
    assert found.as_dict()["unseen"] == pytest.approx(7.0)
    assert found.identified[2] == pytest.approx(0.0, abs=1e-6)
    assert np.sqrt(found.covariance[2, 2]) == pytest.approx(0.7, rel=0.01)
    assert found.identified[0] > 0.99


def test_a_form_that_fits_badly_widens_the_errors():
    x, y = line()
    good = solve(residuals_of_line(x, y), LINE_PRIORS, ["slope", "offset"])
    bent = solve(residuals_of_line(x, y + 0.05 * np.sin(9 * x)), LINE_PRIORS, ["slope", "offset"])
    assert bent.covariance[0, 0] > 2 * good.covariance[0, 0]


def test_the_end_of_a_search_does_not_hang_on_rounding():
    x, y = line()
    first = solve(residuals_of_line(x, y + 0.02 * np.sin(9 * x)), LINE_PRIORS, ["slope", "offset"]).values
    again = solve(residuals_of_line(x, y + 0.02 * np.sin(9 * x) + 1e-14), LINE_PRIORS, ["slope", "offset"]).values
    assert first == pytest.approx(again, rel=1e-9)


def test_digits_far_below_the_spread_are_dropped():
    assert settled(1.23456789, 0.0) == 1.2346
    assert settled(2.1371e-8, 30.0) == 0.0
    assert settled(123.456789, 1.0) == 123.46


@pytest.fixture(scope="module")
def bare() -> GpuModel:
    facts = facts_of("h200-sxm")
    return GpuModel("made up", gpu_model(facts).device, priors_for(facts.device).starts())


def made_rows(truth: GpuModel, rows: list[Row]) -> list[Row]:
    """The same rows with the times that ``truth`` gives them."""
    data = collect(rows)
    costs = lower(data.operators, truth)
    each = kernel_time_s(costs, data.clock_mhz[data.owner], truth) * data.counts
    times = np.bincount(data.owner, each, len(data.rows))
    return [replace(r, measured=replace(r.measured, time_s=float(t))) for r, t in zip(data.rows, times, strict=True)]


def test_parameters_that_made_the_rows_are_recovered(bare):
    """Times made by known parameters give these parameters back, where the rows identify them."""
    true = {
        "kernel.gemm.eta": 0.85,
        "kernel.gemm.tile_overhead_cycles": 3400.0,
        "kernel.attention.cudnn.forward.eta": 0.55,
        "kernel.streaming.copy.bandwidth_share": 0.8,
        "kernel.gemm.efficiency.fp16": 0.9,
    }
    truth = bare.with_values(true)
    rows = made_rows(truth, recorded_rows(files_=("kernels.jsonl", "kernels_steady.jsonl")))
    fitted, solutions = fit_times(collect(rows), bare, priors_for(facts_of("h200-sxm").device))
    for name, value in true.items():
        assert fitted[name] == pytest.approx(value, rel=0.02), name
    spread = {n: float(e) for s in solutions for n, e in zip(s.names, np.sqrt(np.diag(s.covariance)), strict=True)}
    assert all(abs(fitted[name] - value) < 3 * spread[name] for name, value in true.items())


def test_rows_that_only_validate_are_left_out_and_counted():
    rows = recorded_rows(files_=("kernels_steady.jsonl",))[:8]
    block = Row("block", "block", {"op": "block"}, Measured(time_s=1.0))
    plain = fit_all(rows, facts_of("h200-sxm"), cross_validate=False)
    mixed = fit_all([*rows, block], facts_of("h200-sxm"), cross_validate=False)
    assert (mixed.rows, mixed.left_out) == (plain.rows, 1)
    assert mixed.description.to_dict() == plain.description.to_dict()


def test_no_usable_row_is_refused():
    with pytest.raises(InputError, match="no row"):
        fit_all([Row("idle", "idle", {"op": "idle"}, Measured(power_w=100.0))], facts_of("h200-sxm"))


def test_nothing_of_an_older_fit_reaches_a_new_one():
    """A description that already has tables gives the same fit as its bare data-sheet facts."""
    rows = recorded_rows(files_=("kernels_steady.jsonl",))[:8]
    base = load_gpu("h200-sxm")
    unknown_to_fits = {**base.kernel.parameters, "gemm.efficiency.bf16": Parameter(0.5)}
    base = replace(base, kernel=replace(base.kernel, parameters=unknown_to_fits))
    old = fit_all(rows, base, name="x", cross_validate=False).description
    new = fit_all(rows, facts_of("h200-sxm"), name="x", cross_validate=False).description
    for name, table in new.tables.items():
        assert {k: p.value for k, p in table.parameters.items()} == {
            k: p.value for k, p in old.tables[name].parameters.items()
        }


def test_a_nearly_singular_covariance_stays_usable_when_it_is_rounded() -> None:
    """Spreads are kept to three digits; correlations must not change with them, or they contradict each other."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        mixed = rng.normal(size=(30, 4)) @ rng.normal(size=(4, 30)) + 0.05 * rng.normal(size=(30, 30))
        covariance = mixed @ mixed.T * np.outer(scale := 10.0 ** rng.uniform(-8, 2, 30), scale)
        names = tuple(f"kernel.x{i}" for i in range(30))
        kept, found = joint_covariance("kernel", [Solution(names, np.ones(30), covariance, np.ones(30))])
        spread = np.sqrt(np.diag(found))
        assert len(kept) > 20
        assert np.linalg.eigvalsh(found / np.outer(spread, spread))[0] > 0.0
        places = [int(name.removeprefix("x")) for name in kept]
        assert spread == pytest.approx(np.sqrt(np.diag(covariance))[places], rel=6e-3)
