"""How busy the units of an NVIDIA card are, from its GPM counters (Hopper and newer), without any service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulecast.calibrate.devices.nvml import NvmlCard
from joulecast.errors import DeviceError

#: Metrics by their numbers in nvml.h.
SM_USE, TENSOR_USE, DRAM_USE, NVLINK_IN, NVLINK_OUT = 2, 5, 10, 60, 61
MIB = float(2**20)


@dataclass(frozen=True, slots=True)
class Activity:
    """Means over a stretch of time; ``None`` where the card does not tell.

    Attributes
    ----------
    sm, tensor, dram
        Shares of time or peak rate: busy SMs, tensor operations, memory bandwidth [1].
    link_in_bytes_per_s, link_out_bytes_per_s
        Over all NVLinks.
    """

    sm: float | None
    tensor: float | None
    dram: float | None
    link_in_bytes_per_s: float | None
    link_out_bytes_per_s: float | None


class ActivityReader:
    """Reads the activity between two calls.

    Raises
    ------
    DeviceError
        The card has no GPM counters, or the driver keeps them from this user.
    """

    def __init__(self, card: NvmlCard) -> None:
        self._nvml, self._handle = card.nvml, card.handle
        support = self._nvml.optional("nvmlGpmQueryDeviceSupport", self._handle)
        if support is None or not support.isSupportedDevice:
            raise DeviceError(
                "the card does not tell the activity of its units", remedy="It needs Hopper or newer, and driver 520."
            )
        self._samples = [self._nvml.call("nvmlGpmSampleAlloc") for _ in range(2)]
        self.start()

    def start(self) -> None:
        """Begin a stretch of time."""
        self._nvml.call("nvmlGpmSampleGet", self._handle, self._samples[0])

    def read(self) -> Activity:
        """Activity since :meth:`start`, or since the last reading; stretches below 100 ms may be empty."""
        self._nvml.call("nvmlGpmSampleGet", self._handle, self._samples[1])
        wanted = (SM_USE, TENSOR_USE, DRAM_USE, NVLINK_IN, NVLINK_OUT)
        request: Any = self._nvml.lib.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.lib.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        request.sample1, request.sample2 = self._samples
        for slot, metric in enumerate(wanted):
            request.metrics[slot].metricId = metric
        found = self._nvml.call("nvmlGpmMetricsGet", request).metrics
        values = [found[i].value if found[i].nvmlReturn == 0 else None for i in range(len(wanted))]
        self._samples.reverse()
        sm, tensor, dram = (None if v is None else v / 100.0 for v in values[:3])
        link_in, link_out = (None if v is None else v * MIB for v in values[3:])
        return Activity(sm, tensor, dram, link_in, link_out)

    def close(self) -> None:
        """Free the samples."""
        for sample in self._samples:
            self._nvml.optional("nvmlGpmSampleFree", sample)
