"""What stands around the layers of a vision tower in transformers' code: patches, positions, projector, text tokens.

A patch is one product of its pixels (a convolution whose windows do not overlap). Qwen2.5-VL puts patches into the
order of their windows, Qwen3-VL adds a mean of four rows of a table, SigLIP and CLIP add a row, CLIP behind a token of
its own. Layers are those of :mod:`joulecast.model.transformer.modules_layer` without a causal mask. The projector then
joins or averages patches, and its rows take the places of tokens in the embedding (``masked_scatter``).

Qwen's code calls PyTorch's attention for one image, or one window, after the other, and in every layer reads their
lengths back from the GPU, which then has nothing to do until the host has launched again. SigLIP's residual stream
keeps the order of its convolution's result: additions to it go value by value, and norms copy it first. Between tower
and text model the GPU is asked how many tokens images have, and positions (Qwen) or masks (Gemma 3) are made.

Source: ``modeling_siglip``, ``modeling_clip``, ``modeling_gemma3``, ``modeling_llava``, ``modeling_qwen2_5_vl`` and
``modeling_qwen3_vl`` of transformers 5.17.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.vision import Images, Vision
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, one_by_one, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard, shard
from joulecast.model.kernels.operators import Attention
from joulecast.model.transformer import attention_kernel, autocast_linear, frozen, pytorch_norm
from joulecast.model.transformer import eager_layer as eager
from joulecast.model.transformer.linear import Linear
from joulecast.model.transformer.row_operators import rounded

#: How names of the kernels and parameters of tower, projector and what is between them and the text model begin.
TOWER = "tower."
#: Launches that the GPU waits for in every layer of a tower that asks it for lengths [estimate, +-60 %], and between
#: tower and text model: where masks of images are made, where positions are, and elsewhere [estimates, +-40 %].
ASKED, MASKS, POSITIONS, COUNTS = 6.0, 150.0, 100.0, 15.0
#: Cycles of an SM for a value whose neighbours lie far apart: added to the residual stream, or copied for a norm. 108
#: kernels each of SigLIP with 12,288 patches on an H100, which waited for nothing [+-5 %].
FAR = 1.98
#: How names of attention's kernels end that are called one by one: in a frozen tower, in a trained one, and backward.
CALLED, RECORDED, UNDONE = ".called", ".recorded", ".undone"
#: Bytes of a text model's value that ``masked_scatter`` moves beside the values: a mask, and sums of it in 8 bytes that
#: are written and read.
SCATTERED = 18.0


def tower_run(run: Implementation) -> Implementation:
    """What runs the tower: the text model's framework, whole on every GPU, without what is the text model's alone."""
    trained = run.images is not None and run.images.trains_tower
    return replace(
        run,
        images=None,
        lora=None,
        liger=(),
        narrow=None,
        attention_fp8=False,
        documents=None,
        tiles=(),
        loop_wait_s=0.0,
        log_probabilities="",
        reference="",
        recompute=run.recompute if trained else "none",
    )


def tower_layers(vision: Vision, images: Images) -> tuple[tuple[ModelConfig, int], ...]:
    """Layers of the tower in order, as models that have such alone, with how many follow each other.

    Windows are of as many patches as they have in the mean, as those at an image's ends are smaller.
    """
    tower = vision.tower
    if vision.window:
        tower = replace(tower, sliding_window=images.patches // vision.windows(images.rows, images.columns))
    return tower.runs(0, tower.layers)


def patches_of(config: ModelConfig, run: Implementation, batch: int) -> Shard:
    """Sizes of a tower's layers for the images of ``batch`` sequences."""
    vision, images = seen(config, run)
    positions = images.patches + vision.class_token
    return shard(vision.tower, tower_run(run), batch * images.per_sequence, positions)


def seen(config: ModelConfig, run: Implementation) -> tuple[Vision, Images]:
    """The vision part that runs, and the images that it sees."""
    vision, images = config.vision, run.images
    if vision is None or images is None:
        raise ValueError(f"{config.name} sees no images")
    return vision, images


def projector_sizes(vision: Vision) -> dict[str, int]:
    """Parameters of all projectors, by name."""
    every = range(vision.own_projectors)
    return {f"{_name(i)}.{part}": size for i in every for part, size in vision.projector_sizes(i).items()}


def patches_forward(vision: Vision, s: Shard) -> tuple[Launch, ...]:
    """From pixels to the first layer's input."""
    hidden, dtype, values = s.hidden, s.dtype, s.tokens * s.hidden
    launches = [rounded("patches.pixels.round", s.tokens * vision.patch_values)]
    launches += autocast_linear.forward(_patches(vision, s), s, wide=False)
    if vision.interpolated:
        launches += [
            row_wise("embedding", "patches.positions", 4 * s.tokens, hidden, dtype=dtype),
            streaming("mul", "patches.positions.weigh", 4 * values, writes=2, dtype=dtype),
            streaming("reduce", "patches.positions.sum", 4 * values, writes=0.25, dtype="fp32"),
            rounded("patches.positions.round", values),
        ]
    if vision.class_token:
        launches.append(streaming("cat", "patches.class.cat", values, dtype=dtype))
    if vision.positions:
        launches.append(streaming("add", "patches.positions.add", values, reads=2, dtype=dtype))
    if vision.window:
        launches.append(row_wise("embedding", "patches.order", s.tokens, hidden, dtype=dtype))
    return (*launches, *(pytorch_norm.forward("patches.norm", s) if vision.norm_before else ()))


