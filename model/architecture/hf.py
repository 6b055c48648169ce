"""The catalogue of models, and Hugging Face's ``config.json`` files, read into :class:`ModelConfig`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from importlib import resources
from os.path import isdir  # of a name that no file can have, too: pathlib raises
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, NotYetError, UnknownNameError, listed, nearest
from joulecast.files import parse_json, read_text
from joulecast.model.architecture.hf_experts import read_latent_attention
from joulecast.model.architecture.hf_families import FAMILIES
from joulecast.model.architecture.hf_family import Family
from joulecast.model.architecture.hf_reader import Reader
from joulecast.model.architecture.hf_refused import FOREIGN, OWN, REFUSED
from joulecast.model.architecture.hf_state_space import (
    read_delta_net,
    read_hybrid_experts,
    read_mixers,
    read_state_space,
)
from joulecast.model.architecture.hf_vision import read_vision
from joulecast.model.architecture.hf_windows import read_rotary_pattern, read_windows
from joulecast.model.architecture.layer_form import LayerForm
from joulecast.model.architecture.model_config import ModelConfig

#: Key of the number of modules that predict further tokens.
NEXTN = "num_nextn_predict_layers"
#: Other spellings of catalogue names.
ALIASES = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "mistral-7b-v0.1": "mistral-7b",
    "mistral-7b-instruct-v0.2": "mistral-7b-v0.2",
    "mistral-7b-instruct-v0.3": "mistral-7b-v0.3",
    "mistral-nemo": "mistral-nemo-12b",
    "qwen2-0.5b": "qwen2.5-0.5b",
    "qwen2-1.5b": "qwen2.5-1.5b",
    "qwen2-7b": "qwen2.5-7b",
    "qwen2-72b": "qwen2.5-72b",
    "phi-3-mini-4k": "phi-3-mini",
    "tinyllama-1.1b-chat-v1.0": "tinyllama-1.1b",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-r1": "deepseek-v3",
    "kimi-k2-base": "kimi-k2",
    "nemotron-h-8b-base-8k": "nemotron-h-8b",
    "nemotron-h-56b-base-8k": "nemotron-h-56b",
    "nvidia-nemotron-3-nano-30b-a3b": "nemotron-3-nano-30b-a3b",
    "nvidia-nemotron-3-super-120b-a12b": "nemotron-3-super-120b-a12b",
    "nvidia-nemotron-3-ultra-550b-a55b": "nemotron-3-ultra-550b-a55b",
    "exaone-4.0-1.2b": "exaone-4-1.2b",
    "exaone-4.0-32b": "exaone-4-32b",
    "ling-mini-base-2.0": "ling-mini-2.0",
    "ring-mini-2.0": "ling-mini-2.0",
    "ling-flash-base-2.0": "ling-flash-2.0",
    "ring-flash-2.0": "ling-flash-2.0",
    "gpt-175b": "gpt3-175b",
    "gpt-3-175b": "gpt3-175b",
}


def model_names() -> tuple[str, ...]:
    """Names of the catalogue's models, sorted; aliases are left out."""
    folder = resources.files("joulecast.model").joinpath("catalogue_data", "models")
    return tuple(sorted(f.name[: -len(".json")] for f in folder.iterdir() if f.name.endswith(".json")))


def load_model(name_or_path: str | Path) -> ModelConfig:
    """Read a model by catalogue name or from a Hugging Face ``config.json`` file.

    Parameters
    ----------
    name_or_path
        A name of :func:`model_names`, an alias of it, or the path of a file or of a folder with a ``config.json``.

    Raises
    ------
    UnknownNameError
        If it is neither a name of the catalogue nor an existing path.
    InputError
        If the file cannot be used; it names the file and the key.
    NotYetError
        If some of its layers are of a form that is not implemented.
    """
    file = config_file(name_or_path)
    return _load_name(str(name_or_path).lower()) if file is None else _load_file(file, str(name_or_path))


