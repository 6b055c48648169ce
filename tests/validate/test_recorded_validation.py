"""Forecasts against the blocks, overlapped layers and iterations that are shipped for validation, never fitted to."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from row_files import json_rows, write_json

import joulecast as jc
from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.training.generation import STEP_OVERHEAD_S, Generated, decode_step, engine_of
from joulecast.validate import run_suite

ROWS = Path(str(files("joulecast.validate").joinpath("recorded", "h200_sxm")))


def iterations(file: str | Path, rows: int, card: str = "h200") -> tuple[dict[str, Any], dict[str, float]]:
    """Summary of iterations recorded on a card, all of them forecast, and each one's error of time."""
    result = run_suite("train", ROWS.parent / f"{card}_sxm" / file, gpu=f"{card}-sxm").to_dict()
    summary = result["summary"]["all"]
    assert not result["skipped"] and summary["rows"] == rows
    return summary, {r["name"]: r["predicted"]["time_s"] / r["measured"]["time_s"] - 1 for r in result["rows"]}


@pytest.mark.parametrize(("suite", "rows"), [("blocks", 16), ("train", 15), ("overlap", 52)])
def test_mean_errors_stay_within_three_percent(suite: str, rows: int) -> None:
    name = {"blocks": "blocks", "train": "train_iterations", "overlap": "overlap"}[suite]
    result = run_suite(suite, ROWS / f"{name}.jsonl", gpu="h200-sxm-rows").to_dict()
    summary = result["summary"]["all"]
    assert not result["skipped"]
    assert summary["rows"] == rows
    assert summary["time_error_percent"] <= 3.0
    assert summary["energy_error_percent"] <= 3.0
    assert summary["time_worst_percent"] <= 6.1
    assert summary["energy_worst_percent"] <= (7.0 if suite == "overlap" else 6.0)
    assert summary["time_inside_percent"] >= 80.0
    assert summary["energy_inside_percent"] >= 80.0
    assert summary["time_error_percent"] < 0.5 * summary["time_baseline_percent"]


def test_sharded_iterations_that_were_measured_after_they_had_been_forecast() -> None:
    """FSDP on two and four GPUs of three hosts, three models: nothing was fitted to any row of this kind."""
    summary, _ = iterations("train_sharded.jsonl", 21)
    assert summary["time_error_percent"] <= 2.0 and summary["energy_error_percent"] <= 2.0
    assert summary["time_worst_percent"] <= 6.0 and summary["energy_worst_percent"] <= 6.0
    assert summary["time_inside_percent"] >= 90.0 and summary["energy_inside_percent"] >= 90.0
    assert summary["power_inside_percent"] >= 90.0 and summary["power_half_width_percent"] < 3.0
    assert summary["time_error_percent"] < 0.1 * summary["time_baseline_percent"]


def test_split_sequences_on_two_slow_cards() -> None:
    """Forecast before they were measured; both cards are slow at the limit, as the data-parallel iteration tells."""
    summary, errors = iterations("train_context.jsonl", 18)
    assert summary["time_error_percent"] <= 3.5 and summary["energy_error_percent"] <= 3.0
    assert summary["time_worst_percent"] <= 6.0 and summary["energy_worst_percent"] <= 6.0
    longer = {name: 1 / (1 + error) for name, error in errors.items()}
    split = [ratio for name, ratio in longer.items() if "_cp2_" in name]
    assert len(split) == 15
    assert sum(split) / 15 == pytest.approx(longer["train_llama8b_L8_S8192_mb1_M1_dp2"], abs=0.01)


def test_grouped_products_of_experts_whose_kind_gave_no_estimate() -> None:
    """Their time, energy and clock: a kernel that did less in a cycle would run at a higher clock than is forecast."""
    rows = run_suite("kernels", ROWS / "experts.jsonl", gpu="h200-sxm").to_dict()["rows"]
    held_out = [row for row in rows if row["name"].startswith("experts_grouped_down")]
    assert len(held_out) == 8
    for quantity, most in (("time_s", 0.028), ("energy_j", 0.035), ("sm_clock_mhz", 0.035)):
        errors = [abs(row["predicted"][quantity] / row["measured"][quantity] - 1.0) for row in held_out]
        assert sum(errors) / 8 <= most


