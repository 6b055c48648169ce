"""Intervals of a description against rows of cards and kernels that it has not met."""

from importlib.resources import files

import numpy as np
import pytest

from joulecast.validate import run_suite

#: Recordings of ten cards; the description is fitted to none of them.
CARDS = range(10)
#: Least share of their rows within the 90 % intervals [%]: they ran kinds of kernels that its rows leave out, and kinds
#: differ by more than the kernels of one do.
INSIDE = 74.0
#: Largest half-width over the mean absolute error: wide intervals hold everything.
WIDTH = 2.0


@pytest.fixture(scope="module")
def rows():
    folder = files("joulecast.calibrate").joinpath("recorded", "h200_sxm_live")
    found = [
        row
        for card in CARDS
        for row in run_suite("kernels", folder / f"card-{card}" / "recording.jsonl", gpu="h200-sxm-rows").rows
    ]
    assert len(found) > 400
    return found


@pytest.mark.parametrize("quantity", ["time_s", "energy_j"])
def test_intervals_hold_most_rows_of_other_cards(rows, quantity):
    known = [row for row in rows if getattr(row.measured, quantity)]
    measured = np.array([getattr(row.measured, quantity) for row in known])
    middle, low, high = (
        np.array([getattr(row.prediction, f"{quantity}{end}") for row in known]) for end in ("", "_p05", "_p95")
    )
    assert 100.0 * np.mean((low <= measured) & (measured <= high)) >= INSIDE
    half, error = 0.5 * (high - low) / middle, np.abs(middle / measured - 1.0)
    assert half.mean() < WIDTH * error.mean()
