"""What a framework launches: operators on streams, and the options that decide which ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.fabric import Fabric
from joulecast.model.fp8 import Fp8
from joulecast.model.hf import ModelConfig
from joulecast.model.operators import DTYPE_BYTES, Collective, Gemm, Operator, RowTile, Streaming, Tile

Framework = Literal["pytorch-eager", "megatron"]
Recompute = Literal["none", "selective", "full"]
AttentionBackend = Literal["cudnn", "flash-attention-2", "flash-attention-3", "unfused"]
#: Parts of a layer that may be computed again, see :mod:`joulecast.model.recomputation`.
RecomputeModule = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe_act", "shared_experts", "moe"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One operator put on a stream, in program order.

    Attributes
    ----------
    operator
        The kernel's work.
    stream
        ``compute`` or ``communication``. A communication starts once every compute launch listed before it has finished
        and every earlier communication has.
    waits
        On a communication: the compute stream stands still until it has finished (a synchronous collective). On a
        compute launch: it starts only after all communications listed before it have finished, but for the last
        ``outstanding`` ones.
    repeat
        Number of times the operator runs back to back (an optimizer's many equal launches).
    completes
        Name of the parameter whose gradient of this micro-batch is complete with this launch, else empty.
    share
        The launch is one of as many shares of a real one.
    prompt
        A communication whose blocks get their SMs before the compute launched behind it does.
    """

    operator: Operator
    stream: str = "compute"
    waits: bool = False
    outstanding: int = 0
    repeat: int = 1
    completes: str = ""
    prompt: bool = False
    share: int = 1


_NAMES = {
    "framework": get_args(Framework),
    "recompute": get_args(Recompute),
    "attention_backend": get_args(AttentionBackend),
    "dtype": tuple(DTYPE_BYTES),
}


@dataclass(frozen=True, slots=True)
class Implementation:
    """What the framework really runs.

    Attributes
    ----------
    framework
        ``pytorch-eager``: separate PyTorch kernels, gradients of the parameters' dtype accumulated by one addition per
        parameter. ``megatron``: Megatron-Core with Transformer Engine, see :mod:`joulecast.model.transformer_megatron`.
    attention_backend
        ``cudnn flash-attention-2 flash-attention-3``, or in ``megatron`` also ``unfused`` kernels.
    attention_fp8
        Whether these kernels run in FP8 (:mod:`joulecast.model.attention_fp8`), with ``fp8``'s linear layers.
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
        ``none``, ``selective`` (``recompute_modules`` alone) or ``full`` (a layer's forward again before its backward).
    dtype
        Of parameters and activations.
    ctas
        Thread blocks that collectives are held to, ``None`` for the library's choice.
    threads
        Of such a block, ``None`` for the library's choice.
    fp8
        How linear layers run in FP8; ``None``: in ``dtype``.
    context_parallel, cp_comm_type, context_fabric
        Ranks that the sequence is split over, how keys and values move between them
        (:mod:`joulecast.model.context_parallel`), and what joins them (``None``: the GPU's own links).
    expert_parallel, expert_tensor_parallel, expert_fabric, expert_tensor_fabric
        Ranks that share the experts of a layer, and each expert, and what joins either.
    expert_dispatcher
        ``alltoall`` sends every copy of a token, ``flex`` one to each domain or rank (DeepEP).
    expert_load
        Rows of the busiest rank's experts over the mean, or the capacity factor.
    tp_comm_overlap
        Whether sequence-parallel gathering and scattering run in steps beside the products that need or make them.
    fused_loss
        Whether Megatron's cross-entropy runs in one kernel a direction on the logits as they are.
    tiles
        Explicit tiles of a layer's kernels, as :mod:`joulecast.model.tiling` has them; the library's without.
    gradients, moments
        Types in which gradients are kept and reduced, and the optimizer's moments are kept; ``None`` is fp32 in
        Megatron, else ``dtype``.
    """

    framework: str = "pytorch-eager"
    attention_backend: str = "cudnn"
    attention_fp8: bool = False
    rotary: bool = True
    tie_embeddings: bool | None = None
    tensor_parallel: int = 1
    tensor_domains: int = 1
    sequence_parallel: bool = False
    shard_head: bool = True
    recompute: str = "none"
    recompute_modules: tuple[str, ...] = ("core_attn",)
    dtype: str = "bf16"
    ctas: int | None = None
    threads: int | None = None
    fp8: Fp8 | None = None
    tp_comm_overlap: bool = False
    fused_loss: bool = False
    context_parallel: int = 1
    cp_comm_type: str = "p2p"
    context_fabric: Fabric | None = None
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1
    expert_fabric: Fabric | None = None
    expert_tensor_fabric: Fabric | None = None
    expert_dispatcher: str = "alltoall"
    expert_load: float = 1.0
    tiles: tuple[tuple[str, Tile | RowTile], ...] = ()
    gradients: str | None = None
    moments: str | None = None

    def __post_init__(self) -> None:
        for kind, known in _NAMES.items():
            if getattr(self, kind) not in known:
                raise UnknownNameError(kind, getattr(self, kind), known, key=kind)
        if self.tensor_parallel < 1:
            raise InputError(
                "must be at least 1", key="tensor_model_parallel_size", remedy="Use a positive whole number."
            )

    @property
    def attention_dtype(self) -> str:
        """Type of what attention multiplies."""
        return "fp8" if self.attention_fp8 else self.dtype

    @property
    def gradient_dtype(self) -> str:
        """Type in which gradients are kept and reduced."""
        own = "fp32" if self.framework == "megatron" else self.dtype
        return self.gradients or own

    @property
    def narrow_states(self) -> bool:
        """Whether Megatron's optimizer keeps its moments in less than fp32, and takes gradients as they are."""
        return self.framework == "megatron" and self.moments not in (None, "fp32")

    @property
    def split_main_parameters(self) -> bool:
        """Whether that optimizer keeps only what fp32 weights have beyond the bf16 ones."""
        return self.narrow_states and (self.fp8 is None or not self.fp8.parameters)

    def recomputes(self, module: str) -> bool:
        """Whether selective recomputation runs a part of :data:`RecomputeModule` again."""
        return self.recompute == "selective" and module in self.recompute_modules

    def tied(self, config: ModelConfig) -> bool:
        """Whether head and embedding are one matrix."""
        return config.tied_embeddings if self.tie_embeddings is None else self.tie_embeddings


