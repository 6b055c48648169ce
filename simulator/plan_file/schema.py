"""The tables and keys of PLAN.toml as pydantic models: types, ranges, defaults and one line of description each.

Only the file boundary uses these; everything behind it takes the frozen
:class:`joulecast.simulator.plan_file.plan.Plan`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from joulecast.model.cluster.links import TRANSFER_JITTER
from joulecast.model.framework.implementation import AttentionBackend, Framework, Modules, Recompute, RecomputeModule
from joulecast.model.framework.narrow import Recipe
from joulecast.model.power.limits import NODE_CLOCK_SPREAD
from joulecast.model.training.factors import Generation
from joulecast.model.training.nanobatches import LaunchPoint

#: Most GPUs of a plan, far above all that were built: what depends on each of them stays within memory.
MOST_GPUS = 10_000_000
#: Most cards of a node, leaf switches and Gbit/s of a card, and longest step between nodes [us]: above any that exist.
MOST_CARDS, MOST_GBIT_PER_S, MOST_STEP_US = 1024, 1e5, 1e6
#: Longest launch [us], and most metrics that take the loss again: far above any, what follows from them stays finite.
MOST_LAUNCH_US, MOST_METRICS = 1e6, 1000
#: Largest rank of an adapter: far above any.
MOST_RANK = 65536
CommEngine = Literal["sm", "copy"]
GraphScope = Literal["attn", "moe_router", "moe_preprocess"]
_Watts = Annotated[float, Field(gt=0)]


class Table(BaseModel):
    """One table of a file: no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class InlineModel(Table):
    """A model written into the plan, with the names of a Hugging Face ``config.json``."""

    hidden_size: int = Field(gt=0, description="Width of the residual stream.")
    num_attention_heads: int = Field(gt=0, description="Query heads.")
    num_key_value_heads: int | None = Field(
        None, gt=0, description="Key and value heads; default: as many as query heads."
    )
    intermediate_size: int = Field(gt=0, description="Width of the MLP.")
    vocab_size: int = Field(gt=0, description="Rows of the embedding.")
    num_hidden_layers: int = Field(gt=0, description="Transformer blocks.")
    head_dim: int | None = Field(None, gt=0, description="Size of a head; default: hidden_size / num_attention_heads.")
    gated_mlp: bool = Field(True, description="MLP with a gate (SwiGLU) or without (GPT).")
    bias: bool = Field(False, description="Biases in the linear layers.")
    qkv_bias: bool | None = Field(None, description="Biases of queries, keys and values; default: as bias.")
    norm: Literal["rmsnorm", "layernorm"] = Field("rmsnorm", description="Normalisation.")
    activation: Literal["silu", "gelu", "gelu_new", "relu2"] = Field(
        "silu", description="Activation of the MLP; gelu_new: a formula of single operations in transformers' code."
    )
    rotary: bool = Field(True, description="Rotary position embedding.")
    learned_positions: int = Field(0, ge=0, description="Rows of a learned table of positions; 0: none.")
    joint_projections: bool = Field(
        False, description="transformers' code has one product for queries, keys and values, as GPT-2's does."
    )
    tie_word_embeddings: bool = Field(False, description="Output head shares the embedding's matrix.")
    num_experts: int | None = Field(None, gt=0, description="Experts in place of each layer's MLP; default: none.")
    num_experts_per_tok: int | None = Field(None, gt=0, description="Experts that each token is sent to.")
    moe_intermediate_size: int | None = Field(None, gt=0, description="Width of an expert.")
    shared_expert_intermediate_size: int | None = Field(
        None, gt=0, description="Width of the shared experts together, which every token meets; default: none."
    )
    first_k_dense_replace: int = Field(0, ge=0, description="First blocks that have no experts where others have.")
    moe_layer_freq: int = Field(1, gt=0, description="One in so many blocks has experts, the first of each.")
    n_group: int = Field(1, gt=0, description="Equal groups in which a router looks at its experts.")
    topk_group: int = Field(1, gt=0, description="Of how many of them a token's experts may be.")
    qk_norm: bool = Field(False, description="Queries and keys are normalised, head by head.")
    kv_lora_rank: int | None = Field(
        None, gt=0, description="Latent attention: width of the latent vector of keys and values; default: none."
    )
    q_lora_rank: int = Field(0, ge=0, description="Width of that of queries; 0: they have none.")
    qk_nope_head_dim: int = Field(128, gt=0, description="Latent attention: part of a head without rotary position.")
    qk_rope_head_dim: int = Field(64, gt=0, description="Latent attention: part of a head with it.")
    v_head_dim: int = Field(128, gt=0, description="Latent attention: size of a head's value.")


