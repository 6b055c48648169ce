"""``validate dvfs`` and ``validate power-limit``: clocks, limits and workloads that were left out of a sweep.

Each card's rows are split in the ways of :mod:`joulecast.validate.left_out.clock_splits`; of each part the left-out
rows are forecast from the others (:mod:`joulecast.calibrate.clock_sweeps`). A row is listed once for each way it is
left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.calibrate.clock_sweeps.forecast import Forecast, Question, forecast
from joulecast.calibrate.clock_sweeps.forms import read_sweeps
from joulecast.calibrate.clock_sweeps.parameters import Kind
from joulecast.calibrate.clock_sweeps.rows import SweepRow
from joulecast.calibrate.rows.measured import Row
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.validate.left_out.clock_baselines import mean_curve, nearest_setting, straight_line
from joulecast.validate.left_out.clock_floor import from_all_others
from joulecast.validate.left_out.clock_splits import EDGES, ONE_EDGES, WORKLOAD, Part, parts
from joulecast.validate.scoring.folds import check_folds
from joulecast.validate.scoring.result import Prediction, ScoredRow, SuiteResult
from joulecast.validate.scoring.summary import summarise_beside

#: Kind of sweep of each suite.
KINDS: dict[str, Kind] = {"dvfs": "clock", "power-limit": "limit"}
#: Parts into which inner settings and workloads are dealt.
DEFAULT_FOLDS = 5
#: Half-width of the 90 % interval in standard deviations: Student's t with the four degrees of freedom of the fit.
HALF_WIDTH = 2.132
#: What is left out, in the words of the report.
RULE = {
    "dvfs": "settings of the locked clock: every {folds}th inside the range ('inside'), the two lowest and the two "
    "highest ('edges'), of all workloads of a card at once; workloads with their copies, {folds} parts, of which one "
    "row at the middle clock and the configuration are known ('workload')",
    "power-limit": "power limits: every {folds}th inside the range ('inside'), the two lowest and the two highest "
    "('edges'), of all workloads of a card at once; the latter also of one workload in {folds} at a time, while the "
    "others keep theirs ('edges of one workload')",
}


@dataclass(frozen=True, slots=True)
class _Scored:
    """A scored row with the simplest rule beside it, and what all other rows of its sweep say, left out or not."""

    row: ScoredRow
    nearest: Prediction
    others: Prediction


def run_clock_suite(suite: str, data: str | Path, gpu: str | None = None, folds: int | None = None) -> SuiteResult:
    """Forecast left-out rows of all sweeps of a file or folder.

    Parameters
    ----------
    suite
        One of :data:`KINDS`.
    data
        A CSV file of one of :data:`~joulecast.calibrate.clock_sweeps.forms.FORMS`, or a folder that holds such.
    gpu
        Catalogue name or path of a description whose power limit is that of the cards of a sweep of clocks; without
        it the limit is learnt from the rows.
    folds
        Parts into which inner settings and workloads are dealt, at least 2.

    Raises
    ------
    DataError
        A broken file.
    InputError
        Options that have no meaning here.
    """
    limit = None if gpu is None else _limit_w(suite, gpu)
    count = DEFAULT_FOLDS if folds is None else folds
    check_folds(count)
    cards: dict[str, list[SweepRow]] = {}
    for row in read_sweeps(data, KINDS[suite]):
        cards.setdefault(row.card, []).append(row)
    scored: list[_Scored] = []
    skipped = [(row.name, row.unusable) for rows in cards.values() for row in rows if row.unusable]
    for rows in cards.values():
        others = from_all_others(rows)
        for part in parts(rows, count):
            scored += _forecast_part(rows, part, limit, others)
            skipped += [(f"{rows[i].name}, {part.way}", reason) for i, reason in part.refused.items()]
    beside = {"nearest": [one.nearest for one in scored], "others": [one.others for one in scored]}
    return SuiteResult(
        suite=suite,
        gpu=", ".join(cards),
        rows=tuple(one.row for one in scored),
        summary=summarise_beside([one.row for one in scored], beside),
        skipped=tuple(skipped),
        protocol=f"left out {RULE[suite].format(folds=count)}",
    )


def _limit_w(suite: str, gpu: str) -> float:
    """Power limit of a description [W]."""
    if KINDS[suite] == "limit":
        raise InputError(
            f"suite {suite!r} has its limits in the data and learns all else from them",
            key="--gpu",
            remedy="Leave the option out.",
        )
    return load_gpu(gpu).number("power_limit_w")


def _forecast_part(
    rows: Sequence[SweepRow], part: Part, limit_w: float | None, others: Mapping[int, Prediction]
) -> list[_Scored]:
    """Forecasts of a part's rows beside what was measured and what trivial rules say."""
    if not part.asked:
        return []
    training = [rows[i] for i in part.training]
    asked = [rows[i] for i in part.asked]
    answer = forecast(training, [Question(row.key, row.setting) for row in asked], limit_w)
    own: dict[Any, list[SweepRow]] = {}
    for row in training:
        own.setdefault(row.key, []).append(row)
    scored = []
    for place, row in enumerate(asked):
        known = own[row.key]
        if part.way == WORKLOAD:
            rule = mean_curve(known[0], training, row.setting)
        else:
            rule = straight_line(known, row.setting)
        entry = ScoredRow(
            _as_row(row, part.way),
            _prediction(answer, place, row.gpus),
            family=part.way,
            groups=(
                f"{part.way}: {row.card}",
                f"{part.way}: {'held' if answer.held[place] else 'not held'} by a limit",
                *_end(part.way, row, known),
            ),
            baseline=rule,
        )
        nearest = nearest_setting(known, row.setting)
        scored.append(_Scored(entry, nearest, others.get(part.asked[place], Prediction())))
    return scored


def _end(way: str, row: SweepRow, known: Sequence[SweepRow]) -> tuple[str, ...]:
    """At which end of the known settings a row lies, where ends are left out."""
    if way not in (EDGES, ONE_EDGES):
        return ()
    end = "lowest" if row.setting < min(one.setting for one in known) else "highest"
    return (f"{way}: {row.card}, {end} settings",)


def _as_row(row: SweepRow, way: str) -> Row:
    key = "locked_clock_mhz" if row.kind == "clock" else "power_limit_w"
    configuration = {"card": row.card, **row.workload, key: row.setting, "gpus": row.gpus}
    return Row(f"{row.name}, {way}", "clock_sweep", configuration, row.measured, row.file, row.line)


def _prediction(answer: Forecast, place: int, gpus: int) -> Prediction:
    """One answer, of all GPUs of its row; the interval holds 90 % of what one measured row may be."""
    time, power = float(answer.time_s[place]), float(answer.power_w[place]) * gpus
    factors = [float(np.exp(HALF_WIDTH * sd[place])) for sd in (answer.time_sd, answer.energy_sd, answer.power_sd)]
    clock = None if answer.clock_mhz is None else float(answer.clock_mhz[place])
    return Prediction.within(time, time * power, power, factors, clock)
