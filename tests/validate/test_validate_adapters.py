"""From rows to the model's own terms: blocks as operators, training rows as plans that load."""

from __future__ import annotations

from typing import Any

import pytest
from paths import SHARED_DATA

from joulecast.calibrate.rows.measured import Measured, Row, read_rows
from joulecast.errors import DataError
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.lora import Lora
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.kernels.operators import Attention, Collective, Gemm
from joulecast.model.training.step import single_gpu_training_step
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.validate.adapters import block_operators, predict_kernels
from joulecast.validate.row_plans import plan_of_row
from joulecast.validate.scoring.baselines import transformer_flops

SHARED = SHARED_DATA / "h200_sxm"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the measured rows are not at {SHARED}")

BLOCK = {
    "op": "block",
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "tp": 1,
    "B": 4,
    "S": 4096,
    "dtype": "bf16",
}


def block(**changes: Any) -> Row:
    return Row("b", "block", BLOCK | changes, Measured())


@pytest.mark.parametrize("direction", ["fwd", "fwd+bwd"])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_block_has_its_flops_and_no_communication(direction: str, tp: int) -> None:
    row = block(direction=direction, tp=tp)
    operators = block_operators(row)
    assert not any(isinstance(operator, Collective) for operator in operators)
    products = sum(o.flops for o in operators if isinstance(o, Gemm))
    attention = sum(o.flops for o in operators if isinstance(o, Attention))
    if direction == "fwd+bwd":
        attention *= 3 / 3.5  # the backward computes the scores again
    assert products + attention == pytest.approx(transformer_flops(row.configuration), rel=1e-6)


def test_a_gpt_block_has_bias_and_layer_norm() -> None:
    row = block(kv_heads=32, gated_mlp=False, bias=True, norm="LayerNorm", activation="GELU", direction="fwd+bwd")
    patterns = {getattr(operator, "pattern", "") for operator in block_operators(row)}
    assert {"layernorm", "gelu", "gelu_backward", "bias_reduce"} <= patterns


@needs_shared
def test_every_block_row_has_operators() -> None:
    rows = [row for row in read_rows(SHARED / "blocks.jsonl") if row.op == "block"]
    assert len(rows) == 14
    for row in rows:
        assert any(isinstance(o, Attention) and o.backend == "cudnn" for o in block_operators(row))


ITERATION = {
    "op": "train_iter",
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 32000,
    "layers": 2,
    "seq": 8192,
    "micro_batch": 1,
    "microbatches": 2,
}


def test_a_row_says_how_its_sequence_is_split() -> None:
    row = ITERATION | {"cp": 2, "cp_comm_type": "all_gather", "attention_backend": "flash-attention-2"}
    plan = plan_from_dict(plan_of_row(row, "h200-sxm"))
    assert (plan.cluster.gpus, plan.cp, plan.dp, plan.microbatches) == (2, 2, 1, 2)
    assert plan.parallelism.cp_comm_type == "all_gather"
    kernels = [x.operator for rank in plan_program(plan).ranks for launches in rank.types for x in launches]
    assert {o.backend for o in kernels if isinstance(o, Attention)} == {"flash-attention-2"}
    assert transformer_flops(row) == transformer_flops(ITERATION) / 2


def test_a_row_says_its_experts() -> None:
    experts = {"experts": 8, "experts_per_token": 2, "expert_ffn": 14336, "ep": 2, "dp": 2, "expert_load": 1.0}
    plan = plan_from_dict(plan_of_row(ITERATION | experts, "h200-sxm"))
    own = plan_from_dict(plan_of_row(ITERATION | experts | {"permute_fusion": False}, "h200-sxm"))
    assert (plan.implementation.moe_permute_fusion, own.implementation.moe_permute_fusion) == (True, False)
    assert (plan.cluster.gpus, plan.parallelism.expert_model_parallel_size, plan.workload.expert_load) == (2, 2, 1.0)
    step = single_gpu_training_step(plan.workload.model, Implementation(rotary=False), 1, 8192, micro_batches=2)
    products = sum(x.operator.flops for x in step if isinstance(x.operator, Gemm) and "router" not in x.operator.name)
    attention = sum(x.operator.flops for x in step if isinstance(x.operator, Attention)) * 3 / 3.5
    assert products + attention == pytest.approx(transformer_flops(ITERATION | experts), rel=1e-6)


def test_a_row_says_its_adapters_in_the_words_of_a_plan() -> None:
    row = ITERATION | {"modules": "transformers", "lora": {"rank": 16, "target_modules": ["q_proj", "down_proj"]}}
    plan = plan_from_dict(plan_of_row(row, "h200-sxm"))
    assert plan.workload.lora == Lora(16, ("query", "down"), 0.0, "fp32")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"cp": 0}, "cp"),
        ({"experts": 8}, "experts_per_token"),
        ({"expert_load": 0.5}, "expert_load"),
        ({"permute_fusion": 0}, "permute_fusion"),
        ({"lora": 8}, "lora"),
    ],
)
def test_a_row_that_cannot_be_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(DataError, match=key):
        plan_of_row(ITERATION | changes, "h200-sxm")


def test_the_time_of_work_between_pauses_is_its_busy_part():
    """A row tells the seconds in which the GPU worked, so does its forecast: a longer pause changes neither."""
    product = {"M": 2048, "N": 2048, "K": 2048, "dtype": "bf16"}
    steady = Row("gemm", "gemm", {"op": "gemm", **product}, Measured(time_s=2.5e-5))
    pulses = [
        Row("pulse", "pulse", {"op": "pulse", **product, "busy_s": 0.002, "idle_s": idle_s}, Measured(time_s=2.3e-5))
        for idle_s in (0.01, 0.02)
    ]
    alone, first, second = (answer.time_s for answer in predict_kernels(load_gpu("h200-sxm"), [steady, *pulses]))
    assert first == pytest.approx(second, rel=1e-9)
    assert 0.94 * alone < first < 0.98 * alone  # without pauses the limit on the tensor rate holds the clock down
