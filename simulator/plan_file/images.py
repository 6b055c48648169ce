"""Images in the sequences of a plan: their sizes, and what of the part that sees them is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.errors import NotYetError
from joulecast.model.architecture.vision import Images
from joulecast.simulator.plan_file.parts import NEXT_TOKEN

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig
    from joulecast.model.architecture.vision import Vision
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.schema import PlanFile
    from joulecast.simulator.plan_file.schema_workload import ImagesTable
    from joulecast.simulator.plan_file.source import Source

KEY = "workload.images"
TOWER = f"{KEY}.freeze_vision_tower"
#: Pixels of a side where a tower takes any and the plan does not say: those of LLaMA-Factory's image_max_pixels.
USUAL_SIDE = 768


def read_images(parsed: PlanFile, model: ModelConfig, source: Source) -> Images | None:
    """Images of every sequence, ``None`` where the plan trains on text alone.

    Raises
    ------
    InputError
        A model that sees no images, a size that it does not take, or more tokens of images than a sequence has.
    """
    table = parsed.workload.images
    if table is None:
        return None
    vision = model.vision
    if vision is None:
        remedy = "Choose a model whose config.json has a vision_config that is known, or leave the table out."
        raise source.error(f"{model.name} sees no images", KEY, remedy=remedy)
    height, width = _size(table, vision, source)
    frozen = parsed.workload.lora is not None
    images = Images(
        table.per_sequence,
        height // vision.patch,
        width // vision.patch,
        trains_tower=not _given(table.freeze_vision_tower, frozen),
        trains_projector=not _given(table.freeze_multi_modal_projector, frozen),
    )
    tokens, length = image_tokens(model, images), parsed.workload.sequence_length
    if tokens > length:
        raise source.error(
            f"{images.per_sequence} images of {height} x {width} pixels take {tokens} tokens, a sequence has {length}",
            f"{KEY}.per_sequence",
            remedy="Raise sequence_length, which counts them, or use fewer or smaller images.",
        )
    return images


def _given(frozen: bool | None, default: bool) -> bool:
    return default if frozen is None else frozen


def _size(table: ImagesTable, vision: Vision, source: Source) -> tuple[int, int]:
    """Height and width as a tower sees them: its own size, or the nearest multiple of what becomes a token."""
    height, width = table.height, table.width
    own = vision.image_size
    if own:
        for name, given in (("height", height), ("width", width)):
            if given not in (None, own):
                what = f"the tower resizes every image to {own} x {own} pixels"
                raise source.error(what, f"{KEY}.{name}", remedy="Leave the key out.")
        return own, own
    step = vision.step

    def nearest(size: int | None) -> int:
        return max(1, round((size or USUAL_SIDE) / step)) * step

    return nearest(height), nearest(width)


def image_tokens(model: ModelConfig, images: Images) -> int:
    """Tokens of a sequence that are images'."""
    return 0 if model.vision is None else images.per_sequence * model.vision.tokens(images.rows, images.columns)


def check_images(plan: Plan, source: Source) -> None:
    """Vision towers are known in transformers' code, whole on each GPU and in a pipeline's first stage."""
    images, run, w = plan.workload.images, plan.implementation, plan.workload
    if images is None or w.model.vision is None:
        return
    trains = images.trains_tower or images.trains_projector
    loops = run.attention_backend == "unfused" and w.model.vision.window > 0
    in_part, small = plan.schedule.recompute not in ("none", "full"), w.lora is not None and bool(w.lora.base)
    sharded = plan.parallelism.fsdp and plan.pp > 1
    problems = (
        (run.modules != "transformers", "in other modules", 'Set it to "transformers"', "implementation.modules"),
        (plan.tp > 1 or plan.cp > 1, "split over GPUs", "Set tensor and context parallel sizes to 1", "parallelism"),
        (sharded, "in pipelines under FSDP", "Use distributed_optimizer, which is ZeRO-1", "parallelism.fsdp"),
        (run.compile, "in compiled modules", "Leave it out", "implementation.compile"),
        (plan.overlap.nanobatches > 1, "in nano-batches", "Use 1", "overlap.nanobatches"),
        (w.packed is not None, "in packed documents", "Leave it out", "workload.document_tokens"),
        (w.objective != NEXT_TOKEN, "beside other losses than of next tokens", "Leave it out", "workload.objective"),
        (loops, "in windows of separate kernels", 'Use "cudnn" or "flash-attn-2"', "implementation.attention_backend"),
        (trains and in_part, "recomputed in part", 'Set it to "full", or freeze the tower', "schedule.recompute"),
        (trains and w.lora is not None, "trained beside adapters", "Freeze tower and projector", TOWER),
        (small, "in 4 bits", "Leave it out", "workload.lora.base_precision"),
        (images.trains_tower and run.muon is not None, "stepped by Muon", "Freeze the tower", TOWER),
    )
    source.refuse(problems, what="images {} are not known", kind=NotYetError)


def image_assumptions(plan: Plan) -> tuple[str, ...]:
    """How many tokens of a sequence images are, what of the part that sees them is trained, and how it is called."""
    images, model = plan.workload.images, plan.workload.model
    if images is None or model.vision is None:
        return ()
    vision, side = model.vision, model.vision.patch
    count = "an image" if images.per_sequence == 1 else f"{images.per_sequence} images"
    sizes = f"{images.rows * side} x {images.columns * side} pixels"
    said = [
        f"every sequence has {count} of {sizes}, which are {image_tokens(model, images)} of its "
        f"{plan.workload.sequence_length} tokens; images of other sizes take other work",
        f"a vision tower of {vision.tower_parameters / 1e6:.0f} million parameters is {_is(images.trains_tower)}, "
        f"and a projector of {vision.projector_parameters / 1e6:.0f} million {_is(images.trains_projector)}",
    ]
    if vision.one_by_one and plan.implementation.attention_backend == "cudnn":
        calls = "image or window" if vision.window else "image"
        said.append(
            f"transformers calls PyTorch's attention for each {calls} alone, and waits for the GPU in every layer of "
            "the tower: with flash-attn-2 it does neither"
        )
    return tuple(said)


def _is(trained: bool) -> str:
    return "trained" if trained else "frozen"
