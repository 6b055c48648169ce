"""Measured profiles of pipeline stages: time and energy of every instruction at every clock, as Zeus writes them.

The table has the columns ``stage,instruction,frequency,time,energy`` (MHz, seconds, joules). With the columns
``rank``, ``dp_rank``, ``pp_rank`` or ``tp_rank`` there is one line for each GPU of a stage. They share a choice: an
instruction then takes as long as on the slowest of them and the energy of all.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from joulecast.errors import InputError
from joulecast.files import read_text
from joulecast.plan.knobs.options import Option
from joulecast.tables import Line, reading_csv

COLUMNS = ("stage", "instruction", "frequency", "time", "energy")
RANK_COLUMNS = ("rank", "dp_rank", "pp_rank", "tp_rank")
UNITS = {"frequency": "MHz", "time": "seconds", "energy": "joules"}

#: Ratio to the median above which a value must have another unit: these differ by 1000.
MIXED_UNITS = 100.0
#: Clocks of a GPU [MHz] and its usual power [W]; outside, the columns have other units.
CLOCKS_MHZ = (10.0, 10_000.0)
POWER_W = (1.0, 20_000.0)


#: Digits of a number of a stage or GPU: more than any cluster needs.
MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """One line of a profile."""

    at: Line
    stage: int
    instruction: str
    clock_mhz: float
    time_s: float
    energy_j: float
    gpu: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """A measured profile.

    Attributes
    ----------
    options
        Options of each (stage, instruction); time is that of the slowest GPU, energy of all GPUs of the stage.
    gpus_per_stage
        GPUs that share a choice.
    file
        Where it was read.
    """

    options: dict[tuple[int, str], tuple[Option, ...]]
    gpus_per_stage: int
    file: str

    @property
    def stages(self) -> tuple[int, ...]:
        """Stages of the profile, in order."""
        return tuple(sorted({stage for stage, _ in self.options}))

    def of(self, stage: int, instruction: str) -> tuple[Option, ...]:
        """Options of an instruction.

        Raises
        ------
        InputError
            The profile has no such stage or instruction.
        """
        found = self.options.get((stage, instruction))
        if found is None:
            known = sorted({name for s, name in self.options if s == stage})
            what = f"stage {stage}" if not known else f"instruction {instruction!r} of stage {stage}"
            has = f"stages {', '.join(map(str, self.stages))}" if not known else f"{', '.join(known)} there"
            raise InputError(f"{what} is missing", file=self.file, remedy=f"The profile has {has}.")
        return found


def load_profile(path: str | Path, stages: Sequence[int] | None = None) -> Profile:
    """Read and check a profile.

    Parameters
    ----------
    stages
        Stages that are needed; by default all from 0 to the highest.

    Raises
    ------
    InputError
        A column, stage or clock is missing, a line twice, a time or energy not positive, or units are mixed; the
        message names file and line.
    """
    file = str(path)
    lines = _read(path)
    _refuse_duplicates(lines)
    _refuse_mixed_units(lines)
    present = sorted({line.stage for line in lines})
    # Without a list every stage up to the highest is needed; of more than there are, one is missing.
    wanted = sorted(set(stages)) if stages is not None else range(min(present[-1] + 1, len(present) + 1))
    for stage in wanted:
        if stage not in present:
            has = ", ".join(map(str, present))
            after = next((line for line in lines if line.stage > stage), lines[-1])
            raise after.at.error(f"stage {stage} is missing", "stage", f"The file has stages {has}; measure it.")
    used = [line for line in lines if line.stage in wanted]
    _refuse_missing(used)
    return Profile(_options(used), len({line.gpu for line in used if line.stage == wanted[0]}), file)


def _read(path: str | Path) -> list[ProfileLine]:
    with reading_csv(str(path)):
        return _lines(csv.reader(read_text(path, "CSV").splitlines()), str(path))


def _lines(reader: Any, file: str) -> list[ProfileLine]:
    header, first = [name.strip() for name in next(reader, [])], Line({}, file, 1)
    for name in COLUMNS:
        if name not in header:
            remedy = f"The first line must name the columns {','.join(COLUMNS)}."
            raise first.error(f"the column {name!r} is missing", name, remedy)
    for name in header:
        if name not in (*COLUMNS, *RANK_COLUMNS) or header.count(name) > 1:
            remedy = f"Known: {', '.join((*COLUMNS, *RANK_COLUMNS))}, each once."
            raise first.error(f"unexpected column {name!r}", name, remedy)
    lines = [
        _parsed(_line(file, reader.line_num, header, cells)) for cells in reader if any(cell.strip() for cell in cells)
    ]
    if not lines:
        raise first.error("no measurement in it", remedy="Give one line for each clock.")
    return lines


def _line(file: str, number: int, header: Sequence[str], cells: Sequence[str]) -> Line:
    if len(cells) != len(header):
        raise InputError(f"{len(cells)} values for {len(header)} columns", file=file, line=number, remedy="Correct it.")
    return Line(dict(zip(header, (cell.strip() for cell in cells), strict=True)), file, number)


def _parsed(line: Line) -> ProfileLine:
    values = {name: _number(line, name) for name in UNITS}
    for name, value in values.items():
        if value <= 0.0:
            raise line.error(f"the {name} is {line[name]}", name, "It must be above 0: measure again.")
    if not CLOCKS_MHZ[0] <= values["frequency"] <= CLOCKS_MHZ[1]:
        raise line.error(f"{line['frequency']} MHz is not the clock of a GPU", "frequency", "Give clocks in MHz.")
    if not line["instruction"]:
        raise line.error("no instruction", "instruction", "Name it, like forward.")
    stage = _index(line, "stage")
    gpu = tuple(_index(line, name) for name in RANK_COLUMNS if name in line.cells)
    if "pp_rank" in line.cells and _index(line, "pp_rank") != stage:
        raise line.error(f"stage {stage} on pipeline rank {line['pp_rank']}", "pp_rank", "They must be the same.")
    return ProfileLine(
        line, stage, line["instruction"].lower(), values["frequency"], values["time"], values["energy"], gpu
    )


def _number(line: Line, key: str) -> float:
    try:
        value = float(line[key])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise line.error(f"{line[key]!r} is not a number", key, f"Give {UNITS[key]} without a unit.")
    return value


def _index(line: Line, key: str) -> int:
    text = line[key]
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        raise line.error(f"{text!r} is not a {key}", key, "Count from 0.")
    return int(text)


def _refuse_duplicates(lines: Iterable[ProfileLine]) -> None:
    seen: dict[tuple[object, ...], int] = {}
    for row in lines:
        key = (row.stage, row.instruction, row.clock_mhz, row.gpu)
        if key in seen:
            what = f"{row.instruction} of stage {row.stage} at {row.clock_mhz:g} MHz"
            raise row.at.error(f"{what} stands twice, first in line {seen[key]}", remedy="Keep one of them.")
        seen[key] = row.at.number


def _refuse_mixed_units(lines: Sequence[ProfileLine]) -> None:
    """Values a hundred times off their like: time among the clocks of one instruction, clock and power in the file."""
    same: dict[tuple[int, str], list[float]] = {}
    for row in lines:
        same.setdefault((row.stage, row.instruction), []).append(row.time_s)
    usual = {key: median(times) for key, times in same.items()}
    power = median(row.energy_j / row.time_s for row in lines)
    if not POWER_W[0] <= power <= POWER_W[1]:
        wrong = f"energy over time is {power:.3g} W, which no GPU draws"
        raise lines[0].at.error(wrong, "energy", "Give times in seconds and energies in joules.")
    for row in lines:
        off = {
            "time": row.time_s / usual[row.stage, row.instruction],
            "energy": row.energy_j / row.time_s / power,
        }
        for key, ratio in off.items():
            if not 1.0 / MIXED_UNITS <= ratio <= MIXED_UNITS:
                what = f"the {key} {row.time_s if key == 'time' else row.energy_j:g}"
                wrong = f"{what} is {ratio:.3g} times what others suggest: units are mixed"
                raise row.at.error(wrong, key, "Give MHz, seconds and joules everywhere.")


def _refuse_missing(lines: Sequence[ProfileLine]) -> None:
    """Every stage needs the same instructions, GPUs and clocks."""
    stages = sorted({row.stage for row in lines})
    instructions = list(dict.fromkeys(row.instruction for row in lines))
    clocks = sorted({row.clock_mhz for row in lines})
    have = {(row.stage, row.instruction, row.clock_mhz, row.gpu) for row in lines}
    gpus = {stage: sorted({row.gpu for row in lines if row.stage == stage}) for stage in stages}
    for stage in stages:
        last = max((row.at for row in lines if row.stage == stage), key=lambda line: line.number)
        if len(gpus[stage]) != len(gpus[stages[0]]):
            wrong = f"stage {stage} has {len(gpus[stage])} GPUs, stage {stages[0]} has {len(gpus[stages[0]])}"
            raise last.error(wrong, remedy="Measure as many GPUs of every stage.")
        for name, clock, gpu in product(instructions, clocks, gpus[stage]):
            if (stage, name, clock, gpu) not in have:
                wrong = f"{name} of stage {stage} is missing at {clock:g} MHz, where others were measured"
                raise last.error(wrong, "frequency", "Measure every instruction at the same clocks.")


def _options(lines: Iterable[ProfileLine]) -> dict[tuple[int, str], tuple[Option, ...]]:
    times: dict[tuple[int, str, float], list[ProfileLine]] = {}
    for row in lines:
        times.setdefault((row.stage, row.instruction, row.clock_mhz), []).append(row)
    found: dict[tuple[int, str], list[Option]] = {}
    for (stage, name, clock), rows in times.items():
        option = Option(max(r.time_s for r in rows), sum(r.energy_j for r in rows), clock)
        found.setdefault((stage, name), []).append(option)
    return {key: tuple(options) for key, options in found.items()}
