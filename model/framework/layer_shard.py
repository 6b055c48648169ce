"""What one rank has of a layer that is split over tensor- and context-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from joulecast.errors import InputError
from joulecast.model.architecture.delta_net import DeltaNet
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.state_space import StateSpace
from joulecast.model.framework.implementation import Implementation
from joulecast.model.kernels.operators import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Shard:
    """Sizes of one layer as one tensor-parallel rank sees them, for one micro-batch.

    ``sequence`` is this context-parallel rank's share of it. ``tokens`` are all of the rank's micro-batch,
    ``norm_tokens`` those that norms and residual additions work on. With a Mixture of Experts ``ffn`` and ``up_width``
    are those of the shared experts. Of a layer without attention, or without an MLP, their sizes are 0;
    ``state_space`` is the rank's share of such a mixer; ``delta_net`` stands on one rank alone.
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
    state_space: StateSpace | None = None
    delta_net: DeltaNet | None = None

    @property
    def dtype(self) -> str:
        """Type of activations and products."""
        return self.implementation.dtype

    @property
    def value_bytes(self) -> float:
        """Bytes of a value of that type."""
        return float(DTYPE_BYTES[self.implementation.dtype])

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.config.hidden

    @property
    def stream_values(self) -> int:
        """Values of a residual-stream tensor that norms and additions of this rank work on."""
        return self.norm_tokens * self.config.hidden

    @property
    def activation_bytes(self) -> float:
        """Bytes of one residual-stream tensor of the whole micro-batch."""
        return self.tokens * self.config.hidden * self.value_bytes

    @property
    def family(self) -> str:
        """Whose own code transformers runs (:mod:`joulecast.model.transformer.family_attention`); empty: none's."""
        return self.config.own_code if self.implementation.modules == "transformers" else ""

    @property
    def stream(self) -> Shard:
        """The same in the residual stream's type: ``torch.autocast`` leaves it, and norms, in the parameters'."""
        run = self.implementation
        if not run.autocast:
            return self
        return self._in(run.parameter_dtype)

    @property
    def in_fp32(self) -> Shard:
        """The same in fp32."""
        return self._in("fp32")

    def _in(self, dtype: str) -> Shard:
        return replace(self, implementation=replace(self.implementation, dtype=dtype))

    @property
    def between(self) -> Shard:
        """The same in the type of what linear layers give: fp32, as they are given it, beside weights in 4 bits."""
        return self.stream if self.implementation.prepared else self


def shard(config: ModelConfig, implementation: Implementation, batch: int, sequence: int) -> Shard:
    """Split a layer over the tensor-parallel ranks.

    Raises
    ------
    InputError
        If heads, key/value heads, MLP width or (sequence-parallel) tokens are not divisible by the degree.
    """
    if config.stays_wide and implementation.narrow is not None:
        implementation = replace(implementation, narrow=None, attention_fp8=False)
    tp = implementation.tensor_parallel
    width = (config.ffn if config.experts is None else config.experts.shared_ffn) if config.feeds_forward else 0
    _check_heads(config, width, tp)
    sequence = _local_sequence(sequence, implementation)
    if implementation.sequence_parallel and (batch * sequence) % tp:
        raise InputError(
            f"{sequence} tokens a sequence not divisible by the tensor-parallel degree {tp}",
            key="sequence_length",
            remedy="Sequence parallelism splits it over the ranks.",
        )
    tokens, heads, kv_heads = batch * sequence, config.heads // tp, max(1, config.kv_heads // tp)
    if not config.attends:
        heads, kv_heads = 0, 0
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
        state_space=None if config.state_space is None else config.state_space.split(tp),
        delta_net=config.delta_net,
    )


def _check_heads(config: ModelConfig, width: int, tp: int) -> None:
    """Heads, and an MLP of this width, can be split over so many ranks."""
    attends = config.attends
    sizes = [("attention heads", config.heads)] if attends else []
    sizes.append(("MLP width", width))
    if config.state_space is not None:
        sizes += [("heads of a state space", config.state_space.heads), ("groups of these", config.state_space.groups)]
    for what, size in sizes:
        if size % tp:
            raise InputError(
                f"{what} {size} of {config.name} not divisible by the tensor-parallel degree {tp}",
                key="tensor_model_parallel_size",
                remedy=f"Choose a divisor of {size}.",
            )
    if attends and config.kv_heads % tp and tp % config.kv_heads:
        raise InputError(
            f"{config.kv_heads} key/value heads of {config.name} cannot be split over {tp} ranks",
            key="tensor_model_parallel_size",
            remedy=f"Choose a divisor or a multiple of {config.kv_heads}.",
        )
    if config.qk_norm_whole and tp > 1:
        raise InputError(
            f"{config.name} normalises all heads of a token together, which is not known of heads split over ranks",
            key="tensor_model_parallel_size",
            remedy="Set it to 1.",
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
