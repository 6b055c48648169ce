"""NVIDIA cards through NVML.

What NVML's readings mean: the energy counter is in millijoules and moves about every 100 ms on Hopper (20 ms on Volta).
Field 186 is the newest power, on Hopper the mean of the last 25 ms once in 100 ms; field 185 the average of a second.
``nvmlDeviceGetPowerUsage`` is such an average from Ampere on, except on GA100. Power of the memory (fields with the
scope *memory*) exists from Hopper on; it is a power, so that its energy here is its integral over the samples taken.
Reading the counter keeps a core busy for milliseconds, all else for less than a tenth of one; the driver's own list of
powers (:mod:`joulecast.calibrate.devices.nvml_history`) costs a millisecond for seconds of readings.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from joulecast.calibrate.devices.nvml_binding import (
    POWER_AVERAGE,
    POWER_INSTANT,
    SCOPE_CARD,
    SCOPE_MEMORY,
    Nvml,
    cores_per_sm,
    is_administrator,
    power_usage_is_average,
    reasons_of,
    text,
)
from joulecast.calibrate.devices.nvml_history import NvmlHistory, history_at
from joulecast.calibrate.devices.processes import is_ours
from joulecast.calibrate.devices.protocol import CardFacts, Device, Neighbour, PowerReading, Sample, Settings
from joulecast.errors import DeviceError

#: Milli-units in which NVML speaks.
MILLI = 1e-3


class NvmlCard(Device):
    """An NVIDIA card.

    Parameters
    ----------
    place
        Index as ``nvidia-smi`` counts (whatever ``CUDA_VISIBLE_DEVICES`` says), or a ``GPU-…`` identifier.

    Raises
    ------
    DeviceError
        The binding, the driver or the card is missing.
    """

    def __init__(self, place: str = "0") -> None:
        self._nvml = Nvml()
        try:
            self._handle = self._nvml.handle(place)
            self._set_up(place)
        except DeviceError:
            self._nvml.shut_down()
            raise

    def _set_up(self, place: str) -> None:
        nvml, handle = self._nvml, self._handle
        self._capability: tuple[int, int] = tuple(nvml.optional("nvmlDeviceGetCudaComputeCapability", handle) or (0, 0))
        self._has_counter = nvml.optional("nvmlDeviceGetTotalEnergyConsumption", handle) is not None
        wanted = [(POWER_INSTANT, SCOPE_CARD), (POWER_AVERAGE, SCOPE_CARD), (POWER_INSTANT, SCOPE_MEMORY)]
        found = nvml.fields(handle, wanted)
        # A card without a sensor for its memory reports 0 W.
        self._fields = [field for field, value in zip(wanted, found, strict=True) if value]
        self._usage = nvml.optional("nvmlDeviceGetPowerUsage", handle) is not None
        architecture = nvml.optional("nvmlDeviceGetArchitecture", handle) or 0
        ampere = getattr(nvml.lib, "NVML_DEVICE_ARCH_AMPERE", 7)
        self._usage_is_average = power_usage_is_average(architecture, self._capability, ampere)
        self._reasons = next(
            (
                name
                for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
                if nvml.optional(name, handle) is not None
            ),
            None,
        )
        self._locked: tuple[float, float] | None = None
        self._memory: tuple[float, float, float] | None = None  # time, power, energy of the memory so far
        self._facts = self._read_facts(place)
        self._history: NvmlHistory | None = history_at(nvml, handle)

    @property
    def identifier(self) -> str:
        """The card's own ``GPU-…``, whatever word opened it."""
        return text(self._nvml.call("nvmlDeviceGetUUID", self._handle))

    @property
    def power_readings(self) -> dict[str, str]:
        """Where the fields of a sample come from, for people."""
        names = {
            (POWER_INSTANT, SCOPE_CARD): ("power_w", "field 186, instant"),
            (POWER_AVERAGE, SCOPE_CARD): ("average_power_w", "field 185, average"),
            (POWER_INSTANT, SCOPE_MEMORY): ("components_j.hbm", "field 186, memory, integrated over samples"),
        }
        found = dict(names[field] for field in self._fields)
        if self._usage:
            key = "average_power_w" if self._usage_is_average else "power_w"
            kind = "average of 1 s" if self._usage_is_average else "instant"
            found.setdefault(key, f"nvmlDeviceGetPowerUsage, {kind}")
        if self._history is not None:
            found["power_history"] = f"nvmlDeviceGetSamples, a reading in {self._history.step_s:.3g} s"
        if self._has_counter:
            found["energy_j"] = "nvmlDeviceGetTotalEnergyConsumption"
        return found

    @property
    def history_step_s(self) -> float | None:
        """Time between two readings of the driver's power history [s]; ``None`` without one."""
        return None if self._history is None else self._history.step_s

    def power_history(self, since_s: float) -> Sequence[PowerReading]:
        """Powers that the driver wrote down after a time."""
        return () if self._history is None else self._history.since(since_s)

    def sample(self, *, counter: bool = True) -> Sample:
        """Read the card; without the counter also without the utilisation."""
        nvml, handle, lib = self._nvml, self._handle, self._nvml.lib
        begin = time.monotonic()
        energy = None
        if counter and self._has_counter:
            energy = nvml.call("nvmlDeviceGetTotalEnergyConsumption", handle) * MILLI
        counted = time.monotonic()
        power = dict(zip(self._fields, nvml.fields(handle, self._fields), strict=True)) if self._fields else {}
        instant = _scaled(power.get((POWER_INSTANT, SCOPE_CARD)))
        average = _scaled(power.get((POWER_AVERAGE, SCOPE_CARD)))
        if self._usage and (average if self._usage_is_average else instant) is None:
            usage = nvml.call("nvmlDeviceGetPowerUsage", handle) * MILLI
            instant, average = (instant, usage) if self._usage_is_average else (usage, average)
        clock = nvml.optional("nvmlDeviceGetClockInfo", handle, lib.NVML_CLOCK_SM)
        memory_clock = nvml.optional("nvmlDeviceGetClockInfo", handle, lib.NVML_CLOCK_MEM)
        temperature = nvml.optional("nvmlDeviceGetTemperature", handle, lib.NVML_TEMPERATURE_GPU)
        reasons = nvml.optional(self._reasons, handle) if self._reasons else None
        use = nvml.optional("nvmlDeviceGetUtilizationRates", handle) if counter else None
        end = time.monotonic()
        return Sample(
            # Where windows are cut by the counter its own call sets the time.
            time_s=0.5 * (begin + (end if energy is None else counted)),
            call_s=end - begin,
            energy_j=energy,
            power_w=instant,
            average_power_w=average,
            sm_clock_mhz=_float(clock),
            memory_clock_mhz=_float(memory_clock),
            temperature_c=_float(temperature),
            reasons=reasons_of(reasons),
            components_j=self._memory_energy(end, _scaled(power.get((POWER_INSTANT, SCOPE_MEMORY)))),
            utilisation=None if use is None else use.gpu / 100.0,
        )

    def neighbours(self) -> Sequence[Neighbour]:
        """Other processes that compute on the card; inside a container the driver may not tell them all."""
        found = self._nvml.optional("nvmlDeviceGetComputeRunningProcesses", self._handle) or []
        return [
            Neighbour(int(process.pid), None if process.usedGpuMemory is None else int(process.usedGpuMemory))
            for process in found
            if not is_ours(int(process.pid))
        ]

    def settings(self) -> Settings:
        """What is set now: a limit below or above the card's own, and the clocks that this object has locked.

        NVML does not tell clocks that somebody else has locked.
        """
        limit, default = self._facts.power_limit_w, self._facts.default_power_limit_w
        now = self._nvml.optional("nvmlDeviceGetPowerManagementLimit", self._handle)
        limit = limit if now is None else now * MILLI
        return Settings(self._locked, None if default is None or limit == default else limit)

    def apply(self, settings: Settings) -> None:
        """Set clocks and power limit; what is already so is left alone."""
        nvml, handle = self._nvml, self._handle
        if settings.locked_clock_mhz is not None:
            low, high = settings.locked_clock_mhz
            nvml.call("nvmlDeviceSetGpuLockedClocks", handle, round(low), round(high))
            self._locked = settings.locked_clock_mhz
        else:
            self._unlock()
        limit = self._facts.default_power_limit_w if settings.power_limit_w is None else settings.power_limit_w
        now = nvml.optional("nvmlDeviceGetPowerManagementLimit", handle)
        if limit is not None and now is not None and round(limit / MILLI) != now:
            nvml.call("nvmlDeviceSetPowerManagementLimit", handle, round(limit / MILLI))

    def _unlock(self) -> None:
        lib = self._nvml.lib
        try:
            lib.nvmlDeviceResetGpuLockedClocks(self._handle)
        except lib.NVMLError as error:
            # A card whose clocks cannot be locked has none to give back.
            if getattr(error, "value", None) != lib.NVML_ERROR_NOT_SUPPORTED:
                raise self._nvml.translated("unlocking clocks", error) from error
        self._locked = None

    def close(self) -> None:
        """Let go of the driver."""
        self._nvml.shut_down()

    def _memory_energy(self, now_s: float, power_w: float | None) -> dict[str, float]:
        """Energy of the memory: its power integrated by the trapezoidal rule over the samples so far."""
        if power_w is None:
            return {}
        before, energy = self._memory, 0.0
        if before is not None:
            energy = before[2] + 0.5 * (before[1] + power_w) * (now_s - before[0])
        self._memory = (now_s, power_w, energy)
        return {"hbm": energy}

    def _read_facts(self, place: str) -> CardFacts:
        nvml, handle, lib = self._nvml, self._handle, self._nvml.lib
        limit = nvml.optional("nvmlDeviceGetEnforcedPowerLimit", handle)
        default = nvml.optional("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        constraints = nvml.optional("nvmlDeviceGetPowerManagementLimitConstraints", handle)
        memory_clocks = nvml.optional("nvmlDeviceGetSupportedMemoryClocks", handle) or []
        clocks: list[int] = []
        if memory_clocks:
            clocks = nvml.optional("nvmlDeviceGetSupportedGraphicsClocks", handle, max(memory_clocks)) or []
        memory = nvml.optional("nvmlDeviceGetMemoryInfo", handle)
        cores = nvml.optional("nvmlDeviceGetNumGpuCores", handle)
        mig = nvml.optional("nvmlDeviceGetMigMode", handle)
        administrator = is_administrator()
        return CardFacts(
            locator=f"nvml:{place}",
            name=text(nvml.call("nvmlDeviceGetName", handle)),
            vendor="NVIDIA",
            driver=text(nvml.call("nvmlSystemGetDriverVersion")),
            power_limit_w=_scaled(limit),
            default_power_limit_w=_scaled(default),
            power_limit_range_w=None if constraints is None else (constraints[0] * MILLI, constraints[1] * MILLI),
            max_sm_clock_mhz=float(nvml.call("nvmlDeviceGetMaxClockInfo", handle, lib.NVML_CLOCK_SM)),
            max_memory_clock_mhz=_float(nvml.optional("nvmlDeviceGetMaxClockInfo", handle, lib.NVML_CLOCK_MEM)),
            sm_clocks_mhz=tuple(sorted(float(clock) for clock in clocks)),
            sms=None if cores is None else int(cores) // cores_per_sm(self._capability),
            memory_bytes=None if memory is None else int(memory.total),
            energy_counter=self._has_counter,
            may_set_clocks=administrator and bool(clocks),
            may_set_power_limit=administrator and constraints is not None and constraints[0] < constraints[1],
            mig=mig is not None and mig[0] == 1,
            components=("hbm",) if (POWER_INSTANT, SCOPE_MEMORY) in self._fields else (),
        )


def _scaled(value: float | None) -> float | None:
    return None if value is None else value * MILLI


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
