"""AMD cards, with a binding that fails in the ways of the real one; and cards of recordings."""

import json
import os
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace

import pytest

from joulecast.calibrate.devices import open_device
from joulecast.calibrate.devices.amd import AmdCard, may_write
from joulecast.calibrate.devices.protocol import Neighbour, Settings
from joulecast.errors import DataError, DeviceError, PermissionDeniedError

#: Microjoules of one count.
RESOLUTION = 15.259


class FakeAmdSmi(ModuleType):
    """The part of ``amdsmi`` that is used; ``refuse`` maps a function to the exception that it raises."""

    class AmdSmiClkType(Enum):
        GFX, MEM = 1, 2

    class AmdSmiDevPerfLevel(Enum):
        AUTO = 0

    class AmdSmiLibraryException(Exception):
        pass

    def __init__(self):
        super().__init__("amdsmi")
        self.refuse, self.said, self.open = {}, [], 0
        self.count, self.power, self.level = (
            10_000_000,
            {"current_socket_power": 550, "average_socket_power": "N/A"},
            "AUTO",
        )
        self.cap = {"power_cap": 750e6, "default_power_cap": 750e6, "min_power_cap": 0.0, "max_power_cap": 750e6}
        self.metrics = {"temperature_hotspot": 61, "average_gfx_activity": 99, "ppt_residency_acc": 5}
        self.table = [
            {"name": b"XcdEnergyAcc", "value": 6_000_000},
            {"name": "aid_energy_acc", "value": 2_000_000},
            {"name": "HbmEnergyAcc", "value": 1_000_000},
            {"name": "SocketEnergyAcc", "value": 10_000_000},
        ]
        answers = {
            "init": lambda: self._count(1),
            "shut_down": lambda: self._count(-1),
            "get_processor_handles": lambda: ["die 0", "die 1"],
            "get_energy_count": lambda h: {"energy_accumulator": self.count, "counter_resolution": RESOLUTION},
            "get_power_info": lambda h: self.power,
            "get_gpu_metrics_info": lambda h: self.metrics,
            "get_gpu_pm_metrics_info": lambda h: self.table,
            "get_clock_info": lambda h, kind: {"clk": 1900 if kind.name == "GFX" else 1300, "max_clk": 2100},
            "get_gpu_process_list": lambda h: [{"pid": os.getpid(), "mem": 1}, {"pid": 2**22 + 1, "mem": 4096}],
            "get_power_cap_info": lambda h: self.cap,
            "set_power_cap": lambda h, sensor, cap: self.cap.update(power_cap=float(cap)),
            "set_gpu_clk_range": lambda h, low, high, kind: None,
            "set_gpu_perf_level": lambda h, level: None,
            "get_gpu_perf_level": lambda h: f"AMDSMI_DEV_PERF_LEVEL_{self.level}",
            "get_gpu_asic_info": lambda h: {"market_name": "AMD Instinct MI300X", "num_compute_units": 304},
            "get_gpu_driver_info": lambda h: {"driver_version": "6.12"},
            "get_gpu_vram_info": lambda h: {"vram_size": 196_592},
            "get_gpu_compute_partition": lambda h: "SPX",
            "get_gpu_device_bdf": lambda h: "0000:00:00.0",
        }
        for name, answer in answers.items():
            setattr(self, f"amdsmi_{name}", self._guarded(name, answer))

    def _guarded(self, name, answer):
        def function(*arguments):
            if name.startswith("set_"):
                self.said.append((name, *arguments[1:]))
            if name in self.refuse:
                raise self.refuse[name]
            return answer(*arguments)

        return function

    def _count(self, by):
        self.open += by


@pytest.fixture
def smi(monkeypatch):
    fake = FakeAmdSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    return fake


def test_facts_and_a_sample_in_si_units(smi):
    card = open_device("amd:0")
    facts = card.facts
    assert (facts.name, facts.driver, facts.sms, facts.memory_bytes) == (
        "AMD Instinct MI300X",
        "6.12",
        304,
        196_592 * 2**20,
    )
    assert (facts.power_limit_w, facts.power_limit_range_w, facts.max_sm_clock_mhz) == (750.0, (0.0, 750.0), 2100.0)
    assert (facts.may_set_clocks, facts.may_set_power_limit, facts.mig) == (False, False, False)
    assert facts.components == ("xcd", "aid", "hbm")
    found = card.sample()
    assert found.energy_j == pytest.approx(10_000_000 * RESOLUTION * 1e-6)
    assert found.components_j == pytest.approx({"xcd": 6 * RESOLUTION, "aid": 2 * RESOLUTION, "hbm": RESOLUTION})
    assert (found.power_w, found.average_power_w, found.temperature_c) == (550.0, None, 61.0)
    assert (found.sm_clock_mhz, found.memory_clock_mhz, found.utilisation) == (1900.0, 1300.0, 0.99)
    card.close()
    assert smi.open == 0


