"""Layers that differ from Llama's: norms elsewhere, windows in some layers, soft-capping."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from launched import names

from joulecast.errors import InputError, NotYetError
from joulecast.model.architecture.hf import load_model, parse_config
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.architecture.model_flops import chunk_share, seen_share, training_flops
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Gemm, Streaming
from joulecast.model.memory.activations import layer_bytes, micro_batch_bytes
from joulecast.model.training.parameters import layer_parameters
from joulecast.model.training.step import (
    embedding_backward,
    embedding_forward,
    head_backward,
    head_forward,
    layer_backward,
    layer_forward,
)
from joulecast.model.transformer import modules_activation
from joulecast.model.uncertainty import composed_spread

TRANSFORMERS, JOINT, MEGATRON = (
    Implementation(modules="transformers"),
    Implementation(),
    Implementation(framework="megatron"),
)
LOCAL, GLOBAL = ["sliding_attention"] * 3, ["full_attention"] * 3
TINY: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 96, "vocab_size": 1000, "max_position_embeddings": 128,
}  # fmt: skip


WRITTEN = replace(TRANSFORMERS, attention_backend="unfused")
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
CAP = ("quotient", "tanh", "product")


TINY_OWN = dict.fromkeys(("head_dim", "num_key_value_heads", "intermediate_size"))
FALCON = {**TINY_OWN, "num_kv_heads": 4, "multi_query": True, "alibi": False}
GPTJ = {**TINY_OWN, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "rotary_dim": 8}
MPT = {**TINY_OWN, "d_model": 64, "n_layers": 3, "n_heads": 4, "max_seq_len": 128}


def tiny(kind: str, **keys: Any) -> ModelConfig:
    return parse_config({"model_type": kind, **TINY, **keys}, name=kind, file="x.json")


def attention(config: ModelConfig, run: Implementation, sequence: int) -> Attention:
    launches = layer_forward(config, run, 2, sequence)
    return next(launch.operator for launch in launches if isinstance(launch.operator, Attention))


@pytest.mark.parametrize(
    ("kind", "keys", "forward", "backward"),
    [
        ("llama", {}, 38, 75),
        ("qwen3", {}, 54, 107),
        ("gemma", {}, 42, 77),
        ("gemma2", {"layer_types": LOCAL, "sliding_window": 8}, 65, 114),
        ("gemma2", {"layer_types": GLOBAL}, 62, 111),
        ("gemma3_text", {"layer_types": LOCAL, "sliding_window": 8}, 85, 148),
        ("gemma3_text", {"layer_types": GLOBAL}, 82, 145),
        ("olmo2", {}, 56, 117),
        ("mistral", {"sliding_window": 8}, 41, 78),
        ("olmo3", {"layer_types": LOCAL, "sliding_window": 8}, 59, 120),
        ("granite", {}, 40, 77),
        ("smollm3", {"no_rope_layers": [1, 1, 1]}, 38, 75),
        ("smollm3", {"no_rope_layers": [0, 0, 0]}, 28, 55),
        # Queries times numbers that seven operations on positions make.
        ("ministral3", {}, 46, 76),
        ("exaone4", {"sliding_window": None}, 54, 107),
        ("cohere", {"head_dim": 16}, 38, 71),
        ("cohere2", {"head_dim": 16, "layer_types": GLOBAL}, 24, 47),
        ("exaone4", {"layer_types": GLOBAL}, 44, 87),
        # A layer norm's gradient is one operator of two kernels.
        ("starcoder2", {"head_dim": 16}, 22, 46 + 2),
        # Eight slices are put among zeros, two kernels each.
        ("gpt_neox", {}, 23, 40 + 8 + 2),
        ("stablelm", {"head_dim": 16}, 27, 55 + 2),
        ("nemotron", {"head_dim": 16}, 28, 53 + 2),
        ("phi", {"head_dim": 16}, 31, 65 + 1),
        # Two slices are empty, and cost no kernel to be copied.
        ("phi3", {"head_dim": 16}, 38, 81 - 2),
        # Two small tables of cosines and sines are copied, which is left out.
        ("glm", {}, 42 - 2, 86),
        ("glm4", {}, 58 - 2, 118),
        # Two scalars are made for the mask. The keys' and values' gradients go each to a tensor of zeros.
        # Of one key no fused kernel is taken: the softmax that PyTorch calls safe is four kernels, its gradient two.
        ("falcon", {**FALCON, "bias": False}, 38 - 2 + 3, 47 + 5 + 1 + 1),
        ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, 28 - 2, 37 + 5 + 2),
    ],
)
def test_kernels_of_a_layer_are_as_many_as_transformers_dispatches(
    kind: str, keys: dict[str, Any], forward: int, backward: int
) -> None:
    """Operators that transformers 5.17 dispatches for one more layer of such a model, views left out."""
    config = tiny(kind, **keys).kinds[-1]
    assert len(layer_forward(config, TRANSFORMERS, 2, 16)) == forward
    assert len(layer_backward(config, TRANSFORMERS, 2, 16, accumulate=False)) == backward


@pytest.mark.parametrize(
    ("kind", "keys", "forward", "backward"),
    [
        # A softmax's gradient is one operator of two kernels.
        ("llama", {}, 48, 86 + 1),
        ("llama", {"num_key_value_heads": 4}, 48, 84 + 1),
        ("smollm3", {"no_rope_layers": [0, 0, 0]}, 38, 68 + 1),
        ("gemma2", {"layer_types": GLOBAL}, 75, 125 + 1),
        # The gradients of four rows that are indexed sort their indices, each a kernel beside the sums'; two are
        # summed into copies of zeros, and what is masked is a copy first.
        ("gpt_oss", {"layer_types": GLOBAL, **EXPERTS}, 80 + 2, 132 + 4 + 1 + 2 + 3),
        # Gradients of slices are put among zeros, two kernels each, and those of layer norms are two.
        ("falcon", FALCON, 29, 42 + 5 + 1 + 1),
        ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, 33, 43 + 5 + 2 + 1),
        ("gptj", GPTJ, 49, 61 + 8 + 1 + 1),
        # The product of queries and keys that adds to ALiBi is a copy of it and the product.
        ("bloom", {**TINY_OWN, "n_layer": 3, "n_head": 4}, 27 + 1, 49 + 3 + 2 + 1),
        # Masked scores and their gradients are copied first.
        ("mpt", MPT, 20 + 1, 26 + 2 + 1 + 1),
    ],
)
def test_kernels_of_attention_that_transformers_writes_itself(
    kind: str, keys: dict[str, Any], forward: int, backward: int
) -> None:
    config = tiny(kind, **keys).kinds[-1]
    assert len(layer_forward(config, WRITTEN, 2, 16)) == forward
    assert len(layer_backward(config, WRITTEN, 2, 16, accumulate=False)) == backward


MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
#: What is masked is copied first, twice forward and three times backward; gradients of two tensors that were indexed
#: sort their indices and add to copies of zeros.
MASKS, MASK_GRADIENTS = 2, 3 + 2 + 2


@pytest.mark.parametrize(
    ("kind", "keys", "forward", "backward"),
    [
        ("qwen3_moe", {"num_experts": 4, **MOE}, 75, 126),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 48}, 62, 98 + 4),
        # Counted where the other part of a head is empty, whose gradient is a copy less in each of its two slices.
        (
            "minimax_m2",
            {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 48, "rotary_dim": 16},
            83,
            134 + 4 + 2 * (5 - 2),
        ),
        # Shared experts; groups that a token may not choose from are masked, too.
        ("glm4_moe", {"n_routed_experts": 4, "n_shared_experts": 1, **MOE}, 84 + 1, 117 + 8),
        ("qwen2_moe", {"num_experts": 4, "shared_expert_intermediate_size": 40, **MOE}, 68, 111 + 4),
    ],
)
def test_kernels_of_experts_are_as_many_as_transformers_dispatches(
    kind: str, keys: dict[str, Any], forward: int, backward: int
) -> None:
    """Gradients of slices are put among zeros, two kernels each."""
    config = tiny(kind, **keys).kinds[-1]
    assert len(layer_forward(config, TRANSFORMERS, 2, 16)) == forward + MASKS
    assert len(layer_backward(config, TRANSFORMERS, 2, 16, accumulate=False)) == backward + MASK_GRADIENTS


def test_shared_experts_are_a_dense_mlp_beside_the_routed() -> None:
    """Two shared experts are one MLP of twice their width; a gate of its own scales it in Qwen2-MoE alone."""
    keys = {"n_routed_experts": 4, "n_shared_experts": 2, **MOE}
    with_shared, without = (
        layer_forward(tiny("glm4_moe", **{**keys, "n_shared_experts": count}), TRANSFORMERS, 2, 16) for count in (2, 0)
    )
    added = Counter(names(with_shared)) - Counter(names(without))
    assert sum(added.values()) == 6 and added["shared.add"] == 1
    first = next(one.operator for one in with_shared if one.operator.name == "shared_gating")
    assert isinstance(first, Gemm) and (first.m, first.n, first.k) == (32, 96, 64)
    scaled = layer_forward(
        tiny("qwen2_moe", num_experts=4, shared_expert_intermediate_size=40, **MOE), TRANSFORMERS, 2, 16
    )
    assert [name for name in names(scaled) if "scale" in name][-3:] == [
        "shared_scale", "shared.scale.sigmoid", "shared.scaled",
    ]  # fmt: skip


def test_experts_of_one_rank_have_its_rows_and_leave_half_a_tile() -> None:
    """128 of 256 rows in the mean, of products whose rows the router decides; gradients of weights sum over them."""
    config = tiny("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
    both = (
        *layer_forward(config, TRANSFORMERS, 8, 256),
        *layer_backward(config, TRANSFORMERS, 8, 256, accumulate=False),
    )
    grouped = {
        one.operator.name: one.operator for one in both if isinstance(one.operator, Gemm) and one.operator.grouped
    }
    assert {name for name, product in grouped.items() if product.uneven} == {
        f"experts.{name}{side}" for name in ("up", "down") for side in ("", ".dgrad")
    }
    assert grouped["experts.up"].m == 8 * 256 * 2 // 4


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "olmo2", "phi", "glm4", "gpt_neox", "granite"])
@pytest.mark.parametrize("run", [TRANSFORMERS, JOINT, replace(TRANSFORMERS, parameters="fp32")])
def test_every_parameter_is_completed_once(kind: str, run: Implementation) -> None:
    config = tiny(kind)
    launches = layer_backward(config, run, 2, 16, accumulate=False)
    done = Counter(launch.completes for launch in launches if launch.completes)
    norm_biases = {f"norm{number}.bias" for number in (1, 2)}  # in the weights' kernel
    assert set(done) == {p.name for p in layer_parameters(config, run)} - norm_biases
    assert max(done.values()) == 1


@pytest.mark.parametrize("run", [TRANSFORMERS, JOINT, MEGATRON])
def test_norms_stand_where_the_model_has_them(run: Implementation) -> None:
    around, after = (names(layer_forward(tiny(kind), run, 2, 16)) for kind in ("gemma2", "olmo2"))
    heads = [name.partition(".")[0] for name in around if not name.startswith(("rotary", "attention", "gate"))]
    order = ["norm1", "output", "norm1_after", "residual1", "norm2", "down", "norm2_after", "residual2"]
    assert [name for name in dict.fromkeys(heads) if name in order] == order
    heads = [name.partition(".")[0] for name in after]
    order = ["output", "norm1", "residual1", "down", "norm2", "residual2"]
    assert [name for name in dict.fromkeys(heads) if name in order] == order


def test_a_pattern_says_which_layers_are_local() -> None:
    model = load_model("gemma-3-1b")
    assert [model.kind(layer).local for layer in range(7)] == [True] * 5 + [False, True]
    assert (model.others(0, 26), model.others(5, 1), model.others(6, 6)) == ((22,), (0,), (5,))
    assert [kind.window for kind in model.kinds] == [512, 0]
    assert load_model("gemma-2-2b").others(0, 26) == (13,)
    assert load_model("mistral-7b").window == 4096


@pytest.mark.parametrize(
    ("keys", "pattern"),
    [
        ({"layer_types": [LOCAL[0], GLOBAL[0], LOCAL[0]]}, (True, False)),
        ({"layer_types": LOCAL}, ()),
        ({"sliding_window_pattern": 2}, (True, False)),
        ({"sliding_window": None}, ()),
    ],
)
def test_windows_are_read_as_files_have_them(keys: dict[str, Any], pattern: tuple[bool, ...]) -> None:
    assert tiny("gemma3_text", **keys).window_pattern == pattern


@pytest.mark.parametrize("types", [["chunked_attention"] * 3, LOCAL[:2], "full_attention", []])
def test_layers_of_unknown_types_are_refused(types: object) -> None:
    with pytest.raises(InputError, match="layer_types"):
        tiny("gemma3_text", layer_types=types)


def test_operations_of_a_window() -> None:
    """Of S²/2 pairs W·S - W²/2 are left."""
    assert seen_share(256, 1024) == pytest.approx((256 * 1024 - 256**2 / 2) / (1024**2 / 2))
    assert seen_share(4096, 1024) == 1.0
    near, far = tiny("gemma2", layer_types=LOCAL, sliding_window=256), tiny("gemma2", layer_types=GLOBAL)
    lost = training_flops(far, 1024, 1.0) - training_flops(near, 1024, 1.0)
    assert lost == pytest.approx(3 * 2 * 1024 * 4 * 32 * 3 * (1 - seen_share(256, 1024)))
    kernel = attention(near, JOINT, 1024)
    assert kernel.flops == pytest.approx(replace(kernel, window=0).flops * seen_share(256, 1024))


def test_a_window_as_long_as_the_sequence_changes_no_kernel_that_skips() -> None:
    gpu = gpu_model(load_gpu("h200-sxm"))
    for backend in ("cudnn", "flash-attention-2"):
        for direction in ("forward", "backward"):
            whole = Attention(2, 8, 8, 4096, 128, backend=backend, direction=direction)
            windows = [replace(whole, window=window) for window in (4096, 2048, 512, 128)]
            cycles = lower((whole, *windows), gpu).core_cycles
            assert cycles[1] == cycles[0]
            assert (np.diff(cycles[1:]) < 0).all(), (backend, direction)


def test_attention_that_was_never_measured_is_less_certain() -> None:
    h200 = load_gpu("h200-sxm")
    gpu = gpu_model(h200)
    plain = Attention(2, 8, 8, 4096, 128)
    kernels = (plain, replace(plain, window=512), replace(plain, each_score="softcap"), replace(plain, head_dim=256))
    costs, one = lower(kernels, gpu), np.ones(4)
    known, windowed, *others = composed_spread(one, np.arange(4), costs, h200, "time")
    assert known < windowed < 0.1 and all(other == pytest.approx(0.2) for other in others)


def test_transformers_adds_a_mask_where_a_layer_is_local() -> None:
    near, far = tiny("gemma2", layer_types=LOCAL, sliding_window=16), tiny("gemma2", layer_types=GLOBAL)
    masked, plain = attention(near, TRANSFORMERS, 16), attention(far, TRANSFORMERS, 16)
    assert (masked.causal, masked.each_score, masked.kv_heads) == (False, "mask", 4)
    assert (plain.causal, plain.each_score, plain.kv_heads) == (True, "", 2)
    assert attention(near, TRANSFORMERS, 8).causal
    assert attention(near, JOINT, 32).window == 16
    assert attention(near, JOINT, 32).each_score == "softcap"
    for backend in ("flash-attn-2", "flash-attention-3", "flex"):  # take the window itself, and the cap
        own = attention(near, replace(TRANSFORMERS, attention_backend=backend), 32)
        assert (own.window, own.causal, own.each_score, own.kv_heads) == (16, True, "softcap", 2)


def test_logits_are_capped_and_embeddings_scaled() -> None:
    config = tiny("gemma2")
    for run in (TRANSFORMERS, JOINT, MEGATRON):
        forward, backward = names(head_forward(config, run, 2, 16)), names(head_backward(config, run, 2, 16))
        assert [n for n in forward if n.startswith("logits")] == [f"logits.cap.{kind}" for kind in CAP]
        assert sum(n.startswith("logits") for n in backward) == 3
        assert backward.index("logits.cap.quotient.grad") < backward.index("head.dgrad")
        assert "embedding.scale" in names(embedding_forward(config, run, 2, 16))
        assert "embedding.grad.scale" in names(embedding_backward(config, run, 2, 16))


def test_bytes_that_layers_keep() -> None:
    """Tensors that autograd saves, counted by hand for a token of Gemma 2's and OLMo-2's layers."""
    tokens, size = 2 * 16, (2, 16)
    attention_and_mlp = 2 * (256 + 128 + 4 * 96)
    gemma = tokens * (4 * 64 * 8 + 2 * 64 * 2 + attention_and_mlp) + 4 * (4 + 4) * tokens
    assert layer_bytes(shard(tiny("gemma2", layer_types=GLOBAL), TRANSFORMERS, *size)) == gemma
    mask, repeated = 2 * 2 * 16**2, 2 * (3 * 128 - 256)
    local = tiny("gemma2", layer_types=LOCAL, sliding_window=8)
    assert layer_bytes(shard(local, TRANSFORMERS, *size)) == gemma + mask + tokens * repeated
    norms = 2 * 64 * 8 + (128 + 64) * 8
    olmo = tokens * (norms + 2 * 64 * 2 + attention_and_mlp) + 4 * (2 + 4 + 2) * tokens
    assert layer_bytes(shard(tiny("olmo2"), TRANSFORMERS, *size)) == olmo


def test_bytes_that_written_attention_and_experts_keep() -> None:
    """For a token of gpt-oss: scores once in two bytes, and what four experts' rows leave behind."""
    tokens, size = 2 * 16, (2, 16)
    config = tiny("gpt_oss", layer_types=GLOBAL, **EXPERTS)
    heads = 2 * (3 * 128 + 128) + 4 * (2 + 4)
    norms = 64 * (2 * 8 + 2 * 2)
    scores = 2 * 4 * tokens * 17
    rows = 4 * 16  # of each expert, 64 rows in all
    experts = 2 * (rows * (2 + 5) * 96 + 2 * 64 * 64) + 4 * tokens * 4
    assert layer_bytes(shard(config, WRITTEN, *size)) == tokens * (heads + norms) + scores + experts
    gemma = tiny("gemma2", layer_types=GLOBAL)
    more = 4 * 2 * 16 * 16 * (2 + 4 + 2) + tokens * 2 * (3 * 128 - 256)
    written, whole = (layer_bytes(shard(gemma, run, *size)) for run in (WRITTEN, TRANSFORMERS))
    assert written - whole == more


