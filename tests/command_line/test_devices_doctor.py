"""``joulecast doctor``: cards, their sensors, and what can be done with them."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from command import status_of

from joulecast.calibrate.devices import locator_of
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_sensors import Faults, Sensors
from joulecast.command_line import machine
from joulecast.errors import DeviceError

FIT = {"scipy", "tomlkit", "pandas", "torch", "triton"}


@pytest.fixture
def no_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)


def card(tmp_path, name="card.json", **wrong):
    SimulatedCard(file=tmp_path / name, faults=Faults(**wrong), sensors=Sensors(components=name == "amd.json"))
    return f"sim:{tmp_path / name}"


def run(*arguments):
    """Exit status of the command."""
    return status_of("doctor", *arguments)


def report(capsys, *arguments):
    status = run("--json", *arguments)
    return status, json.loads(capsys.readouterr().out)


def test_without_any_gpu_it_says_so(no_driver, capsys):
    status, found = report(capsys)
    assert (status, found["cards"], found["libraries"]) == (0, [], {})
    assert found["can"]["calibrate --passive"] == "no: no GPU is reachable"
    assert found["can"]["predict, gpus, models"] == "yes"


def test_a_cards_facts_and_measured_sensors(no_driver, capsys, tmp_path):
    locator = card(tmp_path, privileged=False)
    status, found = report(capsys, "--device", locator)
    (seen,) = found["cards"]
    assert (status, seen["locator"], seen["fit"]) == (0, locator, True)
    assert (seen["facts"]["sms"], seen["facts"]["lockable_clocks"], seen["facts"]["min_sm_clock_mhz"]) == (
        132,
        110,
        345.0,
    )
    assert seen["sensors"]["energy_counter_step_s"] == pytest.approx(0.1, rel=0.01)
    assert seen["sensors"]["counter_power_w"] == pytest.approx(124.4, rel=0.02)
    assert set(seen["sensors"]["readings"]) == {"energy_j", "power_w", "average_power_w", "power_history"}
    assert [finding["code"] for finding in seen["findings"]] == ["no-privilege"]


def test_people_read_it_too(no_driver, capsys, tmp_path):
    assert run("--device", card(tmp_path, energy_counter=False), "--device", "7") == 0
    shown = capsys.readouterr().out
    for words in (
        "Simulated h200-sxm (driver simulated), 132 SMs, 151 GB, limit 700 W, clock 345-1980 MHz",
        "clocks, power limit",
        "no steps seen",
        "W polled",
        "warning: no-counter",
        "no GPU 7: the package nvidia-ml-py is missing; the package amdsmi is missing",
    ):
        assert words in shown
    assert "by the counter" not in shown


def test_what_can_be_measured_and_why_not(tmp_path):
    well, busy = card(tmp_path), card(tmp_path, "busy.json", neighbour_w=200.0)
    passive = card(tmp_path, "passive.json", privileged=False)
    parts = card(tmp_path, "amd.json")

    def can(*locators, present=FIT, vendor="nvml:"):
        cards = [{**one, "locator": vendor + one["locator"]} for one in machine.examine_cards(locators)]
        return machine.abilities(set(present), cards)

    bare = can(well, present=FIT - {"torch", "triton"}, vendor="")  # a simulated card needs neither
    assert bare["calibrate --passive"] == "yes" == bare["measure kernels with given tiles"]
    assert bare["calibrate --active"] == "yes, after asking"
    found = can(well)
    assert found["calibrate --passive"] == "yes"
    assert found["calibrate --active"] == "yes, after asking"
    assert found["measure collectives"] == "no: it takes two GPUs"
    assert found["measure energy by component"].startswith("no")
    assert can(well, parts)["measure collectives"] == "yes"
    assert can(parts)["measure energy by component"] == "yes: aid, hbm, xcd"
    assert can(passive)["calibrate --active"].startswith("no: it needs an administrator")
    assert "without work of ours" in can(busy)["calibrate --passive"]
    assert "torch" in can(well, present=FIT - {"torch"})["calibrate --passive"]
    assert can(well, present=FIT - {"triton"})["measure kernels with given tiles"] == "no: triton is missing"
    assert "fit" in can(well, present=FIT - {"scipy"})["calibrate --passive"]


def test_an_import_that_prints_does_not_spoil_the_answer(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    (tmp_path / "amdsmi.py").write_text("print('Unable to find libamd_smi.so')\nraise KeyError('libamd_smi.so')\n")
    monkeypatch.syspath_prepend(tmp_path)
    _, found = report(capsys)
    assert "Unable to find libamd_smi.so" in found["amd"]["problem"]


def test_a_bare_number_is_the_first_vendor_that_answers(no_driver, monkeypatch):
    assert locator_of("sim:h200-sxm") == "sim:h200-sxm"
    with pytest.raises(DeviceError, match=r"no GPU 0: the package nvidia-ml-py is missing; the package amdsmi"):
        locator_of("0")
    closed = []
    fake = ModuleType("joulecast.calibrate.devices.amd")
    fake.AmdCard = lambda place: SimpleNamespace(close=lambda: closed.append(place))
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    assert locator_of("1") == "amd:1"
    assert closed == ["1"]


def test_an_unknown_kind_of_card_is_refused(capsys):
    assert run("--device", "cuda:0") == 2
    assert "Known: nvml:0" in capsys.readouterr().err