def test_experts_on_the_same_cards() -> None:
    """Forecast 12 % off before they were measured: that PyTorch's own operators sort and sum rows is now said."""
    summary, _ = iterations("train_experts.jsonl", 6)
    assert summary["time_error_percent"] <= 6.0 and summary["energy_error_percent"] <= 6.0
    assert summary["time_worst_percent"] <= 7.0 and summary["energy_worst_percent"] <= 7.0


def test_float8_and_compiled_layers() -> None:
    """Without a form for either, forecasts were 3.5 to 51 % off; kernels gave the constants but for two of them."""
    summary, errors = iterations("train_float8.jsonl", 16)
    assert summary["time_error_percent"] <= 1.5 and summary["energy_error_percent"] <= 2.0
    assert max(map(abs, errors.values())) <= 0.04
    eager = [abs(e) for name, e in errors.items() if "float8" in name and "compiled" not in name]
    assert len(eager) == 3 and max(eager) <= 0.04


def test_modules_that_users_run() -> None:
    """Blind, with joint products and fused norms, they were up to 22 % off; kernels of their traces gave constants.

    The host holds one of them up, GPT-2 XL compiled in mixed precision: its kernels take 104.6 of 110.9 ms.
    """
    summary, errors = iterations("train_modules.jsonl", 14)
    assert summary["time_error_percent"] <= 2.2 and summary["energy_error_percent"] <= 2.0
    assert sorted(map(abs, errors.values()))[-2] <= 0.05
    assert min(errors, key=errors.__getitem__) == "train_transformers_gpt2-xl_L24_S1024_mb8_amp_compiled"
    assert sum(abs(error) <= 0.024 for error in errors.values()) >= 11


def test_sharded_modules_in_mixed_precision() -> None:
    """No plan could say it before; nothing is fitted to these rows."""
    summary, _ = iterations("train_mixed.jsonl", 5)
    assert summary["time_error_percent"] <= 3.0 and summary["time_worst_percent"] <= 5.1
    assert summary["energy_error_percent"] <= 2.5 and summary["energy_worst_percent"] <= 4.0


def test_modules_on_another_host() -> None:
    """Looked at when the forms stood; one of them waits for its host, which no forecast knows."""
    summary, errors = iterations("train_modules_second.jsonl", 19)
    assert summary["time_error_percent"] <= 2.8 and summary["energy_error_percent"] <= 2.2
    assert sorted(map(abs, errors.values()))[-2] <= 0.04


def test_small_models_wait_for_their_host(tmp_path: Path) -> None:
    """With the host's pace stated they are 11 % off, of which programs' own paces make most; without it 20 %."""
    summary, errors = iterations("train_host.jsonl", 16)
    assert summary["time_error_percent"] <= 11.5 and summary["energy_error_percent"] <= 6.0
    assert sum(abs(error) <= 0.17 for error in errors.values()) >= 12
    rows = json_rows(ROWS / "train_host.jsonl")
    unstated = write_json(tmp_path / "unstated.jsonl", *(row | {"host_launch_us": None} for row in rows))
    without, _ = iterations(unstated, 16)
    assert summary["time_error_percent"] < 0.7 * without["time_error_percent"]


def test_families_in_the_code_of_transformers() -> None:
    """Qwen3, OLMo-2, GLM-4, Gemma 2 and 3 in transformers' code; two constants were found in these rows."""
    summary, errors = iterations("train_families.jsonl", 10)
    assert summary["time_error_percent"] <= 3.5 and summary["energy_error_percent"] <= 3.0
    assert summary["time_inside_percent"] >= 80.0 and summary["energy_inside_percent"] >= 90.0
    alone = {name: abs(error) for name, error in errors.items() if not name.endswith("_fsdp2")}
    assert len(alone) == 7 and max(alone.values()) <= 0.055
    assert max(alone[name] for name in alone if "gemma-3" not in name) <= 0.023


def test_more_families_on_another_host() -> None:
    """Looked at when the forms stood, 2 to 7 % too short; gpt-oss was 17 % and gave constants of its own."""
    summary, errors = iterations("train_families_second.jsonl", 6)
    assert summary["time_error_percent"] <= 3.6 and summary["energy_error_percent"] <= 3.2
    dense = [abs(error) for name, error in errors.items() if "oss" not in name and "a3b" not in name]
    assert len(dense) == 4 and max(dense) <= 0.048
    assert max(map(abs, errors.values())) <= 0.05


