"""The vectorised evaluator of a plan: its iteration time and energy for any choice of clocks, many choices at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import InputError
from joulecast.model.catalogue import load_gpu
from joulecast.model.description import GpuDescription
from joulecast.model.gpu_model import GpuModel, gpu_model
from joulecast.model.lowering import lower
from joulecast.model.power import at_clock, idle_power_w, wait_power_w
from joulecast.simulator.evaluator import Evaluator, make_evaluator
from joulecast.simulator.kernel_segments import SegmentMaker
from joulecast.simulator.plan import Plan
from joulecast.simulator.program import plan_program
from joulecast.simulator.tables import instruction_table, kernels_of


def iteration_evaluator(
    plan: Plan, gpu: GpuDescription | GpuModel | None = None, *, wait_clock_mhz: float | None = None
) -> Evaluator:
    """Evaluator of a plan's schedule, with the tables of its instructions at every clock of the GPU.

    Its clock indices count the GPU's clocks from the lowest; the plan's own clocks and power limit play no part. Times
    are those of the engine, to the nanosecond. Energies are of one GPU of each pipeline stage together.

    Parameters
    ----------
    gpu
        GPU to use in place of the plan's own.
    wait_clock_mhz
        Clock at which GPUs wait, by default the highest [MHz].

    Raises
    ------
    InputError
        The GPU has more clocks than the evaluator's 256, or not the one to wait at.
    """
    model = gpu if isinstance(gpu, GpuModel) else gpu_model(gpu if gpu is not None else load_gpu(plan.cluster.gpu))
    clocks = model.clocks_mhz
    waiting = model.max_clock_mhz if wait_clock_mhz is None else wait_clock_mhz
    if not np.isclose(clocks, waiting).any():
        raise InputError(f"{waiting:g} MHz is not a clock of {model.name}", key="wait_clock_mhz")
    program = plan_program(plan)
    kernels = kernels_of([rank.types for rank in program.ranks], clocks, model)
    maker, idle = SegmentMaker(kernels, model), idle_power_w(clocks, model)
    durations: list[NDArray[np.int64]] = []
    energies: list[NDArray[np.float64]] = []
    types: list[list[int]] = []
    for rank in program.ranks:
        types.append([len(durations) + kind for kind in rank.order])
        table = instruction_table(rank.types, kernels, model)
        for kind, launches in enumerate(rank.types):
            length = maker.length_ns(launches)
            durations.append(length)
            energies.append(table.energy_j[kind] + idle * (length * 1e-9 - table.duration_s[kind]))
    latency = 0
    if program.transfer is not None:
        latency = round(float(at_clock(lower([program.transfer], model), model.max_clock_mhz, model).time_s[0]) * 1e9)
    wait = float(wait_power_w(waiting, model))
    return make_evaluator(program.schedule, types, durations, energies, wait, latency)
