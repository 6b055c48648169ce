"""NVIDIA cards, with a binding that remembers what was asked of it in place of a driver."""

import os
import sys
from types import SimpleNamespace

import pytest
from fake_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    FakeNvml,
)

from joulecast.calibrate.devices import open_device
from joulecast.calibrate.devices.nvml import NvmlCard
from joulecast.calibrate.devices.nvml_binding import (
    cores_per_sm,
    is_administrator,
    power_usage_is_average,
    reasons_of,
)
from joulecast.calibrate.devices.processes import is_ours
from joulecast.calibrate.devices.protocol import Neighbour, Settings
from joulecast.errors import DeviceError, PermissionDeniedError


def test_facts_and_a_sample_in_si_units(nvml):
    card = open_device("nvml:1")
    assert card.facts.name == "NVIDIA H200"
    assert (card.facts.driver, card.facts.sms, card.facts.memory_bytes) == ("580.1", 132, 150_754_820_096)
    assert (card.facts.power_limit_w, card.facts.power_limit_range_w) == (700.0, (200.0, 700.0))
    assert card.facts.sm_clocks_mhz == (345.0, 1965.0, 1980.0)
    assert card.facts.locator == "nvml:1"
    assert card.facts.components == ("hbm",)
    found = card.sample()
    assert (found.energy_j, found.power_w, found.average_power_w) == (5000.0, 650.123, 640.0)
    assert (found.sm_clock_mhz, found.memory_clock_mhz, found.temperature_c) == (1755.0, 3201.0, 55.0)
    assert found.reasons == ("power_limit", "thermal")
    assert found.utilisation == pytest.approx(0.97)
    assert abs(found.time_s - card.now()) < 1.0
    card.close()
    assert nvml.open == 0


def test_memory_power_is_integrated_over_the_samples(nvml):
    card = NvmlCard()
    first = card.sample()
    card.sleep(0.02)
    nvml.fields[186, 2] = 110_000
    second = card.sample()
    between = second.time_s - first.time_s
    gained = second.components_j["hbm"] - first.components_j["hbm"]
    assert between >= 0.02
    assert gained == pytest.approx(100.0 * between, rel=0.1)
    del nvml.fields[186, 2]
    assert NvmlCard().facts.components == ()
    assert NvmlCard().sample().components_j == {}


def test_without_the_counter_nothing_dear_is_read(nvml):
    card = NvmlCard()
    for name in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates"):
        nvml.refuse[name] = GPU_IS_LOST
    found = card.sample(counter=False)
    assert (found.energy_j, found.utilisation, found.power_w) == (None, None, 650.123)
    assert (found.sm_clock_mhz, found.temperature_c, found.reasons) == (1755.0, 55.0, ("power_limit", "thermal"))
    assert found.components_j.keys() == {"hbm"}
    with pytest.raises(DeviceError):
        card.sample()


@pytest.mark.parametrize(
    ("architecture", "capability", "is_average"),
    [(5, (7, 0), False), (7, (8, 0), False), (7, (8, 6), True), (9, (9, 0), True)],
)
def test_power_usage_means_what_the_architecture_says(nvml, architecture, capability, is_average):
    nvml.architecture, nvml.capability, nvml.fields = architecture, capability, {}
    found = NvmlCard().sample()
    expected = (None, 641.0) if is_average else (641.0, None)
    assert (found.power_w, found.average_power_w) == expected
    assert power_usage_is_average(architecture, capability, 7) is is_average
    readings = NvmlCard().power_readings
    assert "nvmlDeviceGetPowerUsage" in readings["average_power_w" if is_average else "power_w"]


def test_what_a_card_lacks_is_none(nvml):
    for name in (
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetPowerManagementLimitConstraints",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetNumGpuCores",
    ):
        nvml.refuse[name] = NOT_SUPPORTED
    del nvml.nvmlDeviceGetFieldValues
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x1
    card = NvmlCard()
    facts, found = card.facts, card.sample()
    assert (facts.energy_counter, facts.power_limit_w, facts.power_limit_range_w, facts.mig, facts.sms) == (
        False,
        None,
        None,
        False,
        None,
    )
    assert (found.energy_j, found.power_w, found.average_power_w, found.temperature_c) == (None, None, 641.0, None)
    assert (found.utilisation, found.reasons) == (None, ("idle",))


def test_settings_are_made_and_given_back(nvml):
    card = NvmlCard()
    assert card.settings() == Settings()
    card.apply(Settings((1200.0, 1410.0), 500.0))
    assert nvml.said == [("nvmlDeviceSetGpuLockedClocks", 1200, 1410), ("nvmlDeviceSetPowerManagementLimit", 500_000)]
    assert card.settings() == Settings((1200.0, 1410.0), 500.0)
    nvml.said.clear()
    card.apply(Settings())
    assert nvml.said == [("nvmlDeviceResetGpuLockedClocks",), ("nvmlDeviceSetPowerManagementLimit", 700_000)]
    assert card.settings() == Settings()
    nvml.said.clear()
    card.apply(Settings())
    assert nvml.said == [("nvmlDeviceResetGpuLockedClocks",)]


