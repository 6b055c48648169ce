"""The trial of a card, on a simulated one."""

import json

import pytest

from joulecast.calibrate.devices.protocol import Settings
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_sensors import Faults, Sensors
from joulecast.calibrate.devices.trial import main, trial


def test_a_card_is_tried_idle_under_load_and_with_settings():
    card = SimulatedCard(sensors=Sensors(components=True))
    found = trial(card, "", settings=True)
    assert found["idle"]["findings"] == ()
    load = found["load"]
    assert load["counter_power_w"] == pytest.approx(692.7, rel=0.01)
    assert load["counter_step_s"] == pytest.approx(0.1, rel=0.01)
    assert load["polled_over_counter"] == pytest.approx(0.0, abs=0.03)
    assert sum(load["components_w"].values()) == pytest.approx(692.7, rel=0.03)
    assert load["time_s"] == pytest.approx(1.7e-3, rel=0.05)
    assert "power_limit" in load["reasons"]
    assert found["set"]["clock"]["sm_clock_mhz"] == 1380.0
    assert found["set"]["limit"]["average_power_w"] == pytest.approx(0.8 * 693.0, rel=0.02)
    assert found["set"]["undone"] is True
    assert card.settings() == Settings()


def test_without_the_right_it_says_so(capsys, tmp_path):
    SimulatedCard(file=tmp_path / "card.json", faults=Faults(privileged=False))
    assert main([f"sim:{tmp_path / 'card.json'}", "--set"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "administrator" in found["set"]["refused"]
    assert found["load"]["activity"] == "the card does not tell"


def test_a_card_that_is_not_there(capsys, tmp_path):
    assert main([f"sim:{tmp_path / 'none.json'}"]) == 2
    assert "no such simulated card" in capsys.readouterr().err
