"""Vision towers: their files, their parameters, what a step launches of them, and what they keep."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.architecture.hf import load_model, parse_config
from joulecast.model.architecture.model_flops import image_flops
from joulecast.model.architecture.vision import Images, Vision
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import shard
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.operators import Attention, Gemm
from joulecast.model.memory.activations import layer_bytes
from joulecast.model.memory.vision_kept import kept_bytes
from joulecast.model.training.parameters import parameters_of_stage
from joulecast.model.training.vision_stack import TowerPass, images_backward, images_forward
from joulecast.simulator.instructions.tables import kernels_of

TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500,
}  # fmt: skip


def vision_of(name: str) -> Vision:
    found = load_model(name).vision
    assert found is not None
    return found


def images_of(name: str, count: int = 1, side: int = 0, *, tower: bool = False, projector: bool = False) -> Images:
    vision = vision_of(name)
    patches = (side or vision.image_size) // vision.patch
    return Images(count, patches, patches, trains_tower=tower, trains_projector=projector)


def run_of(images: Images, **options: Any) -> Implementation:
    return Implementation(modules="transformers", images=images, added_share=0.0, **options)


def names(found: TowerPass) -> Counter[str]:
    counted: Counter[str] = Counter()
    for one in found.launches:
        counted[one.operator.name] += one.repeat
    return counted


@pytest.mark.parametrize(
    ("name", "text", "tower", "projector"),
    [
        # Counted from models that transformers 5.17 makes of these files.
        ("qwen2.5-vl-3b", 3_085_938_688, 631_975_680, 36_708_608),
        ("qwen3-vl-4b", 4_022_468_096, 306_242_560, 109_105_152),
        ("llava-1.5-7b", 6_738_939_904, 303_507_456, 20_979_712),
        # Without the pooling head, as the file says (vision_use_head).
        ("gemma-3-4b", 3_880_263_168, 416_866_032, 2_950_272),
    ],
)
def test_parameters_are_those_of_transformers(name: str, text: int, tower: int, projector: int) -> None:
    model, vision = load_model(name), vision_of(name)
    assert (model.parameters, vision.tower_parameters, vision.projector_parameters) == (text, tower, projector)
    side = 0 if vision.image_size else 448
    run = run_of(images_of(name, side=side, tower=True, projector=True))
    tensors = parameters_of_stage(model, run, 0, first=True, last=False)
    seeing = [one for one in tensors if one.name.startswith("tower.")]
    assert sum(one.elements for one in seeing) == tower + projector
    unread = vision.unread * vision.tower.layer_parameters()
    assert sum(one.elements for one in seeing if one.frozen) == unread


@pytest.mark.parametrize(
    ("name", "side", "tokens"),
    [("qwen2.5-vl-3b", 756, 729), ("qwen3-vl-4b", 768, 576), ("llava-1.5-7b", 336, 576), ("gemma-3-4b", 896, 256)],
)
def test_images_take_as_many_tokens_as_processors_put_in(name: str, side: int, tokens: int) -> None:
    vision = vision_of(name)
    assert vision.tokens(side // vision.patch, side // vision.patch) == tokens


def test_an_older_file_has_the_text_model_beside_the_tower() -> None:
    both: dict[str, Any] = {
        "model_type": "qwen2_5_vl",
        "vision_config": {"hidden_size": 32, "depth": 4, "num_heads": 2},
    }
    flat = parse_config({**both, **TEXT, "tie_word_embeddings": True}, name="m", file="f")
    apart = parse_config({**both, "text_config": TEXT, "tie_word_embeddings": True}, name="m", file="f")
    assert flat == apart and flat.tied_embeddings and flat.vision is not None and flat.vision.tower.layers == 4


def test_a_file_of_llava_leaves_out_what_is_a_llamas() -> None:
    text = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096}
    sizes = {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "patch_size": 14}
    tower = {"model_type": "clip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 24, **sizes}
    found = parse_config({"model_type": "llava", "text_config": text, "vision_config": tower}, name="m", file="f")
    known = load_model("llava-1.5-7b")
    assert (found.parameters, found.vision) == (known.parameters, known.vision)
    with pytest.raises(InputError, match="missing num_hidden_layers") as caught:
        parse_config({"model_type": "llava", "text_config": {"model_type": "mistral"}}, name="m", file="f")
    assert caught.value.key == "text_config.num_hidden_layers"


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"vision_config": {"model_type": "pixtral"}}, UnknownNameError, "pixtral"),
        ({"vision_feature_layer": [-2, -1]}, InputError, "is not one layer counted from the last"),
        ({"vision_config": 3}, InputError, "must be an object"),
        ({"vision_config": {"hidden_act": "mish"}}, UnknownNameError, "mish"),
        ({"vision_config": {"hidden_size": 30, "num_attention_heads": 4}}, InputError, "not divisible"),
    ],
)
def test_what_a_file_says_wrongly(changed: dict[str, Any], error: type[InputError], message: str) -> None:
    keys = {"model_type": "llava", "text_config": TEXT, "vision_config": {}, **changed}
    with pytest.raises(error, match=message):
        parse_config(keys, name="m", file="f")


def test_windows_are_called_one_by_one_and_whole_layers_by_image() -> None:
    """Two images of 8 x 8 windows, and one layer in eight sees all of an image."""
    run = run_of(images_of("qwen2.5-vl-3b", 2, 896))
    forward = images_forward(load_model("qwen2.5-vl-3b"), run, 1, 4096).launches
    calls = [one for one in forward if isinstance(one.operator, Attention)]
    assert Counter(one.repeat for one in calls) == {2 * 64: 28, 2: 4}
    assert {one.operator.sequence for one in calls if isinstance(one.operator, Attention)} == {64, 4096}
    assert not any(one.operator.causal for one in calls if isinstance(one.operator, Attention))
    package = replace(run, attention_backend="flash-attn-2")
    together = images_forward(load_model("qwen2.5-vl-3b"), package, 1, 4096)
    assert {one.repeat for one in together.launches if isinstance(one.operator, Attention)} == {1}
    assert not names(together)["tower.attention.asked"]


def test_a_frozen_tower_has_no_backward_and_keeps_nothing() -> None:
    model = load_model("gemma-3-4b")
    frozen, projected, trained = (
        run_of(images_of("gemma-3-4b", tower=tower, projector=projector))
        for tower, projector in ((False, False), (False, True), (True, True))
    )
    assert images_backward(model, frozen, 1, 2048).launches == () and kept_bytes(model, frozen, 1, 2048) == 0.0
    of_projector = names(images_backward(model, projected, 1, 2048))
    assert of_projector["tower.projector.project.wgrad"] == 1 and not of_projector["tower.attention.backward"]
    assert not of_projector["tower.projector.project.dgrad"] + of_projector["tower.up.wgrad"] - 1
    assert names(images_backward(model, trained, 1, 2048))["tower.attention.backward"] == 27
    # Of 4,096 patches and 27 layers: queries, keys, values, result, norms and both MLP tensors in two bytes.
    per_token = 2 * (4 * 1152 + 4 * 1152 + 2 * 4304)
    assert kept_bytes(model, trained, 1, 2048) == pytest.approx(27 * 4096 * per_token, rel=0.02)


def test_what_projectors_and_patches_keep_worked_out() -> None:
    """The scatter's mask, two products' inputs and that of the activation between; a tower's pixels and last norm."""
    llava, sees = load_model("llava-1.5-7b"), {"projector": True}
    mask, rows = 2 * 1024 * 4096, 2 * 576
    projected = kept_bytes(llava, run_of(images_of("llava-1.5-7b", **sees)), 2, 1024)
    assert projected == mask + rows * 2 * (1024 + 2 * 4096)
    gemma, own = load_model("gemma-3-4b"), images_of("gemma-3-4b", tower=True)
    tower = shard(vision_of("gemma-3-4b").tower, run_of(own), 1, 4096)
    # 14 x 14 pixels of three colours a patch, the inputs of the tower's norm and of the projector's, and its rows.
    beside = 2048 * 2560 + 256 * 2 * 1152 + 4096 * 2 * (588 + 1152 + 1152)
    assert kept_bytes(gemma, run_of(own), 1, 2048) == pytest.approx(27 * layer_bytes(tower) + beside, rel=1e-9)


