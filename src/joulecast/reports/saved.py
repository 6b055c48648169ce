"""Results as commands printed them with ``--json``, read again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from joulecast.errors import InputError
from joulecast.files import parse_json, read_text

#: Kind of a result to the version of its form that this release reads.
VERSIONS = {"iteration": 1, "front": 1, "validation": 1}


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _Stage(_Entry):
    stage: int
    gpus: PositiveInt
    energy_by_component_j: dict[str, float]
    energy_by_instruction_j: dict[str, float]


class _Iteration(_Entry):
    gpus: PositiveInt
    stages: list[_Stage]
    energy_by_component_j: dict[str, float]
    energy_by_instruction_j: dict[str, float]
    energy_j_p05: float | None = None
    energy_j_p95: float | None = None

    @model_validator(mode="after")
    def _has_energy(self) -> _Iteration:
        whole = sum(self.energy_by_component_j.values())
        if whole <= 0.0:
            raise ValueError("its parts have no energy")
        low, high = self.energy_j_p05, self.energy_j_p95
        if low is not None and high is not None and not low <= whole <= high:
            raise ValueError("the energy lies outside its interval")
        return self


class _Bound(_Entry):
    time_s: float
    energy_j: float


class _Point(_Entry):
    lower_bound_j: float | None = None
    time_s_p05: float | None = None
    time_s_p95: float | None = None
    energy_j_p05: float | None = None
    energy_j_p95: float | None = None
    power_w_p05: float | None = None
    power_w_p95: float | None = None
    time_ratio_p05: float | None = None
    time_ratio_p95: float | None = None
    energy_ratio_p05: float | None = None
    energy_ratio_p95: float | None = None
    plan: list[list[float]] = []


class _Front(_Entry):
    instructions: list[list[str]] = []
    points: list[_Point] = []
    lower_bound: list[_Bound] = []

    @model_validator(mode="after")
    def _one_clock_each(self) -> _Front:
        sizes = [len(kinds) for kinds in self.instructions]
        if any([len(stage) for stage in point.plan] != sizes for point in self.points if point.plan):
            raise ValueError("a plan does not have one clock for each instruction")
        return self


class _Row(_Entry):
    name: str
    family: str | None = None
    measured: dict[str, float | None]
    predicted: dict[str, float | None]


class _Validation(_Entry):
    rows: list[_Row]


#: What readers of a saved result rely on; numbers that must be positive are checked where they are read.
_FORMS: dict[str, type[_Entry]] = {"iteration": _Iteration, "front": _Front, "validation": _Validation}
_REMEDY = "Give what joulecast predict, front or validate printed with --json."


def read_saved(path: Path, kind: str) -> dict[str, Any]:
    """A saved result.

    Parameters
    ----------
    kind
        One of :data:`VERSIONS`.

    Raises
    ------
    InputError
        The file is missing, is no result, is one of another kind, or was written by a newer version.
    """
    data = parse_json(read_text(path, "JSON"), str(path), remedy=_REMEDY)
    form = data.get("form") if isinstance(data, dict) else None
    program, _, rest = str(form).partition("-")
    name, _, version = rest.rpartition("-")
    if program != "joulecast" or name not in VERSIONS or not version.isdigit():
        raise InputError("is no result of joulecast", file=str(path), key="form", remedy=_REMEDY)
    if int(version) > VERSIONS[name]:
        raise InputError(
            f"was written by a newer version: {form}, and this one reads up to joulecast-{name}-{VERSIONS[name]}",
            file=str(path),
            key="form",
            remedy="Update joulecast, or write the result again.",
        )
    if name != kind:
        raise InputError(f"is of kind {name}, not {kind}", file=str(path), key="form", remedy=_REMEDY)
    try:
        _FORMS[kind].model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or None
        raise InputError(
            f"is damaged: {first['msg'].removeprefix('Value error, ')}", file=str(path), key=key, remedy=_REMEDY
        ) from None
    return dict(data)


def number_of(data: Mapping[str, Any], key: str, path: Path, where: str = "") -> float:
    """A positive number of a saved result.

    Raises
    ------
    InputError
        It is missing, or no positive number.
    """
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        what = "has no energy" if key.startswith("energy") else f"has no {key}"
        raise InputError(what, file=str(path), key=f"{where}{key}", remedy="Write the result again with joulecast.")
    return float(value)
