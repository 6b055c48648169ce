"""Suites: which rows they read, how these are predicted and scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.calibrate.overlap_rows import OVERLAP_OPS
from joulecast.calibrate.row_operators import COLLECTIVE_KINDS, KERNEL_OPS, operator_of
from joulecast.calibrate.rows import Row, read_rows, recorded_rows
from joulecast.calibrate.unclocked import is_unclocked
from joulecast.errors import DataError, InputError, UnknownNameError
from joulecast.model.catalogue import load_gpu
from joulecast.model.description import GpuDescription
from joulecast.model.operators import Attention, Gemm, Streaming
from joulecast.validate import adapters, folds, overlap
from joulecast.validate.a100_overlap import run_a100_overlap
from joulecast.validate.baselines import baselines
from joulecast.validate.cards import of_card
from joulecast.validate.clock_suites import KINDS as CLOCK_SUITES
from joulecast.validate.clock_suites import run_clock_suite
from joulecast.validate.network import run_network
from joulecast.validate.overlap_choice import overlap_choices
from joulecast.validate.perseus import run_perseus
from joulecast.validate.published import run_published
from joulecast.validate.result import Answer, Prediction, ScoredRow, SuiteResult, Unpredicted
from joulecast.validate.summary import summarise
from joulecast.validate.tile_choice import tile_choices

#: GPU whose description is scored by default.
DEFAULT_GPU = "h200-sxm"
#: Collectives from this size on are counted as large [B].
LARGE_COLLECTIVE_BYTES = 16 * 2**20

Predict = Callable[[GpuDescription, Sequence[Row]], list[Answer]]
Fit = Callable[[Sequence[Row], GpuDescription], GpuDescription]
Rule = Callable[[GpuDescription, Sequence[Row]], list[Prediction]]
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
        A trivial rule that needs the description; by default that of :mod:`joulecast.validate.baselines`.
    choices
        What it costs to choose among the rows by their forecasts.
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
    """Forward, forward and backward, or a whole step."""
    if row.op == "train_step":
        return "single-GPU step"
    return "block forward" if row.configuration.get("direction") == "fwd" else "block forward+backward"


def collective_groups(row: Row) -> tuple[str, ...]:
    """By size and number of GPUs."""
    large = float(row.configuration.get("bytes") or 0) >= LARGE_COLLECTIVE_BYTES
    return (f">= 16 MB, {row.gpus} GPUs", ">= 16 MB") if large else ("< 16 MB",)


def overlap_groups(row: Row) -> tuple[str, ...]:
    """By number of GPUs, and by whether the window is long."""
    return (f"{row.gpus} GPUs", f"{row.gpus} GPUs, windows of {'' if row.window_s >= 1.5 else 'less than '}1.5 s")


def _by_file(row: Row) -> tuple[str, ...]:
    return (f"file {Path(row.file).name}",)


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "kernels",
            frozenset(KERNEL_OPS),
            adapters.predict_kernels,
            kernel_family,
            _by_file,
            fitted=True,
            choices=tile_choices,
        ),
        Suite(
            "collectives",
            frozenset(COLLECTIVE_KINDS),
            adapters.predict_kernels,
            lambda row: "collective",
            collective_groups,
            fitted=True,
        ),
        Suite(
            "blocks",
            frozenset({"block", "train_step"}),
            adapters.predict_blocks,
            block_family,
            lambda row: (f"tensor-parallel {row.configuration.get('tp') or 1}",),
        ),
        Suite(
            "train",
            frozenset({"train_iter"}),
            adapters.predict_iterations,
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
#: Suites whose data have a form of their own: from the data and the name of a description to the result.
OTHER_FORMS: dict[str, Callable[[str | Path, str | None], SuiteResult]] = {
    "perseus": run_perseus,
    "published": run_published,
    "network": run_network,
}
#: Suite of overlapped layers at several clocks; it takes folds and rows to calibrate.
A100_OVERLAP = "a100-overlap"
#: Suite of published training steps; it takes folds and rows to calibrate.
PUBLISHED = "published"
#: Rows of data folders that belong to no suite, or to one that does not exist yet.
OTHER_OPS = frozenset({"kernel_profile"})


def run_suite(
    suite: str,
    data: str | Path,
    gpu: str | None = None,
    folds: int | None = None,
    fit_rows: str | Path | None = None,
    calibrate_rows: int | None = None,
    *,
    leave_out: str | None = None,
    predict: Predict | None = None,
    fit: Fit | None = None,
) -> SuiteResult:
    """Hold predictions against measured rows.

    Parameters
    ----------
    suite
        One of :data:`SUITES`, :data:`OTHER_FORMS` or :data:`CLOCK_SUITES`.
    data
        A JSON-lines file or a folder of them, or a folder in the suite's own form.
    gpu
        Catalogue name or path of the description to score; default ``h200-sxm``.
    folds
        Grouped cross-validation: each fold is predicted by a description fitted without its groups.
    fit_rows
        Fit on these rows first.
    calibrate_rows
        Fit on so many of the rows first, spread evenly, and score the others.
    leave_out
        What is left out in turn; only the suite of published steps takes it.
    predict, fit
        Other functions than the project's own, for tests.

    Raises
    ------
    UnknownNameError
        No such suite.
    DataError
        A broken line of the data.
    InputError
        Options that contradict each other.
    """
    if leave_out is not None and suite != PUBLISHED:
        raise InputError(f"suite {suite!r} does not take it", key="--leave-out", remedy="Leave it out, or use --folds.")
    if suite in CLOCK_SUITES:
        _refuse_fitting(suite, None, fit_rows, calibrate_rows)
        return run_clock_suite(suite, data, gpu, folds)
    if suite == A100_OVERLAP:
        _refuse_fitting(suite, None, fit_rows)
        return run_a100_overlap(data, gpu, folds, calibrate_rows)
    if suite == PUBLISHED:
        _refuse_fitting(suite, None, fit_rows)
        return run_published(data, gpu, folds, calibrate_rows, leave_out)
    if suite in OTHER_FORMS:
        _refuse_fitting(suite, folds, fit_rows, calibrate_rows)
        return OTHER_FORMS[suite](data, gpu)
    chosen = _suite(suite)
    _check_options(chosen, folds, fit_rows, calibrate_rows)
    mine, skipped = select(read_rows(data), chosen, is_folder=Path(data).is_dir())
    if not mine and not skipped:
        raise DataError(
            f"no rows of suite {suite!r}",
            file=str(data),
            remedy=f"It reads rows of op {', '.join(sorted(chosen.ops))}.",
        )
    base = load_gpu(gpu or DEFAULT_GPU)
    mine, of_others = of_card(mine, base)
    skipped = [*skipped, *of_others]
    if not mine and of_others:
        reasons = "; ".join(f"{name}, {reason}" for name, reason in of_others)
        raise DataError(reasons, file=str(data), remedy="Name the card that measured them with --gpu.")
    predict, fit = predict or chosen.predict, fit or chosen.fit
    if folds is not None:
        answers, protocol = _cross_validate(mine, folds, base, predict, fit)
    elif fit_rows is not None:
        training, _ = of_card(read_rows(fit_rows), base)
        answers, protocol = predict(fit(training, base), mine), f"fitted on {fit_rows}"
    elif calibrate_rows is not None:
        mine, answers = _calibrated(mine, calibrate_rows, base, predict, fit)
        protocol = f"fitted on {calibrate_rows} rows of the data, scored on the others"
    else:
        answers, protocol = predict(base, mine), "description as it is"
    return _result(chosen, base, mine, answers, skipped, protocol)


def _suite(name: str) -> Suite:
    if name not in SUITES:
        raise UnknownNameError(
            "suite", name, [*SUITES, *OTHER_FORMS, *CLOCK_SUITES, A100_OVERLAP, PUBLISHED], key="SUITE"
        )
    return SUITES[name]


def _refuse_fitting(name: str, *options: object) -> None:
    names = ("--folds", "--fit-rows", "--calibrate-rows")[: len(options)]
    used = [o for o, v in zip(names, options, strict=True) if v is not None]
    if used:
        raise InputError(f"suite {name!r} chooses by itself what it fits on", key=used[0], remedy="Leave it out.")


def _check_options(suite: Suite, folds: int | None, fit_rows: str | Path | None, calibrate_rows: int | None) -> None:
    given = {"--folds": folds, "--fit-rows": fit_rows, "--calibrate-rows": calibrate_rows}
    used = [option for option, value in given.items() if value is not None]
    if len(used) > 1:
        raise InputError(f"{' and '.join(used)} exclude each other", key=used[0], remedy="Give one of them.")
    if used and used[0] != "--fit-rows" and not suite.fitted:
        raise InputError(
            f"rows of suite {suite.name!r} only validate and are never fitted to",
            key=used[0],
            remedy="Leave the option out, or fit on other rows with --fit-rows.",
        )


def select(rows: Sequence[Row], suite: Suite, *, is_folder: bool) -> tuple[list[Row], list[tuple[str, str]]]:
    """Rows of a suite, and the others with the reason why they are left out.

    Rows of other suites that stand in the same folder are not this suite's, and are not listed.
    """
    mine, skipped = [], []
    known = OTHER_OPS.union(*(s.ops for s in SUITES.values()))
    for row in rows:
        if row.op in suite.ops or (not is_folder and row.op in suite.more_ops):
            mine.append(row)
        elif row.op not in known:
            skipped.append((row.name, f"unknown op {row.op!r}" if row.op else "the row has no op"))
        elif not is_folder:
            skipped.append((row.name, f"op {row.op!r} is not of suite {suite.name!r}"))
    return mine, skipped


def _cross_validate(
    rows: Sequence[Row], count: int, base: GpuDescription, predict: Predict, fit: Fit
) -> tuple[list[Answer], str]:
    # The shipped rows are an H200's; they say nothing of another card's published times.
    parts = folds.split(rows, [] if is_unclocked(rows) else recorded_rows(), count)
    answers: list[Answer] = [Unpredicted("in no fold")] * len(rows)
    for training, positions in parts:
        description = fit(training, base)
        for position, answer in zip(positions, predict(description, [rows[i] for i in positions]), strict=True):
            answers[position] = answer
    groups = len(folds.fold_of_groups(rows, count))
    return answers, f"{len(parts)} folds over {groups} groups of near-duplicates"


def _calibrated(
    rows: Sequence[Row], count: int, base: GpuDescription, predict: Predict, fit: Fit
) -> tuple[list[Row], list[Answer]]:
    chosen = set(folds.evenly_chosen(rows, count))
    description = fit([rows[i] for i in sorted(chosen)], base)
    rest = [row for i, row in enumerate(rows) if i not in chosen]
    return rest, predict(description, rest)


def _result(
    suite: Suite,
    gpu: GpuDescription,
    rows: Sequence[Row],
    answers: Sequence[Answer],
    skipped: Sequence[tuple[str, str]],
    protocol: str,
) -> SuiteResult:
    pairs = [(row, a) for row, a in zip(rows, answers, strict=True) if isinstance(a, Prediction)]
    left_out = [(row.name, a.reason) for row, a in zip(rows, answers, strict=True) if isinstance(a, Unpredicted)]
    families = [suite.family(row) for row, _ in pairs]
    kept = [row for row, _ in pairs]
    trivial = suite.rule(gpu, kept) if suite.rule else baselines(kept, families)
    scored = [
        ScoredRow(row, answer, family, suite.groups(row), operator_of(row.configuration).exception, rule)
        for (row, answer), family, rule in zip(pairs, families, trivial, strict=True)
    ]
    return SuiteResult(
        suite=suite.name,
        gpu=gpu.name,
        rows=tuple(scored),
        summary=summarise(scored),
        skipped=(*skipped, *left_out),
        protocol=protocol,
        named_exceptions=tuple((row.row.name, row.exception) for row in scored if row.exception),
        details={"choices": suite.choices(gpu, scored)} if suite.choices else {},
    )
