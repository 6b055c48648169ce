"""FP8 and FP4 of linear layers as Transformer Engine has them: recipes, and the copies of every tensor that they need.

A linear layer multiplies three times: y = x·Wᵀ, dx = dy·W, dW = dyᵀ·x. In FP8 and FP4 all three take quantised operands
and give bf16 (dW is added to an fp32 buffer); norms, embedding, head and loss stay in bf16, and attention too unless a
plan asks for FP8 there (:mod:`joulecast.model.kernels.attention_fp8`). Hopper's and Ada's FP8 products, and all in FP4,
only take operands that lie along the sum, so that x, W and dy are needed a second time, transposed. Blackwell's in FP8
take any layout; the scales of blocks, however, belong to one direction, and need both copies everywhere.

============== ================================ ==========================================================
recipe         one scale for                    kernels
============== ================================ ==========================================================
``delayed``    a tensor, from earlier steps     a cast with its transposition; norms write FP8 themselves
``tensorwise`` a tensor, of now                 the same after a pass for the greatest value
``blockwise``  1 x 128 or 128 x 128 values      both copies in one kernel
``mxfp8``      32 values                        both copies in one kernel
``nvfp4``      16 values (16 x 16 of weights)   both copies in one kernel, after a pass for the greatest values
               and a tensor, of now
============== ================================ ==========================================================

In ``nvfp4`` the copies for a weight's gradient go through a random Hadamard transform, whose greatest value the first
pass finds as well, and gradients are rounded stochastically. Some layers may stay in bf16
(:attr:`joulecast.model.architecture.model_config.ModelConfig.wide_pattern`).

The names are Megatron's. Sources: Transformer Engine 2, ``common/recipe``, ``pytorch/module`` and ``pytorch/tensor``;
Micikevicius et al., FP8 Formats for Deep Learning, arXiv 2209.05433; OCP Microscaling Formats v1.0; Pretraining Large
Language Models with NVFP4, arXiv 2509.25149.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from joulecast.errors import InputError
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.kernels.operators import DTYPE_BYTES

Recipe = Literal["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"]
#: Values of a plan's precision in which its linear layers alone run.
NARROW = ("fp8", "fp4")
#: Recipes of PyTorch's own float8 linear layers (torchao); all but ``rowwise`` are Transformer Engine's.
PYTORCH_RECIPES = ("tensorwise", "rowwise")
#: Recipes whose scales belong to blocks of values along one direction.
BLOCKED = ("blockwise", "mxfp8", "nvfp4")
#: Bytes of scales a value: 4 for 128 values, or 1 for 32, or 1 for 16.
SCALE_BYTES = {"blockwise": 1 / 32, "mxfp8": 1 / 32, "nvfp4": 1 / 16}
#: Architectures whose FP8 products only take operands that lie along the sum.
ONE_LAYOUT = ("Hopper", "Ada", "Ada GeForce")
#: Architectures whose matrix units read the scales of 32 values.
MICROSCALING = ("Blackwell", "Blackwell Ultra", "CDNA4")
#: Architectures whose matrix units read NVFP4's: E4M3 scales of 16 values.
NVFP4 = ("Blackwell", "Blackwell Ultra")


@dataclass(frozen=True, slots=True)
class Narrow:
    """How linear layers run in FP8 or FP4.

    Attributes
    ----------
    recipe
        One of :data:`Recipe`, or ``nvfp4``.
    one_layout
        Whether products only take operands that lie along the sum.
    parameters
        Whether the weights themselves are kept (and gathered) in that type rather than in bf16 (``fp8_param_gather``,
        ``fp4_param_gather``).
    """

    recipe: str = "delayed"
    one_layout: bool = True
    parameters: bool = False

    @property
    def dtype(self) -> str:
        """Type of the operands."""
        return "fp4" if self.recipe == "nvfp4" else "fp8"

    @property
    def blocked(self) -> bool:
        """Whether scales belong to blocks."""
        return self.recipe in BLOCKED

    @property
    def copies(self) -> int:
        """Copies of a tensor that all three products need together."""
        return 2 if self.blocked or self.one_layout else 1

    @property
    def transposes(self) -> bool:
        """Whether the second copy can be made from the first, so that only one is gathered."""
        return self.one_layout and not self.blocked

    @property
    def transposes_weights(self) -> bool:
        """The same of weights: in NVFP4 a scale is of a square of values, the same in both directions."""
        return self.transposes or self.recipe == "nvfp4"

    @property
    def value_bytes(self) -> float:
        """Bytes of one value in one copy, with its share of the scales."""
        return DTYPE_BYTES[self.dtype] + SCALE_BYTES.get(self.recipe, 0.0)

    @property
    def weight_value_bytes(self) -> float:
        """The same of a weight: in blocks of 128 a scale is of a square of values."""
        return self.value_bytes if self.recipe != "blockwise" else DTYPE_BYTES[self.dtype] + 4.0 / 128**2

    @property
    def copies_attention(self) -> bool:
        """Whether the product behind attention keeps a copy of attention's output, which attention keeps as well.

        With other recipes Megatron-Core 0.14 has it make that copy again in the backward (``save_original_input``).
        """
        return self.recipe == "delayed"

    @property
    def scaled_now(self) -> bool:
        """Whether a tensor's scale needs a pass for its greatest value before the cast."""
        return self.recipe in ("tensorwise", "nvfp4")

    @property
    def norms_cast(self) -> bool:
        """Whether norms write the copies themselves: they cannot before the scale is known."""
        return self.recipe == "delayed"


def narrow_on(gpu: GpuDescription, recipe: str, *, parameters: bool = False) -> Narrow:
    """A recipe on a GPU.

    Raises
    ------
    InputError
        The GPU has no such matrix units, or not the scales of the recipe.
    """
    architecture = str(gpu.device["architecture"].value)
    if recipe == "nvfp4":
        if architecture not in NVFP4 or "tensor_flops_per_sm_per_cycle.fp4" not in gpu.device:
            raise InputError(
                f"{gpu.name} ({architecture}) has no matrix units for NVFP4",
                key="workload.precision",
                remedy="Use bf16 or fp8, or a Blackwell GPU, for instance b200 or gb300.",
            )
        return Narrow(recipe, True, parameters)
    if "tensor_flops_per_sm_per_cycle.fp8" not in gpu.device:
        raise InputError(
            f"{gpu.name} ({architecture}) has no FP8 matrix units",
            key="workload.precision",
            remedy="Use bf16, or a GPU that has them, for instance h100-sxm.",
        )
    if recipe == "mxfp8" and architecture not in MICROSCALING:
        raise InputError(
            f"{gpu.name} ({architecture}) has no matrix units for the scales of mxfp8",
            key="workload.fp8_recipe",
            remedy="Use delayed, tensorwise or blockwise, or a Blackwell GPU.",
        )
    return Narrow(recipe, architecture in ONE_LAYOUT, parameters)