def config_file(name_or_path: str | Path) -> Path | None:
    """The ``config.json`` that a path means; ``None`` for a name of the catalogue."""
    text = str(name_or_path)
    path = Path(text)
    if isdir(path):
        return path / "config.json"
    return path if path.suffix == ".json" or "/" in text else None


@lru_cache(maxsize=64)
def _load_name(name: str) -> ModelConfig:
    name = ALIASES.get(name, name)
    if name not in model_names():
        raise UnknownNameError("model", name, [*model_names(), *ALIASES])
    file = resources.files("joulecast.model").joinpath("catalogue_data", "models", f"{name}.json")
    return parse_config(json.loads(file.read_text(encoding="utf-8")), name=name, file=f"{name}.json")


def hub_remedy(name: str) -> str | None:
    """What to write in place of a name such as ``Qwen/Qwen3-8B`` on Hugging Face's hub; ``None`` for any other name."""
    owner, _, model = name.partition("/")
    if not owner or not model or owner.startswith((".", "~")) or "/" in model or model.endswith(".json"):
        return None
    known, word = [*model_names(), *ALIASES], model.lower()
    near = [word] if word in known else nearest(word, known)
    if not near:
        return None
    return f"The catalogue has {' and '.join(map(repr, near))}; of any other model give the path of its config.json."


def _load_file(file: Path, given: str) -> ModelConfig:
    remedy = hub_remedy(str(Path(given))) or "Give a config.json or a name of `joulecast models`."
    text = read_text(file, "JSON", absent="no such model file", missing=remedy)
    data = parse_json(text, str(file), remedy="Repair the file.")
    name = file.parent.name if file.stem == "config" and file.parent.name else file.stem
    return parse_config(data, name=name, file=str(file))


def parse_config(data: object, *, name: str, file: str) -> ModelConfig:
    """Turn the content of a ``config.json`` into a :class:`ModelConfig`.

    Raises
    ------
    InputError
        For an unknown ``model_type``, a missing key, a wrong type or sizes that do not fit together.
    """
    if not isinstance(data, Mapping):
        remedy = "Give a config.json, as Hugging Face's hub has one for each model."
        raise InputError("a model configuration must be a JSON object", file=file, remedy=remedy)
    kind = _kind(data, file)
    text_part, whole, whole_kind = FAMILIES[kind].text_of != "", data, kind
    if text_part:
        data, kind = _text_config(data, file, FAMILIES[kind])
    family = FAMILIES[kind]
    reader = Reader({**family.defaults, **family.adapt(data)}, file, "text_config." if "text_config" in whole else "")
    _refuse(reader, family)
    layers = reader.count(family.key("num_hidden_layers"))
    mixers = read_mixers(reader, family, layers)
    form, sizes = _form(reader, family), _sizes(reader, family)
    return ModelConfig(
        name=name,
        layers=layers,
        text_part=text_part,
        vision=read_vision(whole, whole_kind, sizes["hidden"], file),
        experts=read_hybrid_experts(reader, kind, family, layers, mixers),
        state_space=read_state_space(reader, family, mixers),
        delta_net=read_delta_net(reader, family, mixers),
        mixers=mixers,
        **form,
        **sizes,
        **_positions(reader, family, layers, form),
        nextn_layers=0 if data.get(NEXTN) in (None, 0) else reader.count(NEXTN),
    )


#: What a file may switch where a family has a key for it: of :class:`LayerForm`, and the field of :class:`Family` with
#: the key.
_SWITCHES = {
    "norm_bias": "norm_bias_key",
    "qkv_bias": "attention_bias_key",
    "mlp_bias": "mlp_bias_key",
    "qk_norm": "qk_norm_key",
    "scaled_queries": "scaled_key",
    "parallel_residual": "parallel_key",
    "alibi": "alibi_key",
}


