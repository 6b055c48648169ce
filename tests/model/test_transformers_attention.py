"""Attention that transformers writes kernel by kernel, counted by hand from ``eager_attention_forward`` and its kin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from launched import flops

from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.layer_shard import Shard, shard
from joulecast.model.kernels.operators import Gemm, Streaming
from joulecast.model.transformer import family_attention, transformers_attention

BATCH, SEQUENCE = 2, 1024
RUN = Implementation(framework="pytorch-eager", modules="transformers", attention_backend="unfused")
LLAMA, GPT_OSS, GEMMA = (load_model(name) for name in ("llama-3.1-8b", "gpt-oss-20b", "gemma-2-9b"))


def of(config: ModelConfig, run: Implementation = RUN) -> Shard:
    return shard(config, run, BATCH, SEQUENCE)


def passes(launches: Iterable[Launch]) -> dict[str, tuple[float, float]]:
    """Bytes that each kernel beside the products reads and writes."""
    operators = (launch.operator for launch in launches)
    return {o.name: (o.bytes_read, o.bytes_written) for o in operators if isinstance(o, Streaming)}


@pytest.mark.parametrize("config", [LLAMA, GPT_OSS, GEMMA], ids=lambda config: config.name)
def test_products_compute_the_whole_square_of_every_head(config: ModelConfig) -> None:
    """Two products of two operations for each score and each of its head's values; the backward has four."""
    s, sinks = of(config), config.attention_sinks
    scores = BATCH * config.heads * SEQUENCE**2
    forward, backward = transformers_attention.forward(s), transformers_attention.backward(s)
    assert flops(forward, "attention.scores") == 2.0 * scores * config.head_dim
    longer = (SEQUENCE + 1) / SEQUENCE if sinks else 1.0  # the product with the values reads rows with their sink
    assert flops(forward, "attention.values") == pytest.approx(2.0 * scores * config.head_dim * longer, rel=1e-12)
    assert flops(backward) == pytest.approx((6.0 + 2.0 * longer) * scores * config.head_dim, rel=1e-12)
    batches = {launch.operator.batch for launch in (*forward, *backward) if isinstance(launch.operator, Gemm)}
    assert batches == {BATCH * config.heads}


def test_keys_and_values_are_copied_for_every_head_and_their_gradients_summed() -> None:
    """Llama 3.1 has 32 heads and 8 of keys: a quarter is read, everything is written, and the other way around."""
    s = of(LLAMA)
    whole = 2.0 * BATCH * SEQUENCE * 32 * 128
    forward, backward = passes(transformers_attention.forward(s)), passes(transformers_attention.backward(s))
    for part in ("key", "value"):
        assert forward[f"attention.{part}.repeat"] == (whole / 4, whole)
        assert backward[f"attention.{part}.grad.sum"] == (whole, whole / 4)
        assert passes(transformers_attention.repeated(s))[f"attention.{part}.repeat"] == (whole / 4, whole)
    for kernel in (forward["attention.query.copy"], forward["attention.clone"], backward["attention.grad.clone"]):
        assert kernel == (whole, whole)
    alone = of(replace(LLAMA, kv_heads=32))
    assert transformers_attention.repeated(alone) == transformers_attention.summed(alone) == ()


def test_scores_are_scaled_masked_widened_and_rounded() -> None:
    """Of 2 bytes; the mask is one square for all heads, and the softmax is taken in 4 bytes."""
    square = 2.0 * SEQUENCE**2 * BATCH
    scores = 32 * square
    forward = passes(transformers_attention.forward(of(LLAMA)))
    assert forward["attention.scale"] == (scores, scores)
    assert forward["attention.masked"] == (scores + square, scores)
    assert forward["attention.softmax.widen"] == (scores, 2 * scores)
    assert forward["attention.softmax"] == (2 * scores, 2 * scores)
    assert forward["attention.softmax.round"] == (2 * scores, scores)
    backward = passes(transformers_attention.backward(of(LLAMA)))
    assert backward["attention.softmax.grad.widen"] == (scores, 2 * scores)
    assert backward["attention.softmax.grad"] == (4 * scores, 2 * scores)
    assert backward["attention.softmax.grad.round"] == (2 * scores, scores)
    assert backward["attention.scale.grad"] == (scores, scores)


