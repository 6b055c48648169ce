"""What Joulecast knows of one GPU, with the source and the uncertainty of every number.

A description has data-sheet facts (``device``) and seven fitted tables. Each table carries its own provenance,
covariance and cross-validated discrepancy, so that one part can be refitted without the others. Files are read by
:mod:`joulecast.model.hardware.description_file`, found by :mod:`joulecast.model.hardware.catalogue` and written by
:mod:`joulecast.model.hardware.description_writer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from joulecast.arrays import Array
from joulecast.errors import InputError, UnknownNameError

#: Version of the file format that this release reads and writes.
SCHEMA_VERSION = 1

#: Fitted tables of a description, in file order.
TABLES = ("kernel", "power", "voltage", "governor", "collective", "contention", "transition")

#: How a value was obtained, from surest to least sure.
Status = Literal["measured", "fitted", "data sheet", "derived", "estimate", "assumed"]

#: Quantities to which a discrepancy may refer.
DISCREPANCY_QUANTITIES = ("time", "energy", "power", "clock")

Value: TypeAlias = float | str | bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """One value with its provenance.

    Attributes
    ----------
    value
        The number (or word) itself.
    sd
        Standard deviation, in the unit of the value; 0 for exact counts and words.
    unit
        Unit, empty for pure numbers.
    source
        Where the value comes from.
    status
        One of :data:`Status`.
    """

    value: Value
    sd: float = 0.0
    unit: str = ""
    source: str = ""
    status: str = "estimate"

    @property
    def number(self) -> float:
        """The value as a float; a word is an :class:`InputError`."""
        if isinstance(self.value, str):
            raise InputError(f"expected a number, found {self.value!r}")
        return float(self.value)

    def to_dict(self) -> dict[str, Any]:
        """The leaf as it stands in a file; whole numbers become ``int``."""
        whole = isinstance(self.value, float) and self.value.is_integer() and abs(self.value) < 1e15
        leaf: dict[str, Any] = {"value": int(self.value) if whole else self.value}
        if not isinstance(self.value, str | bool):
            leaf["sd"] = self.sd
        return leaf | {"unit": self.unit, "source": self.source, "status": self.status}


@dataclass(frozen=True, eq=False)
class Table:
    """One part of a description: named parameters, their joint uncertainty and what the model form itself gets wrong.

    Attributes
    ----------
    provenance
        How the table was obtained, from which rows, when.
    parameters
        Dotted name to :class:`Parameter`, for instance ``gemm.eta``.
    covariance_names, covariance
        Names of the jointly fitted parameters and their covariance, shape ``(n, n)``, in the parameters' own units.
        A parameter of another table that was fitted with them has its full name, for instance ``voltage.slope``.
    discrepancy
        Operator family to ``{"time": rel. sd, "energy": rel. sd}``, cross-validated.
    name
        The table's name in the file.
    """

    provenance: str
    parameters: Mapping[str, Parameter]
    covariance_names: tuple[str, ...] = ()
    covariance: Array = field(default_factory=lambda: np.zeros((0, 0)))
    discrepancy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    name: str = ""

    def __getitem__(self, key: str) -> float:
        parameter = self.parameters.get(key)
        if parameter is None:
            kind = f"parameter of table [{self.name}]" if self.name else "parameter"
            raise UnknownNameError(kind, key, self.parameters)
        return parameter.number

    def get(self, key: str, default: float) -> float:
        """Value of a parameter, ``default`` where the table does not have it."""
        return self[key] if key in self.parameters else default

    def __contains__(self, key: object) -> bool:
        return key in self.parameters

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    def with_values(self, values: Mapping[str, float]) -> Table:
        """The same table with other values of known parameters, for fits and for sampling."""
        changed = dict(self.parameters)
        for key, value in values.items():
            self[key]
            changed[key] = replace(changed[key], value=float(value))
        return replace(self, parameters=changed)

    def to_dict(self) -> dict[str, Any]:
        """The table as it stands in a file."""
        body: dict[str, Any] = {"provenance": self.provenance, "parameters": nest(self.parameters)}
        if self.covariance_names:
            body["covariance"] = {"names": list(self.covariance_names), "matrix": self.covariance.tolist()}
        if self.discrepancy:
            body["discrepancy"] = {family: dict(of) for family, of in self.discrepancy.items()}
        return body


@dataclass(frozen=True, slots=True)
class Row:
    """One line of :meth:`GpuDescription.rows`."""

    table: str
    name: str
    value: Value
    sd: float
    unit: str
    status: str
    source: str


@dataclass(frozen=True, eq=False)
class GpuDescription:
    """A GPU: data-sheet facts and fitted tables.

    ``derivation`` says in words from which relative the tables were derived; it is empty for a calibrated description.
    """

    name: str
    device: Mapping[str, Parameter]
    kernel: Table
    power: Table
    voltage: Table
    governor: Table
    collective: Table
    contention: Table
    transition: Table
    derivation: str = ""

    def number(self, key: str, default: float | None = None) -> float:
        """A device fact as a float, for instance ``gpu.number("sm_count")``.

        Without a ``default``, a fact that the description lacks is an :class:`~joulecast.errors.UnknownNameError`.
        """
        parameter = self.device.get(key)
        if parameter is not None:
            return parameter.number
        if default is None:
            raise UnknownNameError(f"device fact of {self.name}", key, self.device)
        return default

    def text(self, key: str) -> str:
        """A device fact as a word, for instance ``gpu.text("vendor")``."""
        if key not in self.device:
            raise UnknownNameError(f"device fact of {self.name}", key, self.device)
        return str(self.device[key].value)

    @property
    def tables(self) -> dict[str, Table]:
        """The fitted tables by name, in file order."""
        return {name: getattr(self, name) for name in TABLES}

    def to_dict(self) -> dict[str, Any]:
        """Its file form: what :func:`~joulecast.model.hardware.description_writer.dump_description` takes."""
        head: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "name": self.name}
        if self.derivation:
            head["derived"] = self.derivation
        return head | {"device": nest(self.device)} | {name: table.to_dict() for name, table in self.tables.items()}

    def rows(self) -> list[Row]:
        """Every value with its provenance, the device's facts first."""
        groups = {"device": self.device} | {name: table.parameters for name, table in self.tables.items()}
        return [
            Row(group, name, p.value, p.sd, p.unit, p.status, p.source)
            for group, parameters in groups.items()
            for name, p in parameters.items()
        ]


