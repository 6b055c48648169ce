"""A forecast iteration drawn: every kernel of one GPU of each pipeline stage, its power and its clock over time.

An instruction's begin and end come from the simulation under the governor. Its kernels are laid out within them in
proportion to their own times at the clock with which the instruction begins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from joulecast.model.catalogue import load_gpu
from joulecast.model.description import GpuDescription
from joulecast.model.gpu_model import gpu_model
from joulecast.model.launches import Launch
from joulecast.simulator.fluid import FluidResult
from joulecast.simulator.forecast import Prepared, prepare, simulate
from joulecast.simulator.plan import Plan
from joulecast.simulator.timeline import Timeline, timeline_of_instructions
from joulecast.simulator.trace import Counter, write_trace

Array = NDArray[np.float64]
STREAMS = {"compute": 0, "communication": 1}


def write_iteration_trace(path: str | os.PathLike[str], plan: Plan, gpu: GpuDescription | None = None) -> Path:
    """Write the last simulated iteration of a plan as a trace for https://ui.perfetto.dev.

    Parameters
    ----------
    path
        File to write; it appears whole or not at all.
    gpu
        Description to use in place of the plan's own.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    prepared = prepare(plan, gpu_model(gpu if gpu is not None else load_gpu(plan.cluster.gpu)))
    result, _ = simulate(prepared)
    begin_s = min(float(start[-1].min()) for start in result.start_s)
    timelines: list[Timeline] = []
    for rank in range(plan.pp):
        timelines += [_instructions(prepared, result, rank, begin_s), _kernels(prepared, result, rank, begin_s)]
    labels = {rank: f"stage {rank} (one of {plan.tp * plan.dp} GPUs)" for rank in range(plan.pp)}
    metadata = {"model": plan.workload.model_name, "gpu": plan.cluster.gpu, "gpus": plan.cluster.gpus}
    counters = _counters(prepared, result, begin_s)
    return write_trace(path, timelines, counters=counters, labels=labels, metadata=metadata)


def _counters(prepared: Prepared, result: FluidResult, begin_s: float) -> list[Counter]:
    """Power and clock of every rank in each of the governor's ticks from ``begin_s`` on."""
    first = int(begin_s / result.tick_s)
    time = np.maximum(np.arange(first, len(result.power_w)) * result.tick_s - begin_s, 0.0)
    clocks = prepared.kernels.clocks_mhz[result.clock_index[first:]]
    found = []
    for rank in range(result.power_w.shape[1]):
        found.append(Counter("power [W]", rank, time, result.power_w[first:, rank]))
        found.append(Counter("clock [MHz]", rank, time, clocks[:, rank]))
    return found


def _instructions(prepared: Prepared, result: FluidResult, rank: int, begin_s: float) -> Timeline:
    program = prepared.program.ranks[rank]
    start, end = result.start_s[rank][-1], result.end_s[rank][-1]
    table, column = prepared.tables[rank], _columns(result, rank, start)
    types = np.array(program.order)
    power = table.energy_j[types, column] / table.duration_s[types, column]
    steps = prepared.program.schedule.ranks[rank]
    names = [f"{program.names[t]} {i.microbatch}" for t, i in zip(types, steps, strict=True)]
    return timeline_of_instructions(rank, start - begin_s, end - begin_s, names, power)


def _kernels(prepared: Prepared, result: FluidResult, rank: int, begin_s: float) -> Timeline:
    program, kernels = prepared.program.ranks[rank], prepared.kernels
    start_s, end_s = result.start_s[rank][-1] - begin_s, result.end_s[rank][-1] - begin_s
    columns = _columns(result, rank, result.start_s[rank][-1])
    index = {operator: i for i, operator in enumerate(kernels.operators)}
    which = [np.array([index[launch.operator] for launch in launches]) for launches in program.types]
    streams = [np.array([STREAMS[launch.stream] for launch in launches], np.uint8) for launches in program.types]
    starts, ends, powers = [], [], []
    for position, kind in enumerate(program.order):
        time = kernels.times.time_s[columns[position], which[kind]]
        begin, finish = lay_out(program.types[kind], time)
        scale = (end_s[position] - start_s[position]) / max(float(finish.max(initial=0.0)), 1e-12)
        starts.append(np.floor((start_s[position] + begin * scale) * 1e9))
        ends.append(np.floor((start_s[position] + finish * scale) * 1e9))
        powers.append(kernels.times.energy_j[columns[position], which[kind]] / time)
    steps = prepared.program.schedule.ranks[rank]
    counts = [len(which[kind]) for kind in program.order]
    return Timeline(
        rank=rank,
        begin_ns=0,
        finish_ns=round(float(end_s.max()) * 1e9),
        start_ns=np.concatenate(starts).astype(np.int64),
        end_ns=np.concatenate(ends).astype(np.int64),
        stream=np.concatenate([streams[kind] for kind in program.order]),
        instruction=np.repeat(np.arange(len(counts)), counts),
        name=np.concatenate([which[kind] for kind in program.order]),
        names=tuple(operator.name for operator in kernels.operators),
        instruction_names=tuple(f"{i.kind} {i.microbatch}.{i.chunk}" for i in steps),
        components=("power",),
        power_w=np.concatenate(powers)[:, None],
    )


def _columns(result: FluidResult, rank: int, time_s: Array) -> NDArray[np.int64]:
    """Clock index of a rank at given times."""
    tick = np.clip((time_s / result.tick_s).astype(np.int64), 0, len(result.clock_index) - 1)
    return np.asarray(result.clock_index[tick, rank])


def lay_out(launches: Sequence[Launch], time_s: Array) -> tuple[Array, Array]:
    """Begin and end of each launch from the instruction's start on, without contention, shape ``(launches,)`` [s].

    Parameters
    ----------
    time_s
        Of one run of each launch's operator.
    """
    begin, end = np.zeros(len(launches)), np.zeros(len(launches))
    compute = speech = 0.0
    spoken: list[float] = []
    for i, (launch, time) in enumerate(zip(launches, time_s.tolist(), strict=True)):
        if launch.stream == "communication":
            begin[i] = max(compute, speech)
            end[i] = speech = begin[i] + time * launch.repeat
            spoken.append(speech)
            compute = speech if launch.waits else compute
        else:
            if launch.waits and len(spoken) > launch.outstanding:
                compute = max(compute, spoken[len(spoken) - 1 - launch.outstanding])
            begin[i] = compute
            end[i] = compute = compute + time * launch.repeat
    return begin, end
