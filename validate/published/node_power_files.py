"""Measured node power of published training runs: one run and side of the supplies on a line of a CSV file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from joulecast.errors import DataError
from joulecast.tables import Line, read_table

#: Name of the file in a folder.
FILE = "node_power.csv"

Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MaybeNumber = Annotated[Number | None, BeforeValidator(lambda v: None if v == "" else v)]


class NodePowerRow(BaseModel):
    """One line; ``None`` is what was not measured. ``file`` and ``line`` say where it stands."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    system: str = Field(min_length=1)
    gpus: Annotated[int, Field(gt=0)]
    workload: str = Field(min_length=1)
    source: str = ""
    run_id: str = ""
    nodes: Annotated[int, Field(gt=0)]
    power_side: Literal["AC", "DC"]
    node_power_w: Number
    train_only_node_power_w: MaybeNumber = None
    step_time_s: MaybeNumber = None
    file: str = ""
    line: int = 0

    @property
    def name(self) -> str:
        """Run and side."""
        return f"{self.workload} {self.gpus} GPUs {self.run_id} {self.power_side}"

    @property
    def measured_w(self) -> float:
        """Mean power of a node while it trains [W]."""
        return self.train_only_node_power_w or self.node_power_w

    @property
    def energy_per_step_j(self) -> float | None:
        """Energy of all nodes in one step [J], where the step's time is known."""
        return None if self.step_time_s is None else self.measured_w * self.nodes * self.step_time_s


def read_node_power(path: str | Path) -> list[NodePowerRow]:
    """Rows of a CSV file, or of ``node_power.csv`` in a folder.

    Raises
    ------
    DataError
        A missing file, or a value that cannot be read; names file, line and column.
    """
    return [_row(line) for line in read_table(path, name=FILE, wrong=DataError).lines]


def _row(line: Line) -> NodePowerRow:
    try:
        return NodePowerRow.model_validate({**line.cells, "file": line.file, "line": line.number})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise line.error(f"{first.get('input')!r}: {first['msg'].lower()}", str(first["loc"][0])) from None
