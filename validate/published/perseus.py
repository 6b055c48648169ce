"""``validate perseus``: iteration time and energy of pipeline jobs under plans that set every instruction's clock.

Of each workload at most five plans are read, chosen by their requested clocks alone; instruction times and energies as
functions of clock are fitted to these and every plan is forecast. Nothing that was measured under a plan enters its own
forecast: each of the five is forecast by a fit on the other four.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.calibrate.studies.pipeline_plans import PipelineJob, PlanReadings, choose_plans, make_job
from joulecast.calibrate.studies.pipeline_plans_fit import FittedJob, PlanForecast, fit_job
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.kernel_power import wait_power_w
from joulecast.model.uncertainty import NINETY_PERCENT
from joulecast.validate.published.perseus_files import WORKLOAD, PlanRow, read_plans
from joulecast.validate.scoring.metrics import as_array
from joulecast.validate.scoring.result import Answer, Prediction, ScoredRow, SuiteResult, Unpredicted, unpredicted
from joulecast.validate.scoring.summary import summarise

#: Catalogue names of the artifact's cards by their name in the data, and their power while blocked on communication as
#: the artifact's authors measured it (Perseus, SOSP'24) [W].
CARDS = {"A100": ("a100-pcie-80gb", 83.6), "A40": ("a40", 70.4)}
#: Sizes of the data- and tensor-parallel groups in the name of a parallelism such as ``dp2+pp4+tp2``.
_REPLICATED = re.compile(r"(?:dp|tp)(\d+)")
#: How the fitted plans were chosen; the answer repeats it.
RULE = (
    "all plans by mean requested clock, highest first (of equals the lower number); the first, the last and three "
    "evenly spaced between; each of these is forecast by a fit on the other four"
)


@dataclass(frozen=True)
class Workload:
    """Plans of one workload with their answers.

    Attributes
    ----------
    fitted
        Positions of the plans that were fitted on.
    details
        What the fit found, for the report.
    """

    rows: Sequence[PlanRow]
    answers: Sequence[Answer]
    fitted: Sequence[int] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


def run_perseus(data: str | Path, gpu: str | None = None) -> SuiteResult:
    """Forecast all measured plans of a folder.

    Parameters
    ----------
    data
        A folder as :func:`~joulecast.validate.published.perseus_files.read_plans` reads it.
    gpu
        Catalogue name or path of a description in place of those that the data's names stand for.

    Raises
    ------
    DataError
        A missing file or a broken line.
    """
    groups: dict[tuple[str, ...], list[PlanRow]] = {}
    for row in read_plans(data):
        groups.setdefault(row.workload, []).append(row)
    workloads = [_workload(rows, gpu) for rows in groups.values()]
    scored = [row for workload in workloads for row in _scored(workload)]
    return SuiteResult(
        suite="perseus",
        gpu=gpu or ", ".join(sorted({rows[0].key[0] for rows in groups.values()})),
        rows=tuple(scored),
        summary=summarise(scored),
        skipped=tuple(one for workload in workloads for one in unpredicted(workload.rows, workload.answers)),
        protocol=_protocol(workloads),
        details={"rule": RULE, "workloads": [w.details for w in workloads if w.details]},
    )


def _protocol(workloads: Sequence[Workload]) -> str:
    """How the forecasts were made, and which plans were read."""
    read = [f"{w.details['name']}: plans {', '.join(w.details['fitted_plans'])}" for w in workloads if w.details]
    return f"fitted on {'; '.join(read)} ({RULE})"


def _workload(rows: Sequence[PlanRow], gpu: str | None) -> Workload:
    """Forecasts of the plans of one workload, or why there are none."""
    defects = [_defect(row, rows) for row in rows]
    usable = [i for i, defect in enumerate(defects) if not defect]
    try:
        job = _job([rows[i] for i in usable], gpu)
        readings = _readings(job, [rows[i] for i in usable])
        chosen = choose_plans(job, _readable(readings))
        fitted = fit_job(job, readings, chosen)
        forecast = _left_out(job, readings, chosen, fitted.forecast())
    except InputError as error:
        return Workload(rows, [Unpredicted(defect or error.message) for defect in defects])
    answers: list[Answer] = [Unpredicted(defect) for defect in defects]
    for place, i in enumerate(usable):
        answers[i] = Unpredicted("no other plan to fit on") if [place] == chosen else _prediction(forecast, place)
    numbers = [usable[place] for place in chosen]
    return Workload(rows, answers, numbers, _details(rows, numbers, fitted))


def _defect(row: PlanRow, rows: Sequence[PlanRow]) -> str:
    """Why a plan can be neither forecast nor fitted on; empty for a usable one."""
    if row.requested is None:
        return "no requested clocks of this plan"
    first = next(r.requested for r in rows if r.requested is not None)
    if row.requested.orders != first.orders:
        return "its instructions are executed in another order than those of the workload's first plan"
    return ""


def _job(rows: Sequence[PlanRow], gpu: str | None) -> PipelineJob:
    if not rows:
        raise InputError("no plan of the workload has requested clocks")
    label = rows[0].key[0]
    catalogue_name, waiting = CARDS.get(label, (label.lower(), None))
    card = gpu_model(load_gpu(gpu or catalogue_name))
    requested = [row.requested for row in rows if row.requested is not None]
    orders = requested[0].orders
    if waiting is None:
        waiting = float(wait_power_w(card.max_clock_mhz, card))
    gpus = math.prod(int(size) for size in _REPLICATED.findall(rows[0].workload[WORKLOAD.index("parallelism")]))
    return make_job(rows[0].workload_name, card, waiting, gpus, orders, [r.clocks_mhz for r in requested])


def _readings(job: PipelineJob, rows: Sequence[PlanRow]) -> PlanReadings:
    """Readings by stage; GPUs of a stage have neighbouring ranks (the pipeline is the slowest of Megatron's axes)."""
    stages, gpus = job.schedule.pipeline_size, job.gpus_per_stage
    energy = np.full((len(rows), stages), np.nan)
    times = np.full((len(rows), stages, 2), np.nan)
    for i, row in enumerate(rows):
        if len(row.rank_energy_j) == stages * gpus:
            energy[i] = np.reshape(row.rank_energy_j, (stages, gpus)).sum(axis=1)
        times[i] = _stage_times(row.instruction_time_s, stages)
    iteration, total = (as_array([getattr(row, name) for row in rows]) for name in ("time_s", "energy_j"))
    return PlanReadings(iteration, total, energy, times)


def _stage_times(times: Mapping[tuple[int, int], float], stages: int) -> Array:
    """Mean over the GPUs of each stage that were measured, shape ``(s, 2)``; NaN where none was."""
    ranks = 1 + max((rank for rank, _ in times), default=0)
    found = np.full((stages, 2), np.nan)
    for stage in range(stages):
        for direction in (0, 1):
            own = [t for (rank, d), t in times.items() if d == direction and rank * stages // ranks == stage]
            if own:
                found[stage, direction] = np.mean(own)
    return found


def _readable(readings: PlanReadings) -> list[int]:
    """Plans with all readings that a fit needs."""
    known = np.isfinite(readings.instruction_time_s).all(axis=(1, 2)) & np.isfinite(readings.iteration_time_s)
    return [int(plan) for plan in np.flatnonzero(known & np.isfinite(readings.energy_j))]


def _left_out(job: PipelineJob, readings: PlanReadings, chosen: Sequence[int], forecast: PlanForecast) -> PlanForecast:
    """The forecast by the fit on the chosen plans, but of these each by the fit on the others."""
    columns = [getattr(forecast, one.name).copy() for one in fields(forecast)]
    for plan in chosen if len(chosen) > 1 else ():
        other = fit_job(job, readings, [c for c in chosen if c != plan]).forecast()
        for column, one in zip(columns, fields(other), strict=True):
            column[plan] = getattr(other, one.name)[plan]
    return PlanForecast(*columns)


def _prediction(forecast: PlanForecast, place: int) -> Prediction:
    time, energy = float(forecast.time_s[place]), float(forecast.energy_j[place])
    deviations = (forecast.time_sd, forecast.energy_sd, forecast.power_sd)
    factors = [float(np.exp(NINETY_PERCENT * sd[place])) for sd in deviations]
    return Prediction.within(time, energy, energy / time, factors)


def _scored(workload: Workload) -> list[ScoredRow]:
    """Rows with a prediction, beside the median of the fitted plans."""
    fitted = [workload.rows[i] for i in workload.fitted]
    constant = Prediction(
        time_s=_median([row.time_s for row in fitted]), energy_j=_median([row.energy_j for row in fitted])
    )
    scored = []
    for i, (row, answer) in enumerate(zip(workload.rows, workload.answers, strict=True)):
        if isinstance(answer, Prediction):
            groups = (
                row.key[0],
                "plans fitted on, each forecast by the others" if i in workload.fitted else "other plans",
                _kind(row),
            )
            scored.append(ScoredRow(_row(row), answer, row.workload_name, groups, baseline=constant))
    return scored


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _kind(row: PlanRow) -> str:
    """How often the plan asks a stage to change its clock between instructions."""
    clocks = row.requested.clocks_mhz if row.requested is not None else ()
    changes = [a != b for stage in clocks for a, b in pairwise(stage)]
    if not any(changes):
        return "one clock for each stage"
    often = float(np.mean(changes)) > 0.5
    return "clock changes between most instructions" if often else "clock changes between some instructions"


def _row(row: PlanRow) -> Row:
    power = row.energy_j / row.time_s if row.energy_j is not None and row.time_s is not None else None
    configuration = dict(zip(WORKLOAD, row.workload, strict=True)) | {"plan": row.key[2]}
    measured = Measured(time_s=row.time_s, energy_j=row.energy_j, power_w=power)
    return Row(row.name, "frequency_plan", configuration, measured, row.file, row.line)


def _details(rows: Sequence[PlanRow], numbers: Sequence[int], fitted: FittedJob) -> dict[str, Any]:
    curves = fitted.curves
    limits: Array = np.clip(curves.limit_clock_mhz, 0.0, fitted.form.job.gpu.max_clock_mhz)
    return {
        "name": rows[numbers[0]].workload_name,
        "fitted_plans": [rows[i].key[2] for i in numbers],
        "wait_power_w": curves.wait_power_w / fitted.form.job.gpus_per_stage,
        "voltage_knee_mhz": curves.knee_mhz,
        "beyond_pipeline_s": float(np.mean(fitted.beyond_pipeline_s())),
        "fixed_time_share": np.round(curves.fixed_share, 3).tolist(),
        "limit_clock_mhz": np.round(limits).tolist(),
    }
