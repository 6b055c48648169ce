"""Launches of layers, heads, optimizers and of what replicas exchange stand as they were last accepted.

A launch of another size, order or wait moves no forecast by much: it would pass unseen. Kernels that profiles show are
held by other tests; these hold the options of which no profile was taken. ``make forecasts`` accepts what is found now.
"""

from __future__ import annotations

from typing import Any

import accepted
import pytest
from launch_cases import CLUSTER, LAYERS, MEGATRON, SPLIT, lines, model_of

from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launch_shares import shares
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.narrow import Narrow
from joulecast.model.framework.placed import placed_launches
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Streaming
from joulecast.model.training import data_parallel, nanobatches, sharded_units, step
from joulecast.model.training.optimizer import optimizer_step
from joulecast.model.training.parameters import parameters_of_stage
from joulecast.model.training.pipeline_stage import split_backward, stage_transfer, step_epilogue
from joulecast.model.transformer.narrow_kernels import quantised_weights

FILE = "launches"


def of_layer(name: str) -> dict[str, list[str]]:
    """Launches of all that a rank runs for one micro-batch, by what runs them."""
    model, options, batch, sequence = LAYERS[name]
    config, run = model_of(model), Implementation(**options)
    size = config, run, batch, sequence
    eager = run.framework == "pytorch-eager"
    found = {
        "layer": step.layer_forward(*size),
        "layer.grad": step.layer_backward(*size),
        "embedding": step.embedding_forward(*size),
        "embedding.grad": step.embedding_backward(*size, accumulate=eager),
        "head": step.head_forward(*size),
        "head.grad": step.head_backward(*size, accumulate=eager, embedding_here=not eager),
    }
    if eager:  # in the first micro-batch, of a model on one stage
        found |= {
            "embedding.grad first": step.embedding_backward(*size, accumulate=False),
            "head.grad first": step.head_backward(*size, accumulate=False),
        }
    if config.mtp_layers:
        found |= {"further": step.prediction_forward(*size), "further.grad": step.prediction_backward(*size)}
    told = {part: lines(launches) for part, launches in found.items()}
    if eager:
        first = lines(step.layer_backward(*size, accumulate=False, leaf_input=True))
        told["layer.grad first"] = [line for line in first if line not in told["layer.grad"]]
    return told


STATES: dict[str, dict[str, Any]] = {
    "eager": {},
    "megatron": {"framework": "megatron"},
    "narrow gradients": {"framework": "megatron", "gradients": "bf16"},
    "narrow moments": {"framework": "megatron", "gradients": "bf16", "moments": "bf16"},
    "fp8 in one layout": {"framework": "megatron", "narrow": Narrow(parameters=True), "tensor_parallel": 2},
    "fp8 weights beside": {"framework": "megatron", "narrow": Narrow("mxfp8", False)},
    "fp8 moments": {"framework": "megatron", "moments": "fp8", "narrow": Narrow("blockwise", parameters=True)},
    "fp32": {"dtype": "fp32", "tensor_parallel": 2},
    "mixed": {"parameters": "fp32", "clipped": True},
}


