"""A GPU description's numbers as plain floats, ready for the physics functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from joulecast.arrays import Array
from joulecast.errors import InputError, nearest
from joulecast.model.hardware.description import TABLES, GpuDescription


@dataclass(frozen=True, eq=False)
class GpuModel:
    """Numbers of one GPU.

    Attributes
    ----------
    name
        Name of the description.
    device
        Data-sheet facts by name.
    parameters
        Fitted values by ``table.dotted.name``, for instance ``kernel.gemm.eta``.
    description
        Where the numbers come from; ``None`` while they are being fitted. Forecasts take their uncertainty from it.
    """

    name: str
    device: Mapping[str, float]
    parameters: Mapping[str, float]
    description: GpuDescription | None = None

    def __getitem__(self, key: str) -> float:
        try:
            return self.parameters[key]
        except KeyError:
            pass
        near = nearest(key, self.parameters, 1)
        found = f" It has {near[0]!r}." if near else ""
        raise InputError(
            f"the description has no parameter {key!r}",
            file=self.name,
            remedy=f"Add it, or fit the description again with this release.{found}",
        )

    def get(self, key: str, default: float) -> float:
        """A fitted value, ``default`` where the description does not have it."""
        return self.parameters.get(key, default)

    def with_values(self, values: Mapping[str, float]) -> GpuModel:
        """The same GPU with some values replaced, for fits and for sampling."""
        return replace(self, parameters={**self.parameters, **values})

    @property
    def sm_count(self) -> float:
        """Streaming multiprocessors (or compute units)."""
        return self.device["sm_count"]

    @property
    def max_clock_mhz(self) -> float:
        """Highest SM clock [MHz]."""
        return self.device["max_clock_mhz"]

    @property
    def clocks_mhz(self) -> Array:
        """Every supported SM clock, lowest first [MHz]."""
        step = self.device["clock_step_mhz"]
        count = round((self.max_clock_mhz - self.device["min_clock_mhz"]) / step)
        return self.max_clock_mhz - step * np.arange(count, -1, -1.0)

    def own_limit_w(self, stated: float | None = None) -> float:
        """What a limit leaves to the GPU, the default one where none is stated [W].

        A limit of a module with processors is theirs too; they have what they draw while GPUs train.
        """
        limit = self.device["power_limit_w"] if stated is None else stated
        return limit - self.device.get("limit_beside_gpu_w", 0.0)

    def flops_per_cycle(self, dtype: str) -> float:
        """Dense operations of all SMs in one clock cycle for a matrix product of this type."""
        key = f"tensor_flops_per_sm_per_cycle.{dtype}"
        if key not in self.device:
            key = f"vector_flops_per_sm_per_cycle.{dtype}"
        if key not in self.device:
            rated = dict.fromkeys(k.partition("_flops_per_sm_per_cycle.")[2] for k in self.device)
            raise InputError(
                f"{self.name} has no rate for matrix products in {dtype}",
                key="dtype",
                remedy=f"It has {', '.join(filter(None, rated))}.",
            )
        return self.device[key] * self.sm_count


@lru_cache(maxsize=64)
def gpu_model(description: GpuDescription) -> GpuModel:
    """Numbers of a description, converted once."""
    device = {k: p.number for k, p in description.device.items() if not isinstance(p.value, str)}
    parameters = {
        f"{table}.{key}": parameter.number
        for table in TABLES
        for key, parameter in getattr(description, table).parameters.items()
        if not isinstance(parameter.value, str)
    }
    return GpuModel(description.name, device, parameters, description)
