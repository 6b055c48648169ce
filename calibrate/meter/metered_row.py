"""The row that a metered loop becomes: its plan and what was measured; rows of the ranks of one job joined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from joulecast.calibrate.measure.measured_row import Take, measured_row
from joulecast.calibrate.measure.recording import rounded
from joulecast.calibrate.measure.settings import MeasureSettings
from joulecast.calibrate.meter.metered_plan import MeteredPlan
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.rows.measured import is_measured
from joulecast.errors import DataError
from joulecast.simulator.plan_file.schema_surroundings import MOST_GPUS

#: Name of the form of a row, with its version, and the kind of work that it is.
FORM, OP = "joulecast-metered-1", "train_plan"
#: Fields that a row of several GPUs lists by GPU.
BY_GPU = ("power_w", "sm_clock_mhz", "gpu_temp_c", "peak_mem_bytes")
#: Says that a loop ended before a window closed.
PARTIAL = "measured_partial"
#: When the first window opened and the last one closed, in seconds of Unix time.
BEGIN, END = "measured_begin_unix_s", "measured_end_unix_s"
#: What reading the cards has cost of one core.
CORE_SHARE = "measured_core_share"
#: Words of a row that must be there, with their kinds.
_NEEDED = {"plan": dict, "plan_file": str, "plan_gpus": int, "gpus": int, "rank": int, "world_size": int}


def configuration_of(plan: MeteredPlan, gpus: int, rank: int, world_size: int, card: str) -> dict[str, Any]:
    """What is known of a row before it is measured."""
    return {
        "form": FORM,
        "op": OP,
        "plan": dict(plan.tables),
        "plan_file": plan.file,
        "plan_gpus": plan.iteration.gpus,
        "gpus": gpus,
        "rank": rank,
        "world_size": world_size,
        "card": card,
    }


def row_of_windows(
    name: str,
    configuration: Mapping[str, Any],
    takes: Sequence[Take],
    settings: MeasureSettings,
    settled_s: float,
    spoilt: int,
) -> dict[str, Any]:
    """Row of the windows of a loop, a repetition being an iteration."""
    benchmark = Microbenchmark(name, configuration, "train", gpus=int(configuration["gpus"]))
    row = measured_row(benchmark, takes, [None] * benchmark.gpus, settings, settled_s, spoilt)
    return _rounded({**row, "measured_steps": int(sum(take.repetitions.sum() for take in takes))})


def row_of_time(name: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Row of a stretch too short for a window, of which the time alone is known."""
    return {"name": name, **configuration}


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: rounded(value) if is_measured(key) else value for key, value in row.items()}


def check_row(row: Mapping[str, Any], file: str, line: int) -> None:
    """Refuse a row that no meter wrote.

    Raises
    ------
    DataError
        It is of another kind or version, or lacks a field; names file, line and key.
    """
    form = row.get("form")
    if form != FORM:
        raise DataError(
            f"not a row of a metered loop: its form is {form!r}, not {FORM!r}",
            file=file,
            line=line,
            key="form",
            remedy="Give what meter.write() wrote; rows of other kinds have suites of their own.",
        )
    for key, kind in _NEEDED.items():
        value = row.get(key)
        counted = isinstance(value, int) and not isinstance(value, bool) and value >= (key != "rank")
        if not isinstance(value, kind) or (kind is int and not counted):
            raise _no_field(row, key, file, line)
    if row["gpus"] * row["world_size"] > MOST_GPUS or row["plan_gpus"] > MOST_GPUS:
        raise _no_field(row, "world_size" if row["plan_gpus"] <= MOST_GPUS else "plan_gpus", file, line)
    for key in (BEGIN, END, "measured_energy_sd"):
        value = row.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _no_field(row, key, file, line)


def _no_field(row: Mapping[str, Any], key: str, file: str, line: int) -> DataError:
    message = f"{row.get(key)!r} is no {key} of a metered loop"
    return DataError(message, file=file, line=line, key=key, remedy="Measure again.")


def joined(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the ranks of one job as one row, for every job.

    Ranks belong together that have one name and plan and measured at the same time. Time is that of the slowest rank;
    power, clock, temperature and memory are listed by GPU, with ``null`` for those of the plan's GPUs that nobody
    measured; energy is known where no power is missing. The row of a job of one process stays as it is.

    Parameters
    ----------
    rows
        As meters wrote them, in any order.
    """
    jobs: list[list[Mapping[str, Any]]] = []
    for row in rows:
        home = next((job for job in jobs if _belongs(row, job)), None)
        if home is None:
            jobs.append([row])
        else:
            home.append(row)
    return [_one(job) for job in jobs]


def _belongs(row: Mapping[str, Any], job: Sequence[Mapping[str, Any]]) -> bool:
    same = ("name", "plan", "world_size", PARTIAL)
    return all(
        row["rank"] != other["rank"]
        and all(row.get(key) == other.get(key) for key in same)
        and (row.get(BEGIN) or 0.0) < (other.get(END) or math.inf)
        and (other.get(BEGIN) or 0.0) < (row.get(END) or math.inf)
        for other in job
    )


def _one(job: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    each, size = max(row["gpus"] for row in job), job[0]["world_size"]
    absent = job[0]["plan_gpus"] - each * size
    if size == 1 and absent <= 0:
        return dict(job[0])
    by_rank = {row["rank"]: row for row in job}
    slowest = max(job, key=lambda row: float(row.get("time_s") or 0.0))
    found = {key: value for key, value in slowest.items() if key.removesuffix("_per_gpu") not in (*BY_GPU, "energy_j")}
    for key in BY_GPU:
        values = [value for rank in range(size) for value in _of_gpus(by_rank.get(rank), key, each)]
        if any(value is not None for value in values):
            found[f"{key}_per_gpu"] = [*values, *[None] * absent]
    powers = found.get("power_w_per_gpu", [None])
    if None not in powers and found.get("time_s") is not None:
        found["energy_j"] = sum(powers) * found["time_s"]
    errors: list[Any] = [row.get("measured_energy_sd") for row in job]
    found["measured_energy_sd"] = None if None in errors else max(errors)
    return {**found, "gpus": each * size + max(absent, 0), "rank": 0}


def _of_gpus(row: Mapping[str, Any] | None, key: str, count: int) -> list[Any]:
    """Values of a rank's GPUs, ``None`` for those that are missing."""
    if row is None:
        return [None] * count
    values = row.get(f"{key}_per_gpu", [row.get(key)])
    return [*values, *[None] * (count - len(values))]
