"""``validate published``: step times of training runs that others published, forecast from their configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joulecast.calibrate.rows import Measured, Row
from joulecast.errors import InputError
from joulecast.model.catalogue import load_gpu
from joulecast.simulator.forecast import forecast
from joulecast.simulator.iteration import Iteration
from joulecast.validate.node_power import node_power_rows, node_summary, node_table
from joulecast.validate.node_power_files import FILE as NODE_POWER_FILE
from joulecast.validate.node_power_files import read_node_power
from joulecast.validate.published_files import PublishedRow, read_published
from joulecast.validate.published_order import order_of_pairs
from joulecast.validate.published_plans import PlannedRow, plan_row
from joulecast.validate.published_rates import constant_rate_s, rates
from joulecast.validate.result import Prediction, ScoredRow, SuiteResult
from joulecast.validate.summary import summarise


def run_published(data: str | Path, gpu: str | None = None) -> SuiteResult:
    """Forecast all rows of a file.

    Parameters
    ----------
    data
        A CSV file as :func:`~joulecast.validate.published_files.read_published` reads it, or its folder, where nodes'
        measured power may lie beside it.
    gpu
        Catalogue name or path of a description in place of those that the data name.

    Raises
    ------
    DataError
        A missing file or a broken line.
    """
    rows = read_published(data)
    planned, skipped = plan_rows(rows)
    description = None if gpu is None else load_gpu(gpu)
    iterations: list[tuple[PlannedRow, Iteration]] = []
    for one in planned:
        try:
            iterations.append((one, forecast(one.plan, description, must_fit=False)))
        except InputError as error:
            skipped.append((one.row.id, str(error)))
    scored = _scored(rows, iterations)
    measured = read_node_power(data) if (Path(data) / NODE_POWER_FILE).is_file() else []
    nodes, left_out = node_power_rows(measured, rows, description)
    order = order_of_pairs([p for p, _ in iterations], [i.time_s for _, i in iterations])
    return SuiteResult(
        suite="published",
        gpu=gpu or ", ".join(sorted({p.plan.cluster.gpu for p in planned})),
        rows=(*scored, *nodes),
        summary=summarise(scored) | node_summary(nodes),
        skipped=(*skipped, *left_out),
        protocol="descriptions as they are; trivial rule: one rate per GPU, data type and source, of these same rows",
        details={
            "order": {"pairs": order.pairs, "correct_percent": order.correct_percent, "wrong": list(order.wrong)},
            "node_power": node_table(nodes),
            "assumptions": {p.row.id: list(p.assumptions) for p in planned if p.assumptions},
        },
    )


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


def _scored(rows: Sequence[PublishedRow], iterations: Sequence[tuple[PlannedRow, Iteration]]) -> list[ScoredRow]:
    known = [pair for pair in zip(rows, rates(rows), strict=True) if pair[1] > 0]
    return [
        ScoredRow(
            _as_row(planned),
            _prediction(iteration),
            family=planned.generation.name,
            groups=groups_of(planned.row),
            baseline=Prediction(time_s=constant_rate_s(planned.row, known)),
        )
        for planned, iteration in iterations
    ]


def groups_of(row: PublishedRow) -> tuple[str, ...]:
    """Sets under which the summary counts a row."""
    return (f"{row.gpu} {row.dtype}", f"source {row.source}")


def _as_row(planned: PlannedRow) -> Row:
    row = planned.row
    configuration: Mapping[str, Any] = {"model": row.model, "gpu": row.gpu, "gpus": row.num_gpus, "source": row.source}
    return Row(row.id, "published", configuration, Measured(time_s=row.measured_step_time_s), row.file, row.line)


def _prediction(iteration: Iteration) -> Prediction:
    return Prediction(
        time_s=iteration.time_s,
        energy_j=iteration.energy_j,
        power_w=iteration.power_w,
        sm_clock_mhz=iteration.clock_mhz,
        time_s_p05=iteration.time_s_p05,
        time_s_p95=iteration.time_s_p95,
        energy_j_p05=iteration.energy_j_p05,
        energy_j_p95=iteration.energy_j_p95,
    )