def test_a_sample_is_of_the_moment_at_which_the_counter_was_read(smi, monkeypatch):
    card, times = AmdCard(), iter((10.0, 10.2, 10.5))
    monkeypatch.setattr("joulecast.calibrate.devices.amd.time", SimpleNamespace(monotonic=lambda: next(times)))
    found = card.sample()
    assert (found.time_s, found.call_s) == pytest.approx((10.1, 0.5))


def test_either_power_will_do_where_no_energy_is_counted(smi):
    smi.refuse["get_energy_count"] = smi.AmdSmiLibraryException("NOT_SUPPORTED")
    for name in ("current_socket_power", "average_socket_power"):
        smi.power = {name: 300}
        assert not AmdCard().facts.energy_counter
    smi.power = {"current_socket_power": 0, "average_socket_power": "N/A"}
    with pytest.raises(DeviceError, match="neither energy nor power"):
        AmdCard()


def test_reasons_are_the_counters_that_grew(smi):
    card = AmdCard()
    assert card.sample().reasons == ()
    assert card.sample().reasons == ()
    smi.metrics = {**smi.metrics, "ppt_residency_acc": 9, "hbm_thm_residency_acc": 3}
    assert card.sample().reasons == ("power_limit",)
    smi.metrics = {**smi.metrics, "hbm_thm_residency_acc": 4}
    assert card.sample().reasons == ("thermal",)


def test_older_bindings(smi):
    smi.amdsmi_get_energy_count = lambda handle: {"power": 2_000_000, "counter_resolution": RESOLUTION}
    smi.power = {"average_socket_power": 300}
    smi.cap = {"power_cap": 560, "default_power_cap": 560, "min_power_cap": 0, "max_power_cap": 560}
    smi.refuse["get_gpu_pm_metrics_info"] = TypeError("POINTER() of a pointer")
    smi.refuse["get_gpu_metrics_info"] = smi.AmdSmiLibraryException("NOT_SUPPORTED")
    card = AmdCard()
    found = card.sample()
    assert found.energy_j == pytest.approx(2 * RESOLUTION)
    assert (found.power_w, found.average_power_w, found.components_j) == (None, 300.0, {})
    assert (found.temperature_c, found.utilisation, found.reasons) == (None, None, ())
    assert card.facts.power_limit_w == 560.0
    assert card.facts.components == ()
    card.apply(Settings(power_limit_w=400.0))
    assert smi.said == [("set_power_cap", 0, 400)]


@pytest.mark.parametrize("absent", ["N/A", 2**16 - 1, 2**32 - 1])
def test_fields_that_the_hardware_lacks_are_no_readings(smi, absent):
    """Hardware writes the largest number of a field; older bindings do not translate it."""
    smi.power = {"current_socket_power": absent, "average_socket_power": 94}
    smi.metrics = {"temperature_hotspot": absent, "average_gfx_activity": absent}
    found = AmdCard().sample()
    assert (found.power_w, found.average_power_w) == (None, 94.0)
    assert (found.temperature_c, found.utilisation) == (None, None)


def test_settings_are_made_and_given_back(smi):
    card = AmdCard()
    card.apply(Settings((1000.0, 1500.0), 500.0))
    assert smi.said == [
        ("set_gpu_clk_range", 1000, 1500, smi.AmdSmiClkType.GFX),
        ("set_power_cap", 0, 500_000_000),
    ]
    assert card.settings() == Settings((1000.0, 1500.0), 500.0)
    smi.said.clear()
    card.apply(Settings())
    assert smi.said == [("set_gpu_perf_level", smi.AmdSmiDevPerfLevel.AUTO), ("set_power_cap", 0, 750_000_000)]
    assert card.settings() == Settings()
    smi.said.clear()
    smi.level = "MANUAL"  # another process set it, and died
    AmdCard().apply(Settings())
    assert smi.said == [("set_gpu_perf_level", smi.AmdSmiDevPerfLevel.AUTO)]
    smi.refuse["set_power_cap"] = smi.AmdSmiLibraryException("AMDSMI_STATUS_NO_PERM - Permission Denied")
    with pytest.raises(PermissionDeniedError, match="root"):
        card.apply(Settings(power_limit_w=300.0))
    smi.refuse["set_power_cap"] = smi.AmdSmiLibraryException("AMDSMI_STATUS_INVAL")
    with pytest.raises(DeviceError, match="amdsmi_set_power_cap failed: AMDSMI_STATUS_INVAL"):
        card.apply(Settings(power_limit_w=300.0))


