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

#: Bounds where all intervals of time and energy hold, and those of one list of rows on two cards.
INSIDE = {"time_inside": 100.0, "energy_inside": 100.0}
FOURTH = {"time_error": 1.5, "energy_error": 0.9, **INSIDE, "time_worst": 4.5}
ROWS = Path(str(files("joulecast.validate").joinpath("recorded", "h200_sxm")))


def iterations(
    file: str | Path, rows: int, card: str = "h200", suite: str = "train"
) -> tuple[dict[str, Any], dict[str, float]]:
    """Summary of iterations recorded on a card, all of them forecast, and each one's error of time."""
    gpu = None if suite == "plans" else f"{card}-sxm"
    result = run_suite(suite, ROWS.parent / f"{card}_sxm" / file, gpu=gpu).to_dict()
    summary = result["summary"]["all"]
    assert not result["skipped"] and summary["rows"] == rows
    return summary, {r["name"]: r["predicted"]["time_s"] / r["measured"]["time_s"] - 1 for r in result["rows"]}


def within(summary: dict[str, Any], **bounds: float) -> None:
    """Figures, without their ``_percent``, are at most so large; shares of rows inside of their intervals at least."""
    for name, bound in bounds.items():
        found = summary[f"{name}_percent"]
        assert found >= bound if name.endswith("_inside") else found <= bound, (name, found)


#: Rows of iterations whose figures alone are held, by file, card and suite: their number, and the bounds.
ITERATIONS: dict[tuple[str, str, str], tuple[int, dict[str, float]]] = {
    # Forecast 12 % off before they were measured: that PyTorch's own operators sort and sum rows is now said.
    ("train_experts", "h200", "train"): (
        6,
        {"time_error": 6.0, "energy_error": 6.0, "time_worst": 7.0, "energy_worst": 7.0},
    ),
    # Sharded modules in mixed precision: no plan could say it before; nothing is fitted to these rows.
    ("train_mixed", "h200", "train"): (
        5,
        {"time_error": 3.0, "time_worst": 5.1, "energy_error": 2.5, "energy_worst": 4.0},
    ),
    # LoRA as PEFT runs it, models of 1 to 14 billion parameters; nothing is fitted to them.
    ("train_lora", "h200", "train"): (8, {"time_error": 2.8, "energy_error": 2.6, **INSIDE, "memory_error": 0.2}),
    # DPO with each kind of reference, and SimPO; 1.4 % off when first looked at, on a derived card 5.4 %.
    ("train_pairs", "h200", "train"): (
        8,
        {"time_error": 1.5, "energy_error": 1.3, "time_worst": 3.1, **INSIDE, "memory_error": 0.4},
    ),
    ("train_pairs", "h100", "train"): (8, {"time_error": 5.5, "energy_error": 4.1, **INSIDE, "memory_error": 0.4}),
    # TRL's loss of next tokens in tiles, on a derived card; 3.8 % off when first looked at, one waits for its host.
    ("train_chunked", "h100", "train"): (4, {"time_error": 4.0, "energy_error": 2.6, **INSIDE, "memory_error": 0.8}),
    # Flex attention on a derived card, 3.6 % off when first looked at but for Gemma 2, 16 %; on an H200 2.6 %.
    ("train_windows", "h100", "train"): (5, {"time_error": 4.3, "energy_error": 1.8, **INSIDE, "memory_error": 0.05}),
    ("train_windows", "h200", "train"): (4, {"time_error": 2.7, "energy_error": 1.5, **INSIDE, "memory_error": 0.05}),
    # Packed documents: flex attention and a mask, 0.5 % off when first looked at; on a derived card 3.3 %.
    ("train_documents", "h200", "train"): (
        5,
        {"time_error": 0.7, "energy_error": 1.3, "time_worst": 1.5, "time_inside": 100.0, "memory_error": 0.6},
    ),
    ("train_documents", "h100", "train"): (
        4,
        {"time_error": 3.9, "energy_error": 2.9, "time_inside": 100.0, "memory_error": 0.6},
    ),
    # Operators on rows of experts have constants from kernels on their own; before, these six were up to 23 % off.
    ("train_row_operators", "h200", "train"): (
        6,
        {"time_error": 2.5, "time_worst": 4.5, "energy_error": 2.0, "energy_worst": 3.5},
    ),
    # Looked at when the forms stood; the iteration in FP8 that is computed again then showed what such layers keep.
    ("train_second", "h200", "train"): (
        18,
        {"time_error": 2.0, "energy_error": 2.5, "time_worst": 4.0, "energy_worst": 4.5},
    ),
    # Small batches, experts and heads of 80, nothing fitted to them; 1.3 and 1.4 % off when first looked at.
    ("train_families_fourth", "h200", "train"): (11, FOURTH),
    ("train_families_fourth", "h100", "train"): (11, FOURTH),
    # Tensor- and pipeline-parallel, nothing fitted to them, on derived cards; 2.2 and 2.6 % off when first looked at.
    ("train_stages", "h100", "train"): (10, {"time_error": 2.7, "energy_error": 2.9, **INSIDE, "memory_error": 0.3}),
    # Two cards that draw 5 % more than is forecast, and a host at work: short throughout, energies and memory inside.
    ("train_two_gpus", "h100", "plans"): (
        12,
        {"time_error": 7.2, "energy_error": 5.6, **INSIDE, "time_inside": 80.0, "memory_error": 1.0},
    ),
    # Images: 12 % off when first looked at; what launches cost the host took the worst from 22 to 11 % since.
    ("train_vision", "h100", "plans"): (
        8,
        {
            "time_error": 4.8,
            "energy_error": 2.2,
            "time_worst": 11.0,
            **INSIDE,
            "time_inside": 87.0,
            "memory_error": 0.9,
        },
    ),
    # Other models and images, after the H100's had chosen constants: 3.5 and 1.6 % off when first looked at.
    ("train_vision", "h200", "plans"): (5, {"time_error": 3.5, "energy_error": 2.2, **INSIDE, "memory_error": 0.7}),
    # Gradients that add up whole under FSDP, as the Trainer has it: memory was met before anybody looked; times wait
    # for a host that is quicker than said.
    ("train_two_gpus_whole", "h200", "plans"): (
        8,
        {"time_error": 13.0, "energy_error": 4.5, **INSIDE, "memory_error": 0.2},
    ),
}


