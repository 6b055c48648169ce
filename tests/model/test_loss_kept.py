"""What log-probabilities hold beside layers, by hand: tiles of logits, whole ones, and forwards that keep nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import Shard, shard
from joulecast.model.memory.loss_kept import (
    forward_bytes,
    head_bytes,
    loss_transient_bytes,
    reference_transient_bytes,
    tile_bytes,
)

STUDENT, TEACHER = load_model("llama-3.2-1b"), load_model("llama-3.1-8b")
HIDDEN, FFN, VOCAB = 2048, 8192, 128_256
#: Positions and words of a tile.
ROWS, WORDS = 4096, 32_768


def of(batch: int, sequence: int, **options: Any) -> Shard:
    return shard(STUDENT, Implementation(modules="transformers", **options), batch, sequence)


def tiled(batch: int = 2, sequence: int = 1024, **options: Any) -> Shard:
    return of(batch, sequence, log_probabilities="chunked", **options)


def distilled(batch: int = 2, sequence: int = 1024, teacher: ModelConfig = TEACHER) -> Shard:
    return of(batch, sequence, log_probabilities="divergence", teacher=teacher)


def test_one_tile_of_logits_is_there_at_a_time() -> None:
    """Of at most 4,096 of the scored positions, which no sequence's last one is, in two bytes a logit."""
    assert tile_bytes(tiled()) == 2 * (1024 - 1) * WORDS * 2
    assert tile_bytes(tiled(scored_share=0.25)) == 2 * 256 * WORDS * 2
    assert tile_bytes(tiled(8)) == ROWS * WORDS * 2


def test_a_teachers_tile_lies_beside_the_students_in_fp32_with_its_gradient_rounded() -> None:
    assert tile_bytes(distilled(8)) == ROWS * WORDS * (4 + 4 + 2)


def test_the_heads_inputs_are_kept_of_scored_positions_the_teachers_too() -> None:
    every, few = head_bytes(tiled()), head_bytes(tiled(scored_share=0.25))
    assert every - few == (2 * 1023 - 512) * HIDDEN * 2
    assert head_bytes(distilled()) - every == 2 * 1023 * 4096 * 2
    wide = {"parameters": "fp32"}  # the residual stream's type is the parameters'
    assert head_bytes(tiled(**wide)) - head_bytes(tiled(**wide, scored_share=0.25)) == (2 * 1023 - 512) * HIDDEN * 4


def test_tiles_add_gradients_up_in_fp32_and_round_them_where_the_model_is_narrower() -> None:
    inputs, weight, tile = 2 * 1023 * HIDDEN, VOCAB * HIDDEN, 2 * 1023 * WORDS * 2
    assert loss_transient_bytes(tiled(), VOCAB, 1.0) == (4 + 2) * (inputs + weight) + tile
    assert loss_transient_bytes(tiled(), VOCAB, 0.0) == (4 + 2) * inputs + tile
    wide = tiled(parameters="fp32")
    assert loss_transient_bytes(wide, VOCAB, 1.0) == 4 * (inputs + weight) + tile


def test_whole_logits_are_there_twice_in_fp32_beside_the_log_softmax() -> None:
    whole = of(2, 1024, log_probabilities="whole")
    assert loss_transient_bytes(whole, VOCAB, 1.0) == 2 * 4 * 2048 * VOCAB
    gradient = 1e13  # the head's weight's, and its input's
    assert loss_transient_bytes(whole, VOCAB, gradient) == gradient + 2048 * HIDDEN * 2


#: A layer that keeps nothing holds three tensors of the MLP's width and two of the residual stream's.
LAYER = 2 * (3 * FFN + 2 * HIDDEN)


@pytest.mark.parametrize(
    ("options", "head"),
    [
        ({}, (2 + 4) * 64 * VOCAB + 4 * 64 * HIDDEN),  # logits, and widened, and what the last norm gave
        ({"log_probabilities": "value"}, 0),
        ({"log_probabilities": "chunked"}, 63 * WORDS * 2 + 2 * WORDS * HIDDEN),  # and the words' weights, rounded
    ],
)
def test_a_forward_that_keeps_nothing_is_fullest_in_a_layer_or_at_its_end(options: dict[str, Any], head: int) -> None:
    few = of(1, 64, **options)
    assert forward_bytes(few, last=False) == 64 * LAYER
    assert forward_bytes(few, last=True) == max(64 * LAYER, head)


def test_a_references_forward_is_fullest_in_a_layer_or_in_its_logits() -> None:
    pairs = {"reference": "copy"}
    assert reference_transient_bytes(tiled(8, 4096, **pairs)) == 8 * 4096 * LAYER
    assert reference_transient_bytes(tiled(1, 64, **pairs)) == max(64 * LAYER, 63 * WORDS * 2)
    assert reference_transient_bytes(of(1, 64, log_probabilities="whole", **pairs)) == 4 * 4 * 64 * VOCAB
    assert reference_transient_bytes(tiled(8, 4096)) == 0.0
    apart = replace(tiled(8, 4096, **pairs).implementation, compared_apart=True)
    assert reference_transient_bytes(shard(STUDENT, apart, 8, 4096)) == 0.0


def test_a_teachers_forward_is_fullest_in_its_own_layers() -> None:
    """Its last norm ends it: 14,336 and 4,096 values wide."""
    assert reference_transient_bytes(distilled()) == 2048 * 2 * (3 * 14_336 + 2 * 4096)


def test_a_teachers_experts_hold_the_rows_that_they_are_sent() -> None:
    """Two experts of Mixtral, 14,336 wide, take each token, and its 4,096 values twice."""
    mixtral = distilled(teacher=load_model("mixtral-8x7b"))
    assert reference_transient_bytes(mixtral) == 2048 * 2 * (2 * (3 * 14_336 + 4096) + 2 * 4096)
