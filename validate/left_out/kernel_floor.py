"""How well each published time of a kernel follows from all others, by a smoother around the forecasts.

What a time differs by from its forecast, on a logarithmic scale, is taken for a smooth function of the kernel's sizes,
with noise that grows towards short kernels, of which a share w passes only as the board's state does, from row to row
as they were measured (kriging):

    cov(y_i, y_j) = L² + ρ^(words that differ)·exp(−½·Σ (ln s_i − ln s_j)²/ℓ²)
                    + n²·(t_m²/(t_i·t_j))^β·((1 − w)·[i = j] + w·exp(−|i − j|/r))

with s the sizes, words the data type, layout and the like, t_m the median of the forecast times, i the place in the
order of the rows. ℓ, ρ, n, β and w are those that err least, in hindsight; near-duplicates of a row are left out with
it, as cross-validation does. So this is about what the rows can say of each other, and with w > 0 of more than any
forecast can know that is given a kernel alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import product

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.fit.unclocked import is_unclocked
from joulecast.calibrate.rows.operators import group_key, operator_of
from joulecast.model.kernels.operators import Attention, Gemm, Operator, Streaming
from joulecast.validate.left_out.smoother import each_from_the_others
from joulecast.validate.scoring.result import Prediction, ScoredRow

#: Fields of an operator that count as sizes; those of text and truth count as words.
SIZES: dict[type, tuple[str, ...]] = {
    Gemm: ("m", "n", "k", "batch"),
    Attention: ("batch", "heads", "kv_heads", "sequence", "head_dim"),
    Streaming: ("bytes_read", "bytes_written"),
}
#: Candidates for length [ln(size)], what a differing word leaves [1], noise of a median kernel [share of the smooth
#: function's spread] and its growth towards short ones.
LENGTHS, WORDS_LEAVE, NOISES, GROWTHS = (0.4, 0.8, 1.6), (0.4, 0.8), (0.1, 0.3, 1.0), (0.0, 0.3)
#: Candidates for the share of the noise that passes as the board's state does [1], and over how many rows: B200's
#: products are likeliest with 8 to 12 [rows, a factor of 2].
LASTING, LASTS = (0.0, 0.5), 8.0
#: Spread of what all rows differ by alike, which is free [the same share].
LEVEL = 30.0
#: Fewest rows that say anything of each other.
FEWEST_ROWS = 8


def from_all_others(rows: Sequence[ScoredRow]) -> list[Prediction]:
    """Time of each row from all others of its family; an empty list where rows tell clocks, as recorded ones do."""
    if not is_unclocked([row.row for row in rows]):
        return []
    found = [Prediction()] * len(rows)
    for members in _families(rows).values():
        if len(members) < FEWEST_ROWS:
            continue
        places, operators = list(members), list(members.values())
        times = np.array([rows[i].measured.time_s for i in places], dtype=np.float64)
        forecasts = np.array([rows[i].prediction.time_s for i in places], dtype=np.float64)
        keys = [group_key(rows[i].row.configuration) for i in places]
        apart = each_from_the_others(np.log(times / forecasts), _covariances(operators, forecasts, places), keys)
        for i, time_s in zip(places, (forecasts * np.exp(apart)).tolist(), strict=True):
            found[i] = Prediction(time_s=time_s)
    return found


def _families(rows: Sequence[ScoredRow]) -> dict[tuple[str, type], dict[int, Operator]]:
    """Kernels of the rows that can say each other by their positions, by family and kind of kernel."""
    families: dict[tuple[str, type], dict[int, Operator]] = {}
    for i, row in enumerate(rows):
        if not row.measured.time_s or not row.prediction.time_s:
            continue
        operators = operator_of(row.row.configuration).operators  # none of a GPU at rest
        if operators and type(operators[0]) in SIZES:
            families.setdefault((row.family, type(operators[0])), {})[i] = operators[0]
    return families


def _covariances(operators: Sequence[Operator], forecast_s: Array, places: Sequence[int]) -> Iterator[Array]:
    """Candidates of the covariance between kernels of one kind, at places of the order of rows, each ``(n, n)``."""
    logs = np.log([[max(float(getattr(o, name)), 1.0) for name in SIZES[type(o)]] for o in operators])
    words = np.array([_words(o) for o in operators])
    apart = ((logs[:, None] - logs) ** 2).sum(-1)
    differing = (words[:, None] != words).sum(-1)
    shorter = np.median(forecast_s) / forecast_s
    after = np.exp(-np.abs(np.subtract.outer(places, places)) / LASTS)
    for length, left, noise, growth, lasting in product(LENGTHS, WORDS_LEAVE, NOISES, GROWTHS, LASTING):
        alike = left**differing * np.exp(-0.5 * apart / length**2)
        spread = noise * shorter**growth
        passing = (1.0 - lasting) * np.eye(len(spread)) + lasting * after
        yield LEVEL**2 + alike + np.outer(spread, spread) * passing


def _words(operator: Operator) -> list[str]:
    """What an operator is beside its sizes; its name only labels it."""
    values = (getattr(operator, field.name) for field in fields(operator) if field.name != "name")
    return [str(value) for value in values if isinstance(value, str | bool)]
