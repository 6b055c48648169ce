"""Memory of a GPU against the measured peaks, and plans that do not fit."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT, SHARED_DATA
from plan_tables import changed
from row_files import json_rows

from joulecast.calibrate.published.plans import plan_row
from joulecast.calibrate.published.rows import read_published
from joulecast.errors import DoesNotFitError, InputError, NotYetError, UnknownNameError
from joulecast.model.architecture.hf import load_model
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation, Recompute
from joulecast.model.framework.layer_shard import shard
from joulecast.model.framework.narrow import narrow_on
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.kernels.operators import Streaming
from joulecast.model.memory.activations import layer_bytes, micro_batch_bytes
from joulecast.model.memory.footprint import MemoryFootprint, check_fits, memory_footprint
from joulecast.model.memory.layer_kept import whole_layer_bytes
from joulecast.model.memory.pipeline_rank import PipelineRank, in_flight
from joulecast.model.memory.states import StateShards
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict
from joulecast.validate.row_plans import plan_of_row

ROWS = SHARED_DATA / "h200_sxm" / "train_iterations.jsonl"


def rows() -> list[dict[str, Any]]:
    if not ROWS.exists():
        pytest.skip("train_iterations.jsonl is not here")
    return json_rows(ROWS)


def config_of(row: dict[str, Any]) -> ModelConfig:
    hidden, heads = row["hidden"], row["heads"]
    return ModelConfig(
        row["model"], hidden, row["layers"], heads, row["kv_heads"], hidden // heads, row["ffn"], row["vocab"]
    )


def predict(row: dict[str, Any], stage: int) -> MemoryFootprint:
    return memory_footprint(
        config_of(row),
        Implementation(rotary=False, tensor_parallel=row["tp"], shard_head=False),
        row["micro_batch"],
        row["seq"],
        PipelineRank(
            [row["layers"] // row["pp"]],
            stage=stage,
            stages=row["pp"],
            micro_batches=row["microbatches"],
            schedule={"1F1B": "1f1b", "GPipe": "gpipe"}[row["schedule"]],
        ),
    )


def test_measured_peaks_are_met_within_one_per_cent() -> None:
    for row in rows():
        per_stage = row["gpus"] // row["pp"]
        for gpu, measured in enumerate(row["peak_mem_bytes_per_gpu"]):
            predicted = predict(row, gpu // per_stage).allocated_bytes
            assert predicted == pytest.approx(measured, rel=0.01), (row["name"], gpu)


def _peak(row: dict[str, Any]) -> float:
    return float(row.get("peak_mem_bytes") or max(row["peak_mem_bytes_per_gpu"]))


def _memory_errors(file: str) -> dict[str, float]:
    """Forecast over measured peak, less one, of the iterations of a recording that have one."""
    lines = (ROOT / "validate" / "recorded" / "h200_sxm" / file).read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "peak_mem_bytes" in row or "peak_mem_bytes_per_gpu" in row]
    plans = [plan_from_dict(plan_of_row(row, "h200-sxm")) for row in rows]
    peaks = [max(footprint_of(plan, rank).allocated_bytes for rank in range(plan.pp)) for plan in plans]
    return {row["name"]: peak / _peak(row) - 1.0 for row, peak in zip(rows, peaks, strict=True)}


@pytest.mark.parametrize(
    ("file", "exact", "rows", "worst"),
    [
        ("train_float8.jsonl", 14, 16, 0.07),
        ("train_second.jsonl", 15, 18, 0.16),
        ("train_sharded.jsonl", 12, 13, 0.012),
        ("train_experts.jsonl", 6, 6, 0.01),
        ("train_modules.jsonl", 13, 14, 0.012),
        ("train_mixed.jsonl", 5, 5, 0.005),
        ("train_modules_second.jsonl", 17, 19, 0.012),
        ("train_families.jsonl", 8, 10, 0.025),
        ("train_families_second.jsonl", 6, 6, 0.01),
        ("train_families_third.jsonl", 23, 26, 0.04),
        ("train_host.jsonl", 15, 16, 0.17),
        ("train_liger.jsonl", 12, 14, 0.021),
        ("train_liger_second.jsonl", 15, 16, 0.018),
        ("train_megatron.jsonl", 10, 21, 0.035),
        ("train_megatron_second.jsonl", 6, 20, 0.045),
    ],
)
def test_peaks_of_sharded_compiled_and_fp8_iterations(file: str, exact: int, rows: int, worst: float) -> None:
    """An only micro-batch's gradients come after the peak; FSDP holds one layer whole, and what lies outside."""
    errors = _memory_errors(file)
    assert len(errors) == rows
    assert sum(abs(error) <= 0.01 for error in errors.values()) >= exact
    assert max(map(abs, errors.values())) <= worst


