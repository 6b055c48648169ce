"""Bytes that kernels of a layer move and ranks exchange, worked out by hand from the shapes."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.kernels.attention_tiles import attention_steps
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Streaming, Tile
from joulecast.model.kernels.streaming import streaming_work
from joulecast.model.memory.activations import head_bytes
from joulecast.model.training import step
from joulecast.model.training.pipeline_stage import stage_transfer
from joulecast.model.transformer import moe

MEGATRON = Implementation(framework="megatron")
SPLIT = Implementation(tensor_parallel=4, sequence_parallel=True)


def kernels(launches):
    """Bytes in and out of memory, or bytes and kind of a collective, by name."""
    found = {}
    for launch in launches:
        one = launch.operator
        if isinstance(one, Streaming):
            found[one.name] = (one.bytes_read, one.bytes_written)
        elif hasattr(one, "kind"):
            found[one.name] = (one.kind, one.bytes, one.gpus)
    return found


def test_two_experts_of_a_token_have_its_row_twice():
    """Mixtral: 8 experts, 2 of them a token, on two ranks; every rank sends and gets as many rows as it has."""
    s = shard(load_model("mixtral-8x7b"), replace(MEGATRON, expert_parallel=2), 1, 1024)
    row = 4096 * 2.0
    forward, backward = kernels(moe.forward(s)), kernels(moe.backward(s))
    repeated = pytest.approx(
        (0.8 * 2048 * row, 2048 * row)
    )  # the second read of a row is little cheaper than the first
    assert forward["permute"] == repeated == backward["unpermute.grad"]
    assert forward["unpermute"] == (2048 * row, 1024 * row) == backward["permute.grad"]
    assert forward["dispatch.sort"] == forward["combine.sort"] == (2048 * row, 2048 * row)
    all_to_all = ("all_to_all", 2048 * row, 2)
    assert forward["dispatch.all_to_all"] == forward["combine.all_to_all"] == all_to_all
    assert backward["dispatch.grad.all_to_all"] == backward["combine.grad.all_to_all"] == all_to_all
    assert forward["gate.silu"] == (2048 * 2 * 14336 * 2.0, 2048 * 14336 * 2.0)
    assert backward["gate.silu.grad"] == (2048 * 3 * 14336 * 2.0, 2048 * 2 * 14336 * 2.0)
    assert forward["router.counts.all_gather"] == ("all_gather", 8 * 4.0 * 2, 2)
    assert backward["norm2.weight.accumulate"] == (4096 * (2.0 + 4.0), 4096 * 4.0)  # into an fp32 gradient


def test_embeddings_of_a_split_table_are_summed_over_the_ranks():
    config, row = load_model("gpt3-175b"), 12288 * 2.0
    scattered = kernels(step.embedding_forward(config, SPLIT, 2, 1024))
    assert scattered["embedding"] == (2048 * row, 2048 * row)
    assert scattered["embedding.reduce_scatter"] == ("reduce_scatter", 2048 * row, 4)
    assert scattered["positions"] == (512 * row, 512 * row)
    assert scattered["positions.add"] == (2 * 512 * row, 512 * row)
    summed = kernels(step.embedding_forward(config, replace(SPLIT, sequence_parallel=False), 2, 1024))
    assert summed["embedding.all_reduce"] == ("all_reduce", 2048 * row, 4)
    assert summed["positions"] == (1024 * row, 1024 * row)  # once for all sequences
    backward = kernels(step.embedding_backward(config, SPLIT, 2, 1024))
    assert backward["positions.grad.batch"] == (512 * row, 512 * row / 2)
    assert backward["positions.grad.fill"] == (0.0, 2048 * row)
    assert backward["positions.grad"] == (512 * row, 512 * row)
    assert backward["embedding.grad.all_gather"] == ("all_gather", 2048 * row, 4)
    assert backward["embedding.grad.fill"] == (0.0, 12800 * row)  # a rank's share of 51,200 rows


def test_the_shared_part_of_latent_keys_is_gathered_with_the_sequence():
    config = load_model("deepseek-v3")
    run = replace(SPLIT, framework="megatron")
    size = 1024 * 64 * 2.0
    assert kernels(step.layer_forward(config, run, 1, 1024))["key.shared.all_gather"] == ("all_gather", size, 4)
    backward = kernels(step.layer_backward(config, run, 1, 1024))
    assert backward["key.shared.grad.reduce_scatter"] == ("reduce_scatter", size, 4)
    whole = replace(run, sequence_parallel=False)
    assert "key.shared.all_gather" not in kernels(step.layer_forward(config, whole, 1, 1024))


def test_head_norms_read_value_and_gradient_in_the_backward():
    config = load_model("qwen3-14b")
    forward = kernels(step.layer_forward(config, MEGATRON, 1, 1024))
    backward = kernels(step.layer_backward(config, MEGATRON, 1, 1024))
    for part, heads in (("query", config.heads), ("key", config.kv_heads)):
        size = 1024 * heads * config.head_dim * 2.0
        assert forward[f"{part}_norm"] == (size, size)
        assert backward[f"{part}_norm.grad"] == (2 * size, size)


def test_an_eager_gate_reads_both_halves():
    config = load_model("llama-3.1-8b")
    forward = kernels(step.layer_forward(config, Implementation(), 1, 1024))
    size = 1024 * 14336 * 2.0
    assert forward["gate.silu"] == (size, size)
    assert forward["gate.product"] == (2 * size, size)


def test_megatrons_kernels_of_a_plain_mlp_and_of_rotation():
    gpt, llama = load_model("gpt3-175b"), load_model("llama-3.1-8b")
    size = 1024 * 4 * 12288 * 2.0
    assert kernels(step.layer_forward(gpt, MEGATRON, 1, 1024))["activation.gelu"] == (size, size)
    assert kernels(step.layer_backward(gpt, MEGATRON, 1, 1024))["activation.gelu.grad"] == (2 * size, size)
    gated = kernels(step.layer_backward(llama, MEGATRON, 1, 1024))["gate.silu.grad"]
    assert gated == (3 * 1024 * 14336 * 2.0, 2 * 1024 * 14336 * 2.0)
    rotated = [name for name in kernels(step.layer_forward(llama, MEGATRON, 1, 1024)) if name.startswith("rotary")]
    assert rotated == ["rotary.query", "rotary.key"]
    for config, run in ((gpt, MEGATRON), (llama, replace(MEGATRON, rotary=False))):
        assert not [name for name in kernels(step.layer_forward(config, run, 1, 1024)) if name.startswith("rotary")]


def test_context_parallel_ranks_gather_all_keys_or_exchange_heads():
    config = load_model("llama-3.1-8b")
    run = replace(MEGATRON, context_parallel=4, cp_comm_type="all_gather")
    own = 1024 * 2 * 8 * 128  # keys and values of a rank's tokens
    forward, backward = (
        kernels(step.layer_forward(config, run, 1, 4096)),
        kernels(step.layer_backward(config, run, 1, 4096)),
    )
    assert forward["attention.keys.all_gather"] == ("all_gather", 4 * own * 2.0, 4)
    assert forward["attention.keys.order"] == (4 * own * 2.0, 4 * own * 2.0)
    assert backward["attention.keys.grad.join"] == (4 * own * 2.0, 2 * own * 2.0)
    assert backward["attention.keys.grad.reduce_scatter"] == ("reduce_scatter", 4 * own * 2.0, 4)
    a2a = kernels(step.layer_forward(config, replace(run, cp_comm_type="a2a"), 1, 4096))
    exchanged = sorted(size for kind, size, _ in (x for x in a2a.values() if len(x) == 3) if kind == "all_to_all")
    assert exchanged == sorted([1024 * (4096 + 2 * 1024) * 2.0, 1024 * 4096 * 2.0])
    orders = sorted(read for name, (read, *_) in a2a.items() if name.endswith(".order"))
    assert orders == exchanged


@pytest.mark.parametrize(
    ("run", "share"),
    [
        (Implementation(tensor_parallel=4), 1.0),
        (SPLIT, 0.25),
        (Implementation(framework="megatron", tensor_parallel=4), 0.25),
        (Implementation(framework="megatron", tensor_parallel=4, tensor_domains=2), 0.5),
        (Implementation(modules="transformers", parameters="fp32"), 2.0),  # autocast's residual stream is in fp32
    ],
)
def test_what_a_stage_sends(run, share):
    sent = stage_transfer(load_model("llama-3.1-8b"), run, 1, 2048)
    assert (sent.kind, sent.bytes, sent.gpus) == ("send_recv", 2048 * 4096 * 2.0 * share, 2)


@pytest.mark.parametrize(
    ("run", "width"),
    [
        (Implementation(), 2.0),
        (MEGATRON, 4.0),
        (replace(MEGATRON, fused_loss=True), 2.0),
        (Implementation(fused_loss=True), 2.0),
    ],
)
def test_logits_are_kept_in_the_type_of_the_loss(run, width):
    config = load_model("llama-3.1-8b")
    kept = head_bytes(shard(config, run, 1, 1024))
    assert kept == 1024 * (2 * config.hidden * 2.0 + config.vocab * width)


def test_attention_reads_its_inputs_once(h200):
    """Where few queries meet many keys and values, the memory sees each of them once."""
    one = Attention(1, 32, 8, 128, 128, kv_sequence=65536)
    found = lower([one], h200)
    memory = float(found.memory_s[0]) * h200.device["memory_bandwidth_bytes_per_s"]
    inputs = 2 * 65536 * 8 * 128 * 2.0 + 2 * 128 * 32 * 128 * 2.0
    assert memory == pytest.approx(inputs, rel=0.05)
    backward = lower([replace(one, direction="backward")], h200)
    more = float(backward.memory_s[0]) * h200.device["memory_bandwidth_bytes_per_s"]
    assert more > 1.9 * inputs  # keys and values, and their gradients


def test_bytes_from_far_away_miss_the_cache(h200):
    size = np.array([4e6])
    near, half, far = (
        float(streaming_work("add", size, size, h200, far_bytes=share * size).hbm_bytes[0]) for share in (0.0, 0.5, 1.0)
    )
    assert (near, half, far) == (0.0, 2e6, 4e6)


def test_blocks_that_are_not_full_count_whole():
    tile = Tile(128, 64, warps=8, stages=3)
    steps = attention_steps([Attention(1, 8, 8, 1000, 128, causal=False, tile=tile)])
    assert (steps.rows[0], steps.full[0], steps.steps[0]) == (8, 16, 128)
