"""Which suites there are: what rows they read, how these are predicted, grouped and fitted to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from joulecast.calibrate.meter.metered_row import OP as METERED
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import COLLECTIVE_OPS, KERNEL_OPS, operator_of
from joulecast.calibrate.rows.overlap import OVERLAP_OPS
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.kernels.operators import Attention, Gemm, Streaming
from joulecast.validate import adapters
from joulecast.validate.choices import overlap
from joulecast.validate.choices.a100_overlap import run_a100_overlap
from joulecast.validate.choices.overlap_choice import overlap_choices
from joulecast.validate.choices.tile_choice import tile_choices
from joulecast.validate.left_out.clock_suites import KINDS as CLOCK_SUITES
from joulecast.validate.left_out.clock_suites import run_clock_suite
from joulecast.validate.left_out.kernel_floor import from_all_others
from joulecast.validate.metered import run_metered
from joulecast.validate.published.fronts import run_fronts
from joulecast.validate.published.network import run_network
from joulecast.validate.published.perseus import run_perseus
from joulecast.validate.published.step_times import run_published
from joulecast.validate.scoring.result import Answer, Prediction, ScoredRow, SuiteResult

#: Collectives from this size on are counted as large [B].
LARGE_COLLECTIVE_BYTES = 16 * 2**20

Predict = Callable[[GpuDescription, Sequence[Row]], list[Answer]]
Fit = Callable[[Sequence[Row], GpuDescription], GpuDescription]
Rule = Callable[[GpuDescription, Sequence[Row]], list[Prediction]]
Others = Callable[[Sequence[ScoredRow]], list[Prediction]]
Choices = Callable[[GpuDescription, Sequence[ScoredRow]], list[dict[str, Any]]]


@dataclass(frozen=True)
class Suite:
    """One kind of validation.

    Attributes
    ----------
    ops
        Kinds of rows that it takes from a folder; from a single file also ``more_ops``.
    predict
        Predicts all rows with one description.
    family, groups
        Operator family of a row, and further sets under which the summary counts it.
    fitted
        Whether rows of this suite may be fitted to; the others only validate.
    fit
        From rows and a description to the description that is scored; by default a fit of kernels and collectives.
    rule
        A trivial rule that needs the description; by default that of :mod:`joulecast.validate.scoring.baselines`.
    choices
        What it costs to choose among the rows by their forecasts.
    others
        Each row from all others, or an empty list where that says nothing.
    """

    name: str
    ops: frozenset[str]
    predict: Predict
    family: Callable[[Row], str]
    groups: Callable[[Row], tuple[str, ...]]
    fitted: bool = False
    more_ops: frozenset[str] = frozenset()
    fit: Fit = adapters.fit
    rule: Rule | None = None
    choices: Choices | None = None
    others: Others | None = None


def kernel_family(row: Row) -> str:
    """Operator family of a single kernel."""
    if row.op.startswith("tile_"):
        return "tile"
    operators = operator_of(row.configuration).operators
    first = operators[0] if operators else None
    if isinstance(first, Gemm):
        return "gemm" if row.op == "gemm" else "sequence"
    if isinstance(first, Attention):
        return "attention"
    return "streaming" if isinstance(first, Streaming) and row.op != "interleave" else "sequence"


def block_family(row: Row) -> str:
    """Forward, forward and backward, or a whole step, of training or of decoding."""
    if row.op != "block":
        return {"train_step": "single-GPU step", "decode": "step of decoding"}[row.op]
    return "block forward" if row.configuration.get("direction") == "fwd" else "block forward+backward"


def collective_groups(row: Row) -> tuple[str, ...]:
    """By size and number of GPUs."""
    large = float(row.configuration.get("bytes") or 0) >= LARGE_COLLECTIVE_BYTES
    return (f">= 16 MB, {row.gpus} GPUs", ">= 16 MB") if large else ("< 16 MB",)


def overlap_groups(row: Row) -> tuple[str, ...]:
    """By number of GPUs, and by whether the window is long."""
    return (f"{row.gpus} GPUs", f"{row.gpus} GPUs, windows of {'' if row.window_s >= 1.5 else 'less than '}1.5 s")


def kernel_groups(row: Row) -> tuple[str, ...]:
    """By file, and the products that are launched one by one on several streams, as those of experts are."""
    file = f"file {Path(row.file).name}"
    return (file, "gemm, one by one") if row.configuration.get("separate") else (file,)


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "kernels",
            KERNEL_OPS,
            adapters.predict_kernels,
            kernel_family,
            kernel_groups,
            fitted=True,
            choices=tile_choices,
            others=from_all_others,
        ),
        Suite(
            "collectives",
            COLLECTIVE_OPS,
            adapters.predict_kernels,
            lambda row: "collective",
            collective_groups,
            fitted=True,
        ),
        Suite(
            "blocks",
            frozenset({"block", "decode", "train_step"}),
            adapters.predict_training,
            block_family,
            lambda row: (f"tensor-parallel {row.configuration.get('tp') or 1}",),
        ),
        Suite(
            "train",
            frozenset({"train_iter"}),
            adapters.predict_training,
            lambda row: "iteration",
            lambda row: (),
            more_ops=frozenset({"train_step"}),
        ),
        Suite(
            "overlap",
            frozenset(OVERLAP_OPS),
            overlap.predict_overlap,
            lambda row: str(row.configuration.get("mode")),
            overlap_groups,
            fit=overlap.fit_contention,
            rule=overlap.rule_of_thumb,
            choices=overlap_choices,
        ),
    )
}


@dataclass(frozen=True)
class OtherForm:
    """A suite whose data have a form of their own.

    Attributes
    ----------
    run
        From the data, the name of a description and the options to the result.
    options
        Those of ``folds``, ``fit_rows``, ``calibrate_rows`` and ``leave_out`` that it takes.
    """

    run: Callable[..., SuiteResult]
    options: tuple[str, ...] = ()


OTHER_FORMS = {
    "plans": OtherForm(run_metered),
    "perseus": OtherForm(run_perseus),
    "fronts": OtherForm(run_fronts),
    "network": OtherForm(run_network),
    "published": OtherForm(run_published, ("folds", "calibrate_rows", "leave_out")),
    "a100-overlap": OtherForm(run_a100_overlap, ("folds", "calibrate_rows")),
    **{name: OtherForm(partial(run_clock_suite, name), ("folds",)) for name in CLOCK_SUITES},
}
#: Rows of data folders that belong to no suite, or to one of another form.
OTHER_OPS = frozenset({"kernel_profile", METERED})
