"""The fused attention kernel of one rank."""

from __future__ import annotations

from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.attention import EFFICIENT
from joulecast.model.kernels.operators import Attention

#: Kernels that transformers hands a window and a cap of scores; PyTorch's own it hands a mask, and no cap.
TAKES_WINDOWS = ("flash-attn-2", "flash-attention-3", "flex")


def attention(s: Shard, direction: str) -> Attention:
    """Attention of all of the rank's heads over its sequence, ``forward`` or ``backward``; chunks are sequences."""
    window, parts = s.config.window, 1
    if s.config.chunked and window:
        window, parts = 0, s.sequence // window
    each_score = "dropout" if s.implementation.dropout else "softcap" if softcapped(s) else alibi(s)
    return Attention(
        s.batch * parts,
        s.heads,
        s.kv_heads,
        s.sequence // parts,
        s.config.head_dim,
        backend=_kernels(s),
        direction=direction,
        dtype=s.implementation.attention_dtype,
        name=f"attention.{direction}",
        each_score=each_score,
        window=window,
        causal=s.config.causal and each_score != "mask",
        deterministic=int(s.implementation.deterministic and direction == "backward"),
        value_dim=0 if s.config.latent is None else s.config.latent.value_dim,
        documents=None if masks_documents(s) else s.implementation.documents,
    )


def masks_documents(s: Shard) -> bool:
    """Whether documents are a mask: to PyTorch's own attention, which takes no lengths of them."""
    run = s.implementation
    return run.documents is not None and not run.megatron and run.attention_backend == "cudnn"


def _kernels(s: Shard) -> str:
    run = s.implementation
    if run.attention_backend != "cudnn":
        return run.attention_backend
    return "te-cudnn" if run.megatron else EFFICIENT if run.dtype == "fp32" else "cudnn"


def softcapped(s: Shard) -> bool:
    """Whether scores pass through a hyperbolic tangent: PyTorch's own attention, which transformers calls, has none."""
    run = s.implementation
    return s.config.attention_softcap and (run.modules != "transformers" or run.attention_backend in TAKES_WINDOWS)


def alibi(s: Shard) -> str:
    """What happens to scores where the model has ALiBi.

    PyTorch's own attention is given the bias as a tensor, as it is a mask, and skips nothing of the square. A kernel
    that knows the heads' slopes computes it: that of FlashAttention's package, and Transformer Engine's.
    """
    if not s.config.alibi:
        return ""
    run = s.implementation
    return "mask" if not run.megatron and run.attention_backend == "cudnn" else "alibi"
