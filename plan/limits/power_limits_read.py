"""Measured time and energy of jobs by power limit and batch size, from CSV files of several forms.

One line is one measurement. Its power limit is ``power_limit_w``, ``power_limit`` (Zeus), or ``power_limit_0``,
``power_limit_1`` … (one for each stage, all equal; empty or 0 where there is no such stage). Time and energy are
``time_s`` and ``energy_j``, ``time`` and ``energy`` (Zeus, Perseus), or ``time_per_epoch`` and ``average_power`` (the
traces of Zeus). ``batch_size`` is optional. All other columns name the job that the line belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from joulecast.errors import InputError
from joulecast.plan.fronts.profile import MIXED_UNITS
from joulecast.plan.limits.power_limits import JobPoint
from joulecast.tables import Line, read_table

_LIMIT, _TIME, _ENERGY = ("power_limit_w", "power_limit"), ("time_s", "time", "time_per_epoch"), ("energy_j", "energy")
_POWER, _BATCH = ("power_w", "average_power"), "batch_size"
#: Columns that say neither what was measured nor which job it was.
_IGNORED = ("optimal_power_limit",)


def read_job_points(path: str | Path) -> dict[str, tuple[JobPoint, ...]]:
    """Points of each job of a file, by the job's name.

    Raises
    ------
    InputError
        A missing column, a value that is not a positive number, two lines of one job, batch size and limit, or a power
        that has another unit than the others.
    """
    file = str(path)
    jobs: dict[str, list[JobPoint]] = {}
    seen: dict[tuple[str, float, int | None], int] = {}
    for line in read_table(path).lines:
        limit, time = _limit(line), _first(line, _TIME, "time")
        if any(name in line.cells for name in _ENERGY):
            energy = _first(line, _ENERGY, "energy")
        else:
            energy = time * _first(line, _POWER, "energy or average power")
        size = line.whole(_BATCH) if _BATCH in line.cells else None
        known = {*_TIME, *_ENERGY, *_POWER, _BATCH, *_IGNORED}
        named = [v for k, v in line.cells.items() if k not in known and not k.startswith("power_limit")]
        job = " ".join(named) or Path(path).stem
        key = (job, limit, size)
        if key in seen:
            raise line.error(f"{job} at {limit:g} W stands already on line {seen[key]}", remedy="Keep one of the two.")
        seen[key] = line.number
        jobs.setdefault(job, []).append(JobPoint(limit, time, energy, size))
    if not jobs:
        raise InputError("no measurements", file=file, remedy="One line for each power limit is expected.")
    for job, found in jobs.items():
        _refuse_mixed_units(found, [line for (of, _, _), line in seen.items() if of == job], file)
    return {job: tuple(points) for job, points in jobs.items()}


def read_epochs(path: str | Path) -> dict[int, tuple[float, ...]]:
    """Epochs to the target of every run by batch size: columns ``batch_size`` and ``epochs`` (or ``target_epoch``).

    An empty value or ``nan`` is a run that never reached the target.
    """
    file = str(path)
    runs: dict[int, list[float]] = {}
    for line in read_table(path).lines:
        names = [name for name in ("epochs", "target_epoch") if name in line.cells]
        if not names or _BATCH not in line.cells:
            remedy = f"The first line must name {_BATCH},epochs."
            raise InputError(f"no column {_BATCH} and epochs", file=file, line=1, remedy=remedy)
        never = line[names[0]].strip().lower() in ("", "nan", "inf")
        runs.setdefault(line.whole(_BATCH), []).append(math.inf if never else line.positive(names[0]))
    if not runs:
        raise InputError("no epochs", file=file, remedy="One line for each batch size is expected.")
    return {size: tuple(values) for size, values in runs.items()}


def mean_epochs(runs: Mapping[int, tuple[float, ...]]) -> dict[int, float]:
    """Mean epochs of a batch size's runs; infinite where one never reached the target.

    >>> mean_epochs({8: (10.0, 12.0), 16: (9.0, math.inf)})
    {8: 11.0, 16: inf}
    """
    return {size: sum(values) / len(values) for size, values in runs.items()}


def _refuse_mixed_units(points: Sequence[JobPoint], lines: Sequence[int], file: str) -> None:
    """Power a hundred times off the job's usual one: times or energies differ in their units."""
    powers = [point.energy_j / point.time_s for point in points]
    usual = median(powers)
    for power, line in zip(powers, lines, strict=True):
        if not 1.0 / MIXED_UNITS <= power / usual <= MIXED_UNITS:
            raise InputError(
                f"energy over time is {power:.3g} W, that of others {usual:.3g} W: units are mixed",
                file=file,
                line=line,
                remedy="Give seconds and joules everywhere.",
            )


def _limit(line: Line) -> float:
    staged = [k for k in line.cells if k.startswith("power_limit_") and k.removeprefix("power_limit_").isdecimal()]
    if not staged:
        return _first(line, _LIMIT, "power limit")
    used = [k for k in staged if line[k].strip() not in ("", "0", "0.0")]  # the others are stages that do not exist
    limits = {line.positive(column) for column in used}
    if len(limits) != 1:
        raise line.error("stages have different power limits", remedy="Only one limit for all is understood.")
    return limits.pop()


def _first(line: Line, names: tuple[str, ...], what: str) -> float:
    """The positive number of the first of these columns that the table has."""
    for name in names:
        if name in line.cells:
            return line.positive(name)
    raise InputError(f"no column for {what}", file=line.file, line=1, remedy=f"Name it {' or '.join(names)}.")
