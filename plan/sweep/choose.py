"""Which rows keep to the constraints, which are best, and which constraint is the tightest where none does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.errors import InputError
from joulecast.plan.sweep.rows import Row
from joulecast.simulator.closed_form.trust import DOUBTFUL_ERROR, USUAL_ERROR

if TYPE_CHECKING:
    from joulecast.plan.sweep.space import ConstraintsTable, Space


@dataclass(frozen=True, slots=True)
class Limit:
    """One constraint: columns that it bounds, the first that a row has, and in which direction (1: at most)."""

    key: str
    columns: tuple[str, ...]
    sense: int = 1


LIMITS = (
    Limit("max_time_s", ("time_s",)),
    Limit("max_run_time_s", ("run_time_s",)),
    Limit("max_energy_j", ("energy_j",)),
    Limit("max_run_energy_j", ("run_energy_j",)),
    Limit("max_power_w", ("power_w",)),
    Limit("max_node_power_w", ("peak_node_power_w", "node_power_w")),
    Limit("max_rack_power_w", ("peak_rack_power_w", "rack_power_w")),
    Limit("max_site_power_w", ("peak_job_power_w", "facility_power_w")),
    Limit("min_memory_margin", ("memory_margin",), -1),
    Limit("max_gpus", ("gpus",)),
    Limit("max_money", ("money",)),
    Limit("max_run_money", ("run_money",)),
    Limit("max_carbon_kg", ("carbon_kg",)),
    Limit("max_run_carbon_kg", ("run_carbon_kg",)),
)
#: Digits of a value that would be feasible.
DIGITS = 5
#: Constraints on what is counted, not forecast: no slack.
_EXACT = ("max_gpus", "min_memory_margin")


def slack_of(rows: Sequence[Row]) -> Array:
    """How far rows in closed form may be off, before they are simulated: their worst error, shape ``(n,)``."""
    return np.array([DOUBTFUL_ERROR if row["doubt"] else USUAL_ERROR for row in rows])


def is_feasible(rows: Sequence[Row], space: Space, slack: Array | float = 0.0) -> Bool:
    """Whether each row keeps to all constraints, or may where it is off by ``slack``, shape ``(n,)`` or one [1]."""
    keeps = np.ones(len(rows), dtype=bool)
    for limit, bound in stated_constraints(space.constraints):
        keeps &= _keeps(limit, column(rows, limit, space), bound, slack)
    return keeps


def feasible(rows: Sequence[Row], space: Space, slack: Array | float = 0.0) -> list[Row]:
    """Rows that keep to all constraints, as :func:`is_feasible` says."""
    return list(compress(rows, is_feasible(rows, space, slack)))


def left_out_by_constraint(rows: Sequence[Row], space: Space) -> dict[str, int]:
    """How many rows each constraint leaves out, whatever the others do."""
    bounds = stated_constraints(space.constraints)
    return {limit.key: int((~_keeps(limit, column(rows, limit, space), bound, 0.0)).sum()) for limit, bound in bounds}


def held_by_mean(rows: Sequence[Row], space: Space) -> list[str]:
    """Stated constraints on peaks of which some rows know the mean alone."""
    limits = (limit for limit, _ in stated_constraints(space.constraints))
    return [limit.key for limit in limits if any(limit.columns[0] not in row for row in rows)]


def probably_feasible(rows: Sequence[Row], simulated: Sequence[tuple[Row, Row]], space: Space) -> list[Row]:
    """Rows in closed form that may keep to the constraints, from how simulated ones differ from their closed form.

    Site power limits hold for peaks, of which a closed form knows the mean. ``simulated`` are pairs of a row in closed
    form and the same simulated; what is bounded is taken to rise by no less than it did in all of them.
    """
    keeps = np.ones(len(rows), dtype=bool)
    before, after = zip(*simulated, strict=True)
    for limit, bound in stated_constraints(space.constraints):
        if limit.key not in _EXACT:
            was, is_now = column(before, limit, space), column(after, limit, space)
            some = was > 0.0  # a free or carbon-free site's are none, and rise by nothing
            rise = (is_now[some] / was[some]).min() if some.any() else 1.0
            keeps &= _keeps(limit, rise * column(rows, limit, space), bound, slack_of(rows))
    return list(compress(rows, keeps))


def stated_constraints(constraints: ConstraintsTable) -> list[tuple[Limit, float]]:
    """Constraints that the space states, with their bounds."""
    found = [(limit, getattr(constraints, limit.key)) for limit in LIMITS]
    return [(limit, float(bound)) for limit, bound in found if bound is not None]


def column(rows: Sequence[Row], limit: Limit, space: Space) -> Array:
    """What a constraint bounds, of every row.

    Raises
    ------
    InputError
        The rows do not have it, or have it in several currencies.
    """
    if "money" in limit.key:
        _check_currency(rows, f"constraints.{limit.key}", space)
    try:
        return np.array([next(row[name] for name in limit.columns if name in row) for row in rows], dtype=np.float64)
    except StopIteration:
        raise space.source.error(
            "nothing is forecast that this could bound",
            space.key_of(limit.key),
            remedy=f"It needs {_needed(rows, limit, space)}.",
        ) from None


def _check_currency(rows: Sequence[Row], key: str, space: Space) -> None:
    """Refuse to hold amounts of several currencies against each other."""
    currencies = sorted({row["currency"] for row in rows if "currency" in row})
    if len(currencies) > 1:
        remedy = "State all sites' prices in one currency."
        raise space.source.error(f"plans pay in {' and '.join(currencies)}", key, remedy=remedy)


def _needed(rows: Sequence[Row], limit: Limit, space: Space) -> str:
    """What a space lacks, so that rows do not have what a constraint bounds."""
    for word, key in (("run_", "workload.training_tokens"), ("rack", "site.nodes_per_rack")):
        if word in limit.key and space.values(key) == (None,):
            return key
    return _node_type(rows, limit.columns, space)


def _node_type(rows: Sequence[Row], columns: Sequence[str], space: Space) -> str:
    """What rows without any of these columns need: a node type, and of which GPUs."""
    without = dict.fromkeys(
        str(row.get("cluster.gpu", space.value("cluster.gpu"))) for row in rows if not row.keys() & set(columns)
    )
    return f"a node type that is known for {', '.join(without)}: give cluster.node, or leave out the GPU"


def _keeps(limit: Limit, values: Array, bound: float, slack: Array | float) -> Bool:
    loose = 0.0 if limit.key in _EXACT else slack
    return np.asarray(limit.sense * values <= limit.sense * bound + abs(bound) * loose)


def objectives(rows: Sequence[Row], space: Space) -> Array:
    """What is minimised, for one token, shape ``(n, objectives)``: batches of plans may differ.

    Raises
    ------
    InputError
        The rows do not have it, or have it in several currencies.
    """
    from joulecast.plan.sweep.space import OBJECTIVES

    tokens = np.array([row["tokens"] for row in rows], dtype=np.float64)
    found = []
    if "money" in space.minimise:
        _check_currency(rows, "objective.minimise", space)
    for name in space.minimise:
        try:
            found.append([row[OBJECTIVES[name]] for row in rows])
        except KeyError:
            raise space.source.error(
                f"{name} cannot be forecast for these plans",
                "objective.minimise",
                remedy=f"It needs {_node_type(rows, (OBJECTIVES[name],), space)}.",
            ) from None
    return np.array(found, dtype=np.float64).reshape(len(space.minimise), -1).T / tokens[:, None]


def best(values: Array, count: int) -> Int:
    """Rows to look at more closely: of one objective the lowest, of several the front and what lies behind it.

    Of a front with more rows than are wanted some are taken, evenly spread. ``values`` has shape ``(n, objectives)``.
    """
    if values.shape[1] == 1:
        return np.argsort(values[:, 0], kind="stable")[:count]
    left, chosen = np.arange(len(values)), np.empty(0, dtype=np.int64)
    while len(left) and len(chosen) < count:
        undominated = is_undominated(values[left])
        front = left[undominated]
        front = front[np.argsort(values[front, 0], kind="stable")]
        wanted = min(len(front), count - len(chosen))
        places = np.unique(np.linspace(0, len(front) - 1, wanted).round().astype(np.int64))
        chosen, left = np.append(chosen, front[places]), left[~undominated]
    return chosen


def to_simulate(rows: Sequence[Row], space: Space, count: int) -> list[Row]:
    """The best rows in closed form, and the best with those that are in doubt taken to be as good as they may be."""
    values = objectives(rows, space)
    doubted = np.array([bool(row["doubt"]) for row in rows])
    chosen = best(values, count)
    if doubted.any():
        chosen = np.union1d(chosen, best(np.where(doubted[:, None], 1.0 - DOUBTFUL_ERROR, 1.0) * values, count))
    return [rows[i] for i in chosen]


def possibly_better(rows: Sequence[Row], kept: Sequence[Row], space: Space) -> list[Row]:
    """Rows in closed form that are better than all of those kept, by more than they may be off, in one objective."""
    values, least = objectives(rows, space), objectives(kept, space).min(axis=0)
    better = (values < (1.0 - slack_of(rows))[:, None] * least).any(axis=1)
    return list(compress(rows, better))


def is_undominated(values: Array) -> Bool:
    """Whether no other row is at most as large in every column and smaller in one; of equal rows all are kept.

    ``values`` has shape ``(n, k)``. Sorted by the first column, a row can only be dominated by those before it.
    """
    order = np.lexsort(values.T[::-1])
    keeps = np.zeros(len(values), dtype=bool)
    front = np.empty((0, values.shape[1]))
    for row in order:
        one = values[row]
        if not ((front <= one).all(axis=1) & (front < one).any(axis=1)).any():
            keeps[row] = True
            front = np.vstack([front, one])
    return keeps


def nearest_to_feasible(rows: Sequence[Row], space: Space, count: int) -> list[Row]:
    """Rows that keep to the constraints with the least change: of one alone where that suffices, else of all."""
    over, _ = _violations(rows, space)
    change = _alone(over).min(axis=1)
    order = np.lexsort([over.max(axis=1), change])
    return [rows[i] for i in order[:count]]


def _violations(rows: Sequence[Row], space: Space) -> tuple[Array, Array]:
    """Share by which each row violates each constraint, below 0 where it keeps to it, and what is bounded."""
    bounds = stated_constraints(space.constraints)
    table = np.stack([column(rows, limit, space) for limit, _ in bounds], axis=1)
    sense, bound = np.array([limit.sense for limit, _ in bounds]), np.array([value for _, value in bounds])
    return sense * (table - bound) / np.maximum(np.abs(bound), 1e-12), table


def _alone(over: Array) -> Array:
    """Violation of each constraint in rows that keep to all others; infinite elsewhere."""
    others = np.array([(np.delete(over, i, axis=1) <= 0).all(axis=1) for i in range(over.shape[1])])
    return np.where(others.T, over, np.inf)


def nearest_bounds(rows: Sequence[Row], space: Space) -> dict[str, float]:
    """Constraints to loosen, with the nearest values to which a row keeps, the tightest first; no row keeps to all.

    The tightest is the one that asks for the least change where it alone is loosened; where none suffices alone, the
    most violated one of the plan whose worst violation is the smallest, beside which its others are loosened too.
    """
    over, table = _violations(rows, space)
    alone = _alone(over)
    suffices = np.isfinite(alone).any()
    row = int(alone.min(axis=1).argmin() if suffices else over.max(axis=1).argmin())
    tightest = int(over[row].argmax())
    others = [i for i in np.flatnonzero(over[row] > 0).tolist() if i != tightest]
    limits = [limit for limit, _ in stated_constraints(space.constraints)]
    return {limits[i].key: _rounded(float(table[row, i]), limits[i].sense) for i in (tightest, *others)}


def nothing_feasible(nearest: Mapping[str, float], space: Space, what: str, *, kept: bool = False) -> InputError:
    """The error where no row keeps to the constraints: the tightest of them, and the nearest value that one does.

    Parameters
    ----------
    nearest
        From :func:`nearest_bounds`.
    what
        What does not keep to the constraints.
    kept
        Whether a file holds what was forecast.
    """
    (key, value), *others = nearest.items()
    asked = float(getattr(space.constraints, key))
    found = f"the nearest feasible value, all others kept, is {value:g}"
    if others:
        near = ", ".join(f"{name} {bound:g}" for name, bound in nearest.items())
        found = f"no single constraint suffices to be loosened; the plan nearest to all of them has {near}"
    return space.source.error(
        f"no {what} keeps to the constraints; the tightest is {key} = {asked:g}: {found}",
        space.key_of(key),
        remedy=f"Loosen {'these' if others else 'it'}{' and go on with --resume' if kept else ''}, or widen the space.",
    )


def _rounded(value: float, sense: int) -> float:
    """A bound with few digits that the value keeps to."""
    digits = DIGITS - 1 - math.floor(math.log10(abs(value))) if value else 0
    scale = 10.0**digits
    near = round(value * scale)
    bounds = (round(whole / scale, max(digits, 0)) for whole in (near, near + sense))
    return next(bound for bound in bounds if sense * bound >= sense * value)