@pytest.mark.parametrize(
    ("schedule", "stage", "expected"),
    [
        ("gpipe", 0, 16),
        ("1f1b", 0, 4),
        ("1f1b", 3, 1),
        ("zb-h1", 3, 4),
        ("interleaved-1f1b", 0, 11),
        ("interleaved-1f1b", 3, 5),
    ],
)
def test_micro_batches_in_flight(schedule: str, stage: int, expected: int) -> None:
    assert in_flight(schedule, stage, 4, 16, 2 if schedule.startswith("interleaved") else 1) == expected


def test_unknown_schedule_is_named() -> None:
    with pytest.raises(UnknownNameError, match="1f1b"):
        in_flight("1f1", 0, 4, 8)


def test_recomputation_and_sharding_save_memory() -> None:
    config, base = load_model("llama-3.1-8b"), Implementation(tensor_parallel=4)

    def activations(implementation: Implementation) -> float:
        return memory_footprint(config, implementation, 1, 8192, PipelineRank([32])).activations

    plain = activations(base)
    assert activations(replace(base, sequence_parallel=True)) < plain
    assert activations(replace(base, framework="megatron", sequence_parallel=True)) < plain
    assert activations(replace(base, recompute="full")) < 0.2 * plain


def test_distributed_optimizer_shares_its_states() -> None:
    config, megatron = load_model("llama-3.1-8b"), Implementation(framework="megatron")
    whole = memory_footprint(config, megatron, 1, 4096, PipelineRank([32]))
    shared = memory_footprint(config, megatron, 1, 4096, PipelineRank([32]), shards=StateShards(optimizer=8))
    assert whole.states_bytes == 18 * config.parameters
    assert shared.optimizer == whole.optimizer / 8


def test_gradients_that_add_up_whole_are_those_of_a_gpu_alone() -> None:
    """Those of experts too."""
    model, run, rank = load_model("qwen3-30b-a3b"), Implementation(), PipelineRank([2], micro_batches=4)
    alone, whole = StateShards(), StateShards(*[4] * 6, add_up_whole=True)
    held = [memory_footprint(model, run, 1, 4096, rank, shards=one).gradients for one in (alone, whole)]
    assert held[0] == held[1] > 0.0


def test_an_eager_pipeline_holds_outputs_and_buffers_of_what_is_under_way() -> None:
    """In boundaries of a micro-batch: what was sent, what still comes, and one input gradient being sent."""
    boundary, logits = 4096 * 4096 * 2.0, 4096 * 128256 * 2.0

    def held(stage: int, schedule: str = "1f1b", framework: str = "pytorch-eager") -> tuple[float, float]:
        implementation = Implementation(framework=framework)
        rank = PipelineRank([8], stage=stage, stages=4, micro_batches=8, schedule=schedule)
        found = memory_footprint(load_model("llama-3.1-8b"), implementation, 1, 4096, rank)
        return found.outputs / boundary, found.buffers / boundary

    assert held(0) == (4, 8)  # four forwards under way; gradients of eight come back
    assert held(1) == (3, (8 - 3) + 1 + 8)
    assert held(3) == (pytest.approx(8 * logits / boundary), (8 - 1) + 1)
    assert held(1, "gpipe") == (8, 8)  # all inputs have come and count as activations
    assert held(1, framework="megatron") == (0, 2)


@pytest.mark.parametrize("name", ["granite-4.0-h-micro", "nemotron-h-8b", "nemotron-3-nano-30b-a3b"])
def test_the_largest_of_a_hybrids_layers_stands_for_all(name: str) -> None:
    model, run = load_model(name), Implementation(framework="megatron")
    each = [micro_batch_bytes(kind, run, 1, 4096) for kind in model.kinds]
    assert len({one.layer for one in each}) > 1
    found = micro_batch_bytes(model, run, 1, 4096)
    assert found.layer == max(one.layer for one in each)
    assert found.layer_transient == max(one.layer_transient for one in each)


