"""CSV forms in which sweeps of clocks and limits are published, read into :class:`SweepRow`.

A form is known by its columns; columns beyond those are allowed. Units stand in the columns' names or are those of the
form's source; rows whose clock, limit or mean power no GPU can have are refused, because then the units are others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joulecast.calibrate.clock_sweeps.parameters import Kind
from joulecast.calibrate.clock_sweeps.rows import (
    PLAUSIBLE_CLOCK_MHZ,
    PLAUSIBLE_LIMIT_W,
    PLAUSIBLE_POWER_W,
    Cells,
    SweepRow,
)
from joulecast.calibrate.rows.measured import Measured
from joulecast.errors import DataError, nearest
from joulecast.files import read_text
from joulecast.tables import parse_table

#: Words in a note that say that a row reached the board's limit.
AT_LIMIT = "at the board's limit"


@dataclass(frozen=True, slots=True)
class Form:
    """One form: its columns, the one that holds the setting (and by which a broken file is still recognised)."""

    name: str
    kind: Kind
    setting: str
    columns: tuple[str, ...]
    read: Callable[[Cells, str], SweepRow]


def _row(
    line: Cells,
    kind: Kind,
    card: str,
    workload: dict[str, str | float],
    setting: float,
    time_s: float | None,
    energy_j: float | None,
    *,
    gpus: int = 1,
    clock_mhz: float | None = None,
) -> SweepRow:
    """A row with its power and what it lacks; implausible settings and powers are refused."""
    low, high = PLAUSIBLE_CLOCK_MHZ if kind == "clock" else PLAUSIBLE_LIMIT_W
    if not low <= setting <= high:
        unit = "MHz" if kind == "clock" else "W"
        raise line.error(
            f"no GPU has {setting:g} {unit}", None, f"Clocks are in MHz and limits in W ({low:g}-{high:g})."
        )
    power = energy_j / time_s if time_s and energy_j else None
    if power is not None and not PLAUSIBLE_POWER_W[0] <= power / gpus <= PLAUSIBLE_POWER_W[1]:
        raise line.error(
            f"energy over time is {power / gpus:.4g} W for one GPU",
            None,
            "Check the units: seconds, joules and watts, unless the column's name says otherwise.",
        )
    return SweepRow(
        kind,
        card,
        workload,
        setting,
        Measured(time_s=time_s, energy_j=energy_j, power_w=power, sm_clock_mhz=clock_mhz),
        gpus=gpus,
        unusable=f"not measured: {', '.join(line.missing)}" if line.missing else "",
        file=line.file,
        line=line.number,
    )


def _inference(line: Cells, card: str) -> SweepRow:
    words = ("family", "variant", "dtype", "mode", "attention")
    workload: dict[str, str | float] = {c: line.word(c) for c in words} | {
        c: line.positive(c) for c in ("batch", "seq")
    }
    setting = line.positive("locked_clock_mhz")
    time = line.measured("time_ms")
    energy = line.measured("energy_j")
    clock = line.number_if_any("mean_clock_mhz")
    return _row(line, "clock", card, workload, setting, time / 1e3 if time else None, energy, clock_mhz=clock or None)


def _stage(line: Cells, card: str) -> SweepRow:
    workload: dict[str, str | float] = {"instruction": line.word("instruction"), "stage": line.word("stage")}
    time, energy = line.measured("time"), line.measured("energy")
    row = _row(line, "clock", card, workload, line.positive("frequency"), time, energy)
    return replace(row, copies=("stage",))


def _dgemm(line: Cells, card: str) -> SweepRow:
    """Time and energy are those of 10¹² floating-point operations."""
    rate, power = line.measured("fp64_dgemm_tflops"), line.measured("power_w")
    time = 1.0 / rate if rate else None
    energy = time * power if time and power else None
    workload: dict[str, str | float] = {"op": "1 TFLOP of fp64 DGEMM"}
    row = _row(line, "clock", line.word("gpu"), workload, line.positive("locked_sm_clock_mhz"), time, energy)
    note = line.cells.get("note")
    return row if note is None else replace(row, at_limit=AT_LIMIT in note)


def _epochs(line: Cells, card: str) -> SweepRow:
    workload: dict[str, str | float] = {c: line.word(c) for c in ("dataset", "network", "optimizer")}
    workload["batch_size"] = line.positive("batch_size")
    time, power = line.measured("time_per_epoch"), line.measured("average_power")
    energy = time * power if time and power else None
    return _row(line, "limit", card, workload, line.positive("power_limit"), time, energy)


def _pipeline(line: Cells, card: str) -> SweepRow:
    """One limit for all stages; the energy is that of all GPUs."""
    workload: dict[str, str | float] = {c: line.word(c) for c in ("model_name", "partition_method")}
    sizes = ("batch_size", "dp", "tp", "pp", "microbatch_size", "num_microbatches")
    workload |= {c: line.positive(c) for c in sizes}
    columns = [c for c in line.cells if c.startswith("power_limit_")]
    limits = [limit for limit in map(line.number_if_any, columns) if limit]
    if not limits:
        raise line.error("no stage has a power limit", "power_limit_0", "Write each stage's limit in watts.")
    gpus = int(line.positive("dp") * line.positive("tp") * line.positive("pp"))
    row = _row(line, "limit", card, workload, limits[0], line.measured("time"), line.measured("energy"), gpus=gpus)
    return row if len(set(limits)) == 1 else replace(row, unusable="its stages have different power limits")


FORMS = (
    Form(
        "inference at locked clocks",
        "clock",
        "locked_clock_mhz",
        ("family", "variant", "dtype", "batch", "seq", "mode", "attention", "locked_clock_mhz", "energy_j", "time_ms"),
        _inference,
    ),
    Form(
        "pipeline stages at locked clocks",
        "clock",
        "frequency",
        ("stage", "instruction", "frequency", "time", "energy"),
        _stage,
    ),
    Form(
        "DGEMM at locked clocks",
        "clock",
        "locked_sm_clock_mhz",
        ("gpu", "locked_sm_clock_mhz", "power_w", "fp64_dgemm_tflops"),
        _dgemm,
    ),
    Form(
        "training under power limits",
        "limit",
        "power_limit",
        ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power"),
        _epochs,
    ),
    Form(
        "pipelines under power limits",
        "limit",
        "power_limit_0",
        (
            "model_name",
            "partition_method",
            "batch_size",
            "dp",
            "tp",
            "pp",
            "microbatch_size",
            "num_microbatches",
            "power_limit_0",
            "time",
            "energy",
        ),
        _pipeline,
    ),
)


def read_sweeps(path: str | Path, kind: Kind) -> list[SweepRow]:
    """All rows of one kind in a CSV file, or in the CSV files below a folder, in order.

    Files of other forms in a folder are passed over; a file's name is its card's where it has no column for that.

    Raises
    ------
    DataError
        A missing file or column, a broken or implausible cell, a row that stands twice, or no row of this kind.
    """
    path = Path(path)
    files = sorted(p for p in path.rglob("*.csv") if p.is_file()) if path.is_dir() else [path]
    rows = [row for file in files for row in _read_file(file, kind, alone=not path.is_dir())]
    if not rows:
        columns = "; ".join(", ".join(form.columns) for form in FORMS if form.kind == kind)
        raise DataError(
            "no sweep of this kind", file=str(path), remedy=f"It reads CSV files with the columns {columns}."
        )
    _refuse_duplicates(rows)
    return rows


def _read_file(path: Path, kind: Kind, *, alone: bool) -> list[SweepRow]:
    text = read_text(path, "CSV", error=DataError, absent="no such file or folder")
    table = parse_table(text, str(path), wrong=DataError)
    form = _form(table.columns, path, kind, alone=alone)
    if form is None:
        return []
    return [form.read(Cells(line.cells, line.file, line.number, DataError), path.stem) for line in table.lines]


def _form(header: Sequence[str], path: Path, kind: Kind, *, alone: bool) -> Form | None:
    """Form of a file, ``None`` for one that has nothing to do with this kind of sweep."""
    for form in FORMS:
        if set(form.columns) <= set(header):
            return form if form.kind == kind else None
    close = max(FORMS, key=lambda form: len(set(form.columns) & set(header)))
    share = len(set(close.columns) & set(header)) / len(close.columns)
    if close.kind != kind or share < 0.5 or not (alone or close.setting in header):
        return None
    raise _columns_missing(close, header, path)


def _columns_missing(form: Form, header: Sequence[str], path: Path) -> DataError:
    absent = [c for c in form.columns if c not in header]
    others = [c for c in header if c not in form.columns]
    like = next((near[0] for near in (nearest(c, others, 1) for c in absent) if near), None)
    return DataError(
        f"a file of {form.name} lacks the column{'s' if len(absent) > 1 else ''} {', '.join(absent)}",
        file=str(path),
        line=1,
        key=absent[0],
        remedy=f"There is {like!r}: give it that name and unit." if like else "Add it.",
    )


def _refuse_duplicates(rows: Sequence[SweepRow]) -> None:
    seen: dict[object, SweepRow] = {}
    for row in (row for row in rows if not row.unusable):
        first = seen.setdefault((row.card, row.key, row.setting), row)
        if first is not row:
            raise DataError(
                f"the same workload and setting as in {Path(first.file).name}:{first.line}",
                file=row.file,
                line=row.line,
                remedy="Keep one of the rows, or their mean.",
            )