class LoraTable(Table):
    """``[workload.lora]``: adapters that are trained beside a frozen model, with the names of PEFT's ``LoraConfig``."""

    rank: int = Field(8, gt=0, le=MOST_RANK, description="Rows of A and columns of B (PEFT's r).")
    target_modules: str | list[str] = Field(
        ["q_proj", "v_proj"],
        description="Linear layers that have an adapter, as transformers names them, or all-linear: all of a layer.",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of the adapters' inputs (lora_dropout).")
    precision: Literal["bf16", "fp16", "fp32"] = Field(
        "fp32",
        description="Type in which adapters, their gradients and moments are kept. fp32: PEFT's default "
        "(autocast_adapter_dtype), cast by torch.autocast; workload.precision: as the model, cast nowhere.",
    )


class WorkloadTable(Table):
    """``[workload]``: what is trained."""

    model: str | InlineModel = Field(description="Catalogue name, path of a config.json, or a table of its sizes.")
    layers: int | None = Field(None, gt=0, description="Blocks of a shortened model; default: all.")
    mtp_num_layers: int = Field(
        0, ge=0, description="Modules that predict a further token each, trained on the last stage (megatron)."
    )
    sequence_length: int = Field(gt=0, description="Tokens of one sample.")
    micro_batch_size: int = Field(1, gt=0, description="Samples of one micro-batch on one data-parallel rank.")
    global_batch_size: int = Field(gt=0, description="Samples of one iteration over all data-parallel ranks.")
    precision: Literal["bf16", "fp16", "fp32", "fp8", "fp4"] = Field(
        "bf16",
        description="Type of weights and activations; fp8, fp4 (NVFP4, megatron): of linear layers, all else in bf16.",
    )
    fp8_recipe: Recipe | None = Field(
        None,
        description="Scaling of FP8: what has a scale of its own (model/framework/narrow.py); default: "
        "delayed in megatron, else tensorwise.",
    )
    moe_expert_capacity_factor: float | None = Field(
        None, gt=0, description="Rows of every expert over the mean, padded or cut; default: dropless."
    )
    moe_load_imbalance: float | None = Field(
        None, ge=1, description="Rows of the busiest rank's experts over the mean, if dropless; default: 1.1."
    )
    fp8_param_gather: bool = Field(False, description="Weights kept, and gathered, in FP8 instead of bf16.")
    fp4_param_gather: bool = Field(False, description="Weights kept, and gathered, in FP4 instead of bf16.")
    num_layers_at_start_in_bf16: int = Field(
        0, ge=0, description="First layers that stay in bf16 where others run in FP8 or FP4 (megatron)."
    )
    num_layers_at_end_in_bf16: int = Field(0, ge=0, description="The same of last layers.")
    lora: LoraTable | None = Field(
        None, description="Adapters that are trained in place of the model; default: all of it is trained."
    )
    training_tokens: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Tokens of the whole run; default: not asked."
    )


class ClusterTable(Table):
    """``[cluster]``: where it is trained."""

    gpu: str = Field(description="Catalogue name or path of a GPU description.")
    gpus: int = Field(gt=0, le=MOST_GPUS, description="GPUs in total.")
    gpus_per_node: int | None = Field(
        None,
        gt=0,
        le=MOST_GPUS,
        description="GPUs joined by the fast links; default: the node type's, 8 where it is not known.",
    )
    node: str | None = Field(
        None, description="Catalogue name or path of the node type; default: the one in which the GPU is usually sold."
    )
    node_clock_spread: float = Field(
        NODE_CLOCK_SPREAD,
        ge=0,
        le=0.2,
        description="Relative standard deviation of clocks at the power limit between cards of different nodes.",
    )


