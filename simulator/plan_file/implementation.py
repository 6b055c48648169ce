"""A plan's framework and nano-batches in the words of :mod:`joulecast.model`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.wide_values import TF32
from joulecast.model.hashing import shared
from joulecast.model.training.bitsandbytes_steps import KINDS
from joulecast.model.training.nanobatches import Nanobatches
from joulecast.simulator.plan_file.documents import slowest_documents
from joulecast.simulator.plan_file.placement import context_fabric, expert_fabric, expert_tensor_fabric, tensor_fabric
from joulecast.simulator.plan_file.training_loop import (
    is_trainer,
    loop_wait_s,
    said_launch_s,
    step_wait_s,
    widens_outputs,
)
from joulecast.simulator.schedules import PAIRS

if TYPE_CHECKING:
    from joulecast.simulator.plan_file import parts
    from joulecast.simulator.plan_file.plan import Plan

#: What a plan's table says in the words of the framework's options.
AS_STATED = (
    *("framework", "modules", "attention_backend", "rotary", "tie_embeddings", "shard_head", "tiles"),
    *("recompute_modules", "recompute_interval", "recompute_stops_early", "dropout", "deterministic"),
    *("fused_loss", "native_loss", "loss_metrics", "log_probabilities", "optimizer", "muon"),
)
#: SMs of the kernels that exchange experts' tokens: Megatron's defaults.
EXCHANGE_SMS = {"deepep": 20, "hybridep": 16}


def implementation_of(plan: Plan) -> Implementation:
    """The plan's framework and what it decides; plans alike in all of it share one."""
    split, w = plan.parallelism, plan.workload
    experts = w.model.experts is not None
    return _implementation(
        plan.implementation,
        plan.overlap,
        recompute=plan.schedule.recompute,
        dtype=w.dtype,
        tf32=w.precision == TF32,
        narrow=w.narrow,
        lora=w.lora,
        scaled_loss=is_trainer(plan) or plan.microbatches > 1,
        documents=slowest_documents(plan),
        images=w.images,
        asked_launch_s=said_launch_s(plan) if w.images is not None else 0.0,
        scored_share=w.scored_share,
        reference=(w.reference or "") if w.runs_reference else "",
        teacher=w.teacher,
        compared_apart=w.objective == "grpo",
        loop_wait_s=loop_wait_s(plan),
        widens_outputs=widens_outputs(plan),
        step_wait_s=step_wait_s(plan),
        wide_embedding_states=is_trainer(plan) and plan.implementation.optimizer in KINDS,
        expert_load=w.expert_load,
        pads_experts=not w.experts_filled,
        gathered=split.fsdp and max(plan.replicas, plan.expert_replicas) > 1,
        added_share=_added_share(plan),
        tensor_parallel=plan.tp,
        tensor_domains=tensor_fabric(plan).domains,
        sequence_parallel=plan.sequence_parallel,
        context_parallel=plan.cp,
        cp_comm_type=split.cp_comm_type,
        context_fabric=context_fabric(plan),
        expert_parallel=split.expert_model_parallel_size,
        expert_tensor_parallel=split.expert_tensor_parallel_size,
        expert_fabric=expert_fabric(plan) if experts else None,
        expert_tensor_fabric=expert_tensor_fabric(plan) if experts else None,
    )


@lru_cache(maxsize=4096)
def _implementation(i: parts.Implementation, overlap: parts.Overlap, **of_plan: Any) -> Implementation:
    """The framework of plans with these tables, and with what they say elsewhere."""
    made = Implementation(
        **{name: getattr(i, name) for name in AS_STATED},
        parameters="fp32" if of_plan["lora"] is not None and of_plan["lora"].prepared else i.parameter_precision,
        reference_parameters=i.reference_precision,
        gradients=i.gradient_precision,
        moments=i.optimizer_precision,
        main_parameters=i.main_parameters and i.framework == "pytorch-eager",
        drops_gradients=i.zero_grad_set_to_none,
        clipped=i.gradient_clipping and i.framework == "pytorch-eager",
        attention_fp8=i.attention_precision == "fp8",
        ctas=overlap.comm_ctas,
        threads=overlap.comm_threads,
        copy_engines=overlap.comm_engine == "copy",
        comm_first=overlap.comm_first,
        compiled=i.compile,
        liger=i.liger_kernel,
        tp_comm_overlap=overlap.tp_comm,
        expert_dispatcher=i.moe_token_dispatcher_type,
        exchange_sms=i.moe_flex_dispatcher_num_sms or EXCHANGE_SMS.get(i.moe_flex_dispatcher_backend),
        hybrid_exchange=i.moe_flex_dispatcher_backend == "hybridep",
        fused_permutation=i.moe_permute_fusion,
        row_operator=i.moe_row_operator,
        fused_router=i.moe_router_fusion,
        router_dtype=i.moe_router_dtype or None,
        narrow_dispatch=i.moe_dispatch_precision == "fp8",
        stores_activation_input=i.activation_func_fp8_input_store,
        packs_attention_output=i.attention_output_store == "e5m6",
        fused_experts=i.moe_fused_mlp,
        averaged=i.average_in_collective,
        **of_plan,
    )
    return cast(Implementation, shared(made))


def _added_share(plan: Plan) -> float:
    """Share of the backwards, each part of a micro-batch having its own, that add to an earlier one's gradients."""
    if not plan.implementation.zero_grad_set_to_none or plan.parallelism.fsdp:
        return 1.0
    cut = nanobatches_of(plan)
    return 1.0 - 1.0 / (plan.microbatches * (1 if cut.shared else cut.parts))


def nanobatches_of(plan: Plan) -> Nanobatches:
    """How the plan cuts its micro-batches."""
    overlap = plan.overlap
    if overlap.ep_comm and plan.schedule.name not in PAIRS:
        return Nanobatches(2, shared=True)
    return Nanobatches(overlap.nanobatches, overlap.windows, overlap.launch)


def batch_of_part(plan: Plan) -> int:
    """Sequences of one part of a micro-batch: all of them where the parts only share the experts' communication."""
    cut = nanobatches_of(plan)
    return plan.workload.micro_batch_sequences // (1 if cut.shared else cut.parts)