@pytest.mark.parametrize(("file", "card", "suite"), ITERATIONS)
def test_iterations_stay_within_their_bounds(file: str, card: str, suite: str) -> None:
    rows, bounds = ITERATIONS[file, card, suite]
    within(iterations(f"{file}.jsonl", rows, card, suite)[0], **bounds)


@pytest.mark.parametrize(("suite", "rows"), [("blocks", 16), ("train", 15), ("overlap", 52)])
def test_mean_errors_stay_within_three_percent(suite: str, rows: int) -> None:
    name = {"blocks": "blocks", "train": "train_iterations", "overlap": "overlap"}[suite]
    result = run_suite(suite, ROWS / f"{name}.jsonl", gpu="h200-sxm-rows").to_dict()
    summary = result["summary"]["all"]
    assert not result["skipped"]
    assert summary["rows"] == rows
    within(summary, time_error=3.0, energy_error=3.0, time_worst=6.1, energy_worst=7.0 if suite == "overlap" else 6.0)
    within(summary, time_inside=80.0, energy_inside=80.0)
    assert summary["time_error_percent"] < 0.5 * summary["time_baseline_percent"]


def test_sharded_iterations_that_were_measured_after_they_had_been_forecast() -> None:
    """FSDP on two and four GPUs of three hosts, three models: nothing was fitted to any row of this kind."""
    summary, _ = iterations("train_sharded.jsonl", 21)
    within(summary, time_error=2.0, energy_error=2.0, time_worst=6.0, energy_worst=6.0, power_half_width=3.0)
    within(summary, time_inside=90.0, energy_inside=90.0, power_inside=90.0)
    assert summary["time_error_percent"] < 0.1 * summary["time_baseline_percent"]