class NetworkTable(Table):
    """``[network]``: what joins the nodes; by default what the node type has."""

    name: str | None = Field(None, description="Catalogue name or path of the network; default: the node type's.")
    nics_per_node: int | None = Field(
        None, gt=0, le=MOST_CARDS, description="Network cards of a node; default: the node type's."
    )
    nic_gbit_per_s: float | None = Field(
        None,
        gt=0,
        le=MOST_GBIT_PER_S,
        description="Line rate of a card, one direction [Gbit/s]; default: the network's.",
    )
    efficiency: float | None = Field(
        None, gt=0, le=1, description="Share of it that large messages reach; default: the network's."
    )
    step_latency_us: float | None = Field(
        None,
        ge=0,
        le=MOST_STEP_US,
        description="One step between two nodes on one leaf switch [us]; default: the network's.",
    )
    rails: int | None = Field(
        None,
        gt=0,
        le=MOST_CARDS,
        description="Leaf switches that a node's cards spread over; default: one for each card, at most 8.",
    )
    oversubscription: float = Field(1.0, ge=1, description="Rate into a leaf switch over the rate out of it.")
    jitter: float = Field(
        TRANSFER_JITTER, ge=0, le=1, description="Relative standard deviation of a transfer's time between nodes."
    )
    nvls: bool = Field(False, description="All-reduces in the switches of a node (NVLink SHARP).")
    sharp: bool = Field(False, description="All-reduces in the switches of the network (SHARP).")


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


