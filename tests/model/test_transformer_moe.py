"""Kernels of Mixture of Experts and latent attention: parameters, work, bytes and memory, computed by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from launched import flops

from joulecast.model.architecture.experts import Experts, LatentAttention
from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.model_flops import training_flops
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import shard
from joulecast.model.framework.narrow import Narrow
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Streaming
from joulecast.model.memory.footprint import memory_footprint
from joulecast.model.memory.pipeline_rank import PipelineRank
from joulecast.model.memory.recomputation import saved_bytes
from joulecast.model.memory.states import StateShards
from joulecast.model.training.parameters import parameters_of_stage
from joulecast.model.training.step import head_backward, head_forward, layer_backward, layer_forward
from joulecast.model.transformer.expert_parts import different_parts, parts_allowed
from joulecast.model.transformer.expert_rows import expert_bytes, expert_shard
from joulecast.simulator.instructions.host import EXCHANGED, LOOPED_LAUNCH, WITHIN, module_launches

#: hidden 512, 8 heads of 64 (4 for keys and values), 2 of 16 experts of 256, one shared expert, one layer dense.
MODEL = ModelConfig("tiny", 512, 4, 8, 4, 64, 1024, 4096, experts=Experts(16, 2, 256, shared_ffn=256, dense_layers=1))
LATENT = replace(MODEL, head_dim=80, kv_heads=8, latent=LatentAttention(192, 128, 64, 32, 64))
BATCH, SEQUENCE = 2, 1024
TOKENS = BATCH * SEQUENCE
HIDDEN, EXPERT, UP = 512, 256, 512


def run(tp: int = 1, ep: int = 1, etp: int = 1, **options: Any) -> Implementation:
    split = {"tensor_parallel": tp, "sequence_parallel": tp > 1}
    return Implementation(framework="megatron", expert_parallel=ep, expert_tensor_parallel=etp, **split, **options)


def layer(config: ModelConfig, how: Implementation) -> tuple[Launch, ...]:
    return (*layer_forward(config, how, BATCH, SEQUENCE), *layer_backward(config, how, BATCH, SEQUENCE))


def collectives(launches: Iterable[Launch]) -> dict[str, Collective]:
    return {x.operator.name: x.operator for x in launches if isinstance(x.operator, Collective)}


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("mixtral-8x7b", 46.7, 12.9),  # arXiv 2401.04088: 47B and 13B
        ("mixtral-8x22b", 140.6, 39.2),
        ("qwen3-30b-a3b", 30.5, 3.35),  # arXiv 2505.09388: 30.5B and 3.3B
        ("qwen3-235b-a22b", 235.1, 22.2),
        ("deepseek-v3", 671.0, 37.6),  # arXiv 2412.19437: 671B and 37B
    ],
)
def test_parameters_are_those_of_the_reports(name: str, billions: float, active: float):
    model = load_model(name)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=2e-3)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=5e-3)


@pytest.mark.parametrize("config", [MODEL, LATENT], ids=["experts", "latent"])
@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 1, 1), (1, 8, 1), (2, 4, 2), (4, 8, 1)])
def test_parameters_of_all_ranks_are_the_models(config: ModelConfig, tp: int, ep: int, etp: int):
    """Copies count once, shares of tensor-parallel ranks tp times, experts once for each of their ranks."""
    tensors = parameters_of_stage(config, run(tp, ep, etp), config.layers, first=True, last=True, others=(1,))
    whole = sum(p.elements * (1 if p.replicated else ep * etp if p.expert else tp) for p in tensors)
    assert whole == config.parameters


@pytest.mark.parametrize("config", [MODEL, LATENT], ids=["experts", "latent"])
@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 1, 1), (1, 8, 1), (2, 4, 2), (2, 8, 1)])
def test_products_of_all_ranks_are_the_unsplit_models(config: ModelConfig, tp: int, ep: int, etp: int):
    """A tensor-parallel group has one micro-batch: its ranks together do what one rank alone does."""
    for kind in (Gemm, Attention):
        assert tp * flops(layer(config, run(tp, ep, etp)), kind=kind) == flops(layer(config, run()), kind=kind)


@pytest.mark.parametrize("config", [MODEL, LATENT], ids=["experts", "latent"])
def test_products_are_the_model_flops(config: ModelConfig):
    """Kernels of attention recompute their scores in the backward: 2.5 times the forward instead of 2, and 2.6 where
    keys, three of whose products there are, are half as wide again as values."""
    how, both = run(), 3.5 if config.latent is None else 1.0 + (3 * 96 + 2 * 64) / (96 + 64)
    head = (*head_forward(config, how, BATCH, SEQUENCE), *head_backward(config, how, BATCH, SEQUENCE))
    whole = flops(head) + flops(layer(config.dense, how)) + 3 * flops(layer(config, how))
    attention = 3 * flops(layer(config, how), kind=Attention) + flops(layer(config.dense, how), kind=Attention)
    assert whole + attention * 3 / both == pytest.approx(training_flops(config, SEQUENCE, TOKENS))


def test_model_flops_of_known_models():
    """Six operations a parameter and token, but for the embedding, and attention."""
    tokens, sequence = 1e6, 4096
    for name in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"):
        model = load_model(name)
        attention = 6.0 * tokens * sequence * model.heads * model.head_dim * model.layers
        weights = model.active_parameters - model.embedding_parameters
        assert training_flops(model, sequence, tokens) == pytest.approx(6 * tokens * weights + attention, rel=1e-3)


def test_experts_work_by_hand():
    """2 of 16 experts: 3 matrices of 512 x 256, forward once, backward twice; the router's 512 x 16."""
    found = layer(MODEL, run(ep=8))
    assert flops(found, "experts.") == 3 * 2 * (2 * TOKENS) * 3 * HIDDEN * EXPERT
    assert flops(found, "router") == 3 * 2 * TOKENS * HIDDEN * 16
    assert flops(found, "shared_") == 3 * 2 * TOKENS * 3 * HIDDEN * EXPERT
    grouped = [x.operator for x in found if x.operator.name == "experts.up"]
    assert [(g.m, g.n, g.k, g.batch) for g in grouped if isinstance(g, Gemm)] == [(2048, UP, HIDDEN, 2)]