def test_full_recomputation_makes_what_a_norm_behind_the_product_needs() -> None:
    for run, last in ((JOINT, "norm2_after"), (TRANSFORMERS, "norm2_after.scaled")):
        config = tiny("gemma2")
        again = names(layer_backward(config, replace(run, recompute="full"), 2, 16))
        plain = names(layer_backward(config, run, 2, 16))
        assert again[len(again) - len(plain) :] == plain
        shift = ["norm2_after.weight.widen", "norm2_after.weight.shift"] if run is TRANSFORMERS else []
        assert again[: len(again) - len(plain)][-1 - len(shift) :] == [last, *shift]


def test_sinks_and_biases_of_experts_are_completed() -> None:
    config = tiny("gpt_oss", **EXPERTS)
    for run in (JOINT, WRITTEN):
        launches = layer_backward(config, run, 2, 16, accumulate=False)
        done = Counter(launch.completes for launch in launches if launch.completes)
        assert set(done) == {p.name for p in layer_parameters(config, run)}
        assert max(done.values()) == 1
    assert ([kind.window for kind in config.kinds], config.others(0, 3)) == ([128, 0], (2,))


def test_parallel_blocks_have_one_norm_or_two_and_as_many_additions() -> None:
    for run in (JOINT, TRANSFORMERS, MEGATRON):
        one, two = (names(layer_forward(tiny(kind, head_dim=16), run, 2, 16)) for kind in ("phi", "gpt_neox"))
        assert [n for n in one if n.startswith("norm")] == ["norm1"]
        assert [n for n in two if n.startswith("norm")] == ["norm1", "norm2"]
        assert [n for n in one if n.startswith("residual")] == ["residual1", "residual2"]
        back = names(layer_backward(tiny("phi", head_dim=16), run, 2, 16))
        assert [n for n in back if n.endswith(".join")] == ["norm2.grad.join", "norm1.grad.join"]
        assert "norm2.grad" not in back


