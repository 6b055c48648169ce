"""From a plan to what every pipeline rank runs: the launches of each kind of instruction.

Ranks of one tensor-parallel group, and replicas, all do the same; one of each pipeline stage is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.framework.placed import placed, placed_launches
from joulecast.model.framework.wide_values import in_tf32
from joulecast.model.kernels.operators import Collective
from joulecast.model.training import step
from joulecast.model.training.generation import PREFIX, generation
from joulecast.model.training.nanobatches import in_turns, layers_backward, layers_forward
from joulecast.model.training.parameters import ParameterTensor
from joulecast.model.training.pipeline_stage import split_backward, stage_transfer, step_epilogue
from joulecast.model.training.sharded_units import sharded_backward, sharded_forward
from joulecast.model.training.vision_stack import TowerPass, images_backward, images_forward
from joulecast.simulator.instructions.overlap import is_overlapped
from joulecast.simulator.instructions.overlapped_buckets import OverlappedBuckets
from joulecast.simulator.instructions.replicas import (
    optimizer_launches,
    overlapped_buckets,
    reduced_beside,
    reduces_among_launches,
    sharded_stage,
    sharding_of,
    stage_tensors,
    step_end,
)
from joulecast.simulator.plan_file.compared import compared_of, scored_by
from joulecast.simulator.plan_file.implementation import implementation_of, nanobatches_of
from joulecast.simulator.plan_file.placement import stage_fabric, tensor_fabric
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.rollout import generated_by, scorings_of
from joulecast.simulator.schedules import (
    BACKWARD,
    BACKWARD_INPUT,
    FORWARD,
    GENERATION,
    ONCE,
    OPTIMIZER,
    SCORING,
    Instruction,
    Schedule,
    build_schedule,
    last_backwards,
)


@dataclass(frozen=True)
class RankProgram:
    """What one pipeline rank runs in an iteration.

    Attributes
    ----------
    types
        Launches of each type of instruction.
    names
        A name for each type, for ledgers and traces.
    order
        Type of every instruction, in execution order.
    overlapped
        Communication beside whole instructions.
    """

    types: tuple[tuple[Launch, ...], ...]
    names: tuple[str, ...]
    order: tuple[int, ...]
    overlapped: tuple[OverlappedBuckets, ...] = ()


@dataclass(frozen=True)
class PlanProgram:
    """A plan's schedule, what each pipeline rank runs, and one transfer from each of them to the next."""

    plan: Plan
    schedule: Schedule
    ranks: tuple[RankProgram, ...]
    transfers: tuple[Collective, ...]


@lru_cache(maxsize=128)
def plan_program(plan: Plan) -> PlanProgram:
    """Schedule and launches of a plan."""
    schedule = build_schedule(
        plan.schedule.name, plan.pp, plan.microbatches, virtual_stages_per_rank=plan.chunks, tail=tail_of(plan)
    )
    implementation = implementation_of(plan)
    ranks = tuple(_rank_program(plan, implementation, schedule.ranks[r], r) for r in range(plan.pp))
    return PlanProgram(plan, schedule, ranks, stage_transfers(plan))


def tail_of(plan: Plan) -> tuple[str, ...]:
    """What follows the last backward: the optimizer, then the next completions, each micro-batch of them scored."""
    rollout = plan.workload.rollout
    return (OPTIMIZER, *((GENERATION,) if rollout is not None else ()), *(SCORING,) * scorings_of(plan))


def stage_transfers(plan: Plan) -> tuple[Collective, ...]:
    """What each pipeline rank sends to the next for one micro-batch; nothing where there is one stage."""
    if plan.pp * plan.chunks == 1:
        return ()
    transfer = stage_transfer(*_micro_batch(plan, implementation_of(plan)))
    fabrics = [stage_fabric(plan, rank) for rank in range(plan.pp)]
    over = {fabric: placed(transfer, fabric) for fabric in dict.fromkeys(fabrics)}
    return tuple(over[fabric] for fabric in fabrics)


def _rank_program(plan: Plan, impl: Implementation, order: Sequence[Instruction], rank: int) -> RankProgram:
    last = last_backwards(order) if reduces_among_launches(plan) else ()
    keys: dict[tuple[object, ...], int] = {}
    types: list[tuple[Launch, ...]] = []
    names: list[str] = []
    row: list[int] = []
    for place, instruction in enumerate(order):
        special = place in last
        key = (instruction.kind, instruction.chunk, special)
        if key not in keys:
            keys[key] = len(types)
            types.append(instruction_launches(plan, impl, instruction, rank, special))
            names.append(_name(plan, instruction, special))
        row.append(keys[key])
    chunks = [stage_tensors(plan, impl, stage) for stage in plan.stages_of_rank(rank)]
    return RankProgram(tuple(types), tuple(names), tuple(row), overlapped_buckets(plan, impl, rank, order, chunks))


def _name(plan: Plan, instruction: Instruction, special: bool) -> str:
    name = instruction.kind
    if plan.chunks > 1 and instruction.kind not in ONCE:
        name += f" chunk {instruction.chunk}"
    return name + " with gradient reduction" if special else name


