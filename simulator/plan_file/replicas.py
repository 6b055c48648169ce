"""What must hold of the keys by which a plan shares work and states among data-parallel ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.simulator.schedules import SPLITS_BACKWARD

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.source import Source

SHARD_SIZE, RESHARD = "parallelism.fsdp_shard_size", "parallelism.fsdp_reshard_after_forward"
SYNC = "parallelism.fsdp_sync_each_batch"


def check_replicas(plan: Plan, source: Source) -> None:
    """Refuse combinations that no framework has, and sizes that do not divide.

    Raises
    ------
    InputError
        One of them.
    """
    split, overlap = plan.parallelism, plan.overlap
    if overlap.param_gather == "overlapped" and not split.distributed_optimizer:
        raise source.error(
            "only a distributed optimizer gathers parameters after its step",
            "overlap.param_gather",
            remedy="Set parallelism.distributed_optimizer = true, or leave this key out.",
        )
    if overlap.param_gather == "overlapped" and plan.implementation.framework != "megatron":
        raise source.error(
            "gathering parameters beside forwards is Megatron's",
            "overlap.param_gather",
            remedy="Set implementation.framework = 'megatron', or leave this key out.",
        )
    if not split.fsdp:
        return
    if plan.replicas % split.fsdp_shard_size:
        sizes = [str(n) for n in range(1, plan.replicas + 1) if plan.replicas % n == 0]
        raise source.error(
            f"{split.fsdp_shard_size} ranks do not divide the {plan.replicas} data-parallel ones",
            SHARD_SIZE,
            remedy=f"Use one of {', '.join(sizes[-8:])}.",
        )
    if not split.fsdp_reshard_after_forward and (
        plan.implementation.framework == "megatron" or plan.workload.model.experts is not None
    ):
        raise source.error(
            "parameters that stay gathered are known of PyTorch's FSDP and dense models",
            RESHARD,
            remedy="Leave the key out.",
        )
    if not split.fsdp_sync_each_batch and (plan.implementation.framework == "megatron" or plan.pp > 1):
        raise source.error(
            "gradients that add up whole are known of PyTorch's FSDP without pipelines",
            SYNC,
            remedy="Leave the key out.",
        )
    what, in_turn = "this does not go with FSDP", "layers are gathered one after the other"
    twice = "Use another schedule: a backward in two parts would gather parameters twice"
    problems = (
        (plan.schedule.name in SPLITS_BACKWARD, what, twice, "schedule.name"),
        (overlap.nanobatches > 1, what, f"Set it to 1: {in_turn}", "overlap.nanobatches"),
        (overlap.ep_comm, what, f"Set it to false: {in_turn}", "overlap.ep_comm"),
    )
    source.refuse(problems)
