"""How Muon steps a model's matrices: options of its Newton-Schulz iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: How Megatron's tensor-parallel ranks orthogonalise a matrix that is split over them (``--muon-tp-mode``).
TensorMode = Literal["blockwise", "duplicated", "distributed"]
#: Precision of the products of matrices in fp32 (``--muon-fp32-matmul-prec``), and the type that they run in.
PRODUCTS = {"medium": "bf16", "high": "tf32"}


@dataclass(frozen=True, slots=True)
class Muon:
    """Orthogonalised momentum for matrices; AdamW steps embedding, head, norms and biases.

    Attributes
    ----------
    steps
        Newton-Schulz iterations, of three products each.
    nesterov
        Whether what is orthogonalised is the gradient moved towards its momentum, not the momentum itself.
    tensor_mode
        ``blockwise``: each tensor-parallel rank its own part of a matrix, as if it were one; ``duplicated``: each the
        whole, gathered before; ``distributed``: all together, adding up the products over what is split.
    split_qkv
        Whether Megatron's joint matrix of queries, keys and values is three.
    products
        Type of the products' operands, a value of :data:`PRODUCTS`.

    Sources: Jordan et al., https://kellerjordan.github.io/posts/muon; Liu et al., arXiv 2502.16982;
    ``torch/optim/_muon.py`` of PyTorch 2.11; ``megatron/core/optimizer`` of Megatron-LM and
    ``emerging_optimizers/orthogonalized_optimizers`` of NVIDIA's Emerging-Optimizers, both of 2026.
    """

    steps: int = 5
    nesterov: bool = True
    tensor_mode: TensorMode = "blockwise"
    split_qkv: bool = True
    products: str = "bf16"