@dataclass(frozen=True, eq=False)
class Facts:
    """A node type or a network: named facts with provenance."""

    kind: str
    name: str
    parameters: Mapping[str, Parameter]

    def __getitem__(self, key: str) -> float:
        return self._parameter(key).number

    def get(self, key: str, default: float) -> float:
        """A fact as a float, ``default`` where it is not stated."""
        return self[key] if key in self.parameters else default

    def text(self, key: str) -> str:
        """A fact as a word."""
        return str(self._parameter(key).value)

    def _parameter(self, key: str) -> Parameter:
        if key not in self.parameters:
            raise UnknownNameError(f"fact of {self.kind} {self.name}", key, self.parameters)
        return self.parameters[key]

    def to_dict(self) -> dict[str, Any]:
        """The file form."""
        return {"schema_version": SCHEMA_VERSION, "name": self.name, self.kind: nest(self.parameters)}

    def rows(self) -> list[Row]:
        """Every value with its provenance."""
        return [Row(self.kind, n, p.value, p.sd, p.unit, p.status, p.source) for n, p in self.parameters.items()]


def nest(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Dotted names to nested dictionaries of leaves."""
    tree: dict[str, Any] = {}
    for name, parameter in parameters.items():
        *path, last = name.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = parameter.to_dict()
    return tree
