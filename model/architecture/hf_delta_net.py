"""Mixers of linear attention as Hugging Face's ``config.json`` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joulecast.model.architecture.delta_net import DeltaNet
from joulecast.model.architecture.hf_family import Family
from joulecast.model.architecture.hf_reader import Reader


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


def in_turns(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A file's layers where it only says that every so many have attention."""
    layers, interval = data.get("num_hidden_layers"), data.get("full_attention_interval") or 4
    if data.get("layer_types") or not (isinstance(layers, int) and isinstance(interval, int) and interval > 0):
        return data
    kinds = ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(layers)]
    return {**data, "layer_types": kinds}
