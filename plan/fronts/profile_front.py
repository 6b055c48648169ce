"""From a measured profile to the problem of a front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from joulecast.errors import InputError
from joulecast.plan.exact.dag import InstructionDag, dag_of_schedule
from joulecast.plan.exact.problem import FrontProblem, make_problem
from joulecast.plan.fronts.profile import POWER_W, Profile, load_profile
from joulecast.plan.knobs.options import Option
from joulecast.simulator.schedules import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    build_schedule,
    chunks_of_schedule,
    copies_of_model,
)

#: Most micro-batches times stages: beyond, a front takes hours.
MOST_TURNS = 100_000
#: Options that stand for the keys of a plan, for errors.
_OPTIONS = {
    "schedule.name": "--schedule",
    "parallelism.pipeline_model_parallel_size": "--stages",
    "parallelism.virtual_pipeline_model_parallel_size": "--virtual-stages",
    "workload.global_batch_size": "--microbatches",
}
#: Why plans of a profile have no intervals.
MEASURED = "times and energies are as measured: nothing is forecast, and plans have no intervals"
#: What an unsplit backward's halves are taken for.
HALVES = "the backward's input and weight gradients each take half of its measured time and energy"
#: What a forward and a backward in one instruction are taken for.
IN_A_ROW = "a forward and a backward in one instruction take as much as one after the other"


def problem_from_profile(
    path: str | Path,
    dag: InstructionDag | None = None,
    *,
    schedule: str = "1f1b",
    microbatches: int = 1,
    wait_power_w: float,
    stages: Sequence[int] | None = None,
    virtual_stages_per_rank: int = 1,
    transfer_s: float = 0.0,
) -> FrontProblem:
    """Problem of a pipeline whose stages were measured.

    Parameters
    ----------
    path
        Profile, see :mod:`joulecast.plan.fronts.profile`.
    dag
        The user's own graph; ``schedule``, ``microbatches``, ``virtual_stages_per_rank`` and ``transfer_s`` are then
        not used.
    wait_power_w
        Power of one GPU while it waits for another stage [W].
    stages
        Stages of the profile along the pipeline; the same may appear more than once. By default all of them.
    virtual_stages_per_rank
        For interleaved schedules: rank ``r`` of ``p`` executes the stages ``r, r + p, …``.
    transfer_s
        From the end of an instruction to when the next stage may begin with its output [s].

    Raises
    ------
    InputError
        The profile cannot be used, or does not have what the schedule executes, or the waiting power is no GPU's.
    """
    if wait_power_w > POWER_W[1]:
        wrong = f"{wait_power_w:g} W, which no GPU draws"
        raise InputError(wrong, key="--wait-power", remedy="Give it in watts for one GPU.")
    profile = load_profile(path, stages)
    along = list(stages) if stages is not None else list(profile.stages)
    if dag is None:
        dag = _scheduled(len(along), schedule, microbatches, virtual_stages_per_rank, transfer_s)
    elif len(dag.ranks) != len(along):
        raise InputError(
            f"the graph has {len(dag.ranks)} stages, the profile {len(along)}",
            file=profile.file,
            remedy="Name as many stages of the profile as the graph has.",
        )
    return _problem(profile, dag, along, wait_power_w)


def _scheduled(
    stages: int, schedule: str, microbatches: int, virtual_stages_per_rank: int, transfer_s: float
) -> InstructionDag:
    """The graph of a schedule by its name, as :func:`problem_from_profile` is asked for it."""
    chunks = chunks_of_schedule(schedule, virtual_stages_per_rank)
    virtual_stages_per_rank = chunks // copies_of_model(schedule)
    if stages % virtual_stages_per_rank:
        raise InputError(
            f"{stages} stages do not divide into {virtual_stages_per_rank} on each rank",
            key="--virtual-stages",
            remedy="Choose a divisor.",
        )
    if not math.isfinite(transfer_s) or transfer_s < 0:
        raise InputError(f"a transfer of {transfer_s:g} s", key="--transfer-time", remedy="Use seconds, 0 or more.")
    if stages * microbatches > MOST_TURNS:
        raise InputError(
            f"{microbatches} micro-batches on {stages} stages are more than a front is found of",
            key="--microbatches",
            remedy=f"Use at most {MOST_TURNS // stages}: the front of an iteration hardly changes beyond.",
        )
    ranks = stages // virtual_stages_per_rank
    try:
        order = build_schedule(schedule, ranks, microbatches, virtual_stages_per_rank=chunks, tail=())
    except InputError as error:
        raise InputError(error.message, key=_OPTIONS.get(error.key or ""), remedy=error.remedy) from None
    return dag_of_schedule(order, transfer_s)


def _problem(profile: Profile, dag: InstructionDag, along: Sequence[int], wait_power_w: float) -> FrontProblem:
    keys: dict[tuple[int, int, str], int] = {}
    options: list[Sequence[Option]] = []
    names: list[str] = []
    notes: dict[str, None] = {}
    kind = []
    for rank, order in enumerate(dag.ranks):
        for instruction in order:
            key = (rank, instruction.chunk, instruction.kind)
            if key not in keys:
                keys[key] = len(options)
                stage = along[dag.stage(rank, instruction.chunk)]
                parts = [(along[dag.stage(rank, part.chunk)], part.kind) for part in instruction.parts]
                found, note = _options(profile, *parts[0]) if len(parts) == 1 else _in_a_row(profile, parts)
                options.append(found)
                names.append(f"{instruction.kind} of stage {stage}")
                notes.update(dict.fromkeys(note))
            kind.append(keys[key])
    gpus = profile.gpus_per_stage
    said = (*notes, MEASURED)
    return make_problem(dag, options, kind, wait_power_w * gpus, names=names, notes=said, gpus_per_rank=gpus)


def _options(profile: Profile, stage: int, kind: str) -> tuple[Sequence[Option], tuple[str, ...]]:
    """Options of a kind of instruction, and what had to be assumed."""
    if kind in (BACKWARD_INPUT, BACKWARD_WEIGHT) and (stage, kind) not in profile.options:
        whole = profile.of(stage, BACKWARD)
        return [Option(o.time_s / 2, o.energy_j / 2, o.clock_mhz, o.knobs) for o in whole], (HALVES,)
    return profile.of(stage, kind), ()


def _in_a_row(profile: Profile, parts: Sequence[tuple[int, str]]) -> tuple[Sequence[Option], tuple[str, ...]]:
    """Options of a forward and a backward in one instruction: both at one clock, one after the other."""
    first, second = ({(o.clock_mhz, o.knobs): o for o in _options(profile, *part)[0]} for part in parts)
    both = [(first[key], second[key]) for key in first if key in second]
    found = [Option(a.time_s + b.time_s, a.energy_j + b.energy_j, a.clock_mhz, a.knobs) for a, b in both]
    if not found:
        raise InputError(
            f"forward of stage {parts[0][0]} and backward of stage {parts[1][0]} were measured at no common clock",
            file=profile.file,
            remedy="Choose another schedule, such as 1f1b.",
        )
    return found, (IN_A_ROW,)