def test_an_administrators_own_limit_is_a_setting(nvml):
    nvml.limit_mw = 450_000
    assert NvmlCard().settings() == Settings(power_limit_w=450.0)


def test_refusals_are_named(nvml):
    card = NvmlCard()
    nvml.refuse["nvmlDeviceSetGpuLockedClocks"] = NO_PERMISSION
    with pytest.raises(PermissionDeniedError, match="SYS_ADMIN"):
        card.apply(Settings((1200.0, 1410.0)))
    nvml.refuse["nvmlDeviceSetPowerManagementLimit"] = 2
    with pytest.raises(DeviceError, match="nvmlDeviceSetPowerManagementLimit failed"):
        card.apply(Settings(power_limit_w=500.0))
    nvml.refuse["nvmlDeviceResetGpuLockedClocks"] = NO_PERMISSION
    with pytest.raises(PermissionDeniedError, match="unlocking clocks"):
        card.apply(Settings())
    nvml.refuse["nvmlDeviceResetGpuLockedClocks"] = NOT_SUPPORTED
    card.apply(Settings())
    nvml.refuse["nvmlDeviceGetTotalEnergyConsumption"] = GPU_IS_LOST
    with pytest.raises(DeviceError, match="lost"):
        card.sample()


def test_no_binding_no_driver_no_card(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DeviceError, match=r"joulecast\[nvml\]"):
        NvmlCard()
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    fake.refuse["nvmlInit"] = DRIVER_NOT_LOADED
    with pytest.raises(DeviceError, match=r"no NVIDIA driver answers: error 9.*nvidia-smi"):
        NvmlCard()
    fake.refuse["nvmlInit"] = NO_PERMISSION
    with pytest.raises(PermissionDeniedError, match="/dev/nvidiactl"):
        NvmlCard()
    fake.refuse.clear()
    for place in ("2", "x", "-1"):
        with pytest.raises(DeviceError, match="There are 2: nvml:0 to nvml:1"):
            NvmlCard(place)
    fake.nvmlDeviceGetCount = lambda: 0
    with pytest.raises(DeviceError, match="no NVIDIA GPU here"):
        NvmlCard()
    assert fake.open == 0


def test_neighbours_are_the_others(nvml):
    stranger = SimpleNamespace(pid=2**22 + 1, usedGpuMemory=None)
    nvml.processes = [
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=1024),
        SimpleNamespace(pid=os.getppid(), usedGpuMemory=1024),
        stranger,
    ]
    assert NvmlCard().neighbours() == [Neighbour(stranger.pid, None)]
    assert is_ours(os.getpid())


def test_mig_is_told(nvml):
    nvml.mig = [1, 1]
    assert NvmlCard("GPU-1234").facts.mig is True


def test_reasons_and_cores():
    assert reasons_of(0x1 | 0x2 | 0x8 | 0x80 | 0x10) == ("idle", "locked_clock", "hardware", "other")
    assert reasons_of(None) == ()
    assert (cores_per_sm((8, 0)), cores_per_sm((9, 0))) == (64, 128)


def test_administration_rights_are_read_without_setting_anything(tmp_path):
    status, users = tmp_path / "status", tmp_path / "uid_map"
    whole = "         0          0 4294967295\n"
    for capabilities, mapping, expected in (
        ("000001ffffffffff", whole, True),
        ("00000000a80425fb", whole, False),  # the usual ones of root in a container
        ("000001ffffffffff", "0 100000 65536\n", False),
        ("0000000000000000", whole, False),
    ):
        status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
        users.write_text(mapping)
        assert is_administrator(status, users) is expected
    assert is_administrator(tmp_path / "none", users) is (os.geteuid() == 0)


def test_rights_without_clocks_to_set_are_none(nvml, monkeypatch):
    monkeypatch.setattr("joulecast.calibrate.devices.nvml.is_administrator", lambda: True)
    assert (NvmlCard().facts.may_set_clocks, NvmlCard().facts.may_set_power_limit) == (True, True)
    nvml.refuse["nvmlDeviceGetSupportedGraphicsClocks"] = NOT_SUPPORTED
    nvml.nvmlDeviceGetPowerManagementLimitConstraints = lambda handle: [300_000, 300_000]
    assert (NvmlCard().facts.may_set_clocks, NvmlCard().facts.may_set_power_limit) == (False, False)
    monkeypatch.setattr("joulecast.calibrate.devices.nvml.is_administrator", lambda: False)
    nvml.refuse.clear()
    assert NvmlCard().facts.may_set_clocks is False