def test_split_sequences_on_two_slow_cards() -> None:
    """Forecast before they were measured; both cards are slow at the limit, as the data-parallel iteration tells."""
    summary, errors = iterations("train_context.jsonl", 18)
    within(summary, time_error=3.5, energy_error=3.0, time_worst=6.0, energy_worst=6.0)
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


def test_float8_and_compiled_layers() -> None:
    """Without a form for either, forecasts were 3.5 to 51 % off; kernels gave the constants but for two of them."""
    summary, errors = iterations("train_float8.jsonl", 16)
    within(summary, time_error=1.5, energy_error=2.0)
    assert max(map(abs, errors.values())) <= 0.04
    eager = [abs(e) for name, e in errors.items() if "float8" in name and "compiled" not in name]
    assert len(eager) == 3 and max(eager) <= 0.04


def test_modules_that_users_run() -> None:
    """Blind, with joint products and fused norms, they were up to 22 % off; kernels of their traces gave constants.

    The host holds one of them up, GPT-2 XL compiled in mixed precision: its kernels take 104.6 of 110.9 ms.
    """
    summary, errors = iterations("train_modules.jsonl", 14)
    within(summary, time_error=2.2, energy_error=2.0)
    assert sorted(map(abs, errors.values()))[-2] <= 0.05
    assert min(errors, key=errors.__getitem__) == "train_transformers_gpt2-xl_L24_S1024_mb8_amp_compiled"
    assert sum(abs(error) <= 0.024 for error in errors.values()) >= 11


def test_modules_on_another_host() -> None:
    """Looked at when the forms stood; one of them waits for its host, which no forecast knows."""
    summary, errors = iterations("train_modules_second.jsonl", 19)
    within(summary, time_error=2.8, energy_error=2.2)
    assert sorted(map(abs, errors.values()))[-2] <= 0.04


def test_small_models_wait_for_their_host(tmp_path: Path) -> None:
    """With the host's pace stated they are 11 % off, of which programs' own paces make most; without it 20 %."""
    summary, errors = iterations("train_host.jsonl", 16)
    within(summary, time_error=11.5, energy_error=6.0)
    assert sum(abs(error) <= 0.17 for error in errors.values()) >= 12
    rows = json_rows(ROWS / "train_host.jsonl")
    unstated = write_json(tmp_path / "unstated.jsonl", *(row | {"host_launch_us": None} for row in rows))
    without, _ = iterations(unstated, 16)
    assert summary["time_error_percent"] < 0.7 * without["time_error_percent"]


def test_families_in_the_code_of_transformers() -> None:
    """Qwen3, OLMo-2, GLM-4, Gemma 2 and 3 in transformers' code; two constants were found in these rows."""
    summary, errors = iterations("train_families.jsonl", 10)
    within(summary, time_error=3.5, energy_error=3.0, time_inside=80.0, energy_inside=90.0)
    alone = {name: abs(error) for name, error in errors.items() if not name.endswith("_fsdp2")}
    assert len(alone) == 7 and max(alone.values()) <= 0.055
    assert max(alone[name] for name in alone if "gemma-3" not in name) <= 0.023


def test_more_families_on_another_host() -> None:
    """Looked at when the forms stood, 2 to 7 % too short; gpt-oss was 17 % and gave constants of its own."""
    summary, errors = iterations("train_families_second.jsonl", 6)
    within(summary, time_error=3.6, energy_error=3.2)
    dense = [abs(error) for name, error in errors.items() if "oss" not in name and "a3b" not in name]
    assert len(dense) == 4 and max(dense) <= 0.048
    assert max(map(abs, errors.values())) <= 0.05


def test_families_that_nobody_had_measured() -> None:
    """Before anybody looked 25 were 1.7 % off in time, and Falcon 60 %; kernels of some then gave constants."""
    summary, errors = iterations("train_families_third.jsonl", 26)
    within(summary, time_error=1.4, energy_error=1.7, time_inside=95.0, energy_inside=95.0)
    assert max(map(abs, errors.values())) <= 0.05 and abs(errors["train_transformers_falcon-7b_L8_S2048_mb4"]) <= 0.02


