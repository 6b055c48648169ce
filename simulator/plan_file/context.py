"""What must hold of a plan's context parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

CP, TYPE = "parallelism.context_parallel_size", "parallelism.cp_comm_type"


def check_context(plan: Plan, source: Source) -> None:
    """Refuse a split of the sequence that the plan cannot have."""
    ranks, sequence, run = plan.cp, plan.workload.sequence_length, plan.implementation
    if ranks == 1:
        return
    if run.attention_backend == "unfused":
        raise source.error(
            "attention in separate kernels does not split the sequence over context-parallel ranks",
            "implementation.attention_backend",
            remedy=f"Use another backend, or {CP} = 1.",
        )
    if sequence % (2 * ranks):
        fitting = [str(d) for d in range(1, 65) if sequence % (2 * d) == 0]
        raise source.error(
            f"a sequence of {sequence} cannot be cut into two chunks for each of {ranks} context-parallel ranks",
            CP,
            remedy=f"Use one of {', '.join(fitting)}." if fitting else "Use an even sequence_length.",
        )
    if plan.sequence_parallel and sequence // ranks % plan.tp:
        raise source.error(
            f"the {sequence // ranks} positions of one of {ranks} context-parallel ranks cannot be split over "
            f"{plan.tp} tensor-parallel ranks",
            "workload.sequence_length",
            remedy=f"Use a multiple of {2 * ranks * plan.tp}, or sequence_parallel = false.",
        )
    _heads(plan, source)


def _heads(plan: Plan, source: Source) -> None:
    if plan.parallelism.cp_comm_type != "a2a":
        return
    model = plan.workload.model
    for what, count in (("attention heads", model.heads), ("key-value heads", max(model.kv_heads, plan.tp))):
        if count // plan.tp % plan.cp:
            raise source.error(
                f"{count} {what} on {plan.tp} tensor-parallel ranks cannot be exchanged among {plan.cp} "
                "context-parallel ones",
                TYPE,
                remedy='Use "p2p" or "all_gather", or a context_parallel_size that divides each rank\'s heads.',
            )