def test_a_head_with_a_bias_sums_its_gradient() -> None:
    config = tiny("phi", head_dim=16)
    for run in (JOINT, MEGATRON):
        done = [launch.completes for launch in head_backward(config, run, 2, 16, accumulate=False)]
        assert done.count("head.bias") == 1


@pytest.mark.parametrize(("kind", "key"), [("phi", "qk_layernorm"), ("cohere", "use_qk_norm")])
def test_what_is_not_known_of_a_family_is_refused(kind: str, key: str) -> None:
    with pytest.raises(NotYetError, match=key):
        tiny(kind, **{key: True})


def test_norms_over_all_heads_are_not_split() -> None:
    with pytest.raises(InputError, match="normalises all heads"):
        shard(tiny("olmo2"), replace(JOINT, tensor_parallel=2), 1, 16)
    assert shard(tiny("gemma3_text"), replace(JOINT, tensor_parallel=2), 1, 16).heads == 2


def test_kernels_of_global_layers_without_rotary_embedding_as_transformers_dispatches_them() -> None:
    mixed = {"layer_types": [LOCAL[0], *GLOBAL[:2]], "sliding_window": 8}
    for kind, keys, forward, backward in (("cohere2", {"head_dim": 16}, 24, 47), ("exaone4", {}, 44, 87)):
        config = tiny(kind, **keys, **mixed).kinds[-1]
        assert not config.rotary
        assert len(layer_forward(config, TRANSFORMERS, 2, 16)) == forward
        assert len(layer_backward(config, TRANSFORMERS, 2, 16, accumulate=False)) == backward


