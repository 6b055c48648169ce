"""Rows of kernels whose clock was not read: forecast and fitted at the clock that the board is expected to choose.

A fit starts from the derived description of the card, whose uncertainties are the priors. Besides the parameters of
the kernels that the rows hold, times of long loads under the power limit tell what the operations cost in energy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.relower import Relowering
from joulecast.calibrate.fit.solve import Solution, robust, solve
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import KernelWork, operator_of
from joulecast.calibrate.rows.timing import observed_time_s, with_windows
from joulecast.model.forecasts import Forecast
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.attention import kin_of
from joulecast.model.kernels.operators import Attention, Gemm, Operator, Streaming
from joulecast.model.kernels.row_blocks import THREADS as ROW_BLOCKS
from joulecast.model.predict import Timer, predict_work
from joulecast.model.repeated_work import Work

Residuals = Callable[[Mapping[str, float]], Array]

#: Relative noise of a published time [1], and how far a profiler's whole microseconds are off [s].
NOISE, ROUNDING_S = 0.04, 0.29e-6
#: A parameter may move so far from where the derivation puts it, in its own standard deviations and as a factor.
REACH, REACH_FACTOR = 4.0, 3.0
#: Rounds of fitting, after each of which the windows follow the times.
ROUNDS = 2
#: Relative change at which a search by slopes ends: the steps of tiles and waves stop finer ones anyhow.
TOLERANCE = 1e-4
#: Steps of the search among tiles and waves, in prior standard deviations.
STEPS = (1.0, 0.5, 0.5, 0.25, 0.25, 0.1, 0.1, 0.05)


def forecast_rows(works: Sequence[KernelWork], rows: Sequence[Row], gpu: GpuDescription | GpuModel) -> Forecast:
    """Forecast of each row's work in the window in which it was measured, at the clock and limit that were set."""
    model = gpu if isinstance(gpu, GpuModel) else gpu_model(gpu)
    settle, window = _windows(works, rows, model)
    alike: dict[tuple[float | None, float | None], list[int]] = {}
    for place, row in enumerate(rows):
        alike.setdefault(_settings(row), []).append(place)
    parts = [
        predict_work(
            [works[i] for i in places],
            model,
            clock_mhz=clock,
            power_limit_w=limit,
            settle_s=settle[places],
            window_s=window[places],
        )
        for (clock, limit), places in alike.items()
    ]
    return parts[0] if len(parts) == 1 else _joined(parts, list(alike.values()))


def _settings(row: Row) -> tuple[float | None, float | None]:
    """SM clock [MHz] and power limit [W] that were set for a row; ``None`` is the card's own."""
    clock, limit = (row.configuration.get(key) for key in ("clock_mhz", "power_limit_w"))
    return None if clock is None else float(clock), None if limit is None else float(limit)


def _joined(parts: Sequence[Forecast], places: Sequence[Sequence[int]]) -> Forecast:
    """One forecast of several, each of which has the pieces of work at the given places."""
    order = np.argsort(np.concatenate([np.asarray(of, dtype=np.int64) for of in places]))

    def column(name: str) -> Array | None:
        known = [value for value in (getattr(one, name) for one in parts) if value is not None]
        return np.concatenate(known)[order] if known else None

    names = [one.name for one in fields(Forecast) if one.name != "components_j"]
    components = {
        name: np.concatenate([one.components_j[name] for one in parts])[order] for name in parts[0].components_j
    }
    return Forecast(components_j=components, **{name: column(name) for name in names})  # type: ignore[arg-type]


def observed_forecast(forecast: Forecast, rows: Sequence[Row]) -> Forecast:
    """The same with the times that each row's measurement reads."""
    low, high = forecast.time_s_p05, forecast.time_s_p95
    return replace(
        forecast,
        time_s=observed_time_s(rows, forecast.time_s),
        time_s_p05=None if low is None else observed_time_s(rows, low),
        time_s_p95=None if high is None else observed_time_s(rows, high),
    )


def _windows(pieces: Sequence[Work], rows: Sequence[Row], gpu: GpuModel) -> tuple[Array, Array]:
    return with_windows(rows, lambda settle, window: Timer(pieces, settle_s=settle, window_s=window)(gpu))


def is_unclocked(rows: Sequence[Row]) -> bool:
    """Whether there are times of single cards, and no clock beside any."""
    timed = [row.measured for row in rows if row.measured.time_s and row.gpus == 1]
    return bool(timed) and not any(measured.sm_clock_mhz for measured in timed)


@dataclass(frozen=True)
class Unclocked:
    """Usable rows of a fit: measured time, what each repeats."""

    rows: tuple[Row, ...]
    works: tuple[KernelWork, ...]

    @property
    def time_s(self) -> Array:
        """Measured times, shape ``(n,)`` [s]."""
        return np.array([row.measured.time_s for row in self.rows], dtype=np.float64)