def test_bytes_between_the_ranks_by_hand():
    """Both copies of every token go out and come back, and so do their gradients."""
    copies = 2 * TOKENS * HIDDEN * 2
    found = collectives(layer(MODEL, run(ep=8)))
    for name in ("dispatch", "combine", "combine.grad", "dispatch.grad"):
        one = found[f"{name}.all_to_all"]
        assert (one.kind, one.bytes, one.gpus) == ("all_to_all", copies, 8)
    assert not [name for name in collectives(layer(MODEL, run())) if "all_to_all" in name]
    shared = collectives(layer(MODEL, run(tp=2, ep=4, etp=2)))
    assert shared["dispatch.all_to_all"].bytes == copies / 2  # each tensor-parallel rank has half of the tokens
    assert (shared["dispatch.all_gather"].bytes, shared["dispatch.all_gather"].gpus) == (copies, 2)
    assert shared["combine.reduce_scatter"].bytes == copies


@pytest.mark.parametrize("load", [1.0, 1.25, 2.0])
def test_load_makes_more_rows_and_more_bytes(load: float):
    mean, busy = layer(MODEL, run(ep=8)), layer(MODEL, run(ep=8, expert_load=load))
    assert flops(busy, "experts.") == load * flops(mean, "experts.")
    assert flops(busy, "shared_") == flops(mean, "shared_")
    assert collectives(busy)["dispatch.all_to_all"].bytes == load * collectives(mean)["dispatch.all_to_all"].bytes


def test_a_dispatcher_that_sends_no_token_twice_to_one_place():
    """Two choices among eight ranks: 8·(1 − (7/8)²) = 1.875 different ones; among two domains 1.5."""
    every = collectives(layer(MODEL, run(ep=8)))["dispatch.all_to_all"].bytes
    ranks = collectives(layer(MODEL, run(ep=8, expert_dispatcher="flex")))["dispatch.all_to_all"].bytes
    assert ranks / every == pytest.approx(1.875 / 2)
    far = run(ep=8, expert_dispatcher="flex", expert_fabric=Fabric(domains=2, exit_bytes_per_s=2e11))
    assert collectives(layer(MODEL, far))["combine.all_to_all"].bytes / every == pytest.approx(1.5 / 2)
    assert different_parts(1, 64) == pytest.approx(1) and different_parts(8, 1) == 1


def test_experts_multiply_in_fp8_and_the_router_does_not():
    found = layer(MODEL, run(ep=8, narrow=Narrow("mxfp8", one_layout=False)))
    dtypes = {x.operator.name: x.operator.dtype for x in found if isinstance(x.operator, Gemm)}
    assert {dtype for name, dtype in dtypes.items() if name.startswith("experts.")} == {"fp8"}
    assert {dtypes[name] for name in ("router", "router.dgrad", "router.wgrad")} == {"bf16"}
    assert "experts.up.input.quantise" in [x.operator.name for x in found]


