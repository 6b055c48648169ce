"""The fullest moment of an iteration, by hand: gradients, what FSDP holds whole, and adapters' temporaries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.framework.lora import Lora
from joulecast.model.framework.narrow import Narrow
from joulecast.model.memory.activations import MicroBatchBytes, micro_batch_bytes
from joulecast.model.memory.footprint import memory_footprint
from joulecast.model.memory.layer_kept import whole_layer_bytes
from joulecast.model.memory.layer_transients import layer_transient_bytes
from joulecast.model.memory.lora_kept import gradient_bytes
from joulecast.model.memory.modules_kept import gate_gradient_bytes
from joulecast.model.memory.moments import (
    beside_table_bytes,
    gathered_at_peak,
    gradients_at_peak,
)
from joulecast.model.memory.pipeline_rank import PipelineRank
from joulecast.model.memory.states import Stage, StateShards, Whole, gathered_by_fsdp_bytes
from joulecast.model.transformer import modules_experts

LLAMA = load_model("llama-3.2-1b")
EAGER = Implementation(drops_gradients=True)
#: Two bytes for each of 128,256 tokens by 2,048 values, in GB.
HEAD = 128_256 * 2048 * 2 / 1e9
#: The residual stream's gradient.
STREAM = 4096 * 2048 * 2 / 1e9
ONLY, SPLIT = PipelineRank([16]), StateShards(parameters=2, gradients=2)


def micro_batch(run: Implementation = EAGER, *, ends: float = 6e9) -> MicroBatchBytes:
    """A layer keeps 10 GB and needs 7 for the moment, the head keeps 6 and the loss needs 5."""
    one = micro_batch_bytes(LLAMA, run, 1, 4096)
    return replace(one, layer=10e9, ends=ends, layer_transient=7e9, layer_anew=7e9, loss_transient=5e9)


def within(gradients: float, head: float) -> float:
    """One layer's share of gradients without those outside."""
    return (gradients - head) / 16


@pytest.mark.parametrize(
    ("split", "gradients", "kept", "at_once", "further", "expected"),
    [
        # As the backward begins, with what the reduction of the layer behind holds where that is more than it freed.
        (SPLIT, 1, 40, 5, 12, 12 + within(1, HEAD / 2) - 10 - 6 + 5),
        (SPLIT, 1, 40, 7, 8, -6 + 7),
        # In the layer before the last: all gradients but those of two layers and outside, two layers of what was kept.
        (SPLIT, 9, 20, 5, 2, 9 - HEAD / 2 - 2 * within(9, HEAD / 2) + 2 * 10 - 20 + 2 + 5),
        (SPLIT, 1, 40, 2, 8, 0),  # before it
        # Whole gradients: the head's is one of them, and the last layer waits for none.
        (StateShards(), 1, 40, 6, 0, HEAD - 6 + 6),
        (StateShards(), 9, 20, 5, 0, 9 - within(9, HEAD) + 10 - 20 + 5),
    ],
)
def test_gradients_that_come_while_layers_go(
    split: StateShards, gradients: float, kept: float, at_once: float, further: float, expected: float
) -> None:
    found = gradients_at_peak(gradients * 1e9, kept * 1e9, (at_once * 1e9, further * 1e9), micro_batch(), ONLY, split)
    assert found == pytest.approx(expected * 1e9)


def test_an_embedding_of_its_own_has_no_gradient_in_the_first_layers_backward() -> None:
    """As where the end is fullest above, less the table's share; or it is fullest in the embedding's backward."""
    one = micro_batch(replace(EAGER, tie_embeddings=False))
    found = gradients_at_peak(9e9, 20e9, (5e9, 2e9), one, ONLY, SPLIT)
    assert found == pytest.approx((9 - HEAD - 2 * within(9, HEAD) + 20 - 20 + 2 + 5) * 1e9)
    found = gradients_at_peak(9e9, 20e9, (5e9, 2e9), one, ONLY, SPLIT, of_table=30e9)
    assert found == pytest.approx((9 - 20 + 30) * 1e9)


def test_what_the_embeddings_backward_holds_beside_all_gradients() -> None:
    """A tied table's own gradient, and its sum with the head's unless autocast copies that.

    FSDP's whole one and its copy; sums in fp32 of a graph of a whole model.
    """
    whole, stream = StateShards(), 4096 * 2048 * 2

    def beside(split: StateShards = whole, outside: float = 0.0, **options: Any) -> float:
        return beside_table_bytes(micro_batch(replace(EAGER, **options)), split, outside)

    assert beside() == pytest.approx(2 * HEAD * 1e9 + stream)
    wide = beside(modules="transformers", parameters="fp32")
    assert wide == pytest.approx(2 * HEAD * 1e9 + 2 * stream)  # one table, of twice the size
    assert beside(tie_embeddings=False) == stream
    assert beside(SPLIT, 3e9, tie_embeddings=False) == pytest.approx(3e9 + 2 * HEAD * 1e9)
    assert beside(SPLIT, 3e9, tie_embeddings=False, gradients="fp32") == pytest.approx(3e9 + 3 * HEAD * 1e9)
    assert beside(modules="transformers", compiled=True) == pytest.approx(3 * HEAD * 1e9 + stream)
    assert beside(modules="transformers", lora=Lora(16, ("query",), 0.0, "bf16")) == 0.0


