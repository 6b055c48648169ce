"""Measured time and energy of jobs by power limit and batch size, from CSV files of several forms.

One line is one measurement. Its power limit is ``power_limit_w``, ``power_limit`` (Zeus), or ``power_limit_0``,
``power_limit_1`` … (one for each stage, all equal; empty or 0 where there is no such stage). Time and energy are
``time_s`` and ``energy_j``, ``time`` and ``energy`` (Zeus, Perseus), or ``time_per_epoch`` and ``average_power`` (the
traces of Zeus). ``batch_size`` is optional. All other columns name the job that the line belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from joulecast.errors import InputError
from joulecast.files import csv_table, positive, positive_whole, read_text
from joulecast.plan.fronts.profile import MIXED_UNITS
from joulecast.plan.limits.power_limits import JobPoint

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
    for line, record in _records(path):
        limit = _limit(record, file, line)
        time = _first(record, _TIME, "time", file, line)
        if any(name in record for name in _ENERGY):
            energy = _first(record, _ENERGY, "energy", file, line)
        else:
            energy = time * _first(record, _POWER, "energy or average power", file, line)
        batch = record.get(_BATCH)
        size = None if batch is None else positive_whole(batch, file=file, line=line, key=_BATCH)
        known = {*_TIME, *_ENERGY, *_POWER, _BATCH, *_IGNORED}
        named = [v for k, v in record.items() if k not in known and not k.startswith("power_limit")]
        job = " ".join(named) or Path(path).stem
        key = (job, limit, size)
        if key in seen:
            raise InputError(f"{job} at {limit:g} W stands already on line {seen[key]}", file=file, line=line)
        seen[key] = line
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
    for line, record in _records(path):
        names = [name for name in ("epochs", "target_epoch") if name in record]
        if not names or _BATCH not in record:
            remedy = f"The first line must name {_BATCH},epochs."
            raise InputError(f"no column {_BATCH} and epochs", file=file, line=1, remedy=remedy)
        text = record[names[0]].strip().lower()
        value = math.inf if text in ("", "nan", "inf") else positive(text, file=file, line=line, key=names[0])
        runs.setdefault(positive_whole(record[_BATCH], file=file, line=line, key=_BATCH), []).append(value)
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


def _records(path: str | Path) -> Iterator[tuple[int, dict[str, str]]]:
    return csv_table(read_text(path, "CSV"), str(path))[1]


def _limit(record: Mapping[str, str], file: str, line: int) -> float:
    staged = [k for k in record if k.startswith("power_limit_") and k.removeprefix("power_limit_").isdecimal()]
    if not staged:
        return _first(record, _LIMIT, "power limit", file, line)
    used = [k for k in staged if record[k].strip() not in ("", "0", "0.0")]  # the others are stages that do not exist
    limits = {positive(record[k], file=file, line=line, key=k) for k in used}
    if len(limits) != 1:
        raise InputError(
            "stages have different power limits", file=file, line=line, remedy="Only one limit for all is understood."
        )
    return limits.pop()


def _first(record: Mapping[str, str], names: tuple[str, ...], what: str, file: str, line: int) -> float:
    for name in names:
        if name in record:
            return positive(record[name], file=file, line=line, key=name)
    raise InputError(f"no column for {what}", file=file, line=1, remedy=f"Name it {' or '.join(names)}.")