class ImplementationTable(Table):
    """``[implementation]``: what the framework really runs."""

    framework: Framework = Field("pytorch-eager", description="Decides fusions and defaults.")
    generation: Generation | None = Field(
        None, description="Generation of Megatron and what trains with it; default: none in particular."
    )
    attention_backend: AttentionBackend = Field(
        "cudnn",
        description="Kernels of scaled-dot-product attention; flash-attention-2: PyTorch's, flash-attn-2: those of its "
        "own package, which are faster on Hopper; unfused: Megatron-LM's own products and softmax, or "
        "transformers' own.",
    )
    attention_precision: Literal["fp8"] | None = Field(
        None, description="fp8: attention multiplies in FP8 too (Transformer Engine's fp8_dpa); default: bf16 or fp16."
    )
    moe_token_dispatcher_type: Literal["alltoall", "flex"] = Field(
        "alltoall", description="Every copy of a token is sent to its expert, or one to each node or GPU (DeepEP)."
    )
    moe_permute_fusion: bool = Field(
        True,
        description="Rows are sorted by expert and summed by token by kernels made for it, at the memory's pace; "
        "false: by PyTorch's own operators, a thread for each value (pytorch-eager).",
    )
    moe_row_operator: Literal["scatter_add", "index_add", "index_put"] | None = Field(
        None, description="Which operators, with its gradient's; default: a strided copy and embedding_bag."
    )
    moe_fused_mlp: bool = Field(
        False,
        description="Experts' activation and the casts of its results run within their products (Transformer Engine's "
        "op fuser in MXFP8 and NVFP4 on Blackwell; megatron).",
    )
    moe_router_dtype: Literal["fp32"] | None = Field(
        None, description="Type in which the router multiplies (megatron); default: that of the activations."
    )
    moe_dispatch_precision: Literal["fp8"] | None = Field(
        None,
        description="Type in which tokens, and gradients of results, go to experts (DeepEP's FP8 dispatch; megatron); "
        "default: that of the activations, as what comes back is.",
    )
    activation_func_fp8_input_store: bool = Field(
        False, description="The input of a gated activation is kept in FP8 for the backward (megatron)."
    )
    attention_output_store: Literal["e5m6"] | None = Field(
        None,
        description="Format in which attention's output is kept for the backward, once, beside linear layers in FP8 "
        "(DeepSeek-V3; megatron); default: in bf16 and in FP8.",
    )
    average_in_collective: bool | None = Field(
        None,
        description="Megatron's data-parallel collectives average gradients themselves; false divides them before, as "
        "Megatron does by itself; default: as recipes of the generation do.",
    )
    rotary: bool | None = Field(None, description="Rotary embedding is really computed; default: the model's.")
    tie_embeddings: bool | None = Field(None, description="Head shares the embedding's matrix; default: the model's.")
    shard_head: bool = Field(True, description="Embedding and head split over tensor-parallel ranks.")
    compile: bool = Field(
        False, description="torch.compile of each layer fuses its element-wise kernels (pytorch-eager)."
    )
    modules: Modules = Field(
        "joint",
        description="Whose code pytorch-eager runs. joint: one product for queries, keys and values, one for gate and "
        "up, fused norms; transformers: Hugging Face's, where RMSNorm is tensor operations in fp32 and compile takes a "
        "whole model; torchtitan: fused norms, rotary embedding in complex numbers. Both: products of their own, "
        "logits and loss in fp32.",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Probability of dropout in residual stream, embedding and attention: transformers' GPT-2 has it; "
        "in Megatron of attention in separate kernels.",
    )
    deterministic: bool = Field(
        False,
        description="torch.use_deterministic_algorithms(True), as Lightning's trainer.deterministic sets it: new "
        "tensors are filled, and attention's backward adds in one order (megatron with flash-attn-2).",
    )
    cuda_graphs: bool | list[GraphScope] = Field(
        False,
        description="Launches are replayed as graphs: no kernel waits for the host; or in megatron those of some parts "
        "of a layer (cuda_graph_scope).",
    )
    host_launch_us: float | None = Field(
        None,
        ge=0,
        le=MOST_LAUNCH_US,
        description="Time of the host for each kernel that pytorch-eager launches [us], which joulecast doctor "
        "--host measures; default: shorter than the kernels, which the interval does not take for granted. In megatron "
        "of each module; default: as published steps have it.",
    )
    fused_loss: Literal[False, True, "native"] = Field(
        False,
        description="Cross-entropy in one kernel a direction: Transformer Engine's in megatron, FlashAttention's or "
        "Apex's in pytorch-eager; native: Megatron's own, compiled to five kernels.",
    )
    loss_metrics: int = Field(
        0,
        ge=0,
        le=MOST_METRICS,
        description="Metrics of training that each take the cross-entropy of all logits once more, as Composer's do "
        "(pytorch-eager).",
    )
    optimizer: Literal["adamw", "adamw-for-loop"] = Field(
        "adamw",
        description="Fused AdamW, or a kernel for each operation and parameter: AdamW(foreach=False), Composer's "
        "DecoupledAdamW (pytorch-eager).",
    )
    parameter_precision: Literal["bf16", "fp16", "fp32"] | None = Field(
        None,
        description="Data type in which pytorch-eager keeps parameters; fp32 is mixed precision: FSDP gathers them in "
        "workload.precision (MixedPrecisionPolicy), without it torch.autocast casts them; default: workload.precision.",
    )
    gradient_precision: Literal["bf16", "fp16", "fp32"] | None = Field(
        None,
        description="Data type in which gradients are reduced, and in megatron kept; default: fp32 in megatron, which "
        "may also keep them like the weights, else that of the parameters; FSDP may reduce in workload.precision.",
    )
    optimizer_precision: Literal["bf16", "fp16", "fp32"] | None = Field(
        None,
        description="Data type of AdamW's two moments; default: fp32 in megatron, which may also keep them in bf16 "
        "(use_precision_aware_optimizer), else that of the parameters.",
    )
    zero_grad_set_to_none: bool | None = Field(
        None,
        description="Gradients are dropped after the step (what PyTorch's zero_grad does since 2.0), so that the next "
        "ones are simply kept; false: set to zero and added to; default: true with FSDP, and with modules other than "
        "joint (pytorch-eager).",
    )
    gradient_clipping: bool | None = Field(
        None,
        description="Gradients are scaled to a norm before the step (clip_grad_norm_); default: in megatron alone, "
        "which always takes their norm.",
    )
    main_parameters: bool | None = Field(
        None,
        description="A second, fp32 copy of the weights in the optimizer, whose moments are fp32 too, as DeepSpeed has "
        "them beside ZeRO's stages 0 to 2; default: only in megatron, which always has it.",
    )
    tiles: Any = Field(
        None,
        description="Explicit tiles by operator of a layer: [m, n, k], or a table of its fields; else the library's.",
    )


