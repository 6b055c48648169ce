"""The kernels of one type of instruction, at one clock, as the engine executes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from joulecast.arrays import Array, Bool, Int
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.kernel_power import COMPONENTS, clock_tree_power_w, idle_power_w
from joulecast.simulator.events.segments import COMMUNICATION, COMPUTE, Segment, make_segment
from joulecast.simulator.instructions.overlap import blocks_of, is_overlapped
from joulecast.simulator.instructions.overlap_steady import contended_stack
from joulecast.simulator.instructions.tables import InstructionTable, Kernels

#: Name of a kernel without work: one stream waits for the other, or the GPU for others.
MARKER = "wait"
#: Name of the time by which kernels of pipeline transfers make the kernels beside them longer.
SLOWED = "slowed by transfers"
#: Resources of which no more than all can be used.
RESOURCES = ("SMs", "tensor units", "memory", "link")


@dataclass(frozen=True, eq=False)
class Layout:
    """Order of issue of an instruction's kernels, whatever the clock.

    Attributes
    ----------
    launch
        Which launch each kernel belongs to, −1 for a marker and −2 for slowed compute, shape ``(n,)``.
    stream, wait
        As in :class:`Segment`.
    """

    launch: Int
    stream: NDArray[np.uint8]
    wait: NDArray[np.int32]

    @cached_property
    def output_kernel(self) -> int:
        """The last kernel on the compute stream; everything else has ended by then."""
        return int(np.flatnonzero(self.stream == COMPUTE)[-1])


def lay_out(launches: Sequence[Launch]) -> Layout:
    """Kernels of both streams in order of issue, with what they wait for.

    An instruction begins and ends on the compute stream: a communication waits for the compute listed before it, and
    what stands at the end for all of them. There compute gets the time by which transfers slow it, and the GPU waits
    for the others of its group.
    """
    rows: list[tuple[int, int, int]] = []
    communications: list[int] = []  # last kernel of each communication launch
    due = waited = compute = asked = -1  # communication to wait for, waited for; compute kernel; the one last asked for
    if not launches or launches[0].stream == "communication":
        rows.append((-1, COMPUTE, -1))
        compute = 0
    for i, launch in enumerate(launches):
        first = len(rows)
        if launch.stream == "communication":
            rows += [(i, COMMUNICATION, compute if compute > asked else -1)]
            asked = compute
            rows += [(i, COMMUNICATION, -1)] * (launch.repeat - 1)
            communications.append(len(rows) - 1)
            due = communications[-1] if launch.waits else due
            continue
        if launch.waits and len(communications) > launch.outstanding:
            due = max(due, communications[len(communications) - 1 - launch.outstanding])
        rows += [(i, COMPUTE, due if due > waited else -1)]
        waited = max(waited, due)
        rows += [(i, COMPUTE, -1)] * (launch.repeat - 1)
        compute = first + launch.repeat - 1
    rows.append((-2, COMPUTE, communications[-1] if communications and waited < communications[-1] else -1))
    rows.append((-1, COMPUTE, -1))
    table = np.array(rows, dtype=np.int64)
    return Layout(table[:, 0], table[:, 1].astype(np.uint8), table[:, 2].astype(np.int32))


@dataclass(frozen=True, eq=False)
class Waiting:
    """Time in an instruction beyond that of its kernels, and the power by component meanwhile [W].

    Attributes
    ----------
    time_ns
        All of it.
    slowed_ns
        What of it is compute that transfers slow down; the rest is waiting for the group.
    """

    time_ns: int
    power_w: Array
    slowed_ns: int = 0


def waiting_of(table: InstructionTable, plain: InstructionTable, kind: int, clock: int) -> Waiting:
    """What an instruction's table has beyond that of its kernels alone."""
    span = float(table.duration_s[kind, clock] - plain.duration_s[kind, clock])
    if span < 0.5e-9:
        return Waiting(0, np.zeros(len(COMPONENTS)))
    energy = table.components_j[kind, clock] - plain.components_j[kind, clock]
    if table.beside_j is not None:
        energy = energy - table.beside_j[kind, clock]
    waited = float(table.exposed_s[kind, clock] - plain.exposed_s[kind, clock])
    whole = round(span * 1e9)
    return Waiting(whole, energy / whole * 1e9, max(whole - round(waited * 1e9), 0))


