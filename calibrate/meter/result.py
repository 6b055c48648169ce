"""What a meter answers: measured beside forecast, of the GPUs that it has measured."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.calibrate.measure.recorder import unwritable
from joulecast.calibrate.meter.metered_row import PARTIAL
from joulecast.calibrate.rows.measured import largest_of_present, mean_of_present, sum_or_none
from joulecast.extras import data_frame
from joulecast.files import write_all
from joulecast.simulator.iteration.result import Iteration, RankForecast

if TYPE_CHECKING:
    import pandas as pd

#: How a quantity is labelled for people, and what its value is multiplied by.
LABELS = {
    "time_s": ("time [s]", 1.0),
    "energy_j": ("energy [J]", 1.0),
    "power_w": ("power [W]", 1.0),
    "sm_clock_mhz": ("SM clock [MHz]", 1.0),
    "peak_mem_bytes": ("peak memory [GB]", 1e-9),
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A measured quantity beside its forecast, ``None`` where one is not known.

    Attributes
    ----------
    name
        With its unit: ``time_s``, ``energy_j``, ``power_w``, ``sm_clock_mhz`` or ``peak_mem_bytes``.
    measured, standard_error
        Mean over the windows, and its standard error.
    forecast, p05, p95
        Forecast, and its 90 % interval.
    """

    name: str
    measured: float | None
    standard_error: float | None
    forecast: float | None
    p05: float | None
    p95: float | None

    @property
    def error_percent(self) -> float | None:
        """Forecast over measured, less one [%]."""
        if not self.measured or self.forecast is None:
            return None
        return 100.0 * (self.forecast / self.measured - 1.0)


@dataclass(frozen=True)
class MeterResult:
    """A metered loop beside the forecast of its plan.

    Attributes
    ----------
    row
        As it is written: the plan, and what was measured.
    quantities
        Of one iteration, on the GPUs that were measured.
    warnings
        What is odd about the measurement.
    """

    row: Mapping[str, Any]
    quantities: tuple[Quantity, ...]
    warnings: tuple[str, ...]

    @property
    def partial(self) -> bool:
        """Whether the loop ended before a window closed."""
        return bool(self.row.get(PARTIAL))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        quantities = {q.name: {**asdict(q), "error_percent": q.error_percent} for q in self.quantities}
        for entry in quantities.values():
            del entry["name"]
        return {"quantities": quantities, "warnings": list(self.warnings), "row": dict(self.row)}

    def to_frame(self) -> pd.DataFrame:
        """One line for each quantity; needs pandas."""
        return data_frame([{**asdict(q), "error_percent": q.error_percent} for q in self.quantities])

    def write(self, path: str | Path) -> None:
        """Append the row to a JSON-lines file; ranks on one machine may share it.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        line = json.dumps(self.row, allow_nan=False) + "\n"
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                write_all(file, line.encode())
            finally:
                os.close(file)
        except OSError as error:
            raise unwritable(path, error) from error

    def __str__(self) -> str:
        """A table, and what is odd about it."""
        gpus, windows = self.row["gpus"], self.row.get("measured_repeats", 0)
        whose = f" of rank {self.row['rank']}" if self.row["world_size"] > 1 else ""
        title = (
            f"{self.row['name']}: one iteration on {gpus} GPU{'s' * (gpus > 1)}{whose}, "
            f"{self.row['measured_steps']} iterations in {windows} window{'s' * (windows != 1)}"
        )
        lines = [("", "measured", "± ", "forecast", "5-95 %", "error [%]"), *map(_cells, self.quantities)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        table = [
            "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
            for line in lines
        ]
        return "\n".join([title, *table, *_surroundings(self.row), *(f"warning: {told}" for told in self.warnings)])


def _surroundings(row: Mapping[str, Any]) -> list[str]:
    """A line on heat, and on what held the clock."""
    heat = mean_of_present(_by_gpu(row, "gpu_temp_c"))
    reasons = {name: share for name, share in row.get("measured_reasons", {}).items() if name != "idle" and share}
    held = ", ".join(f"by {name} in {share:.0%} of the readings" for name, share in reasons.items()) or "by nothing"
    return [] if heat is None else [f"at {heat:.0f} degrees Celsius; the clock was held {held}"]


def _cells(quantity: Quantity) -> tuple[str, ...]:
    label, factor = LABELS[quantity.name]

    def shown(value: float | None, digits: int = 4) -> str:
        return "" if value is None else f"{float(f'{factor * value:.{digits}g}'):.10g}"

    interval = "" if quantity.p05 is None else f"{shown(quantity.p05)} to {shown(quantity.p95)}"
    error = "" if quantity.error_percent is None else f"{quantity.error_percent:.2f}"
    measured, known = shown(quantity.measured), shown(quantity.standard_error, 2)
    return label, measured, known, shown(quantity.forecast), interval, error


def compared(row: Mapping[str, Any], iteration: Iteration) -> tuple[Quantity, ...]:
    """What a row has measured beside the forecast of the same GPUs."""
    stages = _stages(row, iteration)
    power = None if stages is None else sum(stage.power_w for stage in stages)
    share = None if power is None else power / iteration.power_w
    measured_w = sum_or_none(_by_gpu(row, "power_w"))
    time_sd, energy_sd = row.get("measured_time_sd"), row.get("measured_energy_sd")
    power_sd = None if energy_sd is None else max(energy_sd**2 - (time_sd or 0.0) ** 2, 0.0) ** 0.5
    whole = ("time_s", row.get("time_s"), time_sd, 1.0)
    return (
        _with_interval(*whole, iteration),
        _with_interval("energy_j", row.get("energy_j"), energy_sd, share, iteration),
        _with_interval("power_w", measured_w, power_sd, share, iteration),
        _without_interval(
            "sm_clock_mhz",
            mean_of_present(_by_gpu(row, "sm_clock_mhz")),
            None if stages is None else sum(stage.clock_mhz for stage in stages) / len(stages),
        ),
        _without_interval(
            "peak_mem_bytes",
            largest_of_present(_by_gpu(row, "peak_mem_bytes")),
            None if stages is None else max(stage.memory_bytes for stage in stages),
        ),
    )


def _with_interval(
    name: str, measured: float | None, error: float | None, share: float | None, iteration: Iteration
) -> Quantity:
    """A quantity that is forecast with its interval; ``share`` of the forecast belongs to the measured GPUs."""
    found = [None if share is None else share * getattr(iteration, f"{name}{end}") for end in ("", "_p05", "_p95")]
    return Quantity(name, measured, None if measured is None or error is None else error * measured, *found)


def _without_interval(name: str, measured: float | None, forecast: float | None) -> Quantity:
    return Quantity(name, measured, None, forecast, None, None)


def _by_gpu(row: Mapping[str, Any], key: str) -> list[float | None]:
    values: list[float | None] = row.get(f"{key}_per_gpu", [row.get(key)])
    return values


def _stages(row: Mapping[str, Any], iteration: Iteration) -> list[RankForecast] | None:
    """The pipeline stage of each measured GPU; ``None`` where it is not known.

    GPUs of a job are numbered with the pipeline outermost, as Megatron and PyTorch's device meshes do.
    """
    gpus, ranks = int(row["gpus"]), iteration.ranks
    if len(ranks) == 1:
        return [ranks[0]] * gpus
    if gpus * int(row["world_size"]) != iteration.gpus:
        return None
    first = int(row["rank"]) * gpus
    return [ranks[(first + place) * len(ranks) // iteration.gpus] for place in range(gpus)]
