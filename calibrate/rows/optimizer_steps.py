"""Launches of rows of an optimizer's step alone, over a list of parameters (op ``optimizer_step``)."""

from __future__ import annotations

from joulecast.calibrate.rows.fields import Configuration, dtype_of
from joulecast.errors import DataError
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.training.optimizer import optimizer_step
from joulecast.model.training.other_optimizers import RULES
from joulecast.model.training.parameters import ParameterTensor
from joulecast.simulator.plan_file.training_loop import launch_s, pause_s

#: Share of an iteration's wait at each parameter that a step alone has, again and again: its Python and its tensors are
#: in the processor's caches. Lists of 146 and 448 tensors on an H100 [estimate, +-30 %].
ALONE = 0.56
KNOWN = ("adamw", "adamw-for-loop", *RULES)


def optimizer_launches(row: Configuration) -> tuple[Launch, ...]:
    """Launches of a row's step.

    Raises
    ------
    DataError
        If the row has no list of parameters, or an optimizer that is not known.
    """
    optimizer = str(row.get("optimizer"))
    if optimizer not in KNOWN:
        raise DataError(f"unknown optimizer {optimizer!r}", key="optimizer")
    run = Implementation(
        modules="transformers",
        dtype=dtype_of(row),
        optimizer=optimizer,
        step_wait_s=ALONE * pause_s(optimizer, launch_s(row.get("host_launch_us"))),
    )
    return optimizer_step(parameters_of(row), run, zeroed=False)


def parameters_of(row: Configuration) -> tuple[ParameterTensor, ...]:
    """The row's parameters, whose shapes are ``tensors``: ``[rows, columns, number]``; vectors have no columns.

    Raises
    ------
    DataError
        If there is no such list.
    """
    tensors = row.get("tensors")
    if not isinstance(tensors, list) or not tensors or not all(map(_is_shape, tensors)):
        raise DataError("field 'tensors' is not a list of [rows, columns, number]", key="tensors")
    return tuple(
        ParameterTensor("weight", rows * (columns or 1), columns=columns)
        for rows, columns, count in tensors
        for _ in range(count)
    )


def _is_shape(values: object) -> bool:
    if not isinstance(values, list) or len(values) != 3 or not all(type(one) is int for one in values):
        return False
    return bool(min(values[0], values[1] + 1, values[2]) > 0)
