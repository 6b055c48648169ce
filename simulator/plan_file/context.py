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
    _transformer_engine(plan, source)
    _heads(plan, source)
    _state_space(plan, source)


def _transformer_engine(plan: Plan, source: Source) -> None:
    """Transformer Engine 2 refuses windows around a ring, and has sinks where heads are exchanged alone."""
    model, kind = plan.workload.model, plan.parallelism.cp_comm_type
    if model.attention_sinks and kind != "a2a":
        what, remedy = f"{model.name} has sinks, which Transformer Engine knows of exchanged heads", 'Set it to "a2a".'
    elif model.sliding_window and kind == "p2p":
        what = f"{model.name} has windows, which Transformer Engine refuses around a ring"
        remedy = 'Set it to "all_gather" or "a2a".'
    else:
        return
    raise source.error(what, TYPE, remedy=remedy)


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


def _state_space(plan: Plan, source: Source) -> None:
    """Megatron exchanges whole heads of a state space, and their groups or copies of these."""
    mixer = plan.workload.model.state_space
    if mixer is None:
        return
    heads, groups = mixer.heads // plan.tp, max(mixer.groups // plan.tp, 1)
    if heads % plan.cp or (groups % plan.cp and plan.cp % groups):
        raise source.error(
            f"{heads} heads of a state space in {groups} groups on a tensor-parallel rank cannot be exchanged among "
            f"{plan.cp} context-parallel ones",
            CP,
            remedy="Use a size that divides the heads, and divides their groups or is a multiple of them.",
        )
