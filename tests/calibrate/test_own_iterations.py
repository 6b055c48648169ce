"""A card that calibrated itself for 100 s, held against training iterations that it then ran."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

from joulecast.calibrate.sessions.replay import fit_folder
from joulecast.model.hardware.description_writer import dump_description
from joulecast.validate.suites import run_suite

CARD = ROOT / "validate" / "recorded" / "h100_sxm" / "card-3"


def errors(out: Path, *, alone: bool) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors of the iterations' times and energies, forecast from the card's own description."""
    out.write_text(dump_description(fit_folder(CARD, alone=alone).description.to_dict()), encoding="utf-8")
    rows = run_suite("train", CARD / "train.jsonl", gpu=str(out)).to_dict()["rows"]
    time, energy = (
        np.array([r["predicted"][q] / r["measured"][q] - 1.0 for r in rows]) for q in ("time_s", "energy_j")
    )
    return time, energy


@pytest.mark.parametrize(("alone", "time_error", "energy_error"), [(True, 0.034, 0.02), (False, 0.036, 0.02)])
def test_a_calibrated_card_forecasts_its_own_iterations(tmp_path, monkeypatch, alone, time_error, energy_error):
    """Beside recordings whose products have no counted clock, taken as reported, they were 5.8 % short.

    Cross-validation, which would only widen the intervals, is left out.
    """
    monkeypatch.setattr("joulecast.calibrate.sessions.replay.CROSS_VALIDATED_ROWS", 10**9)
    time, energy = errors(tmp_path / "card.toml", alone=alone)
    assert len(time) == 6
    assert np.abs(time).mean() < time_error
    assert np.abs(energy).mean() < energy_error
