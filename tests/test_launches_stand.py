"""Launches of layers, heads, optimizers and of what replicas exchange stand as they were last accepted.

A launch of another size, order or wait moves no forecast by much: it would pass unseen. Kernels that profiles show are
held by other tests; these hold the options of which no profile was taken. ``make forecasts`` accepts what is found now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import accepted
import pytest

from joulecast.model.architecture.hf import load_model, parse_config
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.fp8 import Fp8
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.placed import placed_launches
from joulecast.model.kernels.operators import RowTile, Tile
from joulecast.model.training import data_parallel, nanobatches, sharded_units
from joulecast.model.training import step as t

FILE = "launches"
CLUSTER = Fabric(4, None, 1e11, 0.9, 5e-6)
MOE = {
    "model_type": "qwen2_moe", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 32001, "max_position_embeddings": 4096,
    "num_experts": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 1536,
}  # fmt: skip
OPT = {
    "model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16, "ffn_dim": 4096,
    "vocab_size": 50257, "max_position_embeddings": 2048,
}  # fmt: skip
NEOX = {
    "model_type": "gpt_neox", "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
    "intermediate_size": 4096, "vocab_size": 50432, "max_position_embeddings": 2048, "attention_bias": False,
}  # fmt: skip
SPLIT: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True}
MEGATRON: dict[str, Any] = {"framework": "megatron", **SPLIT}
EXPERTS: dict[str, Any] = {
    "expert_parallel": 4, "expert_tensor_parallel": 2, "expert_fabric": CLUSTER, "expert_tensor_fabric": Fabric(),
    "expert_load": 1.25,
}  # fmt: skip
TILES = (("linear", Tile(64, 128)), ("up.wgrad", Tile(128, 64, split_k=2)), ("norm1", RowTile(2, 0, 8)))
#: Model, options, micro-batch and sequence. Sizes that are no powers of two show what is rounded.
LAYERS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "llama alone": ("llama-3.1-8b", {}, 3, 1536),
    "llama split": ("llama-3.1-8b", {**SPLIT, "ctas": 8, "threads": 256, "dtype": "fp16"}, 2, 2048),
    "llama split, streams whole": ("llama-3.1-8b", {"tensor_parallel": 4, "shard_head": False}, 1, 4096),
    "llama again": ("llama-3.1-8b", {**SPLIT, "recompute": "full"}, 1, 2048),
    "llama in tiles": ("llama-3.1-8b", {"tiles": TILES}, 1, 2048),
    "llama without rotation, tied": ("llama-3.2-3b", {"rotary": False, "tie_embeddings": True}, 1, 1024),
    "qwen 3": ("qwen3-8b", SPLIT, 1, 2048),
    "qwen 2.5": ("qwen2.5-1.5b", {}, 2, 2048),
    "opt": ("opt", {}, 2, 1024),
    "opt split": ("opt", {"tensor_parallel": 2}, 5, 1024),
    "neox": ("neox", {"tensor_parallel": 2}, 1, 2048),
    "nemotron": ("nemotron-4-15b", {}, 1, 1024),
    "eager experts": ("moe", {}, 2, 1024),
    "megatron": ("llama-3.1-8b", MEGATRON, 3, 1536),
    "megatron, streams whole": ("llama-3.1-8b", {"framework": "megatron", "tensor_parallel": 2}, 1, 2048),
    "megatron, one rank": ("qwen3-8b", {"framework": "megatron", "fused_loss": True}, 1, 2048),
    "megatron gpt": ("gpt-22b", {**MEGATRON, "attention_backend": "unfused", "recompute": "selective"}, 2, 2048),
    "megatron gpt, scores kept": ("gpt-22b", {"framework": "megatron", "attention_backend": "unfused"}, 1, 1024),
    "megatron opt": ("opt", {**MEGATRON, "gradients": "bf16"}, 2, 1024),
    "megatron all again": ("llama-3.1-8b", {**MEGATRON, "recompute": "full", "tp_comm_overlap": True}, 1, 4096),
    "megatron parts again": (
        "llama-3.1-8b",
        {**MEGATRON, "recompute": "selective", "recompute_modules": ("layernorm", "mlp")},
        1,
        4096,
    ),
    "steps": ("llama-3.1-70b", {**MEGATRON, "tensor_parallel": 4, "tp_comm_overlap": True, "ctas": 4}, 1, 4096),
    "fp8 delayed": ("llama-3.1-8b", {**MEGATRON, "fp8": Fp8()}, 1, 4096),
    "fp8 delayed, steps": ("llama-3.1-8b", {**MEGATRON, "fp8": Fp8(), "tp_comm_overlap": True}, 1, 4096),
    "fp8 tensorwise": ("qwen3-8b", {"framework": "megatron", "fp8": Fp8("tensorwise", parameters=True)}, 1, 2048),
    "fp8 blockwise": ("llama-3.1-8b", {**MEGATRON, "fp8": Fp8("blockwise"), "attention_fp8": True}, 1, 4096),
    "mxfp8": ("llama-3.1-8b", {**MEGATRON, "fp8": Fp8("mxfp8", False), "attention_fp8": True}, 1, 4096),
    "ring": ("llama-3.1-8b", {**MEGATRON, "context_parallel": 4, "context_fabric": CLUSTER}, 1, 8192),
    "rings": ("llama-3.1-8b", {**MEGATRON, "context_parallel": 4, "cp_comm_type": "a2a"}, 1, 8192),
    "gathered context": ("llama-3.1-8b", {**MEGATRON, "context_parallel": 2, "cp_comm_type": "all_gather"}, 2, 4096),
    "ring of whole streams": (
        "gpt-22b",
        {
            "framework": "megatron",
            "tensor_parallel": 2,
            "context_parallel": 3,
            "attention_backend": "flash-attention-2",
        },
        1,
        6144,
    ),
    "mixtral": ("mixtral-8x7b", {**MEGATRON, **EXPERTS}, 1, 4096),
    "mixtral fp8": ("mixtral-8x7b", {"framework": "megatron", "expert_parallel": 8, "fp8": Fp8()}, 1, 2048),
    "shared experts": ("moe", {"framework": "megatron", "expert_parallel": 2, "expert_dispatcher": "flex"}, 1, 2048),
    "shared experts split": ("moe", {**MEGATRON, **EXPERTS, "recompute": "selective"}, 2, 1024),
    "deepseek": ("deepseek-v3", {**MEGATRON, **EXPERTS, "expert_dispatcher": "flex", "expert_parallel": 16}, 1, 4096),
    "deepseek fp8": (
        "deepseek-v3",
        {
            "framework": "megatron",
            "expert_parallel": 64,
            "fp8": Fp8("blockwise"),
            "recompute": "selective",
            "recompute_modules": ("mla_up_proj", "moe_act", "shared_experts", "layernorm"),
        },
        1,
        4096,
    ),
    "deepseek experts again": (
        "deepseek-v3",
        {**MEGATRON, **EXPERTS, "recompute": "selective", "recompute_modules": ("moe",)},
        1,
        2048,
    ),
}


@lru_cache(maxsize=16)
def model_of(name: str) -> ModelConfig:
    for config in (MOE, OPT, NEOX):
        if name == str(config["model_type"]).rpartition("_")[2]:
            return parse_config(config, name=name, file=name)
    found = load_model(name)
    return replace(found, mtp_layers=1) if found.nextn_layers else found


def told(launch: Launch, *, order_only: bool = False) -> str:
    """A launch in words: all that is not as usual; ``order_only`` leaves its work out."""
    operator = launch.operator
    said = [f"{type(operator).__name__} {operator.name}"]
    for one in (launch,) if order_only else (operator, launch):
        for field in fields(one):
            value = getattr(one, field.name)
            if field.name not in ("operator", "name", "footprint_bytes", "stream") and value != field.default:
                said.append(_word(field.name, value))
    return " ".join(said)


def _word(name: str, value: object) -> str:
    if isinstance(value, Fabric):
        return f"domains={value.domains}"
    if isinstance(value, float):
        return f"{name}={value:.7g}"
    return name if value is True else f"{name}={value}"


def lines(launches: Iterable[Launch], *, order_only: bool = False) -> list[str]:
    """Launches in words, runs of equal ones once."""
    runs = [(said, len(list(same))) for said, same in groupby(told(x, order_only=order_only) for x in launches)]
    return [said if count == 1 else f"{count} x {said}" for said, count in runs]


def of_layer(name: str) -> dict[str, list[str]]:
    """Launches of all that a rank runs for one micro-batch, by what runs them."""
    model, options, batch, sequence = LAYERS[name]
    config, run = model_of(model), Implementation(**options)
    size = config, run, batch, sequence
    first = run.framework == "pytorch-eager"
    found = {
        "layer": t.layer_forward(*size),
        "layer.grad": t.layer_backward(*size, accumulate=not first, leaf_input=first),
        "embedding": t.embedding_forward(*size),
        "embedding.grad": t.embedding_backward(*size, accumulate=first),
        "head": t.head_forward(*size),
        "head.grad": t.head_backward(*size, accumulate=first, embedding_here=not first),
    }
    if config.mtp_layers:
        found |= {"further": t.prediction_forward(*size), "further.grad": t.prediction_backward(*size)}
    return {part: lines(launches) for part, launches in found.items()}


STATES: dict[str, dict[str, Any]] = {
    "eager": {},
    "megatron": {"framework": "megatron"},
    "narrow gradients": {"framework": "megatron", "gradients": "bf16"},
    "narrow moments": {"framework": "megatron", "gradients": "bf16", "moments": "bf16"},
    "fp8 moments": {"framework": "megatron", "moments": "fp8", "fp8": Fp8("blockwise", parameters=True)},
    "fp32": {"dtype": "fp32", "tensor_parallel": 2},
}


def of_states(name: str) -> dict[str, list[str]]:
    """Launches around the optimizer on one of several replicas, of dense and of expert parameters."""
    run = Implementation(**STATES[name])
    found: dict[str, tuple[Launch, ...]] = {}
    for model in ("llama-3.2-1b", "moe"):
        config = model_of(model)
        some = t.parameters_of_stage(config, run, 2, first=True, last=True)
        found |= {
            f"{model} step": t.optimizer_step(some, run, tokens_per_step=100_000),
            f"{model} step of a share": t.optimizer_step(
                some, run, tokens_per_step=9_000, state_shards=8, gradient_shards=4, zeroed=False
            ),
            f"{model} gradients": data_parallel.gradient_reduction(some, run, 3, 3e7),
            f"{model} gradients scattered": data_parallel.gradient_reduction(some, run, 8, scatter=True),
            f"{model} gathered": data_parallel.distributed_optimizer_gather(some, run, 8),
            f"{model} end": t.step_epilogue(config, run, 1, 512, parameters=some[:3], micro_batches=4, last=True),
            f"{model} sent": (Launch(t.stage_transfer(config, run, 1, 512)),),
        }
        backward = (
            *t.head_backward(config, run, 1, 512),
            *t.layer_backward(config, run, 1, 512, accumulate=False) * 2,
            *t.embedding_backward(config, run, 1, 512),
        )
        sizes = data_parallel.gradient_sizes(config, run)
        beside = data_parallel.overlapped_gradient_reduction(backward, sizes, run, 4)
        found[f"{model} buckets"] = tuple(x for x in beside if data_parallel.is_bucket(x) or x.waits)
    return {part: lines(launches) for part, launches in found.items()}


SHARDINGS = {
    "prefetched": sharded_units.Sharding(8, Fabric()),
    "copied, added": sharded_units.Sharding(4, Fabric(), 2, CLUSTER, prefetch=False, added_share=0.75),
    "experts apart": sharded_units.Sharding(
        16, CLUSTER, 2, CLUSTER, added_share=0.5, experts=sharded_units.Sharding(4, Fabric(), 3)
    ),
    "experts whole": sharded_units.Sharding(8, CLUSTER, experts=sharded_units.Sharding(1, Fabric(), 1)),
}


def of_sharding(name: str) -> dict[str, list[str]]:
    """Launches of two layers between what has no parameters, gathered unit by unit; waits and copies are told."""
    sharding, found = SHARDINGS[name], {}
    for framework in ("pytorch-eager", "megatron"):
        run = Implementation(framework=framework, tensor_parallel=2, ctas=16)
        config = model_of("llama-3.2-1b")
        forward, backward = t.layer_forward(config, run, 1, 512), t.layer_backward(config, run, 1, 512)
        bare = sharded_units.Unit(t.embedding_forward(config, run, 1, 512))
        root = sharded_units.Unit((), 5_000_001, 1.1e7, 0, 0.0)

        def layer(launches: tuple[Launch, ...]) -> sharded_units.Unit:
            return sharded_units.Unit(launches, 3_000_001, 6.1e6, 1_000_003, 2.1e6)

        passes = {
            "forward": sharded_units.sharded_forward([bare, *[layer(forward)] * 2, bare], root, sharding, run),
            "backward": sharded_units.sharded_backward([bare, *[layer(backward)] * 2, bare], root, sharding, run),
        }
        for part, launches in passes.items():
            shown = [x for x in launches if x.waits or x.stream == "communication" or "copy" in x.operator.name]
            found[f"{framework} {part}"] = lines(shown)
    return found


CUTS = {
    "halves": ("llama-3.1-8b", nanobatches.Nanobatches(2)),
    "late": (
        "llama-3.1-8b",
        nanobatches.Nanobatches(
            2, (nanobatches.Window("attention", ("attention",)), nanobatches.Window("mlp", ("up",))), "window"
        ),
    ),
    "early": ("llama-3.1-8b", nanobatches.Nanobatches(2, (nanobatches.Window("mlp", ("up", "swiglu")),), "asap")),
    "thirds of experts": ("moe", nanobatches.Nanobatches(3, shared=True)),
    "halves of layers": ("qwen3-8b", nanobatches.Nanobatches(2, shared=True)),
}


def of_parts(name: str) -> dict[str, list[str]]:
    """Launches of a micro-batch in parts that take turns."""
    model, cut = CUTS[name]
    run = Implementation("megatron", expert_parallel=2) if model == "moe" else Implementation(tensor_parallel=2)
    of_shares = model == "moe"  # whose kernels are shares of whole ones
    size = model_of(model), run, 6, 512, 1 if of_shares else 2
    found = {"forward": nanobatches.layers_forward(*size, cut), "backward": nanobatches.layers_backward(*size, cut)}
    return {part: lines(launches, order_only=not of_shares) for part, launches in found.items()}


def of_transfers() -> dict[str, list[str]]:
    """What a stage sends to the next, backwards that are split, and launches over a cluster's links."""
    config, found = model_of("llama-3.1-8b"), {}
    for name, options in {"eager": SPLIT, "megatron": MEGATRON, "nodes": {**MEGATRON, "tensor_domains": 2}}.items():
        for parallel in (True, False):
            run = Implementation(**{**options, "sequence_parallel": parallel})
            found[f"{name} {parallel}"] = lines([Launch(t.stage_transfer(config, run, 2, 1024))])
            inputs, weights = t.split_backward(t.layer_backward(config, run, 2, 1024))
            found[f"{name} {parallel} inputs"] = lines(inputs, order_only=True)
            found[f"{name} {parallel} weights"] = lines(weights, order_only=True)
            moved = placed_launches(t.layer_forward(config, run, 2, 1024), CLUSTER)
            found[f"{name} {parallel} placed"] = lines(x for x in moved if x.stream == "communication")
    return found


KINDS = {
    "layers": (of_layer, LAYERS),
    "states": (of_states, STATES),
    "sharded": (of_sharding, SHARDINGS),
    "parts": (of_parts, CUTS),
}


@pytest.fixture(scope="module")
def stands() -> dict[str, Any]:
    return accepted.read(FILE)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (_, names) in KINDS.items() for name in names])
def test_launches_stand(kind: str, name: str, stands: dict[str, Any]) -> None:
    assert KINDS[kind][0](name) == stands[kind][name]


def test_transfers_stand(stands: dict[str, Any]) -> None:
    assert of_transfers() == stands["transfers"]


def test_every_case_is_accepted(stands: dict[str, Any]) -> None:
    assert {kind: set(names) for kind, (_, names) in KINDS.items()} == {kind: set(stands[kind]) for kind in KINDS}


if __name__ == "__main__":
    found = {kind: {name: of(name) for name in names} for kind, (of, names) in KINDS.items()}
    accepted.write(FILE, {**found, "transfers": of_transfers()})
