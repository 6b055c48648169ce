"""Low-rank adapters beside frozen linear layers (LoRA), as Hugging Face's PEFT adds them."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.model.kernels.operators import DTYPE_BYTES

#: Weights in 4 bits that share a scale, and scales in 8 bits that do: bitsandbytes' block sizes.
WEIGHTS_TOGETHER, SCALES_TOGETHER = 64, 256


@dataclass(frozen=True, slots=True)
class Lora:
    """What is trained beside frozen weights: y = W·x + s·B·A·x, of which only A and B have gradients.

    Attributes
    ----------
    rank
        Rows of A, and columns of B.
    targets
        The products that have an adapter, by the names of :mod:`joulecast.model.transformer.linear`: ``qkv``,
        ``query``, ``key``, ``value``, ``output``, ``gate``, ``up`` and ``down``.
    dropout
        Probability of dropout of the adapters' inputs.
    dtype
        Type in which A, B, their gradients and the optimizer's moments are kept; ``torch.autocast`` casts wider ones.
    base
        How the frozen linear layers are kept: ``nf4`` is 4 bits by bitsandbytes (QLoRA), empty as they are multiplied.
    double_quantised
        Whether the scales of 4 bits are kept in 8.
    prepared
        Whether all that is not in 4 bits was cast to fp32 (PEFT's ``prepare_model_for_kbit_training``).
    input_gradient
        Whether the layer's input takes a gradient: not in the first layer, whose input is the frozen embedding's,
        unless checkpoints need it (``enable_input_require_grads``).

    Sources: Hu et al., arXiv 2106.09685; Dettmers et al., QLoRA, arXiv 2305.14314; ``peft/tuners/lora`` of PEFT 0.21.
    """

    rank: int
    targets: tuple[str, ...]
    dropout: float = 0.0
    dtype: str = "fp32"
    base: str = ""
    double_quantised: bool = False
    prepared: bool = False
    input_gradient: bool = True

    @property
    def base_bytes(self) -> float:
        """Bytes of a frozen weight in 4 bits with its share of scales: fp32 for 64 weights, or 8 bits with their own.

        >>> Lora(8, ("query",), base="nf4").base_bytes
        0.5625
        """
        scale = 1.0 + DTYPE_BYTES["fp32"] / SCALES_TOGETHER if self.double_quantised else DTYPE_BYTES["fp32"]
        return 0.5 + scale / WEIGHTS_TOGETHER

    def elements(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Values of A and B beside a product from ``inputs`` to ``outputs`` values.

        >>> Lora(8, ("query",)).elements(4096, 4096)
        (32768, 32768)
        """
        return self.rank * inputs, self.rank * outputs