def instruction_launches(
    plan: Plan, impl: Implementation, instruction: Instruction, rank: int, reduces: bool = False
) -> tuple[Launch, ...]:
    """What one instruction of a pipeline rank launches; ``reduces``: with gradients' reduction beside it."""
    return _in_own_type(_launches_of(plan, impl, instruction, rank, reduces), impl)


def layers_as_run(plan: Plan, impl: Implementation, launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
    """Launches of layers over the links of their tensor-parallel ranks, products in the plan's type."""
    return _in_own_type(placed_launches(launches, tensor_fabric(plan)), impl)


def _in_own_type(launches: tuple[Launch, ...], impl: Implementation) -> tuple[Launch, ...]:
    return in_tf32(launches) if impl.tf32 else launches


def _launches_of(
    plan: Plan, impl: Implementation, instruction: Instruction, rank: int, reduces: bool
) -> tuple[Launch, ...]:
    if instruction.kind == OPTIMIZER:
        return _tail(plan, impl, rank)
    if instruction.kind == GENERATION:
        return _generation(plan, impl)
    if instruction.kind == SCORING:
        return tuple(x for reader, way in scored_by(plan, impl) for x in _forward_of_one(reader, way, 0))
    if instruction.beside is not None:
        ways = (instruction_launches(plan, impl, one, rank) for one in instruction.parts)
        return paired(plan, *ways)
    stage = plan.stages_of_rank(rank)[instruction.chunk]
    if instruction.kind == FORWARD:
        return _leaving_sms(plan, placed_launches(_forward(plan, impl, stage), tensor_fabric(plan)))
    whole = placed_launches(_backward(plan, impl, stage, reduces), tensor_fabric(plan))
    if instruction.kind != BACKWARD:
        parts = split_backward(whole)
        whole = parts[0] if instruction.kind == BACKWARD_INPUT else parts[1]
    return _leaving_sms(plan, reduced_beside(plan, impl, whole) if reduces and not plan.parallelism.fsdp else whole)


def paired(plan: Plan, forward: tuple[Launch, ...], backward: tuple[Launch, ...]) -> tuple[Launch, ...]:
    """A forward and a backward in one instruction: block by block where communication hides, else one by one."""
    return _leaving_sms(plan, in_turns(backward, forward)) if plan.overlap.ep_comm else (*forward, *backward)


def _leaving_sms(plan: Plan, launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
    """An instruction whose compute kernels leave SMs free where communication runs beside some of them."""
    free = plan.overlap.sm_margin
    if not free or not is_overlapped(launches):
        return launches
    less = {one: replace(one, free_sms=free) for one in launches if one.stream == "compute"}
    return tuple(less.get(one, one) for one in launches)


class _MicroBatch(NamedTuple):
    """What the functions of a training step take first: a model run with some options on so many sequences."""

    config: ModelConfig
    implementation: Implementation
    batch: int
    sequence: int


def _micro_batch(plan: Plan, impl: Implementation) -> _MicroBatch:
    w = plan.workload
    return _MicroBatch(w.model, impl, w.micro_batch_sequences, w.sequence_length)


def _forward(plan: Plan, impl: Implementation, stage: int) -> tuple[Launch, ...]:
    """Forward of the model, and behind it those that its loss compares it with."""
    forwards = ((plan, impl), *compared_of(plan, impl))
    return tuple(launch for reader, way in forwards for launch in _forward_of_one(reader, way, stage))


def _generation(plan: Plan, impl: Implementation) -> tuple[Launch, ...]:
    """Completions that each GPU generates, or the wait for them."""
    work, rollout = generated_by(plan), plan.workload.rollout
    if work is not None:
        return generation(plan.workload.model, plan.stage_models(0), impl, work)
    waited = 0.0 if rollout is None else rollout.wait_s or 0.0
    return (streaming("fill", f"{PREFIX}wait", 1, reads=0, late_s=waited),)


def _forward_of_one(plan: Plan, impl: Implementation, stage: int) -> tuple[Launch, ...]:
    layers, batch = plan.parallelism.stage_layers, _micro_batch(plan, impl)
    before = step.embedding_forward(*batch) if stage == 0 else ()
    seen = images_forward(*batch) if stage == 0 else TowerPass()
    after = _ends_forward(plan, impl) if stage == len(layers) - 1 else ()
    sharding = sharding_of(plan)
    if sharding is None:
        return (*before, *seen.launches, *stacked_layers(plan, impl, stage, FORWARD), *after)
    models = _layers_in_order(plan, impl, stage, FORWARD)
    kinds = [(step.layer_forward(*one), one.config, count) for one, count in models]
    units = sharded_stage(plan, impl, stage, before, kinds, after, seen)
    return sharded_forward(*units, sharding, impl)


def _backward(plan: Plan, impl: Implementation, stage: int, reduces: bool) -> tuple[Launch, ...]:
    layers, batch = plan.parallelism.stage_layers, _micro_batch(plan, impl)
    one_stage = len(layers) == 1
    sharding = sharding_of(plan)
    kept = sharding is None
    before = _ends_backward(plan, impl, kept) if stage == len(layers) - 1 else ()
    after = step.embedding_backward(*batch, accumulate=kept, head_here=one_stage) if stage == 0 else ()
    seen = images_backward(*batch, accumulate=kept) if stage == 0 else TowerPass()
    if sharding is None:
        return (*before, *stacked_layers(plan, impl, stage, BACKWARD), *after, *seen.launches)
    models = _layers_in_order(plan, impl, stage, BACKWARD)
    kinds = [(step.layer_backward(*one, accumulate=False), one.config, count) for one, count in models]
    units = sharded_stage(plan, impl, stage, before, kinds, after, seen, forward=False)
    return sharded_backward(*units, sharding, impl, last=reduces)


def stacked_layers(plan: Plan, impl: Implementation, stage: int, direction: str) -> tuple[Launch, ...]:
    """What the layers of a virtual stage launch in one direction, where nothing is sharded."""
    stack = layers_forward if direction == FORWARD else layers_backward
    kinds = _layers_in_order(plan, impl, stage, direction)
    return tuple(launch for one, count in kinds for launch in stack(*one, count, nanobatches_of(plan)))


def _layers_in_order(plan: Plan, impl: Implementation, stage: int, direction: str) -> list[tuple[_MicroBatch, int]]:
    """Layers of a virtual stage that are alike in one direction, and their number, in the order in which they run."""
    batch = _micro_batch(plan, impl)
    if direction == FORWARD:
        return [(batch._replace(config=model), count) for model, count in plan.stage_models(stage)]
    return [
        (batch._replace(config=model, implementation=options), count)
        for model, options, count in reversed(_recomputed(plan, impl, stage))
    ]


def _recomputed(plan: Plan, impl: Implementation, stage: int) -> list[tuple[ModelConfig, Implementation, int]]:
    """Layers of a virtual stage whose backwards are alike: model, options and number, in order.

    Of layers that are computed again at an interval the last of every so many is. Beside adapters the first layer's
    input takes no gradient, unless transformers has it take one for checkpoints (``enable_input_require_grads``).
    """
    models = [(model, impl, count) for model, count in plan.stage_models(stage)]
    asked = impl.recompute != "none" and impl.modules == "transformers"
    ends = impl.lora is not None and stage == 0 and not asked
    if impl.recompute_interval == 1 and not ends:
        return models
    options = (impl, replace(impl, recompute="none"))
    each = [model for model, _, count in models for _ in range(count)]
    kinds = [(model, options[i % impl.recompute_interval > 0]) for i, model in enumerate(each, 1)]
    if ends and impl.lora is not None and kinds:
        kinds[0] = (each[0], replace(impl, lora=replace(impl.lora, input_gradient=False)))
    return [(*kind, len(list(alike))) for kind, alike in groupby(kinds)]


def _ends_forward(plan: Plan, impl: Implementation) -> tuple[Launch, ...]:
    """Behind the last layer: the output head, then modules that predict further tokens, each with its own layer."""
    batch, modules = _micro_batch(plan, impl), plan.workload.model.mtp_layers
    if not modules:
        return step.head_forward(*batch)
    layer = layers_forward(*batch._replace(config=batch.config.prediction_layer), 1, nanobatches_of(plan))
    further = (*step.prediction_forward(*batch), *layer, *step.head_forward(*batch))
    return (*step.head_forward(*batch), *further * modules)


def _ends_backward(plan: Plan, impl: Implementation, accumulate: bool) -> tuple[Launch, ...]:
    batch, modules = _micro_batch(plan, impl), plan.workload.model.mtp_layers
    head = step.head_backward(*batch, accumulate=accumulate, embedding_here=len(plan.parallelism.stage_layers) == 1)
    if not modules:
        return head
    layer = layers_backward(*batch._replace(config=batch.config.prediction_layer), 1, nanobatches_of(plan))
    further = (*head, *layer, *step.prediction_backward(*batch))
    return (*further * modules, *head)


def stage_parameters(plan: Plan, rank: int) -> tuple[ParameterTensor, ...]:
    """Parameter tensors on one GPU of a pipeline rank."""
    impl = implementation_of(plan)
    return tuple(p for stage in plan.stages_of_rank(rank) for p in stage_tensors(plan, impl, stage))


def _tail(plan: Plan, impl: Implementation, rank: int) -> tuple[Launch, ...]:
    """What follows the last backward: gradient reduction, the pipeline's epilogue, the optimizer."""
    parameters = stage_parameters(plan, rank)
    out: tuple[Launch, ...] = ()
    if plan.pp > 1:
        out += step_epilogue(
            *_micro_batch(plan, impl),
            parameters=parameters,
            micro_batches=plan.microbatches,
            last=len(plan.parallelism.stage_layers) - 1 in plan.stages_of_rank(rank),
        )
    reduced, gathered = (step_end(plan, impl, rank, gathers=way) for way in (False, True))
    return (*reduced, *out, *optimizer_launches(plan, impl, parameters), *gathered)
