"""Forecasts of overlapped work, and the rule of thumb beside them: the longer of both streams, or their sum."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.overlap import launches_of
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.simulator.instructions.overlap import is_overlapped
from joulecast.simulator.instructions.repeated import Conditions, predict_repeated
from joulecast.validate.scoring.result import Answer, Prediction, guarded


def predict_overlap(gpu: GpuDescription, rows: Sequence[Row]) -> list[Answer]:
    """Parts of layers and matrix products with communication beside or after them."""
    model = gpu_model(gpu)
    return [guarded(_predict, model, row) for row in rows]


def _predict(model: GpuModel, row: Row) -> Prediction:
    launches = launches_of(row.configuration)
    forecast = predict_repeated([launches], model, conditions_of(row, launches))
    return Prediction.of_forecast(forecast, gpus=row.gpus)


def conditions_of(row: Row, launches: Sequence[Launch]) -> Conditions:
    """GPUs work in step where there is communication."""
    communicates = any(launch.stream == "communication" for launch in launches)
    return Conditions(row.gpus if communicates else 1, settle_s=row.settle_s, window_s=row.window_s)


def rule_of_thumb(gpu: GpuDescription, rows: Sequence[Row]) -> list[Prediction]:
    """Each stream as it is forecast alone: the longer one where they overlap, else the sum; energies always add up."""
    model = gpu_model(gpu)
    return [_rule(model, row) for row in rows]


def _rule(model: GpuModel, row: Row) -> Prediction:
    launches = launches_of(row.configuration)
    streams = [[launch for launch in launches if launch.stream == stream] for stream in ("compute", "communication")]
    each = [
        predict_repeated([stream], model, conditions_of(row, stream))
        for stream in streams
        if stream  # a row of compute alone has one
    ]
    times = [float(forecast.time_s[0]) for forecast in each]
    energy_j = sum(float(forecast.energy_j[0]) for forecast in each) * row.gpus
    time_s = max(times) if is_overlapped(launches) else sum(times)
    return Prediction.of_work(time_s, energy_j)


def fit_contention(rows: Sequence[Row], base: GpuDescription) -> GpuDescription:
    """The same GPU with its contention fitted to other rows; all fitting lives in :mod:`joulecast.calibrate`."""
    from joulecast.calibrate.descriptions.describe import refit_contention

    return refit_contention(rows, base)
