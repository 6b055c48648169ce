"""Models that are written into a plan: latent attention, and which layers have experts."""

import pytest

import joulecast as jc
from joulecast.model.architecture.hf import load_model
from joulecast.simulator.plan_file.plan import plan_from_dict

DEEPSEEK = {
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "num_hidden_layers": 61,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "shared_expert_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
}


def model(**changes):
    tables = {
        "workload": {"model": {**DEEPSEEK, **changes}, "sequence_length": 4096, "global_batch_size": 8},
        "cluster": {"gpu": "h100-sxm", "gpus": 8},
        "implementation": {"framework": "megatron"},
    }
    return plan_from_dict(tables).workload.model


def test_deepseek_v3_written_out_is_that_of_the_catalogue():
    known, written = load_model("deepseek-v3"), model()
    assert (written.parameters, written.active_parameters) == (known.parameters, known.active_parameters)
    assert (written.latent, written.head_dim, written.experts.dense_layers) == (known.latent, known.head_dim, 3)
    assert (written.experts.groups, written.experts.chosen_groups) == (8, 4)


def test_routers_of_sigmoids_may_look_at_groups():
    assert model().experts.router == "softmax"
    assert model(moe_router_score_function="sigmoid").experts.router == load_model("deepseek-v3").experts.router


def test_one_layer_in_so_many_has_experts():
    every = model(first_k_dense_replace=0, moe_layer_freq=2, num_hidden_layers=4).experts
    assert [every.stand_in(layer) for layer in range(4)] == [True, False, True, False]


def test_normalised_heads_have_their_weights():
    base = {key: value for key, value in DEEPSEEK.items() if not key.endswith("lora_rank")}
    tables = {"workload": {"sequence_length": 4096, "global_batch_size": 8}, "cluster": {"gpu": "h100-sxm", "gpus": 8}}
    sizes = []
    for normed in (False, True):
        tables["workload"]["model"] = {**base, "head_dim": 128, "qk_norm": normed}
        sizes.append(plan_from_dict(tables).workload.model.parameters)
    assert sizes[1] - sizes[0] == 61 * 2 * 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": None}, r"model.q_lora_rank.*size of latent attention.*kv_lora_rank"),
        ({"n_group": 7}, r"model.n_group.*256 experts cannot be in 7 groups"),
        ({"topk_group": 9}, r"9 of which a token may choose from"),
        ({"num_experts": None}, r"model.num_experts\]: experts have no such size.*leave num_experts_per_tok out"),
    ],
)
def test_sizes_that_do_not_fit_together(changes, message):
    with pytest.raises(jc.InputError, match=message):
        model(**changes)