def test_in_fp32_nothing_is_widened_or_rounded() -> None:
    s = of(LLAMA, replace(RUN, dtype="fp32"))
    names = {*passes(transformers_attention.forward(s)), *passes(transformers_attention.backward(s))}
    assert "attention.softmax" in names and not [name for name in names if name.endswith((".widen", ".round"))]


def test_a_sink_makes_every_row_one_value_longer() -> None:
    s = of(GPT_OSS)
    rows = BATCH * GPT_OSS.heads * SEQUENCE
    longer = 2.0 * rows * (SEQUENCE + 1)
    forward, backward = passes(transformers_attention.forward(s)), passes(transformers_attention.backward(s))
    assert forward["attention.sinks.cat"] == forward["attention.softmax"] == (longer, longer)
    assert forward["attention.max"] == pytest.approx((longer, 2.0 * rows))
    assert backward["attention.max.grad"] == pytest.approx((longer, 2.0 * rows))
    assert backward["attention.sinks.slice.copy"] == (2.0 * rows * SEQUENCE, 2.0 * rows * SEQUENCE)
    assert "attention.softmax.widen" not in forward  # the softmax is taken in the scores' own type
    paced = {launch.operator.name: launch.operator for launch in transformers_attention.forward(s)}
    for name, cycles in (("sinks.cat", 1.55), ("max", 0.25), ("softmax", 1.38)):
        assert paced[f"attention.{name}"].sm_cycles == pytest.approx(cycles * longer / 2.0)


def test_what_of_the_scores_the_backward_reads() -> None:
    """The softmax in fp32 and rounded; with a cap its tangent too; with sinks the one row that is longer."""
    scores = BATCH * 32 * SEQUENCE**2
    assert transformers_attention.kept_bytes(of(LLAMA)) == (4 + 2) * scores
    assert transformers_attention.kept_bytes(of(LLAMA, replace(RUN, dtype="fp32"))) == 4 * scores
    assert transformers_attention.kept_bytes(of(GEMMA)) == (4 + 2 + 2) * BATCH * GEMMA.heads * SEQUENCE**2
    rows = BATCH * GPT_OSS.heads * SEQUENCE
    assert transformers_attention.kept_bytes(of(GPT_OSS)) == 2 * rows * (SEQUENCE + 1)


@pytest.mark.parametrize(
    ("code", "forward", "backward", "kept"),
    [
        # Bytes of a score that pass through the kernels between the products, and that stay for the backward.
        # Of a softmax's gradient PyTorch first multiplies it with the softmax, then takes two tensors to one.
        # Falcon, all of 2 bytes: scaled, masked, softmax; its gradient, scaled.
        ("falcon", 3 * 4, 2 * 6 + 4, 2),
        # GPT-J: scaled in fp32, the mask of 2 bytes added, softmax in fp32, rounded.
        ("gptj", 8 + 8 + 8 + 6, 6 + 2 * 12 + 8, 6),
        # BLOOM: masked in 2 bytes, widened, softmax in fp32, rounded; ALiBi is written where the scores will be.
        ("bloom", 2 + 4 + 6 + 8 + 6, 6 + 2 * 12 + 6, 6),
        # MPT: scaled in 2 bytes, added to ALiBi in fp32, copied and filled with the mask, softmax in fp32, rounded.
        ("mpt", 4 + 6 + 2 * 8 + 8 + 6, 6 + 2 * 12 + 2 * 8 + 6 + 4, 6),
    ],
)
def test_families_pass_over_the_scores_in_their_own_types(code: str, forward: int, backward: int, kept: int) -> None:
    s = of(replace(LLAMA, own_code=code, kv_heads=32))
    scores = BATCH * 32 * SEQUENCE**2
    between = ("attention.scale", "attention.masked", "attention.softmax", "attention.bias")

    def moved(launches: Iterable[Launch]) -> float:
        found = passes(launches)
        return sum(sum(both) for name, both in found.items() if name.startswith(between))

    mask = 4 * BATCH * SEQUENCE**2  # of one square for all heads, in 2 or 4 bytes
    assert 0 <= moved(family_attention.forward(s)) - forward * scores <= 2 * mask
    assert 0 <= moved(family_attention.backward(s)) - backward * scores <= mask
    values = BATCH * SEQUENCE * 32 * 128
    wider = 2 * (4 - 2) * values if code == "gptj" else 0  # queries and keys
    assert family_attention.kept_bytes(s) == kept * scores + wider
    assert flops(family_attention.forward(s)) == 4.0 * scores * 128
    assert flops(family_attention.backward(s)) == 8.0 * scores * 128
    whole = of(replace(LLAMA, own_code=code, kv_heads=32), replace(RUN, dtype="fp32"))
    assert family_attention.kept_bytes(whole) == 4 * scores


