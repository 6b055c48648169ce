"""Parts of a layer that selective recomputation runs again in the backward instead of keeping what they make.

The names are Megatron's ``recompute_modules``. Each part keeps its own input, which is kept anyway:

``core_attn``        the core of attention: what an unfused softmax makes, a fused kernel's statistics
``layernorm``        the outputs of norms that stand alone: latent attention's and experts'; others are part of the
                     product behind them in Transformer Engine
``mla_up_proj``      queries, keys and values that latent attention unfolds, and the normed vectors they come from
``mlp``              all within the MLP of layers without experts, its norm's output included
``moe_act``          what the experts' activation makes
``shared_experts``   all within the shared experts
``moe``              all of router, experts and shared experts, their communication included
"""

from __future__ import annotations

from joulecast.model.architecture.experts import LatentAttention
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer.expert_rows import clamped_width, expert_bytes, expert_shard
from joulecast.model.transformer.stored_narrow import activation_input_bytes


def saved_bytes(s: Shard) -> float:
    """Bytes of one layer and micro-batch that are made again, the core of attention left out."""
    run, hidden = s.implementation, s.hidden
    wide = float(DTYPE_BYTES[run.dtype])
    narrow = wide if run.kept_narrow is None else run.kept_narrow.value_bytes  # of what products read
    made = activation_input_bytes(run)
    experts, saved = s.config.experts is not None, 0.0
    whole_mlp = run.recomputes("moe" if experts else "mlp")
    of_latent, of_shared = _copies(s)
    if run.recomputes("layernorm"):
        if s.config.latent is not None:
            saved += s.norm_tokens * hidden * narrow * (1 + of_latent)
        if experts and not whole_mlp:
            saved += s.norm_tokens * hidden * wide  # the router takes it in its own type
    if s.config.latent is not None and run.recomputes("mla_up_proj"):
        saved += s.tokens * s.qkv_width * wide + s.norm_tokens * normed_latents(s.config.latent) * narrow
    if experts:
        if run.recomputes("layernorm") or run.recomputes("shared_experts") or whole_mlp:
            saved += s.norm_tokens * hidden * narrow * of_shared
        shared = s.tokens * (s.up_width * made + s.ffn * narrow)
        if whole_mlp:
            return saved + shared + expert_bytes(s)
        e = expert_shard(s)
        saved += e.all_rows * (e.ffn * narrow + clamped_width(s, e) * wide) if run.recomputes("moe_act") else 0.0
        return saved + (shared if run.recomputes("shared_experts") else 0.0)
    if whole_mlp and s.config.feeds_forward:
        saved += s.norm_tokens * hidden * narrow + s.tokens * (s.up_width * made + s.ffn * narrow)
    return saved


def latent_vectors(latent: LatentAttention) -> int:
    """Values of a token's latent vectors: as the norms take them, and as they give them to products."""
    return latent.query_rank + latent.kv_rank + latent.rotary_dim + normed_latents(latent)


def normed_latents(latent: LatentAttention) -> int:
    """Values of a token behind the norms of latent vectors."""
    return latent.query_rank + latent.kv_rank


def narrow_copies(s: Shard) -> int:
    """Further narrow copies of a norm's output: each product that reads it keeps its own.

    Transformer Engine's layers each cast what they are given: latent attention has two that read the first norm, and
    shared experts read the second one beside the router. NVIDIA's report on DeepSeek-V3 in FP8 (arXiv 2603.07685, table
    4) has both norms computed again save 8.2 GB where the experts' activation saves 3.8: five such copies to 2.3.
    """
    return sum(_copies(s))


def _copies(s: Shard) -> tuple[int, int]:
    """Those of latent attention, and of shared experts."""
    narrow = s.implementation.kept_narrow is not None
    shared = s.config.experts is not None and s.ffn > 0
    return int(narrow and s.config.latent is not None), int(narrow and shared)