def test_families_that_nobody_had_measured() -> None:
    """Before anybody looked 25 were 1.7 % off in time, and Falcon 60 %; kernels of some then gave constants."""
    summary, errors = iterations("train_families_third.jsonl", 26)
    assert summary["time_error_percent"] <= 1.4 and summary["energy_error_percent"] <= 1.7
    assert summary["time_inside_percent"] >= 95.0 and summary["energy_inside_percent"] >= 95.0
    assert max(map(abs, errors.values())) <= 0.05 and abs(errors["train_transformers_falcon-7b_L8_S2048_mb4"]) <= 0.02


def test_adapters_that_were_forecast_before_anybody_looked() -> None:
    """LoRA as PEFT runs it, models of 1 to 14 billion parameters; nothing is fitted to them."""
    summary, _ = iterations("train_lora.jsonl", 8)
    assert summary["time_error_percent"] <= 2.8 and summary["energy_error_percent"] <= 2.6
    assert summary["time_inside_percent"] == 100.0 and summary["energy_inside_percent"] == 100.0
    assert summary["memory_error_percent"] <= 0.2


def test_iterations_of_pairs_of_sequences() -> None:
    """DPO with each kind of reference, and SimPO; 1.4 % off when first looked at, on a derived card 5.4 %."""
    summary, errors = iterations("train_pairs.jsonl", 8)
    assert summary["time_error_percent"] <= 1.5 and summary["energy_error_percent"] <= 1.3
    assert max(map(abs, errors.values())) <= 0.031
    other, _ = iterations("train_pairs.jsonl", 8, "h100")
    assert other["time_error_percent"] <= 5.5 and other["energy_error_percent"] <= 4.1
    for one in (summary, other):
        assert one["time_inside_percent"] == one["energy_inside_percent"] == 100.0
        assert one["memory_error_percent"] <= 0.4


def test_iterations_of_rewards_completions_and_a_teacher() -> None:
    """Reward models, KTO, GRPO and distillation: 6.6 % off when first looked at on a derived card, on an H200 1.7 %."""
    summary, errors = iterations("train_rewards.jsonl", 8, "h100")
    waiting = errors.pop("train_kto_qwen2.5-3b_S1024_mb4_copy_C512")
    assert waiting >= -0.15 and min(errors.values()) >= -0.057 and max(errors.values()) <= -0.025
    assert summary["time_error_percent"] <= 6.7 and summary["energy_error_percent"] <= 6.1
    assert summary["time_inside_percent"] == 100.0 and summary["energy_inside_percent"] >= 87.0
    assert summary["memory_error_percent"] <= 0.4
    assert summary["time_error_percent"] < 0.3 * summary["time_baseline_percent"]
    other, _ = iterations("train_rewards.jsonl", 4)
    assert other["time_error_percent"] <= 1.8 and other["energy_error_percent"] <= 1.6
    assert other["time_inside_percent"] == other["energy_inside_percent"] == 100.0
    assert other["memory_error_percent"] <= 0.4


def test_steps_of_decoding() -> None:
    """Graphs of kernels on a derived card, 4.6 % off when first looked at; few rows draw more than forecast."""
    other = run_suite("blocks", ROWS / "decode.jsonl", gpu="h200-sxm").to_dict()["summary"]["all"]
    assert other["rows"] == 4 and other["time_error_percent"] <= 4.1 and other["energy_error_percent"] <= 4.8
    result = run_suite("blocks", ROWS.parent / "h100_sxm" / "decode.jsonl", gpu="h100-sxm").to_dict()
    summary = result["summary"]["all"]
    assert not result["skipped"] and summary["rows"] == 6
    assert summary["time_error_percent"] <= 4.6 and summary["time_worst_percent"] <= 8.2
    assert summary["energy_error_percent"] <= 12.0 and summary["power_error_percent"] <= 7.9
    assert summary["time_inside_percent"] == summary["power_inside_percent"] == 100.0
    assert summary["time_error_percent"] < summary["time_baseline_percent"]


