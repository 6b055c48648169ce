"""How sure a forecast is: uncertain parameters, and what the model's form gets wrong.

Parameters vary together as their covariances say. They are moved along a few orthogonal sign patterns of their
independent parts (a Hadamard design), and the forecast is made again at each: the mean square of its logarithmic
changes is its variance, to first order, whatever the forecast is. The discrepancy of the form is the same each time one
kernel runs and independent between different kernels; it is what held-out rows showed beyond the parameters' part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.model.cluster.extremes import spread_of_slowest
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.description_file import COVARIANCE_TOLERANCE
from joulecast.model.hardware.estimated_forms import ESTIMATED_FORMS, POSITION_FORMS, UNMEASURED_FORMS
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.families import FAMILIES, spread_of_families
from joulecast.model.power.kernel_power import CARD_FACTORS

#: Standard deviations from the median to either end of a 90 % interval.
NINETY_PERCENT = 1.645
#: Relative discrepancy of a family without cross-validated rows.
UNKNOWN_DISCREPANCY = 0.15
#: The same of communication between nodes, whose network no description tells: large messages' medians of one cloud lie
#: 21 % off on average where its rates are fitted, those of another 1 %; one rate for all sizes is 31 and 5 % off
#: (``validate network``).
NETWORK_DISCREPANCY = 0.25
#: What a sequence adds to its kernels: gaps, what one kernel leaves in cache for the next, launch order.
COMPOSITION = 0.012
#: The same of kernels that move data, all alike: neighbours leave more or less of it in cache. Times of iterations on
#: three pairs of cards, whose shares of such kernels reach from 8 to 73 %, change with that share by -0.08 +- 0.03 of
#: it (with experts), 0.00 +- 0.02 and 0.02 +- 0.02: root mean square beyond the slopes' own errors, most of it the
#: first's [estimate].
MOVING = 0.04
_ESTIMATES = {**ESTIMATED_FORMS, **UNMEASURED_FORMS, **POSITION_FORMS}
_MOVES = np.array([family.startswith(("streaming", "tile_rows")) for family in FAMILIES])
#: Joint deviations of the parameters, and where time presses; powers of two.
DIRECTIONS, FEW_DIRECTIONS = 16, 8
#: Length of a deviation in standard deviations: short, as forecasts are not linear.
STEP = 0.5
#: Least share of a positive parameter that a deviation leaves.
LEAST_SHARE = 0.1
#: Added to a correlation matrix so that its factor exists.
LEAST_EIGENVALUE = 1e-9


@lru_cache(maxsize=64)
def deviations(
    description: GpuDescription, directions: int = DIRECTIONS, hosts: int = 1
) -> tuple[Mapping[str, float], ...]:
    """Values of all uncertain parameters at each direction, by ``table.dotted.name``.

    Cards of one host resemble each other and those of ``hosts`` differ: the slowest sets the pace of a job, and is the
    surer the more there are.
    """
    tables = description.tables
    known = {f"{table}.{key}": p for table, content in tables.items() for key, p in content.parameters.items()}
    signs = _signs(directions)
    moved: dict[str, Array] = {}
    for name, table in tables.items():
        # Of another table's parameters only those still exist that nobody has refitted apart.
        full = [key if key in known else f"{name}.{key}" for key in table.covariance_names]
        moved |= dict(zip(full, _together(table.covariance, signs), strict=True))
    for place, (key, parameter) in enumerate(known.items()):
        if key not in moved and parameter.sd > 0 and not isinstance(parameter.value, str):
            share = spread_of_slowest(hosts) if key in CARD_FACTORS else 1.0
            moved[key] = share * parameter.sd * signs[:, place % directions]
    found: list[dict[str, float]] = [{} for _ in range(directions)]
    for key, steps in moved.items():
        value = known[key].number
        least = LEAST_SHARE * value if value > 0 else -np.inf
        for direction, step in zip(found, steps, strict=True):
            direction[key] = max(value + STEP * float(step), least)
    return tuple(MappingProxyType(direction) for direction in found)


def _together(covariance: Array, signs: Array) -> Array:
    """Deviations of jointly distributed parameters at each direction, shape ``(n, directions)``."""
    if not len(covariance):
        return np.zeros((0, len(signs)))
    scale = np.sqrt(np.diag(covariance))
    scale = np.where(scale > 0, scale, 1.0)
    root = scale[:, None] * _root(covariance / np.outer(scale, scale))
    return np.asarray(root @ signs[:, np.arange(len(root)) % len(signs)].T)


def _root(correlation: Array) -> Array:
    """Cholesky's factor; unlike principal axes it is the same on every machine."""
    unit = np.eye(len(correlation))
    try:
        return np.asarray(np.linalg.cholesky(correlation + LEAST_EIGENVALUE * unit))
    except np.linalg.LinAlgError:  # rounded in its file to slightly less than semidefinite
        return np.asarray(np.linalg.cholesky(correlation + 2.0 * COVARIANCE_TOLERANCE * len(unit) * unit))