LLAMA4 = {"num_local_experts": 4, "intermediate_size_mlp": 112, "attention_chunk_size": 8, "num_hidden_layers": 8}


def test_llama_4_has_chunks_with_rotary_embedding_and_scaled_queries_without() -> None:
    config = tiny("llama4_text", **LLAMA4, interleave_moe_layer_step=2)
    dense, local, plain = config.kinds
    assert config.others(0, 8) == (4, 2)
    assert [(kind.window, kind.experts is None, kind.rotary) for kind in config.kinds] == [
        (8, True, True),
        (8, False, True),
        (0, False, False),
    ]
    for run in (JOINT, MEGATRON):
        turned, still = (names(layer_forward(kind, run, 2, 16)) for kind in (dense, plain.dense))
        assert [n for n in turned if n.startswith(("rotary", "query_norm"))] != []
        assert [n for n in still if n.startswith(("rotary", "query_norm"))] == []
        assert "query.scale" in still and "query.scale" not in turned
        launches = layer_backward(dense, run, 2, 16, accumulate=False)
        done = {launch.completes for launch in launches if launch.completes}
        assert done == {p.name for p in layer_parameters(dense, run)}
        assert "query_norm.grad" in names(launches)
    assert "experts" in " ".join(names(layer_forward(local, MEGATRON, 2, 16)))


