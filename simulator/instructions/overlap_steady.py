"""Overlap in a stack of equal layers, found from a few of them.

:mod:`joulecast.simulator.instructions.overlap` walks through launches one by one. In a long run of equal layers only
the outer ones differ, so that a few are walked through and the rest take what their neighbours take. Lists of launches
with the same waits are walked through together, with their clocks side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.contention import Alone
from joulecast.simulator.instructions.overlap import blocks_of, contended

Array = NDArray[np.float64]

#: Periods that are walked through; the last but one stands for those left out.
WALKED = 5
#: How well that one must agree with the one before it.
AGREEMENT = 1e-9
#: Candidates for the length of a period.
_CANDIDATES = 16


def contended_stack(launches: Sequence[Launch], kernels: Alone, gpu: GpuModel) -> Array:
    """As :func:`joulecast.simulator.instructions.overlap.contended`, much faster where launches repeat.

    Kernels influence only those near them, so that in a long run of equal layers all but the outer ones take the same
    time. Where those walked through do not settle, all are.
    """
    begin, period, count = repeating(launches)
    if count <= WALKED:
        return contended(launches, kernels, gpu)
    skip = (count - WALKED) * period
    resume = begin + WALKED * period
    kept = np.r_[0:resume, resume + skip : len(launches)]
    taken = contended([launches[i] for i in kept], _rows(kernels, kept), gpu)
    steady = taken[resume - 2 * period : resume - period]
    if not np.allclose(steady, taken[resume - 3 * period : resume - 2 * period], rtol=AGREEMENT, atol=0.0):
        return contended(launches, kernels, gpu)
    middle = np.tile(steady, (count - WALKED, 1))
    return np.vstack([taken[: resume - period], middle, taken[resume - period :]])


def contended_stacks(lists: Sequence[Sequence[Launch]], kernels: Sequence[Alone], gpu: GpuModel) -> list[Array]:
    """:func:`contended_stack` of many lists of launches, those with the same pattern in one walk.

    Parameters
    ----------
    kernels
        One kernel of every launch of each list alone; all lists at the same number of clocks.
    """
    alike: dict[object, list[int]] = {}
    for number, launches in enumerate(lists):
        alike.setdefault(_pattern(launches, gpu), []).append(number)
    found: list[Array] = [np.empty(0)] * len(lists)
    for members in alike.values():
        if repeating(lists[members[0]])[2] > WALKED:  # what is left out is decided for each on its own
            for number in members:
                found[number] = contended_stack(lists[number], kernels[number], gpu)
            continue
        together = contended_stack(lists[members[0]], side_by_side([kernels[i] for i in members]), gpu)
        for number, taken in zip(members, np.split(together, len(members), axis=1), strict=True):
            found[number] = taken
    return found


def _pattern(launches: Sequence[Launch], gpu: GpuModel) -> tuple[object, ...]:
    """All that a walk reads of launches but their kernels' times: their settings, and which are the same object."""
    seen: dict[int, int] = {}
    return tuple(
        (
            x.stream,
            x.waits,
            x.outstanding,
            x.repeat,
            x.prompt,
            blocks_of(x, gpu),
            seen.setdefault(id(x), len(seen)),
            seen.setdefault(id(x.operator), len(seen)),
        )
        for x in launches
    )


def side_by_side(kernels: Sequence[Alone]) -> Alone:
    """Kernels of several lists, or of one under several conditions, as columns of one."""
    if len(kernels) == 1:
        return kernels[0]
    return Alone(*(np.hstack([getattr(one, field.name) for one in kernels]) for field in fields(Alone)))


def repeating(launches: Sequence[Launch]) -> tuple[int, int, int]:
    """Beginning, length and number of the periods in the middle of a list, by the identity of its launches."""
    who = np.fromiter(map(id, launches), dtype=np.int64, count=len(launches))
    middle = len(who) // 2
    again = np.flatnonzero(who[middle + 1 :] == who[middle])[:_CANDIDATES] + 1 if len(who) else ()
    for period in again:
        differs = np.flatnonzero(who[:-period] != who[period:])
        begin = differs[differs < middle].max(initial=-1) + 1
        end = differs[differs > middle].min(initial=len(who) - period) + period
        if (end - begin) // period > WALKED:
            return int(begin), int(period), int((end - begin) // period)
    return 0, len(launches), 1


def shortened(launches: Sequence[Launch]) -> Sequence[Launch]:
    """The same without most of the equal layers in its middle."""
    begin, period, count = repeating(launches)
    if count <= WALKED:
        return launches
    resume = begin + WALKED * period
    return [*launches[:resume], *launches[resume + (count - WALKED) * period :]]


def _rows(kernels: Alone, rows: NDArray[np.int64]) -> Alone:
    return Alone(*(getattr(kernels, field.name)[rows] for field in fields(Alone)))
