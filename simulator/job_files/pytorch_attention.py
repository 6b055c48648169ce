"""Whose kernels PyTorch's own attention (``scaled_dot_product_attention``) runs where nobody names them."""

from __future__ import annotations

#: Architectures on which PyTorch asks cuDNN before FlashAttention (compute capability 9 and 10): aten's
#: native/transformers/cuda/sdp_utils.cpp of PyTorch 2.11 and later, with cuDNN 9.15.1 or later.
_CUDNN_FIRST = frozenset({"hopper", "blackwell", "blackwell ultra"})


def pytorch_attention(architecture: str | None, code: str) -> tuple[str, str]:
    """Backend of attention that PyTorch chooses, and what is to be said of it.

    Parameters
    ----------
    architecture
        The GPU's, as its description has it; ``None`` where the GPU is not known.
    code
        Whose attention it is.
    """
    if architecture is None:
        return "flash-attention-2", f"what PyTorch chooses for {code}; on Hopper and Blackwell cudnn"
    backend = "cudnn" if architecture.lower() in _CUDNN_FIRST else "flash-attention-2"
    return backend, f"what PyTorch chooses for {code} on {architecture}"
