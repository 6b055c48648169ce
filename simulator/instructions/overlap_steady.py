"""Overlap in a stack of equal layers, found from a few of them.

:mod:`joulecast.simulator.instructions.overlap` walks through launches one by one. In a long run of equal layers only
the outer ones differ, so that a few are walked through and the rest take what their neighbours take. Lists of launches
with the same waits are walked through together, with their clocks side by side. So are joint deviations of what no
kernel alone reads: how kernels of compute and communication slow each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.contention import Alone
from joulecast.simulator.instructions.overlap import blocks_of, contended

#: Periods that are walked through; the last but one stands for those left out.
WALKED = 5
#: How well that one must agree with the one before it.
AGREEMENT = 1e-9
#: Candidates for the length of a period.
_CANDIDATES = 16
#: Parameters that no kernel alone reads, by the beginnings of their names.
BESIDE = ("contention.", "collective.transfer_ctas")


def contended_stack(launches: Sequence[Launch], kernels: Alone, gpu: GpuModel) -> Array:
    """As :func:`joulecast.simulator.instructions.overlap.contended`, much faster where launches repeat."""
    return contended_stacks([launches], [kernels], gpu)[0]


def contended_stacks(lists: Sequence[Sequence[Launch]], kernels: Sequence[Alone], gpu: GpuModel) -> list[Array]:
    """:func:`~joulecast.simulator.instructions.overlap.contended` of many lists, those of one pattern in one walk.

    Kernels influence only those near them, so that in a long run of equal layers all but the outer ones take the same
    time. Where those walked through do not settle, all are.

    Parameters
    ----------
    kernels
        One kernel of every launch of each list alone, all at the same clocks: launches of one operator take the same.
    """
    middles = [_Middle(*repeating(launches)) for launches in lists]
    walked = [shortened(launches, middle) for launches, middle in zip(lists, middles, strict=True)]
    alike: dict[object, dict[object, list[int]]] = {}
    for number, launches in enumerate(walked):
        same = alike.setdefault(_pattern(launches, gpu), {})
        same.setdefault(tuple(id(launch.operator) for launch in launches), []).append(number)
    found: list[Array] = [np.empty(0)] * len(lists)
    for kinds in alike.values():
        firsts = [members[0] for members in kinds.values()]
        alone = [_rows(kernels[i], middles[i].kept(len(lists[i]))) for i in firsts]
        several = _for_lists(gpu, len(firsts))
        together = contended(walked[firsts[0]], side_by_side(alone), several)
        for members, taken in zip(kinds.values(), np.split(together, len(firsts), axis=1), strict=True):
            for number in members:
                whole = middles[number].filled(taken)
                found[number] = contended(lists[number], kernels[number], gpu) if whole is None else whole
    return found


@dataclass(frozen=True)
class _Middle:
    """The run of equal layers in a list of launches: where it begins, and length and number of its periods."""

    begin: int
    period: int
    count: int

    @property
    def skipped(self) -> int:
        """Launches that are not walked through."""
        return max(self.count - WALKED, 0) * self.period

    @property
    def resume(self) -> int:
        """First launch that is left out."""
        return self.begin + WALKED * self.period

    def kept(self, length: int) -> Int:
        """Places of the launches that are walked through, in a list of so many."""
        return np.r_[0 : self.resume, self.resume + self.skipped : length] if self.skipped else np.arange(length)

    def filled(self, taken: Array) -> Array | None:
        """Times of all launches from those walked through; ``None`` where these do not settle."""
        if not self.skipped:
            return taken
        last = self.resume - self.period
        steady = taken[last - self.period : last]
        if not np.allclose(steady, taken[last - 2 * self.period : last - self.period], rtol=AGREEMENT, atol=0.0):
            return None
        return np.vstack([taken[:last], np.tile(steady, (self.count - WALKED, 1)), taken[last:]])


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
            x.free_sms,
            blocks_of(x.operator, gpu),
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


def in_columns_of(gpu: GpuModel, deviations: Sequence[Mapping[str, float]], columns: int) -> GpuModel:
    """The GPU with arrays for these parameters: its own values first, then each deviation's, ``columns`` of each.

    What reads them gives columns in the same order, shape ``(…, (1 + k)·columns)`` for ``k`` deviations.
    """
    names = [name for name in deviations[0] if name.startswith(BESIDE)]
    values = {name: np.array([gpu[name], *(each[name] for each in deviations)]) for name in names}
    # A number and an array of them broadcast alike, wherever these parameters are read.
    several: dict[str, float] = {name: np.repeat(value, columns) for name, value in values.items()}  # type: ignore[misc]
    return gpu.with_values(several)


def _for_lists(gpu: GpuModel, lists: int) -> GpuModel:
    """The GPU for several lists side by side, each of which has the columns of such arrays."""
    if lists == 1:
        return gpu
    arrays = {name: value for name, value in gpu.parameters.items() if isinstance(value, np.ndarray)}
    several: dict[str, float] = {name: np.tile(value, lists) for name, value in arrays.items()}  # type: ignore[misc]
    return gpu.with_values(several) if several else gpu


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


def shortened(launches: Sequence[Launch], middle: _Middle | None = None) -> Sequence[Launch]:
    """The same without most of the equal layers in its middle."""
    middle = middle or _Middle(*repeating(launches))
    if not middle.skipped:
        return launches
    return [*launches[: middle.resume], *launches[middle.resume + middle.skipped :]]


def _rows(kernels: Alone, rows: Int) -> Alone:
    return Alone(*(getattr(kernels, field.name)[rows] for field in fields(Alone)))