@dataclass(frozen=True, slots=True)
class Shard:
    """Sizes of one layer as one tensor-parallel rank sees them, for one micro-batch.

    ``sequence`` is this context-parallel rank's share of it. ``tokens`` are all of the rank's micro-batch,
    ``norm_tokens`` those that norms and residual additions work on. With a Mixture of Experts ``ffn`` and ``up_width``
    are those of the shared experts.
    """

    config: ModelConfig
    implementation: Implementation
    batch: int
    sequence: int
    tokens: int
    norm_tokens: int
    heads: int
    kv_heads: int
    attention_width: int
    qkv_width: int
    ffn: int
    up_width: int

    @property
    def activation_bytes(self) -> float:
        """Bytes of one residual-stream tensor of the whole micro-batch."""
        return float(self.tokens * self.config.hidden * DTYPE_BYTES[self.implementation.dtype])


def shard(config: ModelConfig, implementation: Implementation, batch: int, sequence: int) -> Shard:
    """Split a layer over the tensor-parallel ranks.

    Raises
    ------
    InputError
        If heads, key/value heads, MLP width or (sequence-parallel) tokens are not divisible by the degree.
    """
    tp = implementation.tensor_parallel
    width = config.ffn if config.experts is None else config.experts.shared_ffn
    for what, size in (("attention heads", config.heads), ("MLP width", width)):
        if size % tp:
            raise InputError(
                f"{what} {size} of {config.name} not divisible by the tensor-parallel degree {tp}",
                key="tensor_model_parallel_size",
                remedy=f"Choose a divisor of {size}.",
            )
    if config.kv_heads % tp and tp % config.kv_heads:
        raise InputError(
            f"{config.kv_heads} key/value heads of {config.name} cannot be split over {tp} ranks",
            key="tensor_model_parallel_size",
            remedy=f"Choose a divisor or a multiple of {config.kv_heads}.",
        )
    sequence = _local_sequence(sequence, implementation)
    if implementation.sequence_parallel and (batch * sequence) % tp:
        raise InputError(
            f"{sequence} tokens a sequence not divisible by the tensor-parallel degree {tp}",
            key="sequence_length",
            remedy="Sequence parallelism splits it over the ranks.",
        )
    tokens, heads, kv_heads = batch * sequence, config.heads // tp, max(1, config.kv_heads // tp)
    return Shard(
        config=config,
        implementation=implementation,
        batch=batch,
        sequence=sequence,
        tokens=tokens,
        norm_tokens=tokens // tp if implementation.sequence_parallel else tokens,
        heads=heads,
        kv_heads=kv_heads,
        attention_width=config.attention_width // config.heads * heads,
        qkv_width=(heads + 2 * kv_heads) * config.head_dim if config.latent is None else config.qkv_width // tp,
        ffn=width // tp,
        up_width=width * (2 if config.gated_mlp else 1) // tp,
    )