def test_latent_attention_by_hand():
    """Queries by way of 192, keys and values of 128 values, one rotary part of 32 for all 8 heads."""
    found = layer_forward(LATENT, run(), BATCH, SEQUENCE)
    widths = {x.operator.name: (x.operator.n, x.operator.k) for x in found if isinstance(x.operator, Gemm)}
    assert widths["query_down"] == (192, 512) and widths["query_up"] == (8 * 96, 192)
    assert widths["key_down"] == (128 + 32, 512) and widths["key_up"] == (8 * 128, 128)
    assert widths["output"] == (512, 8 * 64)
    pairs = BATCH * 8 * SEQUENCE**2 / 2
    assert flops(found, kind=Attention) == 2 * pairs * (96 + 64)
    plain = replace(LATENT, latent=replace(LATENT.latent, query_rank=0))  # type: ignore[type-var]
    direct = layer_forward(plain, run(), BATCH, SEQUENCE)
    assert "query_down" not in [x.operator.name for x in direct]
    assert flops(direct, "query_up") == 2 * TOKENS * 512 * 8 * 96


def test_memory_of_experts_by_hand():
    how = run(ep=8)
    own = 2 * 3 * HIDDEN * EXPERT  # the rank's two experts
    tensors = parameters_of_stage(MODEL, how, 1, first=False, last=False)
    rest = sum(p.elements for p in tensors) - own
    shards = StateShards(optimizer=16, expert_optimizer=2)
    footprint = memory_footprint(MODEL, how, BATCH, SEQUENCE, PipelineRank([1], stage=1, stages=3), shards=shards)
    assert footprint.parameters == 2 * (rest + own) and footprint.gradients == 4 * (rest + own)
    assert footprint.optimizer == pytest.approx(12 * (rest / 16 + own / 2))


def test_activations_of_experts_by_hand():
    """Rows as they arrive and after each product, with their fp32 weights; the router's fp32 scores twice."""
    e = expert_shard(shard(MODEL, run(ep=8), BATCH, SEQUENCE))
    assert (e.experts, e.all_rows, e.sent) == (2, 2 * TOKENS, 2 * TOKENS)
    rows = 2 * TOKENS * (2 * (HIDDEN + UP + EXPERT) + 4)
    shared = 2 * TOKENS * (UP + EXPERT) - 2 * TOKENS * (2 * 1024 + 1024)

    def kept(config: ModelConfig) -> float:
        return memory_footprint(config, run(ep=8), BATCH, SEQUENCE, PipelineRank([1])).activations

    assert kept(MODEL) - kept(MODEL.dense) == rows + shared + 2 * 4 * TOKENS * 16


def test_the_host_launches_experts_one_by_one():
    """Each expert beyond the first costs a share of a module's launch; whole products a launch each."""
    few, many = (layer_forward(MODEL, run(ep=ep), BATCH, SEQUENCE) for ep in (8, 1))
    names = {x.operator.name for x in few} - {x.operator.name for x in many}  # exchange among several ranks
    assert module_launches(many) == pytest.approx(
        module_launches(few) - len(names) - 2 * EXCHANGED + 2 * (16 - 2) * LOOPED_LAUNCH, abs=1e-9
    )


@pytest.mark.parametrize(("recipe", "apart"), [("delayed", 1), ("tensorwise", 16), ("mxfp8", 16), ("nvfp4", 1)])
def test_transformer_engine_casts_expert_by_expert(recipe: str, apart: int):
    """As much is cast as by one kernel, which delayed scaling, NVFP4 and fused products have."""
    found, fused = layer(MODEL, run(narrow=Narrow(recipe))), run(narrow=Narrow(recipe), fused_experts=True)
    casts = [x for x in found if x.operator.name.startswith("experts.") and x.operator.name.endswith(WITHIN)]
    assert {x.repeat for x in casts} == {apart}
    assert {x.repeat for x in layer(MODEL, fused)} == {1}
    rows = moved(found, "experts.up.input") / (2 * TOKENS * HIDDEN)
    assert rows == pytest.approx(moved(layer(MODEL, fused), "experts.up.input") / (2 * TOKENS * HIDDEN))


@pytest.mark.parametrize(("recipe", "casts"), [("delayed", 0), ("mxfp8", 2)])
def test_the_host_hands_over_the_gradients_of_experts_one_by_one(recipe: str, casts: int):
    """Eight experts more: in a loop each, four products and casts in front of two; two make gradients of weights."""
    few, many = (
        layer_backward(replace(MODEL, experts=Experts(n, 2, 256)), run(narrow=Narrow(recipe)), BATCH, SEQUENCE)
        for n in (8, 16)
    )
    more = module_launches(many) - module_launches(few)
    assert more == pytest.approx((4 + casts + 2) * 8 * LOOPED_LAUNCH)


