"""The options that decide what a framework launches: its kernels, data types, and how a layer is split over ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.vision import Images
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.lora import Lora
from joulecast.model.framework.muon import Muon
from joulecast.model.framework.narrow import Narrow
from joulecast.model.hashing import HashedOnce, hashed_once
from joulecast.model.kernels.documents import Documents
from joulecast.model.kernels.operators import DTYPE_BYTES, RowTile, Tile

Framework = Literal["pytorch-eager", "megatron"]
Recompute = Literal["none", "selective", "operators", "full"]
AttentionBackend = Literal[
    "cudnn", "flash-attention-1", "flash-attention-2", "flash-attention-3", "flash-attn-2", "flex", "unfused"
]
#: ``joint``: one product for queries, keys and values, one for gate and up, fused norms; or the modules of
#: Hugging Face's ``transformers`` or of ``torchtitan`` (:mod:`joulecast.model.transformer.modules_layer`).
Modules = Literal["joint", "transformers", "torchtitan"]
#: Kernels of Liger that stand in for those of transformers' modules (:mod:`joulecast.model.transformer.liger_kernels`).
LigerKernel = Literal["rms_norm", "rope", "swiglu", "geglu", "cross_entropy", "fused_linear_cross_entropy"]
#: Parts of a layer that may be computed again, see :mod:`joulecast.model.memory.recomputation`.
RecomputeModule = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe_act", "shared_experts", "moe"]

_NAMES = {
    "framework": get_args(Framework),
    "recompute": get_args(Recompute),
    "attention_backend": get_args(AttentionBackend),
    "dtype": tuple(DTYPE_BYTES),
    "modules": get_args(Modules),
}


@hashed_once
@dataclass(frozen=True, slots=True)
class Implementation(HashedOnce):
    """What the framework really runs.

    Attributes
    ----------
    framework
        ``pytorch-eager``: separate PyTorch kernels, gradients of the parameters' dtype accumulated by one addition per
        parameter. ``megatron``: Megatron-Core with Transformer Engine, see
        :mod:`joulecast.model.transformer.megatron_layer`.
    attention_backend
        ``cudnn``, PyTorch's ``flash-attention-2``, that of its own package ``flash-attn-2``, ``flash-attention-1`` or
        ``-3``, PyTorch's ``flex`` attention, or in ``megatron`` also ``unfused`` kernels.
    attention_fp8
        Whether these kernels run in FP8 too (:mod:`joulecast.model.kernels.attention_fp8`).
    rotary
        Whether the model's rotary embedding runs; ``False`` leaves it out even where the model has one.
    tie_embeddings
        Whether head and embedding share one matrix; ``None`` follows the model.
    tensor_parallel, tensor_domains
        Degree of tensor parallelism, and how many domains of fast links its ranks lie in.
    sequence_parallel
        Shard norms and residuals over the tensor-parallel ranks too.
    shard_head
        Whether the head's vocabulary (and the loss) is split over the tensor-parallel ranks.
    recompute, recompute_modules
        ``none``, ``selective`` (``recompute_modules`` alone), ``operators`` (all but attention and every other product,
        :mod:`joulecast.model.transformer.operator_checkpoints`) or ``full`` (a layer's forward again before its
        backward).
    recompute_interval, recompute_stops_early
        Of ``pytorch-eager``'s full recomputation: one in so many layers is computed again, and whether it stops once
        the backward has what it needs (PyTorch's checkpoints since 2.1), or runs the layer to its end.
    dtype
        Of parameters and activations.
    tf32
        Whether products of fp32 run in TF32.
    ctas
        Thread blocks that collectives are held to, ``None`` for the library's choice.
    threads
        Of such a block, ``None`` for the library's choice.
    copy_engines
        Whether copy engines move what layers' ranks of one domain gather or exchange; what they sum takes SMs.
    comm_first
        Whether blocks of a layer's communication get their SMs before the compute launched behind it does.
    narrow
        How linear layers run in FP8 or FP4; ``None``: in ``dtype``.
    lora
        Adapters that are trained where all else is frozen, ``None`` where everything is trained.
    context_parallel, cp_comm_type, context_fabric
        Ranks that the sequence is split over, how keys and values move between them
        (:mod:`joulecast.model.transformer.context_parallel`), and what joins them (``None``: the GPU's own links).
    expert_parallel, expert_tensor_parallel, expert_fabric, expert_tensor_fabric
        Ranks that share the experts of a layer, and each expert, and what joins either.
    expert_dispatcher
        ``alltoall`` sends every copy of a token, ``flex`` one to each domain or rank (DeepEP).
    exchange_sms
        SMs that the latter's kernels copy on; ``None``: as many as other communication has, or as its links need.
    hybrid_exchange
        Whether these are HybridEP's, not DeepEP's.
    fused_permutation
        Whether kernels made for it sort and sum the experts' rows, or PyTorch's own operators.
    row_operator
        Where not: the one of :data:`joulecast.model.transformer.row_operators.OPERATORS` that does; empty: a strided
        copy and ``embedding_bag``.
    fused_experts
        Whether experts' products apply the activation and cast its results themselves.
    stores_activation_input, packs_attention_output
        Whether Megatron keeps the input of gated activations in FP8, and attention's output in E5M6
        (:mod:`joulecast.model.transformer.stored_narrow`).
    narrow_dispatch
        Whether rows, and gradients of results, go to experts in FP8, cast before the exchange.
    fused_router
        Whether kernels of Transformer Engine make weights and choices of the router's scores, or PyTorch's operations.
    router_dtype
        Type in which Megatron's router multiplies, ``None`` is ``dtype``.
    averaged
        Whether collectives average Megatron's gradients, which else a kernel divides by the replicas before.
    compiled
        Whether ``torch.compile`` has fused each layer's element-wise kernels.
    modules
        Whose code ``pytorch-eager`` runs: :data:`Modules`.
    dropout
        Probability of dropout in residual stream, embedding and attention.
    deterministic
        Whether PyTorch's deterministic algorithms are on (:mod:`joulecast.model.framework.deterministic`).
    expert_load
        Rows of the busiest rank's experts over the mean, or the capacity factor.
    pads_experts
        Whether Megatron's products in FP8 and FP4 find experts with any number of rows, which copies then pad.
    tp_comm_overlap
        Whether sequence-parallel gathering and scattering run in steps beside the products that need or make them.
    fused_loss
        Whether the cross-entropy runs in one kernel a direction on the logits as they are: Transformer Engine's in
        Megatron, FlashAttention's or Apex's in ``pytorch-eager``.
    native_loss
        Whether Megatron's own loss is compiled, which then are five kernels over the logits.
    loss_metrics
        Metrics of training that each take PyTorch's cross-entropy of a micro-batch's logits once more, in fp32.
    log_probabilities, scored_share
        How a loss takes tokens' log-probabilities, empty for cross-entropy of next tokens, and of which share of the
        positions where not of all (:mod:`joulecast.model.transformer.log_probabilities`).
    reference
        Model that such a loss compares with: a ``copy``, or the same with ``adapters-off``; empty where none runs.
    teacher
        Model whose next tokens the loss compares with, ``None`` without one.
    reference_parameters
        Type in which these models' parameters are kept, ``None`` is that of the trained one's.
    compared_apart
        Whether these models' forwards are not behind each of the trained one's, but before all, beside no activations.
    gradient_free
        Whether this is a forward's that has no backward.
    loop_wait_s
        Time for which the GPU waits for the host in every micro-batch, by a loop or by the model's code [s].
    widens_outputs
        Whether that loop has the model's logits copied to fp32 beside the loss's.
    tiles
        Explicit tiles of a layer's kernels, as :mod:`joulecast.model.framework.tiling` has them; the library's without.
    parameters
        Type in which parameters are kept, ``None`` is ``dtype``. Wider ones in ``pytorch-eager`` are mixed precision.
    main_parameters
        Whether ``pytorch-eager``'s optimizer keeps fp32 weights and moments beside narrower parameters, as DeepSpeed's
        does; Megatron's always does.
    gathered
        Whether FSDP gathers the parameters, in ``dtype`` whatever they are kept in.
    gradients, moments
        Types in which gradients are kept and reduced, and the optimizer's moments are kept; ``None`` is fp32 in
        Megatron, else the parameters'.
    drops_gradients
        Whether PyTorch's gradients are gone between the optimizer's step and the next backward
        (``zero_grad(set_to_none=True)``), not zero.
    added_share
        Share of ``pytorch-eager``'s backwards that find gradients and add theirs: all but an iteration's first, or all.
    optimizer
        ``adamw``, or ``adamw-for-loop``: a kernel for each operation on each of ``pytorch-eager``'s parameters; or
        ``muon``, or one of :data:`joulecast.model.training.other_optimizers.RULES`.
    step_wait_s
        Time for which the GPU waits for the host at each parameter, where the optimizer synchronises behind it [s].
    wide_embedding_states
        Whether embeddings' moments are in fp32 beside others in 8 bits.
    muon
        How Muon steps matrices in place of AdamW, ``None`` where it does not.
    clipped
        Whether gradients are scaled to a norm before ``pytorch-eager``'s step; Megatron always takes their norm.
    liger
        Kernels of Liger that ``transformers``' modules run.
    scaled_loss
        Whether the loss's gradient is not one, so that what Liger made in the forward is multiplied in the backward.
    images
        Images of a sequence, which the model's vision part sees; ``None``: it sees text alone.
    asked_launch_s
        Time of the host for a launch, for which the GPU waits where the code of a vision part asks it something [s].
    documents
        What packed sequences consist of, on the rank with most to do; ``None``: attention sees all of a sequence.
    """

    framework: Framework = "pytorch-eager"
    attention_backend: AttentionBackend = "cudnn"
    attention_fp8: bool = False
    rotary: bool = True
    tie_embeddings: bool | None = None
    tensor_parallel: int = 1
    tensor_domains: int = 1
    sequence_parallel: bool = False
    shard_head: bool = True
    recompute: Recompute = "none"
    recompute_modules: tuple[RecomputeModule, ...] = ("core_attn",)
    recompute_interval: int = 1
    recompute_stops_early: bool = True
    dtype: str = "bf16"
    tf32: bool = False
    ctas: int | None = None
    threads: int | None = None
    copy_engines: bool = False
    comm_first: bool = False
    narrow: Narrow | None = None
    lora: Lora | None = None
    tp_comm_overlap: bool = False
    fused_loss: bool = False
    native_loss: bool = False
    loss_metrics: int = 0
    log_probabilities: str = ""
    scored_share: float = 1.0
    reference: str = ""
    teacher: ModelConfig | None = None
    reference_parameters: str | None = None
    compared_apart: bool = False
    gradient_free: bool = False
    loop_wait_s: float = 0.0
    widens_outputs: bool = False
    context_parallel: int = 1
    cp_comm_type: str = "p2p"
    context_fabric: Fabric | None = None
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1
    expert_fabric: Fabric | None = None
    expert_tensor_fabric: Fabric | None = None
    expert_dispatcher: str = "alltoall"
    exchange_sms: int | None = None
    hybrid_exchange: bool = False
    fused_permutation: bool = True
    row_operator: str = ""
    fused_experts: bool = False
    stores_activation_input: bool = False
    packs_attention_output: bool = False
    narrow_dispatch: bool = False
    fused_router: bool = True
    router_dtype: str | None = None
    averaged: bool = False
    compiled: bool = False
    modules: Modules = "joint"
    dropout: float = 0.0
    deterministic: bool = False
    expert_load: float = 1.0
    pads_experts: bool = True
    tiles: tuple[tuple[str, Tile | RowTile], ...] = ()
    parameters: str | None = None
    main_parameters: bool = False
    gathered: bool = False
    gradients: str | None = None
    moments: str | None = None
    drops_gradients: bool = False
    added_share: float = 1.0
    optimizer: str = "adamw"
    step_wait_s: float = 0.0
    wide_embedding_states: bool = False
    muon: Muon | None = None
    clipped: bool = False
    documents: Documents | None = None
    images: Images | None = None
    asked_launch_s: float = 0.0
    liger: tuple[LigerKernel, ...] = ()
    scaled_loss: bool = False

    def __post_init__(self) -> None:
        for kind, known in _NAMES.items():
            if getattr(self, kind) not in known:
                raise UnknownNameError(kind, getattr(self, kind), known, key=kind)
        if self.tensor_parallel < 1:
            raise InputError(
                "must be at least 1", key="tensor_model_parallel_size", remedy="Use a positive whole number."
            )

    @property
    def megatron(self) -> bool:
        """Whether Megatron-Core with Transformer Engine runs, not PyTorch alone."""
        return self.framework == "megatron"

    @property
    def attention_dtype(self) -> str:
        """Type of what attention multiplies."""
        return "fp8" if self.attention_fp8 else self.dtype

    @property
    def kept_narrow(self) -> Narrow | None:
        """FP8 in which tensors are kept for later products: Transformer Engine's; PyTorch casts anew each time."""
        return self.narrow if self.megatron else None

    @property
    def gathers_narrow(self) -> bool:
        """Whether PyTorch's FSDP casts its shards of linear layers' weights to FP8 and gathers them so."""
        if self.megatron or self.narrow is None:
            return False
        return self.gathered and self.narrow.parameters

    @property
    def keeps_products(self) -> bool:
        """Whether full recomputation computes attention alone again.

        ``torch.compile`` does not see into the products of float8 layers, which have gradients of their own, and keeps
        what they give: kernels and memory of `validate/recorded/h200_sxm/train_float8.jsonl`. torchtitan's layers do
        not keep them: the memory that it publishes of full recomputation in FP8 has no room for them
        (``benchmarks/llama3_h100_202412_torchtitan.md``).
        """
        return self.recompute == "full" and self.casts_anew and self.modules == "joint"

    @property
    def parameter_dtype(self) -> str:
        """Type in which parameters are kept."""
        return self.parameters or self.dtype

    @property
    def trained_dtype(self) -> str:
        """Type in which the parameters that the optimizer steps are kept: the adapters', or all."""
        return self.parameter_dtype if self.lora is None else self.lora.dtype

    @property
    def splits_head(self) -> bool:
        """Whether the head's vocabulary, and the loss, are split over the tensor-parallel ranks."""
        return self.shard_head and self.tensor_parallel > 1

    @property
    def splits_sequence(self) -> bool:
        """Whether tensor-parallel ranks have a share of the sequence each between linear layers."""
        return self.sequence_parallel and self.tensor_parallel > 1

    @property
    def whole_graph(self) -> bool:
        """Whether embedding, layers, head and loss are one compiled graph, as transformers' models are."""
        return self.compiled and self.modules == "transformers"

    @property
    def casts_anew(self) -> bool:
        """Whether a graph's kernels that cast to FP8 make the results of norms and activations again."""
        return self.compiled and self.narrow is not None

    @property
    def autocast(self) -> bool:
        """Whether ``torch.autocast`` casts parameters of another type before each product."""
        return self.parameter_dtype != self.dtype and not self.gathered

    @property
    def casts_adapters(self) -> bool:
        """Whether it rounds adapters for their products; FSDP gathers them in the products' type."""
        return self.lora is not None and self.lora.dtype != self.dtype and not self.gathered

    @property
    def prepared(self) -> bool:
        """Whether all but linear layers in 4 bits was cast to fp32: these then give fp32 where they are given it."""
        return self.lora is not None and self.lora.prepared

    @property
    def gradient_dtype(self) -> str:
        """Type in which gradients are reduced, and in Megatron kept."""
        own = "fp32" if self.megatron else self.trained_dtype
        return self.gradients or own

    @property
    def kept_gradient_dtype(self) -> str:
        """Type in which gradients are kept: in PyTorch that of their parameters."""
        return self.gradient_dtype if self.megatron else self.trained_dtype

    @property
    def narrow_states(self) -> bool:
        """Whether Megatron's optimizer keeps its moments in less than fp32, and takes gradients as they are."""
        return self.framework == "megatron" and self.moments not in (None, "fp32")

    @property
    def split_main_parameters(self) -> bool:
        """Whether that optimizer keeps only what fp32 weights have beyond the bf16 ones."""
        return self.narrow_states and (self.narrow is None or not self.narrow.parameters)

    @property
    def of_reference(self) -> Implementation:
        """What runs the forward of ``reference`` or ``teacher``, without adapters; weights in 4 bits stay so."""
        alone = replace(self.without_gradients, parameters=self.reference_parameters or self.parameters)
        if self.teacher is not None:
            own = self.teacher
            return replace(alone, lora=None, tie_embeddings=own.tied_embeddings, rotary=own.rotary)
        frozen = self.lora if self.lora is not None and self.lora.base else None
        lora = None if frozen is None else replace(frozen, targets=())
        return replace(alone, lora=lora)

    @property
    def without_gradients(self) -> Implementation:
        """What runs a forward that has no backward."""
        return replace(self, recompute="none", reference="", gradient_free=True)

    @property
    def teaches(self) -> bool:
        """Whether this is a teacher's, whose head is part of the student's loss."""
        return self.teacher is not None and self.gradient_free

    def recomputes(self, module: str) -> bool:
        """Whether selective recomputation runs a part of :data:`RecomputeModule` again."""
        return self.recompute == "selective" and module in self.recompute_modules

    def tied(self, config: ModelConfig) -> bool:
        """Whether head and embedding are one matrix; a head of one value is its own."""
        if self.log_probabilities == "value":
            return False
        return config.tied_embeddings if self.tie_embeddings is None else self.tie_embeddings