def test_beside_adapters_the_head_has_no_gradient() -> None:
    lora = replace(EAGER, modules="transformers", lora=Lora(16, ("query",), 0.0, "bf16"))
    assert gradients_at_peak(1e9, 40e9, (7e9, 8e9), micro_batch(lora), ONLY, SPLIT) == pytest.approx((7 - 6) * 1e9)


def test_gradients_that_stay_are_all_there() -> None:
    """Of further micro-batches, of pipelines, in buckets and where nothing is dropped."""
    one, more, kept = micro_batch(), (7e9, 8e9), 40e9
    assert gradients_at_peak(3e9, kept, more, one, replace(ONLY, micro_batches=2), SPLIT) == 3e9
    assert gradients_at_peak(3e9, kept, more, one, PipelineRank([8], stage=1, stages=2), SPLIT) == 3e9
    assert gradients_at_peak(3e9, kept, more, one, ONLY, replace(SPLIT, gradient_copies=2)) == 6e9
    assert gradients_at_peak(3e9, kept, more, micro_batch(Implementation()), ONLY, SPLIT) == 3e9


def test_gradients_that_are_dropped_add_up_beside_buckets() -> None:
    """Of several micro-batches: in one they move into the buckets as they come, and those that stay lie in them."""
    buckets, several, more = replace(SPLIT, gradient_copies=2), replace(ONLY, micro_batches=4), (7e9, 8e9)
    assert gradients_at_peak(3e9, 40e9, more, micro_batch(), several, buckets) == 9e9
    assert gradients_at_peak(3e9, 40e9, more, micro_batch(Implementation()), several, buckets) == 6e9
    after = replace(SPLIT, gradient_copies=1)
    assert gradients_at_peak(3e9, 40e9, more, micro_batch(), several, after) == 3e9


@pytest.mark.parametrize(
    ("transient", "ends", "expected"),
    [
        (6, 6, 8 + 2 + 7 + STREAM - 6 - 6),  # a layer's backward, whose second reduction is 2 GB beyond what it frees
        (6, 9.5, 4 + 5 - 6),  # the loss's
        (20, 6, 4),  # what lies outside of the layers needs the most
        (12, 6, 4),
        (6.9, 14, 4 + 5 - 6.9),  # as much as a layer's backward needs is none of that
    ],
)
def test_what_is_gathered_at_the_fullest_moment(transient: float, ends: float, expected: float) -> None:
    one = micro_batch(ends=ends * 1e9)
    assert gathered_at_peak(Whole(4e9, 8e9, 12e9), transient * 1e9, one, ONLY) == pytest.approx(expected * 1e9)


def test_what_is_gathered_elsewhere() -> None:
    """A stage without a head sees no loss; Megatron has two layers whole at once."""
    first = PipelineRank([8], stage=0, stages=2)
    assert gathered_at_peak(Whole(4e9, 8e9, 12e9), 6e9, micro_batch(), first) == pytest.approx(10e9)
    assert gathered_at_peak(Whole(4e9, 8e9, 9e9), 6e9, micro_batch(), first) == pytest.approx(8e9)
    megatron = micro_batch(Implementation(framework="megatron"))
    assert gathered_at_peak(Whole(4e9, 8e9, 12e9), 6e9, megatron, ONLY) == pytest.approx(20e9)


@pytest.mark.parametrize(
    ("lora", "each", "weights"),
    [
        (Lora(16, ("query",), 0.0, "bf16"), 2, 0),
        (Lora(16, ("down",), 0.0, "bf16"), 2 + 2, 0),
        (Lora(16, ("down",), 0.1, "fp32"), 4 + 4, 0),
        (Lora(16, ("down",), 0.0, "bf16", base="nf4"), 2 + 2, 2 * 2048 * 8192),
        (Lora(16, ("query",), 0.0, "bf16", base="nf4"), 2, 2 * 2048 * 8192),
        (Lora(16, ("query",), 0.0, "fp32", base="nf4", prepared=True), 2 + 4, 2 * 2048 * 8192),
        (Lora(16, ("down",), 0.0, "fp32", base="nf4", prepared=True), 4 + 4 + 4, 2 * 2048 * 8192),
    ],
)
def test_gradients_of_the_last_products_input(lora: Lora, each: int, weights: int) -> None:
    """Of 4,096 tokens by 8,192 values; a frozen weight in 4 bits is written out beside."""
    s = shard(LLAMA, replace(EAGER, modules="transformers", lora=lora), 1, 4096)
    assert gradient_bytes(s, lora) == pytest.approx(4096 * 8192 * each + weights)