def usable(rows: Sequence[Row]) -> Unclocked:
    """Rows of kernels with a measured time."""
    works = [operator_of(row.configuration) for row in rows]
    kept = [
        (row, work)
        for row, work in zip(rows, works, strict=True)
        if work.operators and row.measured.time_s and row.gpus == 1
    ]
    return Unclocked(tuple(row for row, _ in kept), tuple(work for _, work in kept))


def fit_unclocked(data: Unclocked, base: GpuDescription) -> list[Solution]:
    """Solutions for the parameters that the rows ask about, kind of kernel by kind."""
    gpu = gpu_model(base)
    gpu = GpuModel(gpu.name, gpu.device, gpu.parameters)
    solutions = []
    for prefixes, members in _kinds(data).items():
        block = Unclocked(tuple(data.rows[i] for i in members), tuple(data.works[i] for i in members))
        priors = {n: p for n, p in _priors(base, prefixes).items() if not _is_idle(n, block)}
        for _ in range(ROUNDS):
            solution = _fit(block, gpu, priors)
            gpu = gpu.with_values(solution.as_dict())
        solutions.append(solution)
    return solutions


def _fit(block: Unclocked, gpu: GpuModel, priors: Mapping[str, Prior]) -> Solution:
    settle, window = _windows(block.works, block.rows, gpu)
    lowering = Relowering([operator for work in block.works for operator in work.operators])
    timer = Timer(block.works, lowering, settle_s=settle, window_s=window)
    measured = block.time_s
    rounded = np.array([row.configuration.get("timing") == "kernel" for row in block.rows])
    noise = np.hypot(NOISE, np.where(rounded, ROUNDING_S / measured, 0.0))

    def residuals(values: Mapping[str, float]) -> Array:
        times = observed_time_s(block.rows, timer(gpu.with_values(values)))
        return np.asarray(np.log(times / measured) / noise)

    return _refined(residuals, priors, solve(residuals, priors, list(priors), TOLERANCE))


def _refined(residuals: Residuals, priors: Mapping[str, Prior], found: Solution) -> Solution:
    """A solution moved on, one parameter at a time: with whole tiles and waves the sum of squares has steps."""
    values = found.as_dict()

    def loss(at: Mapping[str, float]) -> float:
        data = robust(residuals(at))
        return float(data @ data) + sum(((at[name] - p.start) / p.sd) ** 2 for name, p in priors.items())

    least = loss(values)
    for step in STEPS:
        for name, prior in priors.items():
            for sign in (1.0, -1.0):
                moved = min(max(values[name] + sign * step * prior.sd, prior.lower), prior.upper)
                tried = loss({**values, name: moved})
                if tried < least:
                    values[name], least = moved, tried
    return replace(found, values=np.array([values[name] for name in found.names]))


def _kinds(data: Unclocked) -> dict[tuple[str, ...], list[int]]:
    """Rows by the prefixes of the parameters that they ask about, products first: the others read some of theirs."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for index, work in enumerate(data.works):
        kinds.setdefault(_prefixes(work.operators[0]), []).append(index)
    return dict(sorted(kinds.items(), key=lambda kind: (not kind[0][0].startswith("kernel.gemm"), kind[0])))


def _is_idle(name: str, block: Unclocked) -> bool:
    """Whether a parameter of products is one that none of these reads."""
    products = [work.operators[0] for work in block.works if isinstance(work.operators[0], Gemm)]
    read = {f"efficiency.{p.dtype}" for p in products} | {f"layout.{p.layout}" for p in products}
    part = name.removeprefix("kernel.gemm.")
    return part == "fallback_slowdown" or (part.startswith(("efficiency.", "layout.")) and part not in read)


def _prefixes(operator: Operator) -> tuple[str, ...]:
    if isinstance(operator, Gemm):
        return ("kernel.gemm.", "kernel.overlap_exponent", f"power.tensor_pj_per_flop.{operator.dtype}")
    if isinstance(operator, Attention):
        own = f"{kin_of(operator.backend).like}.{operator.direction}"
        return (f"kernel.attention.{own}.", f"power.attention_pj_per_flop.{own}")
    if isinstance(operator, Streaming):
        folder = "row_blocks" if operator.pattern in ROW_BLOCKS else "streaming"
        return (f"kernel.{folder}.{operator.pattern}.",)
    return ("collective.",)


def _priors(base: GpuDescription, prefixes: tuple[str, ...]) -> dict[str, Prior]:
    """What the derivation expects of the parameters with these prefixes."""
    found = {}
    for table, content in base.tables.items():
        for key, parameter in content.parameters.items():
            name = f"{table}.{key}"
            if not name.startswith(prefixes) or isinstance(parameter.value, str | bool):
                continue
            value, reach = parameter.number, REACH * parameter.sd
            if value <= 0 or reach <= 0:
                continue
            lower, upper = max(value - reach, value / REACH_FACTOR), min(value + reach, value * REACH_FACTOR)
            found[name] = Prior(value, lower, upper, parameter.sd / value, parameter.unit, parameter.source)
    return found
