"""Which rows of a sweep are left out, in the ways that the suites ``dvfs`` and ``power-limit`` ask about.

- *inside*: some of a card's settings between its lowest and highest are left out, of all its workloads at once;
- *edges*: a card's two lowest and two highest settings are left out, of all its workloads at once;
- *edges of one workload*: a workload's own two lowest and highest are left out, while other workloads keep theirs;
- *workload*: of a workload and its copies nothing is known but one row each, at the middle of its settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from joulecast.calibrate.clock_sweeps.forecast import FEWEST_SETTINGS
from joulecast.calibrate.clock_sweeps.rows import SweepRow, WorkloadKey

INSIDE, EDGES, ONE_EDGES, WORKLOAD = "inside", "edges", "edges of one workload", "workload"
#: Ways of each kind of sweep.
WAYS = {"clock": (INSIDE, EDGES, WORKLOAD), "limit": (INSIDE, EDGES, ONE_EDGES)}
#: Settings left out at each end.
AT_EACH_END = 2


@dataclass(frozen=True, slots=True)
class Part:
    """One fit: positions of the rows that it may read, of those that it must forecast, and of those it cannot.

    ``training`` holds no row of ``asked`` and no row at a setting that is left out of all workloads. ``refused`` gives
    the reason by position.
    """

    way: str
    training: tuple[int, ...]
    asked: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)


def parts(rows: Sequence[SweepRow], folds: int) -> Iterator[Part]:
    """All parts for the usable rows of one card."""
    usable = [i for i, row in enumerate(rows) if not row.unusable]
    if not usable:
        return
    for way in WAYS[rows[usable[0]].kind]:
        if way == INSIDE:
            yield from _inside(rows, usable, folds)
        elif way == EDGES:
            yield _edges(rows, usable)
        elif way == ONE_EDGES:
            yield from _edges_of_one(rows, usable, folds)
        else:
            yield from _workloads(rows, usable, folds)


def _settings(rows: Sequence[SweepRow], positions: Sequence[int]) -> list[float]:
    return sorted({rows[i].setting for i in positions})


def _by_workload(rows: Sequence[SweepRow], positions: Sequence[int]) -> dict[WorkloadKey, list[int]]:
    """Positions of each workload, by setting."""
    groups: dict[WorkloadKey, list[int]] = {}
    for i in sorted(positions, key=lambda i: rows[i].setting):
        groups.setdefault(rows[i].key, []).append(i)
    return groups


def _part(rows: Sequence[SweepRow], way: str, training: Sequence[int], wanted: Sequence[int], least: int) -> Part:
    """A part whose workloads need ``least`` training rows each, on a card with enough settings left."""
    if len(_settings(rows, training)) < FEWEST_SETTINGS:
        reason = f"too few settings of this card remain to fit when left out: {way}"
        return Part(way, tuple(training), (), dict.fromkeys(wanted, reason))
    left = {key: len(own) for key, own in _by_workload(rows, training).items()}
    asked = [i for i in wanted if left.get(rows[i].key, 0) >= least]
    reason = f"fewer than {least} rows of this workload remain when left out: {way}"
    return Part(way, tuple(training), tuple(asked), dict.fromkeys(sorted(set(wanted) - set(asked)), reason))


def _inside(rows: Sequence[SweepRow], usable: Sequence[int], folds: int) -> Iterator[Part]:
    """Each fold leaves out every so-manieth setting; a workload is asked where it has rows on both sides."""
    inner = _settings(rows, usable)[1:-1]
    for fold in range(min(folds, len(inner))):
        left_out = set(inner[fold::folds])
        training = [i for i in usable if rows[i].setting not in left_out]
        ends = {key: (rows[own[0]].setting, rows[own[-1]].setting) for key, own in _by_workload(rows, training).items()}
        wanted = []
        for i in usable:
            low, high = ends.get(rows[i].key, (0.0, 0.0))
            if rows[i].setting in left_out and low < rows[i].setting < high:
                wanted.append(i)
        yield _part(rows, INSIDE, training, wanted, 2)


def _edges(rows: Sequence[SweepRow], usable: Sequence[int]) -> Part:
    settings = _settings(rows, usable)
    left_out = {*settings[:AT_EACH_END], *settings[-AT_EACH_END:]}
    training = [i for i in usable if rows[i].setting not in left_out]
    return _part(rows, EDGES, training, [i for i in usable if rows[i].setting in left_out], 2)


def _edges_of_one(rows: Sequence[SweepRow], usable: Sequence[int], folds: int) -> Iterator[Part]:
    """Each fold leaves out the ends of every so-manieth workload."""
    workloads = _by_workload(rows, usable)
    order = sorted(workloads)
    for fold in range(min(folds, len(order))):
        ends: set[int] = set()
        for key in order[fold::folds]:
            own = workloads[key]
            ends.update((*own[:AT_EACH_END], *own[-AT_EACH_END:]))
        training = [i for i in usable if i not in ends]
        yield _part(rows, ONE_EDGES, training, sorted(ends), 2)


def _workloads(rows: Sequence[SweepRow], usable: Sequence[int], folds: int) -> Iterator[Part]:
    """Each fold leaves out every so-manieth workload with its copies, but for one row each."""
    families = sorted({rows[i].family for i in usable})
    if len(families) == 1:
        reason = "the only workload of this card: no other to forecast it from"
        yield Part(WORKLOAD, (), (), dict.fromkeys(usable, reason))
        return
    for fold in range(min(folds, len(families))):
        left_out = set(families[fold::folds])
        mine = [i for i in usable if rows[i].family in left_out]
        references = [own[len(own) // 2] for own in _by_workload(rows, mine).values()]
        training = sorted([*(i for i in usable if rows[i].family not in left_out), *references])
        yield _part(rows, WORKLOAD, training, sorted(set(mine) - set(references)), 1)