def of_states(name: str) -> dict[str, list[str]]:
    """Launches around the optimizer on one of several replicas, of dense and of expert parameters."""
    run = Implementation(**STATES[name])
    found: dict[str, tuple[Launch, ...]] = {}
    for model in ("llama-3.2-1b", "moe"):
        config = model_of(model)
        some = parameters_of_stage(config, run, 2, first=True, last=True)
        shares = {"tokens_per_step": 9_000, "state_shards": 8, "gradient_shards": 4}
        found |= {
            f"{model} step": optimizer_step(some, run, tokens_per_step=100_000),
            f"{model} step of a share": optimizer_step(some, run, **shares),
            f"{model} step of dropped gradients": optimizer_step(some, run, zeroed=False),
            f"{model} gradients": data_parallel.gradient_reduction(some, run, 2, 3e7),
            f"{model} gradients scattered": data_parallel.gradient_reduction(some, run, 8, scatter=True),
            f"{model} gradients of one": data_parallel.gradient_reduction(some, run, 1),
            f"{model} gathered": data_parallel.distributed_optimizer_gather(some, run, 2),
            f"{model} gathered of one": data_parallel.distributed_optimizer_gather(some, run, 1),
            f"{model} weights": quantised_weights(some, run.narrow, run.dtype),
            f"{model} end": step_epilogue(config, run, 1, 512, parameters=some[:3], micro_batches=4, last=True),
            f"{model} middle": step_epilogue(config, run, 1, 512, parameters=some[:3], micro_batches=2, last=False),
            f"{model} end of one": step_epilogue(config, run, 1, 512, parameters=some[:3], micro_batches=1, last=True),
            f"{model} sent": (Launch(stage_transfer(config, run, 1, 512)),),
        }
    return {part: lines(launches) for part, launches in found.items()}


BUCKETS: dict[str, tuple[dict[str, Any], float | None]] = {
    "eager": ({"tensor_parallel": 2}, None),
    "eager small": ({"tensor_parallel": 2, "sequence_parallel": True}, 6e5),
    "eager in fp32": ({"dtype": "fp32"}, None),
    "megatron": ({"framework": "megatron", "tensor_parallel": 2}, None),
    "megatron small": ({"framework": "megatron", "tensor_parallel": 2, "tp_comm_overlap": True, "ctas": 4}, 2e7),
    "megatron narrow": ({"framework": "megatron", "gradients": "bf16"}, 2.5e7),
}


def of_buckets(name: str) -> dict[str, list[str]]:
    """Backwards with the reduction of buckets among what else communicates."""
    options, size = BUCKETS[name]
    config, run, found = model_of("opt"), Implementation(**options), {}
    for part, cut in {"whole": nanobatches.Nanobatches(), "halves": nanobatches.Nanobatches(2)}.items():
        for head in (False, True):
            backward = (
                *(step.head_backward(config, run, 2, 512) if head else ()),
                *nanobatches.layers_backward(config, run, 2, 512, 3, cut),
                *step.embedding_backward(config, run, 2, 512, accumulate=False),
            )
            sizes = data_parallel.gradient_sizes(config, run)
            for ranks, scatter in ((4, False), (2, True)):
                beside = data_parallel.overlapped_gradient_reduction(backward, sizes, run, ranks, size, scatter=scatter)
                sums = [x for x in beside if data_parallel.is_bucket(x) or "divide" in x.operator.name]
                waits = [x for x in beside if x.waits or x.stream == "communication"]
                found[f"{part} {head} {ranks}"] = lines(waits, order_only=True)
                found[f"{part} {head} {ranks} sums"] = lines(sums)
    alone = data_parallel.overlapped_gradient_reduction(backward, sizes, run, 1)
    return {**found, "alone": [str(len(alone) - len(backward))]}


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
        halves = config, run, 2, 256, 1, nanobatches.Nanobatches(2)
        forward, backward = nanobatches.layers_forward(*halves), nanobatches.layers_backward(*halves)
        bare = sharded_units.Unit(step.embedding_forward(config, run, 2, 256))
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
    "whole": ("llama-3.1-8b", nanobatches.Nanobatches()),
    "sizes": ("opt", nanobatches.Nanobatches(3)),
}


def of_parts(name: str) -> dict[str, list[str]]:
    """Launches of a micro-batch in parts that take turns."""
    model, cut = CUTS[name]
    run = Implementation("megatron", expert_parallel=2) if model == "moe" else Implementation(tensor_parallel=2)
    of_shares = model in ("moe", "opt")  # whose kernels are smaller or shares of whole ones
    size = model_of(model), run, 6, 512, 1 if of_shares else 2
    found = {"forward": nanobatches.layers_forward(*size, cut), "backward": nanobatches.layers_backward(*size, cut)}
    return {part: lines(launches, order_only=not of_shares) for part, launches in found.items()}


