"""The discrete-event engine: one SimPy process per stream and rank.

A process sleeps once per run of kernels (:attr:`Segment.runs`); an event exists only while a stream really waits for
another stream or for an input. The times of single kernels follow afterwards, for all instructions of a segment
at once.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from simpy import Environment, Event

from joulecast.arrays import Int
from joulecast.errors import GuardError
from joulecast.simulator.events.segment_program import Program
from joulecast.simulator.events.segments import STREAMS


@dataclass(frozen=True, eq=False)
class RankKernels:
    """When every kernel of one rank ran, in the order of issue; arrays of shape ``(kernels,)``.

    Attributes
    ----------
    start_ns, end_ns
        [ns] since the start of the iteration.
    stream
        0 compute, 1 communication.
    instruction
        Position of the kernel's instruction in the rank's order.
    segment, kernel
        Index of the segment, and of the kernel within it.
    """

    start_ns: Int
    end_ns: Int
    stream: NDArray[np.uint8]
    instruction: Int
    segment: Int
    kernel: Int

    @property
    def first(self) -> Int:
        """First kernel of each instruction, every one of which has some."""
        return np.flatnonzero(np.diff(self.instruction, prepend=-1))


@dataclass(frozen=True, eq=False)
class EngineResult:
    """One simulated iteration.

    Attributes
    ----------
    time_ns
        When the last kernel of any rank ended [ns].
    start_ns, end_ns
        Per rank, when each instruction's first kernel started and its last one ended [ns].
    sent_ns
        Per rank, when each instruction's output was ready to be sent [ns].
    kernels
        Per rank, the times of all kernels; empty where they were not asked for.
    """

    time_ns: int
    start_ns: tuple[Int, ...]
    end_ns: tuple[Int, ...]
    sent_ns: tuple[Int, ...]
    kernels: tuple[RankKernels, ...]


def simulate(program: Program, *, kernels: bool = False) -> EngineResult:
    """Simulate one iteration kernel by kernel.

    Parameters
    ----------
    program
        What every rank executes.
    kernels
        Whether the times of all single kernels are wanted.

    Raises
    ------
    GuardError
        Where ranks wait for each other for ever.
    """
    state = _State(program)
    state.env.run()
    state.check_finished()
    details = [_expand(program, rank, state.run_start[rank]) for rank in range(program.ranks)]
    offsets = program.offsets
    sent = [np.array(state.sent[offsets[r] : offsets[r + 1]], dtype=np.int64) for r in range(program.ranks)]
    return EngineResult(
        time_ns=max(int(d.end_ns.max(initial=0)) for d in details),
        start_ns=tuple(np.minimum.reduceat(d.start_ns, d.first) for d in details),
        end_ns=tuple(np.maximum.reduceat(d.end_ns, d.first) for d in details),
        sent_ns=tuple(sent),
        kernels=tuple(details) if kernels else (),
    )


class _State:
    """What the processes of all streams share."""

    def __init__(self, program: Program) -> None:
        self.env = env = Environment(initial_time=0)
        self.program = program
        self.outputs = program.outputs
        total = program.offsets[-1]
        self.missing: list[int] = np.bincount(program.target, minlength=total).tolist()
        self.arrival = [0] * total
        self.sent = [0] * total
        self.waiting_for_input: dict[int, Event] = {}
        self.run_start: list[list[int]] = []
        self.finished = [[0] * STREAMS for _ in range(program.ranks)]
        self.waiting_for_stream: list[list[tuple[int, Event] | None]] = [[None] * STREAMS for _ in range(program.ranks)]
        self.expected = [[0] * STREAMS for _ in range(program.ranks)]
        for rank, order in enumerate(program.segment_of):
            used = [program.segments[s] for s in order]
            self.run_start.append([0] * sum(len(s.runs) for s in used))
            for stream in range(STREAMS):
                self.expected[rank][stream] = sum(len(s.runs_by_stream[stream]) for s in used)
                if self.expected[rank][stream]:
                    env.process(self.stream(rank, stream))

    def stream(self, rank: int, stream: int) -> Generator[Event, None, None]:
        """Execute one stream of a rank."""
        env, other, segments = self.env, 1 - stream, self.program.segments
        run_start, finished, waiting = self.run_start[rank], self.finished[rank], self.waiting_for_stream[rank]
        flat = self.program.offsets[rank]
        base = done = before = 0  # runs: of the rank, of this stream, of the other stream before this instruction
        for s in self.program.segment_of[rank]:
            segment = segments[s]
            for run in segment.runs_by_stream[stream]:
                if run.waits_for and finished[other] < before + run.waits_for:
                    event = env.event()
                    waiting[stream] = (before + run.waits_for, event)
                    yield event
                if run.needs_input:
                    yield from self.input(flat)
                run_start[base + run.number] = int(env.now)
                if run.duration_ns:
                    yield env.timeout(run.duration_ns)
                done += 1
                finished[stream] = done
                waiter = waiting[other]
                if waiter is not None and waiter[0] <= done:
                    waiting[other] = None
                    waiter[1].succeed()
                if run.is_output:
                    self.send(flat)
            base += len(segment.runs)
            before += len(segment.runs_by_stream[other])
            flat += 1

    def input(self, flat: int) -> Generator[Event, None, None]:
        """Wait until all inputs of an instruction have arrived."""
        if self.missing[flat]:
            self.waiting_for_input[flat] = event = self.env.event()
            yield event
        delay = self.arrival[flat] - self.env.now
        if delay > 0:
            yield self.env.timeout(delay)

    def send(self, flat: int) -> None:
        """Send the output of an instruction to whom it concerns."""
        now = self.sent[flat] = int(self.env.now)
        for target, latency in self.outputs[flat]:
            self.missing[target] -= 1
            self.arrival[target] = max(self.arrival[target], now + latency)
            if not self.missing[target] and target in self.waiting_for_input:
                self.waiting_for_input.pop(target).succeed()

    def check_finished(self) -> None:
        """Raise where a stream stopped before its last kernel."""
        for rank, (finished, expected) in enumerate(zip(self.finished, self.expected, strict=True)):
            if finished != expected:
                raise GuardError(f"rank {rank} waits for ever: {finished} of {expected} runs of its streams ended")


def _expand(program: Program, rank: int, run_start: list[int]) -> RankKernels:
    """Times of single kernels from those of runs: per segment, all its instructions at once."""
    order = np.array(program.segment_of[rank], dtype=np.int64)
    size = np.array([len(s) for s in program.segments], dtype=np.int64)
    run_count = np.array([len(s.runs) for s in program.segments], dtype=np.int64)
    first_kernel = np.cumsum(size[order]) - size[order]
    first_run = np.cumsum(run_count[order]) - run_count[order]
    starts = np.array(run_start, dtype=np.int64)
    total = int(size[order].sum())
    start, duration, kernel = (np.zeros(total, dtype=np.int64) for _ in range(3))
    stream = np.zeros(total, dtype=np.uint8)
    for s in np.unique(order):
        segment, at = program.segments[s], np.flatnonzero(order == s)
        place = first_kernel[at, None] + np.arange(len(segment))
        start[place] = starts[first_run[at, None] + segment.run_of_kernel] + segment.offset_in_run_ns
        duration[place] = segment.duration_ns
        stream[place] = segment.stream
        kernel[place] = np.arange(len(segment))
    instruction = np.repeat(np.arange(len(order)), size[order])
    return RankKernels(start, start + duration, stream, instruction, order[instruction], kernel)