@pytest.mark.parametrize(
    ("gpu", "live", "context", "token_s"),
    [("h100-sxm", 1, 512, 6.48e-3), ("h100-sxm", 4, 512, 6.59e-3), ("a100-sxm-40gb", 1, 1088, 1 / 75)],
)
def test_published_times_of_a_token(gpu: str, live: int, context: int, token_s: float) -> None:
    """Llama-3.1-8B in vLLM 0.21 and 0.23 (yobitelcomm.github.io/bench, johnmusgrave.com); contexts hardly matter."""
    model = load_model("llama-3.1-8b")
    work = Generated(prompts=0, prompt_tokens=1, live=live, context=float(context), steps=1)
    launches = decode_step(model, model.runs(0, model.layers), engine_of(Implementation()), work)
    card = jc.gpu(gpu)
    forecast = sum(card.predict(one.operator).time_s * one.repeat for one in launches) + STEP_OVERHEAD_S
    assert forecast == pytest.approx(token_s, rel=0.03)


def test_ligers_kernels_in_the_code_of_transformers() -> None:
    """6.0 and 4.6 % off when first looked at; each list has a model that waits for its host, some under autocast."""
    for file, rows, waiting, worst in (
        ("train_liger.jsonl", 14, "train_liger_gemma-3-1b_S4096_mb2", 0.085),
        ("train_liger_second.jsonl", 16, "train_liger_llama-3.2-1b_S2048_mb1", 0.068),
    ):
        summary, errors = iterations(file, rows)
        assert summary["time_error_percent"] <= 3.7 and summary["energy_error_percent"] <= 2.2
        assert summary["energy_inside_percent"] >= 90.0 and summary["memory_error_percent"] <= 0.5
        others = {name: abs(error) for name, error in errors.items() if name != waiting}
        assert max(others.values()) <= worst
        assert max(error for name, error in others.items() if "_amp" not in name) <= 0.048
        assert abs(errors[waiting]) <= 0.31


def test_iterations_whose_logits_are_in_tiles() -> None:
    """TRL's loss of next tokens on a derived card; 3.8 % off when first looked at, one waits for its host."""
    summary, _ = iterations("train_chunked.jsonl", 4, "h100")
    assert summary["time_error_percent"] <= 4.0 and summary["energy_error_percent"] <= 2.6
    assert summary["time_inside_percent"] == summary["energy_inside_percent"] == 100.0
    assert summary["memory_error_percent"] <= 0.8


def test_iterations_of_models_with_windows() -> None:
    """Flex attention on a derived card, 3.6 % off when first looked at but for Gemma 2, 16 %; on an H200 2.6 %."""
    summary, _ = iterations("train_windows.jsonl", 5, "h100")
    assert summary["time_error_percent"] <= 4.3 and summary["energy_error_percent"] <= 1.8
    other, _ = iterations("train_windows.jsonl", 4)
    assert other["time_error_percent"] <= 2.7 and other["energy_error_percent"] <= 1.5
    for one in (summary, other):
        assert one["time_inside_percent"] == one["energy_inside_percent"] == 100.0
        assert one["memory_error_percent"] <= 0.05


def test_iterations_of_packed_documents() -> None:
    """Flex attention and a mask, 0.5 % off when first looked at; on a derived card 3.3 %."""
    summary, errors = iterations("train_documents.jsonl", 5)
    assert summary["time_error_percent"] <= 0.7 and summary["energy_error_percent"] <= 1.3
    assert max(map(abs, errors.values())) <= 0.015
    other, _ = iterations("train_documents.jsonl", 4, "h100")
    assert other["time_error_percent"] <= 3.9 and other["energy_error_percent"] <= 2.9
    for one in (summary, other):
        assert one["time_inside_percent"] == 100.0 and one["memory_error_percent"] <= 0.6


def test_iterations_of_hybrids() -> None:
    """Scans, attention, MLPs and experts, paced by kernels alone; one model is too small for its host."""
    small = "train_transformers_nemotron-h-8b_L14_S2048_mb1"
    summary, errors = iterations("train_hybrids.jsonl", 7)
    waits = errors.pop(small)
    assert max(map(abs, errors.values())) <= 0.023 and waits <= -0.15
    assert summary["memory_error_percent"] <= 0.2 and summary["time_inside_percent"] == 100.0
    summary, other = iterations("train_hybrids.jsonl", 6, "h100")
    assert len(other) == 6 and other.pop(small) <= -0.1
    assert max(map(abs, other.values())) <= 0.035
    assert summary["memory_error_percent"] <= 0.2
    assert summary["time_inside_percent"] == 100.0


