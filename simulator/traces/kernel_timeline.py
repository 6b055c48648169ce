"""When every kernel of an iteration runs and what it draws, from the discrete-event engine.

One GPU of each pipeline stage is followed. Every instruction runs at one clock: the one that is set, or the mean of
what the board chose while it ran in the forecast's last iteration. Conservation laws are checked on every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array, Int
from joulecast.errors import InputError
from joulecast.extras import require
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.operators import Operator
from joulecast.model.power.component_power import by_part, rest_components_w
from joulecast.model.power.kernel_power import COMPONENTS, idle_power_w, wait_power_w
from joulecast.simulator.events.engine import EngineResult
from joulecast.simulator.events.engine import simulate as run
from joulecast.simulator.events.guards import check_causality, check_energy, check_shares, check_streams, reported_with
from joulecast.simulator.events.segment_program import Program, make_program
from joulecast.simulator.events.segments import Segment
from joulecast.simulator.events.timeline import PowerProfile, Timeline, timeline_of_kernels
from joulecast.simulator.fluid.prepared import Prepared, prepare
from joulecast.simulator.fluid.simulation import FluidResult
from joulecast.simulator.fluid.steady_state import fluid_program, simulate
from joulecast.simulator.instructions.clock_columns import at_columns
from joulecast.simulator.instructions.kernel_segments import RESOURCES, SegmentMaker, waiting_of
from joulecast.simulator.instructions.tables import Kernels, instruction_table
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import Schedule
from joulecast.simulator.traces.perfetto import Arrow

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class KernelTimeline:
    """One iteration kernel by kernel.

    Attributes
    ----------
    plan, schedule
        What was simulated.
    program
        What every stage executed.
    result
        When, as the engine found it.
    timelines
        One per pipeline stage: of one of its GPUs.
    shares
        Of each of :data:`~joulecast.simulator.instructions.kernel_segments.RESOURCES` that a kernel uses while it runs,
        one row per name of a timeline.
    base_w
        Base power of each stage by component, shape ``(stages, components)`` [W].
    gpu
        The GPU.
    """

    plan: Plan
    schedule: Schedule
    program: Program
    result: EngineResult
    timelines: tuple[Timeline, ...]
    shares: Array
    base_w: Array
    gpu: GpuModel

    def __repr__(self) -> str:
        return f"KernelTimeline({len(self.timelines)} stages: {self.time_s:.4g} s, {self.energy_j:.4g} J)"

    @property
    def time_s(self) -> float:
        """Length of the iteration [s]."""
        return self.result.time_ns * 1e-9

    @property
    def energy_j(self) -> float:
        """Energy of all GPUs [J]."""
        return sum(timeline.energy_j for timeline in self.timelines) * self.plan.tp * self.plan.replicas

    @property
    def operators(self) -> tuple[Operator | None, ...]:
        """What the kernel of each of a timeline's ``names`` does; ``None`` where it only waits."""
        return tuple(operator for segment in self.program.segments for operator in segment.operators)

    def part_power(self, stage: int) -> dict[str, PowerProfile]:
        """Power over time of each part of a stage's GPU: compute dies, memory, and I/O dies or link.

        Their sum is the power of the stage's timeline at any time. A GPU that waits polls on its compute dies.

        Raises
        ------
        InputError
            There is no such stage.
        """
        if not 0 <= stage < len(self.timelines):
            raise InputError(f"no stage {stage}", key="stage", remedy=f"There are 0 to {len(self.timelines) - 1}.")
        timeline = self.timelines[stage]
        each = by_part(dict(zip(COMPONENTS, np.eye(len(COMPONENTS)), strict=True)), self.gpu)
        return {
            part: replace(
                timeline,
                power_w=(timeline.power_w @ share)[:, None],
                base_power_w=float(self.base_w[stage] @ share),
                wait_power_w=timeline.wait_power_w * float(share[COMPONENTS.index("sm")]),
            ).profile()
            for part, share in each.items()
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per kernel of one GPU of each stage; needs pandas."""
        require("pandas")
        import pandas as pd

        return pd.concat([timeline.to_frame() for timeline in self.timelines], ignore_index=True)

    def arrows(self) -> list[Arrow]:
        """Transfers between stages, from the kernel that makes the output to the instruction that needs it."""
        sent, start = np.concatenate(self.result.sent_ns), np.concatenate(self.result.start_ns)
        edges = self.schedule.edges
        found = []
        for source, target, a, b, backward in zip(
            *(e.tolist() for e in (edges.source, edges.target, edges.source_rank, edges.target_rank, edges.backward)),
            strict=True,
        ):
            if a != b:
                name = "gradients" if backward else "activations"
                found.append(Arrow(name, a, max(int(sent[source]) - 1, 0), b, int(start[target])))
        return found


def kernel_timeline(
    plan: Plan, gpu: GpuDescription | GpuModel | None = None, *, clock_mhz: ArrayLike | None = None
) -> KernelTimeline:
    """Simulate one iteration of a plan kernel by kernel.

    Parameters
    ----------
    gpu
        GPU to use in place of the plan's own.
    clock_mhz
        SM clock of all stages, or of each, whatever the plan and the power limit say; by default what a forecast finds
        for each instruction [MHz].

    Raises
    ------
    InputError
        A clock that the GPU does not have.
    GuardError
        A conservation law is broken: a defect of Joulecast.
    """
    model = gpu if isinstance(gpu, GpuModel) else gpu_model(gpu or gpu_of(plan))
    if clock_mhz is None:
        prepared = prepare(plan, model)
        return governed_timeline(prepared, simulate(prepared).result)
    prepared = prepare(plan, model, governed=False)
    clocks = np.broadcast_to(np.asarray(clock_mhz, dtype=np.float64), (plan.pp,))
    index = [_clock_index(prepared, float(clock)) for clock in clocks]
    rows = [np.full(len(r.order), i) for r, i in zip(prepared.program.ranks, index, strict=True)]
    return timeline_at(prepared, rows, index)


def governed_timeline(prepared: Prepared, result: FluidResult) -> KernelTimeline:
    """The last iteration of a simulation under the governor, every instruction at its mean clock."""
    rows = [mean_clock_index(result, rank) for rank in range(len(prepared.program.ranks))]
    return timeline_at(prepared, rows, [int(np.median(row)) for row in rows])


def timeline_at(prepared: Prepared, clock_index: Sequence[Int], base_index: Sequence[int]) -> KernelTimeline:
    """Simulate an iteration with given clocks.

    Parameters
    ----------
    clock_index
        Per stage, the governor's clock index during every instruction.
    base_index
        Per stage, clock index at which it waits.
    """
    with reported_with(prepared.program.plan):
        return _timeline_at(prepared, clock_index, base_index)


def _timeline_at(prepared: Prepared, clock_index: Sequence[Int], base_index: Sequence[int]) -> KernelTimeline:
    base_index = prepared.wait_columns[np.array(base_index)].tolist()
    program, shares = kernel_program(prepared, clock_index, base_index)
    result = run(program, kernels=True)
    check_causality(program, result)
    maker_base = np.asarray(prepared.clocks_mhz)[np.array(base_index)]
    timelines, bases = [], []
    for rank in range(program.ranks):
        base = rest_components_w(float(maker_base[rank]), prepared.gpu)
        base = base + _power_beside_w(prepared, rank, clock_index[rank], result.time_ns * 1e-9)
        timeline = _timeline(prepared, program, result, rank, float(maker_base[rank]), float(base.sum()))
        bases.append(base)
        check_streams(timeline)
        check_energy(timeline, timeline.energy_j)
        check_shares(timeline, shares[timeline.name], RESOURCES)
        timelines.append(timeline)
    of = prepared.program
    return KernelTimeline(
        of.plan, of.schedule, program, result, tuple(timelines), shares, np.array(bases), prepared.gpu
    )


def kernel_program(prepared: Prepared, clock_index: Sequence[Int], base_index: Sequence[int]) -> tuple[Program, Array]:
    """What the engine executes, and the share of each resource that every kernel of every segment uses.

    Returns
    -------
    program, shares
        Shares have one row per kernel of ``program.segments``, in order, and one column per resource.
    """
    makers = {kernels: SegmentMaker(kernels, prepared.gpu) for kernels in prepared.kernels}
    order = []
    for rank, (ranked, clocks) in enumerate(zip(prepared.program.ranks, clock_index, strict=True)):
        table, columns, maker = prepared.tables[rank], prepared.columns[rank], makers[prepared.kernels[rank]]
        plain = at_columns(instruction_table(ranked.types, prepared.kernels[rank], prepared.gpu), columns)
        known: dict[tuple[int, int], int] = {}
        row = []
        for kind, clock in zip(ranked.order, clocks.tolist(), strict=True):
            if (kind, clock) not in known:
                waiting = waiting_of(table, plain, kind, clock)
                real = int(columns[kind, clock])
                known[kind, clock] = maker.segment(ranked.types[kind], real, base_index[rank], waiting)
            row.append(known[kind, clock])
        order.append(row)
    first: dict[Kernels, int] = {}
    segments: list[Segment] = []
    for kernels, maker in makers.items():
        first[kernels] = len(segments)
        segments += maker.segments
    order = [[first[k] + number for number in row] for k, row in zip(prepared.kernels, order, strict=True)]
    fluid = fluid_program(prepared)
    program = replace(
        make_program(prepared.program.schedule, segments, order),
        source=fluid.source,
        target=fluid.target,
        latency_ns=np.rint(fluid.delay_s * 1e9).astype(np.int64),
    )
    return program, np.concatenate([share for maker in makers.values() for share in maker.shares])


def _power_beside_w(prepared: Prepared, rank: int, clock_index: Int, time_s: float) -> Array:
    """What communication that hides beside whole instructions draws on average, by component [W].

    No interval shows it.
    """
    beside = prepared.tables[rank].beside_j
    if beside is None:
        return np.zeros(len(COMPONENTS))
    return np.asarray(beside[list(prepared.program.ranks[rank].order), clock_index].sum(axis=0) / time_s)


def _timeline(
    prepared: Prepared, program: Program, result: EngineResult, rank: int, base_mhz: float, base_w: float
) -> Timeline:
    gpu = prepared.gpu
    idle = float(idle_power_w(base_mhz, gpu))
    kernels = result.kernels[rank]
    runs = kernels.end_ns > kernels.start_ns
    shown = replace(
        kernels,
        **{f: getattr(kernels, f)[runs] for f in ("start_ns", "end_ns", "stream", "instruction", "segment", "kernel")},
    )
    return timeline_of_kernels(
        program,
        rank,
        shown,
        components=COMPONENTS,
        base_power_w=base_w,
        wait_power_w=float(wait_power_w(base_mhz, gpu)) - idle,
        finish_ns=result.time_ns,
    )


def mean_clock_index(result: FluidResult, rank: int) -> Int:
    """Mean clock index of a stage while each instruction of its last iteration ran."""
    edges = np.arange(len(result.clock_index) + 1) * result.tick_s
    total = np.concatenate([[0.0], np.cumsum(result.clock_index[:, rank])]) * result.tick_s
    start, end = result.start_s[rank][-1], result.end_s[rank][-1]
    span = end - start
    at_start = result.clock_index[
        np.minimum((start / result.tick_s).astype(np.int64), len(result.clock_index) - 1), rank
    ]
    area = np.interp(end, edges, total) - np.interp(start, edges, total)
    mean = np.divide(area, span, out=at_start.astype(np.float64), where=span > 0)
    return np.asarray(np.rint(mean).astype(np.int64))


def _clock_index(prepared: Prepared, clock_mhz: float) -> int:
    clocks = prepared.clocks_mhz
    index = int(np.abs(clocks - clock_mhz).argmin())
    if abs(clocks[index] - clock_mhz) > 1e-6:
        raise InputError(
            f"{clock_mhz:g} MHz is not a clock of {prepared.gpu.name}",
            key="clock_mhz",
            remedy=f"The nearest is {clocks[index]:g}.",
        )
    return index
