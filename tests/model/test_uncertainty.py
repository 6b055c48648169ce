"""Intervals: parameters that vary together, and the errors of the form."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.fit.form_errors import (
    LEAST_DISCREPANCY,
    TAILS,
    TAILS_95,
    form_spread,
    likeliest_scale,
    likely_form_spread,
)
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.estimated_forms import ESTIMATED_FORMS
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.families import FAMILIES
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Gemm, Streaming
from joulecast.model.predict import parameter_spread, predict_work
from joulecast.model.repeated_work import Work
from joulecast.model.uncertainty import (
    COMPOSITION,
    DIRECTIONS,
    MOVING,
    NINETY_PERCENT,
    STEP,
    UNKNOWN_DISCREPANCY,
    changes,
    composed_spread,
    deviations,
    discrepancy,
    ends,
    form_spreads,
    same_kernels,
    spread_of,
)

PRODUCT, COPY = Gemm(8192, 8192, 8192), Streaming("copy", 1e9, 1e9)


@pytest.fixture(scope="module")
def description():
    return load_gpu("h200-sxm-rows")


def only(description, table, **spreads):
    """A description in which nothing but these parameters of one table is uncertain."""
    tables = {}
    for name, content in description.tables.items():
        sure = {key: replace(p, sd=0.0) for key, p in content.parameters.items()}
        if name == table:
            sure |= {key: replace(sure[key], sd=sd) for key, sd in spreads.items()}
        tables[name] = replace(content, parameters=sure, covariance_names=(), covariance=np.zeros((0, 0)))
    return replace(description, **tables)


def test_deviations_reproduce_the_covariance(description):
    """Over all directions the mean square of every joint parameter's deviation is its variance."""
    table = description.power
    names = [n if n in table.parameters else None for n in table.covariance_names]
    value = np.array([[d.get(f"power.{n}", np.nan) for n in names] for d in deviations(description)])
    centre = np.array([np.nan if n is None else table[n] for n in names])
    spread = np.sqrt(np.mean(((value - centre) / STEP) ** 2, axis=0))
    expected = np.sqrt(np.diag(table.covariance))
    free = np.isfinite(spread) & (centre > 3 * expected)  # not held above zero
    assert free.sum() > 10
    ratio = spread[free] / expected[free]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.15)
    assert np.all((ratio > 0.4) & (ratio < 2.0))


def test_one_parameter_gives_its_own_sensitivity(description):
    """A kernel's time is inversely proportional to its efficiency: 2 % of one are 2 % of the other."""
    name = "attention.cudnn.forward.eta"
    gpu = gpu_model(only(description, "kernel", **{name: 0.02 * description.kernel[name]}))
    long = Work((Attention(1, 32, 8, 16384, 128),))
    time, energy, _ = parameter_spread([long, Work((COPY,))], gpu, clock_mhz=1200.0)
    assert time[0] == pytest.approx(0.02, rel=0.15)
    assert 0.0 < energy[0] < time[0]
    assert time[1] == energy[1] == 0.0


def test_a_wide_spread_leaves_a_tenth_of_what_is_positive(description):
    small, negative = "gemm.eta", "gemm.fixed_s"
    wide = only(description, "kernel", **{small: 5.0, negative: 3.0})
    value = wide.kernel.parameters[negative]
    table = replace(wide.kernel, parameters={**wide.kernel.parameters, negative: replace(value, value=-1.0)})
    found = deviations(replace(wide, kernel=table))
    eta = wide.kernel[small]
    assert 0.0 < eta < 1.0
    assert {round(d[f"kernel.{small}"], 9) for d in found} == {round(0.1 * eta, 9), round(eta + 2.5, 9)}
    assert {round(d[f"kernel.{negative}"], 9) for d in found} == {-2.5, 0.5}


def test_at_the_power_limit_energy_errs_as_time_does(description):
    """A more power-hungry kernel runs at a lower clock under the same power."""
    gpu = gpu_model(only(description, "power", **{"tensor_pj_per_flop.bf16": 0.1}))
    time, energy, _ = parameter_spread([Work((PRODUCT,))], gpu)
    assert time[0] > 0.01
    assert energy[0] == pytest.approx(time[0], rel=0.05)
    locked_time, locked_energy, _ = parameter_spread([Work((PRODUCT,))], gpu, clock_mhz=1000.0)
    assert locked_time[0] == pytest.approx(0.0, abs=1e-9)
    assert locked_energy[0] > 0.03