def test_iterations_of_linear_attention() -> None:
    """Qwen3-Next, 2.7 % too short when first looked at; on a derived card 0.3 %."""
    for card, time, energy in (("h200", 0.03, 0.035), ("h100", 0.03, 0.065)):
        rows = ROWS.parent / f"{card}_sxm" / "train_linear.jsonl"
        result = run_suite("train", rows, gpu=f"{card}-sxm").to_dict()
        (row,) = result["rows"]
        for what, most in (("time_s", time), ("energy_j", energy)):
            assert abs(row["predicted"][what] / row["measured"][what] - 1) <= most
        summary = result["summary"]["all"]
        assert summary["memory_error_percent"] <= 0.1 and summary["time_inside_percent"] == 100.0


def test_jobs_of_the_trainer_as_their_commands_are_converted() -> None:
    """Within 1.5 % but for the one with adapters and one whose fetching of batches stalled, by 5 % of its mean."""
    result = run_suite("plans", ROWS / "metered_jobs.jsonl").to_dict()
    errors = sorted(abs(r["predicted"]["time_s"] / r["measured"]["time_s"] - 1) for r in result["rows"])
    assert len(errors) == 7 and errors[4] < 0.018 and errors[-1] < 0.065
    assert result["summary"]["all"]["energy_error_percent"] < 1.8
    assert result["summary"]["all"]["memory_error_percent"] < 0.7


def test_megatron_core_with_transformer_engine() -> None:
    """Kernels of these gave constants, their dense ones the prior of the generation's factor."""
    summary, errors = iterations("train_megatron.jsonl", 26)
    assert summary["time_error_percent"] <= 3.0 and summary["energy_error_percent"] <= 2.8
    assert summary["time_inside_percent"] >= 90.0 and summary["energy_inside_percent"] >= 90.0
    dense = {name: error for name, error in errors.items() if "mixtral" not in name and "qwen3-30b" not in name}
    assert len(dense) == 23 and sorted(map(abs, dense.values()))[-2] <= 0.05


def test_more_of_megatron_core_on_other_hosts() -> None:
    """Looked at when the forms stood, 2.1 % off; exchanges among experts and their host's pace were read off them."""
    summary, errors = iterations("train_megatron_second.jsonl", 20)
    assert summary["time_error_percent"] <= 2.5 and summary["energy_error_percent"] <= 2.6
    assert summary["time_inside_percent"] >= 95.0 and summary["energy_inside_percent"] >= 90.0
    dense = [abs(error) for name, error in errors.items() if "moe" not in name]
    assert len(dense) == 16 and max(dense) <= 0.045


def test_operators_on_rows_of_experts() -> None:
    """Constants come from kernels on their own; before they were known, these six were up to 23 % off."""
    summary, _ = iterations("train_row_operators.jsonl", 6)
    assert summary["time_error_percent"] <= 2.5 and summary["time_worst_percent"] <= 4.5
    assert summary["energy_error_percent"] <= 2.0 and summary["energy_worst_percent"] <= 3.5


def test_the_same_kinds_on_another_host() -> None:
    """Looked at when the forms stood; the iteration in FP8 that is computed again then showed what such layers keep."""
    summary, _ = iterations("train_second.jsonl", 18)
    assert summary["time_error_percent"] <= 2.0 and summary["energy_error_percent"] <= 2.5
    assert summary["time_worst_percent"] <= 4.0 and summary["energy_worst_percent"] <= 4.5


@pytest.mark.parametrize(
    ("name", "rows", "most"),
    [
        ("fp8_kernels", 51, 5.0),
        ("expert_rows", 30, 5.0),
        ("fp8_kernels_second", 17, 7.5),
        ("expert_rows_second", 12, 6.0),
    ],
)
def test_kernels_that_fp8_and_experts_bring(name: str, rows: int, most: float) -> None:
    result = run_suite("kernels", ROWS / f"{name}.jsonl", gpu="h200-sxm").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == rows
    assert summary["time_error_percent"] <= most and summary["energy_error_percent"] <= most
    assert all("this way" in row["reason"] for row in result["skipped"])


