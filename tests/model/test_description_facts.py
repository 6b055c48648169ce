"""Facts of a description that cannot be, and parameters that it lacks."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.description_file import parse_description, parse_facts
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


def stated(name: str, value: str) -> str:
    """What is said of a fact of the shipped H200 with this value."""
    line = next(text for text in SHIPPED.splitlines() if text.startswith(f"{name} = "))
    return failure(f"\n{line}", f"\n{re.sub(r'value = [^,]+', f'value = {value}', line)}")


@pytest.mark.parametrize(
    "name",
    ["sm_count", "release_year", "memory_bytes", "registers_per_sm", "max_threads_per_sm", "link_count"],
)
def test_what_is_counted_comes_in_whole_numbers(name: str) -> None:
    assert f"[device.{name}.value]: must be a whole number, found" in stated(name, "2016.5")


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("memory_bytes", "141", "must be at least 1e+08 B, found 141; is it in another unit?"),
        ("max_clock_mhz", "1.98", "must be at least 10 MHz, found 1.98; is it in another unit?"),
        ("max_clock_mhz", "1.98e9", "must be at most 20000 MHz, found 1.98e+09; is it in another unit?"),
        ("memory_bandwidth_bytes_per_s", "4800", "must be at least 1e+08 B/s, found 4800; is it in another unit?"),
        ("shared_memory_per_sm_bytes", "228", "must be at least 1024 B"),
        ("link_bandwidth_bytes_per_s", "450", "must be at least 1e+08 B/s"),
        ("power_limit_w", "0.7", "must be at least 1 W, found 0.7; is it in another unit?"),
        ("sm_count", "1e9", "must be at most 100000, found 1e+09"),
    ],
)
def test_numbers_in_another_unit_than_their_own_are_refused(name: str, value: str, what: str) -> None:
    assert what in stated(name, value)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("idle_power_w", "700", "[device.idle_power_w]: 700 W at idle leave nothing of the limit of 700 W"),
        ("clock_step_mhz", "5000", "[device.clock_step_mhz]: a step of 5000 MHz leaves no clock between 345 and 1980"),
        ("supports_memory_clock_states", "7, sd = 0", "expected true or false, found 7"),
    ],
)
def test_facts_that_cannot_hold_beside_each_other_are_refused(name: str, value: str, what: str) -> None:
    assert what in stated(name, value)


@pytest.mark.parametrize(
    ("kind", "file", "name", "value", "what"),
    [
        ("node", "nodes/hgx-h100", "supply_efficiency", "95", "must be at most 1, found 95"),
        ("node", "nodes/hgx-h100", "gpus_per_node", "7.5", "must be a whole number, found 7.5"),
        ("node", "nodes/hgx-h100", "cpu_idle_power_w", "9999", "cpu_idle_power_w is above cpu_training_power_w"),
        ("network", "networks/infiniband-ndr", "bandwidth_efficiency", "92", "must be at most 1, found 92"),
        ("network", "networks/infiniband-ndr", "latency_s", "2", "must be at most 0.1 s, found 2; is it in"),
        ("site", "sites/default", "pue", "125", "must be at most 10, found 125"),
        ("site", "sites/default", "carbon_intensity_kg_per_kwh", "370", "must be at most 5 kg/kWh, found 370"),
    ],
)
def test_nodes_networks_and_sites_are_held_to_their_units_too(
    kind: str, file: str, name: str, value: str, what: str
) -> None:
    text = files("joulecast.model").joinpath(f"catalogue_data/{file}.toml").read_text("utf-8")
    wrong, changes = re.subn(rf"(?m)^({name} = \{{value = )[^,]+", rf"\g<1>{value}", text)
    assert changes == 1
    with pytest.raises(InputError) as caught:
        parse_facts(kind, wrong, file="x.toml")
    assert what in str(caught.value)


def test_a_unit_that_is_not_the_facts_is_refused() -> None:
    line = next(text for text in SHIPPED.splitlines() if text.startswith("max_clock_mhz"))
    assert "the unit must be 'MHz', found 'GHz'" in failure(line, line.replace('"MHz"', '"GHz"'))


def test_a_missing_parameter_is_an_error_with_the_nearest_name() -> None:
    gpu = gpu_model(load_gpu("h200-sxm-rows"))
    with pytest.raises(InputError, match=r"no parameter 'governor.setled_share'.*It has 'governor.settled_share'"):
        gpu["governor.setled_share"]
