"""Models with state spaces: their files, parameters, operations, kernels on ranks, and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from joulecast.errors import InputError, NotYetError
from joulecast.model.architecture.hf import load_model, parse_config
from joulecast.model.architecture.model_flops import matrix_elements, megatron_flops, training_flops
from joulecast.model.architecture.state_space import StateSpace
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.framework.narrow import Narrow
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Scan
from joulecast.model.memory.activations import micro_batch_bytes
from joulecast.model.training.data_parallel import gradient_sizes
from joulecast.model.training.parameters import layer_parameters, parameters_of_stage
from joulecast.model.training.step import layer_backward, layer_forward
from joulecast.model.transformer.state_space import transient_bytes

NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 64, "num_hidden_layers": 6, "hybrid_override_pattern": "M-M*E-",
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 1000,
    "max_position_embeddings": 128, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 2,
    "conv_kernel": 4, "chunk_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 80,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "shared_intermediate_size": 96, "vocab_size": 1000, "max_position_embeddings": 128,
    "layer_types": ["mamba", "mamba", "attention", "mamba"], "mamba_n_heads": 8, "mamba_d_head": 16,
    "mamba_d_state": 32, "mamba_n_groups": 1, "position_embedding_type": "nope", "num_local_experts": 0,
    "tie_word_embeddings": True,
}  # fmt: skip
BAMBA: dict[str, Any] = {
    "model_type": "bamba", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 1000, "max_position_embeddings": 128,
    "attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_d_state": 32, "mamba_n_groups": 1,
}  # fmt: skip
MAMBA2: dict[str, Any] = {
    "model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 1000, "num_heads": 8,
    "head_dim": 16, "state_size": 32, "n_groups": 1, "residual_in_fp32": False,
}  # fmt: skip
MEGATRON = Implementation(framework="megatron")
USERS = Implementation(modules="transformers")
RUNS = (MEGATRON, USERS)
#: Of the small mixer: two widths of 128 and 2 or 4 x 32 channels of B and C, a step for each of 8 heads.
INNER, CHANNELS = 128, 128 + 2 * 2 * 32


def read(**keys: Any):
    return parse_config(keys, name="x", file="x.json")


def mixer(groups: int) -> int:
    """Parameters of the small mixer, worked out."""
    channels = 128 + 2 * groups * 32
    return 64 * (128 + channels + 8) + 5 * channels + 3 * 8 + 128 + 128 * 64


def test_parameters_of_every_kind_of_layer_worked_out() -> None:
    attention, mlp = 64 * (4 + 2 * 2) * 16 + 64 * 64, 2 * 64 * 96
    experts = 8 * 64 + 2 * 64 * (8 * 48 + 80)
    assert read(**NEMOTRON).parameters == 2 * 64_000 + 2 * mixer(2) + attention + 2 * mlp + experts + 7 * 64
    assert read(**NEMOTRON).active_parameters == read(**NEMOTRON).parameters - 2 * 64 * 6 * 48
    assert read(**GRANITE).parameters == 64_000 + 3 * mixer(1) + attention + 4 * 3 * 64 * 96 + 9 * 64
    assert read(**BAMBA).parameters == 64_000 + read(**GRANITE).parameters
    assert read(**MAMBA2).parameters == 2 * 64_000 + 4 * mixer(1) + 5 * 64


@pytest.mark.parametrize(
    ("name", "run"),
    [
        *((name, run) for name in ("nemotron-h-8b", "nemotron-3-nano-30b-a3b", "granite-4.0-h-small") for run in RUNS),
        ("nemotron-3-super-120b-a12b", MEGATRON),
    ],
)
def test_tensors_are_all_parameters(name: str, run: Implementation) -> None:
    config = load_model(name)
    tensors = parameters_of_stage(
        config, run, config.layers, first=True, last=True, others=config.others(0, config.layers)
    )
    assert sum(tensor.elements for tensor in tensors) == config.parameters


def test_published_numbers_of_active_parameters() -> None:
    """Of Nemotron 3 Nano 3.6e9 with both tables of tokens, 3.2e9 without the one in front; of Granite 9e9."""
    nano = load_model("nemotron-3-nano-30b-a3b")
    assert nano.active_parameters == pytest.approx(3.58e9, rel=2e-3)
    assert nano.active_parameters - nano.vocab * nano.hidden == pytest.approx(3.2e9, rel=0.01)
    assert load_model("granite-4.0-h-small").active_parameters == pytest.approx(9e9, rel=0.03)


def test_published_parameters_of_latent_experts() -> None:
    """123,611,033,088 with one module for a further token, of them 41 biases of 512 scores; a token meets 12.77e9."""
    model = load_model("nemotron-3-super-120b-a12b")
    further = model.prediction_layer.layer_parameters() + 2 * model.hidden**2 + 3 * model.hidden
    assert model.parameters + further + 41 * 512 == 123_611_033_088
    assert further + 512 == 2_942_324_736 + 512 and model.active_parameters == 12_770_216_960
    assert model.prediction_layer.mixers == ("*E",) and model.prediction_layer.state_space is None


def test_latent_experts_work_and_are_sent_in_their_width() -> None:
    """Two products beside them, forward; experts', their copies and their exchange are half as wide."""
    run = replace(MEGATRON, expert_parallel=4)
    keys = {**NEMOTRON, "hybrid_override_pattern": "MEMEME"}
    usual, latent = (read(**keys, **more).kinds[-1] for more in ({}, {"moe_latent_size": 32}))
    assert usual.experts is not None and latent.experts is not None
    narrow, wide = (layer_forward(one, run, 2, 128) for one in (latent, usual))
    added = [one.operator for one in narrow if "latent" in one.operator.name]
    assert [(one.m, one.n, one.k) for one in added if isinstance(one, Gemm)] == [(256, 32, 64), (256, 64, 32)]
    for name in ("experts.up", "experts.down"):
        sizes = [next((g.m, g.n * g.k) for one in x if (g := one.operator).name == name) for x in (narrow, wide)]
        assert sizes[0] == (sizes[1][0], sizes[1][1] // 2)
    sent = [sum(g.bytes for one in x if isinstance(g := one.operator, Collective)) for x in (narrow, wide)]
    assert sent[0] < 0.6 * sent[1]
    assert layer_parameters(latent, run) != layer_parameters(usual, run)
    back = [one.operator.name for one in layer_backward(latent, run, 2, 128)]
    assert back.index("experts.latent_up.dgrad") < back.index("experts.down.dgrad")
    assert back.index("experts.up.dgrad") < back.index("experts.latent_down.dgrad") < back.index("router.dgrad")


def test_layers_are_told_by_letters_words_or_places() -> None:
    letters = read(**NEMOTRON)
    assert letters.mixers == ("M", "-", "M", "*", "E", "-")
    left_out = ("hybrid_override_pattern", "num_hidden_layers")
    words = {key: value for key, value in NEMOTRON.items() if key not in left_out}
    for names in (("mamba", "attention"), ("linear_attention", "full_attention")):
        said = {"M": names[0], "*": names[1], "-": "mlp", "E": "moe"}
        assert read(**words, layers_block_type=[said[one] for one in "M-M*E-"]) == letters
    assert read(**GRANITE).mixers == ("M-", "M-", "*-") == read(**BAMBA).mixers
    assert read(**MAMBA2).mixers == ("M",)
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 48}
    assert read(**{**GRANITE, **experts}).mixers == ("ME", "ME", "*E")
    assert read(**BAMBA).state_space == StateSpace(8, 16, 32)


