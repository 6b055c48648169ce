"""Which rows of a sweep keep to its constraints, or may, and which constraint is the tightest: by hand, of few rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from joulecast.errors import InputError
from joulecast.plan.sweep import choose
from joulecast.plan.sweep.space import Space, space_from_dict


def space(*minimise: str, **constraints: float) -> Space:
    return space_from_dict(
        {
            "workload": {"model": "llama-3.2-1b", "sequence_length": 4096, "global_batch_size": 8},
            "cluster": {"gpu": "h200-sxm", "gpus": 4},
            "objective": {"minimise": list(minimise or ("time",))},
            "constraints": constraints,
        }
    )


def row(time_s: float, energy_j: float = 1.0, *, doubt: str = "", tokens: int = 1, **more: Any) -> dict[str, Any]:
    return {"time_s": time_s, "energy_j": energy_j, "doubt": doubt, "tokens": tokens, **more}


def test_rows_in_closed_form_may_be_off_by_four_per_cent_and_doubtful_ones_by_eight() -> None:
    rows = [row(time, doubt=why) for time in (1.0, 1.03, 1.05, 1.09) for why in ("", "few")]
    kept = choose.is_feasible(rows, space(max_time_s=1.0), choose.slack_of(rows))
    assert kept.tolist() == [True, True, True, True, False, True, False, False]
    assert choose.is_feasible(rows, space(max_time_s=1.0)).tolist() == [True, True] + [False] * 6
    assert choose.left_out_by_constraint(rows, space(max_time_s=1.0)) == {"max_time_s": 6}


@pytest.mark.parametrize("limit", choose.LIMITS, ids=lambda limit: limit.key)
def test_a_bound_is_any_number_above_zero(limit: choose.Limit) -> None:
    least = 1 if limit.key == "max_gpus" else 1e-6
    assert choose.stated_constraints(space(**{limit.key: least}).constraints) == [(limit, least)]
    if limit.key != "min_memory_margin":
        with pytest.raises(InputError, match=limit.key):
            space(**{limit.key: 0})


def test_what_is_counted_has_no_slack() -> None:
    rows = [row(1.0, gpus=gpus, memory_margin=margin) for gpus, margin in ((8, 0.1), (9, 0.1), (8, 0.099))]
    held = space(max_gpus=8, min_memory_margin=0.1)
    assert choose.is_feasible(rows, held, choose.slack_of(rows)).tolist() == [True, False, False]
    assert choose.left_out_by_constraint(rows, held) == {"max_gpus": 1, "min_memory_margin": 1}


def test_rows_are_better_by_more_than_they_may_be_off() -> None:
    kept = [row(1.0, 10.0), row(2.0, 5.0)]
    rows = [row(0.97, 20.0), row(0.95, 20.0), row(0.95, 20.0, doubt="few"), row(0.91, 20.0, doubt="few")]
    rows += [row(9.0, 4.7), row(9.0, 4.9)]
    better = choose.possibly_better(rows, kept, space("time", "energy"))
    assert better == [rows[1], rows[3], rows[4]]


def test_objectives_are_for_one_token() -> None:
    """Twice the batch in less than twice the time is better."""
    rows = [row(1.0, 8.0, tokens=10), row(1.9, 18.0, tokens=20)]
    assert choose.objectives(rows, space("time", "energy")).tolist() == [
        [pytest.approx(0.1), pytest.approx(0.8)],
        [pytest.approx(0.095), pytest.approx(0.9)],
    ]


def refused(rows, asked, *what, **kept):  # type: ignore[no-untyped-def]
    """The error where no row keeps to the constraints."""
    return choose.nothing_feasible(choose.nearest_bounds(rows, asked), asked, *what, **kept)


def test_the_tightest_constraint_asks_for_the_least_change_relative_to_it() -> None:
    """10 J over 100 J is a tenth; 0.2 s over 1 s a fifth, though it is a smaller number."""
    rows = [row(1.2, 90.0), row(0.9, 110.0)]
    error = refused(rows, space(max_time_s=1.0, max_energy_j=100.0), "plan")
    assert "the tightest is max_energy_j = 100: the nearest feasible value, all others kept, is 110" in error.message
    (nearest,) = choose.nearest_to_feasible(rows, space(max_time_s=1.0, max_energy_j=100.0), 1)
    assert nearest is rows[1]


def test_what_is_just_met_asks_for_no_change() -> None:
    """The plan of 8 GPUs keeps to its bound: time alone is to be loosened, which one of 9 GPUs is nearer to."""
    asked = space(max_time_s=1.0, max_gpus=8)
    rows = [row(1.2, gpus=8), row(1.15, gpus=9), row(0.9, gpus=16)]
    assert choose.nearest_bounds(rows, asked) == {"max_time_s": 1.2}
    assert choose.nearest_to_feasible(rows, asked, 1) == rows[:1]


def test_where_no_single_constraint_suffices_the_plan_nearest_to_all_is_told() -> None:
    """Both rows break both: one by 50 and 1 %, the other by 20 and 30 %, whose worst is the smaller."""
    rows = [row(1.5, 101.0), row(1.2, 130.0)]
    error = refused(rows, space(max_time_s=1.0, max_energy_j=100.0), "plan", kept=True)
    assert "the tightest is max_energy_j = 100: no single constraint suffices" in error.message
    assert error.message.endswith("has max_energy_j 130, max_time_s 1.2")
    assert error.remedy is not None and error.remedy.startswith("Loosen these and go on with --resume")
    assert choose.nearest_to_feasible(rows, space(max_time_s=1.0, max_energy_j=100.0), 1) == [rows[1]]


def test_the_value_that_is_told_would_be_kept_to() -> None:
    """Five digits, up for what must be below and down for what must be above."""
    over = refused([row(1.2345678)], space(max_time_s=1.0), "plan")
    assert over.message.endswith("is 1.2346")
    under = refused([row(1.0, memory_margin=0.123456)], space(min_memory_margin=0.5), "plan")
    assert under.message.endswith("is 0.12345")
    near = [row(1.0, money=math.nextafter(0.7, 1.0), memory_margin=math.nextafter(0.007, 0.0))]
    for asked in (space(max_money=0.5), space(min_memory_margin=0.5)):  # values a rounding away from one of few digits
        told = choose.nearest_bounds(near, asked)
        assert choose.is_feasible(near, space(**told)).all(), told


def test_peaks_are_taken_to_rise_above_means_as_in_what_was_simulated() -> None:
    """Peaks of the two that were simulated lie 20 and 30 % above the mean: 90 W may reach 108 W, 85 W 102 W."""
    held = space(max_site_power_w=100.0)
    pairs = [
        (row(1.0, facility_power_w=50.0), row(1.0, facility_power_w=50.0, peak_job_power_w=50.0 * rise))
        for rise in (1.3, 1.2)
    ]
    rows = [row(1.0, facility_power_w=watts) for watts in (90.0, 85.0, 40.0)]
    assert choose.probably_feasible(rows, pairs, held) == rows[1:]


def test_where_nothing_is_emitted_nothing_rises() -> None:
    """Of two sites the one without carbon: its plans keep to any bound, the other's as they rose."""
    held = space(max_carbon_kg=1.0)
    free, other = row(1.0, carbon_kg=0.0), row(1.0, carbon_kg=0.5)
    pairs = [(free, free), (other, row(1.0, carbon_kg=0.6))]
    rows = [row(1.0, carbon_kg=kg) for kg in (0.0, 0.8, 0.9)]
    assert choose.probably_feasible(rows, pairs, held) == rows[:2]
    assert choose.probably_feasible(rows, pairs[:1], held) == rows


def test_of_a_front_rows_are_taken_evenly_and_then_what_lies_behind() -> None:
    """Five rows of a front and one behind it: its ends and its middle first, the beaten one last."""
    values = np.array([[1.0, 9.0], [2.0, 7.0], [3.0, 5.0], [4.0, 3.0], [5.0, 1.0], [5.0, 9.0]])
    assert choose.best(values, 3).tolist() == [0, 2, 4]
    assert choose.best(values, 6).tolist() == [0, 1, 2, 3, 4, 5]
    assert choose.is_undominated(values).tolist() == [True] * 5 + [False]
