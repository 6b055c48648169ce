"""The part of a model that sees images: a stack of layers over patches, and what takes its results to text's."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from joulecast.model.hashing import HashedOnce, hashed_once

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig

#: Colours of a pixel.
COLOURS = 3


@hashed_once
@dataclass(frozen=True, slots=True)
class Projector(HashedOnce):
    """What takes rows of a tower's results to the width of the text model.

    Attributes
    ----------
    inputs, inner, outputs
        Widths: of a row as the first product takes it, between both products (0: there is one alone), of its result.
    bias
        Whether the products add one.
    norm
        Of the tower's results: ``rmsnorm``, ``layernorm`` or none.
    pooled
        Whether patches are averaged, rather than joined, to one row.
    """

    inputs: int
    inner: int
    outputs: int
    bias: bool = True
    norm: str = ""
    pooled: bool = False

    @property
    def products(self) -> tuple[tuple[str, int, int], ...]:
        """Name, width of the result and of the input of each product."""
        if not self.inner:
            return (("project", self.outputs, self.inputs),)
        return ("join", self.inner, self.inputs), ("project", self.outputs, self.inner)


@hashed_once
@dataclass(frozen=True, slots=True)
class Vision(HashedOnce):
    """Shape of a vision tower and its projector.

    Attributes
    ----------
    tower
        The layers over patches as a model without vocabulary; their windows are in patches.
    patch, frames
        Pixels of a patch's side, and images in time that it spans (a still one is repeated).
    patch_bias
        Whether the product of patches adds one.
    image_size
        Pixels of a side of every image, 0 where images keep their own size.
    merge
        Patches of a side that become one token of the text model.
    projector
        To the text model.
    positions
        Rows of the tower's table of positions, 0 without one.
    interpolated
        Whether a patch's position is a mean of four rows of that table, rather than a row (Qwen3-VL).
    class_token, norm_before, norm_after
        Whether a token that is no patch stands in front of them, and norms around the stack (CLIP, SigLIP).
    window
        Pixels of a side of the windows that local layers of the tower see, 0 without any (Qwen2.5-VL).
    deep
        Further projectors, whose results are added in as many of the first layers of the text model (Qwen3-VL).
    unread
        Last layers of the tower that run and that nothing reads (LLaVA reads the one before the last).
    one_by_one
        Whether transformers calls PyTorch's attention once for each image or window, and asks the GPU for their lengths
        in every layer (Qwen).
    turned
        Whether the tower's residual stream keeps the order of its convolution's result, in which values of a patch lie
        far apart (SigLIP; behind a token of its own CLIP's is a copy in the usual order).
    blocks
        Whether tokens of an image see each other both ways in the text model, which takes a mask for it (Gemma 3).
    """

    tower: ModelConfig
    patch: int
    projector: Projector
    frames: int = 1
    patch_bias: bool = True
    image_size: int = 0
    merge: int = 1
    positions: int = 0
    interpolated: bool = False
    class_token: bool = False
    norm_before: bool = False
    norm_after: bool = False
    window: int = 0
    deep: int = 0
    unread: int = 0
    one_by_one: bool = False
    turned: bool = False
    blocks: bool = False

    @property
    def patch_values(self) -> int:
        """Values of a patch's pixels."""
        return COLOURS * self.frames * self.patch**2

    @property
    def step(self) -> int:
        """Pixels of a side of what becomes one token."""
        return self.patch * self.merge

    @property
    def own_projectors(self) -> int:
        """Projectors with weights of their own."""
        return 1 + self.deep

    def tokens(self, rows: int, columns: int) -> int:
        """Tokens of the text model that an image of so many patches takes."""
        return (rows // self.merge) * (columns // self.merge)

    def windows(self, rows: int, columns: int) -> int:
        """Windows of an image of so many patches; those at its ends may be smaller."""
        side = self.window // self.patch
        return ceil(rows / side) * ceil(columns / side)

    @property
    def tower_parameters(self) -> int:
        """Parameters of the tower."""
        return self.tower.layers * self.tower.layer_parameters() + sum(self.end_sizes.values())

    @property
    def projector_parameters(self) -> int:
        """Parameters of all projectors."""
        return sum(sum(self.projector_sizes(index).values()) for index in range(self.own_projectors))

    @property
    def end_sizes(self) -> dict[str, int]:
        """Parameters of what stands around the tower's layers, by name."""
        hidden, norms = self.tower.hidden, ("patches.norm",) * self.norm_before + ("norm",) * self.norm_after
        sizes = {"patches.weight": hidden * self.patch_values}
        if self.patch_bias:
            sizes["patches.bias"] = hidden
        if self.positions:
            sizes["positions.weight"] = (self.positions + 2 * self.class_token) * hidden
        kinds = ("weight", "bias") if self.tower.norm_bias else ("weight",)
        return sizes | {f"{norm}.{kind}": hidden for norm in norms for kind in kinds}

    def projector_sizes(self, index: int) -> dict[str, int]:
        """Parameters of the projector in front of the text model, 0, or of a further one, by name."""
        of = self.projector
        sizes = {f"{name}.weight": outputs * inputs for name, outputs, inputs in of.products}
        if of.bias:
            sizes |= {f"{name}.bias": outputs for name, outputs, _ in of.products}
        if of.norm:
            # Further ones norm the patches that they have joined.
            width = self.tower.hidden if index == 0 else of.inputs
            sizes |= {f"norm.{kind}": width for kind in ("weight", "bias")[: 1 + (of.norm == "layernorm")]}
        return sizes


@hashed_once
@dataclass(frozen=True, slots=True)
class Images(HashedOnce):
    """Images in every sequence.

    Attributes
    ----------
    per_sequence
        How many.
    rows, columns
        Patches of each of them, from top to bottom and from left to right.
    trains_tower, trains_projector
        Whether the layers over patches, and what takes their results to the text model, have gradients.
    """

    per_sequence: int
    rows: int
    columns: int
    trains_tower: bool = False
    trains_projector: bool = False

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return self.rows * self.columns