def test_a_certain_description_has_no_spread(description):
    time, energy, _ = parameter_spread([Work((PRODUCT,))], gpu_model(only(description, "kernel")))
    assert time[0] == energy[0] == 0.0
    assert deviations(description)[0].keys() == deviations(description)[DIRECTIONS - 1].keys()


def test_intervals_of_single_kernels(description):
    forecast = predict_work([Work((PRODUCT,)), Work((COPY,))], gpu_model(description))
    for value, low, high in (
        (forecast.time_s, forecast.time_s_p05, forecast.time_s_p95),
        (forecast.energy_j, forecast.energy_j_p05, forecast.energy_j_p95),
    ):
        assert np.all(low < value) and np.all(value < high)
        assert low * high == pytest.approx(value**2)
    form = discrepancy(description, "time")[FAMILIES.index("gemm")]
    own = parameter_spread([Work((PRODUCT,))], gpu_model(description))[0][0]
    expected = np.exp(NINETY_PERCENT * np.hypot(form, own))
    assert forecast.time_s_p95[0] / forecast.time_s[0] == pytest.approx(expected)
    assert min(form, own) > 0.0


def test_a_model_without_description_has_no_intervals(h200):
    assert predict_work([Work((PRODUCT,))], h200).time_s_p05 is None


def composed(description, operators, amounts):
    costs = lower(operators, gpu_model(description))
    owner = np.zeros(len(operators), dtype=np.int64)
    return float(composed_spread(np.array(amounts, dtype=float), owner, costs, description, "time")[0])


def test_repetitions_of_one_kernel_err_alike_and_different_ones_apart(description):
    one = composed(description, [PRODUCT], [1.0])
    assert one == pytest.approx(discrepancy(description, "time")[FAMILIES.index("gemm")])
    assert composed(description, [PRODUCT, replace(PRODUCT, name="again")], [1.0, 1.0]) == pytest.approx(one)
    two = composed(description, [PRODUCT, Gemm(4096, 8192, 8192)], [1.0, 1.0])
    assert two == pytest.approx(np.sqrt(one**2 / 2 + COMPOSITION**2))


def test_only_work_tells_kernels_apart(h200):
    costs = lower([PRODUCT, replace(PRODUCT, name="x"), COPY, Attention(1, 32, 8, 4096, 128), PRODUCT], h200)
    same = same_kernels(costs)
    assert same[0] == same[1] == same[4]
    assert len(set(same.tolist())) == 3


def test_each_piece_of_work_has_its_own_spread(description):
    costs = lower([PRODUCT, COPY, PRODUCT], gpu_model(description))
    spread = composed_spread(np.ones(3), np.array([0, 1, 2]), costs, description, "time")
    assert spread[0] == spread[2] != spread[1]


def test_ends_and_changes():
    low, high = ends(np.array([2.0]), np.array([0.1]))
    assert (low[0], high[0]) == pytest.approx((2 * np.exp(-0.1645), 2 * np.exp(0.1645)))
    base = np.array([1.0, 1.0])
    changed = np.exp(STEP * np.array([[0.1, 0.0], [-0.1, 0.0]]))
    assert spread_of(changes(base, changed)) == pytest.approx([0.1, 0.0])


def test_the_form_takes_what_the_parameters_leave():
    rng = np.random.default_rng(3)
    errors = 0.05 * rng.standard_normal(4000)
    assert form_spread(errors, np.zeros(4000)) == pytest.approx(0.05, rel=0.05)
    assert form_spread(errors, np.full(4000, 0.03)) == pytest.approx(0.04, rel=0.05)
    assert form_spread(errors, np.full(4000, 0.2)) == 0.005
    assert form_spread(np.append(errors, np.nan), np.zeros(4001)) == pytest.approx(0.05, rel=0.05)


