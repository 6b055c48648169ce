"""The model of a job whose sizes are flags: one of the catalogue if it has that shape, else a table of its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model, model_names
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.simulator.job_files.draft import Draft, Setting, inline_shape

MODEL, VOCABULARY = "workload.model", "workload.model.vocab_size"
#: What a model's file and its code in transformers say and Megatron's kernels do not differ by.
_IMMATERIAL = (
    *("name", "gelu_formula", "joint_projections", "norm_formula", "own_code", "sliced_projections", "half_rotary"),
    *("wide_rotary", "paired_rotary", "joint_up", "rotary_fraction", "rope_theta", "rope_type", "max_positions"),
    *("text_part", "vision", "nextn_layers", "vocab", "layers"),
)


def put_model(draft: Draft, sizes: Mapping[str, Setting], vocabularies: tuple[int, ...]) -> None:
    """Name a job's model, or write its sizes.

    Parameters
    ----------
    draft
        The plan.
    sizes
        Keys of ``[workload.model]`` with what they were read from.
    vocabularies
        Rows of the embedding that the job may mean, as its tokenizer has them and padded; none: it does not say.
    """
    for key, setting in sizes.items():
        draft.put(f"{MODEL}.{key}", setting.value, setting.source, setting.line)
    try:
        shape = inline_shape({key: setting.value for key, setting in sizes.items()}, draft.file)
    except InputError as error:
        raise draft.placed(error) from None
    name = _named(shape, vocabularies)
    said = list(dict.fromkeys(setting.source for setting in sizes.values() if setting.line is not None))
    if name is not None:
        for key in sizes:
            del draft.settings[f"{MODEL}.{key}"]
        draft.put(MODEL, name, f"its shape: {said[0]} and {len(said) - 1} more", next(iter(sizes.values())).line)
        if shape.layers < load_model(name).layers:
            layers = sizes["num_hidden_layers"]
            draft.put("workload.layers", shape.layers, layers.source, layers.line)
        if not vocabularies:
            draft.warn(f"the vocabulary is taken from {name}, whose shape the flags have: the job does not say it")
        return
    if not vocabularies:
        draft.missing[VOCABULARY] = "the rows of the embedding, which only the tokenizer's file says"


def _named(shape: ModelConfig, vocabularies: tuple[int, ...]) -> str | None:
    """The name of the catalogue's model of this shape; layers may be fewer."""
    found = []
    for name in model_names():
        known = load_model(name)
        if vocabularies and known.vocab not in vocabularies:
            continue
        if known.layers >= shape.layers and _alike(known, shape):
            found.append((known.layers - shape.layers, name))
    return min(found)[1] if found else None


def _alike(known: ModelConfig, shape: ModelConfig) -> bool:
    fields: dict[str, Any] = {name: getattr(shape, name) for name in _IMMATERIAL}
    if known.experts is not None and shape.experts is not None:
        own = ("router", "shared_gate", "bias")
        fields["experts"] = replace(known.experts, **{name: getattr(shape.experts, name) for name in own})
        if not shape.dense_layers:  # no layer is of this width
            fields["ffn"] = shape.ffn
    if known.latent is not None:  # heads of keys and values follow from it
        fields["kv_heads"] = shape.kv_heads
    return replace(known, **fields) == shape
