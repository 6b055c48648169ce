"""Length of a pipelined iteration in closed form, for many plans at once.

With f and b the times of a stage's forward and backward, d the delay between stages, p ranks and m micro-batches:

- GPipe is two flow shops of equal jobs: ``Σf + (m − 1)·max f + Σb + (m − 1)·max b + 2(p − 1)d``.
- 1F1B: the longest of the paths on which work waits for work. One goes down to a rank, the forwards of whose warm-up it
  takes at the slowest rank on the way, and up to rank a; from there ``m − 1 − (p − a)`` micro-batches pass at the pace
  of the slowest window of k neighbouring ranks from a on, which lets k pass in ``Σ_window (f + b) + 2(k − 1)d``; then
  down and up to the end. Others take all forwards, or all backwards, at one rank, and turn once.
- Interleaved 1F1B: each rank works through all its chunks, ``m·W``, between the arrival of its first input and the
  return of its last output; where the micro-batches that follow each other in a chunk (p, or all if there are fewer)
  take less time than its output needs to come round, the rank waits for the difference.
- ZB-H1: as 1F1B, but weight gradients fill the way back, but for those of the last rank's last micro-batches.

Equal stages: exact; unequal ones as well with GPipe and 1F1B. With the others the paths named here are nearly always
the longest; see tests for how near. Where they are not, :mod:`joulecast.simulator.closed_form.pipeline_walk` says how
much longer a pipeline is.

References: Narayanan et al., arXiv:2104.04473; Qi et al., arXiv:2401.10241.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Int

#: Most values of one array of windows of ranks, which stays in a core's cache.
MOST_VALUES = 32_768


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Times of ``n`` plans with ``p`` pipeline ranks and one schedule.

    Attributes
    ----------
    forward_s, backward_s, weight_s
        Of one micro-batch on each rank, all its chunks together; the weight gradient only where the schedule splits
        it off, else 0. Shape ``(n, p)`` [s].
    first_s, last_s
        Forward and backward of each rank's first and last chunk, shape ``(2, n, p)`` [s].
    tail_s
        What follows the last backward, shape ``(n, p)`` [s].
    drain_s
        What of it, a reduction of gradients within the last backward, the rank before waits for, shape ``(n, p)`` [s].
    transfer_s
        From one stage to the next, shape ``(n,)`` [s].
    microbatches, chunks
        Shape ``(n,)``.
    stretch
        How much longer a pipeline is than its formula says, without tails, shape ``(n,)`` [1].
    spare
        How much longer a rank's tail may last than the first's before others wait for it, as a share of the
        pipeline's length without tails; NaN where the formula says it, shape ``(n, p)`` [1].
    """

    forward_s: Array
    backward_s: Array
    weight_s: Array
    first_s: Array
    last_s: Array
    tail_s: Array
    drain_s: Array
    transfer_s: Array
    microbatches: Array
    chunks: Array
    stretch: Array | float = 1.0
    spare: Array | float = np.nan

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return int(self.forward_s.shape[1])

    @property
    def work_s(self) -> Array:
        """One micro-batch's whole work on each rank, shape ``(n, p)`` [s]."""
        return self.forward_s + self.backward_s + self.weight_s


def iteration_time_s(schedule: str, times: StageTimes) -> Array:
    """From one iteration's start to the next one's, shape ``(n,)`` [s].

    Parameters
    ----------
    schedule
        ``none gpipe 1f1b interleaved-1f1b zb-h1``, or one that was added.
    """
    busy = (times.microbatches[:, None] * times.work_s + times.tail_s).max(axis=1)
    if times.ranks == 1:
        return np.asarray(busy)
    length = times.stretch * length_s(schedule, times)
    return np.asarray(np.maximum(length + _tail_s(times, length), busy))


def length_s(schedule: str, times: StageTimes) -> Array:
    """From the start to the first rank's last backward by formula, shape ``(n,)`` [s]; several ranks.

    A schedule that was added has that of 1F1B, which only says how its length goes with the clocks.
    """
    return _LENGTHS.get(schedule, _one_f_one_b_s)(times)


def _tail_s(t: StageTimes, length_s: Array) -> Array:
    """What the tails add: a rank's own is hidden while its neighbours below still end, and begin again.

    Drains are not: a rank's last backward begins when that of the rank above, with its drain, has ended.
    """
    slack = _below(t.first_s.sum(0)) + 2.0 * np.arange(t.ranks) * t.transfer_s[:, None]
    slack = np.where(np.isnan(t.spare), slack, t.spare * length_s[:, None])
    above = t.drain_s.sum(1, keepdims=True) - t.drain_s.cumsum(1)
    return np.asarray((t.tail_s + above - slack).max(axis=1).clip(0.0))


def _below(values: Array) -> Array:
    """Sum over the ranks before each, shape ``(n, p)``."""
    return np.asarray(values.cumsum(1) - values)


def _gpipe_s(t: StageTimes) -> Array:
    again = t.microbatches - 1.0
    way = 2.0 * (t.ranks - 1.0) * t.transfer_s
    return sum((part.sum(1) + again * part.max(1) for part in (t.forward_s, t.backward_s)), way)


