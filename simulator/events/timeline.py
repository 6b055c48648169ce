"""What one GPU did and what it drew: intervals, power over time and the energy ledger.

At any time the GPU draws its base power, the power of every interval that is running and, while none is, the waiting
power. The ledger sums intervals; the profile sums over time: guards compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulecast.arrays import Array, Int
from joulecast.errors import InputError
from joulecast.extras import require

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.simulator.events.engine import RankKernels
    from joulecast.simulator.events.segment_program import Program


#: Share by which a whole number of steps may come out longer.
ROUNDING = 1e-12

WAITING = "waiting"
BASE = "base"


def covered_ns(start_ns: Int, end_ns: Int) -> int:
    """Time within at least one of several intervals [ns]."""
    if not len(start_ns):
        return 0
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], np.maximum.accumulate(end_ns[order])
    before = np.concatenate([start[:1], end[:-1]])
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


@dataclass(frozen=True, eq=False)
class PowerProfile:
    """Piecewise constant power of one GPU.

    Attributes
    ----------
    time_ns
        Borders of the pieces, shape ``(n + 1,)`` [ns].
    power_w
        Power within each piece, shape ``(n,)`` [W].
    """

    time_ns: Int
    power_w: Array

    @property
    def energy_j(self) -> float:
        """Integral of power over time [J]."""
        return float(np.diff(self.time_ns) @ self.power_w) * 1e-9

    @property
    def mean_w(self) -> float:
        """Mean power [W]."""
        span = int(self.time_ns[-1] - self.time_ns[0])
        return self.energy_j / (span * 1e-9) if span else 0.0

    def resampled(self, step_s: float) -> tuple[Array, Array]:
        """Mean power in equal steps: (start of each step [s], power [W]); the last may end in nothing."""
        steps = math.ceil((self.time_ns[-1] - self.time_ns[0]) * 1e-9 / step_s * (1.0 - ROUNDING))
        edges = self.time_ns[0] * 1e-9 + step_s * np.arange(steps + 1)
        energy = np.concatenate([[0.0], np.cumsum(np.diff(self.time_ns) * self.power_w)]) * 1e-9
        at = np.interp(edges, self.time_ns * 1e-9, energy)
        return edges[:-1], np.diff(at) / step_s


@dataclass(frozen=True, eq=False)
class Timeline:
    """Intervals of one GPU as arrays of shape ``(n,)``, and what they draw.

    Attributes
    ----------
    rank
        The GPU's rank.
    begin_ns, finish_ns
        Bounds of the timeline [ns].
    start_ns, end_ns
        Of each interval [ns].
    stream
        0 compute, 1 communication.
    instruction
        Position of the interval's instruction in the rank's order.
    name
        Index into ``names`` of each interval.
    names
        Labels of kernels.
    instruction_names
        Labels of instructions, by position.
    components
        Labels of the columns of ``power_w``.
    power_w
        Drawn by each interval while it runs, on top of the base power, shape ``(n, components)`` [W].
    base_power_w
        Drawn all the time [W].
    wait_power_w
        Drawn on top of the base power while nothing runs [W].
    """

    rank: int
    begin_ns: int
    finish_ns: int
    start_ns: Int
    end_ns: Int
    stream: NDArray[np.uint8]
    instruction: Int
    name: Int
    names: tuple[str, ...]
    instruction_names: tuple[str, ...]
    components: tuple[str, ...]
    power_w: Array
    base_power_w: float = 0.0
    wait_power_w: float = 0.0

    @property
    def time_s(self) -> float:
        """Length of the timeline [s]."""
        return (self.finish_ns - self.begin_ns) * 1e-9

    def changes(self, value: Array) -> tuple[Int, Array]:
        """Changes of the sum over running intervals of ``value``, shape ``(n, k)``, at distinct times in order."""
        running = self.end_ns > self.start_ns
        value = value[running]
        time = np.concatenate([self.start_ns[running], self.end_ns[running]])
        order = np.argsort(time, kind="stable")
        time = time[order]
        first = np.flatnonzero(np.diff(time, prepend=time[:1] - 1))
        return time[first], np.add.reduceat(np.concatenate([value, -value])[order], first, axis=0)

    def profile(self) -> PowerProfile:
        """Power over time."""
        total = self.power_w.sum(axis=1)
        time, change = self.changes(np.stack([total, np.ones(len(total))], axis=1))
        edges = np.union1d(time, np.array([self.begin_ns, self.finish_ns], dtype=np.int64))
        level = np.zeros((len(edges), 2))
        level[np.searchsorted(edges, time)] = change
        level = np.cumsum(level, axis=0)[:-1]
        busy = level[:, 1] > 0.5
        power = np.where(busy, level[:, 0], self.wait_power_w) + self.base_power_w
        return PowerProfile(edges, power)

    @property
    def busy_ns(self) -> int:
        """Time during which at least one interval runs [ns]."""
        return covered_ns(self.start_ns, self.end_ns)

    def energy_by_component_j(self) -> dict[str, float]:
        """Ledger by component, with ``base`` and ``waiting`` [J]."""
        span = (self.end_ns - self.start_ns) * 1e-9
        ledger = dict(zip(self.components, (span @ self.power_w).tolist(), strict=True))
        ledger[BASE] = self.base_power_w * self.time_s
        ledger[WAITING] = self.wait_power_w * (self.finish_ns - self.begin_ns - self.busy_ns) * 1e-9
        return ledger

    def energy_by_instruction_j(self) -> Array:
        """Energy of the intervals of each instruction, without base and waiting, shape ``(instructions,)`` [J]."""
        energy = (self.end_ns - self.start_ns) * 1e-9 * self.power_w.sum(axis=1)
        ledger = np.zeros(len(self.instruction_names))
        np.add.at(ledger, self.instruction, energy)
        return ledger

    @property
    def energy_j(self) -> float:
        """Sum of the ledger [J]."""
        return float(sum(self.energy_by_component_j().values()))

    def to_frame(self) -> pd.DataFrame:
        """One row per interval; needs pandas."""
        require("pandas")
        import pandas as pd

        frame = pd.DataFrame(
            {
                "rank": self.rank,
                "stream": self.stream,
                "instruction": [self.instruction_names[i] for i in self.instruction],
                "name": [self.names[i] for i in self.name],
                "start_s": self.start_ns * 1e-9,
                "end_s": self.end_ns * 1e-9,
                "power_w": self.power_w.sum(axis=1),
            }
        )
        for i, component in enumerate(self.components):
            frame[f"{component}_w"] = self.power_w[:, i]
        return frame


def timeline_of_kernels(
    program: Program,
    rank: int,
    kernels: RankKernels,
    *,
    components: Sequence[str],
    base_power_w: float,
    wait_power_w: float,
    finish_ns: int | None,
) -> Timeline:
    """Kernel-level timeline of one rank, labelled with the names and powers of its program's segments.

    Parameters
    ----------
    components
        Labels of the columns of the segments' ``power_w``.
    finish_ns
        End of the timeline, ``None``: of the rank's last kernel [ns].
    """
    first_name = [0]
    names: list[str] = []
    powers: list[Array] = []
    for segment in program.segments:
        names += segment.names or [f"kernel {i}" for i in range(len(segment))]
        first_name.append(len(names))
        power = segment.power_w
        if power.size and power.shape[1] != len(components):
            raise InputError(f"{power.shape[1]} powers per kernel for {len(components)} components")
        powers.append(power if power.size else np.zeros((len(segment), len(components))))
    kernel = np.array(first_name)[kernels.segment] + kernels.kernel
    return Timeline(
        rank=rank,
        begin_ns=0,
        finish_ns=int(kernels.end_ns.max(initial=0)) if finish_ns is None else finish_ns,
        start_ns=kernels.start_ns,
        end_ns=kernels.end_ns,
        stream=kernels.stream,
        instruction=kernels.instruction,
        name=kernel,
        names=tuple(names),
        instruction_names=tuple(f"{i.kind} {i.microbatch}.{i.chunk}" for i in program.schedule.ranks[rank]),
        components=tuple(components),
        power_w=np.concatenate(powers)[kernel],
        base_power_w=base_power_w,
        wait_power_w=wait_power_w,
    )


def timeline_of_instructions(
    rank: int,
    start_s: ArrayLike,
    end_s: ArrayLike,
    names: Sequence[str],
    power_w: ArrayLike,
) -> Timeline:
    """Timeline with one interval per instruction on the compute stream; times are rounded to nanoseconds.

    What a GPU draws while it waits is left out.

    Parameters
    ----------
    names
        Label of each instruction.
    power_w
        Mean power of each instruction, shape ``(n,)`` [W].
    """
    start, end = (np.rint(np.asarray(t, dtype=np.float64) * 1e9).astype(np.int64) for t in (start_s, end_s))
    n = len(start)
    return Timeline(
        rank=rank,
        begin_ns=0,
        finish_ns=int(end.max(initial=0)),
        start_ns=start,
        end_ns=end,
        stream=np.zeros(n, dtype=np.uint8),
        instruction=np.arange(n),
        name=np.arange(n),
        names=tuple(names),
        instruction_names=tuple(names),
        components=("power",),
        power_w=np.asarray(power_w, dtype=np.float64).reshape(n, 1),
    )