def test_chunks_keep_what_is_under_way_in_each() -> None:
    """Three micro-batches in a chunk of two layers, two in the last of one, which keeps two heads' as well."""
    run = Implementation(framework="megatron")
    one = micro_batch_bytes(LLAMA, run, 1, 4096)
    apart = PipelineRank([2, 1], stage=1, stages=4, micro_batches=8, of_chunks=(3, 2), ends=(False, False))
    inner, last = (memory_footprint(LLAMA, run, 1, 4096, rank) for rank in (apart, replace(apart, ends=(False, True))))
    assert one.ends > 0
    assert last.activations - inner.activations == pytest.approx(2 * one.ends)


def test_two_layers_and_the_heads_gradient_are_whole_in_a_layers_backward() -> None:
    """Whose gradients are counted as they come; beside adapters the head has none."""
    run = replace(EAGER, modules="transformers", gathered=True)

    def whole(run: Implementation) -> Whole:
        return gathered_by_fsdp_bytes(Stage(LLAMA, run, 16, first=True, last=True, others=()), SPLIT)

    layer = 2 * LLAMA.layer_parameters()
    assert whole(run).during - whole(run).between == pytest.approx(layer + HEAD * 1e9)
    assert whole(run).further == pytest.approx(layer)
    lora = whole(replace(run, lora=Lora(16, ("query",), 0.0, "bf16")))
    assert lora.during - lora.between < layer + 1e6


def test_three_gradients_around_a_gate_of_which_the_product_has_made_room_for_one() -> None:
    """8,192 values of 4,096 tokens in bf16; a frozen product behind the gate kept no input."""
    values = 4096 * 8192 * 2
    run = replace(EAGER, modules="transformers")
    assert gate_gradient_bytes(shard(LLAMA, run, 1, 4096)) == 2 * values
    frozen = replace(run, lora=Lora(rank=8, targets=("query",)))
    assert gate_gradient_bytes(shard(LLAMA, frozen, 1, 4096)) == 3 * values
    compiled = replace(run, compiled=True)
    assert gate_gradient_bytes(shard(LLAMA, compiled, 1, 4096)) == 2 * values
    cast_anew = replace(EAGER, compiled=True, narrow=Narrow())
    assert gate_gradient_bytes(shard(LLAMA, cast_anew, 1, 4096)) == 3 * values
    liger = replace(run, liger=("swiglu",))
    assert gate_gradient_bytes(shard(LLAMA, liger, 1, 4096)) == 0.0


def test_weights_gradients_that_come_anew_are_there_at_the_gate() -> None:
    """That of the last product, whole; with experts, of which a layer has two products, those of both."""
    run = replace(EAGER, modules="transformers")
    s = shard(LLAMA, run, 1, 4096)
    gate, weight = gate_gradient_bytes(s), 2 * 2048 * 8192
    assert layer_transient_bytes(s) == max(gate, weight + 2 * 4096 * 8192)
    assert layer_transient_bytes(s, anew=True) == gate + weight
    config = load_model("mixtral-8x7b")
    s = shard(config, run, 1, 4096)
    rows, up = 2 * 4096, 2 * 14_336
    later = 2 * rows * (up + 2 * 4096) - modules_experts.kept_bytes(s)
    assert layer_transient_bytes(s, anew=True) == 2 * 8 * 4096 * (up + 14_336) + later


def test_eager_casts_to_fp8_hold_two_copies_in_fp32() -> None:
    """Of the gate's and up's gradient; kept were both products, the activation and its product with the gate."""
    s = shard(LLAMA, replace(EAGER, narrow=Narrow("tensorwise")), 1, 4096)
    values = 4096 * 8192
    assert layer_transient_bytes(s, anew=True) == 2 * 2048 * 8192 + 2 * values * (2 - 4) + 8 * 2 * values


def test_a_checkpoint_keeps_a_layers_input_beside_its_copy_in_fp32() -> None:
    """Of a norm of tensor operations; a fused one keeps the input itself."""
    run = replace(EAGER, modules="transformers", recompute="full")
    fused = replace(run, liger=("rms_norm",))
    for one, beside in ((run, 0.0), (fused, 2 * 4096 * 2048)):
        s = shard(LLAMA, one, 1, 4096)
        plain = shard(LLAMA, replace(one, recompute="none"), 1, 4096)
        assert layer_transient_bytes(s) - layer_transient_bytes(plain) == whole_layer_bytes(s) - beside


def test_one_head_of_keys_is_expanded_and_not_copied() -> None:
    """Whose values attention reads where a mask, or heads that are no power of two, ask for a key for every head."""
    run = replace(EAGER, modules="transformers", attention_backend="flex")
    heads = replace(LLAMA, heads=24, hidden=1536)
    many, one, pairs = (whole_layer_bytes(shard(replace(heads, kv_heads=n), run, 1, 4096)) for n in (8, 1, 24))
    each = 2 * 4096 * 64
    assert pairs - many == pytest.approx(0.0)
    assert many - one == 2 * 23 * each
