"""Reading of the hardware catalogue's files: GPUs, node types, networks, sites and training factors.

A leaf is ``{value, sd | rel_sd, unit, source, status}``; leaves may be nested in tables, in memory their names are
dotted. Whatever is wrong becomes one :class:`~joulecast.errors.InputError` naming file, line, key and remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from joulecast.arrays import Array
from joulecast.errors import InputError, did_you_mean
from joulecast.files import parse_toml
from joulecast.model.hardware.description import DISCREPANCY_QUANTITIES, SCHEMA_VERSION, TABLES, Facts, Parameter, Table
from joulecast.model.hardware.description_schema import (
    FACT_FILES,
    CovarianceFile,
    DerivationFile,
    DescriptionFile,
    LeafFile,
    TableFile,
    TrainingFile,
)
from joulecast.model.hardware.device_facts import FACTS, ORDERED_FACTS, device_problem, fact_problem
from joulecast.model.hardware.peaks import kin_peaks, peak_problem

#: Relative asymmetry and negative eigenvalue (of the correlation matrix) that rounding may leave.
COVARIANCE_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class ParsedDescription:
    """A GPU description file as read, before a derivation fills in what it does not state.

    ``like`` is the name of the description from which it takes the rest, ``own`` the facts that it states itself.
    """

    name: str
    device: Mapping[str, Parameter]
    tables: Mapping[str, Table]
    relative: str | None
    method: str
    derived: str
    file: str
    like: str = ""
    own: tuple[str, ...] = ()


def parse_description(
    text: str, *, file: str, read_like: Callable[[str], ParsedDescription] | None = None
) -> ParsedDescription:
    """Read the text of a GPU description.

    Parameters
    ----------
    text
        Of the file.
    file
        Names it in errors.
    read_like
        Reads the description that ``like`` names: facts are taken from it one by one, the derivation and fitted tables
        together, where the text has none of them.
    """
    source = _Source(text, file)
    model = source.validate(DescriptionFile)
    kin = read_like(model.like) if model.like and read_like else None
    own = flatten(model.device, "device", source)
    device = {**kin.device, **own} if kin else own
    _check_names(device, "device", source)
    if problem := device_problem(device) or peak_problem(device, own):
        name, wrong, remedy = problem
        raise source.error(wrong, key=f"device.{name}", remedy=remedy)
    if kin:
        device |= kin_peaks(device, kin.device, own)
    if kin and not model.derivation and not any(getattr(model, name) for name in TABLES):
        return replace(kin, name=model.name, device=device, file=file, like=model.like, own=tuple(own))
    tables = _tables(model, source)
    relative, method = (model.derivation.relative, model.derivation.method) if model.derivation else (None, "")
    return ParsedDescription(model.name, device, tables, relative, method, model.derived, file, model.like, tuple(own))


def parse_facts(kind: str, text: str, *, file: str) -> Facts:
    """Read the text of a file of facts of one of :data:`~joulecast.model.hardware.description_schema.FACT_FILES`."""
    source = _Source(text, file)
    model: Any = source.validate(FACT_FILES[kind])
    parameters = flatten(getattr(model, kind), kind, source)
    _check_names(parameters, kind, source)
    return Facts(kind, model.name, parameters)


def parse_training(text: str, *, file: str) -> dict[str, Parameter]:
    """Read the text of a file of training factors."""
    source = _Source(text, file)
    model: TrainingFile = source.validate(TrainingFile)
    factors = flatten(model.factors, "factors", source)
    for name, factor in factors.items():
        if isinstance(factor.value, str | bool) or factor.value <= 0:
            raise source.error(f"a factor is above 0, found {factor.value!r}", key=f"factors.{name}")
    return factors


class _Source:
    """The text of one file, for errors that point into it."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.tree = parse_toml(text, file)

    def error(self, message: str, *, key: str, remedy: str | None = None) -> InputError:
        return InputError(message, file=self.file, line=line_of(self.text, key), key=key, remedy=remedy)

    def validate(self, schema: type[BaseModel]) -> Any:
        version = self.tree.get("schema_version")
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise self.error(
                f"schema version {version} is newer than {SCHEMA_VERSION}, the newest that this release reads",
                key="schema_version",
                remedy="Upgrade joulecast, or write the file again with this release.",
            )
        if version != SCHEMA_VERSION:
            found = "is missing" if version is None else f"is {version!r}"
            raise self.error(
                f"schema_version {found}", key="schema_version", remedy=f"Write schema_version = {SCHEMA_VERSION}."
            )
        return self.model(schema, self.tree, "")

    def model(self, schema: type[BaseModel], tree: Any, prefix: str) -> Any:
        try:
            return schema.model_validate(tree)
        except ValidationError as errors:
            found = errors.errors(include_url=False)
            first = next((error for error in found if error["type"] == "extra_forbidden"), found[0])
            path = [str(part) for part in first["loc"] if str(part) not in ("int", "float", "bool", "str")]
            key = ".".join(([prefix] if prefix else []) + path)
            if first["type"] == "extra_forbidden":
                raise self.unknown(path[-1], _fields(schema, path[:-1]), key) from None
            raise self.error(_reason(first), key=key, remedy=_REMEDIES.get(first["type"])) from None

    def unknown(self, name: str, known: list[str], key: str) -> InputError:
        return self.error(f"unknown key {name!r}", key=key, remedy=did_you_mean(name, sorted(known)))