def test_chunks_are_sequences_of_their_own() -> None:
    config = tiny("llama4_text", **LLAMA4).kinds[0]
    chunked, whole = (attention(replace(config, sliding_window=size), MEGATRON, 32) for size in (8, 0))
    assert (chunked.batch, chunked.sequence, chunked.window) == (2 * 4, 8, 0)
    assert chunked.flops == pytest.approx(whole.flops / 4)
    assert chunk_share(8, 32) == 1 / 4 and chunk_share(8, 12) == (64 + 16) / 144 and chunk_share(64, 32) == 1.0
    short, long = (replace(config, sliding_window=size) for size in (8, 0))
    pairs = 8 * 3 * 2 * 32 * 4 * 32
    assert training_flops(long, 32, 1.0) - training_flops(short, 32, 1.0) == pytest.approx(pairs * (1 - 1 / 4))


def test_queries_of_latent_attention_are_scaled_as_wide_as_keys() -> None:
    latent = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    config = tiny("mistral4", **experts, **{**latent, "num_key_value_heads": 4})
    forward = {launch.operator.name: launch.operator for launch in layer_forward(config, MEGATRON, 2, 16)}
    assert isinstance(forward["query.scale"], Streaming)
    assert forward["query.scale"].elements == 2 * 16 * 4 * 16
    assert "query.scale.grad" in names(layer_backward(config, MEGATRON, 2, 16))


