"""Training loops that users have metered, each held against the forecast of the plan that its row carries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.calibrate.meter.metered_row import PARTIAL, check_row, joined
from joulecast.calibrate.rows.measured import Row, read_rows, row_of
from joulecast.errors import DataError, InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.description import GpuDescription
from joulecast.validate.scoring.baselines import GEMM_FLOPS_PER_S, GEMM_POWER_W, H200, Trivial, baselines_of
from joulecast.validate.scoring.result import Prediction, ScoredRow, SuiteResult, Unpredicted, unpredicted
from joulecast.validate.scoring.summary import summarise

if TYPE_CHECKING:
    from joulecast.simulator.iteration.result import Iteration

FAMILY = "iteration"


def run_metered(data: str | Path, gpu: str | None = None) -> SuiteResult:
    """Forecast every loop from its plan, and score it.

    Parameters
    ----------
    data
        What meters wrote: a JSON-lines file, or a folder of them. Rows of the ranks of a job are joined.
    gpu
        Catalogue name or path of the description in place of the plans' own.

    Raises
    ------
    DataError
        A row that no meter wrote; names file and line.
    """
    description = None if gpu is None else load_gpu(gpu)
    rows = _joined_rows(data)
    answers = [_forecast(row, description) for row in rows]
    pairs = [(row, one) for row, one in zip(rows, answers, strict=True) if not isinstance(one, Unpredicted)]
    kept, forecasts = [row for row, _ in pairs], [one for _, one in pairs]
    rules = baselines_of([_trivial(one) for one in forecasts], kept, [FAMILY] * len(kept))
    scored = tuple(
        ScoredRow(row, Prediction.of_iteration(one), FAMILY, baseline=rule)
        for row, one, rule in zip(kept, forecasts, rules, strict=True)
    )
    return SuiteResult(
        suite="plans",
        gpu=gpu or ", ".join(sorted({one.plan.cluster.gpu for one in forecasts})),
        rows=scored,
        summary=summarise(scored),
        skipped=unpredicted(rows, answers),
        protocol="each row by the plan that it carries",
    )


def _joined_rows(data: str | Path) -> list[Row]:
    rows = read_rows(data)
    if not rows:
        raise DataError("there are no rows", file=str(data), remedy="Give what meter.write() wrote.")
    whole = [{**row.configuration, **row.measured.raw} for row in rows]
    for row, content in zip(rows, whole, strict=True):
        check_row(content, row.file, row.line)
    return [row_of(content, str(data), number) for number, content in enumerate(joined(whole), start=1)]


def _forecast(row: Row, gpu: GpuDescription | None) -> Iteration | Unpredicted:
    """The forecast of a row's plan; nothing measured is read but whether it is whole."""
    from joulecast.calibrate.meter.metered_plan import forecast_of

    configuration = row.configuration
    if row.measured.raw.get(PARTIAL):
        return Unpredicted("the loop ended before a window closed")
    if row.gpus != configuration["plan_gpus"]:
        return Unpredicted(f"the loop ran on {row.gpus} GPUs, its plan has {configuration['plan_gpus']}")
    try:
        return forecast_of(configuration["plan"], str(configuration["plan_file"]), gpu)
    except InputError as error:
        return Unpredicted(str(error))


def _trivial(iteration: Iteration) -> Trivial:
    """Operations of the model on one GPU; the rule's constants are those of an H200, other cards learn their own."""
    amount = iteration.model_flops_per_s * iteration.time_s
    device = iteration.description.device if iteration.description else {}
    if "product" not in device or device["product"].value != H200:
        return Trivial(amount)
    return Trivial(amount, GEMM_FLOPS_PER_S, GEMM_POWER_W)
