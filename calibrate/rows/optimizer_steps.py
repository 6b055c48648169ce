"""Launches of rows of an optimizer's step alone, over a list of parameters (op ``optimizer_step``)."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.calibrate.rows.fields import Configuration, dtype_of, flag
from joulecast.errors import DataError
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.training.optimizer import optimizer_step
from joulecast.model.training.parameters import ParameterTensor
from joulecast.simulator.plan_file.training_loop import pause_s

#: Share of the wait at each parameter of an iteration that a step alone has, again and again: its Python and its tensors
#: are in the processor's caches. Three lists of 146 and 448 tensors on an H100 [estimate, +-30 %].
ALONE = 0.56


def optimizer_launches(row: Configuration) -> tuple[Launch, ...]:
    """Launches of a row's step.

    ``tensors`` are the parameters' shapes with how many there are of each, ``[rows, columns, count]``; vectors have no
    columns.

    Raises
    ------
    DataError
        If there is no such list.
    """
    tensors = row.get("tensors")
    if not isinstance(tensors, list) or not tensors or not all(map(_is_shape, tensors)):
        raise DataError("field 'tensors' is not a list of [rows, columns, count]", key="tensors")
    optimizer = str(row.get("optimizer"))
    run = Implementation(
        modules="transformers",
        dtype=dtype_of(row),
        optimizer=optimizer,
        step_wait_s=ALONE * pause_s(optimizer, row.get("host_launch_us")),
        clipped=flag(row, "gradient_clipping"),
    )
    return optimizer_step(_parameters(tensors), run, zeroed=False)


def _is_shape(values: object) -> bool:
    whole = isinstance(values, list) and len(values) == 3 and all(type(one) is int for one in values)
    return whole and min(values[0], values[1] + 1, values[2]) > 0


def _parameters(tensors: Sequence[Sequence[int]]) -> tuple[ParameterTensor, ...]:
    return tuple(
        ParameterTensor("weight", rows * (columns or 1), columns=columns)
        for rows, columns, count in tensors
        for _ in range(count)
    )
