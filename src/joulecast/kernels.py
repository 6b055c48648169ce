"""One GPU as an object, and what it forecasts of single kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.arguments import named, number
from joulecast.arrays import Array
from joulecast.errors import InputError
from joulecast.extras import data_frame
from joulecast.model.forecasts import INTERVAL
from joulecast.model.framework.tile_limits import check_tile
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.lowering import library_products, lower
from joulecast.model.kernels.operator_checks import check_operator
from joulecast.model.kernels.operators import Gemm, Operator
from joulecast.model.power.component_power import by_part
from joulecast.model.power.kernel_power import overlap_exponent
from joulecast.model.power.memory_clock import at_memory_clock
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.model.kernels.tile_use import TileUse


def _first(values: Array | None) -> float:
    return float("nan") if values is None else float(values[0])


@dataclass(frozen=True, slots=True)
class KernelForecast:
    """One kernel, run back to back on one GPU in steady state.

    Attributes
    ----------
    name
        The operator's name.
    time_s, energy_j, power_w
        Of one launch, and the mean power while it repeats.
    time_s_p05, time_s_p95, energy_j_p05, energy_j_p95, power_w_p05, power_w_p95
        90 % interval: uncertainty of the parameters and of the model's form.
    clock_mhz
        SM clock: the one asked for, or what the board settles at under its power limit.
    energy_by_component_j
        Parts of ``energy_j``.
    power_by_part_w
        ``power_w`` by part of the package: compute dies, memory, and I/O dies or link.
    limited_by
        What takes longest at this clock: ``compute``, ``memory``, ``link`` or ``latency``.
    """

    name: str
    time_s: float
    energy_j: float
    power_w: float
    clock_mhz: float
    energy_by_component_j: dict[str, float]
    limited_by: str
    time_s_p05: float
    time_s_p95: float
    energy_j_p05: float
    energy_j_p95: float
    power_w_p05: float
    power_w_p95: float
    power_by_part_w: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain data."""
        return asdict(self)

    def to_frame(self) -> pd.DataFrame:
        """One line, with a column for each component; needs pandas."""
        line = self.to_dict()
        energies, powers = line.pop("energy_by_component_j"), line.pop("power_by_part_w")
        line |= {f"{component}_j": value for component, value in energies.items()}
        return data_frame([line | {f"{part}_w": value for part, value in powers.items()}])


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a kernel's time is made of, at any clock f: each part is a number that a person can check.

    time = fixed_s + (core^p + memory_s^p + link_s^p)^(1/p), with core = core_cycles / f and p the ``overlap_exponent``.

    Attributes
    ----------
    fixed_s
        Floor of launch and latency, and what the SMs wait beside nothing else [s].
    core_cycles
        Cycles of the SMs on the critical path.
    memory_s, link_s
        What the memory and the link need on their own [s].
    overlap_exponent
        How well these run beside each other [1].
    tile
        Rows and columns of the result that an SM computes at a time, of a product that the vendor's library picks the
        tile of; ``None`` for other kernels.
    splits
        In how many parts K is split.
    waves
        How often the SMs start a tile.
    """

    fixed_s: float
    core_cycles: float
    memory_s: float
    link_s: float
    overlap_exponent: float
    tile: tuple[int, int] | None = None
    splits: int | None = None
    waves: int | None = None

    def time_s(self, clock_mhz: float) -> float:
        """Time of one launch at an SM clock [s]."""
        parts = (self.core_cycles / (clock_mhz * 1e6), self.memory_s, self.link_s)
        longest = max(*parts, 1e-30)
        p = self.overlap_exponent
        return self.fixed_s + longest * float(sum((part / longest) ** p for part in parts) ** (1.0 / p))

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain data."""
        return asdict(self)