def test_routers_that_choose_among_groups_reach_fewer_parts():
    """DeepSeek-V3 chooses 8 experts in 4 of 8 groups: of eight nodes four, of 64 ranks 32, of two nodes nearly both."""
    experts = load_model("deepseek-v3").experts
    assert experts is not None
    groups = experts.groups, experts.chosen_groups
    assert groups == (8, 4)
    assert (parts_allowed(*groups, 8), parts_allowed(*groups, 64)) == (4, 32)
    assert 1.9 < parts_allowed(*groups, 2) < 2 == parts_allowed(1, 1, 2)
    assert different_parts(8, 4.0) == pytest.approx(3.6, abs=0.01)


BIASED = replace(MODEL, experts=Experts(16, 2, 256, bias=True), attention_sinks=True)


def moved(launches: Iterable[Launch], beginning: str) -> float:
    """Bytes of kernels whose names begin so."""
    own = [(x.operator, x.repeat) for x in launches if isinstance(x.operator, Streaming)]
    return sum((o.bytes_read + o.bytes_written) * n for o, n in own if o.name.startswith(beginning))


def test_experts_with_biases_clamp_and_add_in_kernels_of_their_own():
    """Bytes of a value by hand: in bf16 12 forward and 16 backward for the bias, 8 for clamps and as many joined."""
    values, gates = TOKENS * 2 * HIDDEN, TOKENS * 2 * EXPERT
    forward = layer_forward(BIASED, run(), BATCH, SEQUENCE)
    backward = layer_backward(BIASED, run(), BATCH, SEQUENCE)
    assert moved(forward, "experts.down.bias") == (2 + 6 + 4) * values
    assert moved(backward, "experts.down.bias.grad") == pytest.approx((4 + 2 + 4 + 2 + 4) * values, rel=0.02)
    assert moved(forward, "gate.clamp") == 2 * 4 * gates + 4 * 2 * gates
    assert moved(backward, "gate.clamp") == (3 * 3 + 4 + 2 * 5 + 8) * gates
    repeats = {x.operator.name: x.repeat for x in forward}
    assert repeats["experts.down.bias.add"] == 16 and repeats["experts.down.bias.join"] == 1


def test_biases_meet_probabilities_in_fp32_where_these_are():
    values = TOKENS * 2 * HIDDEN
    for how in (run(router_dtype="fp32"), run(expert_dispatcher="flex")):
        forward, backward = layer_forward(BIASED, how, BATCH, SEQUENCE), layer_backward(BIASED, how, BATCH, SEQUENCE)
        assert moved(forward, "experts.down.bias") == (4 + 10 + 8 + 6) * values
        ways = 6 + 8 + 4 + 8 + 4 + 6 + 4  # widened, weighed, summed, times biases, summed, rounded, joined
        assert moved(backward, "experts.down.bias.grad") == pytest.approx(ways * values, rel=0.02)


def test_fused_products_of_experts_hold_clamps_and_biases():
    fused = run(narrow=Narrow("mxfp8"), fused_experts=True)
    assert moved(layer(BIASED, fused), "gate.") == moved(layer(BIASED, fused), "experts.down.bias") == 0
    assert expert_bytes(shard(BIASED, fused, BATCH, SEQUENCE)) < expert_bytes(
        shard(BIASED, run(narrow=Narrow("mxfp8")), BATCH, SEQUENCE)
    )


def test_a_clamped_gate_is_kept_unless_its_activation_is_made_again():
    kept, gates = run(), 2 * 2 * TOKENS * UP  # bf16, two experts a token
    plain = replace(BIASED, experts=Experts(16, 2, 256))
    more = [expert_bytes(shard(config, kept, BATCH, SEQUENCE)) for config in (BIASED, plain)]
    assert more[0] - more[1] == pytest.approx(gates)
    again = run(recompute="selective", recompute_modules=("moe_act",))
    saved = [saved_bytes(shard(config, again, BATCH, SEQUENCE)) for config in (BIASED, plain)]
    assert saved[0] - saved[1] == pytest.approx(gates)


def test_rows_of_experts_are_padded_where_products_in_fp8_need_it():
    """Read and written once on either side of the products, both ways, unless a dispatcher or a capacity pads."""
    wide = 2 * 2 * TOKENS * 2 * HIDDEN
    assert moved(layer(MODEL, run(narrow=Narrow("mxfp8"))), "experts.pad") == 2 * wide
    assert moved(layer(MODEL, run(narrow=Narrow("mxfp8"))), "experts.unpad") == 2 * wide
    for how in (run(), run(narrow=Narrow(), expert_dispatcher="flex"), run(narrow=Narrow(), pads_experts=False)):
        assert moved(layer(MODEL, how), "experts.pad") == 0