COPIES = {
    # Parts that are copied between tokens first and heads first, forward and backward.
    "falcon": ({"query", "key", "value", "result"}, {"grad"}),
    "gptj": ({"query", "key", "value", "result"}, {"grad"}),
    "bloom": ({"query", "key", "value", "result"}, {"grad"}),
    "mpt": ({"query", "key", "value", "result"}, {"grad", "query.grad", "value.grad"}),
}


@pytest.mark.parametrize("code", COPIES)
def test_families_copy_their_parts_and_gptj_widens_two(code: str) -> None:
    s = of(replace(LLAMA, own_code=code, kv_heads=32))
    values = BATCH * SEQUENCE * 32 * 128
    for launches, parts in zip((family_attention.forward(s), family_attention.backward(s)), COPIES[code], strict=True):
        found = {name: both for name, both in passes(launches).items() if name.endswith(".clone")}
        assert set(found) == {f"attention.{part}.clone" for part in parts}
        wide = {"attention.query.clone", "attention.key.clone"} if code == "gptj" else set()
        assert all(both == ((4.0 if name in wide else 2.0) * values,) * 2 for name, both in found.items())
    forward, backward = passes(family_attention.forward(s)), passes(family_attention.backward(s))
    widened = {name: both for name, both in forward.items() if name in ("attention.query.widen", "attention.key.widen")}
    rounded = {name: both for name, both in backward.items() if name.endswith(("query.grad.round", "key.grad.round"))}
    gradients = {name for name in backward if name.endswith("scale.grad") and name != "attention.scale.grad"}
    assert set(widened.values()) == ({(2.0 * values, 4.0 * values)} if code == "gptj" else set())
    assert set(rounded.values()) == ({(4.0 * values, 2.0 * values)} if code == "gptj" else set())
    assert len(widened) == len(rounded) == (2 if code == "gptj" else 0)
    expected = {"attention.query.scale.grad", "attention.key.scale.grad"} if code == "bloom" else set()
    assert gradients == expected and all(backward[name] == (2.0 * values,) * 2 for name in gradients)
    types = {launch.operator.name: launch.operator.dtype for launch in family_attention.forward(s)}
    assert types["attention.scores"] == ("fp32" if code == "gptj" else "bf16") and types["attention.values"] == "bf16"
    plain = of(replace(LLAMA, own_code=code, kv_heads=32), replace(RUN, dtype="fp32"))
    names = {*passes(family_attention.forward(plain)), *passes(family_attention.backward(plain))}
    assert "attention.softmax" in names and not [name for name in names if name.endswith((".widen", ".round"))]


def test_falcon_copies_and_repeats_grouped_keys_before_their_rotation() -> None:
    """Eight groups: keys and values out of the joint product, then for every head; a single one is not repeated."""
    groups, single, every = (of(replace(LLAMA, own_code="falcon", kv_heads=heads)) for heads in (8, 1, 32))
    found = passes(family_attention.before_rotation(groups))
    values = 2.0 * BATCH * SEQUENCE * 128
    assert found["attention.query.clone"] == (32 * values, 32 * values)
    for part in ("key", "value"):
        assert found[f"qkv.{part}.index"] == (8 * values, 8 * values)
        assert found[f"attention.{part}.repeat"] == (8 * values, 32 * values)
    assert set(passes(family_attention.before_rotation(single))) == {"qkv.key.index", "qkv.value.index"}
    assert family_attention.before_rotation(every) == ()


def test_gptj_makes_the_table_of_its_rotation_in_every_layer() -> None:
    s = of(replace(LLAMA, own_code="gptj", kv_heads=32, rotary_fraction=0.25))
    found = passes(family_attention.before_rotation(s))
    assert len(found) == 8 and set(found.values()) == {(4.0 * SEQUENCE * 32, 4.0 * SEQUENCE * 32)}


def test_only_transformers_runs_its_own_code() -> None:
    for modules, backend in (("transformers", "flash-attention-2"), ("joint", "unfused"), ("torchtitan", "cudnn")):
        assert not transformers_attention.applies(of(LLAMA, replace(RUN, modules=modules, attention_backend=backend)))
    assert transformers_attention.applies(of(LLAMA))