def _form(reader: Reader, family: Family) -> dict[str, Any]:
    """What a family's code fixes of its layers, and what its file switches."""
    fixed = {f.name: getattr(family, f.name) for f in fields(LayerForm)}
    switched = {name: reader.flag(getattr(family, key), getattr(family, name)) for name, key in _SWITCHES.items()}
    output_key = family.attention_bias_key if family.output_follows else ""
    theta, rope_type, fraction, scaled = _rope(reader, family)
    return {
        **fixed,
        **switched,
        "output_bias": reader.flag(output_key, family.output_bias),
        "shared_norm": switched["parallel_residual"] and reader.flag("shared_norm", family.shared_norm),
        "tied_embeddings": reader.flag("tie_word_embeddings", family.tied_embeddings),
        "attention_softcap": reader.number("attn_logit_softcapping", 0.0) > 0.0,
        "logit_softcap": reader.number("final_logit_softcapping", 0.0) > 0.0,
        "activation": _activation(reader, family),
        "gelu_formula": _activation_word(reader, family) in FORMULAS,
        "rotary": family.rotary and not (family.alibi or switched["alibi"] or _positionless(reader, family)),
        "rotary_fraction": fraction,
        "scaled_rotary": scaled,
        "rope_theta": theta,
        "rope_type": rope_type,
    }


def _sizes(reader: Reader, family: Family) -> dict[str, Any]:
    """Widths of the model, and of latent attention, whose heads are as wide as keys and values in the mean."""
    hidden, heads, kv_heads, head_dim = _attention_sizes(reader, family)
    latent = read_latent_attention(reader) if family.latent else None
    return {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim if latent is None else (latent.key_dim + latent.value_dim) // 2,
        "ffn": reader.count(family.key("intermediate_size"), family.ffn_multiple * hidden or None),
        "vocab": reader.count("vocab_size"),
        "latent": latent,
    }


def _positions(reader: Reader, family: Family, layers: int, form: Mapping[str, Any]) -> dict[str, Any]:
    """How far the model sees: its table of positions, and which layers are local or have no rotary embedding."""
    untabled = form["rotary"] or form["alibi"] or _positionless(reader, family)
    positions = reader.count(family.key("max_position_embeddings"), 0 if untabled else None)
    window, pattern = read_windows(reader, family, layers)
    return {
        "rotary_pattern": read_rotary_pattern(reader, family, layers, window, pattern),
        "learned_positions": 0 if untabled else positions + family.extra_positions,
        "max_positions": positions,
        "sliding_window": window,
        "window_pattern": pattern,
    }


def _positionless(reader: Reader, family: Family) -> bool:
    """Whether no layer is told positions, as state spaces tell their order to the others."""
    asked = family.positions == "asked" and reader.data.get("position_embedding_type") != "rope"
    return family.positions == "none" or asked


def _kind(data: Mapping[str, object], file: str, prefix: str = "") -> str:
    """The ``model_type``, one of the known families."""
    kind, known = data.get("model_type"), sorted(FAMILIES)
    if not isinstance(kind, str):
        raise InputError("missing model_type", file=file, key=f"{prefix}model_type", remedy=listed(known))
    if kind in REFUSED:
        raise _not_described(f"models of type {kind!r} have {REFUSED[kind]}", file, f"{prefix}model_type")
    if kind not in FAMILIES:
        raise InputError(
            f"layers of model_type {kind!r} are not known",
            file=file,
            key=f"{prefix}model_type",
            remedy=f"{listed(known)} If its layers are those of a known one, write that one.",
        )
    return kind


def _not_described(what: str, file: str, key: str) -> NotYetError:
    remedy = "Use a model whose layers have attention, Mamba-2, Gated DeltaNet, an MLP or experts alone."
    return NotYetError(f"{what}, which is not implemented", file=file, key=key, remedy=remedy)