#: What to do about pydantic's errors, by their type.
_REMEDIES = {
    "missing": "Add it.",
    "string_type": "Write a text in quotes.",
    "string_too_short": "Write at least one letter.",
    "literal_error": "Choose one of them.",
    "dict_type": "Make it a table.",
    "model_type": "Make it a table.",
}


def _reason(error: Any) -> str:
    """Pydantic's message as a phrase that shows what was found."""
    if error["type"] == "missing":
        return "this key is missing"
    if error["loc"][-2:-1] == ("value",):
        return f"expected a number, a word, true or false, found {error['input']!r}"
    text = error["msg"][0].lower() + error["msg"][1:]
    found = error.get("input")
    return text if isinstance(found, dict) else f"{text}, found {found!r}"


def _fields(schema: type[BaseModel], path: list[str]) -> list[str]:
    """Field names of the model reached by ``path`` from ``schema``."""
    reached: Any = schema
    for part in path:
        kinds = (TableFile, CovarianceFile, DerivationFile)
        annotation = str(reached.model_fields[part].annotation)
        reached = next(kind for kind in kinds if kind.__name__ in annotation)
    return list(reached.model_fields)


def flatten(tree: Mapping[str, Any], prefix: str, source: _Source) -> dict[str, Parameter]:
    """Nested leaves to dotted names, each leaf validated."""
    found: dict[str, Parameter] = {}
    for name, node in tree.items():
        key = f"{prefix}.{name}"
        if not isinstance(node, dict):
            remedy = f'Write {name} = {{value = …, unit = "…", rel_sd = …, source = "…", status = "…"}}.'
            raise source.error(f"expected a value with its source, found {node!r}", key=key, remedy=remedy)
        if "value" in node or any(not isinstance(child, dict) for child in node.values()):
            found[name] = _leaf(source.model(LeafFile, node, key), key, source)
        else:
            found |= {f"{name}.{rest}": leaf for rest, leaf in flatten(node, key, source).items()}
    return found


def _leaf(leaf: LeafFile, key: str, source: _Source) -> Parameter:
    value = leaf.value
    if isinstance(value, str | bool):
        if leaf.sd or leaf.rel_sd:
            raise source.error("a word has no standard deviation", key=key, remedy="Remove sd and rel_sd.")
        return Parameter(value, 0.0, leaf.unit, leaf.source, leaf.status)
    if (leaf.sd is None) == (leaf.rel_sd is None):
        remedy = "Give one of sd (in the value's unit) and rel_sd (a share of it)."
        raise source.error("expected exactly one of sd and rel_sd", key=key, remedy=remedy)
    sd = float(leaf.sd) if leaf.sd is not None else float(leaf.rel_sd or 0.0) * abs(value)
    return Parameter(float(value), sd, leaf.unit, leaf.source, leaf.status)


def _check_names(parameters: Mapping[str, Parameter], kind: str, source: _Source) -> None:
    """Facts are a closed vocabulary: an unknown one is a misspelling, a missing required one is an error."""
    facts = FACTS[kind]
    for name, parameter in parameters.items():
        if name not in facts:
            raise source.unknown(name, list(facts), f"{kind}.{name}")
        if problem := fact_problem(name, facts[name], parameter.value, parameter.unit):
            raise source.error(problem, key=f"{kind}.{name}.value")
    for name, fact in facts.items():
        if fact.required and name not in parameters:
            raise source.error(f"{name} is missing", key=f"{kind}.{name}", remedy=f"It is the {fact.meaning}.")
    for names in ORDERED_FACTS:
        for low, high in pairwise(name for name in names if name in parameters):
            if parameters[low].number > parameters[high].number:
                raise source.error(f"{low} is above {high}", key=f"{kind}.{low}", remedy="Correct one of them.")


