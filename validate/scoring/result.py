"""What a suite returns: predictions beside measurements, figures of merit, and what was left out and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.errors import InputError
from joulecast.extras import data_frame
from joulecast.model.forecasts import INTERVAL

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.model.forecasts import Forecast
    from joulecast.simulator.iteration.result import Iteration

#: Name of the plain form of a result, with its version.
FORM = "joulecast-validation-1"
#: Quantities that are scored.
QUANTITIES = ("time_s", "energy_j", "power_w", "sm_clock_mhz", "peak_mem_bytes")


@dataclass(frozen=True, slots=True)
class Prediction:
    """Forecast of one row, ``None`` where the model has no answer.

    Of several GPUs energy and power are sums, the clock is the mean and memory the largest. The interval holds 90 % of
    the values that a measurement may take.
    """

    time_s: float | None = None
    energy_j: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    time_s_p05: float | None = None
    time_s_p95: float | None = None
    energy_j_p05: float | None = None
    energy_j_p95: float | None = None
    power_w_p05: float | None = None
    power_w_p95: float | None = None
    peak_mem_bytes: float | None = None

    @classmethod
    def of_work(cls, time_s: float | None, energy_j: float | None) -> Prediction:
        """Time and energy, with the mean power where both are known."""
        return cls(time_s=time_s, energy_j=energy_j, power_w=energy_j / time_s if time_s and energy_j else None)

    @classmethod
    def of_forecast(cls, forecast: Forecast, place: int = 0, gpus: int = 1, busy_share: float = 1.0) -> Prediction:
        """One piece of work of a forecast, on so many GPUs that all do the same.

        Of work between pauses, which is busy for a fraction of the time, a row's time is the busy part.
        """
        factors = {"time_s": busy_share, "energy_j": gpus, "power_w": gpus}
        columns = {f"{name}{end}": factor for name, factor in factors.items() for end in ("", "_p05", "_p95")}
        found = {name: getattr(forecast, name) for name in columns}
        return cls(
            sm_clock_mhz=float(forecast.clock_mhz[place]),
            **{name: None if of is None else float(of[place]) * columns[name] for name, of in found.items()},
        )

    @classmethod
    def of_iteration(cls, iteration: Iteration) -> Prediction:
        """What a forecast iteration says of a measured one."""
        named = {name: getattr(iteration, name) for name in ("time_s", "energy_j", "power_w", *INTERVAL)}
        memory = max(rank.memory_bytes for rank in iteration.ranks)
        return cls(sm_clock_mhz=iteration.clock_mhz, peak_mem_bytes=memory, **named)

    @classmethod
    def within(
        cls,
        time_s: float,
        energy_j: float,
        power_w: float,
        factors: Sequence[float],
        clock_mhz: float | None = None,
    ) -> Prediction:
        """A forecast whose time, energy and power may each be off by a factor to either side."""
        of_time, of_energy, of_power = factors
        return cls(
            time_s=time_s,
            energy_j=energy_j,
            power_w=power_w,
            sm_clock_mhz=clock_mhz,
            time_s_p05=time_s / of_time,
            time_s_p95=time_s * of_time,
            energy_j_p05=energy_j / of_energy,
            energy_j_p95=energy_j * of_energy,
            power_w_p05=power_w / of_power,
            power_w_p95=power_w * of_power,
        )


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """Why a row has no prediction."""

    reason: str


Answer = Prediction | Unpredicted


def guarded(predict: Callable[..., Answer], gpu: Any, row: Row) -> Answer:
    """The prediction of a row on a GPU; one that cannot be expressed says why, and the others go on."""
    try:
        return predict(gpu, row)
    except InputError as error:
        return Unpredicted(str(error))


def unpredicted(rows: Sequence[Any], answers: Sequence[object]) -> tuple[tuple[str, str], ...]:
    """Rows without a prediction, with the reason."""
    pairs = zip(rows, answers, strict=True)
    return tuple((row.name, answer.reason) for row, answer in pairs if isinstance(answer, Unpredicted))


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row with its prediction.

    Attributes
    ----------
    family
        Operator family, whose rows err alike.
    groups
        Further sets under which the summary counts this row.
    baseline
        What a trivial rule says.
    """

    row: Row
    prediction: Prediction
    family: str
    groups: tuple[str, ...] = ()
    baseline: Prediction = Prediction()

    @property
    def measured(self) -> Measured:
        """What was observed."""
        return self.row.measured

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``rows``."""
        return {
            "name": self.row.name,
            "family": self.family,
            "measured": {key: getattr(self.measured, key) for key in QUANTITIES},
            "predicted": asdict(self.prediction),
        }


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """Result of a suite; :meth:`to_dict` is the JSON form of the command line, with a suite's own ``details``."""

    suite: str
    gpu: str
    rows: tuple[ScoredRow, ...]
    summary: Mapping[str, Any]
    skipped: tuple[tuple[str, str], ...] = ()
    protocol: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Rows, summary, and skipped rows with reasons."""
        return {
            "form": FORM,
            "suite": self.suite,
            "gpu": self.gpu,
            "protocol": self.protocol,
            "rows": [row.to_dict() for row in self.rows],
            "summary": dict(self.summary),
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
            **self.details,
        }

    def to_frame(self) -> pd.DataFrame:
        """One line per row with the columns ``measured_…`` and ``predicted_…``."""
        lines = []
        for row in self.rows:
            entry = row.to_dict()
            line = {"name": entry["name"], "family": entry["family"]}
            for part in ("measured", "predicted"):
                line |= {f"{part}_{key}": value for key, value in entry[part].items()}
            lines.append(line)
        return data_frame(lines)
