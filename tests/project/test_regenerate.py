"""The shipped fit follows from the shipped rows alone, to the byte."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from joulecast.calibrate.descriptions.from_rows import SHIPPED_NAME, fit_rows
from joulecast.calibrate.rows.measured import recorded_rows
from joulecast.calibrate.sessions.replay import fit_folder
from joulecast.model.hardware.description_writer import dump_description

RECORDINGS = Path(str(files("joulecast.calibrate").joinpath("recorded", "h200_sxm_live")))


def shipped_text(name):
    return files("joulecast.model").joinpath("catalogue_data", "gpus", f"{name}.toml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_shipped_parameters_follow_from_the_shipped_rows():
    """Values, uncertainties and covariances to the byte; how far the forms are off takes five fits more."""

    def parameters(text):
        return re.sub(r"\[\w+\.discrepancy\S*\]\n(?:[^\[\n].*\n|\n)*", "", text).splitlines()

    fitted = parameters(dump_description(fit_rows(cross_validate=False).description.to_dict()))
    assert len(fitted) > 500
    assert fitted == parameters(shipped_text(SHIPPED_NAME))


@pytest.mark.slow
@pytest.mark.long
def test_the_shipped_description_follows_from_the_shipped_rows():
    shipped = files("joulecast.model").joinpath("catalogue_data", "gpus", f"{SHIPPED_NAME}.toml")
    regenerated = dump_description(fit_rows().description.to_dict())
    differing = [
        (old, new)
        for old, new in zip(shipped.read_text("utf-8").splitlines(), regenerated.splitlines(), strict=False)
        if old != new
    ]
    assert not differing, "run `make regenerate` and commit the description; the first difference is above"
    assert regenerated.encode() == shipped.read_bytes()


def test_rows_that_only_validate_are_not_shipped():
    recorded = files("joulecast.calibrate").joinpath("recorded", "h200_sxm")
    names = {entry.name for entry in recorded.iterdir()}
    assert not names & {"blocks.jsonl", "overlap.jsonl", "train_iterations.jsonl"}


@pytest.mark.slow
@pytest.mark.long
def test_the_live_calibration_replays_byte_for_byte():
    fit = fit_folder(RECORDINGS, name="h200-sxm-live")
    assert dump_description(fit.description.to_dict()) == shipped_text("h200-sxm-live")


@pytest.mark.slow
@pytest.mark.long
def test_the_default_description_follows_from_all_rows_and_recordings():
    fit = fit_folder(RECORDINGS, name="h200-sxm", rows=recorded_rows())
    assert dump_description(fit.description.to_dict()) == shipped_text("h200-sxm")
