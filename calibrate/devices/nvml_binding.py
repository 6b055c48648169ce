"""NVML through ``nvidia-ml-py``: loading it late, and its errors in the words of this project."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from joulecast.errors import DeviceError, PermissionDeniedError

#: Fields of ``nvmlDeviceGetFieldValues``, by the numbers of nvml.h; old bindings lack the names.
POWER_AVERAGE, POWER_INSTANT = 185, 186
#: What a power field speaks of: the card, or its memory.
SCOPE_CARD, SCOPE_MEMORY = 0, 2
#: Member of a field's value by its type: double, unsigned int, unsigned long (long), signed long long, int, short.
VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
#: Bits of nvmlClocksEventReasons, and our words for them.
EVENT_REASONS = {
    0x1: "idle",
    0x2: "locked_clock",
    0x4: "power_limit",
    0x8: "hardware",
    0x10: "other",
    0x20: "thermal",
    0x40: "thermal",
    0x80: "hardware",
    0x100: "other",
}
#: Streaming-multiprocessor cores by compute capability, where they are not 128.
_CORES_PER_SM = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
#: The Linux capability that the driver asks for before it sets clocks or limits.
_CAP_SYS_ADMIN = 21


class Nvml:
    """The binding, initialised.

    Attributes
    ----------
    lib
        The module ``pynvml``.

    Raises
    ------
    DeviceError
        The package or the driver is missing.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise DeviceError(
                "the package nvidia-ml-py is missing",
                key="package",
                remedy='Install it: pip install "joulecast[nvml]".',
            ) from error
        self.lib: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if getattr(error, "value", None) == pynvml.NVML_ERROR_NO_PERMISSION:
                raise PermissionDeniedError(
                    "the NVIDIA driver lets this user see no GPU",
                    key="permission",
                    remedy="Check who may read /dev/nvidiactl and /dev/nvidia0.",
                ) from error
            raise DeviceError(
                f"no NVIDIA driver answers: {error}",
                key="driver",
                remedy="Check that nvidia-smi runs here; in a container, that GPUs are passed in.",
            ) from error

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function that must work.

        Raises
        ------
        PermissionDeniedError
            The driver refuses it to this user.
        DeviceError
            Any other failure.
        """
        try:
            return getattr(self.lib, name)(*arguments)
        except self.lib.NVMLError as error:
            raise self.translated(name, error) from error
        except AttributeError as error:
            raise DeviceError(f"this nvidia-ml-py has no {name}", remedy="Install a newer one.") from error

    def optional(self, name: str, *arguments: Any) -> Any:
        """Call a function that a card, driver or binding may lack; ``None`` where it does."""
        function = getattr(self.lib, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self.lib.NVMLError:
            return None

    def translated(self, what: str, error: Exception) -> DeviceError:
        """An NVML error as one of ours."""
        code = getattr(error, "value", None)
        if code == self.lib.NVML_ERROR_NO_PERMISSION:
            return PermissionDeniedError(
                f"the driver refuses {what} to this user",
                remedy="Run as administrator (in a container: with the capability SYS_ADMIN), or calibrate passively.",
            )
        if code == self.lib.NVML_ERROR_GPU_IS_LOST:
            return DeviceError("the card is lost", remedy="It fell off the bus: the machine must be restarted.")
        return DeviceError(f"{what} failed: {error}")

    def handle(self, place: str) -> Any:
        """A card by index or ``GPU-…`` identifier.

        Raises
        ------
        DeviceError
            There is none; the message tells how many there are.
        """
        count = int(self.call("nvmlDeviceGetCount"))
        if count == 0:
            raise DeviceError("no NVIDIA GPU here", key="--device", remedy="Check nvidia-smi -L.")
        if place.startswith(("GPU-", "MIG-")):
            find: Callable[[], Any] = partial(self.lib.nvmlDeviceGetHandleByUUID, place)
        elif place.isdecimal() and int(place) < count:
            find = partial(self.lib.nvmlDeviceGetHandleByIndex, int(place))
        else:
            raise DeviceError(
                f"no NVIDIA GPU {place!r}", key="--device", remedy=f"There are {count}: nvml:0 to nvml:{count - 1}."
            )
        try:
            return find()
        except self.lib.NVMLError as error:
            raise self.translated(f"opening the GPU {place}", error) from error

    def fields(self, handle: Any, fields: list[tuple[int, int]]) -> list[float | None]:
        """Values of (field, scope) pairs; ``None`` where the card has not got one."""
        function = getattr(self.lib, "nvmlDeviceGetFieldValues", None)
        if function is None:
            return [None] * len(fields)
        try:
            found = function(handle, fields)
        except self.lib.NVMLError as error:
            if getattr(error, "value", None) in (
                self.lib.NVML_ERROR_NOT_SUPPORTED,
                self.lib.NVML_ERROR_FUNCTION_NOT_FOUND,
            ):
                return [None] * len(fields)
            raise self.translated("reading power", error) from error
        return [
            float(getattr(value.value, VALUE_MEMBERS[value.valueType])) if value.nvmlReturn == 0 else None
            for value in found
        ]

    def shut_down(self) -> None:
        """Let go of the driver."""
        self.optional("nvmlShutdown")


def text(value: Any) -> str:
    """A string that older bindings return as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def reasons_of(bits: int | None) -> tuple[str, ...]:
    """Words for the bits of the clock event reasons."""
    return tuple(dict.fromkeys(word for bit, word in EVENT_REASONS.items() if bits and bits & bit))


def cores_per_sm(capability: tuple[int, int]) -> int:
    """Cores of one streaming multiprocessor by compute capability (CUDA programming guide)."""
    return _CORES_PER_SM.get(capability, 128)


def power_usage_is_average(architecture: int, capability: tuple[int, int], ampere: int) -> bool:
    """Whether ``nvmlDeviceGetPowerUsage`` is an average over one second: from Ampere on, but for GA100 (nvml.h)."""
    return architecture >= ampere and capability != (8, 0)


def is_administrator(status: Path = Path("/proc/self/status"), users: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether this process may set clocks and limits, found without setting anything.

    The driver asks for administration rights of the whole system: on Linux the effective capability SYS_ADMIN outside
    of any user namespace. Where neither can be read, being root must do.
    """
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
        mapping = users.read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return hasattr(os, "geteuid") and os.geteuid() == 0
    effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    whole_system = mapping == ["0", "0", "4294967295"]
    return whole_system and bool(effective >> _CAP_SYS_ADMIN & 1)
