"""What parts of many plans depend on: plans with equal keys share a part, made from a plan that stands for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from joulecast.arrays import Array
from joulecast.simulator.instructions.clock_columns import is_locked
from joulecast.simulator.plan_file.parts import Cluster, Overlap, Parallelism, Power, Schedule, Workload
from joulecast.simulator.plan_file.placement import ends_fabric, ranks_in_step
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import (
    BACKWARD,
    BACKWARD_WEIGHT,
    BOTH_ENDS,
    FOLDED,
    FORWARD,
    FORWARD_BACKWARD,
    PAIRS,
    TWO_WAY,
)


class Place(NamedTuple):
    """A stage: its layers, whether embedding or head stand on it, and how many layers are of kinds but the usual.

    ``beside`` is the stage on the same rank whose backward runs in one instruction with this one's forward.
    """

    layers: int
    first: bool
    last: bool
    others: tuple[int, ...] = ()
    beside: Place | None = None


_NO_POWER = Power()
#: How the pipeline cuts the model: a stage's own work does not depend on it.
_CUT: dict[str, Any] = {
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": 1,
    "stage_layers": (),
}
_REPLICATED: dict[str, Any] = {"data_parallel_size": 1, "fsdp_shard_size": 1}


def _all_but(kind: type, *names: str) -> Callable[[Any], tuple[Any, ...]]:
    """What reads every other field of a dataclass."""
    return attrgetter(*(f.name for f in fields(kind) if f.name not in names))


_workload_key = _all_but(Workload, "global_batch_size", "training_tokens")
_workload_key_at_end = _all_but(Workload, "micro_batch_size", "global_batch_size", "training_tokens")
_cluster_key = _all_but(Cluster, "gpus")
_overlap_key = _all_but(Overlap, "grad_bucket_bytes")
_split_key = _all_but(Parallelism, *_CUT, *_REPLICATED)
_split_key_at_end = _all_but(Parallelism, *_CUT)
_split_key_between = _all_but(Parallelism, "virtual_pipeline_model_parallel_size", "stage_layers")


def stage_key(plan: Plan) -> tuple[object, ...]:
    """All that a stage's forward and backward depend on, apart from its place."""
    split = (_split_key_at_end if _knows_replicas(plan) else _split_key)(plan.parallelism)
    shared = (plan.schedule.recompute, _overlap_key(plan.overlap), plan.implementation)
    return (_workload_key(plan.workload), _cluster_key(plan.cluster), split, *shared, _accumulated(plan))


def _knows_replicas(plan: Plan) -> bool:
    """Whether a stage's own work depends on its replicas: FSDP's does, and where PyTorch's host waits, DDP's hooks."""
    run = plan.implementation
    hooked = run.framework == "pytorch-eager" and bool(run.host_launch_us) and plan.replicas > 1
    return plan.parallelism.fsdp or hooked


def _accumulated(plan: Plan) -> int:
    """Micro-batches whose gradients add up where the first one's need no addition, else 1."""
    return plan.microbatches if plan.implementation.zero_grad_set_to_none else 1


def transfer_key(plan: Plan) -> tuple[object, ...]:
    """All that transfers between a plan's stages depend on."""
    split = (_split_key_between(plan.parallelism), goes_round(plan))
    return (_workload_key(plan.workload), _cluster_key(plan.cluster), split, plan.implementation)


def goes_round(plan: Plan) -> bool:
    """Whether the last rank sends to the first."""
    return plan.vp > 1 and plan.schedule.name not in BOTH_ENDS


def tail_key(plan: Plan) -> tuple[object, ...]:
    """All that the end of an iteration depends on, apart from the rank's place."""
    w = plan.workload
    work = _workload_key_at_end(w)
    if plan.implementation.framework != "megatron":
        work = (*work, w.micro_batch_size, w.global_batch_size, plan.schedule.recompute)
    split = _split_key_at_end(plan.parallelism)
    ends = ends_fabric(plan) if plan.pp > 1 and plan.schedule.name not in BOTH_ENDS else None
    return (work, _cluster_key(plan.cluster), split, ends, plan.overlap, plan.implementation)


def pace_key(plan: Plan) -> tuple[object, ...]:
    """All that the pace of a plan's groups depends on, beside their clocks."""
    return (ranks_in_step(plan), plan.tp * plan.replicas, plan.cluster, is_locked(plan))


def stage_plan(plan: Plan) -> Plan:
    """The plan with what :func:`stage_key` leaves out set to one value."""
    replicated = _knows_replicas(plan)
    copies = plan.dp if replicated else 1
    return replace(
        plan,
        workload=replace(plan.workload, global_batch_size=plan.workload.micro_batch_size * copies * _accumulated(plan)),
        parallelism=replace(plan.parallelism, **_CUT, **({} if replicated else _REPLICATED)),
        schedule=Schedule("dualpipe-v" if plan.schedule.name in PAIRS else "1f1b", plan.schedule.recompute),
        power=_NO_POWER,
    )


def tail_plan(plan: Plan) -> Plan:
    """The plan with what :func:`tail_key` leaves out set to one value."""
    name = plan.schedule.name if plan.schedule.name in BOTH_ENDS else "1f1b"
    w, schedule = plan.workload, Schedule(name, plan.schedule.recompute)
    if plan.implementation.framework == "megatron":
        w, schedule = replace(w, micro_batch_size=1, global_batch_size=plan.dp), Schedule(name, "none")
    return replace(plan, workload=w, schedule=schedule, power=_NO_POWER)


def at_place(plan: Plan, place: Place) -> Plan:
    """A plan in which a stage stands at this place: alone, or the first, second or last of three.

    Where the first rank has both ends, on stages of their own, so it does here; of a pipeline with two ways the first
    rank, or the second of four, has all of the place's layers on one of its stages.
    """
    both = place.first and place.last
    chunks = 2 if both and plan.schedule.name in FOLDED else 1
    stages = 1 if both else 3
    if plan.schedule.name in TWO_WAY:
        stages = 2 if both else 4
    elif chunks == 2:
        stages = 4
    split = replace(
        plan.parallelism,
        pipeline_model_parallel_size=stages // chunks,
        virtual_pipeline_model_parallel_size=chunks,
        stage_layers=tuple(place.layers if stage == rank_of(place) else 0 for stage in range(stages)),
    )
    workload = replace(plan.workload, model=plan.workload.model.sorted_stack(place.others, place.layers))
    return replace(plan, workload=workload, parallelism=split)


def kind_number(kind: str, *, pairs: bool) -> int:
    """Where arrays of stages have a kind of instruction: 0 of a forward, 1 of a backward, 2 of a weight gradient.

    Of schedules with ``pairs`` 1 is of an input gradient, 3 of a forward with a backward beside it, and 4 of a whole
    backward (:func:`with_whole_backward`).
    """
    if pairs and kind in (BACKWARD, FORWARD_BACKWARD):
        return 4 if kind == BACKWARD else 3
    return {FORWARD: 0, BACKWARD_WEIGHT: 2}.get(kind, 1)


def with_whole_backward(stages: Array) -> Array:
    """Kinds of instructions of stages, the first axis, with whole backwards behind pairs where there are any."""
    if len(stages) <= kind_number(FORWARD_BACKWARD, pairs=True):
        return stages
    return np.concatenate([stages, stages[1:2] + stages[2:3]])


def rank_of(place: Place) -> int:
    """Rank of a place in the plan that :func:`at_place` makes."""
    return 0 if place.first else (2 if place.last else 1)
