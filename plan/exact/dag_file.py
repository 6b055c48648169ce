"""A user's own graph of instructions, from a JSON file.

``{"instructions": [{"id": "f0", "stage": 0, "instruction": "forward"}, …],
"dependencies": [{"from": "f0", "to": "f1", "latency_s": 0.0001}, …]}``. Every stage executes its instructions in the
order of the file; a dependency's latency is what a transfer takes between two stages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from joulecast.errors import InputError, UnknownNameError
from joulecast.files import parse_json, read_text
from joulecast.plan.exact.dag import InstructionDag, make_dag
from joulecast.simulator.schedules import Instruction


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class InstructionEntry(_Entry):
    """One instruction."""

    id: str = Field(min_length=1, description="Name, unique in the file.")
    stage: int = Field(ge=0, description="Stage that executes it.")
    instruction: str = Field(min_length=1, description="Kind, as in the profile: forward, backward, …")
    microbatch: int = Field(-1, ge=-1, description="Micro-batch; -1 for none.")


class DependencyEntry(_Entry):
    """One dependency."""

    source: str = Field(alias="from", description="Instruction whose output is needed.")
    target: str = Field(alias="to", description="Instruction that needs it.")
    latency_s: float = Field(0.0, ge=0.0, allow_inf_nan=False, strict=False, description="Time of the transfer [s].")


class DagFile(_Entry):
    """A whole file."""

    instructions: list[InstructionEntry] = Field(min_length=1)
    dependencies: list[DependencyEntry] = Field(default_factory=list)


def load_dag(path: str | Path) -> InstructionDag:
    """Read and check a graph.

    Raises
    ------
    InputError
        The file is not such a graph, or instructions wait for each other in a circle; the message names file and line.
    """
    file = str(path)
    text = read_text(path, "JSON")
    tables = parse_json(text, file)
    lines = _lines(text, tables)
    try:
        parsed = DagFile.model_validate(tables)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = [str(part) for part in first["loc"]]
        if not place:
            remedy = f"Give one with {' and '.join(DagFile.model_fields)}."
            raise InputError("it is no object", file=file, remedy=remedy) from None
        line = lines.get((place[0], int(place[1]))) if len(place) > 1 and place[1].isdigit() else None
        missing, known = first["type"] == "missing", list(DagFile.model_fields)
        message = "this key is missing" if missing else f"{first['msg'][:1].lower()}{first['msg'][1:]}"
        remedy = f"Add it: the file has {' and '.join(known)}." if missing and len(place) == 1 else "Correct it."
        raise InputError(message, file=file, line=line, key=".".join(place), remedy=remedy) from None
    return _build(parsed, file, lines)


def _build(parsed: DagFile, file: str, lines: dict[tuple[str, int], int]) -> InstructionDag:
    _refuse_gaps(parsed, file, lines)
    stages = max(entry.stage for entry in parsed.instructions) + 1
    ranks: list[list[Instruction]] = [[] for _ in range(stages)]
    names: list[list[str]] = [[] for _ in range(stages)]
    seen: dict[str, tuple[int, int]] = {}
    for i, entry in enumerate(parsed.instructions):
        if entry.id in seen:
            raise InputError(
                f"two instructions are called {entry.id!r}",
                file=file,
                line=lines.get(("instructions", i)),
                remedy="Give each its own id.",
            )
        seen[entry.id] = entry.stage, len(ranks[entry.stage])
        ranks[entry.stage].append(Instruction(entry.instruction.lower(), entry.microbatch))
        names[entry.stage].append(entry.id)
    flat = {name: i for i, name in enumerate(name for order in names for name in order)}
    for i, dependency in enumerate(parsed.dependencies):
        for name in (dependency.source, dependency.target):
            if name not in flat:
                where = f"{file}:{lines.get(('dependencies', i), 1)}"
                raise UnknownNameError("instruction", name, flat, file=where, key="dependencies")
    return make_dag(
        ranks,
        [flat[d.source] for d in parsed.dependencies],
        [flat[d.target] for d in parsed.dependencies],
        [d.latency_s for d in parsed.dependencies],
        names=list(flat),
        file=file,
        lines=[lines.get(("dependencies", i)) for i in range(len(parsed.dependencies))],
    )


def _refuse_gaps(parsed: DagFile, file: str, lines: dict[tuple[str, int], int]) -> None:
    """Every stage up to the highest has an instruction."""
    present = {entry.stage for entry in parsed.instructions}
    missing = next(stage for stage in range(len(present) + 1) if stage not in present)
    beyond = [i for i, entry in enumerate(parsed.instructions) if entry.stage > missing]
    if beyond:
        raise InputError(
            f"stage {missing} has no instruction",
            file=file,
            line=lines.get(("instructions", beyond[0])),
            remedy="Count stages from 0 without gaps.",
        )


def _lines(text: str, tables: Any) -> dict[tuple[str, int], int]:
    """Line of each entry: entries hold no other objects, so they are the innermost braces, in order."""
    if not isinstance(tables, dict):
        return {}
    entries = [(key, i) for key, value in tables.items() if isinstance(value, list) for i in range(len(value))]
    outside_strings = re.sub(r'"(?:[^"\\]|\\.)*"', lambda m: '"' + "_" * (len(m[0]) - 2) + '"', text)
    starts = [match.start() for match in re.finditer(r"\{[^{}]*\}", outside_strings)]
    if len(starts) != len(entries):
        return {}
    return {entry: text.count("\n", 0, start) + 1 for entry, start in zip(entries, starts, strict=True)}
