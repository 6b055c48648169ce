"""Mixers of hybrid models, and what their layers are made of, as Hugging Face's ``config.json`` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from joulecast.model.architecture.delta_net import DeltaNet
from joulecast.model.architecture.experts import Experts
from joulecast.model.architecture.hf_experts import read_experts, read_turns
from joulecast.model.architecture.hf_family import Family, StateSpaceKeys
from joulecast.model.architecture.hf_reader import Reader, shortest
from joulecast.model.architecture.state_space import StateSpace, expert_turns

#: Letters of Nemotron-H's ``hybrid_override_pattern``, which are also our mixers, and what ``layers_block_type`` calls
#: such layers in files of either age.
NAMES: Mapping[str, str] = {
    **dict.fromkeys(("mamba", "linear_attention"), "M"),
    **dict.fromkeys(("attention", "full_attention"), "*"),
    "mlp": "-",
    "moe": "E",
}


def read_mixers(reader: Reader, family: Family, layers: int) -> tuple[str, ...]:
    """What each layer is made of; empty for models whose layers all have attention, and an MLP or experts.

    Raises
    ------
    InputError
        For letters or types that are not known, or not as many as layers.
    """
    keys = family.state_space
    if keys is None:
        return ()
    mixing = _mixing(reader, keys, layers)
    if len(mixing) != layers:
        raise reader.error(keys.pattern, f"{len(mixing)} kinds for {layers} layers", "Name one for each.")
    if keys.followed and keys.mixer == "M" and "M" not in mixing:
        return ()  # layers like any other model's
    return shortest([one + second for one, second in zip(mixing, _seconds(reader, family, layers), strict=True)])


def _seconds(reader: Reader, family: Family, layers: int) -> Sequence[str]:
    """What stands behind each layer's mixer in the same layer: experts, an MLP or nothing."""
    if family.state_space is None or not family.state_space.followed:
        return [""] * layers
    if family.experts is None or not reader.whole(family.experts.count):
        return "-" * layers
    turns = read_turns(reader, family.experts, layers) or (True,)
    return ["E" if turns[layer % len(turns)] else "-" for layer in range(layers)]


def _mixing(reader: Reader, keys: StateSpaceKeys, layers: int) -> Sequence[str]:
    if not keys.pattern:
        return keys.mixer * layers
    key = next((key for key in (*keys.older, keys.pattern) if reader.data.get(key) is not None), keys.pattern)
    given = reader.data.get(key)
    if keys.indexed:
        attending = reader.places(key, layers)
        return ["*" if layer in attending else "M" for layer in range(layers)]
    known = (keys.mixer, "*") if keys.followed else ("M", "*", "-", "E")
    if isinstance(given, str) and given and set(given) <= set(known):
        return given
    named = {**NAMES, **({} if keys.mixer == "M" else {"mamba": "", "linear_attention": keys.mixer})}
    if isinstance(given, list) and all(isinstance(one, str) and named.get(one) in known for one in given):
        return [named[one] for one in given]
    names = [name for name, letter in named.items() if letter in known]
    remedy = f"Give a list of {', '.join(names)}, or a string of {' '.join(known)}."
    raise reader.error(key, "must say what each layer is made of", remedy)


def read_hybrid_experts(
    reader: Reader, kind: str, family: Family, layers: int, mixers: Sequence[str]
) -> Experts | None:
    """A file's Mixture of Experts, which stands in the layers of a hybrid that its file says."""
    keys = family.experts
    if family.state_space is None:
        return read_experts(reader, kind, keys, layers)
    without = not any("E" in one for one in mixers) if mixers else not (keys and reader.whole(keys.count))
    experts = None if without else read_experts(reader, kind, keys, layers)
    return None if experts is None else replace(experts, turns=expert_turns(mixers))


def read_state_space(reader: Reader, family: Family, mixers: Sequence[str]) -> StateSpace | None:
    """A file's state-space mixer, where its layers have such.

    Raises
    ------
    InputError
        Heads that groups do not divide, or sizes that contradict the file's factor of expansion.
    """
    keys = family.state_space
    if keys is None or not any("M" in mixer for mixer in mixers):
        return None
    found = StateSpace(
        heads=reader.count(keys.heads),
        head_dim=_head_dim(reader, keys),
        state=reader.count(keys.state),
        groups=reader.count(keys.groups, 1),
        conv=reader.count(keys.conv, 4),
        chunk=reader.count(keys.chunk, 256),
        conv_bias=reader.flag(keys.conv_bias, True),
        projection_bias=reader.flag(keys.bias, False),
    )
    if found.heads % found.groups:
        problem = f"{found.heads} heads are not divisible by {found.groups} groups"
        raise reader.error(keys.groups, problem, f"Choose a divisor of {keys.heads}.")
    return found


def read_delta_net(reader: Reader, family: Family, mixers: Sequence[str]) -> DeltaNet | None:
    """A file's linear attention, where its layers have such.

    Raises
    ------
    InputError
        Heads of values that those of keys do not divide.
    """
    if not any("G" in mixer for mixer in mixers):
        return None
    found = DeltaNet(
        key_heads=reader.count("linear_num_key_heads"),
        value_heads=reader.count("linear_num_value_heads"),
        key_dim=reader.count("linear_key_head_dim"),
        value_dim=reader.count("linear_value_head_dim"),
        conv=reader.count("linear_conv_kernel_dim"),
        joint=family.joint_delta,
    )
    if found.value_heads % found.key_heads:
        problem = f"{found.value_heads} heads of values cannot share {found.key_heads} of keys"
        raise reader.error("linear_num_key_heads", problem, "Choose a divisor of linear_num_value_heads.")
    return found


def _head_dim(reader: Reader, keys: StateSpaceKeys) -> int:
    """Size of a head, which Bamba's files may leave to the factor of expansion (``auto``)."""
    if reader.data.get(keys.head_dim) not in (None, "auto"):
        return reader.count(keys.head_dim)
    inner = reader.count(keys.expand, 2) * reader.count("hidden_size")
    return reader.divide(inner, reader.count(keys.heads), keys.heads)