def test_hybrid_files_of_attention_alone_are_of_usual_models() -> None:
    """Granite 4.0's small models are of the hybrid's type and have no state space."""
    usual = read(**{**GRANITE, "layer_types": ["attention"] * 4, "position_embedding_type": "rope"})
    assert (usual.mixers, usual.state_space, usual.experts, usual.rotary) == ((), None, None, True)
    assert usual.parameters == 64_000 + 4 * (64 * 128 + 64 * 64 + 3 * 64 * 96) + 9 * 64


def test_positions_are_those_that_a_file_asks_for() -> None:
    for keys, rotary in ((NEMOTRON, False), (GRANITE, False), (BAMBA, True), (MAMBA2, False)):
        config = read(**keys)
        assert (config.rotary, config.learned_positions) == (rotary, 0)
    assert read(**{**GRANITE, "position_embedding_type": "rope"}).rotary


@pytest.mark.parametrize(
    ("keys", "changed", "message"),
    [
        (NEMOTRON, {"hybrid_override_pattern": "M-M*EX"}, "must say what each layer is made of"),
        (NEMOTRON, {"hybrid_override_pattern": "M-M*"}, "4 kinds for 6 layers"),
        (GRANITE, {"layer_types": ["mamba", "mlp", "attention", "mamba"]}, "must say what each layer is made of"),
        (GRANITE, {"layer_types": None}, "must say what each layer is made of"),
        (BAMBA, {"attn_layer_indices": [7]}, "list of layers from 0 to 3"),
        (BAMBA, {"mamba_n_groups": 3}, "8 heads are not divisible by 3 groups"),
        (NEMOTRON, {"n_routed_experts": None}, "missing n_routed_experts"),
    ],
)
def test_layers_that_cannot_be_are_refused(keys: dict[str, Any], changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(**{**keys, **changed})


@pytest.mark.parametrize(
    ("keys", "changed", "message"),
    [
        (NEMOTRON, {"block_configs": [{}]}, "layers of different sizes"),
        (NEMOTRON, {"residual_in_fp32": True}, "not implemented"),
        (MAMBA2, {"residual_in_fp32": None}, "not implemented"),
        (GRANITE, {"model_type": "zamba2"}, "attention that layers share"),
        (NEMOTRON, {"model_type": "jamba"}, "the first Mamba"),
        (NEMOTRON, {"model_type": "llama"}, "state-space"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(keys: dict[str, Any], changed: dict[str, Any], message: str) -> None:
    with pytest.raises(NotYetError, match=message) as caught:
        read(**{name: value for name, value in {**keys, **changed}.items() if value is not None})
    assert "\n" not in str(caught.value)


def test_operations_of_a_step_worked_out() -> None:
    config = read(**{**NEMOTRON, "hybrid_override_pattern": "M*M-M*"})
    weights = 3 * (64 * (128 + CHANNELS + 8) + 128 * 64) + 2 * (64 * 128 + 64 * 64) + 2 * 64 * 96 + 64_000
    kinds = {kind.mixers[0]: matrix_elements(kind) for kind in config.kinds}
    assert 3 * kinds["M"] + 2 * kinds["*"] + kinds["-"] + 64_000 == weights
    # A position and earlier ones of its chunk of 128, half of them: 2 x 2 x 32 for C·B, 2 x 128 for what is scanned;
    # with states of 32 values each 2 x 32 x 128 into and out of them.
    scans = 3 * (64 * 2 * (2 * 32 + 128) + 2 * 2 * 32 * 128)
    pairs = 2 * 2 * 4 * 16 * 256
    assert training_flops(config, 256, 5.0) == 3 * 5 * (2 * weights + pairs + scans)
    # Megatron scans twice the hidden size, here as wide, with 7 operations for a value and state.
    assert megatron_flops(config, 256, 5.0) == 3 * 5 * (2 * weights + pairs + 3 * 7 * 128 * 32)
    narrow = read(**{**NEMOTRON, "hybrid_override_pattern": "M*M-M*", "mamba_num_heads": 4})
    more = megatron_flops(narrow, 256, 1.0) - training_flops(narrow, 256, 1.0)
    assert more == 3 * 3 * (2 * 64 * 3 * 64 + 7 * 128 * 32 - narrow.state_space.scan_operations(256))


def kinds_of(name: str) -> dict[str, Any]:
    return {kind.mixers[0]: kind for kind in load_model(name).kinds}


@pytest.mark.parametrize("run", [MEGATRON, USERS])
def test_each_layer_runs_its_own_part_alone(run: Implementation) -> None:
    for mixers, kind in kinds_of("nemotron-3-nano-30b-a3b").items():
        launches = (*layer_forward(kind, run, 1, 4096), *layer_backward(kind, run, 1, 4096))
        operators = {type(one.operator) for one in launches}
        assert (Scan in operators) == (mixers == "M") and (Attention in operators) == (mixers == "*")
        names = {one.operator.name for one in launches}
        assert ("router" in names or any("router" in name for name in names)) == (mixers == "E")
        assert sum(name in ("residual1", "residual2") for name in names) == 1
        done = [one.completes for one in layer_backward(kind, run, 1, 4096, accumulate=False) if one.completes]
        assert sorted(done) == sorted(p.name for p in layer_parameters(kind, run)) or mixers == "E"
    both = {kind.mixers[0]: kind for kind in load_model("granite-4.0-h-micro").kinds}["M-"]
    names = {one.operator.name for one in layer_forward(both, run, 1, 4096)}
    assert {"residual1", "residual2", "in_proj", "out_proj", "down", "scan.scan"} <= names


def test_the_products_of_a_mixer_are_its_projections() -> None:
    mixer, tokens = kinds_of("nemotron-h-8b")["M"], 2 * 4096
    sizes = {
        one.operator.name: (one.operator.m, one.operator.n, one.operator.k)
        for one in layer_forward(mixer, MEGATRON, 2, 4096)
        if isinstance(one.operator, Gemm)
    }
    # Two widths of 8,192, eight groups of 128 for B and C each, 128 heads' steps.
    assert sizes == {"in_proj": (tokens, 18_560, 4096), "out_proj": (tokens, 4096, 8192)}


def test_heads_and_groups_are_split_over_tensor_parallel_ranks() -> None:
    mixer, run = kinds_of("nemotron-h-8b")["M"], replace(MEGATRON, tensor_parallel=8, sequence_parallel=True)
    scans = [one.operator for one in layer_forward(mixer, run, 1, 8192) if isinstance(one.operator, Scan)]
    assert {(one.heads, one.groups, one.sequence) for one in scans} == {(16, 1, 8192)}
    forward = [one.operator for one in layer_forward(mixer, run, 1, 8192) if isinstance(one.operator, Collective)]
    assert [(one.kind, one.bytes) for one in forward] == [
        ("all_gather", 8192 * 4096 * 2), ("reduce_scatter", 8192 * 4096 * 2),
    ]  # fmt: skip
    whole, parts = (sum(p.elements for p in layer_parameters(mixer, one)) for one in (MEGATRON, run))
    assert whole - 4096 == 8 * (parts - 4096)  # all but the norm in front
    with pytest.raises(InputError, match="groups"):
        shard(mixer, replace(run, tensor_parallel=16), 1, 8192)


def test_megatron_gates_within_the_scan_and_transformers_within_the_norm() -> None:
    mixer = kinds_of("nemotron-h-8b")["M"]
    gated = {
        run.framework: {
            one.operator.kernel: one.operator.gated
            for one in (*layer_forward(mixer, run, 1, 4096), *layer_backward(mixer, run, 1, 4096))
            if isinstance(one.operator, Scan)
        }
        for run in (MEGATRON, USERS)
    }
    assert gated["megatron"]["scan"] and not gated["megatron"]["norm"] and "dz" in gated["megatron"]
    assert gated["pytorch-eager"]["norm_again"] and "dz" not in gated["pytorch-eager"]


def test_several_sequences_are_turned_in_megatron() -> None:
    mixer = kinds_of("nemotron-h-8b")["M"]
    turned = [one.operator for one in layer_forward(mixer, MEGATRON, 2, 4096) if "turn" in one.operator.name]
    assert [one.elements for one in turned] == [2 * 4096 * 18_560, 2 * 4096 * 8192]
    assert not [one for one in layer_forward(mixer, MEGATRON, 1, 8192) if "turn" in one.operator.name]


def test_full_recomputation_runs_a_mixer_again() -> None:
    mixer = kinds_of("nemotron-h-8b")["M"]
    for run in (MEGATRON, USERS):
        usual, again = (layer_backward(mixer, replace(run, recompute=way), 1, 4096) for way in ("none", "full"))
        repeated = [one.operator.name for one in again[: len(again) - len(usual)]]
        assert {"in_proj", "scan.scan", "out_proj"} <= set(repeated)
        assert ("residual1" in repeated) == (run.framework == "megatron")
    selective = replace(MEGATRON, recompute="selective", recompute_modules=("core_attn", "layernorm", "mlp"))
    assert layer_backward(mixer, selective, 1, 4096) == layer_backward(mixer, MEGATRON, 1, 4096)
    assert micro_batch_bytes(mixer, selective, 1, 4096).layer == micro_batch_bytes(mixer, MEGATRON, 1, 4096).layer


def test_projections_run_in_fp8_and_scans_do_not() -> None:
    mixer, run = kinds_of("nemotron-h-8b")["M"], replace(MEGATRON, narrow=Narrow())
    launches = (*layer_forward(mixer, run, 1, 4096), *layer_backward(mixer, run, 1, 4096))
    assert {one.operator.dtype for one in launches if isinstance(one.operator, Gemm)} == {"fp8"}
    assert {one.operator.dtype for one in launches if isinstance(one.operator, Scan)} == {"bf16"}


def test_kept_memory_of_a_mixer_worked_out() -> None:
    """What the fused function saves is the projection's result and the scan's, and statistics of eight groups."""
    mixer, tokens = kinds_of("nemotron-h-8b")["M"], 4096
    stream, inner, projected = 2 * tokens * 4096, 2 * tokens * 8192, 2 * tokens * 18_560
    groups, row = 4 * tokens * 8, 4 * tokens
    # The norm's input and its result, then the gated result and the second norm's where that stands by itself.
    megatron = 2 * stream + row + projected + inner + groups + 2 * inner
    assert micro_batch_bytes(mixer, MEGATRON, 1, tokens).layer == megatron
    # transformers' norm of tensor operations keeps values in fp32 and rounded beside its result.
    users = 4 * stream + row + projected + inner + groups
    assert micro_batch_bytes(mixer, USERS, 1, tokens).layer == users
    split = replace(MEGATRON, tensor_parallel=4, sequence_parallel=True)
    assert micro_batch_bytes(mixer, split, 1, tokens).layer == megatron / 4


def test_memory_that_a_scans_backward_makes_worked_out() -> None:
    s = shard(kinds_of("nemotron-h-8b")["M"], MEGATRON, 1, 4096)
    states, pairs = 32 * 8192 * 128, 4096 * 8 * 128
    tensors = 2 * 4096 * (2 * 10_240 + 18_560 + 8192)
    assert transient_bytes(s) == tensors + 12 * states + 4 * pairs
    assert transient_bytes(shard(kinds_of("nemotron-h-8b")["-"], MEGATRON, 1, 4096)) == 0.0


def test_sizes_of_gradients_are_known_of_all_kinds() -> None:
    sizes = gradient_sizes(load_model("nemotron-3-nano-30b-a3b"), MEGATRON)
    assert {"in_proj.weight", "qkv.weight", "experts.up.weight", "norm1.weight", "norm2.weight"} <= set(sizes)