def _signs(directions: int) -> Array:
    """A Hadamard matrix: mutually orthogonal columns of signs."""
    signs = np.ones((1, 1))
    while len(signs) < directions:
        signs = np.block([[signs, signs], [signs, -signs]])
    return signs


def changes(base: Array, changed: Array) -> Array:
    """Relative changes of a forecast ``base``, ``(n,)``, made again at each direction, ``(k, n)``, by a deviation [1].

    Their root mean square over directions is the forecast's relative standard deviation; that of the difference between
    two forecasts' changes is the one of their ratio: what errs alike in both cancels.
    """
    return np.asarray(np.log(changed / base) / STEP)


def spread_of(change: Array) -> Array:
    """Relative standard deviation of forecasts with these :func:`changes`, ``(k, n)``, shape ``(n,)`` [1]."""
    return np.asarray(np.sqrt(np.mean(change**2, axis=0)))


def discrepancy(description: GpuDescription, quantity: str) -> Array:
    """Relative standard deviation of the form by family, in the order of ``FAMILIES``.

    ``quantity`` is time, energy, or power: that of a kernel without a board's limit.
    """
    network = {"network": dict.fromkeys(("time", "energy", "power"), NETWORK_DISCREPANCY)}
    known = {**network, **_ESTIMATES, **description.kernel.discrepancy, **description.collective.discrepancy}
    if quantity == "power":
        known = {family: _with_power(of) for family, of in known.items()}
    return spread_of_families(known, quantity, UNKNOWN_DISCREPANCY)


def _with_power(known: Mapping[str, float]) -> Mapping[str, float]:
    """Spreads of a family; where power is not among them, as if time and energy erred independently.

    The power's own is 0.4 to 3 times as large in the families where it is fitted, 0.9 times in the median.
    """
    if "power" in known or not {"time", "energy"} <= known.keys():
        return known
    return {**known, "power": math.hypot(known["time"], known["energy"])}


def same_kernels(costs: Costs) -> Int:
    """Which kernels are one and the same by their work, as numbers from 0, shape ``(n,)``."""
    work = np.stack([getattr(costs, f.name) for f in fields(costs)], axis=1)
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(row.tobytes(), len(seen)) for row in work], dtype=np.int64)


def _two_parts(description: GpuDescription, quantity: str) -> tuple[Array, Array]:
    """:func:`discrepancy` of kernels apart from each other, and of all kernels of a family alike, by family.

    What is wrong with a constant from a few kernels is wrong in all that rest on it; what is beyond differs.
    """
    whole = discrepancy(description, quantity)
    alike = [_with_power(_ESTIMATES[f])[quantity] if f in _ESTIMATES else 0.0 for f in FAMILIES]
    together = np.minimum(whole, alike)
    return np.sqrt(whole**2 - together**2), together


def composed_spread(
    amount: Array,
    owner: Int,
    costs: Costs,
    description: GpuDescription,
    quantity: str,
    count: int = 0,
) -> Array:
    """Relative standard deviation of pieces of work from the form of their kernels.

    A kernel errs the same each time it runs and independently of other kernels, but for those whose form rests on one
    estimate, which err alike. What differs between cards is in the parameters.

    Parameters
    ----------
    amount
        Time or energy of each kernel with all its repetitions, shape ``(m,)``.
    owner
        The piece to which it belongs, from 0, shape ``(m,)``.
    costs
        The kernels' work.
    quantity
        ``time`` or ``energy``.
    count
        Pieces, at least as many as ``owner`` names: the last ones may have no kernel.

    Returns
    -------
    ndarray
        Of each piece, shape ``(n,)``; zero for one without kernels.
    """
    if not len(amount):
        return np.zeros(count)
    share = amount / np.bincount(owner, amount)[owner]
    parts = [share * sd[costs.family] for sd in _two_parts(description, quantity)]
    kernels, variance = _squares(parts[0], owner, same_kernels(costs), count)
    variance += _squares(parts[1], owner, costs.family, count)[1]
    moving: Array = np.bincount(owner, share * _MOVES[costs.family], count).astype(np.float64)
    return _of_sequences(variance, moving, kernels > 1)


def composed_spreads(
    amounts: Sequence[Array], owner: Int, costs: Costs, description: GpuDescription, count: int
) -> tuple[Array, Array, Array]:
    """Those of time, energy and power from the kernels' times and energies; see :func:`composed_power_spread`."""
    time, energy = (
        composed_spread(amount, owner, costs, description, quantity, count)
        for amount, quantity in zip(amounts, ("time", "energy"), strict=True)
    )
    return time, energy, composed_power_spread(amounts, owner, costs, description, count)


