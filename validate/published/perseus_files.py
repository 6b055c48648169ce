"""Measured pipeline iterations under frequency plans, in the form of the Perseus artifact.

A folder with three files, plain or gzipped:

- ``measured_iterations.csv``: a plan of a workload each, with its iteration time and the energy of every GPU;
- ``measured_instructions.csv``: mean forward and backward time of each plan and GPU;
- ``frequency_plans.jsonl``: the requested clock of every instruction, run-length coded as [direction, MHz, repeats].
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulecast.calibrate.studies.pipeline_plans import DIRECTIONS
from joulecast.errors import DataError
from joulecast.tables import Line, parse_table

ITERATIONS, INSTRUCTIONS, PLANS = "measured_iterations.csv", "measured_instructions.csv", "frequency_plans.jsonl"
#: Columns of a workload.
WORKLOAD = ("gpu", "model", "partition", "parallelism", "micro_batch", "microbatches")
_RANK = re.compile(r"energy_rank[0-9]{1,6}_j")
_NUMBER = re.compile(r"[0-9]{1,6}")
#: More than any pipeline has; a damaged count of repeats would fill the memory.
MOST_INSTRUCTIONS = 100_000
#: GPU, model and plan: what the three files name a plan by.
PlanKey = tuple[str, str, str]


@dataclass(frozen=True)
class Requested:
    """Requested clocks of a plan: per stage the order (``F``, ``B``) and one clock for each instruction [MHz]."""

    orders: tuple[str, ...]
    clocks_mhz: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class PlanRow:
    """One measured plan.

    Attributes
    ----------
    workload
        Values of :data:`WORKLOAD`.
    key
        Names the plan in the other files.
    time_s, energy_j
        Iteration time and energy of all GPUs, ``None`` where not measured.
    rank_energy_j
        Energy of each GPU.
    instruction_time_s
        Mean time by (GPU's rank, direction: 0 forward, 1 backward) [s].
    requested
        ``None`` where no clocks are recorded.
    file, line
        Where the row stands.
    """

    workload: tuple[str, ...]
    key: PlanKey
    time_s: float | None
    energy_j: float | None
    rank_energy_j: tuple[float, ...]
    requested: Requested | None
    file: str
    line: int
    instruction_time_s: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """GPU, model and plan."""
        return f"{self.key[0]} {self.key[1]} plan {self.key[2]}"

    @property
    def workload_name(self) -> str:
        """GPU, model and parallelism."""
        return f"{self.workload[0]} {self.workload[1]} {self.workload[3]}"


def read_plans(folder: str | Path) -> list[PlanRow]:
    """All measured plans of a folder.

    Raises
    ------
    DataError
        A missing file, a broken line or a plan that stands twice; names file and line.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError("no such folder", file=str(root), remedy=f"Give the folder that holds {ITERATIONS}.")
    requested = _requested(_find(root, PLANS))
    times = _instruction_times(_find(root, INSTRUCTIONS))
    path = _find(root, ITERATIONS)
    rows: list[PlanRow] = []
    seen: dict[PlanKey, int] = {}
    for line in _csv(path, (*WORKLOAD, "plan", "iteration_time_s", "iteration_energy_j")):
        key = _plan_key(line)
        if key in seen:
            raise line.error(f"plan {' '.join(key)} stands already on line {seen[key]}", remedy="Keep one of the two.")
        seen[key] = line.number
        energies = [line.positive_if_any(column) for column in _ranks(line)]
        rows.append(
            PlanRow(
                tuple(line[column] for column in WORKLOAD),
                key,
                line.positive_if_any("iteration_time_s"),
                line.positive_if_any("iteration_energy_j"),
                tuple(energy for energy in energies if energy is not None),
                requested.get(key),
                line.file,
                line.number,
                times.get(key, {}),
            )
        )
    if not rows:
        raise DataError("no measured plans", file=str(path), remedy="One line for each plan is expected.")
    return rows


def _plan_key(line: Line) -> PlanKey:
    return line["gpu"], line["model"], line["plan"]


def _ranks(line: Line) -> list[str]:
    """Columns of the ranks' energies, in the ranks' order."""
    columns = [name for name in line.cells if name.startswith("energy_rank")]
    for name in columns:
        if not _RANK.fullmatch(name):
            raise DataError(
                f"no column of a rank's energy: {name!r}",
                file=line.file,
                line=1,
                remedy="They are called energy_rank0_j, energy_rank1_j and so on.",
            )
    return sorted(columns, key=lambda name: int(name.removeprefix("energy_rank").removesuffix("_j")))


def _find(root: Path, name: str) -> Path:
    for path in (root / name, root / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError("missing", file=str(root / name), remedy=f"The folder must hold {name} or {name}.gz.")


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot be read ({error})", file=str(path), remedy="It must be text, or gzipped text."
        ) from None


def _csv(path: Path, needed: Sequence[str]) -> Iterator[Line]:
    return parse_table(_text(path), str(path), needed=needed, wrong=DataError).lines


def _instruction_times(path: Path) -> dict[PlanKey, dict[tuple[int, int], float]]:
    times: dict[PlanKey, dict[tuple[int, int], float]] = {}
    for line in _csv(path, ("gpu", "model", "plan", "rank", "instruction", "mean_s")):
        value = line.positive_if_any("mean_s")
        if line["instruction"] not in DIRECTIONS or not _NUMBER.fullmatch(line["rank"]):
            raise line.error(
                f"instruction {line['instruction']!r} of rank {line['rank']!r}",
                remedy="Instructions are forward and backward, ranks are numbers.",
            )
        place = int(line["rank"]), DIRECTIONS.index(line["instruction"])
        if value is not None:
            times.setdefault(_plan_key(line), {})[place] = value
    return times


def _requested(path: Path) -> dict[PlanKey, Requested]:
    plans: dict[PlanKey, Requested] = {}
    for line, text in enumerate(_text(path).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
            key = (str(entry["gpu"]), str(entry["model"]), str(entry["plan"]))
            plans[key] = _expanded(entry["forward_backward_clock_mhz_per_stage"])
        except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise DataError(
                f"not a frequency plan ({error})",
                file=str(path),
                line=line,
                remedy="Each stage is a list of [direction, MHz, repeats].",
            ) from None
    return plans


def _expanded(stages: Any) -> Requested:
    orders, clocks = [], []
    for stage in stages:
        runs = [(str(direction), float(clock), int(repeats)) for direction, clock, repeats in stage]
        if sum(repeats for _, _, repeats in runs) > MOST_INSTRUCTIONS:
            raise ValueError(f"more than {MOST_INSTRUCTIONS} instructions in a stage")
        orders.append("".join(direction * repeats for direction, _, repeats in runs))
        clocks.append(tuple(clock for _, clock, repeats in runs for _ in range(repeats)))
    return Requested(tuple(orders), tuple(clocks))