def test_uncertain_rows_say_little_about_the_form():
    """Rows that any interval holds must not stand in for those that none does."""
    rng = np.random.default_rng(4)
    sure, open_ = 0.03 * rng.standard_t(TAILS, 60) * NINETY_PERCENT / TAILS_95, 0.05 * rng.standard_normal(12)
    errors, spreads = np.append(sure, open_), np.append(np.zeros(60), np.full(12, 0.2))
    assert form_spread(errors, spreads) < 0.92 * form_spread(sure, np.zeros(60))
    alone = likely_form_spread(sure, np.zeros(60), np.arange(60))
    assert alone == pytest.approx(0.03, rel=0.2)
    assert likely_form_spread(errors, spreads, np.arange(72)) == pytest.approx(alone, rel=0.05)


def test_rows_of_one_kernel_count_as_one():
    rng = np.random.default_rng(5)
    errors = 0.02 * rng.standard_normal(40)
    best = int(np.argmin(np.abs(errors)))
    again = np.append(errors, np.full(400, errors[best]))
    kernel = np.append(np.arange(40), np.full(400, best))
    once = likely_form_spread(errors, np.zeros(40), np.arange(40))
    assert likely_form_spread(again, np.zeros(440), kernel) == pytest.approx(once, rel=0.02)
    assert likely_form_spread(again, np.zeros(440), np.arange(440)) < 0.9 * once


def test_few_kernels_leave_their_form_open():
    """Intervals from five kernels hold 90 % of further ones, on average over many such families."""
    rng = np.random.default_rng(6)
    held = []
    for _ in range(400):
        errors = 0.03 * rng.standard_t(TAILS, 6)
        spread = likely_form_spread(errors[:5], np.zeros(5), np.arange(5))
        held.append(abs(errors[5]) < NINETY_PERCENT * spread)
    assert 0.86 < np.mean(held) < 0.96


def test_a_family_of_few_kernels_resembles_the_others():
    errors = 0.2 * np.array([0.8, -1.1, 1.0, -0.7])
    alone, beside = (likely_form_spread(errors, np.zeros(4), np.arange(4), usual=usual) for usual in (None, 0.02))
    assert 0.5 * alone < beside < 0.85 * alone
    many, among = np.tile(errors, 25), np.arange(100)
    alone, beside = (likely_form_spread(many, np.zeros(100), among, usual=usual) for usual in (None, 0.02))
    assert 0.97 * alone < beside < alone


def test_rows_behind_a_limit_bound_an_error_and_no_more():
    """Of a board that holds 700 W: neither all rows nor those below it alone tell how far demands are off."""
    rng = np.random.default_rng(7)
    forecast = rng.uniform(600.0, 1000.0, 3000)
    demand = forecast * np.exp(-0.1 * rng.standard_t(TAILS, 3000))
    held = demand > 700.0
    errors, nothing, kernel = np.log(forecast / np.minimum(demand, 700.0)), np.zeros(3000), np.arange(3000)
    assert 0.5 < np.mean(held) < 0.9
    assert likeliest_scale(errors, nothing, kernel, bound=held) == pytest.approx(0.1, rel=0.06)
    assert likeliest_scale(errors, nothing, kernel) > 0.15
    some = ~held
    assert likeliest_scale(errors[some], nothing[some], kernel[some]) > 0.11


def test_rows_that_only_bound_do_not_make_a_form_surer():
    """A family of two kernels below the limit and many at it is as open as one of these two."""
    errors, bound = np.append([0.05, -0.05], np.full(50, 0.5)), np.append([False, False], np.full(50, True))
    few = likely_form_spread(errors[:2], np.zeros(2), np.arange(2))
    assert likely_form_spread(errors, np.zeros(52), np.arange(52), bound=bound) == pytest.approx(few, rel=0.05)


def test_what_was_not_measured_is_unknown():
    assert likely_form_spread(np.zeros(0), np.zeros(0), np.zeros(0, dtype=int)) == UNKNOWN_DISCREPANCY
    assert likely_form_spread(np.full(3, 1e-5), np.zeros(3), np.arange(3)) >= LEAST_DISCREPANCY