def composed_power_spread(
    amounts: Sequence[Array], owner: Int, costs: Costs, description: GpuDescription, count: int
) -> Array:
    """Relative standard deviation of pieces' power from the form of their kernels, where no limit holds it.

    A kernel's errors in time and energy are correlated. With its power's error ``p = e − t`` and ``q = (e + t) / 2``,
    the logarithm of a piece's power ``ΣE / ΣT`` changes by

    ``Σ (u + v)/2 · p + (u − v) · q``

    where ``u`` and ``v`` are the kernel's shares of energy and time. The variance of ``q`` follows from those of time,
    energy and power; ``p`` and ``q`` are taken as independent, which they are where time and energy err by as much.

    Parameters
    ----------
    amounts
        Time and energy of each kernel with all its repetitions, both of shape ``(m,)``.
    owner, costs, description, count
        As :func:`composed_spread` takes them.
    """
    if not len(owner):
        return np.zeros(count)
    time, energy = (amount / np.bincount(owner, amount)[owner] for amount in amounts)
    mean, more = 0.5 * (energy + time), energy - time
    squares = []
    parts = zip(*(_two_parts(description, quantity) for quantity in ("time", "energy", "power")), strict=True)
    for (slow, costly, power), alike in zip(parts, (same_kernels(costs), costs.family), strict=True):
        both = np.sqrt(np.maximum(0.5 * (slow**2 + costly**2) - 0.25 * power**2, 0.0))
        effects = mean * power[costs.family], more * both[costs.family]
        squares += [_squares(effect, owner, alike, count) for effect in effects]
    variance = np.sum([square for _, square in squares], axis=0)
    moving: Array = np.bincount(owner, mean * _MOVES[costs.family], count).astype(np.float64)
    return _of_sequences(variance, moving, squares[0][0] > 1)


def _squares(effect: Array, owner: Int, group: Int, count: int) -> tuple[Int, Array]:
    """Groups of each piece, and the sum of the squares of its groups' effects, both of shape ``(n,)``."""
    kinds = int(group.max()) + 1
    distinct, place = np.unique(owner * kinds + group, return_inverse=True)
    of, together = distinct // kinds, np.bincount(place.reshape(-1), effect)
    return np.bincount(of, minlength=count), np.asarray(np.bincount(of, together**2, count), dtype=np.float64)


def form_spreads(
    amount: Array,
    against: Int,
    alike: Int,
    costs: Costs,
    description: GpuDescription,
    quantity: str,
) -> tuple[Array, Array]:
    """Relative standard deviations from the form of kernels, of pieces of work and of their ratios to others of them.

    ``ln(T_i / T_j)`` changes by ``Σ (share_ik - share_jk) · e_k`` where the kernel ``k`` errs by ``e_k``: a kernel errs
    the same in every piece, and so does what a sequence adds to its kernels.

    Parameters
    ----------
    amount
        Time or energy of each kernel in each piece, shape ``(n, m)``.
    against
        The piece with which each is compared, shape ``(n,)``.
    alike
        Which kernels do one work in different ways and err the same when ways are compared, numbered from 0, shape
        ``(m,)``.
    costs
        The kernels' work; no two are the same.
    description, quantity
        As :func:`composed_spread` takes them.

    Returns
    -------
    of_pieces, of_ratios
        Shape ``(n,)``; the ratio of a piece to itself has none.
    """
    share = amount / amount.sum(axis=1, keepdims=True)
    more = share - share[against]
    apart, together = (sd[costs.family] for sd in _two_parts(description, quantity))
    variance = ((share * apart) ** 2).sum(axis=1) + _of_groups(share * together, costs.family)
    ratio = _of_groups(more * apart, alike) + _of_groups(more * together, costs.family)
    moves = _MOVES[costs.family].astype(np.float64)
    several = (share > 0).sum(axis=1) > 1
    return _of_sequences(variance, share @ moves, several), np.sqrt(ratio + (MOVING * (more @ moves)) ** 2)


def _of_groups(effect: Array, group: Int) -> Array:
    """Sum of the squares of what groups of ``m`` kernels add up to, of effects of shape ``(n, m)``; shape ``(n,)``."""
    members = (group[:, None] == np.arange(int(group.max()) + 1)).astype(np.float64)
    return np.asarray(((effect @ members) ** 2).sum(axis=1))


def _of_sequences(variance: Array, moving: Array, several: Bool) -> Array:
    """Relative standard deviation with what sequences add to their kernels, where there are several.

    ``moving`` is the share of kernels that move data, of shape ``(n,)`` like the others.
    """
    return np.asarray(np.sqrt(variance + np.where(several, COMPOSITION**2 + (MOVING * moving) ** 2, 0.0)))


def ends(value: Array, spread: Array) -> tuple[Array, Array]:
    """5 % and 95 % points of log-normal values with median ``value`` and relative standard deviation ``spread``."""
    factor = np.exp(NINETY_PERCENT * spread)
    return value / factor, value * factor
