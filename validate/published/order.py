"""Whether forecasts rank published variants of one model as measurements do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from joulecast.calibrate.published.plans import PlannedRow

#: Pairs that differ by less are not ranked: repeats of one run differ as much.
LEAST_DIFFERENCE = 0.03


@dataclass(frozen=True)
class Order:
    """Pairs of variants and how many are ranked correctly; ``wrong`` names the others."""

    pairs: int
    correct: int
    wrong: tuple[str, ...]

    @property
    def correct_percent(self) -> float | None:
        """Share of pairs ranked as measured [%]."""
        return None if not self.pairs else 100.0 * self.correct / self.pairs


def order_of_pairs(rows: Sequence[PlannedRow], forecast_s: Sequence[float]) -> Order:
    """Rank variants by tokens per second and GPU.

    Parameters
    ----------
    rows
        A pair has the same model, GPU and number of GPUs, and different plans; repeats of one plan are none.
    forecast_s
        Forecast step time of each row [s].
    """
    measured_too = [
        (one, _speed(one, time_s), _speed(one, one.row.measured_step_time_s))
        for one, time_s in zip(rows, forecast_s, strict=True)
        if one.row.measured_step_time_s is not None
    ]
    pairs, wrong = 0, []
    for (one, forecast, measured), (other, other_forecast, other_measured) in combinations(measured_too, 2):
        if _group(one) != _group(other) or one.plan == other.plan:
            continue
        if abs(measured / other_measured - 1.0) <= LEAST_DIFFERENCE:
            continue
        pairs += 1
        if (forecast > other_forecast) != (measured > other_measured):
            wrong.append(f"{one.row.id} and {other.row.id}")
    return Order(pairs, pairs - len(wrong), tuple(wrong))


def _group(planned: PlannedRow) -> tuple[object, ...]:
    row = planned.row
    return (row.gpu, row.num_gpus, row.num_layers, row.hidden, row.heads, row.ffn_hidden, row.vocab, row.gated_mlp)


def _speed(planned: PlannedRow, time_s: float | None) -> float:
    """Tokens per second and GPU."""
    return planned.plan.tokens / (time_s or math.nan) / planned.row.num_gpus
