"""The best plan of each cluster that a space offers: which GPU, and how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from joulecast.plan.sweep.choose import feasible, objectives, probably_feasible, slack_of
from joulecast.plan.sweep.rows import Row

if TYPE_CHECKING:
    from joulecast.plan.sweep.space import Space

GPU, GPUS = "cluster.gpu", "cluster.gpus"
#: Most clusters of which each gets its best plan simulated.
MOST_CLUSTERS = 16
#: Plans of a cluster that are tried until one keeps to the constraints.
MOST_TRIED = 4

#: Values of the keys that tell clusters apart.
Cluster: TypeAlias = tuple[Any, ...]


def cluster_keys(space: Space) -> tuple[str, ...]:
    """Keys that tell the space's clusters apart; of very many the GPU alone, none where there is one cluster."""
    for keys in ((GPU, GPUS), (GPU,)):
        several = tuple(key for key in keys if len(dict(space.axes).get(key) or ()) > 1)
        if several and len(offered(space, several)) <= MOST_CLUSTERS:
            return several
    return ()


def offered(space: Space, keys: Sequence[str]) -> list[Cluster]:
    """Clusters that the space offers, in its order."""
    found = product(*(space.values(key) for key in keys)) if keys else ()
    return [cluster for cluster in found if space.together.allows(dict(zip(keys, cluster, strict=True)))]


def words(keys: Sequence[str], cluster: Cluster) -> str:
    """A cluster as people write it.

    >>> words(("cluster.gpu", "cluster.gpus"), ("b200", 32)), words(("cluster.gpus",), (32,))
    ('32 x b200', '32 GPUs')
    """
    of = dict(zip(keys, cluster, strict=True))
    if GPU not in of:
        return f"{of[GPUS]} GPUs"
    return f"{of[GPUS]} x {of[GPU]}" if GPUS in of else str(of[GPU])


def best_of_each(rows: Sequence[Row], space: Space) -> dict[Cluster, Row]:
    """The row of each cluster that is best by the first objective, of those that keep to the constraints."""
    keys = cluster_keys(space)
    kept = feasible(rows, space) if keys else []
    ranked = {cluster: found[0] for cluster, found in _ranked(kept, space, keys).items()}
    return {cluster: ranked[cluster] for cluster in offered(space, keys) if cluster in ranked}


def simulate_each(
    rows: Sequence[Row],
    simulated: Sequence[Row],
    space: Space,
    run: Callable[[set[int]], dict[int, Row]],
) -> list[Row]:
    """Simulate the best of each cluster, and further ones where it does not keep to the constraints after all.

    Parameters
    ----------
    rows
        Every plan in closed form.
    simulated
        What is simulated already.
    run
        Simulates plans by number.

    Returns
    -------
    list of Row
        ``simulated`` and what was simulated here.
    """
    keys = cluster_keys(space)
    left = _ranked(feasible(rows, space, slack_of(rows)), space, keys) if keys else {}
    before = {row["plan"]: row for row in rows}
    known = {row["plan"]: row for row in simulated}
    for _ in range(MOST_TRIED):
        first = {cluster: own[0]["plan"] for cluster, own in left.items() if own}
        known |= run({plan for plan in first.values() if plan not in known})
        for cluster, plan in first.items():
            if feasible([known[plan]], space):
                del left[cluster]
            else:
                left[cluster] = probably_feasible(left[cluster][1:], [(before[plan], known[plan])], space)
    return list(known.values())


def _ranked(rows: Sequence[Row], space: Space, keys: Sequence[str]) -> dict[Cluster, list[Row]]:
    """Rows of each cluster, the best by the first objective first."""
    found: dict[Cluster, list[Row]] = {}
    if not rows:
        return found
    for place in objectives(rows, space)[:, 0].argsort(kind="stable").tolist():
        found.setdefault(tuple(rows[place][key] for key in keys), []).append(rows[place])
    return found