def test_a_tower_that_trains_alone_takes_no_gradient_of_the_projector() -> None:
    run = run_of(images_of("llava-1.5-7b", tower=True))
    backward = names(images_backward(load_model("llava-1.5-7b"), run, 1, 1024))
    assert backward["tower.projector.join.dgrad"] == 1 and not backward["tower.projector.join.wgrad"]
    assert backward["tower.up.wgrad"] == 23  # nothing reads the last of 24 layers


def test_siglips_stream_is_copied_for_every_norm() -> None:
    counted = names(images_forward(load_model("gemma-3-4b"), run_of(images_of("gemma-3-4b")), 1, 2048))
    assert counted["tower.norm1.copy"] == counted["tower.norm2.copy"] == 27
    clip = names(images_forward(load_model("llava-1.5-7b"), run_of(images_of("llava-1.5-7b")), 1, 2048))
    assert not clip["tower.norm1.copy"] and clip["tower.activation.sigmoid"] == 24


def test_further_projectors_run_and_are_added() -> None:
    """Qwen3-VL's three, whose results are added behind the first layers."""
    run = run_of(images_of("qwen3-vl-4b", side=512, projector=True))
    counted = names(images_forward(load_model("qwen3-vl-4b"), run, 1, 2048))
    assert sum(counted[f"tower.projector{end}.join"] for end in ("", ".1", ".2", ".3")) == 4
    assert counted["tower.images.deep.put"] == 3
    assert names(images_backward(load_model("qwen3-vl-4b"), run, 1, 2048))["tower.projector.3.join.wgrad"] == 1