def test_iterations_are_forecast_with_a_description_of_ones_own(tmp_path: Path) -> None:
    mine = tmp_path / "my-card.toml"
    text = Path(str(files("joulecast.model").joinpath("catalogue_data", "gpus", "h200-sxm-rows.toml"))).read_text()
    mine.write_text(text.replace('name = "h200-sxm-rows"', 'name = "my-card"', 1), encoding="utf-8")
    rows = Path(str(files("joulecast.validate").joinpath("recorded", "h200_sxm", "train_iterations.jsonl")))
    few = tmp_path / "rows.jsonl"
    few.write_text("".join(rows.read_text().splitlines(keepends=True)[:1]), encoding="utf-8")
    same, shipped = (run_suite("train", few, gpu=gpu) for gpu in (str(mine), "h200-sxm-rows"))
    assert not same.skipped
    assert same.rows[0].prediction == shipped.rows[0].prediction


def test_two_h100s_before_anybody_looked() -> None:
    """Cards that draw 5 % more than is forecast, and a host at work: short throughout, energies and memory inside."""
    result = run_suite("plans", ROWS.parent / "h100_sxm" / "train_two_gpus.jsonl").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 12 and not result["skipped"]
    assert summary["time_error_percent"] <= 7.2 and summary["energy_error_percent"] <= 5.6
    assert summary["time_inside_percent"] >= 80.0 and summary["energy_inside_percent"] == 100.0
    assert summary["memory_error_percent"] <= 1.0


def test_further_kinds_of_training_on_two_h100s() -> None:
    """Known of one GPU, never measured on two: 4.1 and 3.9 % off when first looked at, memory 1.3 %."""
    result = run_suite("plans", ROWS.parent / "h100_sxm" / "train_two_gpus_second.jsonl").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 13 and not result["skipped"]
    assert summary["time_error_percent"] <= 4.1 and summary["energy_error_percent"] <= 3.9
    assert summary["memory_error_percent"] <= 1.0
    assert summary["time_inside_percent"] >= 92.0 and summary["energy_inside_percent"] == 100.0
    memory = {r["name"]: r["predicted"]["peak_mem_bytes"] / r["measured"]["peak_mem_bytes"] - 1 for r in result["rows"]}
    assert abs(memory["fsdp_dpo_llama-3.2-3b_S2048_mb1_copy"]) <= 0.002, (
        "what is outside a reference's layers stays whole"
    )
    assert abs(memory["fsdp_dpo_llama-3.1-8b_S1024_mb2_full_copy"]) <= 0.015


def test_iterations_on_images_on_an_h100() -> None:
    """12 % off when first looked at; what launches cost the host took the worst from 22 to 11 % since."""
    result = run_suite("plans", ROWS.parent / "h100_sxm" / "train_vision.jsonl").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 8 and not result["skipped"]
    assert summary["time_error_percent"] <= 4.8 and summary["energy_error_percent"] <= 2.2
    assert summary["time_inside_percent"] >= 87.0 and summary["energy_inside_percent"] == 100.0
    assert summary["memory_error_percent"] <= 0.9
    errors = {row["name"]: abs(row["predicted"]["time_s"] / row["measured"]["time_s"] - 1.0) for row in result["rows"]}
    assert max(errors.values()) <= 0.11


def test_iterations_on_images_on_an_h200() -> None:
    """Other models and images, after the H100's had chosen constants: 3.5 and 1.6 % off when first looked at."""
    result = run_suite("plans", ROWS / "train_vision.jsonl").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 5 and not result["skipped"]
    assert summary["time_error_percent"] <= 3.5 and summary["energy_error_percent"] <= 2.2
    assert summary["time_inside_percent"] == summary["energy_inside_percent"] == 100.0
    assert summary["memory_error_percent"] <= 0.7


def test_gradients_that_add_up_whole_under_fsdp() -> None:
    """As the Trainer has it: memory was met before anybody looked; times wait for a host that is quicker than said."""
    result = run_suite("plans", ROWS / "train_two_gpus_whole.jsonl").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 8 and not result["skipped"]
    assert summary["memory_error_percent"] <= 0.2 and summary["energy_error_percent"] <= 4.5
    assert summary["time_error_percent"] <= 13.0
    assert summary["time_inside_percent"] == summary["energy_inside_percent"] == 100.0