def of_shares_of_kernels() -> dict[str, list[str]]:
    """Shares of kernels by sequence, by heads, or not at all."""
    kernels = (
        Launch(Gemm(7, 64, 32, batch=4)), Launch(Attention(4, 8, 2, 64, 32), repeat=3),
        Launch(Attention(1, 12, 2, 64, 32)),
        Launch(Streaming("copy", 300.0, 600.0, elements=150.0, rows=31, columns=5)),
        Launch(Collective("all_to_all", 1000.0, 4), "communication", share=2),
    )  # fmt: skip
    return {str(count): lines(shares(kernels, count)) for count in (1, 2, 4)}


def of_halves() -> dict[str, list[str]]:
    """Operators of both halves of a layer."""
    names = ("llama-3.1-8b", "qwen3-8b", "gpt-22b", "deepseek-v3")
    return {
        f"{name} {half}": list(nanobatches.operators_of_half(model_of(name), "megatron", half))
        for name in names
        for half in nanobatches.HALVES
    }


def of_steps() -> dict[str, list[str]]:
    """Whole steps of a small model on one GPU."""
    config = model_of("opt")
    size = config, Implementation(), 2, 256
    return {
        str(number): lines(step.single_gpu_training_step(*size, micro_batches=number), order_only=number > 1)
        for number in (1, 3)
    }


def of_transfers() -> dict[str, list[str]]:
    """What a stage sends to the next, backwards that are split, and launches over a cluster's links."""
    config, found = model_of("llama-3.1-8b"), {}
    for name, options in {"eager": SPLIT, "megatron": MEGATRON, "nodes": {**MEGATRON, "tensor_domains": 2}}.items():
        for parallel in (True, False):
            run = Implementation(**{**options, "sequence_parallel": parallel})
            found[f"{name} {parallel}"] = lines([Launch(stage_transfer(config, run, 2, 1024))])
            inputs, weights = split_backward(step.layer_backward(config, run, 2, 1024))
            found[f"{name} {parallel} inputs"] = lines(inputs, order_only=True)
            found[f"{name} {parallel} weights"] = lines(weights, order_only=True)
            for place, fabric in {"cluster": CLUSTER, "rack": Fabric(nvls=True), "mesh": Fabric(1, 3e11)}.items():
                moved = placed_launches(step.layer_forward(config, run, 2, 1024), fabric)
                found[f"{name} {parallel} {place}"] = lines(x for x in moved if x.stream == "communication")
    return found


KINDS = {
    "layers": (of_layer, LAYERS),
    "states": (of_states, STATES),
    "buckets": (of_buckets, BUCKETS),
    "sharded": (of_sharding, SHARDINGS),
    "parts": (of_parts, CUTS),
}
OTHERS = {"transfers": of_transfers, "shares": of_shares_of_kernels, "halves": of_halves, "steps": of_steps}


@pytest.fixture(scope="module")
def stands() -> dict[str, Any]:
    return accepted.read(FILE)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (_, names) in KINDS.items() for name in names])
def test_launches_stand(kind: str, name: str, stands: dict[str, Any]) -> None:
    assert not accepted.differences(KINDS[kind][0](name), stands[kind][name])


@pytest.mark.parametrize("name", OTHERS)
def test_others_stand(name: str, stands: dict[str, Any]) -> None:
    assert not accepted.differences(OTHERS[name](), stands[name])


def test_every_case_is_accepted(stands: dict[str, Any]) -> None:
    assert {kind: set(names) for kind, (_, names) in KINDS.items()} == {kind: set(stands[kind]) for kind in KINDS}


if __name__ == "__main__":
    found = {kind: {name: of(name) for name in names} for kind, (of, names) in KINDS.items()}
    accepted.write(FILE, {**found, **{name: of() for name, of in OTHERS.items()}})