def test_gradients_that_launches_complete_are_those_of_parameters() -> None:
    for name, side in (("qwen2.5-vl-3b", 448), ("qwen3-vl-4b", 448), ("gemma-3-4b", 0), ("llava-1.5-7b", 0)):
        model, run = load_model(name), run_of(images_of(name, side=side, tower=True, projector=True))
        tensors = parameters_of_stage(model, run, 0, first=True, last=False)
        known = {".".join(part for part in one.name.split(".") if not part.isdigit()) for one in tensors}
        done = {one.completes for one in images_backward(model, run, 1, 2048).launches if one.completes}
        assert {".".join(part for part in one.split(".") if not part.isdigit()) for one in done} <= known
        assert "tower.query.weight" in done or "tower.qkv.weight" in done


def test_operations_of_images_worked_out() -> None:
    vision, images = vision_of("gemma-3-4b"), images_of("gemma-3-4b")
    layer = 4 * 1152**2 + 2 * 1152 * 4304
    forward = 4096 * (2 * (27 * layer + 1152 * 588) + 4 * 27 * 4096 * 1152) + 2 * 256 * 1152 * 2560
    assert image_flops(vision, images, 3.0) == pytest.approx(3 * forward)
    trained = replace(images, trains_tower=True, trains_projector=True)
    assert image_flops(vision, trained, 1.0) == pytest.approx(3 * forward)
    products = [
        one
        for one in images_forward(load_model("gemma-3-4b"), run_of(images), 1, 2048).launches
        if isinstance(one.operator, Gemm)
    ]
    flops = sum(2.0 * one.operator.m * one.operator.n * one.operator.k for one in products)  # type: ignore[union-attr]
    assert flops == pytest.approx(forward - 4096 * 4 * 27 * 4096 * 1152)


def test_an_image_is_seen_in_full_both_ways() -> None:
    model = load_model("gemma-3-4b")
    from joulecast.model.transformer import masked_attention

    seen = shard(model.kinds[-1], run_of(images_of("gemma-3-4b")), 1, 512)
    text = shard(model.kinds[-1], Implementation(modules="transformers"), 1, 512)
    assert masked_attention.masked(seen) and not masked_attention.masked(text)


@pytest.mark.parametrize(
    ("name", "measured_us"),
    [("norm1.copy", 113.0), ("residual1", 111.5), ("attention.forward", 605.0), ("attention.backward", 1850.0)],
)
def test_siglips_kernels_take_what_they_were_measured_to_on_an_h100(name: str, measured_us: float) -> None:
    """Three images of 4,096 patches; attention has heads of 72, and its backward three kernels."""
    run = run_of(images_of("gemma-3-4b", 3, tower=True))
    passes = (images_forward, images_backward)
    launches = [one for of in passes for one in of(load_model("gemma-3-4b"), run, 1, 2048).launches]
    operator = next(one.operator for one in launches if one.operator.name == f"tower.{name}")
    gpu = gpu_model(load_gpu("h100-sxm"))
    times = kernels_of([[[Launch(operator)]]], np.array([1965.0]), gpu).times.time_s
    assert 1e6 * times[0, 0] == pytest.approx(measured_us, rel=0.05)
