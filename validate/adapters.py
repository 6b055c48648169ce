"""From measured rows to the project's own forecasts and back; the only place of this package that calls the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from joulecast.calibrate.rows.fields import Configuration, whole_number
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import KernelWork, operator_of
from joulecast.errors import DataError, InputError
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.kernels.operators import Operator
from joulecast.validate.row_plans import inline_model, plan_of_row
from joulecast.validate.scoring.result import Answer, Prediction, Unpredicted, guarded

if TYPE_CHECKING:
    from joulecast.model.framework.implementation import AttentionBackend, Modules


def predict_kernels(gpu: GpuDescription, rows: Sequence[Row]) -> list[Answer]:
    """Kernels, sequences of them and collectives, each repeated for its row's window."""
    works = [operator_of(row.configuration) for row in rows]
    answers: list[Answer] = [Unpredicted(work.reason) for work in works]
    usable = [i for i, work in enumerate(works) if not work.reason]
    forecasts: Sequence[Answer]
    try:
        forecasts = _repeated(gpu, [works[i] for i in usable], [rows[i] for i in usable])
    except InputError:
        # The description lacks what one of them needs: find which.
        forecasts = [guarded(lambda g, row, i=i: _repeated(g, [works[i]], [row])[0], gpu, rows[i]) for i in usable]
    for i, answer in zip(usable, forecasts, strict=True):
        answers[i] = answer
    return answers


def _repeated(gpu: GpuDescription, works: Sequence[KernelWork], rows: Sequence[Row]) -> list[Prediction]:
    """Time and energy of one repetition of each piece of work, summed over GPUs that all do the same."""
    from joulecast.calibrate.fit.unclocked import forecast_rows, observed_forecast

    if not works:
        return []
    forecast = forecast_rows(works, rows, gpu)
    forecast = observed_forecast(forecast, rows)
    pieces = enumerate(zip(works, rows, strict=True))
    return [Prediction.of_forecast(forecast, i, row.gpus, work.busy_share or 1.0) for i, (work, row) in pieces]


def predict_training(gpu: GpuDescription, rows: Sequence[Row]) -> list[Answer]:
    """Single blocks run back to back, steps of decoding, and whole training steps on one or several GPUs."""
    ways = {"block": _predict_block, "decode": _predict_decoding}
    return [guarded(ways.get(row.op, _predict_iteration), gpu, row) for row in rows]


def block_operators(row: Row) -> list[Operator]:
    """Kernels of one repetition of a block, as sharded by ``tp`` but without its communication."""
    from joulecast.model.architecture.model_config import ModelConfig
    from joulecast.model.framework.implementation import Implementation
    from joulecast.model.training.step import layer_backward, layer_forward

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
        qkv_bias=table.get("qkv_bias", table["bias"]),
        joint_projections=table.get("joint_projections", False),
        output_bias=table["bias"],
        mlp_bias=table["bias"],
        rotary=table["rotary"],
    )
    get = row.configuration.get
    implementation = Implementation(
        rotary=table["rotary"],
        tensor_parallel=whole_number(row.configuration, "tp", 1),
        dtype=str(get("dtype") or "bf16"),
        modules=cast("Modules", str(get("modules") or "joint")),  # a wrong one is refused there
        attention_backend=cast("AttentionBackend", str(get("attention_backend") or "cudnn")),
    )
    size = (whole_number(row.configuration, "B", 1), whole_number(row.configuration, "S"))
    launches = list(layer_forward(config, implementation, *size))
    if get("direction") not in ("fwd", "fwd+bwd"):
        raise DataError(f"{get('direction')!r} is neither 'fwd' nor 'fwd+bwd'", key="direction")
    if get("direction") != "fwd":
        launches += layer_backward(config, implementation, *size, leaf_input=True)
    return [launch.operator for launch in launches if launch.stream == "compute" for _ in range(launch.repeat)]


def _predict_block(gpu: GpuDescription, row: Row) -> Answer:
    """One block, or all ``blocks`` of a model in turn."""
    operators, blocks = block_operators(row), whole_number(row.configuration, "blocks", 1)
    return _repeated(gpu, [KernelWork(tuple(operators), (blocks,) * len(operators))], [row])[0]


def _predict_decoding(gpu: GpuDescription, row: Row) -> Answer:
    """A step of a model's decoding that is repeated as one graph, of ``live`` sequences with a mean ``context``."""
    from joulecast.model.architecture.hf import load_model
    from joulecast.model.framework.implementation import Implementation
    from joulecast.model.training.generation import Generated, decode_step, engine_of

    config = load_model(str(row.configuration.get("catalogue")))
    context, live = whole_number(row.configuration, "context"), whole_number(row.configuration, "live")
    work = Generated(prompts=0, prompt_tokens=context, live=live, context=float(context), steps=1, overhead_s=0.0)
    engine = engine_of(Implementation(dtype=str(row.configuration.get("dtype") or "bf16")))
    launches = tuple(decode_step(config, config.runs(0, config.layers), engine, work))
    operators, often = tuple(x.operator for x in launches), tuple(x.repeat for x in launches)
    return _repeated(gpu, [KernelWork(operators, often)], [row])[0]


def _predict_iteration(gpu: GpuDescription, row: Row) -> Answer:
    from joulecast.simulator.iteration.forecast import forecast
    from joulecast.simulator.plan_file.gpu import as_trained
    from joulecast.simulator.plan_file.plan import plan_from_dict

    plan = plan_from_dict(plan_of_row(_beside(row), gpu.name), file=row.name, gpu=gpu)
    return Prediction.of_iteration(forecast(plan, gpu=as_trained(gpu, plan), must_fit=False))


def _beside(row: Row) -> Configuration:
    """A row's configuration, whose model may be a ``config.json`` at a path from the rows' own file."""
    name = row.configuration.get("catalogue")
    if not isinstance(name, str) or not name.endswith(".json"):
        return row.configuration
    return {**row.configuration, "catalogue": str(Path(row.file).parent / name)}


def fit(rows: Sequence[Row], base: GpuDescription) -> GpuDescription:
    """Fit a description; all fitting lives in :mod:`joulecast.calibrate`."""
    from joulecast.calibrate.descriptions.describe import fit_all
    from joulecast.calibrate.descriptions.describe_unclocked import fit_unclocked_rows
    from joulecast.calibrate.fit.unclocked import is_unclocked

    if is_unclocked(rows):
        return fit_unclocked_rows(rows, base).description
    return fit_all(rows, base, cross_validate=False).description
