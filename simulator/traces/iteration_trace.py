"""A forecast iteration drawn: every kernel of one GPU of each pipeline stage, its power, clock and memory over time.

Kernels are those of the engine, every instruction at the mean clock that the governor gave it; instructions enclose
them on the compute track, and arrows lead from the stage that sends to the instruction that receives.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import numpy as np

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.simulator.events.timeline import Timeline, timeline_of_instructions
from joulecast.simulator.fluid.part_limits import real_clock_mhz
from joulecast.simulator.fluid.prepared import Prepared, prepare
from joulecast.simulator.fluid.simulation import FluidResult
from joulecast.simulator.fluid.steady_state import simulate
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.memory_over_time import memory_over_time
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.traces.breakdown import breakdown
from joulecast.simulator.traces.hta import write_hta_folder
from joulecast.simulator.traces.kernel_timeline import KernelTimeline, governed_timeline, mean_clock_index
from joulecast.simulator.traces.operator_text import operator_text
from joulecast.simulator.traces.perfetto import Counter, write_trace

#: Steps of a power counter above which it is averaged: more can not be seen, and slow the viewer.
MOST_STEPS = 20_000
#: Kernels of a plan that generates completions, step by step, above which no trace is written: viewers take some
#: hundreds of megabytes, and each kernel is about 300 bytes.
MOST_KERNELS = 2_000_000
#: Forms of a trace.
FORMS = ("perfetto", "hta")


def write_iteration_trace(
    path: str | os.PathLike[str], plan: Plan, gpu: GpuDescription | None = None, form: str = "perfetto"
) -> Path:
    """Write the last simulated iteration of a plan as a trace.

    Parameters
    ----------
    path
        File to write, for ``hta`` a folder; it appears whole or not at all.
    gpu
        Description to use in place of the plan's own.
    form
        ``perfetto`` for https://ui.perfetto.dev, or ``hta`` for Holistic Trace Analysis.

    Raises
    ------
    InputError
        No such form, it cannot be written, or steps of generation are too many.
    GuardError
        A conservation law is broken: a defect of Joulecast.
    """
    if form not in FORMS:
        raise UnknownNameError("form of a trace", form, FORMS, key="--trace-format")
    prepared = prepare(plan, gpu_model(gpu if gpu is not None else gpu_of(plan)))
    _check_size(prepared)
    result = simulate(prepared).result
    iteration = governed_timeline(prepared, result)
    if form == "hta":
        return write_hta_folder(path, iteration, plan.cluster.gpu)
    timelines: list[Timeline] = []
    for rank, kernels in enumerate(iteration.timelines):
        timelines += [_instructions(prepared, iteration, rank), kernels]
    texts = [operator_text(operator) if operator is not None else "" for operator in iteration.operators]
    metadata = {
        "model": plan.workload.model_name,
        "gpu": plan.cluster.gpu,
        "gpus": plan.cluster.gpus,
        "time_s": iteration.time_s,
        "energy_j": iteration.energy_j,
        "stages": [asdict(breakdown(timeline)) for timeline in iteration.timelines],
    }
    return write_trace(
        path,
        timelines,
        counters=_counters(prepared, iteration, result),
        arrows=iteration.arrows(),
        operators=dict.fromkeys(range(1, len(timelines), 2), texts),
        labels={rank: f"stage {rank} (one of {plan.tp * plan.replicas} GPUs)" for rank in range(plan.pp)},
        metadata=metadata,
    )


def _check_size(prepared: Prepared) -> None:
    """Refuse what no viewer could open."""
    if prepared.program.plan.workload.rollout is None:
        return
    often = {one: sum(x.repeat for x in rank.types[one]) for rank in prepared.program.ranks for one in rank.order}
    if (kernels := sum(often[one] for rank in prepared.program.ranks for one in rank.order)) > MOST_KERNELS:
        raise InputError(
            f"a trace of {kernels / 1e6:.1f} million kernels is too large for any viewer",
            key="--trace",
            remedy="Leave [workload.rollout] out.",
        )


def _counters(prepared: Prepared, iteration: KernelTimeline, result: FluidResult) -> list[Counter]:
    """Power of every GPU as its kernels draw it, the governor's clock, and memory."""
    begin_s = float(result.start_s[0][-1][0])
    first = int(begin_s / result.tick_s)
    time = np.maximum(np.arange(first, len(result.clock_index)) * result.tick_s - begin_s, 0.0)
    clocks = prepared.clocks_mhz[result.clock_index[first:]]
    shown = time < iteration.time_s
    found = []
    for rank, timeline in enumerate(iteration.timelines):
        found.append(_power(timeline))
        if prepared.kernels[rank].held_mhz is None:
            found.append(Counter("clock [MHz]", rank, time[shown], clocks[shown, rank]))
        else:
            found.append(_clock_under_limits(prepared, iteration, result, rank))
        found.append(_memory(prepared, iteration, rank))
    return found


def _clock_under_limits(prepared: Prepared, iteration: KernelTimeline, result: FluidResult, rank: int) -> Counter:
    """Mean clock of each instruction's kernels: they run below the governor's where parts of the GPU are limited."""
    governed = mean_clock_index(result, rank)
    clock = real_clock_mhz(prepared, rank)[prepared.program.ranks[rank].order, governed]
    start = np.asarray(iteration.result.start_ns[rank] * 1e-9, dtype=np.float64)
    return Counter("clock [MHz]", rank, start, clock.round(1))


def _memory(prepared: Prepared, iteration: KernelTimeline, rank: int) -> Counter:
    steps = prepared.program.schedule.ranks[rank]
    result = iteration.result
    start, end = (np.asarray(t[rank] * 1e-9, dtype=np.float64) for t in (result.start_ns, result.end_ns))
    time, held = memory_over_time(footprint_of(prepared.program.plan, rank), steps, start, end)
    return Counter("memory [GB]", rank, time, (held / 1e9).round(3))


def _power(timeline: Timeline) -> Counter:
    profile = timeline.profile()
    if len(profile.power_w) > MOST_STEPS:
        start, power = profile.resampled(timeline.time_s / MOST_STEPS)
    else:
        start, power = np.asarray(profile.time_ns[:-1] * 1e-9, dtype=np.float64), profile.power_w
    return Counter(
        "power [W]", timeline.rank, np.append(start, timeline.finish_ns * 1e-9), np.append(power, 0.0).round(2)
    )


def _instructions(prepared: Prepared, iteration: KernelTimeline, rank: int) -> Timeline:
    """Instructions of one stage, with the mean power of their kernels above idling."""
    program = prepared.program.ranks[rank]
    start, end = iteration.result.start_ns[rank] * 1e-9, iteration.result.end_ns[rank] * 1e-9
    steps = prepared.program.schedule.ranks[rank]
    names = [
        program.names[kind] + (f" {i.microbatch}" if i.microbatch >= 0 else "")
        for kind, i in zip(program.order, steps, strict=True)
    ]
    energy, span = iteration.timelines[rank].energy_by_instruction_j(), end - start
    return timeline_of_instructions(
        rank, start, end, names, np.divide(energy, span, out=np.zeros_like(span), where=span > 0)
    )