def test_the_silent_die_of_a_dual_die_card_is_named(smi):
    energy, power = smi.amdsmi_get_energy_count, smi.amdsmi_get_power_info
    smi.amdsmi_get_energy_count = lambda h: (
        energy(h) if h == "die 0" else {"energy_accumulator": 0, "counter_resolution": 0}
    )
    smi.amdsmi_get_power_info = lambda h: power(h) if h == "die 0" else {"average_socket_power": 0}
    assert AmdCard("0").facts.energy_counter
    with pytest.raises(DeviceError, match=r"neither energy nor power.*take amd:0"):
        AmdCard("1")
    assert smi.open == 1  # that of the even die


def test_a_counter_that_goes_silent_is_an_error(smi):
    card = AmdCard()
    smi.refuse["get_energy_count"] = smi.AmdSmiLibraryException("UNEXPECTED_DATA")
    with pytest.raises(DeviceError, match="does not answer any more"):
        card.sample()


def test_neighbours_and_partitions(smi):
    assert AmdCard().neighbours() == [Neighbour(2**22 + 1, 4096)]
    smi.amdsmi_get_gpu_process_list = lambda handle: [{"pid": 2**22 + 1, "mem": "N/A"}, {"pid": "N/A"}, "none"]
    assert AmdCard().neighbours() == [Neighbour(2**22 + 1, None)]
    smi.amdsmi_get_gpu_compute_partition = lambda handle: "CPX"
    assert AmdCard().facts.mig is True


def test_no_package_no_library_no_driver_no_card(monkeypatch, tmp_path, capfd):
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(DeviceError, match="the package amdsmi is missing"):
        AmdCard()
    monkeypatch.delitem(sys.modules, "amdsmi")
    (tmp_path / "amdsmi.py").write_text("print('Unable to find libamd_smi.so')\nraise KeyError('libamd_smi.so')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeviceError, match=r"cannot be loaded \(Unable to find libamd_smi.so\)"):
        AmdCard()
    (tmp_path / "amdsmi.py").write_text("import sys\nsys.exit('no ROCm here')\n")
    with pytest.raises(DeviceError, match=r"cannot be loaded \(SystemExit: no ROCm here\)"):
        AmdCard()
    assert capfd.readouterr().out == ""
    fake = FakeAmdSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    fake.refuse["init"] = fake.AmdSmiLibraryException("DRIVER_NOT_LOADED")
    with pytest.raises(DeviceError, match="no AMD driver answers: DRIVER_NOT_LOADED"):
        AmdCard()
    fake.refuse["init"] = fake.AmdSmiLibraryException("AMDSMI_STATUS_NO_PERM - Permission Denied")
    with pytest.raises(PermissionDeniedError, match="render and video"):
        AmdCard()
    fake.refuse.clear()
    with pytest.raises(DeviceError, match="no AMD GPU '2'"):
        AmdCard("2")
    fake.amdsmi_get_clock_info = lambda handle, kind: {"clk": "N/A", "max_clk": "N/A"}
    with pytest.raises(DeviceError, match="does not tell its clocks"):
        AmdCard()
    assert fake.open == 0


def test_rights_are_read_off_the_files(tmp_path):
    file = tmp_path / "power1_cap"
    assert may_write([]) is False
    file.write_text("0")
    assert may_write([file]) is True
    assert may_write([file, tmp_path / "none"]) is False


def test_a_recorded_card_tells_its_facts_and_no_more(tmp_path):
    facts = open_device("sim:h200-sxm").facts
    card = {name: getattr(facts, name) for name in facts.__dataclass_fields__}
    line = {"record": "card", "schema": "joulecast-recording/1", "facts": {**card, "locator": "nvml:3"}}
    (tmp_path / "recording.jsonl").write_text(json.dumps(line) + "\n")
    replayed = open_device(f"replay:{tmp_path}")
    assert (replayed.facts.locator, replayed.facts.name) == ("nvml:3", "Simulated h200-sxm")
    assert replayed.facts.sm_clocks_mhz == facts.sm_clocks_mhz
    assert (replayed.settings(), list(replayed.neighbours())) == (Settings(), [])
    with pytest.raises(DeviceError, match="--replay"):
        replayed.sample()
    replayed.apply(Settings())
    with pytest.raises(PermissionDeniedError, match="recorded card"):
        replayed.apply(Settings(power_limit_w=300.0))
    replayed.close()
    (tmp_path / "recording.jsonl").write_text('{"rows": []}\n')
    with pytest.raises(DataError):
        open_device(f"replay:{tmp_path}")