def test_iterations_of_rewards_completions_and_a_teacher() -> None:
    """Reward models, KTO, GRPO and distillation: 6.6 % off when first looked at on a derived card, on an H200 1.7 %."""
    summary, errors = iterations("train_rewards.jsonl", 8, "h100")
    waiting = errors.pop("train_kto_qwen2.5-3b_S1024_mb4_copy_C512")
    assert waiting >= -0.15 and min(errors.values()) >= -0.057 and max(errors.values()) <= -0.025
    within(summary, time_error=6.7, energy_error=6.1, time_inside=100.0, energy_inside=87.0, memory_error=0.4)
    assert summary["time_error_percent"] < 0.3 * summary["time_baseline_percent"]
    other, _ = iterations("train_rewards.jsonl", 4)
    within(other, time_error=1.8, energy_error=1.6, time_inside=100.0, energy_inside=100.0, memory_error=0.4)


def test_steps_of_decoding() -> None:
    """Graphs of kernels on a derived card, 4.6 % off when first looked at; few rows draw more than forecast."""
    other = run_suite("blocks", ROWS / "decode.jsonl", gpu="h200-sxm").to_dict()["summary"]["all"]
    assert other["rows"] == 4 and other["time_error_percent"] <= 4.1 and other["energy_error_percent"] <= 4.8
    result = run_suite("blocks", ROWS.parent / "h100_sxm" / "decode.jsonl", gpu="h100-sxm").to_dict()
    summary = result["summary"]["all"]
    assert not result["skipped"] and summary["rows"] == 6
    within(summary, time_error=4.6, time_worst=8.2, energy_error=12.0, power_error=7.9)
    within(summary, time_inside=100.0, power_inside=100.0)
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
        within(summary, time_error=3.7, energy_error=2.2, energy_inside=90.0, memory_error=0.5)
        others = {name: abs(error) for name, error in errors.items() if name != waiting}
        assert max(others.values()) <= worst
        assert max(error for name, error in others.items() if "_amp" not in name) <= 0.048
        assert abs(errors[waiting]) <= 0.31


def test_iterations_of_hybrids() -> None:
    """Scans, attention, MLPs and experts, paced by kernels alone; one model is too small for its host."""
    small = "train_transformers_nemotron-h-8b_L14_S2048_mb1"
    summary, errors = iterations("train_hybrids.jsonl", 7)
    waits = errors.pop(small)
    assert max(map(abs, errors.values())) <= 0.023 and waits <= -0.15
    within(summary, memory_error=0.2, time_inside=100.0)
    summary, other = iterations("train_hybrids.jsonl", 6, "h100")
    assert len(other) == 6 and other.pop(small) <= -0.1
    assert max(map(abs, other.values())) <= 0.035
    within(summary, memory_error=0.2, time_inside=100.0)


def test_iterations_of_linear_attention() -> None:
    """Qwen3-Next, 2.7 % too short when first looked at; on a derived card 0.3 %."""
    for card, time, energy in (("h200", 0.03, 0.035), ("h100", 0.03, 0.065)):
        rows = ROWS.parent / f"{card}_sxm" / "train_linear.jsonl"
        result = run_suite("train", rows, gpu=f"{card}-sxm").to_dict()
        (row,) = result["rows"]
        for what, most in (("time_s", time), ("energy_j", energy)):
            assert abs(row["predicted"][what] / row["measured"][what] - 1) <= most
        summary = result["summary"]["all"]
        within(summary, memory_error=0.1, time_inside=100.0)