def patches_backward(vision: Vision, s: Shard, *, accumulate: bool) -> tuple[Launch, ...]:
    """Gradients of the first layers' weights; pixels take none."""
    hidden, dtype, values = s.hidden, s.dtype, s.tokens * s.hidden
    launches: list[Launch] = []
    if vision.norm_before:
        launches += chain(*pytorch_norm.backward("patches.norm", s, accumulate))
    if vision.window:
        launches.append(row_wise("embedding", "patches.grad.order", s.tokens, hidden, dtype=dtype))
    if vision.positions:
        rows, whole = vision.positions + vision.class_token, 4.0 if vision.interpolated else 1.0
        total = streaming("reduce", "positions.grad", whole * values, writes=rows / s.tokens, dtype=dtype)
        launches += eager.gradient_of("positions.weight", total, rows * hidden, dtype, accumulate)
    products = autocast_linear.backward(_patches(vision, s), s, accumulate, wide=False)
    return (*launches, *(one for one in products if not one.operator.name.endswith(".dgrad")))


def _patches(vision: Vision, s: Shard) -> Linear:
    """The product of a patch's pixels."""
    return Linear("patches", s.hidden, vision.patch_values, vision.patch_bias)


def layer_called(launches: Iterable[Launch], vision: Vision, images: Images, s: Shard) -> Iterator[Launch]:
    """A tower layer's launches as its code calls them."""
    if vision.turned:
        yield from _turned(launches, s)
    elif not vision.one_by_one or s.implementation.attention_backend in attention_kernel.TAKES_WINDOWS[:2]:
        yield from launches
    else:
        yield from _one_by_one(launches, images, s)


def _one_by_one(launches: Iterable[Launch], images: Images, s: Shard) -> Iterator[Launch]:
    """Attention of one image or window after the other, and what joins their results."""
    values, dtype = s.tokens * s.attention_width, s.dtype
    for one in launches:
        if not isinstance(one.operator, Attention):
            yield one
            continue
        forward = one.operator.direction == "forward"
        ending = (RECORDED if images.trains_tower else CALLED) if forward else UNDONE
        if forward:
            yield streaming("fill", "attention.asked", 1, reads=0, late_s=ASKED * s.implementation.asked_launch_s)
        each = replace(one.operator, batch=1, name=f"{one.operator.name}{ending}")
        yield replace(one, operator=each, repeat=one.operator.batch)
        parts = ("result",) if forward else ("query.grad", "key.grad", "value.grad")
        yield from (streaming("cat", f"attention.{part}.cat", values, dtype=dtype) for part in parts)


def _turned(launches: Iterable[Launch], s: Shard) -> Iterator[Launch]:
    """Additions to a stream whose values lie far apart, and copies of it for norms and their gradients."""
    values, dtype = s.tokens * s.hidden, s.dtype
    norms = tuple(f"{norm}{way}" for norm in s.config.norms for way in ("", ".grad"))
    for one in launches:
        name = one.operator.name
        if name in norms:
            yield one_by_one("copy", f"{name}.copy", values, FAR, dtype=dtype)
        far = one_by_one("add", name, values, FAR, reads=2, dtype=dtype) if name.startswith("residual") else one
        yield far


def asked(vision: Vision, run: Implementation) -> Launch:
    """What the GPU waits for between tower and text model."""
    launches = COUNTS + MASKS * vision.blocks + POSITIONS * vision.one_by_one
    return streaming("fill", "images.asked", 1, reads=0, late_s=launches * run.asked_launch_s)


def projected_forward(vision: Vision, s: Shard, hidden: int, tokens: int) -> tuple[Launch, ...]:
    """From the last layer's result to rows of the text model, and these among its ``tokens``."""
    after = pytorch_norm.forward("norm", s) if vision.norm_after else ()
    each = tuple(launch for index in range(vision.own_projectors) for launch in _projector_forward(vision, s, index))
    return (*after, *each, *_put(vision, s, hidden, tokens))


def projected_backward(
    vision: Vision, s: Shard, images: Images, hidden: int, tokens: int, *, accumulate: bool
) -> tuple[Launch, ...]:
    """Gradient of :func:`projected_forward`, down to the last layer's result where the tower is trained."""
    if not (images.trains_tower or images.trains_projector):
        return ()
    launches = [*_taken(vision, s, hidden, tokens)]
    for index in reversed(range(vision.own_projectors)):
        launches += _projector_backward(vision, s, images, index, accumulate)
    if vision.norm_after and images.trains_tower and not vision.unread:
        launches += chain(*pytorch_norm.backward("norm", s, accumulate))
    return tuple(launches)


