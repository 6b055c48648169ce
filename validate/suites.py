"""Runs a suite: reads its rows, predicts and scores them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from joulecast.calibrate.fit.unclocked import is_unclocked
from joulecast.calibrate.rows.measured import Row, of_card, read_rows, recorded_rows
from joulecast.calibrate.rows.operators import group_key
from joulecast.calibrate.sessions.duration import clock
from joulecast.errors import DataError, InputError, UnknownNameError, counted
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.description import GpuDescription
from joulecast.validate.registry import OTHER_FORMS, OTHER_OPS, SUITES, Fit, Predict, Suite
from joulecast.validate.scoring import folds
from joulecast.validate.scoring.baselines import baselines
from joulecast.validate.scoring.result import Answer, Prediction, ScoredRow, SuiteResult, Unpredicted, unpredicted
from joulecast.validate.scoring.summary import summarise_beside

#: Fits that take longer are told of before they are over [s].
LONG_S = 60.0
#: GPU whose description is scored by default.
DEFAULT_GPU = "h200-sxm"


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
    say: Callable[[str], None] = lambda line: None,
) -> SuiteResult:
    """Hold predictions against measured rows.

    Parameters
    ----------
    suite
        One of :data:`SUITES` or :data:`OTHER_FORMS`.
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
    say
        Is told how long fits will take, where that is long.

    Raises
    ------
    UnknownNameError
        No such suite.
    DataError
        A broken line of the data.
    InputError
        Options that contradict each other.
    """
    options = {"folds": folds, "fit_rows": fit_rows, "calibrate_rows": calibrate_rows, "leave_out": leave_out}
    if suite in OTHER_FORMS:
        return _run_other(suite, data, gpu, options)
    chosen = _suite(suite)
    _check_options(chosen, options)
    base = load_gpu(gpu or DEFAULT_GPU)
    mine, skipped = _rows_for(chosen, data, base)
    predict, fit = predict or chosen.predict, fit or chosen.fit
    if folds is not None:
        answers, protocol = _cross_validate(mine, folds, base, predict, fit, say)
    elif fit_rows is not None:
        training, _ = _of_card(read_rows(fit_rows), base)
        answers, protocol = predict(fit(training, base), mine), f"fitted on {fit_rows}"
    elif calibrate_rows is not None:
        mine, answers, protocol = _calibrated(mine, calibrate_rows, base, predict, fit)
    else:
        answers, protocol = predict(base, mine), "description as it is"
    return _result(chosen, base, mine, answers, skipped, protocol)


def _suite(name: str) -> Suite:
    if name not in SUITES:
        raise UnknownNameError("suite", name, [*SUITES, *OTHER_FORMS], key="SUITE")
    return SUITES[name]


def _run_other(name: str, data: str | Path, gpu: str | None, options: Mapping[str, object]) -> SuiteResult:
    """A suite with a form of its own, which fits as it says and takes no other options."""
    suite = OTHER_FORMS[name]
    unknown = [option for option in _given(options) if option not in suite.options]
    if "leave_out" in unknown:
        raise _not_left_out(name)
    if unknown:
        raise InputError(
            f"suite {name!r} chooses by itself what it fits on", key=_flag(unknown[0]), remedy="Leave it out."
        )
    return suite.run(data, gpu, **{option: options[option] for option in suite.options})


def _not_left_out(suite: str) -> InputError:
    return InputError(f"suite {suite!r} does not take it", key="--leave-out", remedy="Leave it out, or use --folds.")


def _given(options: Mapping[str, object]) -> list[str]:
    return [option for option, value in options.items() if value is not None]


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _check_options(suite: Suite, options: Mapping[str, object]) -> None:
    if options["leave_out"] is not None:
        raise _not_left_out(suite.name)
    used = [_flag(option) for option in _given(options)]
    if len(used) > 1:
        raise InputError(f"{' and '.join(used)} exclude each other", key=used[0], remedy="Give one of them.")
    if used and used[0] != "--fit-rows" and not suite.fitted:
        raise InputError(
            f"rows of suite {suite.name!r} only validate and are never fitted to",
            key=used[0],
            remedy="Leave the option out, or fit on other rows with --fit-rows.",
        )


def _rows_for(suite: Suite, data: str | Path, base: GpuDescription) -> tuple[list[Row], list[tuple[str, str]]]:
    """Rows of a suite that the card measured, and what is left out with the reason.

    Raises
    ------
    DataError
        There are none.
    """
    mine, skipped = select(read_rows(data), suite, is_folder=Path(data).is_dir())
    if not mine and not skipped:
        raise DataError(
            f"no rows of suite {suite.name!r}",
            file=str(data),
            remedy=f"It reads rows of op {', '.join(sorted(suite.ops))}.",
        )
    mine, of_others = _of_card(mine, base)
    if not mine and of_others:
        reasons = "; ".join(f"{name}, {reason}" for name, reason in of_others)
        raise DataError(reasons, file=str(data), remedy="Name the card that measured them with --gpu.")
    return mine, [*skipped, *of_others]


def _of_card(rows: Sequence[Row], gpu: GpuDescription) -> tuple[list[Row], list[tuple[str, str]]]:
    """Rows that this card (or nobody says which) measured; the others counted by file and card, with the reason."""
    if not any("products" in row.configuration for row in rows):
        return list(rows), []
    mine = of_card(rows, gpu.device)
    kept = {id(row) for row in mine}
    others = Counter(
        (Path(row.file).name, str(row.configuration["card_label"]), " or ".join(row.configuration["products"]))
        for row in rows
        if id(row) not in kept
    )
    product = gpu.device["product"].value if "product" in gpu.device else gpu.name
    return mine, [
        (f"{file}: {count} rows of {label}", f"measured on {products}, not on {product}")
        for (file, label, products), count in others.items()
    ]


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
    rows: Sequence[Row], count: int, base: GpuDescription, predict: Predict, fit: Fit, say: Callable[[str], None]
) -> tuple[list[Answer], str]:
    # The shipped rows are an H200's; they say nothing of another card's published times.
    parts = folds.split(rows, [] if is_unclocked(rows) else recorded_rows(), count)
    answers: list[Answer] = [Unpredicted("in no fold")] * len(rows)
    begin = time.monotonic()
    for place, (training, positions) in enumerate(parts):
        description = fit(training, base)
        if place == 0 and (whole_s := len(parts) * (time.monotonic() - begin)) > LONG_S:
            say(f"{len(parts)} fits, one for each fold, take some {clock(whole_s)}; fewer --folds take less")
        for position, answer in zip(positions, predict(description, [rows[i] for i in positions]), strict=True):
            answers[position] = answer
    groups = len(folds.fold_of_groups(rows, count))
    return answers, f"{counted(len(parts), 'fold')} over {counted(groups, 'group')} of near-duplicates"


def _calibrated(
    rows: Sequence[Row], count: int, base: GpuDescription, predict: Predict, fit: Fit
) -> tuple[list[Row], list[Answer], str]:
    chosen = set(folds.evenly_chosen(rows, count))
    training = [rows[i] for i in sorted(chosen)]
    rest = [row for i, row in enumerate(rows) if i not in chosen]
    groups = {group_key(row.configuration) for row in training}
    alike = len(rest) - len(folds.without_groups(rest, groups))
    protocol = f"fitted on {count} rows of the data, scored on the others, {alike} of them near-duplicates of those"
    return rest, predict(fit(training, base), rest), protocol


def _result(
    suite: Suite,
    gpu: GpuDescription,
    rows: Sequence[Row],
    answers: Sequence[Answer],
    skipped: Sequence[tuple[str, str]],
    protocol: str,
) -> SuiteResult:
    pairs = [(row, a) for row, a in zip(rows, answers, strict=True) if isinstance(a, Prediction)]
    families = [suite.family(row) for row, _ in pairs]
    kept = [row for row, _ in pairs]
    trivial = suite.rule(gpu, kept) if suite.rule else baselines(kept, families)
    scored = [
        ScoredRow(row, answer, family, suite.groups(row), baseline=rule)
        for (row, answer), family, rule in zip(pairs, families, trivial, strict=True)
    ]
    others = suite.others(scored) if suite.others else []
    return SuiteResult(
        suite=suite.name,
        gpu=gpu.name,
        rows=tuple(scored),
        summary=summarise_beside(scored, {"others": others} if others else {}),
        skipped=(*skipped, *unpredicted(rows, answers)),
        protocol=protocol,
        details={"choices": suite.choices(gpu, scored)} if suite.choices else {},
    )
