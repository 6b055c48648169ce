"""Rows of kernels whose clock nobody read: forecast and fitted with the clock that the board is expected to choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.row_operators import KernelWork
from joulecast.calibrate.rows import Row
from joulecast.calibrate.timing import observed_time_s, with_windows
from joulecast.model.description import GpuDescription
from joulecast.model.gpu_model import GpuModel, gpu_model
from joulecast.model.predict import Forecast, Work, predict_work

Array = NDArray[np.float64]


def forecast_rows(works: Sequence[KernelWork], rows: Sequence[Row], gpu: GpuDescription | GpuModel) -> Forecast:
    """Forecast of each row's work in the window in which it was measured."""
    model = gpu if isinstance(gpu, GpuModel) else gpu_model(gpu)
    pieces = [Work(work.operators, work.counts, work.busy_fraction) for work in works]
    bare = GpuModel(model.name, model.device, model.parameters)
    settle, window = with_windows(rows, lambda s, w: predict_work(pieces, bare, settle_s=s, window_s=w).time_s)
    return predict_work(pieces, model, settle_s=settle, window_s=window)


def observed_forecast(forecast: Forecast, rows: Sequence[Row]) -> Forecast:
    """The same with the times that each row's measurement reads."""
    low, high = forecast.time_s_p05, forecast.time_s_p95
    return replace(
        forecast,
        time_s=observed_time_s(rows, forecast.time_s),
        time_s_p05=None if low is None else observed_time_s(rows, low),
        time_s_p95=None if high is None else observed_time_s(rows, high),
    )
