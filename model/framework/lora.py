"""Low-rank adapters beside frozen linear layers (LoRA), as Hugging Face's PEFT adds them."""

from __future__ import annotations

from dataclasses import dataclass

#: Products of a layer that may have an adapter, by the names of :mod:`joulecast.model.transformer.modules_layer`.
PRODUCTS = ("qkv", "query", "key", "value", "output", "gate", "up", "down")


@dataclass(frozen=True, slots=True)
class Lora:
    """What is trained beside frozen weights: y = W·x + s·B·A·x, of which only A and B have gradients.

    Attributes
    ----------
    rank
        Rows of A, and columns of B.
    targets
        The :data:`PRODUCTS` that have an adapter.
    dropout
        Probability of dropout of the adapters' inputs.
    dtype
        Type in which A, B, their gradients and the optimizer's moments are kept; ``torch.autocast`` casts wider ones.
    input_gradient
        Whether the layer's input takes a gradient: not in the first layer, whose input is the frozen embedding's,
        unless checkpoints need it (``enable_input_require_grads``).

    Sources: Hu et al., arXiv 2106.09685; ``peft/tuners/lora/layer.py`` of PEFT 0.21.
    """

    rank: int
    targets: tuple[str, ...]
    dropout: float = 0.0
    dtype: str = "fp32"
    input_gradient: bool = True

    def elements(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Values of A and B beside a product from ``inputs`` to ``outputs`` values.

        >>> Lora(8, ("query",)).elements(4096, 4096)
        (32768, 32768)
        """
        return self.rank * inputs, self.rank * outputs