def test_jobs_of_the_trainer_as_their_commands_are_converted() -> None:
    """Within 1.4 % but for the one with adapters and one whose fetching of batches stalled, by 5 % of its mean."""
    result = run_suite("plans", ROWS / "metered_jobs.jsonl").to_dict()
    errors = sorted(abs(r["predicted"]["time_s"] / r["measured"]["time_s"] - 1) for r in result["rows"])
    assert len(errors) == 7 and errors[4] < 0.014 and errors[5] < 0.028 and errors[-1] < 0.068
    assert result["summary"]["all"]["energy_error_percent"] < 1.8
    assert result["summary"]["all"]["memory_error_percent"] < 0.7


def test_commands_of_trl_and_of_the_trainer_as_they_are_converted() -> None:
    """Within 5.3 % but for pairs with adapters, on a host whose stated pace is a quarter slower than it trained."""
    result = run_suite("plans", ROWS / "metered_commands.jsonl").to_dict()
    errors = sorted(abs(r["predicted"]["time_s"] / r["measured"]["time_s"] - 1) for r in result["rows"])
    assert len(errors) == 21 and errors[-2] < 0.054 and errors[-1] < 0.13
    assert result["summary"]["all"]["time_error_percent"] < 3.0
    assert result["summary"]["all"]["energy_error_percent"] < 1.8
    assert result["summary"]["all"]["memory_error_percent"] < 0.72


def test_megatron_core_with_transformer_engine() -> None:
    """Kernels of these gave constants, their dense ones the prior of the generation's factor."""
    summary, errors = iterations("train_megatron.jsonl", 26)
    within(summary, time_error=3.0, energy_error=2.8, time_inside=90.0, energy_inside=90.0)
    dense = {name: error for name, error in errors.items() if "mixtral" not in name and "qwen3-30b" not in name}
    assert len(dense) == 23 and sorted(map(abs, dense.values()))[-2] <= 0.05


def test_more_of_megatron_core_on_other_hosts() -> None:
    """Looked at when the forms stood, 2.1 % off; exchanges among experts and their host's pace were read off them."""
    summary, errors = iterations("train_megatron_second.jsonl", 20)
    within(summary, time_error=2.5, energy_error=2.6, time_inside=95.0, energy_inside=90.0)
    dense = [abs(error) for name, error in errors.items() if "moe" not in name]
    assert len(dense) == 16 and max(dense) <= 0.045


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
    within(summary, time_error=most, energy_error=most)
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


def test_further_kinds_of_training_on_two_h100s() -> None:
    """Known of one GPU, never measured on two: 4.1 and 3.9 % off when first looked at, memory 1.3 %."""
    result = run_suite("plans", ROWS.parent / "h100_sxm" / "train_two_gpus_second.jsonl").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 13 and not result["skipped"]
    within(summary, time_error=4.1, energy_error=3.9, memory_error=1.0, time_inside=92.0, energy_inside=100.0)
    memory = {r["name"]: r["predicted"]["peak_mem_bytes"] / r["measured"]["peak_mem_bytes"] - 1 for r in result["rows"]}
    assert abs(memory["fsdp_dpo_llama-3.2-3b_S2048_mb1_copy"]) <= 0.002, (
        "what is outside a reference's layers stays whole"
    )
    assert abs(memory["fsdp_dpo_llama-3.1-8b_S1024_mb2_full_copy"]) <= 0.015


def test_kernels_of_random_shapes() -> None:
    """Forecast before an H100 ran them; 7.3 % off then."""
    result = run_suite("kernels", ROWS.parent / "random_kernels" / "h100_sxm.jsonl", gpu="h100-sxm").to_dict()
    summary = result["summary"]["all"]
    assert summary["rows"] == 24 and not result["skipped"]
    within(summary, time_error=7.4, energy_error=7.0, time_inside=91.0, energy_inside=95.0)
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
    within(summary, time_error=3.9, energy_error=3.8, time_inside=100.0, energy_inside=100.0)
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
    summary, errors = iterations("train_adapters_second.jsonl", 8, "h100", "plans")
    within(summary, time_error=4.4, energy_error=3.4, **INSIDE, memory_error=0.2)
    prepared = [abs(error) for name, error in errors.items() if name.endswith("_prepared")]
    assert len(prepared) == 3 and max(prepared) < 0.05