@pytest.mark.parametrize("gpu", ["h200", "h100"])
def test_small_batches_experts_and_heads_of_80(gpu: str) -> None:
    """Eleven iterations that nothing is fitted to; 1.3 and 1.4 % off when first looked at."""
    summary, errors = iterations("train_families_fourth.jsonl", 11, gpu)
    assert summary["time_error_percent"] <= 1.5 and summary["energy_error_percent"] <= 0.9
    assert summary["time_inside_percent"] == summary["energy_inside_percent"] == 100.0
    assert max(map(abs, errors.values())) <= 0.045


def test_tensor_and_pipeline_parallel_iterations_on_two_h100s() -> None:
    """Ten iterations that nothing is fitted to, on derived cards; 2.2 and 2.6 % off when first looked at."""
    summary, _ = iterations("train_stages.jsonl", 10, "h100")
    assert summary["time_error_percent"] <= 2.7 and summary["energy_error_percent"] <= 2.9
    assert summary["time_inside_percent"] == 100.0 and summary["energy_inside_percent"] == 100.0
    assert summary["memory_error_percent"] <= 0.3


def test_kernels_of_random_shapes() -> None:
    """Forecast before an H100 ran them; 7.3 % off then."""
    result = run_suite("kernels", ROWS.parent / "random_kernels" / "h100_sxm.jsonl", gpu="h100-sxm").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 24 and not result["skipped"]
    assert summary["time_error_percent"] <= 7.4 and summary["energy_error_percent"] <= 7.0
    assert summary["time_inside_percent"] >= 91.0 and summary["energy_inside_percent"] >= 95.0
    assert summary["time_error_percent"] < 0.3 * summary["time_baseline_percent"]


@pytest.mark.parametrize(("file", "time", "energy", "products"), [("", 7.0, 8.4, 6.5), ("_second", 5.6, 6.5, 3.4)])
def test_kernels_of_random_shapes_on_h200s(file: str, time: float, energy: float, products: float) -> None:
    """8.3 and 5.6 % off when first looked at; between the two products in TF32 got a form of their own."""
    result = run_suite("kernels", ROWS.parent / "random_kernels" / f"h200_sxm{file}.jsonl").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 34 and not result["skipped"]
    assert summary["time_error_percent"] <= time and summary["energy_error_percent"] <= energy
    assert result["summary"]["gemm"]["time_error_percent"] <= products
    assert summary["time_error_percent"] < 0.2 * summary["time_baseline_percent"]


def test_kernels_of_one_more_h100() -> None:
    """4.2 and 3.9 % off when first looked at; five sums of columns 8 %, eight products that add a bias 5.2 %."""
    result = run_suite("kernels", ROWS.parent / "h100_sxm" / "card-4", gpu="h100-sxm").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 71 and not result["skipped"]
    assert summary["time_error_percent"] <= 3.9 and summary["energy_error_percent"] <= 3.8
    assert summary["time_inside_percent"] == 100.0 and summary["energy_inside_percent"] == 100.0
    errors = {row["name"]: row["predicted"]["time_s"] / row["measured"]["time_s"] - 1 for row in result["rows"]}

    def mean(word: str) -> float:
        found = [abs(error) for name, error in errors.items() if word in name]
        assert found
        return sum(found) / len(found)

    assert mean("bias_reduce") < 0.045
    assert mean("_bias_8192x6400x1600") < 0.015
    assert mean("CUDNN_ATTENTION_4_32_4096_128_False") < 0.05


def test_more_adapters_on_h100s_before_anybody_looked() -> None:
    """LoRA and QLoRA after the first list had given its forms; nothing is fitted to them."""
    result = run_suite("plans", ROWS.parent / "h100_sxm" / "train_adapters_second.jsonl").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 8 and not result["skipped"]
    assert summary["time_error_percent"] <= 4.4 and summary["energy_error_percent"] <= 3.4
    assert summary["time_inside_percent"] == 100.0 and summary["energy_inside_percent"] == 100.0
    assert summary["memory_error_percent"] <= 0.2
    errors = {row["name"]: row["predicted"]["time_s"] / row["measured"]["time_s"] - 1 for row in result["rows"]}
    prepared = [abs(error) for name, error in errors.items() if name.endswith("_prepared")]
    assert len(prepared) == 3 and max(prepared) < 0.05
