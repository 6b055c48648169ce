"""Which plans of a sweep are simulated so that the best keep to the constraints, and what is met where none does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from joulecast.plan.sweep.choose import (
    feasible,
    nearest_bounds,
    nearest_to_feasible,
    possibly_better,
    probably_feasible,
    slack_of,
    to_simulate,
)
from joulecast.plan.sweep.rows import Row
from joulecast.plan.sweep.space import Space

#: Plans that are simulated at least to say what would be feasible.
LEAST_NEAREST = 3
#: Rounds of simulating further plans where those simulated do not keep to the constraints.
MOST_ROUNDS = 4

#: Simulates plans by number.
Run = Callable[[set[int]], dict[int, Row]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search simulated, what of it keeps to the constraints, and how many may be better but were not tried."""

    simulated: list[Row]
    kept: list[Row]
    untried: int = 0


def search(rows: Sequence[Row], space: Space, run: Run) -> Found:
    """Simulate the best plans, and further ones where these do not keep to the constraints after all.

    Where none does in the end, those that come nearest in closed form are simulated as well: a limit on a peak leaves
    few of the plans whose mean keeps to it, and the best of these may lie far from them.

    Parameters
    ----------
    rows
        Every plan in closed form.
    """
    top = space.objective.top
    candidates = feasible(rows, space, slack_of(rows))
    before = {row["plan"]: row for row in rows}
    simulated: list[Row] = []
    kept: list[Row] = []
    wanted, untried = min(top, len(candidates)), 0
    for _ in range(MOST_ROUNDS):
        if not candidates:
            break
        chosen = to_simulate(candidates, space, top)
        simulated += run({row["plan"] for row in chosen}).values()
        kept = feasible(simulated, space)
        if len(kept) == len(simulated) >= wanted:
            break
        tried = {row["plan"] for row in simulated}
        pairs = [(before[row["plan"]], row) for row in simulated]
        candidates = probably_feasible([row for row in candidates if row["plan"] not in tried], pairs, space)
        if len(kept) >= wanted:  # the places of those that were thrown out may still be empty
            candidates = possibly_better(candidates, kept, space)
    else:
        untried = len(candidates)
    if not kept:
        known = {row["plan"]: row for row in simulated}
        near = nearest_to_feasible(rows, space, max(top, LEAST_NEAREST))
        known |= run({row["plan"] for row in near})
        simulated = list(known.values())
        kept = feasible(simulated, space)
    return Found(simulated, kept, untried)


def bounds_that_are_met(rows: Sequence[Row], found: Found, space: Space, run: Run) -> dict[str, float]:
    """The nearest constraints under which :func:`search` finds a plan, where it found none.

    Bounds that a simulated plan keeps to may still be missed by a search under them, which simulates others: it is
    tried, and bounds are loosened on until it finds one.
    """
    nearest: dict[str, float] = {}
    while not found.kept:
        further = nearest_bounds(found.simulated, space)
        nearest |= further
        space = replace(space, constraints=space.constraints.model_copy(update=further))
        found = search(rows, space, run)
    return nearest