def _put(vision: Vision, s: Shard, hidden: int, tokens: int) -> tuple[Launch, ...]:
    """Rows put in the places of tokens; those of further projectors added to the stream behind a layer each."""
    dtype, size, values = s.dtype, 2.0, float(tokens * hidden)
    rows = _projected(vision, s).tokens
    first = (
        streaming("unary", "images.clone", values, dtype=dtype),
        streaming("unary", "images.put", values, reads=SCATTERED / size, writes=1.0, dtype=dtype),
    )
    deeper = (
        row_wise("embedding", "images.deep.take", rows, hidden, dtype=dtype),
        streaming("add", "images.deep.add", rows * hidden, reads=2, dtype=dtype),
        streaming("unary", "images.deep.clone", values, dtype=dtype),
        row_wise("embedding", "images.deep.put", rows, hidden, dtype=dtype),
    )
    return (*first, *deeper * vision.deep)


def _taken(vision: Vision, s: Shard, hidden: int, tokens: int) -> tuple[Launch, ...]:
    """Gradients of rows among those of all tokens, which take none from there."""
    dtype, values = s.dtype, float(tokens * hidden)
    first = (
        streaming("unary", "images.grad.fill", values, reads=1.5, dtype=dtype),
        streaming("unary", "images.grad.take", values, reads=SCATTERED / 2.0, writes=0.5, dtype=dtype),
    )
    return first * vision.own_projectors


def _projected(vision: Vision, s: Shard) -> Shard:
    """Sizes of the projector: as many rows as images have tokens in the text model."""
    patches = s.batch * (s.sequence - vision.class_token)
    return replace(s, tokens=patches // vision.merge**2, norm_tokens=patches // vision.merge**2)


def _normed(vision: Vision, s: Shard) -> Shard:
    """Sizes of the projector's norm, which Gemma's has behind its averages and Qwen's in front of its products."""
    of = vision.projector
    formula = "shifted" if of.pooled else "rounded"
    config = replace(s.config, norm=of.norm, norm_bias=of.norm == "layernorm", norm_formula=formula)
    return replace(_projected(vision, s) if of.pooled else s, config=config)


def _projector_forward(vision: Vision, s: Shard, index: int) -> tuple[Launch, ...]:
    of, name, rows = vision.projector, _name(index), _projected(vision, s)
    launches: list[Launch] = []
    if of.pooled:
        values = s.tokens * s.hidden
        launches.append(streaming("copy", f"{name}.turn", values, dtype=s.dtype))
        launches.append(streaming("reduce", f"{name}.pool", values, writes=vision.merge**-2, dtype=s.dtype))
    if of.norm:
        launches += pytorch_norm.forward(f"{name}.norm", _normed(vision, s))
    for product, outputs, inputs in of.products:
        layer = Linear(f"{name}.{product}", outputs, inputs, of.bias)
        launches += autocast_linear.forward(layer, rows, wide=product == "join" and pytorch_norm.gives_fp32(s))
        if product == "join":
            launches.append(streaming("gelu", f"{name}.gelu", rows.tokens * outputs, dtype=s.dtype))
    if vision.window:
        values = rows.tokens * of.outputs
        launches.append(streaming("embedding", f"{name}.order", values, dtype=s.dtype, rows=rows.tokens))
    return tuple(launches)


def _projector_backward(vision: Vision, s: Shard, images: Images, index: int, accumulate: bool) -> tuple[Launch, ...]:
    of, name, rows, dtype = vision.projector, _name(index), _projected(vision, s), s.dtype
    launches: list[Launch] = []
    first = of.products[0][0]
    for product, outputs, inputs in reversed(of.products):
        layer = Linear(f"{name}.{product}", outputs, inputs, of.bias)
        products = autocast_linear.backward(
            layer, rows, accumulate, wide=product == "join" and pytorch_norm.gives_fp32(s)
        )
        stops = product == first and not of.norm and not images.trains_tower
        launches += (one for one in products if not (stops and one.operator.name.endswith(".dgrad")))
        if product != first:
            values = rows.tokens * inputs
            launches.append(streaming("gelu_backward", f"{name}.gelu.grad", values, reads=2, dtype=dtype))
    if of.norm:
        launches += chain(*pytorch_norm.backward(f"{name}.norm", _normed(vision, s), accumulate))
    if of.pooled and images.trains_tower:
        values = s.tokens * s.hidden
        launches.append(streaming("unary", f"{name}.pool.grad", values, reads=vision.merge**-2, dtype=dtype))
        launches.append(streaming("copy", f"{name}.grad.turn", values, dtype=dtype))
    return tuple(launches) if images.trains_projector else frozen.without_weight_gradients(launches)


def _name(index: int) -> str:
    return "projector" if index == 0 else f"projector.{index}"
