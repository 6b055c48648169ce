"""Fronts in the formats that schedulers read.

- ``zeus-pfo``: what the pipeline frequency optimizer of Zeus reads (https://ml.energy/zeus): a profile of instructions
  (``stage,instruction,frequency,time,energy``), which Perseus and lowtime read as well, and one solution file
  ``freqs_pipeline_%05d.py`` for each plan. A solution is a Python list with, for each rank or stage, pairs
  (instruction, MHz) in order of execution; 0 MHz leaves the clock as it is.
- ``json``: the front with every plan, as :data:`SCHEMA` describes it.
- ``csv`` and ``parquet``: one line for each instruction of each plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.errors import InputError
from joulecast.files import write_folder, write_text
from joulecast.plan.exact.front import Front, FrontPoint
from joulecast.plan.knobs.options import Option, OptionSet
from joulecast.tables import csv_text, write_rows

#: Writes a front into a file.
Writer = Callable[[Front, Path], None]
#: File of the JSON Schema beside this module.
SCHEMA = "front.schema.json"
#: Form of a folder for Zeus's pipeline frequency optimizer, and its files.
ZEUS_PFO = "zeus-pfo"
PROFILE_FILE, SOLUTION_FILE, TABLE_FILE = "profile.csv", "freqs_pipeline_{:05d}.py", "front.csv"
#: Beside them where plans choose more than clocks, which Zeus does not set: every instruction with all of its knobs.
KNOBS_FILE = "instructions.csv"


def export_front(front: Front, path: str | Path, form: str, *, copies: int = 1, gpus_per_rank: int = 1) -> None:
    """Write a front, whole or not at all.

    Parameters
    ----------
    path
        A file, or for ``zeus-pfo`` a folder that does not exist yet.
    form
        ``zeus-pfo``, or one of :data:`WRITERS`.
    copies, gpus_per_rank
        For ``zeus-pfo``: how often each pipeline rank's list stands in a solution (the tensor- and data-parallel ranks
        of a stage, which follow each other), and among how many GPUs a rank's energy is divided in the profile.

    Raises
    ------
    InputError
        An unknown format, a clock that is no whole number of MHz, or a file that cannot be written.
    """
    if form == ZEUS_PFO:
        write_folder(Path(path), zeus_files(front, copies=copies, gpus_per_rank=gpus_per_rank))
    elif form in WRITERS:
        WRITERS[form](front, Path(path))
    else:
        raise InputError(f"no format {form!r}", key="form", remedy=f"There are {', '.join(formats())}.")


def formats() -> tuple[str, ...]:
    """Formats of :func:`export_front`."""
    return (*WRITERS, ZEUS_PFO)


def format_of(path: Path) -> str:
    """The format that a file's ending means; a name without one means JSON.

    Raises
    ------
    InputError
        The ending of something else.

    >>> format_of(Path("front.CSV")), format_of(Path("front"))
    ('csv', 'json')
    """
    form = path.suffix.lower().removeprefix(".") or "json"
    if form not in ("json", "csv", "parquet"):
        remedy = "End it in .json, .csv or .parquet, or name the format."
        raise InputError(f"no format ends in {path.suffix}", file=str(path), remedy=remedy)
    return form


def add_format(name: str, write: Writer) -> None:
    """Make another format known to :func:`export_front`.

    Parameters
    ----------
    name
        Of the format.
    write
        Writes a front into a file, whole or not at all; :mod:`joulecast.files` helps.

    Raises
    ------
    InputError
        The name is taken.
    """
    if name in formats():
        raise InputError(f"there is a format {name!r} already", key="format", remedy="Choose another name.")
    WRITERS[name] = write


def schema(name: str = SCHEMA) -> dict[str, Any]:
    """The JSON Schema of :meth:`Front.to_dict`, or that of :mod:`joulecast.plan.limits.rank_limits`."""
    text = files("joulecast.plan").joinpath(name).read_text(encoding="utf-8")
    return dict(json.loads(text))


def instruction_rows(front: Front) -> list[dict[str, Any]]:
    """One line for each instruction of each plan; knobs beside the clock have their own columns."""
    knobs = list(dict.fromkeys(name for s in front.problem.sets for o in s.options for name, _ in o.knobs))
    rows = []
    for number, point in enumerate(front.points):
        head = {"plan": number, "iteration_time_s": point.time_s, "iteration_energy_j": point.energy_j}
        for stage, order in enumerate(front.options(point)):
            for place, option in enumerate(order):
                instruction = front.problem.dag.ranks[stage][place]
                rows.append(
                    {
                        **head,
                        "stage": stage,
                        "place": place,
                        "instruction": instruction.kind,
                        "microbatch": instruction.microbatch,
                        "chunk": instruction.chunk,
                        "clock_mhz": option.clock_mhz,
                        "time_s": option.time_s,
                        "energy_j": option.energy_j,
                        **dict.fromkeys(knobs),
                        **dict(option.knobs),
                    }
                )
    return rows


def zeus_files(front: Front, *, copies: int = 1, gpus_per_rank: int = 1) -> dict[str, str]:
    """Profile, solutions and a table of them, by file name.

    Where plans choose more than clocks, a table of all instructions' knobs stands beside them.
    """
    solutions = {
        SOLUTION_FILE.format(number): zeus_solution(front, point, copies=copies)
        for number, point in enumerate(front.points)
    }
    table = [{"file": name, **row} for name, row in zip(solutions, front.rows(), strict=True)]
    found = {PROFILE_FILE: zeus_profile(front, gpus_per_rank=gpus_per_rank), **solutions, TABLE_FILE: csv_text(table)}
    ways = {option.knobs for options in front.problem.sets for option in options.options}
    return found | ({KNOBS_FILE: csv_text(instruction_rows(front))} if len(ways) > 1 else {})


def zeus_profile(front: Front, *, gpus_per_rank: int = 1) -> str:
    """All options of every stage and instruction, per GPU; stages count along the model.

    Of options with one clock, that differ in what Zeus does not set, the one that is worth most stands for all.
    """
    problem = front.problem
    found: dict[tuple[int, str], int] = {}
    flat = ((rank, instruction) for rank, order in enumerate(problem.dag.ranks) for instruction in order)
    for (rank, instruction), kind in zip(flat, problem.kind.tolist(), strict=True):
        found.setdefault((problem.dag.stage(rank, instruction.chunk), instruction.kind), kind)
    by_clock = {kind: _by_clock(problem.sets[kind]) for kind in found.values()}
    return csv_text(
        [
            {
                "stage": stage,
                "instruction": name,
                "frequency": clock,
                "time": option.time_s,
                "energy": option.energy_j / gpus_per_rank,
            }
            for (stage, name), kind in sorted(found.items())
            for clock, option in sorted(by_clock[kind].items(), reverse=True)
        ]
    )


def _by_clock(options: OptionSet) -> dict[int, Option]:
    best: dict[int, Option] = {}
    for place in np.argsort(options.cost_j, kind="stable").tolist():
        option = options.options[place]
        best.setdefault(_whole_mhz(option.clock_mhz), option)
    return best


def zeus_solution(front: Front, point: FrontPoint, *, copies: int = 1) -> str:
    """A plan as a literal list, one line for each rank.

    Parameters
    ----------
    copies
        How often each pipeline rank's list is repeated.
    """
    lines = []
    for names, clocks in zip(front.instructions(), front.clocks_mhz(point), strict=True):
        pairs = [(name, _whole_mhz(clock)) for name, clock in zip(names, clocks, strict=True)]
        lines += [f"{pairs!r},"] * copies
    head = f"# {point.time_s:.6f} s, {point.energy_j:.3f} J an iteration; at least {point.lower_bound_j:.3f} J"
    return "\n".join(["[", *lines, "]", head, ""])


def _whole_mhz(clock_mhz: float) -> int:
    if not float(clock_mhz).is_integer() or clock_mhz < 0:
        raise InputError(
            f"a clock of {clock_mhz:g} MHz", key=ZEUS_PFO, remedy="Zeus sets whole MHz; use the board's own clocks."
        )
    return int(clock_mhz)


def _write_json(front: Front, path: Path) -> None:
    write_text(path, json.dumps(front.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


#: What writes a front into a file, by format.
WRITERS: dict[str, Writer] = {
    "json": _write_json,
    "csv": lambda front, path: write_rows(instruction_rows(front), path, "csv"),
    "parquet": lambda front, path: write_rows(instruction_rows(front), path, "parquet"),
}
