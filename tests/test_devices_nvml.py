"""NVIDIA cards, with a binding that remembers what was asked of it in place of a driver."""

import os
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from joulecast.calibrate.devices import open_device
from joulecast.calibrate.devices.nvml import NvmlCard
from joulecast.calibrate.devices.nvml_activity import ActivityReader
from joulecast.calibrate.devices.nvml_binding import (
    cores_per_sm,
    is_administrator,
    power_usage_is_average,
    reasons_of,
)
from joulecast.calibrate.devices.processes import is_ours
from joulecast.calibrate.devices.protocol import Neighbour, Settings, history_of
from joulecast.errors import DeviceError, PermissionDeniedError

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, FUNCTION_NOT_FOUND, DRIVER_NOT_LOADED = 3, 4, 15, 13, 9
NOT_FOUND = 6


class FakeNvml(ModuleType):
    """The part of ``pynvml`` that is used; ``refuse`` maps a function to the code that it fails with."""

    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION = NOT_SUPPORTED, NO_PERMISSION
    NVML_ERROR_NOT_FOUND = NOT_FOUND
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_FUNCTION_NOT_FOUND = GPU_IS_LOST, FUNCTION_NOT_FOUND
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_DEVICE_ARCH_AMPERE, NVML_GPM_METRICS_GET_VERSION = 7, 1

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, architecture=9, capability=(9, 0)):
        super().__init__("pynvml")
        self.refuse, self.said = {}, []
        self.fields = {(186, 0): 650_123, (185, 0): 640_000, (186, 2): 90_000}
        self.samples = None
        self.energy_mj, self.limit_mw, self.processes, self.mig = 5_000_000, 700_000, [], [0, 0]
        self.architecture, self.capability, self.open = architecture, capability, 0
        answers = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda i: f"card {i}",
            "nvmlDeviceGetHandleByUUID": lambda u: f"card {u}",
            "nvmlDeviceGetName": lambda h: b"NVIDIA H200",
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetArchitecture": lambda h: self.architecture,
            "nvmlDeviceGetCudaComputeCapability": lambda h: list(self.capability),
            "nvmlDeviceGetTotalEnergyConsumption": lambda h: self.energy_mj,
            "nvmlDeviceGetSamples": self._written,
            "nvmlDeviceGetPowerUsage": lambda h: 641_000,
            "nvmlDeviceGetFieldValues": self._field_values,
            "nvmlDeviceGetClockInfo": lambda h, kind: {1: 1755, 2: 3201}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda h, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda h, kind: 55,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda h: 0x4 | 0x40,
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetComputeRunningProcesses": lambda h: self.processes,
            "nvmlDeviceGetEnforcedPowerLimit": lambda h: self.limit_mw,
            "nvmlDeviceGetPowerManagementLimit": lambda h: self.limit_mw,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda h: 700_000,
            "nvmlDeviceGetPowerManagementLimitConstraints": lambda h: [200_000, 700_000],
            "nvmlDeviceGetSupportedMemoryClocks": lambda h: [3201, 1593],
            "nvmlDeviceGetSupportedGraphicsClocks": lambda h, memory: [1980, 1965, 345] if memory == 3201 else [345],
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(total=150_754_820_096),
            "nvmlDeviceGetNumGpuCores": lambda h: 132 * 128,
            "nvmlDeviceGetMigMode": lambda h: self.mig,
            "nvmlDeviceSetGpuLockedClocks": lambda h, low, high: None,
            "nvmlDeviceResetGpuLockedClocks": lambda h: None,
            "nvmlDeviceSetPowerManagementLimit": self._set_limit,
            "nvmlInit": lambda: self._count(1),
            "nvmlShutdown": lambda: self._count(-1),
        }
        for name, answer in answers.items():
            setattr(self, name, self._guarded(name, answer))

    def _guarded(self, name, answer):
        def function(*arguments):
            if name.startswith(("nvmlDeviceSet", "nvmlDeviceReset")):
                self.said.append((name, *arguments[1:]))
            if name in self.refuse:
                raise self.NVMLError(self.refuse[name])
            return answer(*arguments)

        return function

    def _field_values(self, handle, fields):
        # Powers are unsigned integers (type 1); what is not there has a return code of its own.
        return [
            SimpleNamespace(
                nvmlReturn=0 if field in self.fields else NOT_SUPPORTED,
                valueType=1,
                value=SimpleNamespace(uiVal=self.fields.get(field, 0), dVal=-1.0, ullVal=-1),
            )
            for field in fields
        ]

    def _written(self, handle, kind, since):
        if self.samples is None or kind != 0:
            raise self.NVMLError(NOT_SUPPORTED)
        return 1, self.samples()

    def _set_limit(self, handle, limit):
        self.limit_mw = limit

    def _count(self, by):
        self.open += by


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


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
    assert newest.time_s == pytest.approx(card.now() - 0.011, abs=5e-3)


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
    assert history_of(card) is None and card.history_step_s is None
    assert "power_history" not in card.power_readings
    nvml.samples = lambda: written(REGULAR)
    assert history_of(card) is None  # found once
    assert history_of(NvmlCard()) is not None


def test_a_card_without_a_history(nvml):
    nvml.refuse["nvmlDeviceGetSamples"] = NOT_SUPPORTED
    assert history_of(NvmlCard()) is None
    del nvml.nvmlDeviceGetSamples
    assert history_of(NvmlCard()) is None


def test_a_history_that_breaks_off(nvml):
    nvml.samples = lambda: written(REGULAR)
    card = NvmlCard()
    nvml.refuse["nvmlDeviceGetSamples"] = NOT_FOUND
    assert card.power_history(0.0) == []
    nvml.refuse["nvmlDeviceGetSamples"] = GPU_IS_LOST
    with pytest.raises(DeviceError, match="lost"):
        card.power_history(0.0)


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


def test_activity_comes_from_the_difference_of_two_samples(nvml):
    taken = []
    slots = [SimpleNamespace(metricId=0, value=0.0, nvmlReturn=0) for _ in range(8)]

    def metrics(request):
        assert (request.numMetrics, request.version) == (5, 1)
        assert request.sample1 != request.sample2
        values = {2: 99.0, 5: 88.0, 10: 12.0, 60: 1000.0}
        for slot in request.metrics[: request.numMetrics]:
            slot.value, slot.nvmlReturn = values.get(slot.metricId, 0.0), 0 if slot.metricId in values else 3
        taken.append((request.sample1, request.sample2))
        return request

    nvml.nvmlGpmQueryDeviceSupport = lambda handle: SimpleNamespace(isSupportedDevice=1)
    nvml.nvmlGpmSampleAlloc = lambda: object()
    nvml.nvmlGpmSampleGet = lambda handle, sample: sample
    nvml.c_nvmlGpmMetricsGet_t = lambda: SimpleNamespace(metrics=slots)
    nvml.nvmlGpmMetricsGet = metrics
    reader = ActivityReader(NvmlCard())
    found = reader.read()
    assert (found.sm, found.tensor, found.dram) == (0.99, 0.88, 0.12)
    assert (found.link_in_bytes_per_s, found.link_out_bytes_per_s) == (1000.0 * 2**20, None)
    reader.read()
    assert taken[1] == taken[0][::-1]  # the last sample is where the next stretch begins
    del nvml.nvmlGpmQueryDeviceSupport
    with pytest.raises(DeviceError, match="Hopper"):
        ActivityReader(NvmlCard())
