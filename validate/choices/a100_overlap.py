"""``validate a100-overlap``: an attention layer with an all-reduce beside part of it, on two A100s.

Rows at the default clock are forecast twice: whole windows left out, dealt into folds, and all rows of many SMs left
out. Rows of every other clock are forecast by the layer as fitted at the default clock and a few rows of that clock,
chosen by their configurations. Beside every forecast stands a rule of thumb (the longer of both streams, or their sum)
and the nearest configurations that were known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.arrays import Bool
from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.calibrate.studies.a100_overlap_fit import (
    LayerFit,
    Readings,
    choose_rows,
    fit_clock,
    fit_layer,
    forecast_layer,
)
from joulecast.calibrate.studies.a100_overlap_physics import GPUS, Configurations, forecast, undisturbed
from joulecast.calibrate.studies.a100_overlap_rows import LayerRow, read_layers
from joulecast.errors import DataError, InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.uncertainty import NINETY_PERCENT
from joulecast.validate.choices.a100_overlap_choice import (
    Choice,
    averaged_twins,
    by_neighbours,
    choices,
    telling_window,
)
from joulecast.validate.scoring.result import Prediction, ScoredRow, SuiteResult
from joulecast.validate.scoring.summary import summarise_beside

#: The card is not recorded beyond its name; of those with NVLink this one has the power limit that the rows allow.
DEFAULT_CARD = "a100-sxm-40gb"
#: Parts into which the windows are dealt.
DEFAULT_FOLDS = 5
#: Rows with more SMs than this are left out together.
MOST_SMS = 12
#: Rows of a further clock that are read before the others of that clock are forecast.
DEFAULT_CALIBRATE_ROWS = 3
#: The two ways in which rows at the default clock are left out.
WINDOWS, SMS = "windows left out", f"more than {MOST_SMS} SMs left out"
#: Least rows to fit the layer to.
_LEAST_ROWS = 40


@dataclass(frozen=True)
class _Answered:
    """Rows that were left out together, with forecast, rule of thumb and nearest configuration."""

    rows: Sequence[LayerRow]
    way: str
    forecasts: Sequence[Prediction]
    rule: Sequence[Prediction]
    nearest: Sequence[Prediction]


def run_a100_overlap(
    data: str | Path, gpu: str | None = None, folds: int | None = None, calibrate_rows: int | None = None
) -> SuiteResult:
    """Forecast left-out rows of a folder.

    Parameters
    ----------
    data
        A folder as :func:`~joulecast.calibrate.studies.a100_overlap_rows.read_layers` reads it.
    gpu
        Catalogue name or path of the card; default :data:`DEFAULT_CARD`.
    folds
        Parts into which the windows are dealt; as many as there are windows leave out each alone.
    calibrate_rows
        Rows of each further clock that are read.

    Raises
    ------
    DataError
        A broken file, or too few rows to fit.
    InputError
        Options that have no meaning here.
    """
    model = gpu_model(load_gpu(gpu or DEFAULT_CARD))
    rows = read_layers(data, model.device)
    _refuse_other_card(rows, model)
    default = [row for row in rows if row.clock_mhz is None]
    count = DEFAULT_FOLDS if folds is None else folds
    known = DEFAULT_CALIBRATE_ROWS if calibrate_rows is None else calibrate_rows
    if count < 2 or known < 1:
        option, least = ("--folds", 2) if count < 2 else ("--calibrate-rows", 1)
        raise InputError("too few", key=option, remedy=f"Use at least {least}.")
    windows = [_left_out(default, out, WINDOWS, model, str(data)) for out in _deal(default, count)]
    many = np.array([row.sms > MOST_SMS for row in default])
    sms = [_left_out(default, many, SMS, model, str(data))] if many.any() and not many.all() else []
    others, read = _other_clocks(rows, default, known, model, str(data))
    answered = [*windows, *sms, *others]
    scored = [row for part in answered for row in _scored(part)]
    return SuiteResult(
        suite="a100-overlap",
        gpu=model.name,
        rows=tuple(scored),
        summary=summarise_beside(scored, {"nearest": [one for part in answered for one in part.nearest]}),
        skipped=tuple((row.name, "read to calibrate its clock") for row in read),
        protocol=f"default clock: windows dealt into {min(count, len({r.window for r in default}))} folds, then "
        f"rows of more than {MOST_SMS} SMs left out; of each further clock up to {known} rows were read",
        details={"choices": _choices(windows, others)},
    )


def _refuse_other_card(rows: Sequence[LayerRow], gpu: GpuModel) -> None:
    """Rows that draw more than a card may are of another card."""
    limit = gpu.device["power_limit_w"]
    for row in rows:
        power = 0.0 if row.time_s is None or row.energy_j is None else row.energy_j / row.time_s / GPUS
        if power > 1.1 * limit:
            raise InputError(
                f"{power:.0f} W for each GPU is beyond the {limit:.0f} W of {gpu.name}",
                file=row.file,
                line=row.line,
                remedy="Name the card that was measured with --gpu.",
            )


def _deal(rows: Sequence[LayerRow], folds: int) -> list[Bool]:
    """Which rows each fold leaves out; windows are dealt in order."""
    windows = sorted({row.window for row in rows})
    return [
        np.array([windows.index(row.window) % folds == fold for row in rows])
        for fold in range(min(folds, len(windows)))
    ]


def _left_out(rows: Sequence[LayerRow], out: Bool, way: str, gpu: GpuModel, data: str) -> _Answered:
    training, asked = list(compress(rows, ~out)), list(compress(rows, out))
    fit = _fit(training, gpu, data)
    return _Answered(asked, way, _forecasts(fit, asked), _rule(fit, asked), [_nearest(r, training) for r in asked])


def _other_clocks(
    rows: Sequence[LayerRow], default: Sequence[LayerRow], count: int, gpu: GpuModel, data: str
) -> tuple[list[_Answered], list[LayerRow]]:
    """Forecasts at every further clock, and the rows that were read for them."""
    clocks = sorted({row.clock_mhz for row in rows if row.clock_mhz is not None})
    answered: list[_Answered] = []
    read: list[LayerRow] = []
    layer = _fit(default, gpu, data) if clocks else None
    unknown = {row.key: replace(row, time_s=None, energy_j=None) for row in rows}
    same = unknown | {row.key: row for row in default}
    for clock in clocks:
        own = [row for row in rows if row.clock_mhz == clock]
        readable = [row for row in own if _is_measured(row)]
        if layer is None or not readable:
            raise DataError("no measured row", file=own[0].file, remedy="Leave the file out.")
        chosen = [readable[i] for i in choose_rows(layer, _configurations(readable, gpu), count)]
        before = _readings([same[row.key] for row in chosen])
        fit = fit_clock(layer, _configurations(chosen, gpu), _readings(chosen), before)
        rest = [row for row in own if row not in chosen]
        forecasts = _forecasts(fit, rest, _readings([same[row.key] for row in rest]))
        scale = _scaled(chosen, default)
        answered.append(_Answered(rest, own[0].clock_name, forecasts, _rule(fit, rest), [scale(r) for r in rest]))
        read += chosen
    return answered, read


def _fit(rows: Sequence[LayerRow], gpu: GpuModel, data: str) -> LayerFit:
    usable = [row for row in rows if _is_measured(row)]
    if len(usable) < _LEAST_ROWS:
        raise DataError(
            f"only {len(usable)} measured rows are left to fit the layer to",
            file=data,
            remedy=f"It takes {_LEAST_ROWS} at the default clock, or fewer rows left out at once (--folds).",
        )
    return fit_layer(_configurations(usable, gpu), _readings(usable), gpu)


def _is_measured(row: LayerRow) -> bool:
    return row.time_s is not None and row.energy_j is not None


def _configurations(rows: Sequence[LayerRow], gpu: GpuModel) -> Configurations:
    """What was set, without anything that was measured."""
    start, end, sms, threads = np.array([row.key for row in rows], dtype=np.float64).reshape(-1, 4).T
    clock = np.array([gpu.max_clock_mhz if row.clock_mhz is None else row.clock_mhz for row in rows])
    return Configurations(start, end, sms, threads, clock)


def _readings(rows: Sequence[LayerRow]) -> Readings:
    time, energy = (np.array([getattr(row, k) for row in rows], dtype=np.float64) for k in ("time_s", "energy_j"))
    return Readings(time, energy)


def _forecasts(fit: LayerFit, rows: Sequence[LayerRow], before: Readings | None = None) -> list[Prediction]:
    if not rows:
        return []
    found = forecast_layer(fit, _configurations(rows, fit.gpu), before)
    factors = np.exp(NINETY_PERCENT * np.stack([found.time_sd, found.energy_sd, found.power_sd], axis=1))
    return [
        Prediction.within(time, energy, energy / time, wide, clock)
        for time, energy, clock, wide in zip(
            found.time_s.tolist(), found.energy_j.tolist(), found.clock_mhz.tolist(), factors.tolist(), strict=True
        )
    ]


def _rule(fit: LayerFit, rows: Sequence[LayerRow]) -> list[Prediction]:
    """The longer of window and communication, or their sum; nothing disturbs anything."""
    if not rows:
        return []
    time, energy, clock = forecast(undisturbed(fit.values), _configurations(rows, fit.gpu), fit.gpu)
    return [Prediction(*line) for line in np.stack((time, energy, energy / time, clock), axis=1).tolist()]


def _nearest(row: LayerRow, known: Sequence[LayerRow]) -> Prediction:
    """Mean of the known rows at the least distance: operators by which the window differs, SMs, blocks halved."""
    usable = [other for other in known if _is_measured(other)]
    columns = np.array([other.key for other in usable], dtype=np.float64).T
    away = np.abs(columns[:2] - np.array(row.window)[:, None]).sum(axis=0) + np.abs(columns[2] - row.sms)
    away += np.abs(np.log2(columns[3] / row.threads))
    closest = [usable[i] for i in np.flatnonzero(away <= away.min() + 1e-9)]
    mean = _readings(closest)
    return Prediction.of_work(float(mean.time_s.mean()), float(mean.energy_j.mean()))


def _scaled(read: Sequence[LayerRow], default: Sequence[LayerRow]) -> Callable[[LayerRow], Prediction]:
    """The same configuration at the default clock, times the mean ratio of the rows that were read."""
    known = {row.key: row for row in default if _is_measured(row)}
    pairs = [(row, known[row.key]) for row in read if row.key in known]
    here, there = _readings([a for a, _ in pairs]), _readings([b for _, b in pairs])
    of_time, of_energy = (
        (float(np.mean(here.time_s / there.time_s)), float(np.mean(here.energy_j / there.energy_j)))
        if pairs
        else (1.0, 1.0)
    )

    def answer(row: LayerRow) -> Prediction:
        same = known.get(row.key)
        if same is None or same.time_s is None or same.energy_j is None:
            return Prediction()
        return Prediction.of_work(same.time_s * of_time, same.energy_j * of_energy)

    return answer


def _scored(part: _Answered) -> list[ScoredRow]:
    scored = []
    for row, answer, rule in zip(part.rows, part.forecasts, part.rule, strict=True):
        power = None if row.time_s is None or row.energy_j is None else row.energy_j / row.time_s
        configuration = {
            "overlap_start": row.start,
            "overlap_end": row.end,
            "comm_sm_number": row.sms,
            "comm_block_size": row.threads,
            "clock_mhz": row.clock_mhz,
            "gpus": GPUS,
        }
        measured = Measured(time_s=row.time_s, energy_j=row.energy_j, power_w=power)
        entry = Row(f"{row.name}, {part.way}", "attention_overlap", configuration, measured, row.file, row.line)
        window = "no window" if row.start < 0 else f"window {row.start}-{row.end}"
        groups = (f"{part.way}: {window}",)
        scored.append(ScoredRow(entry, answer, part.way, groups, baseline=rule))
    return scored


def _choices(windows: Sequence[_Answered], others: Sequence[_Answered]) -> list[dict[str, Any]]:
    """What choosing the least energy at every time limit costs, by the forecast and by the trivial rules."""
    lines = []
    for name, parts in (("default clock", windows), *((p.way, [p]) for p in others)):
        rows = [row for part in parts for row in part.rows]
        sources = {
            "forecast": [one for part in parts for one in part.forecasts],
            "trivial rule": [one for part in parts for one in part.rule],
            "nearest setting": [one for part in parts for one in part.nearest],
            "measured neighbours": by_neighbours(rows),
        }
        for source, answers in sources.items():
            found: Choice | None = choices(rows, answers)
            if found is not None:
                lines.append({"rows of": name, "chosen by": source, **found.to_dict()})
        if (least := telling_window(rows, sources["forecast"])) is not None:
            (start, end), found = least
            lines.append({"rows of": f"{name}, but window {start}-{end}", "chosen by": "forecast", **found.to_dict()})
        averaged, twins = averaged_twins(rows)
        if twins and (mean := choices(averaged, sources["forecast"])) is not None:
            words = ", ".join(f"{a}-{b} with {c}-{d}" for (a, b), (c, d) in twins)
            lines.append({"rows of": f"{name}, {words} averaged", "chosen by": "forecast", **mean.to_dict()})
    return lines