def _refuse(reader: Reader, family: Family) -> None:
    """What a family's code may do and is not known here."""
    own = OWN[family.state_space.mixer] if family.state_space is not None else ""
    for key, layers in FOREIGN.items():
        if reader.data.get(key) and layers != own:
            raise _not_described(f"a file with {key} is of a model that has {layers}", reader.file, reader.prefix + key)
    for key in family.refused:
        if reader.flag(key, False):
            raise NotYetError(
                "this is not implemented yet",
                file=reader.file,
                key=reader.prefix + key,
                remedy="Use a model whose file has it false or leaves it out.",
            )


def _text_config(data: Mapping[str, object], file: str, family: Family) -> tuple[Mapping[str, object], str]:
    """The text model of a file whose model sees more than text, and its type, which may go without saying.

    Older files of such models have its keys beside those of the rest; what the usual text model leaves out is the
    family's.
    """
    text = data.get("text_config")
    if text is None and "hidden_size" in data:
        text = {key: value for key, value in data.items() if key != "model_type"}
    if not isinstance(text, Mapping):
        raise InputError(
            "the file of a model that sees more than text has its text model apart",
            file=file,
            key="text_config",
            remedy="Add it as an object, or give the text model's own file.",
        )
    given = {key: value for key, value in text.items() if value is not None}
    given |= {key: data[key] for key in ("tie_word_embeddings",) if data.get(key) is not None}
    kind = _kind({"model_type": family.text_of, **given}, file, "text_config.")
    return ({**family.defaults, **given} if kind == family.text_of else given), kind


def _attention_sizes(reader: Reader, family: Family) -> tuple[int, int, int, int]:
    """Hidden size, heads, key/value heads and head size, checked against each other."""
    heads_key = family.key("num_attention_heads")
    hidden, heads = reader.count(family.key("hidden_size")), reader.count(heads_key)
    kv_heads = reader.count(family.key("num_key_value_heads"), heads)
    if heads % kv_heads:
        problem = f"{heads} attention heads are not divisible by {kv_heads} key/value heads"
        raise reader.error(family.key("num_key_value_heads"), problem, f"Choose a divisor of {heads_key}.")
    return hidden, heads, kv_heads, reader.count("head_dim", 0) or reader.divide(hidden, heads, heads_key)


def _rope(reader: Reader, family: Family) -> tuple[float, str, float, bool]:
    """Base, scaling kind, rotated share, and whether a number multiplies what is rotated.

    From ``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling``.
    """
    newer = reader.table("rope_parameters")
    scaling = newer or reader.table("rope_scaling")
    theta = reader.number("rope_theta", reader.number("rotary_emb_base", 10000.0))
    fraction = reader.number("partial_rotary_factor", reader.number("rotary_pct", family.rotary_fraction))
    if newer:
        nested = Reader(newer, reader.file, "rope_parameters.")
        theta = nested.number("rope_theta", theta)
        fraction = nested.number("partial_rotary_factor", fraction)
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    return theta, kind, fraction, kind == "yarn" and _concentrated(scaling)


def _concentrated(yarn: Mapping[str, Any]) -> bool:
    """Whether YaRN multiplies what it rotates: by 0.1·ln(factor) + 1, or a ratio of two such, which may be one.

    Source: Peng et al., YaRN, arXiv 2309.00071, section 3.4; ``mscale`` and ``mscale_all_dim`` of DeepSeek's files.
    """
    if yarn.get("mscale") and yarn.get("mscale_all_dim"):
        return bool(yarn["mscale"] != yarn["mscale_all_dim"])
    return Reader(yarn, "", "rope_scaling.").number("factor", 1.0) > 1.0


_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}


#: GELUs that transformers writes as formulas.
FORMULAS = ("gelu_new", "gelu_fast")


def _activation_word(reader: Reader, family: Family) -> object:
    written = reader.data.get("hidden_activation") or reader.data.get(family.key("hidden_act"))
    return written or family.activation


def _activation(reader: Reader, family: Family) -> str:
    key, value = family.key("hidden_act"), _activation_word(reader, family)
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise UnknownNameError("activation", str(value), _ACTIVATIONS, file=reader.file, key=key)
    return _ACTIVATIONS[value]
