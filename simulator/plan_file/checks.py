"""What must agree between the keys of a plan; every violation is one readable error with its remedy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from joulecast.errors import InputError, NotYetError
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.simulator.plan_file.attention import check_attention
from joulecast.simulator.plan_file.context import check_context
from joulecast.simulator.plan_file.deterministic import check_deterministic
from joulecast.simulator.plan_file.documents import check_documents
from joulecast.simulator.plan_file.experts import check_experts
from joulecast.simulator.plan_file.frameworks import check_framework
from joulecast.simulator.plan_file.images import check_images
from joulecast.simulator.plan_file.layers import check_layers
from joulecast.simulator.plan_file.liger import check_liger
from joulecast.simulator.plan_file.lora import check_lora
from joulecast.simulator.plan_file.loss_and_optimizer import check_loss_and_optimizer
from joulecast.simulator.plan_file.muon import check_muon
from joulecast.simulator.plan_file.names import place
from joulecast.simulator.plan_file.overlap import check_overlap
from joulecast.simulator.plan_file.pairs import check_pairs
from joulecast.simulator.plan_file.power import check_power
from joulecast.simulator.plan_file.recomputation import check_recomputation
from joulecast.simulator.plan_file.replicas import check_replicas
from joulecast.simulator.plan_file.rollout import check_rollout
from joulecast.simulator.plan_file.site import goodput_of
from joulecast.simulator.plan_file.source import Source
from joulecast.simulator.plan_file.stages import TP
from joulecast.simulator.plan_file.stored import check_stored
from joulecast.simulator.plan_file.tiles import check_tiles
from joulecast.simulator.plan_file.training_loop import check_training_loop
from joulecast.simulator.plan_file.wide_values import check_wide_values
from joulecast.simulator.schedules import TWO_WAY, fewest_microbatches

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

#: Most micro-batches of one iteration: a simulation holds every one of them on every stage.
MOST_MICROBATCHES = 100_000
#: Least share of a run's time in which training advances: below, it practically never ends.
LEAST_GOODPUT = 0.001


def whole(plan: Plan, gpu: GpuDescription, source: Source, library: Iterable[str]) -> None:
    """Checks that need the whole plan: shapes, batch, nodes, the GPU's clocks and limits, and operators' names.

    ``library`` are those that have the library's tiles in so many words.
    """
    _precision(plan, gpu, source)
    _shapes(plan, source)
    check_recomputation(plan, source)
    check_deterministic(plan, source)
    check_loss_and_optimizer(plan, source)
    check_muon(plan, source)
    check_training_loop(plan, source)
    check_liger(plan, source)
    check_framework(plan, source)
    check_context(plan, source)
    check_attention(plan, gpu, source)
    check_wide_values(plan, source)
    check_layers(plan, source)
    check_documents(plan, source)
    check_experts(plan, source)
    check_stored(plan, source)
    check_lora(plan, source)
    check_images(plan, source)
    check_pairs(plan, source)
    _batch(plan, source)
    check_rollout(plan, source)
    _run(plan, source)
    _nodes(plan, source)
    check_overlap(plan, gpu, source)
    check_replicas(plan, source)
    check_tiles(plan, gpu, source, library)
    check_power(plan, gpu, source)


def _precision(plan: Plan, gpu: GpuDescription, source: Source) -> None:
    try:
        gpu_model(gpu).flops_per_cycle("bf16" if plan.workload.narrow else plan.workload.precision)
    except InputError as error:
        raise place(error, source, "workload.precision") from None


def _shapes(plan: Plan, source: Source) -> None:
    model, tp = plan.workload.model, plan.tp
    parts: dict[str, int] = {}
    if model.attends:
        parts["attention heads"] = model.heads
        # Fewer key-value heads than ranks are replicated.
        parts["key-value heads"] = tp if tp % model.kv_heads == 0 else model.kv_heads
    if model.state_space is not None:
        parts["heads of a state space"] = model.state_space.heads
        parts["groups of such heads"] = model.state_space.groups
    if model.dense_layers:
        parts["MLP columns"] = model.ffn
    if model.experts is not None:
        parts["columns of shared experts"] = model.experts.shared_ffn
    for what, size in parts.items():
        if size % tp:
            fitting = [str(d) for d in range(1, size + 1) if size % d == 0 and d <= 64]
            raise source.error(
                f"{size} {what} cannot be split over {tp} tensor-parallel ranks",
                TP,
                remedy=f"Use one of {', '.join(fitting)}.",
            )
    if model.qk_norm_whole and tp > 1:
        raise source.error(
            f"{model.name} normalises all heads of a token together, which is not known of heads split over ranks",
            TP,
            remedy="Set it to 1.",
            kind=NotYetError,
        )
    if plan.sequence_parallel and plan.workload.sequence_length % tp:
        raise source.error(
            f"a sequence of {plan.workload.sequence_length} cannot be split over {tp} ranks",
            "workload.sequence_length",
            remedy=f"Use a multiple of {tp}, or sequence_parallel = false.",
        )


def _batch(plan: Plan, source: Source) -> None:
    batch, micro, dp = plan.workload.global_batch_size, plan.workload.micro_batch_size, plan.dp
    if batch % (micro * dp):
        raise source.error(
            f"a global batch of {batch} cannot be split into micro-batches of {micro} on {dp} data-parallel ranks",
            "workload.global_batch_size",
            remedy=f"Use a multiple of {micro * dp}.",
        )
    if plan.microbatches > MOST_MICROBATCHES:
        raise source.error(
            f"{plan.microbatches} micro-batches in one iteration, more than are simulated",
            "workload.global_batch_size",
            remedy=f"Use at most {MOST_MICROBATCHES}: a smaller batch, larger micro-batches or more GPUs.",
        )
    least = fewest_microbatches(plan.schedule.name, plan.pp)
    if plan.microbatches < least:
        raise source.error(
            f"{plan.microbatches} micro-batches, where {plan.schedule.name!r} needs {least}, two for each rank",
            "workload.global_batch_size",
            remedy=f"Use {least * micro * dp} or more, or choose zb-v.",
        )
    if plan.schedule.name in TWO_WAY and plan.microbatches % 2:
        one = micro * dp
        raise source.error(
            f"{plan.microbatches} micro-batches, of which half enter {plan.schedule.name!r} at either end",
            "workload.global_batch_size",
            remedy=f"Use {(plan.microbatches - 1) * one} or {(plan.microbatches + 1) * one}.",
        )
    rounds = max(1, plan.microbatches // plan.pp)
    if plan.schedule.name == "interleaved-1f1b" and plan.microbatches % rounds:
        raise source.error(
            f"interleaving needs equal rounds, but {plan.microbatches} micro-batches do not fill {rounds}",
            "workload.global_batch_size",
            remedy=f"Use a multiple of {micro * dp * plan.pp}.",
        )


def _run(plan: Plan, source: Source) -> None:
    """A run is one iteration at least, and ends."""
    tokens = plan.workload.training_tokens
    if tokens is None:
        return
    if tokens < plan.tokens:
        raise source.error(
            f"{tokens:g} tokens of the whole run are fewer than the {plan.tokens} of one iteration",
            "workload.training_tokens",
            remedy="Write all of them, 15e12 for 15 trillion.",
        )
    if (share := goodput_of(plan)) < LEAST_GOODPUT:
        raise source.error(
            f"failures of {plan.cluster.nodes} nodes, and checkpoints, leave {share:.1g} of the time for training",
            "site.node_mtbf_hours" if plan.site.node_mtbf_hours is not None else "site.goodput",
            remedy="Raise it, or lower site.checkpoint_s and site.restart_s; a node usually fails once in years.",
        )


def _nodes(plan: Plan, source: Source) -> None:
    gpus, per_node = plan.cluster.gpus, plan.cluster.gpus_per_node
    if gpus % per_node:
        raise source.error(
            f"{gpus} GPUs do not fill nodes of {per_node}",
            "cluster.gpus",
            remedy=f"Use a multiple of {per_node}, or another cluster.gpus_per_node.",
        )
