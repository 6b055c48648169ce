"""Why combinations of a space are no plans, and why values that it offers are in none."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from joulecast.errors import InputError
from joulecast.plan.sweep.clusters import cluster_keys
from joulecast.plan.sweep.journal import Journal
from joulecast.plan.sweep.legal import Combinations
from joulecast.plan.sweep.rows import Row, forecaster_of
from joulecast.plan.sweep.space import Space
from joulecast.simulator.plan_file.stages import PP

#: Combinations that are looked at for one reason.
MOST_LOOKED_AT = 1000
#: Values of a key that divide nothing and are named.
MOST_NAMED = 8


def missing_values(space: Space, combinations: Combinations, rows: Sequence[Row]) -> dict[tuple[int, int], str]:
    """Why values that the space states are in no row, by axis and place; of clusters, that are told elsewhere, only why
    no plan can have them."""
    held = combinations.index[[row["plan"] for row in rows]]
    deepest = max(rows, key=lambda row: row.get(PP, 1))["plan"]  # one stage would be what is wrong with several chunks
    found = {}
    for axis, (key, stated) in enumerate(space.axes):
        if stated is None:
            continue
        tried = [] if key in cluster_keys(space) else np.setdiff1d(combinations.index[:, axis], held[:, axis]).tolist()
        for place in tried:
            numbers = np.flatnonzero(combinations.index[:, axis] == place).tolist()
            errors = [refusal(space, combinations.of(n)) for n in numbers[:MOST_LOOKED_AT]]
            refused = next((error for error in errors if error is not None), None)
            value = f"{key} = {json.dumps(stated[place])}"
            if refused is None or None in errors:
                found[axis, place] = f"no plan with {value} fits memory"
            else:
                found[axis, place] = f"no plan has {value}: {with_remedy(refused, key)}"
        found |= _never_legal(space, combinations, deepest, axis)
    return found


def _never_legal(space: Space, combinations: Combinations, plan: int, axis: int) -> dict[tuple[int, int], str]:
    """Why values of an axis are in no combination: what is wrong with a plan that has the first of them instead."""
    key, values = space.keys[axis], combinations.values[axis]
    places = np.setdiff1d(np.arange(len(values)), combinations.index[:, axis]).tolist()
    own = combinations.of(plan)
    errors = {place: refusal(space, own | {key: values[place]}) for place in places[:MOST_NAMED]}
    refused = {place: error for place, error in errors.items() if error is not None}  # others repeat a plan
    if not refused:
        return {}
    first = min(refused)
    shown = " or ".join(json.dumps(values[place]) for place in refused)
    more = " or others" if len(places) > MOST_NAMED else ""
    return {(axis, first): f"no plan has {key} = {shown}{more}: {with_remedy(refused[first], key)}"}


def first_refusal(
    space: Space, combinations: Combinations, journal: Journal, missing: Collection[tuple[int, int]]
) -> str:
    """Why the first of the combinations is no plan that has no missing value, whose reason is told; empty if none."""
    batches = (batch for _, batch in sorted(journal.done.batches.items()) if batch.illegal)
    left = (number for batch in batches for number in sorted(set(batch.combinations) - set(batch.plans)))
    others = (n for n in left if not any(combinations.index[n, axis] == place for axis, place in missing))
    errors = (refusal(space, combinations.of(number)) for number in islice(others, MOST_LOOKED_AT))
    return next((with_remedy(error) for error in errors if error is not None), "")


def refusal(space: Space, values: Mapping[str, Any]) -> InputError | None:
    """What is wrong with the plan of a combination, if anything is."""
    try:
        forecaster_of(space).plans.plan(values)
    except InputError as error:
        return error
    return None


def said(error: InputError, told: str | None = None) -> str:
    """An error without its place in a file, and without a key that is told already."""
    return f"{error.key + ': ' if error.key and error.key != told else ''}{error.message}"


def with_remedy(error: InputError, told: str | None = None) -> str:
    """The same, with what would help."""
    return said(error, told) + (f" ({error.remedy.removesuffix('.')})" if error.remedy else "")