BLOOM = {"n_layer": 3, "n_head": 4}


def test_alibi_is_a_mask_or_work_on_scores_in_the_kernel() -> None:
    config = tiny("bloom", **BLOOM)
    assert (config.alibi, config.rotary, config.learned_positions) == (True, False, 0)
    own = replace(JOINT, attention_backend="flash-attn-2")
    kernels = [attention(config, run, 32) for run in (JOINT, own, MEGATRON)]
    assert [(kernel.each_score, kernel.causal) for kernel in kernels] == [
        ("mask", False),
        ("alibi", True),
        ("alibi", True),
    ]
    for run in (JOINT, MEGATRON):
        forward = names(layer_forward(config, run, 2, 16))
        assert not [name for name in forward if name.startswith("rotary")]
    written = names(layer_forward(config, replace(MEGATRON, attention_backend="unfused"), 2, 16))
    assert "attention.alibi" in written


def test_a_norm_behind_the_embedding() -> None:
    config = tiny("bloom", **BLOOM)
    for run in (JOINT, MEGATRON):
        assert names(embedding_forward(config, run, 2, 16))[-1] == "embedding_norm"
        backward = embedding_backward(config, run, 2, 16)
        assert backward[0].operator.name == "embedding_norm.grad"
        done = {launch.completes for launch in backward if launch.completes}
        assert {"embedding_norm.weight", "embedding_norm.bias"} <= done


