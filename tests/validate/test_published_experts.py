"""Published steps of models with experts: columns that are keys of a plan, and how far off their forecasts are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from paths import ROOT
from published_lines import LINE
from row_files import write_csv

from joulecast.calibrate.published.plans import plan_row
from joulecast.calibrate.published.rows import FILE, read_published
from joulecast.errors import DataError
from joulecast.model.architecture.model_flops import training_flops
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.validate import run_suite
from joulecast.validate.published.rates import executed_flops
from joulecast.validate.published.step_times import plan_rows

EXPERTS = ROOT / "validate" / "recorded" / "published" / "experts"
SIZES = ("num_layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "gated_mlp", "vocab")
#: The line without sizes, of a model that the catalogue knows.
NAMED = {name: text for name, text in LINE.items() if name not in SIZES} | {
    "workload.model": "mixtral-8x7b",
    "tp": "2",
    "ep": "8",
    "recompute": "none",
    "dtype": "bf16",
    "dp": "4",
    "global_batch": "16",
    "sequence_parallel": "true",
    "parallelism.expert_tensor_parallel_size": "1",
}


def test_a_column_may_be_a_key_of_the_plan(tmp_path: Path) -> None:
    """The model's sizes come with its name; the trivial rule counts the experts that a token meets."""
    more = {
        "implementation.moe_token_dispatcher_type": "flex",
        "schedule.recompute_modules": "['moe_act', 'layernorm']",
    }
    line = NAMED | more | {"recompute": "selective", "workload.moe_expert_capacity_factor": "unknown"}
    (row,) = read_published(write_csv(tmp_path / "rows.csv", line))
    assert (row.num_layers, row.hidden, row.vocab) == (32, 4096, 32000)
    planned = plan_row(row)
    plan = planned.plan
    assert plan.workload.model.experts is not None
    assert plan.workload.model.experts.count == 8
    assert plan.parallelism.expert_tensor_parallel_size == 1
    assert plan.implementation.moe_token_dispatcher_type == "flex"
    assert implementation_of(plan).recomputes("moe_act")
    assert executed_flops(planned) == training_flops(plan.workload.model, 2048, 16 * 2048)


def test_experts_by_their_sizes(tmp_path: Path) -> None:
    sizes = {"num_experts": "16", "num_experts_per_tok": "4", "moe_intermediate_size": "2048"}
    line = LINE | {f"workload.model.{name}": text for name, text in sizes.items()} | {"sequence_parallel": "true"}
    planned = plan_row(read_published(write_csv(tmp_path / "rows.csv", line))[0])
    experts = planned.plan.workload.model.experts
    assert experts is not None
    assert (experts.count, experts.active) == (16, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parallelism.expert_tensor_size": "1"}, r":1: unknown column .*Did you mean 'parallelism\.expert"),
        ({"moe.experts": "1"}, r":1: unknown column 'moe\.experts'"),
        ({"workload.model": "mixtrall-8x7b"}, r":2 \[workload\.model\].*mixtral-8x7b"),
    ],
)
def test_a_wrong_column_or_model_is_named(tmp_path: Path, change: dict[str, str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_published(write_csv(tmp_path / "rows.csv", NAMED | change))


def test_a_wrong_value_is_named_by_line_and_column(tmp_path: Path) -> None:
    row = read_published(write_csv(tmp_path / "rows.csv", NAMED | {"overlap.ep_comm": "perhaps"}))[0]
    with pytest.raises(DataError, match=r":2 \[overlap\.ep_comm\]"):
        plan_row(row)


def test_every_row_can_be_planned() -> None:
    planned, skipped = plan_rows(read_published(EXPERTS))
    assert (len(planned), skipped) == (183, [])


def test_every_eighth_step_is_met_within_a_seventh(tmp_path: Path) -> None:
    """On average; nothing is fitted to these rows."""
    head, *lines = (EXPERTS / FILE).read_text("utf-8").splitlines(keepends=True)
    for file in EXPERTS.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text("utf-8"), "utf-8")
    (tmp_path / FILE).write_text("".join([head, *lines[::8]]), "utf-8")
    found = run_suite("published", tmp_path)
    assert len(found.rows) == 23
    assert found.summary["all"]["time_error_percent"] < 14.0


def test_attention_in_separate_kernels_tells_why_a_recipe_recomputes_it() -> None:
    """DeepSeek-V3 on GB200 before cuDNN had a backward for it there: 55 % too short in a fused kernel."""
    row = next(row for row in read_published(EXPERTS) if row.id == "dgxc_deepseek-v3_gb200_128_bf16")
    plan = plan_row(row).plan
    assert plan.implementation.attention_backend == "unfused"
    assert plan.implementation.recompute_modules == ("core_attn",)
    found = forecast(plan)
    assert row.measured_step_time_s is not None
    assert 0.68 < found.time_s / row.measured_step_time_s < 0.75
    kept = replace(plan, implementation=replace(plan.implementation, recompute_modules=()))
    needs = [max(rank.memory_bytes for rank in one.ranks) for one in (found, forecast(kept, must_fit=False))]
    assert needs[0] < load_gpu("gb200").number("memory_bytes") < needs[1]
