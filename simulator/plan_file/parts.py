"""What a plan consists of; :class:`joulecast.simulator.plan_file.plan.Plan` holds these, checked when it was read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulecast.model.architecture.vision import Images
from joulecast.model.framework.lora import Lora
from joulecast.model.framework.muon import Muon
from joulecast.model.framework.narrow import Narrow
from joulecast.model.framework.packing import Packed, Packing
from joulecast.model.framework.tiling import Tiles
from joulecast.model.framework.wide_values import values_dtype
from joulecast.model.hashing import HashedOnce, hashed_once
from joulecast.model.power.limits import NODE_CLOCK_SPREAD
from joulecast.model.training.nanobatches import Window

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig
    from joulecast.model.cluster.fabric import ClusterLinks
    from joulecast.model.framework.implementation import (
        AttentionBackend,
        Framework,
        LigerKernel,
        Modules,
        Recompute,
        RecomputeModule,
    )
    from joulecast.simulator.plan_file.rollout import Rollout

#: The objective of training on texts.
NEXT_TOKEN = "next-token"
#: Objectives whose samples are pairs of sequences.
PAIRED = ("dpo", "orpo", "simpo", "reward")


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained.

    Attributes
    ----------
    model
        The model as it is run: shortened to ``layers``, with the plan's rotary and tied embeddings.
    model_name
        Its name or path in the plan, ``"inline"`` for a table of sizes.
    narrow
        How linear layers run in FP8 or FP4, ``None`` unless that is the ``precision``.
    expert_load
        Rows of the busiest rank's experts over the mean, or the capacity factor.
    experts_filled
        Whether it is a capacity, to which every expert is filled.
    training_tokens
        Tokens of the whole run, ``None`` where nobody asks for its cost.
    mtp_num_layers, mtp_use_repeated_layer
        Modules that predict a further token each, and whether they are one that is run as often; the model has as many.
    lora
        Adapters that are trained in place of the model, ``None`` where all of it is.
    document_tokens, document_packing
        What the plan says of documents in packed sequences, a file by its name.
    packed
        These documents in sequences, ``None`` where attention sees all of a sequence.
    images
        Images of a sequence, ``None`` where there is text alone; the model then has no part that sees them.
    objective, reference, completion_tokens
        The loss, what it compares with (``None``: no reference model), and how many tokens of each sequence it scores
        (``None``: all).
    teacher
        Model from whose next tokens a distillation's are to diverge least, ``None`` of other objectives.
    num_iterations, old_log_probabilities
        Iterations that train on the same completions, and whether a forward takes their log-probabilities before.
    rollout
        How completions are generated, ``None`` where that is not forecast.
    """

    model: ModelConfig
    model_name: str
    layers: int
    sequence_length: int
    micro_batch_size: int
    global_batch_size: int
    precision: str
    narrow: Narrow | None = None
    expert_load: float = 1.0
    experts_filled: bool = False
    training_tokens: float | None = None
    mtp_num_layers: int = 0
    mtp_use_repeated_layer: bool = False
    lora: Lora | None = None
    document_tokens: int | str | tuple[int, ...] | None = None
    document_packing: Packing | None = None
    packed: Packed | None = None
    images: Images | None = None
    objective: str = NEXT_TOKEN
    reference: str | None = None
    completion_tokens: int | None = None
    teacher: ModelConfig | None = None
    num_iterations: int = 1
    old_log_probabilities: bool = False
    rollout: Rollout | None = None

    @property
    def dtype(self) -> str:
        """Type of weights and activations, and of all that is not multiplied in FP8, FP4 or TF32."""
        return values_dtype(self.precision)

    @property
    def sequences_of_sample(self) -> int:
        """Sequences of one sample: two where pairs are compared."""
        return 2 if self.objective in PAIRED else 1

    @property
    def micro_batch_sequences(self) -> int:
        """Sequences of one micro-batch on one data-parallel rank."""
        return self.micro_batch_size * self.sequences_of_sample

    @property
    def runs_reference(self) -> bool:
        """Whether a reference model has forwards."""
        return self.reference in ("copy", "adapters-off")

    @property
    def scored_forwards(self) -> int:
        """Forwards without gradients of every completion before it is trained on."""
        return int(self.old_log_probabilities) + int(self.objective == "grpo" and self.runs_reference)

    @property
    def further_forwards(self) -> float:
        """Forwards of the model's size without gradients for each forward and backward, in the mean [1]."""
        if self.objective == "kto":
            return 1.0 + 2.0 * self.runs_reference
        return self.scored_forwards / self.num_iterations if self.objective == "grpo" else float(self.runs_reference)

    @property
    def scored_share(self) -> float:
        """Share of the tokens whose log-probabilities are taken, none by a head of one value [1]."""
        if self.objective == "reward":
            return 0.0
        return 1.0 if self.completion_tokens is None else self.completion_tokens / self.sequence_length


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where it is trained.

    Attributes
    ----------
    gpu
        A catalogue name or a path, resolved against the plan's folder.
    gpus_per_node
        GPUs joined by the fast links.
    node
        Node type that the plan names.
    links
        What joins the GPUs.
    network
        Network between nodes that the plan names; ``None`` is the node type's.
    node_clock_spread
        Relative standard deviation of clocks at the power limit between nodes.
    """

    gpu: str
    gpus: int
    gpus_per_node: int
    node: str | None
    links: ClusterLinks
    network: str | None = None
    node_clock_spread: float = NODE_CLOCK_SPREAD

    @property
    def nodes(self) -> int:
        """Nodes in use."""
        return math.ceil(self.gpus / self.gpus_per_node)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How the model is split.

    Attributes
    ----------
    stage_layers
        Blocks of every virtual stage in the model's order.
    distributed_optimizer
        Optimizer states split over the data-parallel ranks.
    fsdp, fsdp_shard_size
        Parameters split as well, over this many of them.
    fsdp_reshard_after_forward
        Whether these are let go after a forward and gathered again in its backward.
    fsdp_sync_each_batch
        Whether gradients are reduced, and split, after every micro-batch.
    """

    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int
    data_parallel_size: int
    sequence_parallel: bool
    stage_layers: tuple[int, ...]
    context_parallel_size: int = 1
    cp_comm_type: str = "p2p"
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    distributed_optimizer: bool = False
    fsdp: bool = False
    fsdp_shard_size: int = 1
    fsdp_reshard_after_forward: bool = True
    fsdp_sync_each_batch: bool = True


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of micro-batches, by its name in :mod:`joulecast.simulator.schedules`."""

    name: str
    recompute: Recompute


@hashed_once
@dataclass(frozen=True, slots=True)
class Overlap(HashedOnce):
    """Communication beside computation.

    Attributes
    ----------
    nanobatches, windows, launch
        As :class:`joulecast.model.training.nanobatches.Nanobatches` has them.
    comm_ctas, comm_threads
        Thread blocks of a collective and their threads; ``None`` is the library's choice.
    comm_engine, comm_first
        ``copy`` engines or the ``sm``s move data, and whether communication gets its SMs first.
    sm_margin
        SMs that compute kernels leave free in instructions with communication beside them.
    tp_comm
        Sequence-parallel gathering and scattering in steps beside the products.
    ep_comm
        Communication of experts beside another micro-batch's computation.
    grad_reduce, param_gather
        ``after`` or ``overlapped``.
    grad_bucket_bytes
        0 is one collective per parameter, inf a single one.
    fsdp_prefetch
        FSDP's communication runs beside computation.
    """

    nanobatches: int
    windows: tuple[Window, ...]
    launch: str
    comm_ctas: int | None
    comm_threads: int | None
    grad_reduce: str
    grad_bucket_bytes: float
    comm_engine: str = "sm"
    comm_first: bool = False
    sm_margin: int = 0
    tp_comm: bool = False
    ep_comm: bool = False
    param_gather: str = "after"
    fsdp_prefetch: bool = True


@hashed_once
@dataclass(frozen=True, slots=True)
class Implementation(HashedOnce):
    """What the framework really runs, with the framework's defaults filled in."""

    framework: Framework
    attention_backend: AttentionBackend
    rotary: bool
    tie_embeddings: bool
    shard_head: bool
    optimizer: str
    parameter_precision: str
    gradient_precision: str
    optimizer_precision: str
    main_parameters: bool
    moe_token_dispatcher_type: str = "alltoall"
    moe_flex_dispatcher_backend: str = ""
    moe_flex_dispatcher_num_sms: int | None = None
    moe_permute_fusion: bool = True
    moe_row_operator: str = ""
    moe_router_fusion: bool = True
    moe_router_dtype: str = ""
    moe_dispatch_precision: str = ""
    activation_func_fp8_input_store: bool = False
    attention_output_store: str = ""
    moe_fused_mlp: bool = False
    average_in_collective: bool = False
    recompute_modules: tuple[RecomputeModule, ...] = ("core_attn",)
    recompute_interval: int = 1
    recompute_stops_early: bool = True
    fused_loss: bool = False
    native_loss: bool = False
    loss_metrics: int = 0
    training_loop: str = ""
    dataloader_num_workers: int | None = None
    log_probabilities: str = ""
    reference_precision: str | None = None
    attention_precision: str = ""
    tiles: Tiles = ()
    generation: str = ""
    cuda_graphs: bool = False
    graph_scopes: tuple[str, ...] = ()
    host_launch_us: float | None = None
    compile: bool = False
    gradient_clipping: bool = True
    zero_grad_set_to_none: bool = False
    modules: Modules = "joint"
    liger_kernel: tuple[LigerKernel, ...] = ()
    dropout: float = 0.0
    deterministic: bool = False
    muon: Muon | None = None


@dataclass(frozen=True, slots=True)
class Power:
    """Clocks and limits.

    Attributes
    ----------
    clocks_mhz
        Pairs (instruction, clock of each pipeline stage [MHz]); empty: the governor decides alone. The instruction
        ``""`` stands for all that have no pair of their own.
    power_limit_w
        Limit of each GPU, or one for the GPUs of each pipeline stage [W]; ``None``: the board's default.
    component_limits_w
        Pairs (part of the package, its limit [W]), by name.
    """

    clocks_mhz: tuple[tuple[str, tuple[float, ...]], ...] = ()
    power_limit_w: float | tuple[float, ...] | None = None
    component_limits_w: tuple[tuple[str, float], ...] = ()

    def limit_w(self, stage: int = 0) -> float | None:
        """Limit of each GPU of a pipeline stage, or ``None`` where none is set [W]."""
        limit = self.power_limit_w
        return limit[stage] if isinstance(limit, tuple) else limit

    def clock_mhz(self, stage: int = 0, instruction: str = "") -> float | None:
        """Clock set for an instruction of a pipeline stage, or ``None`` where none is set."""
        table = dict(self.clocks_mhz)
        clocks = table.get(instruction, table.get(""))
        return clocks[stage] if clocks else None
