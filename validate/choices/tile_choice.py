"""Choosing among tiles of one kernel by forecast: what it costs, and how well the order agrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.description import GpuDescription
from joulecast.validate.scoring.regret import CHOSEN_BY, by_energy, forecast, measured, problems, regret
from joulecast.validate.scoring.result import ScoredRow

#: What rows of one kernel share, whatever their tile: its shape, and how it was measured (cards differ by more than
#: tiles do).
SHAPE = (
    *("op", "dtype", "M", "N", "K", "rows", "cols", "hidden", "B", "Hq", "S", "D", "causal", "direction", "bytes"),
    *("settle_s", "target_window_s"),
)
#: Tiles that differ by less are not told apart by one short window: times and energies of repeats [1].
NOISE = 0.03
#: Forecasts of energy that differ by less are equal: times of the first list's row minima that take as long by the
#: forecast, within 2 %, scatter by 0.28 % about it, and those of two of them differ by that times the root of two [1].
EQUAL = 4e-3


def tile_choices(gpu: GpuDescription, rows: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """For every kernel with at least three tiles: regret of the tile chosen by forecast, and agreement of the order.

    ``order`` is Spearman's rank correlation of all tiles, ``pairs_in_order_percent`` the share of pairs in the right
    order among those that differ by more than :data:`NOISE`.
    """
    lines = []
    for options in problems(rows, _kernel):
        for quantity, word in CHOSEN_BY.items():
            found, said = measured(options, quantity), forecast(options, quantity)
            known = np.isfinite(found) & np.isfinite(said)
            if known.sum() < 3:
                continue
            said, found = said[known], found[known]
            right, pairs = pairs_in_order(said, found)
            by = by_energy(said, forecast(options, "sm_clock_mhz")[known], EQUAL) if quantity == "energy_j" else said
            lines.append(
                {
                    "kernel": _name(options[0]),
                    "tiles": int(known.sum()),
                    "quantity": word,
                    "regret_percent": round(100.0 * regret(by, found), 3),
                    "order": round(rank_correlation(said, found), 3),
                    "pairs_in_order_percent": round(100.0 * right / pairs, 1) if pairs else None,
                    "pairs": pairs,
                }
            )
    return lines


def rank_correlation(a: Array, b: Array) -> float:
    """Spearman's rank correlation; equal values share their mean rank.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
    0.5
    """
    x, y = _ranks(a), _ranks(b)
    spread = x.std() * y.std()
    return float(np.mean((x - x.mean()) * (y - y.mean())) / spread) if spread else 0.0


def _ranks(values: Array) -> Array:
    below = (values[:, None] > values[None, :]).sum(axis=1)
    equal = (values[:, None] == values[None, :]).sum(axis=1)
    return np.asarray(below + (equal - 1) / 2.0, dtype=np.float64)


def pairs_in_order(said: Array, found: Array) -> tuple[int, int]:
    """Pairs in the right order, among all whose measured values differ by more than :data:`NOISE`."""
    a, b = np.triu_indices(len(found), 1)
    apart = np.abs(np.log(found[a] / found[b])) > NOISE
    right = np.sign(said[a] - said[b]) == np.sign(found[a] - found[b])
    return int((right & apart).sum()), int(apart.sum())


def _kernel(row: ScoredRow) -> tuple[object, ...] | None:
    if not row.row.op.startswith("tile_"):
        return None
    return (*(row.row.configuration.get(key) for key in SHAPE), row.row.file)


def _name(row: ScoredRow) -> str:
    sizes = [row.row.configuration.get(key) for key in ("M", "N", "K", "rows", "cols", "hidden", "B", "Hq", "S", "D")]
    op = row.row.op + " backward" * (row.row.configuration.get("direction") == "bwd")
    return f"{op} {' x '.join(str(size) for size in sizes if size)}".strip()