def test_kernels_that_pieces_share_err_alike_in_their_ratio(h200, description):
    """Pieces of 2, 3 and 1 products beside copies: what a product errs shows by how much its share differs."""
    costs = lower([PRODUCT, COPY, Gemm(4096, 4096, 4096)], h200)
    amount = np.array([[2.0, 1.0, 1.0], [3.0, 1.0, 0.0], [4.0, 0.0, 0.0]])
    product, copy, _ = discrepancy(description, "time")[costs.family]
    pieces, ratios = form_spreads(amount, np.zeros(3, dtype=int), np.array([0, 1, 0]), costs, description, "time")
    several = COMPOSITION**2 + (0.25 * MOVING) ** 2
    first = np.sqrt((0.5 * product) ** 2 + (0.25 * copy) ** 2 + (0.25 * product) ** 2 + several)
    second = np.sqrt((0.75 * product) ** 2 + (0.25 * copy) ** 2 + several)
    assert pieces == pytest.approx([first, second, product])
    # Both kinds of products err alike: 3/4 of the first two pieces, all of the third, which has no copy.
    assert ratios == pytest.approx([0.0, 0.0, 0.25 * np.sqrt(product**2 + copy**2 + MOVING**2)])


def test_a_kernel_is_counted_in_every_piece_apart(h200, description):
    costs = lower([PRODUCT, COPY, PRODUCT, PRODUCT, COPY], h200)
    product, copy = (float(v) for v in discrepancy(description, "energy")[costs.family[:2]])
    owner = np.array([0, 0, 1, 1, 2])
    found = composed_spread(np.array([3.0, 1.0, 2.0, 5.0, 7.0]), owner, costs, description, "energy", 4)
    moved = COMPOSITION**2 + (0.25 * MOVING) ** 2
    assert found[0] == pytest.approx(np.sqrt((0.75 * product) ** 2 + (0.25 * copy) ** 2 + moved))
    assert list(found[1:]) == pytest.approx([product, copy, 0.0])


def test_kernels_of_one_estimate_err_alike(description):
    """What is wrong with a constant is wrong in every kernel that rests on it, and cancels where shares are equal."""
    fp8 = [Gemm(n, 8192, 8192, dtype="fp8", out_dtype="bf16") for n in (4096, 8192)]
    one, two = composed(description, fp8[:1], [1.0]), composed(description, fp8, [1.0, 1.0])
    assert one == pytest.approx(ESTIMATED_FORMS["gemm_fp8"]["time"])
    assert two == pytest.approx(np.hypot(one, COMPOSITION))
    costs = lower(fp8, gpu_model(description))
    amount, first = np.array([[3.0, 1.0], [1.0, 3.0]]), np.zeros(2, dtype=int)
    pieces, ratios = form_spreads(amount, first, np.arange(2), costs, description, "time")
    assert pieces == pytest.approx([np.hypot(one, COMPOSITION)] * 2)
    assert ratios == pytest.approx([0.0, 0.0])


def test_what_a_derived_card_adds_to_an_estimate_differs_between_kernels():
    card = load_gpu("h100-sxm")
    fp8 = [Gemm(n, 8192, 8192, dtype="fp8", out_dtype="bf16") for n in (4096, 8192)]
    one, two = composed(card, fp8[:1], [1.0]), composed(card, fp8, [1.0, 1.0])
    alike = ESTIMATED_FORMS["gemm_fp8"]["time"]
    assert one**2 == pytest.approx(alike**2 + 0.15**2)
    assert two**2 == pytest.approx(alike**2 + 0.15**2 / 2 + COMPOSITION**2)


def test_what_a_description_knows_of_a_form_wins(description):
    own = {**description.kernel.discrepancy, "gemm_fp8": {"time": 0.5, "energy": 0.4}}
    stated = replace(description, kernel=replace(description.kernel, discrepancy=own))
    assert discrepancy(stated, "time")[FAMILIES.index("gemm_fp8")] == 0.5


def test_a_derived_card_adds_its_distance_to_estimated_forms():
    relative, other = load_gpu("h100-sxm"), load_gpu("mi300x")
    for gpu, products, rest in ((relative, 0.15, 0.09), (other, 0.15, 0.15)):
        known = gpu.kernel.discrepancy
        own = ESTIMATED_FORMS["gemm_fp8"]
        assert known["gemm_fp8"]["time"] == pytest.approx(np.hypot(own["time"], products))
        assert known["gemm_fp8"]["energy"] == pytest.approx(np.hypot(own["energy"], rest))
        assert known["streaming_issued"]["time"] == pytest.approx(
            np.hypot(ESTIMATED_FORMS["streaming_issued"]["time"], rest)
        )
