"""Parts of a layer that selective recomputation runs again in the backward instead of keeping what they make.

The names are Megatron's ``recompute_modules``. Each part keeps its own input, which is kept anyway:

``core_attn``        the core of attention: what an unfused softmax makes, a fused kernel's statistics
``layernorm``        the outputs of both norms
``mla_up_proj``      queries, keys and values that latent attention unfolds
``mlp``              all within the MLP of layers without experts, its norm's output included
``moe_act``          what the experts' activation makes
``shared_experts``   all within the shared experts
``moe``              all of router, experts and shared experts, their communication included
"""

from __future__ import annotations

from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.transformer.expert_rows import expert_bytes, expert_shard


def saved_bytes(s: Shard) -> float:
    """Bytes of one layer and micro-batch that are made again, the core of attention left out."""
    run, hidden = s.implementation, s.config.hidden
    wide = float(DTYPE_BYTES[run.dtype])
    narrow = wide if run.kept_narrow is None else run.kept_narrow.value_bytes  # of what products read
    experts, saved = s.config.experts is not None, 0.0
    whole_mlp = run.recomputes("moe" if experts else "mlp")
    if run.recomputes("layernorm"):
        saved += s.norm_tokens * hidden * narrow
        # The second norm's output goes to the router in its own type, and to an MLP's product.
        saved += 0.0 if whole_mlp else s.norm_tokens * hidden * (wide if experts else narrow)
    if s.config.latent is not None and run.recomputes("mla_up_proj"):
        saved += s.tokens * s.qkv_width * wide
    if experts:
        shared = s.tokens * (s.up_width * wide + s.ffn * narrow)
        if whole_mlp:
            return saved + shared + expert_bytes(s)
        e = expert_shard(s)
        saved += e.all_rows * e.ffn * narrow if run.recomputes("moe_act") else 0.0
        return saved + (shared if run.recomputes("shared_experts") else 0.0)
    if whole_mlp:
        saved += s.norm_tokens * hidden * narrow + s.tokens * (s.up_width * wide + s.ffn * narrow)
    return saved
