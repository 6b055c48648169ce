"""What choosing among tiles costs a forecaster without error, by how far readings of one tile differ."""

import json
import math
from collections import defaultdict

import numpy as np
from paths import ROOT

from joulecast.validate.choices.tile_choice import SHAPE
from joulecast.validate.scoring.regret import regret

LISTS = [ROOT / "validate" / "recorded" / "h200_sxm" / name for name in ("tiles.jsonl", "tiles_third.jsonl")]
#: Row-wise tiles that draw less scatter most; a board's limit holds the energy of those that draw as much [W].
BELOW_LIMIT_W = 690.0
AGAIN = "_again"


def _rows(path):
    return [row for row in map(json.loads, path.read_text().splitlines()) if row.get("energy_j")]


def _wide(row):
    return row["op"] not in ("tile_gemm", "tile_attention") and row["power_w"] < BELOW_LIMIT_W


def _scatter():
    """Standard deviation of the logarithm of one reading of energy, and pairs: of wide ones, and of all others."""
    squares = {True: [], False: []}
    for path in LISTS:
        known = {row["name"]: row for row in _rows(path)}
        for name, again in known.items():
            first = known.get(name.removesuffix(AGAIN))
            if first is not None and name.endswith(AGAIN):
                change = math.log(again["energy_j"] / first["energy_j"])
                squares[_wide(first) and _wide(again)].append(0.5 * change**2)
    return {wide: (math.sqrt(np.mean(values)), len(values)) for wide, values in squares.items()}


def _kernels():
    found = defaultdict(list)
    for path in LISTS:
        for row in _rows(path):
            found[(path.name, *(str(row.get(key)) for key in SHAPE))].append((row["energy_j"], _wide(row)))
    return [np.array(tiles).T for tiles in found.values() if len(tiles) > 2]


def test_scatter_of_readings_alone_can_cost_as_much_as_is_asked():
    """Readings stand for what is true; drawn anew, the tile that is truly the best is not always read as the best."""
    (most, pairs), (least, others) = (_scatter()[wide] for wide in (True, False))
    assert (pairs, others) == (4, 11)
    assert least < 0.006 < 0.010 < most < 0.015
    random = np.random.default_rng(7)
    kernels, worst = _kernels(), []
    for _ in range(1000):
        errors = [np.where(wide > 0.0, most, least) * random.standard_normal(len(true)) for true, wide in kernels]
        worst.append(max(regret(true, true * np.exp(e)) for (true, _), e in zip(kernels, errors, strict=True)))
    low, median, high = np.percentile(worst, [5.0, 50.0, 95.0])
    print(f"readings scatter by {most:.2%} and {least:.2%}, worst regret {low:.1%} to {high:.1%}, median {median:.1%}")
    assert median < 0.03 < high
