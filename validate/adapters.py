"""From measured rows to the project's own forecasts and back; the only place of this package that calls the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from joulecast.calibrate.row_operators import operator_of
from joulecast.calibrate.rows import Row
from joulecast.errors import InputError
from joulecast.model.description import GpuDescription
from joulecast.validate.result import Answer, Prediction, Unpredicted
from joulecast.validate.row_plans import inline_model, plan_of_row


def predict_kernels(gpu: GpuDescription, rows: Sequence[Row]) -> list[Answer]:
    """Single kernels and collectives, each run back to back for its row's window."""
    from joulecast.model.predict import predict_operators

    works = [operator_of(row.configuration) for row in rows]
    answers: list[Answer] = [Unpredicted(work.reason or "not one kernel run back to back") for work in works]
    single = [i for i, work in enumerate(works) if work.is_single]
    if not single:
        return answers
    forecast = predict_operators(
        gpu,
        [works[i].operators[0] for i in single],
        settle_s=np.array([rows[i].settle_s for i in single]),
        window_s=np.array([rows[i].window_s for i in single]),
    )
    for place, i in enumerate(single):
        answers[i] = _of_gpus(forecast, place, rows[i].gpus)
    return answers


def _of_gpus(forecast: Any, place: int, gpus: int) -> Prediction:
    """One kernel of a forecast, summed over GPUs that all do the same."""

    def value(name: str, factor: int = 1) -> float:
        return float(getattr(forecast, name)[place]) * factor

    return Prediction(
        time_s=value("time_s"),
        energy_j=value("energy_j", gpus),
        power_w=value("power_w", gpus),
        sm_clock_mhz=value("clock_mhz"),
        time_s_p05=value("time_s_p05"),
        time_s_p95=value("time_s_p95"),
        energy_j_p05=value("energy_j_p05", gpus),
        energy_j_p95=value("energy_j_p95", gpus),
    )


def predict_blocks(gpu: GpuDescription, rows: Sequence[Row]) -> list[Answer]:
    """Single blocks run back to back, and whole single-GPU training steps."""
    return [_guarded(_predict_block if row.op == "block" else _predict_iteration, gpu, row) for row in rows]


def predict_iterations(gpu: GpuDescription, rows: Sequence[Row]) -> list[Answer]:
    """Whole training iterations on several GPUs."""
    return [_guarded(_predict_iteration, gpu, row) for row in rows]


def _guarded(predict: Any, gpu: GpuDescription, row: Row) -> Answer:
    """A row that cannot be expressed says why, and the others go on."""
    try:
        answer: Answer = predict(gpu, row)
    except InputError as error:
        return Unpredicted(str(error))
    return answer


def block_operators(row: Row) -> list[Any]:
    """Kernels of one repetition of a block, as sharded by ``tp`` but without its communication."""
    from joulecast.model.hf import ModelConfig
    from joulecast.model.transformer import Implementation, layer_backward, layer_forward

    table = inline_model({**row.configuration, "vocab": 1, "layers": 1})
    config = ModelConfig(
        name=str(row.configuration.get("model") or "inline"),
        hidden=table["hidden_size"],
        layers=1,
        heads=table["num_attention_heads"],
        kv_heads=table["num_key_value_heads"],
        head_dim=table["hidden_size"] // table["num_attention_heads"],
        ffn=table["intermediate_size"],
        vocab=1,
        gated_mlp=table["gated_mlp"],
        activation=table["activation"],
        norm=table["norm"],
        norm_bias=table["norm"] == "layernorm",
        qkv_bias=table["bias"],
        output_bias=table["bias"],
        mlp_bias=table["bias"],
        rotary=table["rotary"],
    )
    get = row.configuration.get
    implementation = Implementation(
        rotary=table["rotary"], tensor_parallel=int(get("tp") or 1), dtype=str(get("dtype") or "bf16")
    )
    size = (int(get("B") or 1), int(get("S") or 1))
    launches = list(layer_forward(config, implementation, *size))
    if get("direction") != "fwd":
        launches += layer_backward(config, implementation, *size, leaf_input=True)
    return [launch.operator for launch in launches if launch.stream == "compute" for _ in range(launch.repeat)]


def _predict_block(gpu: GpuDescription, row: Row) -> Answer:
    from joulecast.model.predict import predict_sequence

    forecast = predict_sequence(gpu, block_operators(row), settle_s=row.settle_s, window_s=row.window_s)
    return Prediction(
        time_s=float(forecast.time_s),
        energy_j=float(forecast.energy_j),
        power_w=float(forecast.power_w),
        sm_clock_mhz=float(forecast.clock_mhz),
        time_s_p05=float(forecast.time_s_p05),
        time_s_p95=float(forecast.time_s_p95),
        energy_j_p05=float(forecast.energy_j_p05),
        energy_j_p95=float(forecast.energy_j_p95),
    )


def _predict_iteration(gpu: GpuDescription, row: Row) -> Answer:
    from joulecast.simulator.forecast import forecast
    from joulecast.simulator.plan import plan_from_dict

    plan = plan_from_dict(plan_of_row(row.configuration, gpu.name), file=row.name)
    iteration = forecast(plan, gpu=gpu)
    return Prediction(
        time_s=iteration.time_s,
        energy_j=iteration.energy_j,
        power_w=iteration.power_w,
        sm_clock_mhz=iteration.clock_mhz,
        time_s_p05=iteration.time_s_p05,
        time_s_p95=iteration.time_s_p95,
        energy_j_p05=iteration.energy_j_p05,
        energy_j_p95=iteration.energy_j_p95,
    )


def fit(rows: Sequence[Row], base: GpuDescription) -> GpuDescription:
    """Fit a description; all fitting lives in :mod:`joulecast.calibrate`."""
    from joulecast.calibrate.fit import fit_description

    return fit_description(rows, base)
