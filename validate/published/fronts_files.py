"""Plans of time against energy that others composed from measured stages of a pipeline, one a line of a table.

Columns name the workload, who overlaps (``method``), the plan's number, its time and the energy of one GPU of each
stage, and for each stage the requested clock of every instruction in order: ``F1410 F930 6x(B1410 F1410) B1410``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from joulecast.errors import DataError
from joulecast.tables import Line, read_table

#: Name of the table in a folder.
FILE = "fronts.csv"
#: Columns of a workload that are whole numbers, by their names in a plan.
SIZES = ("context_parallel_size", "tensor_model_parallel_size", "micro_batch_size", "sequence_length")
_STAGES = ("stage_0", "stage_1")
_COLUMNS = ("model", *SIZES, "method", "plan", "time_s", "energy_j", *_STAGES)
_REPEATED = re.compile(r"(\d{1,3})x\(([^()]*)\)")
_INSTRUCTION = re.compile(r"([FB])(\d{3,4})")
#: Who runs the stages, and into how many parts a micro-batch is cut, of which one communicates beside the other.
METHODS = {"megatron": 1, "nano-batches": 2}


@dataclass(frozen=True)
class FrontRow:
    """One plan of a front.

    Attributes
    ----------
    model, sizes
        The workload: a model of the catalogue, and the columns of :data:`SIZES` by name.
    method
        Who ran the stages: ``megatron``, or ``nano-batches`` where communication runs beside computation.
    plan
        Its number among those of its front.
    time_s, energy_j
        Of one iteration; energy of one GPU of every stage.
    orders, clocks_mhz
        Per stage, ``F`` and ``B`` in order of execution, and the clock of each.
    """

    model: str
    sizes: tuple[tuple[str, int], ...]
    method: str
    plan: str
    time_s: float
    energy_j: float
    orders: tuple[str, ...]
    clocks_mhz: tuple[tuple[float, ...], ...]
    file: str
    line: int

    @property
    def front(self) -> tuple[str, tuple[tuple[str, int], ...], str]:
        """What the plans of one front have in common."""
        return self.model, self.sizes, self.method

    @property
    def workload(self) -> str:
        """The workload in words."""
        context, tensor, batch, length = (size for _, size in self.sizes)
        return f"{self.model} CP {context} TP {tensor}, {batch} x {length}"


def read_fronts(data: str | Path) -> list[FrontRow]:
    """All plans of a table, or of the one in a folder.

    Raises
    ------
    DataError
        The file is missing, or a line is broken; names file and line.
    """
    table = read_table(data, name=FILE, needed=_COLUMNS, wrong=DataError)
    rows = [_row(line) for line in table.lines]
    if not rows:
        raise DataError("no plans", file=table.file, remedy="One line for each plan is expected.")
    return rows


def _row(line: Line) -> FrontRow:
    if line["method"] not in METHODS:
        raise line.error(f"unknown method {line['method']!r}", "method", f"Use one of {', '.join(METHODS)}.")
    stages = [_stage(line, column) for column in _STAGES]
    return FrontRow(
        line["model"],
        tuple((column, line.whole(column)) for column in SIZES),
        line["method"],
        line["plan"],
        line.positive("time_s"),
        line.positive("energy_j"),
        tuple(order for order, _ in stages),
        tuple(clocks for _, clocks in stages),
        line.file,
        line.number,
    )


def _stage(line: Line, column: str) -> tuple[str, tuple[float, ...]]:
    """Order and clocks of one stage.

    >>> _stage(Line({"stage_0": "F1410 2x(B1290 F930) B1410"}, "", 1), "stage_0")
    ('FBFBFB', (1410.0, 1290.0, 930.0, 1290.0, 930.0, 1410.0))
    """
    whole = _REPEATED.sub(lambda found: " ".join([found[2]] * int(found[1])), line[column])
    found = [_INSTRUCTION.fullmatch(word) for word in whole.split()]
    known = [match for match in found if match is not None]
    if not known or len(known) < len(found):
        raise line.error(f"{line[column]!r} is no order of instructions", column, "Write F1410 2x(B1290 F930).")
    return "".join(match[1] for match in known), tuple(float(match[2]) for match in known)
