"""The phases of metering a loop (warming up, settling, in a window), and where each began."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto

#: Iterations from this length on are longer than a step of the counter, and windows hold whole ones [s].
LONG_ITERATION_S = 0.1


class Phase(Enum):
    """What a meter does."""

    WARMING_UP = auto()
    SETTLING = auto()
    IN_WINDOW = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a phase began: the steps until then, and the time on the cards' clock [s]."""

    step: int = 0
    time_s: float = math.nan


def even_span(least_s: float, iteration_s: float) -> float:
    """Time of an even number of long iterations, so that what power does within each is no drift [s].

    >>> even_span(0.5, 0.02), even_span(0.5, 0.2), even_span(0.5, 1.5)
    (0.5, 0.8, 3.0)
    """
    if iteration_s < LONG_ITERATION_S:
        return least_s
    return 2 * math.ceil(0.5 * least_s / iteration_s) * iteration_s