class PowerTable(Table):
    """``[power]``: clocks and limits; without either the board's default limit acts."""

    clock_mhz: Any = Field(
        None, description="SM clock [MHz]: a number, a list by stage, or a table forward/backward/… of either."
    )
    power_limit_w: _Watts | list[_Watts] | None = Field(
        None, description="Power limit of each GPU [W]: a number, or a list by stage."
    )
    component_limits_w: dict[str, float] = Field(
        {}, description="Limits on parts of each GPU, by name: compute, hbm, io or link [W]."
    )


class SiteTable(Table):
    """``[site]``: what surrounds the GPUs, what it costs and how much power it may draw."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = Field("default", description="Catalogue name or path of a site; the keys below win over it.")
    currency: str | None = Field(None, min_length=1, description="Currency of all prices.")
    pue: float | None = Field(
        None, ge=1, le=10, description="Energy at the facility's meter over that of its computers."
    )
    electricity_price_per_kwh: float | None = Field(None, ge=0, description="Price of a kilowatt-hour.")
    carbon_intensity_kg_per_kwh: float | None = Field(None, ge=0, le=5, description="CO2 equivalent of it [kg/kWh].")
    hardware_price_per_gpu: float | None = Field(
        None, ge=0, description="A GPU with its share of node and network; default: the node type's price and network."
    )
    embodied_kg_per_gpu: float | None = Field(None, ge=0, description="CO2 equivalent of making that [kg].")
    hardware_lifetime_years: float | None = Field(None, gt=0, description="Years until hardware is replaced.")
    hardware_utilisation: float | None = Field(
        None, gt=0, le=1, description="Share of that time in which it does paid work."
    )
    goodput: float = Field(
        1.0, gt=0, le=1, description="Share of a run's time in which training advances: not checkpoints or restarts."
    )
    node_mtbf_hours: float | None = Field(
        None, gt=0, description="Mean time between failures of a node, each of which ends the job [h]; default: never."
    )
    checkpoint_s: float = Field(
        30.0, gt=0, description="Time in which a checkpoint holds up training; they are as far apart as is best [s]."
    )
    restart_s: float = Field(600.0, ge=0, description="From a failure to training again from the last checkpoint [s].")
    node_power_limit_w: float | None = Field(None, gt=0, description="Most that a node may draw from its outlet [W].")
    nodes_per_rack: int | None = Field(None, gt=0, description="Nodes of the node type in one rack.")
    rack_power_limit_w: float | None = Field(None, gt=0, description="Most that a rack's nodes may draw [W].")
    power_limit_w: float | None = Field(
        None, gt=0, description="Most that the job may draw at the facility's meter [W]."
    )


class PlanFile(Table):
    """A whole PLAN.toml."""

    workload: WorkloadTable
    cluster: ClusterTable
    parallelism: ParallelismTable = ParallelismTable()
    schedule: ScheduleTable = ScheduleTable()
    overlap: OverlapTable = OverlapTable()
    implementation: ImplementationTable = ImplementationTable()
    power: PowerTable = PowerTable()
    network: NetworkTable = NetworkTable()
    site: SiteTable = SiteTable()


TABLES: dict[str, type[Table]] = {
    "workload": WorkloadTable,
    "cluster": ClusterTable,
    "parallelism": ParallelismTable,
    "schedule": ScheduleTable,
    "overlap": OverlapTable,
    "implementation": ImplementationTable,
    "power": PowerTable,
    "network": NetworkTable,
    "site": SiteTable,
    "workload.model": InlineModel,
    "workload.lora": LoraTable,
}