class SegmentMaker:
    """Makes segments of launches at given clocks, each only once.

    Parameters
    ----------
    kernels
        Distinct operators with their behaviour on the grid of clocks.
    """

    def __init__(self, kernels: Kernels, gpu: GpuModel) -> None:
        self.kernels, self.gpu = kernels, gpu
        self.time_ns = kernels.times.time_s * 1e9
        self.idle_w = np.asarray(idle_power_w(kernels.clocks_mhz, gpu))
        self.tree_w = np.asarray(clock_tree_power_w(kernels.clocks_mhz, gpu))
        self._layouts: dict[tuple[int, ...], tuple[Layout, Int]] = {}
        self._made: dict[tuple[tuple[int, ...], int, int, int], int] = {}
        self.segments: list[Segment] = []
        self.shares: list[Array] = []

    def segment(self, launches: Sequence[Launch], clock: int, base: int, waiting: Waiting) -> int:
        """Number of the segment of these launches at a clock index, its power above idling at the clock ``base``."""
        who = tuple(map(id, launches))  # equal launches of a program are mostly the same objects
        key = (who, clock, base, waiting.time_ns)
        if key not in self._made:
            self._made[key] = len(self.segments)
            self._make(launches, who, clock, base, waiting)
        return self._made[key]

    def durations_ns(self, launches: Sequence[Launch], operator: Int) -> Array:
        """Whole nanoseconds that one kernel of each launch takes at every clock, shape ``(launches, clocks)``."""
        if not is_overlapped(launches):
            return np.rint(self.time_ns[:, operator].T)
        return np.rint(contended_stack(launches, self.kernels.alone(operator.tolist(), 1e-9), self.gpu))

    def _make(self, launches: Sequence[Launch], who: tuple[int, ...], clock: int, base: int, waiting: Waiting) -> None:
        if who not in self._layouts:
            operator = np.array([self.kernels.row[launch.operator] for launch in launches], dtype=np.int64)
            self._layouts[who] = lay_out(launches), operator
        layout, operator = self._layouts[who]
        beside = is_overlapped(launches)
        taken = self.durations_ns(launches, operator)[:, clock] if beside else np.rint(self.time_ns[clock, operator])
        communicates = np.array([launch.stream == "communication" for launch in launches], dtype=bool)
        power = self._power_w(operator, clock, taken)
        own = ~communicates if beside else np.ones(len(launches), dtype=bool)  # idling is counted on one of two streams
        power[own, :3] += self._idling(clock, base)
        share = self._shares(launches, operator, clock, taken, communicates)
        operators = [launch.operator for launch in launches]
        kernel = layout.launch
        duration = np.append(taken, [0.0, 0.0])[kernel]
        duration[-2:] = waiting.slowed_ns, waiting.time_ns - waiting.slowed_ns
        above = waiting.power_w.copy()
        above[:2] -= [self.idle_w[base] - self.tree_w[base], self.tree_w[base]]
        self.segments.append(
            make_segment(
                duration,
                stream=layout.stream,
                wait=layout.wait,
                output_kernel=layout.output_kernel,
                names=[operators[i].name if i >= 0 else SLOWED if i == -2 else MARKER for i in kernel.tolist()],
                operators=[operators[i] if i >= 0 else None for i in kernel.tolist()],
                power_w=np.vstack([power, above, above])[kernel],
            )
        )
        self.shares.append(np.vstack([share, np.zeros((2, len(RESOURCES)))])[kernel])

    def _idling(self, clock: int, base: int) -> Array:
        """Power of idling at a clock above that at another: static, clock tree and SMs [W]."""
        whole, tree = self.idle_w[clock] - self.idle_w[base], self.tree_w[clock] - self.tree_w[base]
        return np.array([whole - tree, tree, 0.0])

    def _power_w(self, operator: Int, clock: int, taken_ns: Array) -> Array:
        """Power by component above idling, such that power times the time taken is the kernel's energy."""
        alone_s = self.kernels.times.time_s[clock, operator]
        energy = np.stack([self.kernels.component_j(name)[clock, operator] for name in COMPONENTS], axis=1)
        energy[:, 0] -= alone_s * (self.idle_w[clock] - self.tree_w[clock])
        energy[:, 1] -= alone_s * self.tree_w[clock]
        return np.asarray(energy / np.maximum(taken_ns, 1.0)[:, None] * 1e9)

    def _shares(
        self, launches: Sequence[Launch], operator: Int, clock: int, taken_ns: Array, communicates: Bool
    ) -> Array:
        """Share of each resource that a kernel uses while it runs, shape ``(launches, resources)``."""
        costs, sms = self.kernels.costs, self.gpu.sm_count
        held = np.zeros(len(launches))
        if is_overlapped(launches):
            for i in np.flatnonzero(communicates).tolist():
                held[i] = blocks_of(launches[i].operator, self.gpu) / sms
            held[~communicates] = 1.0 - held.max(initial=0.0)
        else:
            held[:] = 1.0
        taken = np.maximum(taken_ns, 1.0) * 1e-9
        cycles = self.kernels.clocks_mhz[clock] * 1e6 * taken
        tensor = costs.core_cycles[operator] * costs.tensor_use[operator] / cycles
        # How long a collective waits for SMs within its time is not known here: its part of the memory is held
        # against that of each kernel beside it where they are walked through.
        memory = np.where(communicates, 0.0, costs.memory_s[operator])
        return np.stack([held, tensor, memory / taken, costs.link_s[operator] / taken], axis=1)
