"""Mixture of Experts and multi-head latent attention as Hugging Face's ``config.json`` files have them."""

from __future__ import annotations

from joulecast.model.architecture.experts import Experts, LatentAttention
from joulecast.model.architecture.hf_families import FAMILIES
from joulecast.model.architecture.hf_family import ExpertKeys
from joulecast.model.architecture.hf_reader import Reader, shortest

#: Keys that count experts in some family; transformers 5.17 writes the first for Qwen3-MoE, whose key was the second.
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def read_experts(reader: Reader, kind: str, keys: ExpertKeys | None, layers: int) -> Experts | None:
    """A file's Mixture of Experts; ``None`` where its family has none.

    Raises
    ------
    InputError
        Experts in a family that has none, or sizes that do not fit together.
    """
    if keys is None:
        _refuse(reader, kind)
        return None
    counted = next((key for key in (keys.count, *_COUNTS) if key in reader.data), keys.count)
    count, active = reader.count(counted), reader.count("num_experts_per_tok")
    if active > count:
        problem = f"a token cannot be sent to {active} of {count} experts"
        raise reader.error("num_experts_per_tok", problem, f"Use at most {counted}.")
    groups, chosen = reader.count("n_group", 1), reader.count("topk_group", 1)
    if count % groups or chosen > groups:
        problem = f"{count} experts in {groups} groups, {chosen} of which a token may choose from, cannot be"
        remedy = "Use groups of as many experts, and at most all of them."
        raise reader.error("topk_group" if chosen > groups else "n_group", problem, remedy)
    width = reader.count(keys.width)
    shared = reader.whole(keys.shared) * width if keys.shared else reader.whole(keys.shared_width)
    return Experts(
        count=count,
        active=active,
        ffn=width,
        shared_ffn=shared,
        shared_gate=bool(keys.shared_width and shared and keys.shared_gate),
        bias=keys.bias,
        router=keys.router,
        dense_layers=reader.whole(keys.dense),
        groups=groups,
        chosen_groups=chosen,
        latent=reader.whole(keys.latent) if keys.latent else 0,
        turns=read_turns(reader, keys, layers),
    )


def _refuse(reader: Reader, kind: str) -> None:
    for key in _COUNTS:
        if reader.count(key, 1) > 1:
            with_experts = [name for name, family in FAMILIES.items() if family.experts is not None]
            remedy = f"Remove the key, or set model_type to one of {', '.join(sorted(with_experts))}."
            raise reader.error(key, f"models of type {kind!r} have no experts", remedy)


def read_turns(reader: Reader, keys: ExpertKeys, layers: int) -> tuple[bool, ...]:
    """Which layers have experts, those at the beginning apart: every so many, all but some, or those listed."""
    every, start = reader.count(keys.every, 1), 0 if keys.from_first else 1
    given = reader.data.get(keys.listed) if keys.listed else None
    listed = range(layers) if given is None else reader.places(keys.listed, layers)
    without = reader.places(keys.without, layers)
    turns = tuple(
        layer in listed and layer not in without and (given is not None or (layer + start) % every == 0)
        for layer in range(layers)
    )
    return () if all(turns) else shortest(turns)


def read_latent_attention(reader: Reader) -> LatentAttention:
    """A file's multi-head latent attention."""
    return LatentAttention(
        query_rank=reader.whole("q_lora_rank"),
        kv_rank=reader.count("kv_lora_rank"),
        plain_dim=reader.count("qk_nope_head_dim"),
        rotary_dim=reader.count("qk_rope_head_dim"),
        value_dim=reader.count("v_head_dim"),
    )
