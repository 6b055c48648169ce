"""AMD cards through AMD SMI.

The energy counter is ``energy_accumulator × counter_resolution`` in microjoules. On MI300 and newer the card also
counts the energy of its compute dies (XCD), I/O dies (AID) and memory stacks (HBM), in the same unit. Of cards with two
dies that software sees as two devices only the even one has sensors, for both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joulecast.calibrate.devices.amd_binding import AmdSmi, number, text
from joulecast.calibrate.devices.processes import is_ours
from joulecast.calibrate.devices.protocol import CardFacts, Device, Neighbour, Sample, Settings
from joulecast.errors import DeviceError

MICRO = 1e-6
MIB = 2**20
#: Power caps are microwatts since ROCm 6 and were watts before; no card takes so many watts.
_LEAST_MICROWATTS = 1e5
#: Accumulators of the ``pm_metrics`` table, written without underscores and capitals, and our names.
COMPONENTS = {"xcdenergyacc": "xcd", "aidenergyacc": "aid", "hbmenergyacc": "hbm"}
#: Residency counters of ``gpu_metrics`` that grow while the card is held back, and our words for why.
RESIDENCIES = {
    "ppt_residency_acc": "power_limit",
    "prochot_residency_acc": "hardware",
    "socket_thm_residency_acc": "thermal",
    "vr_thm_residency_acc": "thermal",
    "hbm_thm_residency_acc": "thermal",
}


class AmdCard(Device):
    """An AMD card.

    Parameters
    ----------
    place
        Index as ``amd-smi list`` counts.

    Raises
    ------
    DeviceError
        The binding, the driver or the card is missing, or the card has no sensors.
    """

    def __init__(self, place: str = "0") -> None:
        self._smi = AmdSmi()
        try:
            self._set_up(place)
        except DeviceError:
            self.close()
            raise

    def _set_up(self, place: str) -> None:
        handles = self._smi.call("amdsmi_get_processor_handles")
        if not place.isdecimal() or int(place) >= len(handles):
            raise DeviceError(f"no AMD GPU {place!r}", key="--device", remedy=f"There are {len(handles)}: amd:0, …")
        self._handle = handles[int(place)]
        self._resolution: float | None = None
        self._residency: dict[str, float] = {}
        self._locked: tuple[float, float] | None = None
        counter = self._energy()
        if not counter and not any(self._power_readings()):
            raise DeviceError(
                f"amd:{place} reports neither energy nor power",
                key="--device",
                remedy="Of a card with two dies only the even one reports, for both"
                + (f": take amd:{int(place) - 1}." if int(place) % 2 else "."),
            )
        self._facts = self._read_facts(place, counter is not None)

    @property
    def power_readings(self) -> dict[str, str]:
        """Where the fields of a sample come from, for people."""
        instant, average = self._power_readings()
        found = {
            "energy_j": "energy_accumulator × counter_resolution" if self._facts.energy_counter else "",
            "power_w": "" if instant is None else "current_socket_power",
            "average_power_w": "" if average is None else "average_socket_power",
            **{f"components_j.{name}": "pm_metrics" for name in self._facts.components},
        }
        return {name: source for name, source in found.items() if source}

    def sample(self, *, counter: bool = True) -> Sample:
        """Read the card."""
        begin = time.monotonic()
        energy = self._energy()
        counted = time.monotonic()
        if self._facts.energy_counter and energy is None:
            raise DeviceError("the card's energy counter does not answer any more", remedy="Check amd-smi metric.")
        metrics = self._smi.optional("amdsmi_get_gpu_metrics_info", self._handle) or {}
        instant, average = self._power_readings()
        components = self._components()
        kind = self._smi.lib.AmdSmiClkType
        use = number(metrics.get("average_gfx_activity"))
        return Sample(
            time_s=0.5 * (begin + counted),
            call_s=time.monotonic() - begin,
            energy_j=energy,
            power_w=instant,
            average_power_w=average,
            sm_clock_mhz=self._clock(kind.GFX, "clk", "cur_clk"),
            memory_clock_mhz=self._clock(kind.MEM, "clk", "cur_clk"),
            temperature_c=number(metrics.get("temperature_hotspot")),
            reasons=self._reasons(metrics),
            components_j=components,
            utilisation=None if use is None else use / 100.0,
        )

    def neighbours(self) -> Sequence[Neighbour]:
        """Other processes on the card."""
        found = self._smi.optional("amdsmi_get_gpu_process_list", self._handle) or []
        shown = [entry for entry in found if isinstance(entry, Mapping)]
        known = [(int(pid), entry) for entry in shown if (pid := number(entry.get("pid"))) is not None]
        return [Neighbour(pid, int(number(one.get("mem")) or 0) or None) for pid, one in known if not is_ours(pid)]

    def settings(self) -> Settings:
        """What is set now: a limit that is not the card's own, and the clocks that this object has limited."""
        cap, default = (_cap_w(self._cap(), name) for name in ("power_cap", "default_power_cap"))
        return Settings(self._locked, None if default is None or cap == default else cap)

    def apply(self, settings: Settings) -> None:
        """Set clocks and power limit; what is already so is left alone."""
        lib = self._smi.lib
        if settings.locked_clock_mhz is not None:
            low, high = settings.locked_clock_mhz
            self._smi.call("amdsmi_set_gpu_clk_range", self._handle, round(low), round(high), lib.AmdSmiClkType.GFX)
            self._locked = settings.locked_clock_mhz
        elif self._locked is not None or self._is_manual():
            self._smi.call("amdsmi_set_gpu_perf_level", self._handle, lib.AmdSmiDevPerfLevel.AUTO)
            self._locked = None
        limit = self._facts.default_power_limit_w if settings.power_limit_w is None else settings.power_limit_w
        cap = self._cap()
        now = _cap_w(cap, "power_cap")
        if limit is not None and now is not None and round(limit) != round(now):
            self._smi.call("amdsmi_set_power_cap", self._handle, 0, round(limit / _cap_unit_w(cap)))

    def close(self) -> None:
        """Let go of the driver."""
        self._smi.shut_down()

    def _energy(self) -> float | None:
        found = self._smi.optional("amdsmi_get_energy_count", self._handle)
        if not isinstance(found, Mapping):
            return None
        # The accumulator was called "power" before ROCm 6.4.
        count = number(found.get("energy_accumulator", found.get("power")))
        self._resolution = number(found.get("counter_resolution"))
        return None if count is None or self._resolution is None else count * self._resolution * MICRO

    def _power_readings(self) -> tuple[float | None, float | None]:
        """Newest and averaged power; MI300 has the one, MI200 the other."""
        found = self._smi.optional("amdsmi_get_power_info", self._handle)
        if not isinstance(found, Mapping):
            return None, None
        instant, average = (
            number(found.get(name)) or None for name in ("current_socket_power", "average_socket_power")
        )
        return instant, average

    def _components(self) -> dict[str, float]:
        unit = None if self._resolution is None else self._resolution * MICRO
        found = self._smi.optional("amdsmi_get_gpu_pm_metrics_info", self._handle)
        if unit is None or not isinstance(found, Sequence):
            return {}
        energies: dict[str, float] = {}
        for entry in found:
            name = text(entry.get("name")).lower().replace("_", "")
            value = number(entry.get("value"))
            if name in COMPONENTS and value is not None:
                energies[COMPONENTS[name]] = energies.get(COMPONENTS[name], 0.0) + value * unit
        return energies

    def _reasons(self, metrics: Mapping[str, Any]) -> tuple[str, ...]:
        found = []
        for name, word in RESIDENCIES.items():
            value = number(metrics.get(name))
            if value is not None:
                if value > self._residency.get(name, value):
                    found.append(word)
                self._residency[name] = value
        return tuple(dict.fromkeys(found))

    def _clock(self, kind: Any, *names: str) -> float | None:
        found = self._smi.optional("amdsmi_get_clock_info", self._handle, kind)
        values = (number(found.get(name)) for name in names) if isinstance(found, Mapping) else iter(())
        return next((value for value in values if value is not None), None)

    def _cap(self) -> Mapping[str, Any]:
        found = self._smi.optional("amdsmi_get_power_cap_info", self._handle)
        return found if isinstance(found, Mapping) else {}

    def _is_manual(self) -> bool:
        return "MANUAL" in str(self._smi.optional("amdsmi_get_gpu_perf_level", self._handle)).upper()

    def _read_facts(self, place: str, counter: bool) -> CardFacts:
        kind = self._smi.lib.AmdSmiClkType
        asic, driver, memory = (
            self._smi.optional(name, self._handle) or {}
            for name in ("amdsmi_get_gpu_asic_info", "amdsmi_get_gpu_driver_info", "amdsmi_get_gpu_vram_info")
        )
        highest = self._clock(kind.GFX, "max_clk")
        if highest is None:
            raise DeviceError(
                f"amd:{place} does not tell its clocks", remedy="Virtual machines hide them; use the host."
            )
        cap = self._cap()
        low, high = _cap_w(cap, "min_power_cap"), _cap_w(cap, "max_power_cap")
        units, megabytes = number(asic.get("num_compute_units")), number(memory.get("vram_size"))
        partition = text(self._smi.optional("amdsmi_get_gpu_compute_partition", self._handle) or "")
        folder = Path("/sys/bus/pci/devices") / text(
            self._smi.optional("amdsmi_get_gpu_device_bdf", self._handle) or "none"
        )
        return CardFacts(
            locator=f"amd:{place}",
            name=text(asic.get("market_name") or "AMD GPU"),
            vendor="AMD",
            driver=text(driver.get("driver_version") or "unknown"),
            power_limit_w=_cap_w(cap, "power_cap"),
            default_power_limit_w=_cap_w(cap, "default_power_cap"),
            power_limit_range_w=None if low is None or high is None else (low, high),
            max_sm_clock_mhz=highest,
            max_memory_clock_mhz=self._clock(kind.MEM, "max_clk"),
            sms=None if units is None else int(units),
            memory_bytes=None if megabytes is None else int(megabytes) * MIB,
            energy_counter=counter,
            may_set_clocks=may_write(folder.glob("power_dpm_force_performance_level")),
            may_set_power_limit=may_write(folder.glob("hwmon/hwmon*/power1_cap")),
            mig=bool(partition) and partition.upper() not in ("SPX", "N/A"),
            components=tuple(self._components()),
        )


def may_write(files: Any) -> bool:
    """Whether there are such files and this process may write all of them; nothing is written."""
    found = list(files)
    return bool(found) and all(os.access(file, os.W_OK) for file in found)


def _cap_w(cap: Mapping[str, Any], name: str) -> float | None:
    value = number(cap.get(name))
    return None if value is None else value * _cap_unit_w(cap)


def _cap_unit_w(cap: Mapping[str, Any]) -> float:
    return MICRO if (number(cap.get("max_power_cap")) or 0.0) > _LEAST_MICROWATTS else 1.0
