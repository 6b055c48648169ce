"""Reading Hugging Face configurations and counting parameters exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.architecture.hf import load_model, model_names
from joulecast.simulator.plan_file.plan import plan_from_dict

KNOWN_TOTALS = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-7b-v0.2": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "seed-oss-36b": 36_151_104_512,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "tinyllama-1.1b": 1_100_048_384,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "phi-3-mini": 3_821_079_552,
    # Counted by transformers 5.17 on the meta device.
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    # The same, without tower and projector.
    "qwen2.5-vl-3b": 3_085_938_688,
    "qwen2.5-vl-7b": 7_615_616_512,
    "qwen2.5-vl-72b": 72_706_203_648,
    "qwen3-vl-4b": 4_022_468_096,
    "qwen3-vl-8b": 8_190_735_360,
    "qwen3-vl-32b": 32_762_123_264,
    "qwen3-vl-30b-a3b": 30_532_122_624,
    "qwen3-vl-235b-a22b": 235_093_634_560,
    "llava-1.5-7b": 6_738_939_904,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "glm-4-9b": 9_400_279_040,
    "glm-4.5-air": 106_852_245_504,
    "glm-4.5": 352_797_814_784,
    "phi-4": 14_659_507_200,
    "phi-2": 2_779_683_840,
    "phi-1.5": 1_418_270_720,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-3.3-70b": 70_553_706_496,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "falcon-180b": 178_557_088_768,
    "starcoder2-15b": 15_957_889_024,
    "command-r-35b": 34_980_831_232,
    "granite-3.1-8b": 8_170_835_968,
    "pythia-6.9b": 6_857_302_016,
    "smollm3-3b": 3_075_098_624,
    "command-r7b": 8_028_033_024,
    "command-a": 111_057_580_032,
    "exaone-4-32b": 32_003_216_384,
    "mistral-small-24b": 23_572_403_200,
    "minimax-m2": 228_689_748_992,
    "glm-4.6": 352_797_814_784,
    "kimi-k2": 1_026_408_209_408,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "bloom-7b": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "mpt-7b": 6_649_286_656,
    "mpt-30b": 29_957_200_896,
    "yi-6b": 6_061_035_520,
    "yi-9b": 8_829_407_232,
    "yi-34b": 34_388_917_248,
    "codellama-7b": 6_738_546_688,
    "codellama-13b": 13_016_028_160,
    "codellama-34b": 33_743_970_304,
    "codellama-70b": 68_976_910_336,
    "falcon3-1b": 1_669_408_768,
    "falcon3-3b": 3_227_655_168,
    "falcon3-7b": 7_455_550_464,
    "falcon3-10b": 10_305_653_760,
    "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
    "phi-3.5-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "phi-4-mini": 3_836_021_760,
    "granite-4.0-h-tiny": 6_939_037_248,
    "granite-4.0-micro": 3_402_836_480,
    # Their parts that read text.
    "llama-4-scout": 107_769_861_120,
    "llama-4-maverick": 400_711_848_960,
}

#: Sizes in units of 1e9 as the papers round them (the two smallest with one digit more).
ROUNDED = {
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 140.6,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.1,
    "deepseek-v3": 671.0,
    "moonlight-16b-a3b": 15.96,
    "qwen2-57b-a14b": 57.4,
    "qwen3-coder-480b-a35b": 480.0,
    "dots.llm1": 142.8,
    "gpt-1.7b": 1.65,
    "gpt-3.6b": 3.56,
    "gpt-7.5b": 7.5,
    "gpt-18b": 18.4,
    "gpt-22b": 22.0,
    "gpt-39b": 39.1,
    "gpt-76b": 76.1,
    "gpt-145b": 145.6,
    "gpt3-175b": 174.6,
    "gpt-310b": 310.1,
    "gpt-530b": 529.6,
    "gpt-1t": 1008.0,
    "nemotron-4-15b": 15.6,
    "nemotron-4-340b": 341.0,
    "nemotron-h-8b": 8.1,
    "nemotron-h-56b": 56.3,
    "nemotron-3-nano-30b-a3b": 31.6,
    "nemotron-3-super-120b-a12b": 120.7,
    "granite-3.1-2b": 2.53,
    "granite-4.0-h-micro": 3.19,
    "granite-4.0-h-small": 32.2,
    "qwen3-next-80b-a3b": 79.67,
    "nemotron-3-ultra-550b-a55b": 550.0,
    "exaone-4-1.2b": 1.28,
    "ernie-4.5-0.3b": 0.36,
    "ernie-4.5-21b-a3b": 21.8,
    "ernie-4.5-300b-a47b": 300.0,
    "hunyuan-7b": 7.5,
    "hunyuan-a13b": 80.4,
    "ling-mini-2.0": 16.26,
    "ling-flash-2.0": 103.0,
}

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def write(tmp_path: Path, **changes: Any) -> Path:
    content = {k: v for k, v in {**SMALL, **changes}.items() if v is not ...}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(("name", "total"), KNOWN_TOTALS.items())
def test_published_totals_are_met_exactly(name: str, total: int) -> None:
    assert load_model(name).parameters == total


@pytest.mark.parametrize(("name", "billions"), ROUNDED.items())
def test_papers_rounded_sizes_are_met(name: str, billions: float) -> None:
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, rel=0.006)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("ling-mini-2.0", 1.43),
        ("ling-flash-2.0", 6.1),
        ("hunyuan-a13b", 12.7),
        ("ernie-4.5-21b-a3b", 3.35),
        ("ernie-4.5-300b-a47b", 47.9),
        ("nemotron-3-ultra-550b-a55b", 56.06),
        ("granite-4.0-h-tiny", 1.47),
    ],
)
def test_parameters_that_a_token_meets_are_as_model_cards_round_them(name: str, billions: float) -> None:
    """With both embeddings, which some cards leave out."""
    assert load_model(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_numbers_of_each_layer_are_read_where_layers_are_alike(tmp_path: Path) -> None:
    lists = {"model_type": "hunyuan_v1_moe", "num_experts": 8, "moe_topk": [2, 2], "num_shared_expert": [1, 1]}
    model = load_model(str(write(tmp_path, **lists, moe_intermediate_size=[32, 32])))
    assert model.experts is not None
    assert (model.experts.active, model.experts.ffn, model.experts.shared_ffn) == (2, 32, 32)
    one = load_model(str(write(tmp_path, **lists | {"moe_topk": 2})))
    assert one.experts is not None and (one.experts.active, one.experts.ffn) == (2, 128)
    with pytest.raises(InputError, match=r"num_experts_per_tok.*\[2, 4\]"):
        load_model(str(write(tmp_path, **lists | {"moe_topk": [2, 4]})))


def test_layers_of_ernie_have_experts_from_one_to_another(tmp_path: Path) -> None:
    ernie = {"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32}
    for given, expected in (
        ({}, [False, True, True, True]),
        ({"moe_layer_start_index": 2}, [False, False, True, True]),
        ({"moe_layer_end_index": 2}, [False, True, True, False]),
        ({"moe_layer_end_index": -1, "moe_layer_start_index": 0}, [True] * 4),
    ):
        experts = load_model(str(write(tmp_path, **ernie, **given, num_hidden_layers=4))).experts
        assert experts is not None
        assert [experts.stand_in(layer) for layer in range(4)] == expected


def test_an_activation_with_weights_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="xIELU"):
        load_model(str(write(tmp_path, model_type="apertus", hidden_act="xielu")))


def test_every_model_of_the_catalogue_loads_and_is_checked() -> None:
    assert set(model_names()) == {*KNOWN_TOTALS, *ROUNDED}
    for name in model_names():
        assert load_model(name).name == name


def test_aliases_lead_to_the_same_model() -> None:
    assert load_model("llama-3-8b") == load_model("Llama-3.1-8B")


def test_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-8b"):
        load_model("lama-3.1-8b")


@pytest.mark.parametrize(
    ("rope", "scaled"),
    [
        ({"rope_type": "yarn", "factor": 32.0}, True),
        ({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}, False),
        ({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5}, True),
        ({"rope_type": "yarn", "factor": 1.0}, False),
        ({"rope_type": "llama3", "factor": 8.0}, False),
    ],
)
def test_yarn_may_multiply_what_it_rotates(tmp_path: Path, rope: dict[str, object], scaled: bool) -> None:
    assert load_model(write(tmp_path, rope_scaling=rope)).scaled_rotary is scaled


def test_both_spellings_of_rope_agree(tmp_path: Path) -> None:
    old = load_model(write(tmp_path, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0}))
    new = load_model(write(tmp_path, rope_parameters={"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}))
    assert old == new
    assert (old.rope_theta, old.rope_type) == (5e5, "linear")


def test_head_dim_is_read_and_else_derived(tmp_path: Path) -> None:
    assert load_model(write(tmp_path)).head_dim == 16
    assert load_model(write(tmp_path, head_dim=32)).qkv_width == 8 * 32


def test_folder_holding_a_config_is_accepted(tmp_path: Path) -> None:
    write(tmp_path)
    assert load_model(tmp_path).name == tmp_path.name


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"hidden_size": ...}, "hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": 66}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"model_type": ...}, "model_type"),
        ({"model_type": "lama"}, "model_type"),
        ({"hidden_act": "silo"}, "hidden_act"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"rope_parameters": 7}, "rope_parameters"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_parameters.rope_theta"),
    ],
)
def test_bad_configurations_name_file_and_key(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    file = write(tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        load_model(file)
    assert str(file) in str(caught.value)
    assert key in str(caught.value)


def test_broken_json_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{\n"model_type": "llama",\n oops }')
    with pytest.raises(InputError, match=r"config\.json:3"):
        load_model(file)


def test_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such model file"):
        load_model(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Qwen/Qwen3-30B-A3B", "The catalogue has 'qwen3-30b-a3b'; of any other model give the path"),
        ("meta-llama/Meta-Llama-3-8B", "The catalogue has 'llama-3-8b'"),
        ("models/config.json", "Give a config.json or a name of `joulecast models`."),
        ("./Qwen3-30B-A3B", "Give a config.json or a name of `joulecast models`."),
        ("somebody/zzzz", "Give a config.json or a name of `joulecast models`."),
    ],
)
def test_a_name_of_the_hub_is_answered_with_that_of_the_catalogue(name: str, says: str) -> None:
    with pytest.raises(InputError, match="no such model file") as caught:
        load_model(name)
    assert str(caught.value.remedy).startswith(says)
    tables = {
        "workload": {"model": name, "sequence_length": 4096, "global_batch_size": 8},
        "cluster": {"gpu": "h200-sxm", "gpus": 8},
    }
    with pytest.raises(InputError, match="no such file") as caught:
        plan_from_dict(tables)
    assert str(caught.value.remedy).startswith("The catalogue has") == says.startswith("The catalogue has")
