"""Experts of a model as its ``config.json`` tells them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joulecast.errors import InputError
from joulecast.model.architecture.experts import Experts
from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig

QWEN = {
    "model_type": "qwen3_moe",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "vocab_size": 4096,
}


def read(folder: Path, **changes: Any) -> ModelConfig:
    file = folder / "config.json"
    file.write_text(json.dumps({**QWEN, **changes}))
    return load_model(file)


def test_a_file_with_experts_is_read(tmp_path: Path):
    assert read(tmp_path).experts == Experts(16, 2, 256)
    shared = read(tmp_path, model_type="qwen2_moe", shared_expert_intermediate_size=512)
    assert shared.experts == Experts(16, 2, 256, shared_ffn=512, shared_gate=True)
    renamed = {key: value for key, value in QWEN.items() if key != "num_experts"}
    (tmp_path / "newer.json").write_text(json.dumps({**renamed, "num_local_experts": 16}))
    assert load_model(tmp_path / "newer.json").experts == Experts(16, 2, 256)


@pytest.mark.parametrize(
    ("changes", "turns", "dense"),
    [
        ({}, (), 0),
        ({"decoder_sparse_step": 2}, (False, True), 2),
        ({"mlp_only_layers": [1]}, (True, False, True), 1),
        ({"mlp_only_layers": [0, 2]}, (False, True), 2),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (False, False, False, True), 3),
    ],
)
def test_layers_with_and_without_experts_take_turns(
    tmp_path: Path, changes: dict[str, Any], turns: tuple[bool, ...], dense: int
):
    config = read(tmp_path, num_hidden_layers=4, **changes)
    assert config.experts is not None
    assert (config.experts.turns, config.dense_layers) == (turns, dense)
    assert sum(config.others(0, 4)) == dense
    plain, without = read(tmp_path, num_hidden_layers=4), config.dense
    assert plain.parameters - config.parameters == dense * (plain.layer_parameters() - without.layer_parameters())


@pytest.mark.parametrize(
    ("changes", "key", "kind"),
    [
        ({"num_experts_per_tok": 17}, "num_experts_per_tok", InputError),
        ({"num_experts": 0}, "num_experts", InputError),
        ({"n_group": 7}, "n_group", InputError),
        ({"n_group": 4, "topk_group": 5}, "topk_group", InputError),
        ({"mlp_only_layers": [99]}, "mlp_only_layers", InputError),
        ({"mlp_only_layers": 1}, "mlp_only_layers", InputError),
        ({"model_type": "llama"}, "num_experts", InputError),
    ],
)
def test_a_file_that_cannot_be_used_names_its_key(tmp_path: Path, changes: dict[str, Any], key: str, kind: type):
    with pytest.raises(kind, match=key):
        read(tmp_path, **changes)
