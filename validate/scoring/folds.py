"""Grouped cross-validation without randomness: near-duplicates of a row never help to predict it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import group_key
from joulecast.errors import InputError


def check_folds(folds: int) -> None:
    """Refuse folds of which none would be left to learn from."""
    if folds < 2:
        raise InputError(f"{folds} folds", key="--folds", remedy="Use at least 2.")


def fold_of_groups(rows: Sequence[Row], folds: int) -> dict[tuple[Hashable, ...], int]:
    """Fold of every group: groups sorted by key and dealt out in turn, so that neighbours in size are parted."""
    keys = {group_key(row.configuration) for row in rows}
    return {key: i % folds for i, key in enumerate(sorted(keys, key=_sortable))}


def _sortable(key: tuple[Hashable, ...]) -> tuple[tuple[bool, float, str], ...]:
    """Numbers by size, words by spelling, in one order."""
    return tuple((False, float(part), "") if isinstance(part, int | float) else (True, 0.0, str(part)) for part in key)


def split(rows: Sequence[Row], shipped: Sequence[Row], folds: int) -> list[tuple[list[Row], list[int]]]:
    """Training rows and positions of the held-out rows of each fold.

    Training rows are the given rows of the other folds and the shipped rows whose group is not held out; a row that
    stands in both counts once.

    Raises
    ------
    InputError
        If there are fewer than two folds or no rows.
    """
    check_folds(folds)
    if not rows:
        raise InputError("no rows to validate", key="--data", remedy="Give a file that holds rows of this suite.")
    fold_of = fold_of_groups(rows, folds)
    parts = []
    for fold in range(max(fold_of.values()) + 1):
        held_out = {key for key, number in fold_of.items() if number == fold}
        positions = [i for i, row in enumerate(rows) if group_key(row.configuration) in held_out]
        training = without_groups(rows, held_out)
        parts.append((merge(training, without_groups(shipped, held_out)), positions))
    return parts


def without_groups(rows: Sequence[Row], held_out: set[tuple[Hashable, ...]]) -> list[Row]:
    """Rows of none of the groups."""
    return [row for row in rows if group_key(row.configuration) not in held_out]


def merge(rows: Sequence[Row], more: Sequence[Row]) -> list[Row]:
    """Both lists in order; the same measurement counts once."""
    seen = {_identity(row) for row in rows}
    return [*rows, *(row for row in more if _identity(row) not in seen)]


def _identity(row: Row) -> tuple[str, float | None, float]:
    return (row.name, row.measured.time_s, row.settle_s)


def evenly_chosen(rows: Sequence[Row], count: int) -> list[int]:
    """Positions of ``count`` rows spread evenly over the sorted groups."""
    order = sorted(range(len(rows)), key=lambda i: (_sortable(group_key(rows[i].configuration)), rows[i].name))
    return sorted(order[i] for i in evenly_spread(len(rows), count))


def evenly_spread(rows: int, count: int) -> list[int]:
    """``count`` of so many places, evenly spread.

    Raises
    ------
    InputError
        If nothing is left.
    """
    if count >= rows:
        raise InputError(
            f"{count} rows to fit on, but only {rows} rows",
            key="--calibrate-rows",
            remedy=f"Use at most {rows - 1}." if rows > 1 else "Leave the option out.",
        )
    return [int((i + 0.5) * rows / count) for i in range(count)]
