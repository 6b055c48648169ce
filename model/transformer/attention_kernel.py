"""The fused attention kernel of one rank."""

from __future__ import annotations

from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import Attention


def attention(s: Shard, direction: str) -> Attention:
    """Attention of all of the rank's heads over its sequence, ``forward`` or ``backward``; chunks are sequences."""
    window, parts = s.config.window, 1
    if s.config.chunked and window:
        window, parts = 0, s.sequence // window
    return Attention(
        s.batch * parts,
        s.heads,
        s.kv_heads,
        s.sequence // parts,
        s.config.head_dim,
        backend=s.implementation.attention_backend,
        direction=direction,
        dtype=s.implementation.attention_dtype,
        name=f"attention.{direction}",
        each_score="dropout" if s.implementation.dropout else "softcap" if softcapped(s) else "",
        window=window,
    )


def softcapped(s: Shard) -> bool:
    """Whether scores pass through a hyperbolic tangent: PyTorch's own attention, which transformers calls, has none."""
    return s.config.attention_softcap and s.implementation.modules != "transformers"
