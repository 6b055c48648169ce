"""How alike workloads are expected to be, from their configurations alone.

    K_ij = (1 − own)·Π_words (1 if equal else ρ)·exp(−½·Σ_sizes (ln s_i − ln s_j)²/ℓ²) + own·δ_ij

Workloads of one network at neighbouring batch sizes share the split between compute, memory and idle time far more
than workloads of different networks do; ``own`` is what remains peculiar to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joulecast.arrays import Array

#: Correlation left by one word that differs.
RHO = 0.5
#: Ratio of sizes (natural logarithm) over which workloads grow unlike.
LENGTH = 1.2
#: Variance that belongs to each workload alone.
OWN = 0.15


def likeness(configurations: Sequence[Mapping[str, Any]]) -> Array:
    """Prior correlation between workloads, shape ``(n, n)``; positive numbers count as sizes, all else as words."""
    keys = sorted({key for one in configurations for key in one})
    correlation = np.ones((len(configurations),) * 2)
    for key in keys:
        values = [one.get(key) for one in configurations]
        if all(_is_size(v) for v in values):
            logs = np.log(np.array(values, dtype=np.float64))
            correlation *= np.exp(-0.5 * ((logs[:, None] - logs) / LENGTH) ** 2)
        else:
            codes = np.unique([str(v) for v in values], return_inverse=True)[1]
            correlation *= np.where(codes[:, None] == codes, 1.0, RHO)
    return (1.0 - OWN) * correlation + OWN * np.eye(len(configurations))


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