def _tables(model: DescriptionFile, source: _Source) -> dict[str, Table]:
    tables = {}
    for name in TABLES:
        table = getattr(model, name)
        if table is not None:
            tables[name] = _table(name, table, source)
        elif model.derivation is None:
            remedy = 'Add the table, or [derivation] relative = "…" to derive it from a relative.'
            raise source.error(f"table [{name}] is missing", key=name, remedy=remedy)
    _check_foreign_names(tables, source)
    return tables


def _table(name: str, table: TableFile, source: _Source) -> Table:
    parameters = flatten(table.parameters, f"{name}.parameters", source)
    names, matrix = _covariance(name, table.covariance, parameters, source)
    for family, quantities in table.discrepancy.items():
        for quantity, size in quantities.items():
            key = f"{name}.discrepancy.{family}.{quantity}"
            if quantity not in DISCREPANCY_QUANTITIES:
                raise source.unknown(quantity, list(DISCREPANCY_QUANTITIES), key)
            if size < 0:
                raise source.error(f"a standard deviation is at least 0, found {size!r}", key=key)
    discrepancy = {family: {q: float(v) for q, v in of.items()} for family, of in table.discrepancy.items()}
    return Table(table.provenance, parameters, names, matrix, discrepancy, name)


def _covariance(
    name: str, covariance: CovarianceFile | None, parameters: Mapping[str, Parameter], source: _Source
) -> tuple[tuple[str, ...], Array]:
    if covariance is None:
        return (), np.zeros((0, 0))
    key = f"{name}.covariance"
    for entry in covariance.names:
        if entry not in parameters and entry.partition(".")[0] not in TABLES:
            raise source.unknown(entry, list(parameters), f"{key}.names")
    count = len(covariance.names)
    if len(set(covariance.names)) != count:
        raise source.error("a name stands twice", key=f"{key}.names")
    rows = _rows(covariance.matrix, f"{key}.matrix", source)
    if len(rows) != count or any(len(row) != count for row in rows):
        raise source.error(f"expected {count} rows of {count} numbers, one for each name", key=f"{key}.matrix")
    matrix = np.array(rows, dtype=np.float64).reshape(count, count)
    problem = covariance_problem(matrix)
    if problem:
        raise source.error(problem, key=f"{key}.matrix", remedy="Write the fit's covariance unchanged.")
    return tuple(covariance.names), matrix


def _rows(matrix: list[list[float | int]] | str, key: str, source: _Source) -> Sequence[Sequence[float]]:
    """Rows of a matrix given as arrays, or as text with one row a line."""
    if not isinstance(matrix, str):
        return matrix
    try:
        return [[float(item) for item in line.split()] for line in matrix.strip().splitlines()]
    except ValueError as error:
        raise source.error(str(error), key=key, remedy="Write numbers with blanks between them.") from None


def _check_foreign_names(tables: Mapping[str, Table], source: _Source) -> None:
    """A covariance may name parameters of other tables by their full names; these must exist where the table does."""
    for name, table in tables.items():
        for entry in table.covariance_names:
            other, _, key = entry.partition(".")
            if entry not in table.parameters and other in tables and key not in tables[other].parameters:
                raise source.unknown(
                    entry, [f"{other}.{k}" for k in tables[other].parameters], f"{name}.covariance.names"
                )


def covariance_problem(matrix: Array) -> str | None:
    """What keeps a square matrix from being a covariance, ``None`` if nothing does.

    Judged on the correlation matrix, as the parameters' units differ by many orders of magnitude.
    """
    if matrix.size == 0:
        return None
    if not np.isfinite(matrix).all():
        return "an entry is not a finite number"
    variances = np.diag(matrix)
    if (variances < 0).any():
        return "a variance is negative"
    scale = np.where(variances > 0, np.sqrt(variances), 1.0)
    with np.errstate(over="ignore"):
        correlation = matrix / np.outer(scale, scale)
    if not np.isfinite(correlation).all():
        return "a variance is too small for its covariances"
    if not np.allclose(correlation, correlation.T, rtol=0, atol=COVARIANCE_TOLERANCE):
        return "the matrix is not symmetric"
    if np.linalg.eigvalsh(correlation)[0] < -COVARIANCE_TOLERANCE * len(matrix):
        return "the matrix is not positive semidefinite"
    return None


def line_of(text: str, key: str) -> int | None:
    """Line (from 1) on which the dotted ``key`` or its nearest written parent stands."""
    table, best, length = "", None, 0
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[([^\[\]]+)\]", line)
        entry = re.match(r"\s*([\w.\-\"]+)\s*=", line)
        if header:
            table = written = header[1].replace('"', "").strip()
        elif entry:
            written = ".".join(filter(None, [table, entry[1].replace('"', "")]))
        else:
            continue
        if (key == written or key.startswith(written + ".")) and len(written) > length:
            best, length = number, len(written)
    return best