def _one_f_one_b_s(t: StageTimes) -> Array:
    again, ranks, delay = t.microbatches[:, None] - 1.0, np.arange(t.ranks), t.transfer_s[:, None]
    ways = [_Way(part, again, delay) for part in (t.forward_s, t.backward_s)]
    (down, all_down), (up, all_up) = ((way.warmed_up, way.at_one_rank) for way in ways)
    turned_once = np.maximum(all_down + up, down + all_up).max(1)
    begin, end = (
        _later_max(way + other.through + ranks * delay) - ranks * delay - other.before
        for way, other in zip((down, up), reversed(ways), strict=True)
    )
    left = again - (t.ranks - ranks)
    passing = _passing_from_s(t.work_s, delay, left.clip(0.0).astype(np.int64))
    longest: Array = np.maximum(turned_once, np.where(left >= 0, begin + passing + end, 0.0).max(1))
    return longest


class _Way:
    """Forwards, or backwards, of 1F1B from the first rank to each of the ranks; all of shape ``(n, p)`` [s].

    Attributes
    ----------
    through, before
        One micro-batch to the end of a rank's work, and to its beginning, without delays.
    warmed_up, at_one_rank
        With as many further ones as the rank's warm-up has, and with all: each at the slowest rank on the way.
    """

    def __init__(self, work_s: Array, again: Array, delay_s: Array) -> None:
        ranks = np.arange(work_s.shape[1])
        slowest = np.maximum.accumulate(work_s, axis=1)
        self.through = work_s.cumsum(1)
        self.before = self.through - work_s
        alone = self.through + ranks * delay_s
        self.warmed_up = alone + np.minimum(len(ranks) - 1 - ranks, again) * slowest
        self.at_one_rank = alone + again * slowest


def _later_max(values: Array) -> Array:
    """Highest from each rank on, shape ``(…, p)``."""
    return np.asarray(np.maximum.accumulate(values[..., ::-1], axis=-1)[..., ::-1])


def _passing_from_s(work_s: Array, delay_s: Array, count: Int) -> Array:
    """Time in which micro-batches pass the slowest window of ranks from each rank on, shape ``(n, p)``.

    ``count`` of them, shape ``(n, p)`` or ``(n, 1)``.
    """
    most = max(1, MOST_VALUES // work_s.shape[1] ** 2)
    some = [slice(start, start + most) for start in range(0, len(work_s), most)]
    return np.concatenate([_passing_of_some_s(work_s[own], delay_s[own], count[own]) for own in some])


def _passing_of_some_s(work_s: Array, delay_s: Array, count: Int) -> Array:
    """The same of few plans, with every size of window at once: shape ``(sizes, n, p)``."""
    plans, ranks = work_s.shape
    total = np.zeros((plans, ranks + 1))
    np.cumsum(work_s, axis=1, out=total[:, 1:])
    size, first = np.arange(1, ranks + 1)[:, None, None], np.arange(ranks)
    end = size[:, 0] + first
    behind = total[:, np.minimum(end, ranks)].swapaxes(0, 1)
    windows = np.where(end[:, None] <= ranks, behind - total[:, :-1] + 2.0 * (size - 1) * delay_s, 0.0)
    pace = np.zeros((ranks + 1, plans, ranks))  # of windows of so many ranks
    pace[1:] = _later_max(windows)
    whole, rest = np.divmod(count, size)
    return np.asarray((whole * pace[1:] + pace[rest, np.arange(plans)[:, None], first]).max(0))


def _round_trip_s(t: StageTimes) -> Array:
    """One micro-batch down and up the pipeline."""
    return np.asarray((t.forward_s + t.backward_s).sum(1) + 2.0 * (t.ranks - 1.0) * t.transfer_s)


def _interleaved_s(t: StageTimes) -> Array:
    first, last = t.first_s.sum(0), t.last_s.sum(0)
    after = last.sum(1)[:, None] - last.cumsum(1)
    own = _below(first) + after + t.microbatches[:, None] * t.work_s
    way = 2.0 * (t.ranks - 1.0) * t.transfer_s
    chunk = np.minimum(t.first_s, t.last_s)
    together = (t.microbatches / np.maximum(t.microbatches // t.ranks, 1.0))[:, None]
    round_s = chunk.sum(2)[:, :, None] - together * chunk + t.ranks * t.transfer_s[:, None]
    waits = (t.chunks[:, None] - 1.0) * round_s.clip(0.0).sum(0)
    return np.asarray((own + waits).max(1) + way)


def _zero_bubble_s(t: StageTimes) -> Array:
    early = np.minimum(t.microbatches, t.ranks) - 1.0
    later = (t.microbatches - t.ranks).clip(0.0)
    work, delay = t.forward_s + t.backward_s, t.transfer_s[:, None]
    filling = _passing_from_s(work, delay, early[:, None].astype(np.int64))[:, 0] + 2.0 * t.transfer_s * (later > 0)
    return np.asarray(_round_trip_s(t) + filling + later * t.work_s.max(1) + t.weight_s[:, 0])


_LENGTHS = {
    "gpipe": _gpipe_s,
    "1f1b": _one_f_one_b_s,
    "none": _one_f_one_b_s,
    "interleaved-1f1b": _interleaved_s,
    "zb-h1": _zero_bubble_s,
}
