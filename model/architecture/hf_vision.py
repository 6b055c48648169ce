"""Vision towers and projectors as Hugging Face's ``config.json`` files have them.

Sizes that a file leaves out are defaults of transformers 5.17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.architecture.hf_reader import Reader
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.vision import Projector, Vision

#: Keys of the objects that are read here.
CONFIG, KIND = "vision_config", "vision_config.model_type"
#: Activations of towers.
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu", "quick_gelu": "quick_gelu"}
_SIGLIP = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_IMAGES = {"siglip_vision_model": {"image_size": 224, "patch_size": 16}, "clip_vision_model": {"patch_size": 32}}
_QWEN = {"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_heads": 16}
_QWEN2_5 = {**_QWEN, "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "window_size": 112}
_QWEN3 = {
    **_QWEN,
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 16,
    "num_position_embeddings": 2304,
}


def read_vision(data: Mapping[str, Any], family: str, hidden: int, file: str) -> Vision | None:
    """The vision tower and projector of a file, ``None`` where it has none that is known.

    Parameters
    ----------
    family
        Of :data:`VISIONS`; others have none.
    hidden
        Width of the text model.

    Raises
    ------
    InputError
        A missing key, or one of a wrong type; names it.
    """
    part = data.get(CONFIG)
    if family not in VISIONS or part is None:
        return None
    if not isinstance(part, Mapping):
        raise InputError(f"must be an object, not {part!r}", file=file, key=CONFIG, remedy="Correct it.")
    given = {key: value for key, value in part.items() if value is not None}
    return VISIONS[family](Reader(data, file), given, hidden)


def _qwen2_5_vl(reader: Reader, part: Mapping[str, Any], hidden: int) -> Vision:
    """Qwen2.5-VL's: layers of Llama's kind, all but a few in windows, and a projector that joins patches."""
    of = _part(reader, part, _QWEN2_5)
    layers, patch, window = of.count("depth"), of.count("patch_size"), of.count("window_size")
    whole = of.places("fullatt_block_indexes", layers) or frozenset(range(7, layers, 8))
    tower = _tower(
        reader,
        of,
        layers=layers,
        heads=of.count("num_heads"),
        gated_mlp=True,
        mlp_bias=True,
        joint_attention=True,
        paired_rotary=True,
        sliding_window=(window // patch) ** 2,
        window_pattern=tuple(layer not in whole for layer in range(layers)),
        chunked=True,
    )
    projector = _merger(of, tower.hidden, hidden, "rmsnorm")
    return Vision(tower, patch, projector, patch_bias=False, window=window, **_of_any_size(of))


def _qwen3_vl(reader: Reader, part: Mapping[str, Any], hidden: int) -> Vision:
    """Qwen3-VL's: layers with layer norms, a table of positions beside rotation, and further projectors."""
    of = _part(reader, part, _QWEN3)
    layers = of.count("depth")
    tower = _layer_norms(
        reader, of, layers=layers, heads=of.count("num_heads"), joint_attention=True, paired_rotary=True, rotary=True
    )
    deep = of.places("deepstack_visual_indexes", layers) if "deepstack_visual_indexes" in of.data else (8, 16, 24)
    return Vision(
        tower,
        of.count("patch_size"),
        _merger(of, tower.hidden, hidden, "layernorm"),
        positions=of.count("num_position_embeddings"),
        interpolated=True,
        deep=len(deep),
        **_of_any_size(of),
    )


def _of_any_size(of: Reader) -> dict[str, Any]:
    merge = of.count("spatial_merge_size")
    return {"frames": of.count("temporal_patch_size"), "merge": merge, "one_by_one": True}


def _gemma3(reader: Reader, part: Mapping[str, Any], hidden: int) -> Vision:
    """Gemma 3's: SigLIP, whose patches are averaged to as many tokens as the file says."""
    tower, of = _siglip(reader, part)
    side, tokens = of.count("image_size") // of.count("patch_size"), reader.count("mm_tokens_per_image", 256)
    projector = Projector(tower.hidden, 0, hidden, bias=False, norm="rmsnorm", pooled=True)
    return Vision(
        tower, projector=projector, merge=side // round(tokens**0.5), norm_after=True, blocks=True, **_squares(of, side)
    )