def test_statistics_are_kept_for_every_norm_head_and_recomputation() -> None:
    s = shard(load_model("llama-3.1-8b"), Implementation(framework="megatron"), 1, 1024)
    layernorm = replace(s, config=replace(s.config, norm="layernorm"))
    assert whole_layer_bytes(layernorm) - whole_layer_bytes(s) == 4.0 * 2 * 1024  # a mean beside each scale
    heads = (32 + 8) * 1024
    normed = replace(s, config=replace(s.config, qk_norm=True))
    assert whole_layer_bytes(normed) - whole_layer_bytes(s) == heads * (4.0 + 2.0 * 128)
    again = {"recompute": "selective", "recompute_modules": ("core_attn",)}
    for run, copies in ((s.implementation, 0), (replace(s.implementation, **again), 1), (Implementation(), 1)):
        rotated = shard(load_model("llama-3.1-8b"), run, 1, 1024)
        still = replace(rotated, config=replace(rotated.config, rotary=False))
        assert whole_layer_bytes(rotated) - whole_layer_bytes(still) == copies * heads * 2.0 * 128


def test_plan_that_does_not_fit_says_by_how_much() -> None:
    footprint = memory_footprint(load_model("llama-3.1-70b"), Implementation(), 1, 4096, PipelineRank([80]))
    with pytest.raises(DoesNotFitError, match=r"\d+\.\d GB more than the 141\.0 GB"):
        check_fits(footprint, 141e9)
    with pytest.raises(DoesNotFitError, match=r"\d+\.\d{3} GB a GPU, 0\.020 GB more than the \d+\.\d{3} GB"):
        check_fits(footprint, footprint.total_bytes - 0.02e9)
    check_fits(footprint, footprint.total_bytes)


def test_published_peaks_of_megatron(data: Path) -> None:
    """Peaks printed by SimuMax's launcher on B200: ZeRO-1, tensor, pipeline and context parallelism."""
    file = data / "published" / "published_iterations.csv"
    if not file.exists():
        pytest.skip("published/published_iterations.csv is not here")
    errors = []
    for row in read_published(file):
        if match := re.search(r"peak alloc ([0-9.]+) GiB", row.notes):
            plan = plan_row(row).plan
            peak = max(footprint_of(plan, rank).allocated_bytes for rank in range(plan.pp))
            errors.append(peak / 2**30 / float(match[1]) - 1)
    assert len(errors) == 31
    assert np.mean(np.abs(errors)) < 0.0016
    assert np.max(np.abs(errors)) < 0.004


def test_deepseeks_layers_keep_what_its_report_says() -> None:
    """Megatron-Core's report on experts, arXiv 2603.07685, tables 3 and 4: activations of DeepSeek-V3 on one GPU.

    131 GB before anything is saved, 26.3 of which are the experts' results that a weighted activation needs not keep.
    Those are 0.47 GB a layer and micro-batch, so that the tables are of 56 such. In FP8 latent attention computed again
    saves 30.4 GB, the experts' activation 3.8, both norms 8.2.
    """
    model, tokens, layers = load_model("deepseek-v3"), 4096, 56
    assert model.experts is not None
    results = layers * 2.0 * tokens * model.experts.active * model.hidden
    assert results == pytest.approx(26.3e9, rel=0.01)

    def kept(**changes: Any) -> float:
        run = Implementation(framework="megatron", dtype="bf16", **changes)
        return layers * layer_bytes(shard(model, run, 1, tokens))

    assert kept() == pytest.approx(131.0e9 - 26.3e9, rel=0.01)
    fp8 = narrow_on(load_gpu("h100-sxm"), "blockwise")
    whole = kept(narrow=fp8)
    for part, saved in (("mla_up_proj", 30.4e9), ("moe_act", 3.8e9), ("layernorm", 8.2e9)):
        again = kept(
            narrow=narrow_on(load_gpu("h100-sxm"), "blockwise"), recompute="selective", recompute_modules=(part,)
        )
        assert whole - again == pytest.approx(saved, rel=0.03)


def test_deepseeks_own_plan_fits_with_all_that_it_keeps_in_fewer_bits() -> None:
    """The plan that trained DeepSeek-V3 on 80 GB, which would need more with most of these tensors kept as usual."""
    tables = tomllib.loads((ROOT / "examples" / "deepseek-v3-2048xh800.toml").read_text(encoding="utf-8"))
    most = load_gpu("h800-sxm").number("memory_bytes")

    def highest(**changes: Any) -> float:
        plan = plan_from_dict(changed(tables, changes))
        return max(footprint_of(plan, rank).total_bytes for rank in (0, 8))

    assert 0.9 * most < highest() < most
    assert highest(implementation__activation_func_fp8_input_store=None) > most
    assert highest(implementation__attention_output_store=None) > 1.005 * highest()
    for part in tables["schedule"]["recompute_modules"]:
        others = [one for one in tables["schedule"]["recompute_modules"] if one != part]
        assert highest(schedule__recompute_modules=others) > most