def test_the_tensor_of_alibi_is_held_once() -> None:
    config = tiny("bloom", **BLOOM)
    held = {
        run.attention_backend: micro_batch_bytes(config, run, 2, 16).user_buffers
        for run in (JOINT, replace(JOINT, attention_backend="flash-attn-2"))
    }
    assert held == {"cudnn": 2 * 4 * 16**2, "flash-attn-2": 0.0}


def test_a_rank_of_falcon_with_one_key_of_several_still_repeats_it() -> None:
    config = tiny("falcon", **{**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2})
    for backend in ("cudnn", "unfused"):
        one, two = (
            layer_forward(config, replace(TRANSFORMERS, attention_backend=backend, tensor_parallel=ranks), 2, 16)
            for ranks in (1, 2)
        )
        assert [name for name in names(two) if "all_reduce" not in name] == names(one)


def test_blooms_gelu_is_a_kernel_for_each_operation_of_its_formula() -> None:
    """Forward ``x * 0.5 * (1 + tanh(0.797 * x * (1 + 0.0447 * x * x)))``, backward ``bloom_gelu_back``'s two lines."""
    s = shard(replace(tiny("bloom", **{**TINY_OWN, "n_head": 4}), own_code="bloom"), TRANSFORMERS, 1, 64)
    size = 2.0 * 64 * s.ffn
    for launches, kernels, operands in (
        (modules_activation.forward(s), 9, 3 * 2 + 6 * 1),
        (modules_activation.backward(s), 18, 8 * 2 + 10 * 1),
    ):
        operators = [launch.operator for launch in launches]
        assert len(operators) == kernels and all(isinstance(one, Streaming) for one in operators)
        assert sum(one.bytes_read for one in operators if isinstance(one, Streaming)) == operands * size
        assert sum(one.bytes_written for one in operators if isinstance(one, Streaming)) == kernels * size
