"""The powers that NVIDIA's driver writes down by itself."""

import time
from types import SimpleNamespace

import pytest
from fake_nvml import GPU_IS_LOST, NOT_FOUND, NOT_SUPPORTED

from joulecast.calibrate.devices.nvml import NvmlCard
from joulecast.errors import DeviceError


def written(ages_s, milliwatts=lambda age: 650_000, jump_s=0.0):
    """What a driver has written down: at these ages, in any order, with an empty place."""
    now = time.time() + jump_s
    return [
        SimpleNamespace(timeStamp=0, sampleValue=SimpleNamespace(uiVal=0)),
        *(
            SimpleNamespace(
                timeStamp=round(1e6 * (now - age)), sampleValue=SimpleNamespace(uiVal=milliwatts(age), dVal=-1)
            )
            for age in ages_s
        ),
    ]


REGULAR = [0.011 + 0.02 * k for k in range(119)]


def test_the_drivers_power_history_is_on_the_monotonic_clock(nvml):
    nvml.samples = lambda: written(REGULAR, lambda age: 600_000 + round(1000 * age))
    card = NvmlCard()
    assert card.history_step_s == pytest.approx(0.02, rel=1e-3)
    now = card.now()
    found = card.power_history(now - 1.0)
    assert [one.time_s for one in found] == pytest.approx([now - age for age in REGULAR[49::-1]], abs=3e-3)
    assert found[0].power_w == pytest.approx(600.991, abs=1e-3) and found[-1].power_w == pytest.approx(600.011)
    assert "nvmlDeviceGetSamples" in card.power_readings["power_history"]


def test_the_same_reading_is_not_given_twice(nvml, monkeypatch):
    fixed = written(REGULAR)
    nvml.samples = lambda: fixed
    card = NvmlCard()
    first = card.power_history(card.now() - 1.0)
    assert len(first) > 20  # fifty a second, less what a busy machine takes to ask
    calendar = time.time
    for nudge_s in (0.0, 1e-4, -1e-4):  # the distance between the clocks is measured anew each time
        monkeypatch.setattr(time, "time", lambda nudge_s=nudge_s: calendar() + nudge_s)
        assert card.power_history(first[-1].time_s) == []
    assert len(card.power_history(first[-2].time_s)) == 1


def test_a_corrected_calendar_moves_no_reading(nvml, monkeypatch):
    nvml.samples = lambda: written(REGULAR)
    card = NvmlCard()
    calendar = time.time
    monkeypatch.setattr(time, "time", lambda: calendar() + 3600.0)
    newest = card.power_history(card.now() - 1.0)[-1]
    assert newest.time_s == pytest.approx(card.now() - 0.011, abs=0.1)  # a busy machine answers late


def test_a_calendar_that_was_set_back_hides_nothing_that_is_written_later(nvml, monkeypatch):
    nvml.samples = lambda: written(REGULAR)
    card = NvmlCard()
    older, calendar = written(REGULAR), time.time
    monkeypatch.setattr(time, "time", lambda: calendar() - 3600.0)
    nvml.samples = lambda: [*older, *written(REGULAR[:20])]
    found = card.power_history(card.now() - 1.0)
    assert len(found) == pytest.approx(20, abs=3)
    assert found[-1].time_s < card.now()


@pytest.mark.parametrize(
    "samples",
    [
        list,
        lambda: written(REGULAR[:3]),
        lambda: written([5.0 + age for age in REGULAR]),
        lambda: written([10.0 * age for age in REGULAR]),
        lambda: written([0.01 + 0.02 * 1.3**k for k in range(20)]),
        lambda: written(REGULAR, lambda age: 0),
        lambda: written(REGULAR, jump_s=60.0),
    ],
    ids=["empty", "few", "old", "slow", "irregular", "no sensor", "another clock"],
)
def test_a_history_that_cannot_be_trusted_is_none(nvml, samples):
    nvml.samples = samples
    card = NvmlCard()
    assert card.history_step_s is None
    assert "power_history" not in card.power_readings
    nvml.samples = lambda: written(REGULAR)
    assert card.history_step_s is None  # found once
    assert NvmlCard().history_step_s is not None


def test_a_card_without_a_history(nvml):
    nvml.refuse["nvmlDeviceGetSamples"] = NOT_SUPPORTED
    assert NvmlCard().history_step_s is None
    del nvml.nvmlDeviceGetSamples
    assert NvmlCard().history_step_s is None


def test_a_history_that_breaks_off(nvml):
    nvml.samples = lambda: written(REGULAR)
    card = NvmlCard()
    nvml.refuse["nvmlDeviceGetSamples"] = NOT_FOUND
    assert card.power_history(0.0) == []
    nvml.refuse["nvmlDeviceGetSamples"] = GPU_IS_LOST
    with pytest.raises(DeviceError, match="lost"):
        card.power_history(0.0)
