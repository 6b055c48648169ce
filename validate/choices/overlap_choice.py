"""Choosing jointly among no overlap, window, launch point and thread blocks: by forecast, or always the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.validate.scoring.regret import CHOSEN_BY, by_energy, forecast, line, measured, problems, regret
from joulecast.validate.scoring.result import ScoredRow

#: What rows of one problem share: the work, and under what it was measured.
SHARED = ("op", "model", "hidden", "ffn", "part", "tp", "B", "S", "gpus", "M", "N", "K", "bytes")
#: Ways to overlap as early as possible.
EARLY = (("overlap", "all"), ("nanobatch", None), ("concurrent", None))
#: The blocks of a widely used constant choice.
ALWAYS = 16
#: Forecasts that differ by less are equal: those of two descriptions of the same cards order such options either way.
EQUAL = 1e-3


def overlap_choices(gpu: GpuDescription, rows: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """Regret of choosing by forecast, of the best constant choice, and of always taking :data:`ALWAYS` blocks.

    A constant choice is either never to overlap or always to overlap as early as possible with a number of blocks;
    where that number was not measured the nearest one stands in. The best one is known only in hindsight. Of equal
    forecasts that of the earliest overlap is taken: where it gains nothing by the forecast, it loses nothing either,
    and leaves the most room for launches that come late. Of equal energies of these that of the highest clock is.
    """
    default = gpu_model(gpu)["collective.default_ctas"]
    found = problems(rows, _problem)
    lines = []
    for quantity, word in CHOSEN_BY.items():
        known = [options for options in found if np.isfinite(measured(options, quantity)).sum() > 1]
        if not known:
            continue
        lines.append(line(quantity, "forecast", [_regret(_said(o, quantity, default), o, quantity) for o in known]))
        constants = {
            c: [_regret(_distance(o, c, default), o, quantity) for o in known]
            for c in sorted({_blocks(row, default) for options in known for row in options})
        }
        best = min(constants, key=lambda c: float(np.mean(constants[c])))
        lines.append(line(quantity, f"best constant of {word}: {_name(best)}", constants[best]))
        if ALWAYS in constants:
            lines.append(line(quantity, f"always {ALWAYS} blocks", constants[ALWAYS]))
    return lines


def _said(options: Sequence[ScoredRow], quantity: str, default: float) -> Array:
    """Forecasts to choose by."""
    overlaps = np.array([_blocks(row, default) > 0.0 for row in options])
    said = np.asarray(forecast(options, quantity) * np.where(overlaps, 1.0, 1.0 + EQUAL))
    return by_energy(said, forecast(options, "sm_clock_mhz"), EQUAL) if quantity == "energy_j" else said


def _regret(said: Array, options: Sequence[ScoredRow], quantity: str) -> float:
    return regret(said, measured(options, quantity))


def _problem(row: ScoredRow) -> tuple[object, ...] | None:
    """Key of a row's problem; ``None`` where nothing is communicated."""
    configuration = row.row.configuration
    if configuration.get("mode") == "compute":
        return None
    windows = row.row.settle_s, row.row.window_s >= 1.5
    return (*(configuration.get(key) for key in SHARED), row.row.file, *windows)


def _blocks(row: ScoredRow, default: float) -> float:
    """Blocks that communicate beside compute, 0 where nothing overlaps."""
    configuration = row.row.configuration
    if (configuration.get("mode"), configuration.get("scope")) not in EARLY:
        return 0.0
    return float(configuration.get("ctas") or default)


def _distance(options: Sequence[ScoredRow], blocks: float, default: float) -> Array:
    """How far each option is from a constant choice; options that overlap later than they could are never it."""
    own = np.array([_blocks(row, default) for row in options])
    sequential = np.array([row.row.configuration.get("mode") == "sequential" for row in options])
    if blocks == 0.0:
        return np.where(sequential, 0.0, 1.0)
    away = np.abs(np.log(np.maximum(own, 1e-9) / blocks))
    return np.where(own > 0.0, away, 1e3)


def _name(blocks: float) -> str:
    return f"{blocks:.0f} blocks" if blocks else "never overlap"