def _local_sequence(sequence: int, implementation: Implementation) -> int:
    """Positions of one context-parallel rank: two chunks of as many as fit twice into the number of ranks."""
    ranks = implementation.context_parallel
    if ranks > 1 and sequence % (2 * ranks):
        raise InputError(
            f"a sequence of {sequence} cannot be cut into two chunks for each of {ranks} context-parallel ranks",
            key="context_parallel_size",
            remedy=f"Use a sequence that is a multiple of {2 * ranks}.",
        )
    return sequence // ranks


def streaming(
    pattern: str,
    name: str,
    elements: float,
    *,
    reads: float = 1.0,
    writes: float = 1.0,
    dtype: str = "bf16",
    rows: int = 0,
    columns: int = 0,
    completes: str = "",
) -> Launch:
    """Launch of a memory-bound kernel that reads and writes ``reads`` and ``writes`` times ``elements`` values.

    Its data are taken to come from memory: in a training step hundreds of megabytes pass between two uses.
    """
    size = elements * DTYPE_BYTES[dtype]
    operator = Streaming(
        pattern,
        float(reads * size),
        float(writes * size),
        elements=float(elements),
        dtype=dtype,
        footprint_bytes=math.inf,
        rows=rows,
        columns=columns,
        name=name,
    )
    return Launch(operator, completes=completes)


def linear_forward(name: str, tokens: int, outputs: int, inputs: int, dtype: str) -> Launch:
    """Launch of ``y[tokens, outputs] = x·Wᵀ``; a bias is added in its epilogue and costs nothing of note."""
    return Launch(Gemm(tokens, outputs, inputs, dtype=dtype, layout="tn", footprint_bytes=math.inf, name=name))


def input_gradient(name: str, tokens: int, outputs: int, inputs: int, dtype: str) -> Launch:
    """Launch of ``dx[tokens, inputs] = dy·W``."""
    return Launch(
        Gemm(tokens, inputs, outputs, dtype=dtype, layout="nn", footprint_bytes=math.inf, name=f"{name}.dgrad")
    )


def weight_gradient(name: str, tokens: int, outputs: int, inputs: int, dtype: str, completes: str = "") -> Launch:
    """Launch of ``dW[outputs, inputs] = dyᵀ·x``."""
    return Launch(
        Gemm(outputs, inputs, tokens, dtype=dtype, layout="nt", footprint_bytes=math.inf, name=f"{name}.wgrad"),
        completes=completes,
    )


def collective(
    kind: str,
    name: str,
    size_bytes: float,
    implementation: Implementation,
    *,
    ranks: int | None = None,
    fabric: Fabric | None = None,
    waits: bool = True,
) -> Launch:
    """Launch of a collective among ``ranks``, by default the tensor-parallel ones."""
    operator = Collective(
        kind,
        size_bytes,
        implementation.tensor_parallel if ranks is None else ranks,
        ctas=implementation.ctas,
        fabric=fabric,
        dtype=implementation.dtype,
        name=name,
        threads=implementation.threads,
    )
    return Launch(operator, stream="communication", waits=waits)
