"""Forwards without gradients that a loss takes beside its own: by which model, and with what options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulecast.simulator.plan_file.training_loop import forward_wait_s

if TYPE_CHECKING:
    from joulecast.model.framework.implementation import Implementation
    from joulecast.simulator.plan_file.plan import Plan

#: A plan of the model that reads, and what runs its forward.
Forward = tuple["Plan", "Implementation"]


def compared_of(plan: Plan, impl: Implementation) -> tuple[Forward, ...]:
    """Those behind each forward of the trained model.

    DPO's reference reads what the model does. KTO's reads mismatched completions too, and so does the model. A teacher
    reads with its own layers.
    """
    if impl.compared_apart:
        return ()
    if impl.teacher is not None:
        return ((_of_teacher(plan), _waiting(plan, impl.of_reference)),)
    reference = _reference(plan, impl)
    if plan.workload.objective == "kto":
        return (_own(plan, impl), *reference, *reference)
    return reference


def scored_by(plan: Plan, impl: Implementation) -> tuple[Forward, ...]:
    """Those that score a micro-batch of completions before it is trained on."""
    if not impl.compared_apart:
        return ()
    own = (_own(plan, impl),) if plan.workload.old_log_probabilities else ()
    return (*own, *_reference(plan, impl))


def _own(plan: Plan, impl: Implementation) -> Forward:
    return plan, _waiting(plan, impl.without_gradients)


def _reference(plan: Plan, impl: Implementation) -> tuple[Forward, ...]:
    return ((plan, _waiting(plan, impl.of_reference)),) if impl.reference else ()


def _waiting(plan: Plan, impl: Implementation) -> Implementation:
    return replace(impl, loop_wait_s=forward_wait_s(plan))


def _of_teacher(plan: Plan) -> Plan:
    """The plan with the teacher's layers in place of the model's, on one stage."""
    teacher = plan.workload.teacher
    if teacher is None:
        return plan
    workload = replace(plan.workload, model=teacher, layers=teacher.layers)
    return replace(plan, workload=workload, parallelism=replace(plan.parallelism, stage_layers=(teacher.layers,)))