def _llava(reader: Reader, part: Mapping[str, Any], hidden: int) -> Vision:
    """LLaVA's: CLIP or SigLIP, of which one layer's results are read, and two products."""
    tower, of = _siglip(reader, part)
    read = reader.data.get("vision_feature_layer", -2)
    if isinstance(read, bool) or not isinstance(read, int) or not -tower.layers <= read < 0:
        problem = f"{read!r} is not one layer counted from the last, -1"
        remedy = "Give one; results of several layers side by side are not known."
        raise reader.error("vision_feature_layer", problem, remedy)
    clip = of.data["model_type"] == "clip_vision_model"
    return Vision(
        tower,
        projector=Projector(tower.hidden, hidden, hidden, bias=reader.flag("multimodal_projector_bias", True)),
        unread=-1 - read,
        class_token=clip,
        norm_before=clip,
        norm_after=True,
        **_squares(of, of.count("image_size") // of.count("patch_size")),
    )


def _squares(of: Reader, side: int) -> dict[str, Any]:
    """Images of one size, and a row of the table of positions for each of their patches."""
    patch = of.count("patch_size")
    bias = of.data["model_type"] != "clip_vision_model"
    size = of.count("image_size")
    return {"patch": patch, "image_size": size, "positions": side**2, "patch_bias": bias, "turned": bias}


def _siglip(reader: Reader, part: Mapping[str, Any]) -> tuple[ModelConfig, Reader]:
    kind = part.get("model_type", "clip_vision_model" if reader.data.get("model_type") == "llava" else "")
    kind = kind or "siglip_vision_model"
    if kind not in _IMAGES:
        raise UnknownNameError("vision tower", str(kind), _IMAGES, file=reader.file, key=KIND)
    act = "quick_gelu" if kind == "clip_vision_model" else "gelu_pytorch_tanh"
    defaults = {**_SIGLIP, "image_size": 224, **_IMAGES[kind], "hidden_act": act}
    of = _part(reader, {**part, "model_type": kind}, defaults)
    layers, heads = of.count("num_hidden_layers"), of.count("num_attention_heads")
    return _layer_norms(reader, of, layers=layers, heads=heads), of


def _layer_norms(reader: Reader, of: Reader, **form: Any) -> ModelConfig:
    """A tower whose layers have layer norms and an MLP without a gate, and biases everywhere."""
    form = {"rotary": False, **form}
    return _tower(
        reader, of, norm="layernorm", norm_bias=True, output_bias=True, mlp_bias=True, gated_mlp=False, **form
    )


def _tower(reader: Reader, of: Reader, **form: Any) -> ModelConfig:
    hidden, heads = of.count("hidden_size"), form["heads"]
    word = of.data.get("hidden_act", "gelu_pytorch_tanh" if not form["gated_mlp"] else "silu")
    if word not in _ACTIVATIONS:
        raise UnknownNameError("activation", str(word), _ACTIVATIONS, file=reader.file, key=f"{CONFIG}.hidden_act")
    return ModelConfig(
        name="vision tower",
        hidden=hidden,
        kv_heads=heads,
        head_dim=of.divide(hidden, heads, "num_heads"),
        ffn=of.count("intermediate_size"),
        vocab=0,
        activation=_ACTIVATIONS[word],
        qkv_bias=True,
        output_bias=form.pop("output_bias", True),
        causal=False,
        **form,
    )


def _merger(of: Reader, width: int, hidden: int, norm: str) -> Projector:
    joined = width * of.count("spatial_merge_size") ** 2
    return Projector(joined, joined, of.count("out_hidden_size", hidden), norm=norm)


def _part(reader: Reader, part: Mapping[str, Any], defaults: Mapping[str, Any]) -> Reader:
    return Reader({**defaults, **part}, reader.file, f"{CONFIG}.")


#: What reads the vision part of models of a type.
VISIONS: Mapping[str, Callable[[Reader, Mapping[str, Any], int], Vision]] = {
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "gemma3": _gemma3,
    "llava": _llava,
}
