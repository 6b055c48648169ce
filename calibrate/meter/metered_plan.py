"""The plan of a metered loop, and its forecast, made before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.errors import InputError
from joulecast.files import read_text
from joulecast.model.architecture.hf import config_file
from joulecast.model.hardware.description import GpuDescription
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.iteration.result import Iteration
from joulecast.simulator.plan_file.gpu import as_trained, gpu_of
from joulecast.simulator.plan_file.names import resolve_path
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.simulator.plan_file.source import Source, apply_overrides, read_toml

#: What a plan that came as tables is called in messages.
UNNAMED = "plan"


@dataclass(frozen=True)
class MeteredPlan:
    """A plan as a row carries it.

    Attributes
    ----------
    tables
        As they stand in a PLAN.toml, with what was overridden, and with the content of a ``config.json`` for its path,
        so that the row can be read anywhere.
    file
        Where they come from: paths in a plan are meant relative to its folder.
    iteration
        The forecast.
    """

    tables: Mapping[str, Any]
    file: str
    iteration: Iteration

    @property
    def name(self) -> str:
        """Name of the file without its folder and ending."""
        return Path(self.file).stem


def metered_plan(plan: str | Path | Mapping[str, Any], overrides: Sequence[str]) -> MeteredPlan:
    """Read a plan and forecast it.

    Parameters
    ----------
    plan
        Path of a PLAN.toml, or its tables.
    overrides
        Settings of the form ``table.key=value`` that win over the file.

    Raises
    ------
    InputError
        The plan cannot be used; the message names file, key and remedy.
    """
    wanted = [overrides] if isinstance(overrides, str) else overrides
    if isinstance(plan, str | Path):
        tables, file = read_toml(plan, wanted)[0], str(Path(plan).resolve())
    elif isinstance(plan, Mapping):
        tables, file = apply_overrides(plan, wanted)[0], UNNAMED
    else:
        raise InputError(f"{type(plan).__name__} is no plan", remedy="Give the path of a PLAN.toml, or its tables.")
    iteration = forecast_of(tables, file)
    return MeteredPlan(_with_model(tables, file), file, iteration)


def _with_model(tables: Mapping[str, Any], file: str) -> Mapping[str, Any]:
    model = tables["workload"]["model"]
    if not isinstance(model, str):
        return tables
    config = config_file(resolve_path(model, Source(file), "workload.model"))
    if config is None:
        return tables
    content = json.loads(read_text(config, "JSON"))
    return {**tables, "workload": {**tables["workload"], "model": content}}


def forecast_of(tables: Mapping[str, Any], file: str, gpu: GpuDescription | None = None) -> Iteration:
    """Forecast of the tables of a plan that runs, so that it must fit memory whatever the forecast says of that.

    Parameters
    ----------
    tables, file
        As :class:`MeteredPlan` has them.
    gpu
        Description in place of the plan's own.

    Raises
    ------
    InputError
        The plan cannot be used.
    """
    plan = plan_from_dict(tables, file=file, gpu=gpu)
    return forecast(plan, gpu=gpu_of(plan) if gpu is None else as_trained(gpu, plan), must_fit=False)
