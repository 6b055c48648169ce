"""Models with linear attention by the gated delta rule: files, parameters, operations, layers' kernels, and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from joulecast.errors import InputError, NotYetError
from joulecast.model.architecture.hf import load_model, parse_config
from joulecast.model.architecture.model_flops import matrix_elements, training_flops
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.kernels.operators import Gemm, Scan
from joulecast.model.memory.activations import micro_batch_bytes
from joulecast.model.training.parameters import layer_parameters, parameters_of_stage
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.model.transformer import delta_net

QWEN: dict[str, Any] = {
    "model_type": "qwen3_next", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96, "vocab_size": 1000,
    "max_position_embeddings": 128, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16,
    "linear_value_head_dim": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}  # fmt: skip
USERS = Implementation(modules="transformers")
#: Values of the small mixer's queries or keys, and of its values; numbers of heads.
KEYS, VALUES, HEADS = 2 * 16, 6 * 8, 6


def read(**keys: Any):
    return parse_config({**QWEN, **keys}, name="x", file="x.json")


def kind_of(model, mixers):
    return next(kind for kind in model.kinds if kind.mixers == (mixers,))


def test_parameters_are_as_many_as_published() -> None:
    """transformers counts 7,210,003,520 of Qwen3-Next with four layers, its head untied."""
    whole = load_model("qwen3-next-80b-a3b")
    assert whole.parameters == pytest.approx(80e9, rel=0.005) and whole.dense_layers == 0
    assert whole.mixers == ("GE", "GE", "GE", "*E")
    assert whole.active_parameters - 2 * whole.hidden * whole.vocab == pytest.approx(3e9, rel=0.1)
    keys = {"hidden_size": 2048, "vocab_size": 151936, "head_dim": 256, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_experts": 512,
            "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            "num_attention_heads": 16}  # fmt: skip
    assert read(**keys).parameters == 7_210_003_520


def test_parameters_of_every_kind_of_layer_worked_out() -> None:
    mixer = 64 * (2 * KEYS + 2 * VALUES + 2 * HEADS + VALUES) + 4 * (2 * KEYS + VALUES) + 2 * HEADS + 8
    attention = 64 * 32 * (2 * 4 + 2 * 2 + 4) + 2 * 32
    experts, mlp = 64 * 8 + 8 * 3 * 64 * 48 + 3 * 64 * 80 + 64, 3 * 64 * 96
    stack = 3 * mixer + attention + 4 * 2 * 64
    assert read().parameters == 2 * 64_000 + stack + 4 * experts + 64
    assert read().active_parameters == read().parameters - 4 * 6 * 3 * 64 * 48
    dense = read(mlp_only_layers=[1])
    assert dense.mixers == ("GE", "G-", "GE", "*E")
    assert dense.parameters == 2 * 64_000 + stack + 3 * experts + mlp + 64
    text = read(model_type="qwen3_5_text")
    assert text.mixers == ("G-", "G-", "G-", "*-") and text.parameters == 2 * 64_000 + stack + 4 * mlp + 64
    for model in (read(), dense, text):
        tensors = parameters_of_stage(
            model, USERS, 4, first=True, last=True, others=model.others(0, 4) if len(model.kinds) > 1 else ()
        )
        assert sum(one.elements for one in tensors) == model.parameters


def test_files_of_qwen3_5_have_their_text_model_apart() -> None:
    text = {**QWEN, "model_type": "qwen3_5_moe_text", "intermediate_size": None}
    whole = parse_config({"model_type": "qwen3_5_moe", "text_config": text}, name="x", file="x.json")
    assert whole.text_part and whole.mixers == read().mixers and whole.parameters == read().parameters
    assert whole.delta_net is not None and not whole.delta_net.joint


@pytest.mark.parametrize(
    ("keys", "mixers"),
    [
        ({"full_attention_interval": 2}, ("GE", "*E")),
        ({"layer_types": ["full_attention", *["linear_attention"] * 3]}, ("*E", "GE", "GE", "GE")),
        ({"layer_types": ["full_attention"] * 4}, ("*E",)),
    ],
)
def test_layers_take_turns_as_the_file_says(keys: dict[str, Any], mixers: tuple[str, ...]) -> None:
    assert read(**keys).mixers == mixers


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        ({"linear_num_value_heads": 3}, InputError, "3 heads of values cannot share 2 of keys"),
        ({"layer_types": ["mamba"] * 4}, InputError, "must say what each layer is made of"),
        ({"layer_types": ["full_attention"]}, InputError, "1 kinds for 4 layers"),
        ({"linear_attn_config": {"a": 1}}, NotYetError, "linear attention in most of their layers"),
        ({"ssm_state_size": 64}, NotYetError, "state-space"),
    ],
)
def test_files_that_do_not_fit_are_refused(keys: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        read(**keys)


def test_operations_of_the_rule_worked_out() -> None:
    """Of a token and head: pairs with 32 others on average, and three products with the state."""
    mixer, attention = kind_of(read(), "GE"), kind_of(read(), "*E")
    rule = 6 * (2 * 32 * (3 * 16 + 2 * 8) + 6 * 16 * 8)
    assert mixer.delta_net.scan_operations(128) == rule
    assert mixer.delta_net.scan_operations(32) == 6 * (2 * 16 * (3 * 16 + 2 * 8) + 6 * 16 * 8)
    experts = 64 * 8 + 3 * 64 * (2 * 48 + 80) + 64
    assert matrix_elements(mixer) == 64 * (2 * KEYS + 3 * VALUES + 2 * HEADS) + experts
    assert matrix_elements(attention) == 64 * 32 * 16 + experts
    weights = 3 * matrix_elements(mixer) + matrix_elements(attention) + 64_000
    assert training_flops(read(), 128, 5.0) == 3 * 5 * (2 * weights + 2 * 128 * 4 * 32 + 3 * rule)


def launched(model, mixers, batch=1, sequence=1024):
    kind = kind_of(model, mixers)
    return layer_forward(kind, USERS, batch, sequence), layer_backward(kind, USERS, batch, sequence, accumulate=False)


@pytest.mark.parametrize("mixers", ["GE", "*E"])
@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5_moe_text"])
def test_every_parameter_has_a_gradient(model_type: str, mixers: str) -> None:
    model = read(model_type=model_type)
    done = [one.completes for one in launched(model, mixers)[1] if one.completes]
    assert sorted(done) == sorted(p.name for p in layer_parameters(kind_of(model, mixers), USERS))


def test_the_rules_kernels_in_order() -> None:
    """Heads of queries and keys are repeated behind the convolution, so that the rule has as many of either."""
    forward, backward = launched(read(), "GE", batch=2, sequence=512)
    rule = [one.operator for one in forward if isinstance(one.operator, Scan)]
    assert [one.kernel for one in rule] == [
        "conv", "unit", "unit", "delta_cumsum", "delta_solve", "delta_factors", "delta_states", "delta_result",
    ]  # fmt: skip
    assert {(one.heads, one.head_dim, one.groups, one.state, one.chunk) for one in rule[1:]} == {(6, 8, 6, 16, 64)}
    assert rule[0].groups == 2 and rule[0].batch == 2
    assert [one.operator.kernel for one in backward if isinstance(one.operator, Scan)] == [
        "delta_factors", "delta_states", "delta_values", "delta_states_grad", "delta_keys", "delta_factors_grad",
        "delta_cumsum", "unit_grad", "unit_grad", "conv_backward",
    ]  # fmt: skip
    names = [one.operator.name for one in (*forward, *backward)]
    assert names.count("delta.query.repeat") == names.count("delta.query.grad.sum") == 1
    alike = [one.operator.name for one in launched(read(linear_num_key_heads=6), "GE")[0]]
    assert "delta.query.repeat" not in alike and "delta.query.copy" in alike


def test_products_of_both_families() -> None:
    """Qwen3-Next has one product for all but the numbers of heads, Qwen3.5 four, whose parts need no copies."""

    def products(model_type: str) -> dict[str, int]:
        launches = launched(read(model_type=model_type), "GE")[0]
        return {one.operator.name: one.operator.n for one in launches if isinstance(one.operator, Gemm)}

    joint, apart = products("qwen3_next"), products("qwen3_5_moe_text")
    assert (joint["in_proj"], joint["in_heads"], joint["out_proj"]) == (2 * KEYS + 2 * VALUES, 2 * HEADS, 64)
    assert [apart[name] for name in ("in_proj", "in_gate", "in_beta", "in_decay")] == [112, VALUES, HEADS, HEADS]
    cut = {one.operator.name for one in launched(read(), "GE")[0] if one.operator.name.endswith(".cut")}
    assert cut == {f"delta.{part}.cut" for part in ("value", "gate", "beta", "decay", "query", "key")}
    assert not [one for one in launched(read(model_type="qwen3_5_moe_text"), "GE")[0] if ".cut" in one.operator.name]


def test_attention_is_gated_by_its_own_product() -> None:
    forward, backward = launched(read(), "*E")
    query = next(one.operator for one in forward if one.operator.name == "query")
    assert (query.n, query.k) == (2 * 4 * 32, 64)
    names = [one.operator.name for one in (*forward, *backward)]
    assert names.index("attention.gated") == names.index("attention.gate.sigmoid") + 1 == names.index("output") - 1
    # Queries' gradients are turned from heads first to tokens first where they are joined with gates'.
    assert names.index("query.grad.cat") < names.index("query.wgrad")
    assert "rotary.key.grad.clone" in names and "rotary.query.grad.clone" not in names
    assert not [name for name in (one.operator.name for one in launched(read(), "GE")[0]) if "attention." in name]


def test_kept_memory_of_a_mixer_worked_out() -> None:
    tokens = 1024
    s = shard(kind_of(read(), "GE"), USERS, 1, tokens)
    conv = 2 * (2 * KEYS + VALUES)
    # Queries and keys of six heads, values, strengths and inverses; decays and two lengths in fp32.
    rule = 2 * (2 * 6 * 16 + VALUES + HEADS * (1 + 64)) + 3 * 4 * HEADS
    # In fp32 the norm's input, the gate and its SiLU; rounded the normed, the weighed and the gated.
    norm = (12 + 6) * VALUES + 4 * HEADS
    assert delta_net.kept_bytes(s) == tokens * (conv + rule + norm + 8 * HEADS)
    assert delta_net.kept_bytes(shard(kind_of(read(), "*E"), USERS, 1, tokens)) == 0.0
    states = tokens / 64 * 6 * 8 * 16
    assert delta_net.transient_bytes(s) == 2 * (tokens * (5 * 6 * 16 + 6 * VALUES) + 2 * states)
    assert micro_batch_bytes(s.config, USERS, 1, tokens).layer > delta_net.kept_bytes(s)


def test_gated_attention_keeps_the_gates_sigmoid_and_a_product() -> None:
    gated = kind_of(read(), "*E")
    plain = replace(gated, gated_attention=False)
    more = micro_batch_bytes(gated, USERS, 1, 1024).layer - micro_batch_bytes(plain, USERS, 1, 1024).layer
    assert more == 2 * 1024 * 2 * 4 * 32


@pytest.mark.parametrize(("mixers", "saved"), [("G", 1804 + 2 * 6 * 64 + 2 * 4 * 6), ("*", 3240)])
def test_kept_memory_is_what_autograd_saved(mixers: str, saved: int) -> None:
    """Bytes of a token that layers of transformers 5.17 with such mixers saved, tables and weights left out.

    The rule was there a stand-in that kept its inputs: its inverses and lengths are added. The norm in front keeps two
    tensors in fp32 and a root.
    """
    half = replace(kind_of(read(model_type="qwen3_5_text"), f"{mixers}-"), mixers=(mixers,))
    assert micro_batch_bytes(half, USERS, 2, 128).layer == 256 * (saved + 2 * 4 * 64 + 4)
