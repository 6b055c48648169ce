"""The vectorised evaluator of a plan: its iteration time and energy for any choice of clocks, many choices at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.power.kernel_power import idle_power_w, wait_power_w
from joulecast.simulator.closed_form.evaluator import Evaluator, make_evaluator
from joulecast.simulator.fluid.prepared import prepare
from joulecast.simulator.fluid.steady_state import fluid_program
from joulecast.simulator.instructions.clock_columns import at_columns
from joulecast.simulator.instructions.kernel_segments import SegmentMaker
from joulecast.simulator.instructions.overlap import follow, is_overlapped
from joulecast.simulator.instructions.tables import instruction_table
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan


def iteration_evaluator(
    plan: Plan, gpu: GpuDescription | GpuModel | None = None, *, wait_clock_mhz: float | None = None
) -> Evaluator:
    """Evaluator of a plan's schedule, with the tables of its instructions at every clock of the GPU.

    Its clock indices count the GPU's clocks from the lowest; the plan's own clocks play no part, and its power limit
    only as the instant limit that slows kernels. Times are those of the engine, to the nanosecond;
    energies are of one GPU of each pipeline stage together.

    Parameters
    ----------
    gpu
        GPU to use in place of the plan's own.
    wait_clock_mhz
        Clock at which GPUs wait, by default the highest [MHz].
    """
    model = gpu if isinstance(gpu, GpuModel) else gpu_model(gpu if gpu is not None else gpu_of(plan))
    clocks = model.clocks_mhz
    prepared = prepare(plan, model, governed=False)
    waiting_mhz = float(clocks[prepared.wait_columns[-1]]) if wait_clock_mhz is None else wait_clock_mhz
    makers = {kernels: SegmentMaker(kernels, model) for kernels in prepared.kernels}
    idle = idle_power_w(clocks, model)
    durations: list[Int] = []
    energies: list[Array] = []
    types: list[list[int]] = []
    of_ranks = zip(prepared.program.ranks, prepared.kernels, prepared.tables, prepared.columns, strict=True)
    for rank, kernels, table, columns in of_ranks:
        types.append([len(durations) + kind for kind in rank.order])
        plain = at_columns(instruction_table(rank.types, kernels, model), columns)
        for kind, launches in enumerate(rank.types):
            waiting = np.rint((table.duration_s[kind] - plain.duration_s[kind]).clip(0.0) * 1e9)
            length = length_ns(makers[kernels], launches)[columns[kind]]
            rounding = length * 1e-9 - plain.duration_s[kind]
            durations.append(length + waiting.astype(np.int64))
            energies.append(table.energy_j[kind] + idle[columns[kind]] * rounding)
    fluid = fluid_program(prepared)
    return make_evaluator(
        prepared.program.schedule,
        types,
        durations,
        energies,
        float(wait_power_w(waiting_mhz, model)),
        np.rint(fluid.delay_s * 1e9).astype(np.int64),
        (fluid.source, fluid.target),
    )


def length_ns(maker: SegmentMaker, launches: Sequence[Launch]) -> Int:
    """Length of an instruction at every clock, as the engine finds it [ns]."""
    operator = np.array([maker.kernels.operators.index(launch.operator) for launch in launches])
    taken = maker.durations_ns(launches, operator)
    if is_overlapped(launches):
        return np.asarray(follow(launches, taken)[0].astype(np.int64))
    return np.asarray((np.array([launch.repeat for launch in launches], dtype=np.float64) @ taken).astype(np.int64))
