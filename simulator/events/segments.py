"""Segments: the kernels of one type of instruction.

Durations are integer nanoseconds: every engine of this package then finds the same time exactly, in any order of
summation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulecast.arrays import Array, Int
from joulecast.errors import InputError
from joulecast.model.kernels.operators import Operator

COMPUTE, COMMUNICATION = 0, 1
STREAMS = 2


class Run(NamedTuple):
    """Kernels of one stream that follow each other without waiting or being waited for in between."""

    number: int
    stream: int
    duration_ns: int
    waits_for: int  # how many runs of the other stream, counted within the segment, must have ended; 0 none
    needs_input: bool
    is_output: bool


@dataclass(frozen=True, eq=False)
class Segment:
    """Kernels of one instruction type on one rank, in the order of issue.

    A kernel starts when its stream has finished what was issued before and the kernel that it waits for has ended; the
    first one also waits for the instruction's input.

    Attributes
    ----------
    duration_ns
        Shape ``(n,)`` [ns].
    stream
        0 compute, 1 communication; shape ``(n,)``.
    wait
        Index of an earlier kernel of the other stream that must end first, −1 for none; shape ``(n,)``. To wait for
        what earlier instructions left on the other stream, issue a kernel of duration 0 there and wait for it.
    output_kernel
        The kernel after which the instruction's output is sent.
    names
        One label per kernel, or nothing.
    operators
        What each kernel does, ``None`` where it only waits, or nothing.
    power_w
        Power by component while the kernel runs, shape ``(n, components)``, or nothing [W].
    """

    duration_ns: Int
    stream: NDArray[np.uint8]
    wait: NDArray[np.int32]
    output_kernel: int
    names: tuple[str, ...] = ()
    power_w: Array = field(default_factory=lambda: np.zeros((0, 0)))
    operators: tuple[Operator | None, ...] = ()

    def __len__(self) -> int:
        return len(self.duration_ns)

    @cached_property
    def run_of_kernel(self) -> Int:
        """Index into :attr:`runs` of each kernel's run, shape ``(n,)``."""
        return self._cut[0]

    @cached_property
    def offset_in_run_ns(self) -> Int:
        """Time from the start of its run to the start of each kernel, shape ``(n,)`` [ns]."""
        return self._cut[1]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Runs of both streams, in the order of their first kernels."""
        return self._cut[2]

    @cached_property
    def runs_by_stream(self) -> tuple[tuple[Run, ...], ...]:
        """The runs of each stream, in order."""
        return tuple(tuple(run for run in self.runs if run.stream == s) for s in range(STREAMS))

    @cached_property
    def _cut(self) -> tuple[Int, Int, tuple[Run, ...]]:
        n = len(self)
        starts_run = self.wait >= 0
        ends_run = np.zeros(n, dtype=bool)
        ends_run[self.wait[self.wait >= 0]] = True
        ends_run[self.output_kernel] = True
        run_of = np.zeros(n, dtype=np.int64)
        offset = np.zeros(n, dtype=np.int64)
        firsts: list[int] = []
        for s in range(STREAMS):
            kernels = np.flatnonzero(self.stream == s)
            if not len(kernels):
                continue
            first = starts_run[kernels]
            first[0] = True
            first[1:] |= ends_run[kernels[:-1]]
            before = np.cumsum(self.duration_ns[kernels]) - self.duration_ns[kernels]
            number = np.cumsum(first) - 1
            offset[kernels] = before - before[first][number]
            run_of[kernels] = len(firsts) + number
            firsts.extend(int(k) for k in kernels[first])
        rank_of = np.argsort(np.argsort(np.array(firsts)))
        run_of = rank_of[run_of]
        return run_of, offset, self._describe(run_of, sorted(firsts))

    def _describe(self, run_of: Int, firsts: list[int]) -> tuple[Run, ...]:
        duration = np.zeros(len(firsts), dtype=np.int64)
        np.add.at(duration, run_of, self.duration_ns)
        place: list[int] = []
        count = [0] * STREAMS
        for k in firsts:
            count[self.stream[k]] += 1
            place.append(count[self.stream[k]])
        output_run = int(run_of[self.output_kernel])
        return tuple(
            Run(
                number=i,
                stream=int(self.stream[k]),
                duration_ns=int(duration[i]),
                waits_for=place[run_of[self.wait[k]]] if self.wait[k] >= 0 else 0,
                needs_input=k == 0,
                is_output=i == output_run,
            )
            for i, k in enumerate(firsts)
        )


def make_segment(
    duration_ns: ArrayLike,
    *,
    stream: ArrayLike | None = None,
    wait: ArrayLike | None = None,
    output_kernel: int | None = None,
    names: Sequence[str] = (),
    power_w: ArrayLike | None = None,
    operators: Sequence[Operator | None] = (),
) -> Segment:
    """Validated :class:`Segment`; by default one stream, and output after the last kernel.

    Raises
    ------
    InputError
        On empty or negative durations, shapes that differ, or waits that do not point back to the other stream.
    """
    duration = np.ascontiguousarray(duration_ns, dtype=np.int64)
    n = len(duration)
    streams = np.zeros(n, np.uint8) if stream is None else np.asarray(stream, dtype=np.uint8)
    waits = np.full(n, -1, np.int32) if wait is None else np.asarray(wait, dtype=np.int32)
    last = n - 1 if output_kernel is None else output_kernel
    power = np.zeros((0, 0)) if power_w is None else np.asarray(power_w, dtype=np.float64).reshape(n, -1)
    if n == 0 or duration.ndim != 1 or streams.shape != duration.shape or waits.shape != duration.shape:
        raise InputError(f"a segment needs arrays of one length, got {duration.shape} {streams.shape} {waits.shape}")
    if duration.min() < 0 or streams.max() >= STREAMS:
        raise InputError("a segment's durations must not be negative and its streams must be 0 or 1")
    if not 0 <= last < n or (names and len(names) != n):
        raise InputError(f"a segment of {n} kernels: output or names point elsewhere")
    at = np.flatnonzero(waits >= 0)
    if np.any(waits[at] >= at) or np.any(streams[waits[at]] == streams[at]):
        raise InputError("a kernel may only wait for an earlier kernel of the other stream")
    return Segment(duration, streams, waits, last, tuple(names), power, tuple(operators))
