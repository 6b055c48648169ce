"""Where the groups of ranks of a plan lie, and what links their communication has.

Ranks are numbered as Megatron numbers them: tensor-parallel neighbours first, then context-parallel ones,
then replicas, then pipeline stages.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulecast.model.cluster.fabric import Fabric, fabric_of, within_domain

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan


def group_fabric(plan: Plan, members: int, stride: int) -> Fabric:
    """What a group of ``members`` ranks, neighbours ``stride`` ranks apart, has of the plan's links."""
    return fabric_of(members, stride, plan.cluster.links)


def expert_ranks(plan: Plan) -> int:
    """GPUs that share one copy of a layer's experts."""
    return plan.parallelism.expert_model_parallel_size * plan.parallelism.expert_tensor_parallel_size


def ranks_in_step(plan: Plan) -> int:
    """GPUs that wait for each other in every layer, directly or through others.

    Those that share a layer, a sequence or a layer's experts are neighbours, so that their groups make larger ones;
    with FSDP all that have the same parameters gather them together.
    """
    if plan.parallelism.fsdp:
        return plan.tp * plan.replicas
    return math.lcm(plan.tp * plan.cp, expert_ranks(plan))


def tensor_fabric(plan: Plan) -> Fabric:
    """Links of a tensor-parallel group."""
    return group_fabric(plan, plan.tp, 1)


def context_fabric(plan: Plan) -> Fabric | None:
    """Links of a context-parallel group, if there is one."""
    return group_fabric(plan, plan.cp, plan.tp) if plan.cp > 1 else None


def expert_fabric(plan: Plan) -> Fabric:
    """Links of the ranks that share the experts of a layer."""
    split = plan.parallelism
    return group_fabric(plan, split.expert_model_parallel_size, split.expert_tensor_parallel_size)


def expert_tensor_fabric(plan: Plan) -> Fabric:
    """Links of the ranks that share each expert."""
    return group_fabric(plan, plan.parallelism.expert_tensor_parallel_size, 1)


def expert_data_fabric(plan: Plan) -> Fabric:
    """Links of the ranks that sum the gradients of the same experts; see :func:`data_fabric`."""
    return group_fabric(plan, plan.experts_summing, expert_ranks(plan))


def data_fabric(plan: Plan) -> Fabric:
    """Links of the ranks that sum their gradients.

    Where a pipeline has two copies of the model, those of the other copy are taken to follow at once: they lie on as
    many domains of fast links.
    """
    return group_fabric(plan, plan.summing, plan.tp)


def stage_fabric(plan: Plan, rank: int) -> Fabric:
    """Links from a pipeline rank to the next; the last one's next is the first."""
    stage, per_domain = plan.tp * plan.replicas, plan.cluster.links.domain_gpus
    other = (rank + 1) % plan.pp
    first, second = rank * stage // per_domain, other * stage // per_domain
    if first == second:
        return within_domain(2, plan.cluster.links)
    return group_fabric(plan, 2, per_domain * abs(second - first))


def ends_fabric(plan: Plan) -> Fabric:
    """Links between a rank of the first pipeline stage and the one in its place on the last."""
    per_domain = plan.cluster.links.domain_gpus
    domains_between = (plan.cluster.gpus - plan.tp * plan.replicas) // per_domain
    if domains_between == 0:
        return within_domain(2, plan.cluster.links)
    return group_fabric(plan, 2, per_domain * domains_between)
