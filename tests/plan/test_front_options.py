"""Options of an instruction: what is worth choosing, and the hull with its traps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.plan.knobs.options import Option, integer_slopes, lower_hull, make_options, quanta

WAIT_W = 80.0


def options(*points, wait_w=WAIT_W):
    """A set from (time, energy) pairs whose clocks are their places."""
    return make_options([Option(t, e, 1000.0 + i) for i, (t, e) in enumerate(points)], wait_w)


def test_time_is_rounded_up_never_down():
    assert quanta(np.array([1e-6, 1.0000001e-6, 1.9999e-6, 0.1234561])).tolist() == [1, 2, 2, 123457]
    assert quanta(np.array([0.07, 0.29, 1.1, 0.0])).tolist() == [70000, 290000, 1100000, 0]  # not 0.07 / 1e-6 + 1 ulp


@given(st.lists(st.floats(1e-7, 1e4), min_size=1))
def test_quanta_hold_the_time(times):
    whole = quanta(np.array(times)) * 1e-6
    assert (whole >= np.array(times) * (1 - 2e-9)).all()
    assert (whole < np.array(times) + 1.000001e-6).all()


def test_options_are_compared_by_cost_above_waiting_not_by_energy():
    # The slow one has more energy than the middle one, but waiting would cost more than the difference.
    found = options((1.0, 300.0), (1.2, 250.0), (1.5, 260.0))
    assert [o.energy_j for o in found.options[: found.worth]] == [300.0, 250.0, 260.0]
    assert (np.diff(found.cost_j[: found.worth]) < 0).all()
    beaten = options((1.0, 300.0), (1.2, 250.0), (1.5, 275.0))
    assert [o.energy_j for o in beaten.options[: beaten.worth]] == [300.0, 250.0]


def test_a_time_that_rises_with_the_clock_is_only_a_worse_option():
    # At the power limit a higher clock may be slower.
    found = options((0.100, 40.0), (0.103, 40.5), (0.110, 35.0), (0.102, 41.0))
    kept = found.options[: found.worth]
    assert [o.clock_mhz for o in kept] == [1000.0, 1002.0]
    assert {o.clock_mhz for o in found.options} == {1000.0, 1001.0, 1002.0, 1003.0}, "ties may still need the others"


def test_of_equal_times_the_cheaper_one_is_kept():
    found = options((0.1, 40.0), (0.1, 39.0), (0.2, 30.0))
    assert [o.energy_j for o in found.options[: found.worth]] == [39.0, 30.0]


def test_times_that_are_equal_after_rounding_make_one_corner():
    found = options((0.1000001, 40.0), (0.1000004, 39.9), (0.2, 30.0), wait_w=0.0)
    assert found.worth == 3
    assert found.hull.tolist() == [1, 2]
    ((corners, slopes),) = integer_slopes([found], [1])[0]
    assert corners.tolist() == [2, 1]
    assert (slopes > 0).all()


def test_equal_slopes_leave_out_the_corner_between_them():
    # 10 W from corner to corner to within far less than the quantum of power.
    found = options((0.1, 30.0), (0.2, 29.0), (0.3, 28.0 - 1e-13), (0.4, 27.9), wait_w=0.0)
    ((corners, slopes),), quantum = integer_slopes([found], [1])
    assert (slopes * quantum).tolist() == pytest.approx([1.0, 10.0])
    assert [found.options[i].time_s for i in corners] == [0.4, 0.3, 0.1]


def test_no_slope_is_zero():
    found = options((0.1, 30.0), (0.2, 30.0 - 1e-13), wait_w=0.0)
    ((corners, slopes),), _ = integer_slopes([found], [1])
    assert corners.tolist() == [0]
    assert not len(slopes)


def test_the_steepest_slope_lies_between_the_fastest_options():
    found, single = options((1.0, 1e6), (1.000001, 200.0), (2.0, 100.0)), options((1.0, 5.0))
    ((_, slopes), (_, none)), quantum = integer_slopes([found, single], [1000, 1])
    assert len(slopes) == 2 and 2**56 < 1000 * int(slopes[-1]) <= 2**60
    assert slopes[-1] * quantum == pytest.approx((1e6 - 200.0) / 1e-6 + WAIT_W, rel=1e-6)
    assert len(none) == 0


def test_steep_slopes_do_not_overflow():
    found = options((0.1, 1e9), (0.100001, 1.0), wait_w=0.0)
    ((_, slopes),), quantum = integer_slopes([found], [1000])
    assert quantum > 1e-9
    assert int(slopes.sum()) * 1000 < 2**61
    assert slopes[0] * quantum == pytest.approx(1e15)


points = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 400)), min_size=1, max_size=30)


@given(points)
def test_the_hull_is_strictly_convex_and_below_all_options(pairs):
    found = options(*((t * 1e-3, e * 1.0) for t, e in pairs), wait_w=3.0)
    ((corners, slopes),), quantum = integer_slopes([found], [1])
    assert (np.diff(slopes, prepend=0) > 0).all()
    time, cost = found.quanta[corners].astype(float), found.cost_j[corners]
    below = np.interp(found.quanta, time[::-1], cost[::-1])
    assert (found.cost_j >= below - 1e-9).all()
    falls = -np.diff(cost[::-1]) / np.diff(time[::-1] * 1e-6)
    assert (slopes[::-1] * quantum) == pytest.approx(falls, rel=1e-12, abs=2e-9)  # rounded to 1e-9, and by doubles


def test_hull_of_collinear_points_has_two_corners():
    assert lower_hull(np.array([1, 2, 3]), np.array([3.0, 2.0, 1.0])).tolist() == [0, 2]


@pytest.mark.parametrize(("time_s", "energy_j"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_impossible_options_are_refused(time_s, energy_j):
    with pytest.raises(InputError, match="must be positive"):
        options((time_s, energy_j))


def test_an_instruction_needs_an_option():
    with pytest.raises(InputError, match="no option"):
        make_options([], 80.0)