class Gpu:
    """A GPU of the catalogue or of a description file.

    Parameters
    ----------
    description
        Facts and fitted parameters with their sources.
    """

    def __init__(self, description: GpuDescription) -> None:
        self.description = description
        self._model: GpuModel = gpu_model(description)

    def __repr__(self) -> str:
        return f"Gpu({self.name!r})"

    @property
    def name(self) -> str:
        """Name of the description."""
        return self.description.name

    def predict(
        self,
        operator: Operator,
        *,
        clock_mhz: float | None = None,
        power_limit_w: float | None = None,
        memory_clock_mhz: float | None = None,
        component_limits_w: Mapping[str, float] | None = None,
        may_spill: bool = False,
    ) -> KernelForecast:
        """Forecast one kernel.

        Parameters
        ----------
        operator
            A ``Gemm``, ``Attention``, ``Streaming``, ``Collective`` or ``Scan``.
        clock_mhz
            Locked SM clock [MHz]; by default the board chooses it under its power limit.
        power_limit_w
            Power limit [W]; by default the board's own.
        memory_clock_mhz
            Memory clock [MHz], on cards that have states to set; by default the highest.
        component_limits_w
            Limits of parts of the package, for instance ``{"compute": 300}``; by default none [W].
        may_spill
            Forecast an explicit tile also where it does not fit into the registers, as it runs from memory.

        Raises
        ------
        InputError
            Clock or limit out of the GPU's range, a part that it does not have, sizes that no kernel has, a tile that
            does not fit, or a kernel that the description has no parameters for.
        """
        check_operator(operator, self._model)
        self._check("clock_mhz", clock_mhz, "min_clock_mhz", "max_clock_mhz")
        self._check("power_limit_w", power_limit_w, "min_power_limit_w", "max_power_limit_w")
        check_tile(operator, self._model, may_spill=may_spill)
        if memory_clock_mhz is not None:
            memory_clock_mhz = number(memory_clock_mhz, "memory_clock_mhz")
        limits = named(component_limits_w, "component_limits_w")
        limits = {part: number(limit, f"component_limits_w.{part}") for part, limit in limits.items()}
        model = self._model if memory_clock_mhz is None else at_memory_clock(memory_clock_mhz, self._model)
        result = predict_work(
            [Work((operator,))],
            model,
            clock_mhz=clock_mhz,
            power_limit_w=power_limit_w,
            component_limits_w=limits or None,
        )
        clock = float(result.clock_mhz[0])
        energies = by_part({part: np.ravel(value) for part, value in result.components_j.items()}, model)
        return KernelForecast(
            name=operator.name,
            time_s=float(result.time_s[0]),
            energy_j=float(result.energy_j[0]),
            power_w=float(result.power_w[0]),
            clock_mhz=clock,
            energy_by_component_j={part: float(np.ravel(value)[0]) for part, value in result.components_j.items()},
            power_by_part_w={part: float(value[0] / result.time_s[0]) for part, value in energies.items()},
            limited_by=self._limited_by(operator, clock),
            **{name: _first(getattr(result, name)) for name in INTERVAL},
        )

    def tile_use(self, operator: Operator) -> TileUse:
        """Blocks on an SM, waves and traffic by level of a kernel with an explicit tile.

        Raises
        ------
        InputError
            It has no tile, one that does not fit into shared memory, or sizes that no kernel has.
        """
        from joulecast.model.kernels.tile_use import tile_use

        check_operator(operator, self._model)
        check_tile(operator, self._model, may_spill=True)
        return tile_use(operator, self._model)

    def work(self, operator: Operator) -> KernelWork:
        """What a kernel's time is made of: cycles, time of the memory and of the link, and the library's tile.

        Raises
        ------
        InputError
            A kernel that the GPU does not run, or whose description does not know it.
        """
        check_operator(operator, self._model)
        check_tile(operator, self._model, may_spill=True)
        costs = lower([operator], self._model)
        exponent = np.broadcast_to(overlap_exponent(costs.overlap, self._model), (1,))
        return KernelWork(
            fixed_s=float(costs.fixed_s[0] + costs.wait_s[0]),
            core_cycles=float(costs.core_cycles[0]),
            memory_s=float(costs.memory_s[0]),
            link_s=float(costs.link_s[0]),
            overlap_exponent=float(exponent[0]),
            **self._library_tile(operator),
        )

    def _library_tile(self, operator: Operator) -> dict[str, Any]:
        """Tile, splits and waves of a product of the vendor's library; nothing of other kernels."""
        if not isinstance(operator, Gemm) or operator.tile is not None:
            return {}
        _, work = library_products([operator], self._model)
        rows, columns = (int(side) for side in work.tile[0])
        waves = int(np.ceil(work.tiles[0] / self._model.sm_count))
        return {"tile": (rows, columns), "splits": int(work.splits[0]), "waves": waves}

    def _check(self, key: str, value: float | None, lowest: str, highest: str) -> None:
        low, high = self.description.number(lowest), self.description.number(highest)
        if value is not None and not low <= number(value, key) <= high:
            raise InputError(f"{value:g} is out of the range of {self.name}", key=key, remedy=f"{low:g} to {high:g}.")

    def _limited_by(self, operator: Operator, clock_mhz: float) -> str:
        costs = lower([operator], self._model)
        shares = {
            "compute": float(costs.core_cycles[0]) / (clock_mhz * 1e6),
            "memory": float(costs.memory_s[0]),
            "link": float(costs.link_s[0]),
            "latency": float(costs.fixed_s[0] + costs.wait_s[0]),
        }
        return max(shares, key=lambda name: shares[name])
