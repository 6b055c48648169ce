"""``[parallelism]``, ``[schedule]`` and ``[overlap]``: how a model is split and in which order it runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from joulecast.model.framework.implementation import Recompute, RecomputeModule
from joulecast.model.training.nanobatches import LaunchPoint
from joulecast.simulator.plan_file.schema_table import Table

CommEngine = Literal["sm", "copy"]


class ParallelismTable(Table):
    """``[parallelism]``: how the model is split; data-parallel size follows from the number of GPUs."""

    tensor_model_parallel_size: int = Field(1, gt=0, description="GPUs that share each layer.")
    pipeline_model_parallel_size: int = Field(1, gt=0, description="Pipeline stages.")
    virtual_pipeline_model_parallel_size: int = Field(1, gt=0, description="Virtual stages on each pipeline rank.")
    data_parallel_size: int | None = Field(None, gt=0, description="Derived; if given, it must agree.")
    sequence_parallel: bool = Field(False, description="Split norms and residuals along the sequence too.")
    stage_layers: list[int] | Literal["balanced"] | None = Field(
        None,
        description="Blocks of each (virtual) stage, in the model's order; ``balanced``: as evenly as may be.",
    )
    account_for_embedding_in_pipeline_split: bool = Field(
        False, description="The embedding counts as a block of the first stage where blocks are split evenly."
    )
    account_for_loss_in_pipeline_split: bool = Field(
        False, description="The output head counts as a block of the last stage where blocks are split evenly."
    )
    context_parallel_size: int = Field(1, gt=0, description="GPUs that share each sequence.")
    cp_comm_type: Literal["p2p", "all_gather", "a2a"] = Field(
        "p2p", description="How keys and values reach them: around a ring, gathered, or heads exchanged for positions."
    )
    expert_model_parallel_size: int = Field(1, gt=0, description="GPUs that share the experts of a layer.")
    expert_tensor_parallel_size: int | None = Field(
        None, gt=0, description="GPUs that share each expert; default: the tensor-parallel size, as in Megatron."
    )
    distributed_optimizer: bool = Field(
        False, description="Optimizer states split over the data-parallel ranks (ZeRO-1)."
    )
    fsdp: bool = Field(False, description="Parameters, gradients and states split over them (ZeRO-3).")
    fsdp_shard_size: int | None = Field(
        None, gt=0, description="Ranks that share one copy of the parameters; default: all data-parallel ranks."
    )
    fsdp_reshard_after_forward: bool = Field(
        True,
        description="false: parameters stay gathered from the forward to the backward, and in a pipeline from step to "
        "step, which then sums gradients once (pytorch-eager; torchtitan's default in pipelines).",
    )
    fsdp_sync_each_batch: bool = Field(
        True,
        description="false: gradients of accumulated micro-batches add up whole on every GPU and are reduced in the "
        "last one's backward (pytorch-eager; accelerate's default).",
    )


class ScheduleTable(Table):
    """``[schedule]``: the order of micro-batches."""

    name: str = Field(
        "1f1b", description="gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-v, dualpipe, dualpipe-v or none (one stage)."
    )
    recompute: Recompute = Field(
        "none",
        description="Activations computed again; operators: all but attention's and every other product's results, as "
        'torchtitan\'s selective_ac_option "op" has it.',
    )
    recompute_modules: list[RecomputeModule] | None = Field(
        None, description="What selective recomputation computes again; default: core_attn."
    )
    recompute_interval: int = Field(
        1,
        gt=0,
        description="Full recomputation of one in so many layers (torchtitan's selective_ac_option; pytorch-eager).",
    )
    recompute_stops_early: bool = Field(
        True,
        description="Full recomputation ends when the backward has what it needs; false: PyTorch before 2.1, and "
        "checkpoints with use_reentrant, run a layer to its end (pytorch-eager; Megatron always does).",
    )


class OverlapTable(Table):
    """``[overlap]``: communication beside computation."""

    nanobatches: int = Field(1, gt=0, description="Parts of a micro-batch that overlap each other; 1 = none.")
    window: Any = Field(
        None,
        description="Operators of half a layer beside which communication may run: [first, last] by name or place, "
        "or a table attention/mlp of such pairs; default: all of it.",
    )
    launch: LaunchPoint | None = Field(
        None, description="Communication is issued as soon as it can be, or before its window; default: the latter."
    )
    comm_ctas: int | None = Field(
        None, gt=0, description="Thread blocks of a collective; default: the library's choice."
    )
    comm_threads: int | None = Field(None, gt=0, description="Threads of such a block; default: the library's.")
    comm_engine: CommEngine = Field(
        "sm", description="What moves data that layers and FSDP gather or exchange: SMs, or copy engines within a node."
    )
    comm_first: bool = Field(
        False,
        description="Blocks of layers' and FSDP's communication get their SMs before the kernel launched behind it, by "
        "priority and SMs left free, or by one hardware queue; Megatron's tensor-parallel backward has that anyway.",
    )
    sm_margin: int = Field(
        0,
        ge=0,
        description="SMs that compute kernels leave free all the time where experts' communication runs beside them "
        "(ep_comm), as FlashAttention's sm_margin and DeepGEMM's set_num_sms have it.",
    )
    tp_comm: bool = Field(
        False, description="Gathering and scattering of the sequence in steps beside the products (user buffers)."
    )
    ep_comm: bool = Field(
        False, description="Communication of experts beside another micro-batch's computation (combined 1F1B)."
    )
    grad_reduce: Literal["after", "overlapped"] = Field(
        "after", description="Data-parallel gradient reduction after the last backward or beside it."
    )
    param_gather: Literal["after", "overlapped"] = Field(
        "after", description="Gathering of a distributed optimizer's parameters: after its step, or beside forwards."
    )
    fsdp_prefetch: bool = Field(
        True, description="FSDP gathers the next layer's parameters, and reduces gradients, beside computation."
    )
    grad_bucket_mb: float | None = Field(
        None, ge=0, description="Bucket of that reduction [MiB]; 0 = one collective per parameter, inf = a single one."
    )
