"""FP8 of linear layers as Transformer Engine has it: recipes, and the copies of every tensor that they need.

A linear layer multiplies three times: y = x·Wᵀ, dx = dy·W, dW = dyᵀ·x. In FP8 all three take quantised operands and
give bf16 (dW is added to an fp32 buffer); norms, embedding, head and loss stay in bf16, and attention too unless a plan
asks for it (:mod:`joulecast.model.kernels.attention_fp8`). Hopper's and Ada's
FP8 products only take operands that lie along the sum, so that x, W and dy are needed a second time, transposed.
Blackwell's take any layout; the scales of blocks, however, belong to one direction, and need both copies everywhere.

============== ================================ ==========================================================
recipe         one scale for                    kernels
============== ================================ ==========================================================
``delayed``    a tensor, from earlier steps     a cast with its transposition; norms write FP8 themselves
``tensorwise`` a tensor, of now                 the same after a pass for the greatest value
``blockwise``  1 x 128 or 128 x 128 values      both copies in one kernel
``mxfp8``      32 values                        both copies in one kernel
============== ================================ ==========================================================

The names are Megatron's. Sources: Transformer Engine 2, ``pytorch/module`` and ``pytorch/tensor``; Micikevicius et al.,
FP8 Formats for Deep Learning, arXiv 2209.05433; OCP Microscaling Formats v1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from joulecast.errors import InputError
from joulecast.model.hardware.description import GpuDescription

Recipe = Literal["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"]
#: Recipes of PyTorch's own float8 linear layers (torchao); all but ``rowwise`` are Transformer Engine's.
PYTORCH_RECIPES = ("tensorwise", "rowwise")
#: Recipes whose scales belong to blocks of values along one direction.
BLOCKED = ("blockwise", "mxfp8")
#: Bytes of scales a value: 4 for 128 values, or 1 for 32.
SCALE_BYTES = 1 / 32
#: Architectures whose FP8 products only take operands that lie along the sum.
ONE_LAYOUT = ("Hopper", "Ada", "Ada GeForce")
#: Architectures whose matrix units read the scales of 32 values.
MICROSCALING = ("Blackwell", "Blackwell Ultra", "CDNA4")


@dataclass(frozen=True, slots=True)
class Narrow:
    """How linear layers run in FP8.

    Attributes
    ----------
    recipe
        One of :data:`Recipe`.
    one_layout
        Whether products only take operands that lie along the sum.
    parameters
        Whether the weights themselves are kept (and gathered) in FP8 rather than in bf16 (``fp8_param_gather``).
    """

    recipe: str = "delayed"
    one_layout: bool = True
    parameters: bool = False

    @property
    def blocked(self) -> bool:
        """Whether scales belong to blocks."""
        return self.recipe in BLOCKED

    @property
    def copies(self) -> int:
        """FP8 copies of a tensor that all three products need together."""
        return 2 if self.blocked or self.one_layout else 1

    @property
    def transposes(self) -> bool:
        """Whether the second copy can be made from the first, so that only one is gathered."""
        return self.one_layout and not self.blocked

    @property
    def value_bytes(self) -> float:
        """Bytes of one value in one copy, with its share of the scales."""
        return 1.0 + (SCALE_BYTES if self.blocked else 0.0)

    @property
    def norms_cast(self) -> bool:
        """Whether norms write FP8 themselves: they cannot before the scale is known."""
        return self.recipe == "delayed"


def narrow_on(gpu: GpuDescription, recipe: str, *, parameters: bool = False) -> Narrow:
    """A recipe on a GPU.

    Raises
    ------
    InputError
        The GPU has no FP8 matrix units, or not the scales of the recipe.
    """
    architecture = str(gpu.device["architecture"].value)
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
