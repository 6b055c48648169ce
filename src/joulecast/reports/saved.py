"""Results as commands printed them with ``--json``, read again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast.errors import InputError
from joulecast.files import read_text

#: Kind of a result to the version of its form that this release reads.
VERSIONS = {"iteration": 1, "front": 1, "validation": 1}
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
    try:
        data = json.loads(read_text(path, "JSON"))
    except ValueError as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise InputError("is not JSON", file=str(path), line=line, remedy=_REMEDY) from error
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
