"""Rows of named cards alone describe the mean of them: what all have in common is not left to the cards' factors."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.fit.device_priors import priors_for
from joulecast.calibrate.fit.power import at_rest, fit_power, power_at_observed_clock_w
from joulecast.calibrate.fit.tables import collect
from joulecast.calibrate.rows.measured import recorded_rows
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model

#: Power of either card over the model's [1].
MORE = {"card-a": 1.06, "card-b": 1.04}


@pytest.fixture(scope="module")
def known():
    return gpu_model(load_gpu("h200-sxm"))


@pytest.fixture(scope="module")
def priors(known):
    """As sure as those of a card whose kin are calibrated."""
    plain = priors_for(load_gpu("h200-sxm").device).power
    return {name: replace(prior, start=known[name], rel_sd=0.05) for name, prior in plain.items()}


def rows_of(known, card):
    rows = [r for r in recorded_rows(files_=("kernels_steady.jsonl",)) if r.measured.power_w][::3]
    expected = power_at_observed_clock_w(collect(rows), known)
    return [
        replace(
            row,
            configuration={**row.configuration, **({"card": card} if card else {})},
            measured=replace(row.measured, power_w=float(MORE.get(card, 1.0) * power)),
        )
        for row, power in zip(rows, expected, strict=True)
    ]


def described_over_known(rows, known, priors):
    """Mean power that the fitted description gives a card without a name, over what made the rows [1]."""
    fitted, _ = fit_power(collect(rows), collect([]), at_rest([]), known, priors)
    plain = collect(rows_of(known, ""))
    ratio = power_at_observed_clock_w(plain, fitted) / power_at_observed_clock_w(plain, known)
    return float(np.mean(ratio))


def test_the_mean_of_named_cards_is_described(known, priors):
    rows = [row for card in MORE for row in rows_of(known, card)]
    assert described_over_known(rows, known, priors) == pytest.approx(1.05, abs=0.006)


def test_a_card_of_its_own_is_described_by_its_rows(known, priors):
    rows = [*rows_of(known, ""), *rows_of(known, "card-a")]
    assert described_over_known(rows, known, priors) == pytest.approx(1.0, abs=0.006)
