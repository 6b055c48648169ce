"""The functions behind ``joulecast.predict`` and its siblings; they import what they need when they are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulecast.kernels import Gpu
    from joulecast.simulator.iteration import Iteration
    from joulecast.simulator.plan import Plan


def gpu(name_or_path: str | Path) -> Gpu:
    """A GPU by its name in the catalogue, or from a description file.

    Raises
    ------
    UnknownNameError
        No such GPU; the message has the nearest names.
    InputError
        The file cannot be used.
    """
    from joulecast.kernels import Gpu
    from joulecast.model.catalogue import load_gpu

    return Gpu(load_gpu(name_or_path))


def predict(plan: str | Path | Plan, overrides: Sequence[str] = ()) -> Iteration:
    """Forecast one training iteration.

    Parameters
    ----------
    plan
        Path of a PLAN.toml, or a plan already read.
    overrides
        Settings of the form ``table.key=value`` that win over the file.

    Raises
    ------
    InputError
        The plan cannot be used; the message names file, key and remedy.
    DoesNotFitError
        A GPU's memory is too small.
    """
    from joulecast.errors import InputError
    from joulecast.simulator.plan import load_plan

    if isinstance(plan, str | Path):
        plan = load_plan(plan, overrides)
    elif overrides:
        raise InputError("overrides need a plan's file", remedy="Pass the path, or change the plan before.")
    from joulecast.simulator.forecast import forecast

    return forecast(plan)
