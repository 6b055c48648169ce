"""``validate published``: step times of training runs that others published, forecast from their configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.arrays import Bool
from joulecast.calibrate.published.left_out import by_gpu, by_source, left_out, may_be_fitted
from joulecast.calibrate.published.plans import PlannedRow, plan_row
from joulecast.calibrate.published.rows import PublishedRow, read_published
from joulecast.calibrate.published.shipped import collected_factors, linearised
from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.description import GpuDescription
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan
from joulecast.validate.published.node_power import node_power_rows, node_summary, node_table
from joulecast.validate.published.node_power_files import FILE as NODE_POWER_FILE
from joulecast.validate.published.node_power_files import read_node_power
from joulecast.validate.published.order import order_of_pairs
from joulecast.validate.published.rates import constant_rate_s, rates
from joulecast.validate.scoring.folds import check_folds, evenly_spread
from joulecast.validate.scoring.result import Prediction, ScoredRow, SuiteResult
from joulecast.validate.scoring.summary import summarise

#: Words of a protocol: what the shipped factors have seen, and what the trivial rule may read.
SHIPPED = "shipped factors of long runs, fitted to the sources that their file names, not to MLPerf's; none on PyTorch"
RULE = "trivial rule: one rate per GPU, data type and source, or per GPU and data type where the source is left out"


def run_published(
    data: str | Path,
    gpu: str | None = None,
    folds: int | None = None,
    calibrate_rows: int | None = None,
    leave_out: str | None = None,
) -> SuiteResult:
    """Forecast all rows of a file.

    Parameters
    ----------
    data
        A CSV file as :func:`~joulecast.calibrate.published.rows.read_published` reads it, or its folder, where nodes'
        measured power may lie beside it.
    gpu
        Catalogue name or path of a description in place of those that the data name.
    folds
        Sources are dealt into so many folds; each is forecast by a fit to the others.
    calibrate_rows
        Fit to so many rows, spread evenly over the file, and forecast the others.
    leave_out
        ``gpu`` or ``source``: each is left out in turn, and its rows are forecast by a fit to all others.

    Raises
    ------
    DataError
        A missing file or a broken line.
    InputError
        Options that contradict each other.
    """
    rows = read_published(data)
    planned, skipped = plan_rows(rows)
    chosen = _protocol(planned, folds, calibrate_rows, leave_out)
    if chosen is not None:
        return _refitted(planned, skipped, gpu, chosen)
    description = None if gpu is None else load_gpu(gpu)
    iterations, failed = _forecasts(planned, description)
    known = _known(planned)
    scored = [_scored(one, prediction, known) for one, prediction in iterations]
    measured = read_node_power(data) if (Path(data) / NODE_POWER_FILE).is_file() else []
    nodes, without_forecast = node_power_rows(measured, rows, description)
    return SuiteResult(
        suite="published",
        gpu=gpu or ", ".join(sorted({p.plan.cluster.gpu for p in planned})),
        rows=(*scored, *nodes),
        summary=summarise(scored) | node_summary(nodes),
        skipped=(*skipped, *failed, *without_forecast),
        protocol=f"{SHIPPED}; {RULE}",
        details={
            "order": _order(iterations),
            "node_power": node_table(nodes),
            "assumptions": {p.row.id: list(p.assumptions) for p in planned if p.assumptions},
        },
    )


def _forecasts(
    planned: Sequence[PlannedRow], gpu: GpuDescription | None
) -> tuple[list[tuple[PlannedRow, Prediction]], list[tuple[str, str]]]:
    """Forecasts of rows, and the rows that have none with the reason."""
    found: list[tuple[PlannedRow, Prediction]] = []
    failed: list[tuple[str, str]] = []
    made: dict[Plan, Prediction] = {}  # sources repeat each other's plans
    for one in planned:
        try:
            if one.plan not in made:
                made[one.plan] = Prediction.of_iteration(forecast(one.plan, gpu, must_fit=False))
            found.append((one, made[one.plan]))
        except InputError as error:
            failed.append((one.row.id, str(error)))
    return found, failed


@dataclass(frozen=True)
class _Protocol:
    """Which rows are left out together, in words, and whether their factors are found far from the shipped ones."""

    parts: Sequence[Bool]
    words: str
    far: bool = False


def _protocol(
    planned: Sequence[PlannedRow], folds: int | None, calibrate_rows: int | None, leave_out: str | None
) -> _Protocol | None:
    """What the options ask for; ``None`` where nothing is refitted."""
    given = {"--folds": folds, "--calibrate-rows": calibrate_rows, "--leave-out": leave_out}
    used = [option for option, value in given.items() if value is not None]
    if not used:
        return None
    if len(used) > 1:
        raise InputError(f"{' and '.join(used)} exclude each other", key=used[0], remedy="Give one of them.")
    if leave_out == "gpu":
        words = "each GPU left out in turn, forecast by a fit to the others' rows but MLPerf's"
        return _Protocol(by_gpu(planned), words, far=True)
    if leave_out not in (None, "source"):
        raise InputError(f"nothing is known of {leave_out!r}", key="--leave-out", remedy="Use gpu or source.")
    if calibrate_rows is not None:
        words = f"fitted on {calibrate_rows} rows, spread evenly over the file, MLPerf's left out; the others scored"
        return _Protocol([~every_other(planned, calibrate_rows)], words)
    if folds is not None:
        check_folds(folds)
    parts = by_source(planned, folds or len(planned))
    return _Protocol(parts, f"sources dealt into {len(parts)} folds, each forecast by a fit to the others but MLPerf")


def _refitted(
    planned: Sequence[PlannedRow], skipped: Sequence[tuple[str, str]], gpu: str | None, protocol: _Protocol
) -> SuiteResult:
    """Rows that were left out, forecast by fits to the others."""
    if gpu is not None:
        raise InputError(
            "a fit of published rows takes the GPUs that the data name", key="--gpu", remedy="Leave it out."
        )
    found = left_out(planned, protocol.parts, linearised(planned, collected_factors()), far=protocol.far)
    known = _known(planned)
    pairs = [
        (one, Prediction(**asdict(time)), [pair for pair, seen in zip(known, found.seen[i], strict=True) if seen])
        for i, (one, time) in enumerate(zip(planned, found.times, strict=True))
        if time is not None
    ]
    scored = [_scored(one, prediction, seen) for one, prediction, seen in pairs]
    return SuiteResult(
        suite="published",
        gpu=", ".join(sorted({p.plan.cluster.gpu for p in planned})),
        rows=tuple(scored),
        summary=summarise(scored),
        skipped=tuple(skipped),
        protocol=f"{protocol.words}; {RULE}",
        details={"order": _order([(one, prediction) for one, prediction, _ in pairs])},
    )


def every_other(planned: Sequence[PlannedRow], count: int) -> Bool:
    """``count`` rows, spread evenly over the file, of those that may be fitted."""
    usable = [i for i, one in enumerate(planned) if may_be_fitted(one)]
    chosen = np.zeros(len(planned), dtype=bool)
    chosen[[usable[i] for i in evenly_spread(len(usable), count)]] = True
    return chosen


def _order(forecasts: Sequence[tuple[PlannedRow, Prediction]]) -> dict[str, Any]:
    order = order_of_pairs([one for one, _ in forecasts], [prediction.time_s or 0.0 for _, prediction in forecasts])
    return {"pairs": order.pairs, "correct_percent": order.correct_percent, "wrong": list(order.wrong)}


def _known(planned: Sequence[PlannedRow]) -> list[tuple[PublishedRow, float]]:
    """Rows with their rates; NaN where none was measured."""
    return list(zip([one.row for one in planned], rates(planned).tolist(), strict=True))


def plan_rows(rows: Sequence[PublishedRow]) -> tuple[list[PlannedRow], list[tuple[str, str]]]:
    """Rows with their plans, and those that cannot be planned with the reason."""
    planned: list[PlannedRow] = []
    skipped: list[tuple[str, str]] = []
    for row in rows:
        try:
            planned.append(plan_row(row))
        except InputError as error:
            skipped.append((row.id, str(error)))
    return planned, skipped


def _scored(planned: PlannedRow, prediction: Prediction, known: Sequence[tuple[PublishedRow, float]]) -> ScoredRow:
    """A row beside the trivial rule, which reads the rows that are known."""
    return ScoredRow(
        _as_row(planned),
        prediction,
        family=planned.generation.name or "other frameworks",
        groups=(f"{planned.row.gpu} {planned.row.dtype}", f"source {planned.row.source}"),
        baseline=Prediction(time_s=constant_rate_s(planned, [pair for pair in known if pair[1] > 0])),
    )


def _as_row(planned: PlannedRow) -> Row:
    row = planned.row
    configuration: Mapping[str, Any] = {"model": row.model, "gpu": row.gpu, "gpus": row.num_gpus, "source": row.source}
    power = None if row.watts_per_gpu is None else row.watts_per_gpu * row.num_gpus
    energy = None if power is None or row.measured_step_time_s is None else power * row.measured_step_time_s
    measured = Measured(row.measured_step_time_s, energy, power)
    return Row(row.id, "published", configuration, measured, row.file, row.line)
