"""Facts of a description that cannot be, and parameters that it lacks."""

from __future__ import annotations

from importlib.resources import files

import pytest

from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.description_file import parse_description
from joulecast.model.hardware.gpu_model import gpu_model

SHIPPED = files("joulecast.model").joinpath("catalogue_data", "gpus", "h200-sxm-rows.toml").read_text("utf-8")


def failure(old: str, new: str) -> str:
    assert SHIPPED.count(old) == 1
    with pytest.raises(InputError) as caught:
        parse_description(SHIPPED.replace(old, new), file="x.toml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "\nsm_count = {value = 132",
            "\nsm_count = {value = -132",
            "[device.sm_count.value]: must be above 0, found -132",
        ),
        ("\nsm_count = {value = 132", "\nsm_count = {value = 0", "must be above 0"),
        ("\nsm_count = {value = 132", "\nsm_count = {value = true", "expected a number, found True"),
        ("\nclock_step_mhz = {value = 15", "\nclock_step_mhz = {value = 0", "must be above 0"),
        ("\nmax_clock_mhz = {value = 1980", "\nmax_clock_mhz = {value = 100", "min_clock_mhz is above max_clock_mhz"),
        (
            "\npower_limit_w = {value = 700",
            "\npower_limit_w = {value = 800",
            "power_limit_w is above max_power_limit_w",
        ),
    ],
)
def test_an_impossible_fact_names_its_line(old: str, new: str, what: str) -> None:
    message = failure(old, new)
    assert message.startswith("x.toml:") and what in message


def test_a_fact_in_another_unit_is_refused() -> None:
    line = next(text for text in SHIPPED.splitlines() if text.startswith("max_clock_mhz"))
    assert "the unit must be 'MHz', found 'GHz'" in failure(line, line.replace('"MHz"', '"GHz"'))


def test_a_missing_parameter_is_an_error_with_the_nearest_name() -> None:
    gpu = gpu_model(load_gpu("h200-sxm-rows"))
    with pytest.raises(InputError, match=r"no parameter 'governor.setled_share'.*It has 'governor.settled_share'"):
        gpu["governor.setled_share"]
