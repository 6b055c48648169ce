"""How sure a forecast is: uncertain parameters, and what the model's form gets wrong.

Parameters vary together as their covariances say. They are moved along ``DIRECTIONS`` orthogonal sign patterns of their
independent parts (a Hadamard design), and the forecast is made again at each: the mean square of its logarithmic
changes is its variance, to first order, whatever the forecast is. The discrepancy of the form is the same each time one
kernel runs and independent between different kernels; it is what held-out rows showed beyond the parameters' part.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from joulecast.model.description import GpuDescription, Table
from joulecast.model.families import spread_of_families

Array = NDArray[np.float64]

#: Standard deviations from the median to either end of a 90 % interval.
NINETY_PERCENT = 1.645
#: Relative discrepancy of a family without cross-validated rows.
UNKNOWN_DISCREPANCY = 0.15
#: Joint deviations of the parameters; a power of two.
DIRECTIONS = 8
#: Length of a deviation in standard deviations: short, as forecasts are not linear.
STEP = 0.5
#: Least share of a positive parameter that a deviation leaves.
LEAST_SHARE = 0.1


@lru_cache(maxsize=64)
def deviations(description: GpuDescription) -> tuple[Mapping[str, float], ...]:
    """Values of all uncertain parameters at each direction, by ``table.dotted.name``."""
    names: list[str] = []
    centre: list[float] = []
    spreads: list[Array] = []
    for table_name, table in description.tables.items():
        keys, values, spread = _independent_parts(table)
        names += [f"{table_name}.{key}" for key in keys]
        centre += values
        spreads.append(spread)
    signs = _signs()
    offset, moved = 0, np.zeros((DIRECTIONS, len(names)))
    for spread in spreads:
        rows, parts = spread.shape
        moved[:, offset : offset + rows] = signs[:, np.arange(parts) % DIRECTIONS] @ spread.T
        offset += rows
    at = np.array(centre)
    values_at = at + STEP * moved
    values_at = np.where(at > 0, np.maximum(values_at, LEAST_SHARE * at), values_at)
    return tuple(MappingProxyType(dict(zip(names, row.tolist(), strict=True))) for row in values_at)


def _independent_parts(table: Table) -> tuple[list[str], list[float], Array]:
    """Names, values and ``L`` with covariance ``L·Lᵀ`` of a table's uncertain parameters."""
    joint = list(table.covariance_names)
    alone = [
        key
        for key, p in table.parameters.items()
        if p.sd > 0 and key not in table.covariance_names and not isinstance(p.value, str)
    ]
    spread = np.zeros((len(joint) + len(alone), len(joint) + len(alone)))
    if joint:
        scale = np.sqrt(np.diag(table.covariance))
        sizes, axes = np.linalg.eigh(table.covariance / np.outer(scale, scale))
        order = np.argsort(-sizes)
        root = axes[:, order] * np.sqrt(np.maximum(sizes[order], 0.0))
        spread[: len(joint), : len(joint)] = scale[:, None] * root
    own = np.arange(len(joint), len(spread))
    spread[own, own] = [table.parameters[key].sd for key in alone]
    names = joint + alone
    return names, [table.parameters[key].number for key in names], spread


def _signs() -> Array:
    """A Hadamard matrix: mutually orthogonal columns of signs."""
    signs = np.ones((1, 1))
    while len(signs) < DIRECTIONS:
        signs = np.block([[signs, signs], [signs, -signs]])
    return signs


def spread_of_changes(base: Array, changed: Array) -> Array:
    """Relative standard deviation of a forecast ``base``, ``(n,)``, made again at each direction, ``(k, n)`` [1]."""
    change = np.log(changed / base) / STEP
    return np.asarray(np.sqrt(np.mean(change**2, axis=0)))


def discrepancy(description: GpuDescription, quantity: str) -> Array:
    """Relative standard deviation of the form by family, in the order of ``FAMILIES``; ``quantity`` time or energy."""
    known = {**description.kernel.discrepancy, **description.collective.discrepancy}
    return spread_of_families(known, quantity, UNKNOWN_DISCREPANCY)


def ends(value: Array, spread: Array) -> tuple[Array, Array]:
    """5 % and 95 % points of log-normal values with median ``value`` and relative standard deviation ``spread``."""
    factor = np.exp(NINETY_PERCENT * spread)
    return value / factor, value * factor