def narrow(moments: str | None = "bf16", **changes: Any) -> Plan:
    tables: dict[str, Any] = {
        "workload": {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 32},
        "cluster": {"gpu": "h100-sxm", "gpus": 8},
        "parallelism": {"distributed_optimizer": True},
        "implementation": {"framework": "megatron", "gradient_precision": "bf16", "optimizer_precision": moments},
    }
    return plan_from_dict(changed(tables, changes))


def test_narrow_moments_take_six_bytes_a_parameter_and_fewer_to_update():
    """Two moments of 2 and the lower half of fp32 weights, instead of 12; 12 read and 8 written."""
    wide, small = narrow(None), narrow()
    held = [footprint_of(one, 0).optimizer for one in (wide, small)]
    assert held[1] / held[0] == pytest.approx(6 / 12)
    kept_in_fp8 = {"workload__precision": "fp8", "workload__fp8_param_gather": True}
    assert footprint_of(narrow(**kept_in_fp8), 0).optimizer / held[0] == pytest.approx(8 / 12)
    tails = [
        [x for x in plan_program(one).ranks[0].types[-1] if "optimizer" in x.operator.name] for one in (wide, small)
    ]
    moved = [
        sum((x.operator.bytes_read + x.operator.bytes_written) * x.repeat for x in tail if ".adam" in x.operator.name)
        for tail in tails
        if all(isinstance(x.operator, Streaming) for x in tail)
    ]
    assert moved[1] / moved[0] == pytest.approx((10 + 8) / 28)
    assert "optimizer.main_grads" in [x.operator.name for x in tails[0]]
    assert "optimizer.main_grads" not in [x.operator.name for x in tails[1]]
    assert forecast(small).time_s < forecast(wide).time_s


def test_narrow_moments_come_with_the_distributed_optimizer():
    with pytest.raises(InputError, match=r"optimizer_precision.*distributed_optimizer"):
        narrow(parallelism__distributed_optimizer=False)
    with pytest.raises(NotYetError, match="optimizer_precision"):
        narrow("fp16")


def test_a_split_head_and_table_have_split_gradients() -> None:
    """Of few tokens, a head's gradient is larger than what the head kept, and a table's than what the layers kept."""
    config, one = load_model("llama-3.2-1b"), PipelineRank([2])
    whole = memory_footprint(config, Implementation(tensor_parallel=4, shard_head=False), 1, 64, one)
    split = memory_footprint(config, Implementation(tensor_parallel=4), 1, 64, one)
    table = config.vocab * config.hidden * 2.0
    assert whole.gradients + whole.transient - split.gradients - split.transient > 0.7 * table
    first = PipelineRank([2], None, 0, 2, 4)
    megatron = Implementation(framework="megatron", sequence_parallel=True)
    transients = [
        memory_footprint(config, replace(megatron, tensor_parallel=n), 1, 64, first).transient for n in (2, 4)
    ]
    assert transients[1] == pytest.approx(transients[0] / 2, rel=0.1)


def test_a_table_of_wide_parameters_has_a_wide_gradient() -> None:
    """Also under autocast, whose products give narrow ones; FSDP gathers the table in the products' type."""
    config, first = load_model("llama-3.2-1b"), PipelineRank([2], None, 0, 2, 4)
    for run, size in ((Implementation(), 4.0), (Implementation(gathered=True), 2.0)):
        run = replace(run, modules="transformers", parameters="fp32")
        found = memory_footprint(config, run, 1, 64, first)
        held = found.transient + found.activations / first.under_way
        assert held == pytest.approx(config.vocab * config.hidden * size)


@pytest.mark.parametrize("shards", [StateShards(), StateShards(*[4] * 6)])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_more_tokens_never_take_less_memory(recompute: Recompute, shards: StateShards) -> None:
    """The peak is that of its fullest moment: no sum over moments that leaves one when another becomes it."""
    for name in ("llama-3.2-1b", "gpt-1.7b", "qwen3-8b", "qwen3-30b-a3b"):
        config, run = load_model(name), Implementation(recompute=recompute)
        peaks = [
            memory_footprint(config, run, 1, 64 * 2**n, PipelineRank([4]), shards=shards).allocated_bytes
            for n in range(10)
        ]
        assert sorted(peaks) == peaks, name
