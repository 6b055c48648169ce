"""Plans of training with Muon: states, temporary results, what is refused, and jobs of Megatron-LM."""

from __future__ import annotations

import re
from typing import Any

import pytest
from megatron_jobs import LLAMA
from plan_tables import changed

import joulecast as jc
from joulecast.errors import InputError, NotYetError
from joulecast.model.kernels.operators import Collective
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program, stage_parameters
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

EAGER: dict[str, Any] = {
    "workload": {"model": "llama-3.2-1b", "sequence_length": 1024, "global_batch_size": 2},
    "cluster": {"gpu": "h100-sxm", "gpus": 1},
    "parallelism": {},
    "implementation": {"modules": "transformers", "optimizer": "muon"},
}
MEGATRON: dict[str, Any] = {
    "workload": {"model": "llama-3.2-1b", "sequence_length": 1024, "global_batch_size": 16},
    "cluster": {"gpu": "h100-sxm", "gpus": 8},
    "parallelism": {"tensor_model_parallel_size": 2, "distributed_optimizer": True},
    "overlap": {"grad_reduce": "overlapped"},
    "implementation": {"framework": "megatron", "optimizer": "muon"},
}


def plan(tables: dict[str, Any], **changes: Any) -> Plan:
    return plan_from_dict(changed(tables, changes))


def elements(one: Plan) -> tuple[int, int]:
    """Of a GPU's parameters in matrices, and of all others."""
    parameters = stage_parameters(one, 0)
    matrices = sum(p.elements for p in parameters if p.matrix is not None)
    return matrices, sum(p.elements for p in parameters) - matrices


def test_matrices_have_one_moment_of_the_parameters_type() -> None:
    for kept, width in (("bf16", 2), ("fp32", 4)):
        one = plan(EAGER, implementation__parameter_precision=kept)
        matrices, others = elements(one)
        assert footprint_of(one, 0).optimizer == pytest.approx(width * (matrices + 2 * others))


def test_megatrons_have_fp32_weights_and_one_moment() -> None:
    one = plan(MEGATRON, parallelism__distributed_optimizer=False)
    matrices, others = elements(one)
    assert footprint_of(one, 0).optimizer == pytest.approx(8 * matrices + 12 * others)
    shared = footprint_of(plan(MEGATRON), 0).optimizer
    assert shared == pytest.approx((8 * matrices + 12 * others) / 4, rel=0.02)
    assert shared >= (8 * matrices + 12 * others) / 4


def test_a_replica_has_no_less_than_a_whole_matrix() -> None:
    """Of 64 replicas each has two or fewer of 16 layers' five matrices."""
    one = plan(MEGATRON, cluster__gpus=512, parallelism__tensor_model_parallel_size=1, workload__global_batch_size=512)
    matrices, others = elements(one)
    even = (8 * matrices + 12 * others) / 512
    assert footprint_of(one, 0).optimizer == pytest.approx(8 * 2 * 8192 * 2048 + 12 * others / 512)
    assert footprint_of(one, 0).optimizer > 6 * even


def test_the_step_is_the_peak_of_a_short_micro_batch() -> None:
    """All gradients, and of the largest matrix what is orthogonalised, X twice, A and B."""
    one = plan(EAGER, workload__sequence_length=32, workload__global_batch_size=1)
    matrices, others = elements(one)
    held = footprint_of(one, 0)
    largest, square = 2048 * 8192, 2048**2
    states = 2 * (matrices + others) + 2 * (matrices + 2 * others) + 2 * (matrices + others)
    table = 2 * 128256 * 2048  # of a tied table a dense gradient beside the head's takes more
    in_step = 2 * (3 * largest + 2 * square)
    assert in_step < table
    untied = plan(
        EAGER, workload__sequence_length=32, workload__global_batch_size=1, implementation__tie_embeddings=False
    )
    more = 2 * 128256 * 2048 * 4
    assert footprint_of(untied, 0).allocated_bytes == pytest.approx(states + more + in_step + held.workspace, rel=0.005)


def test_optimizer_takes_longer_the_more_iterations_it_has() -> None:
    times = [
        jc.predict(changed(EAGER, {"implementation__muon_num_ns_steps": steps})).time_by_instruction_s["optimizer"]
        for steps in (1, 5, 10)
    ]
    assert times[2] - times[1] == pytest.approx((times[1] - times[0]) * 5 / 4, rel=0.1)


def test_ranks_speak_over_their_own_links() -> None:
    """Collectives of a split matrix are those of the tensor-parallel ranks, not of the replicas."""
    one = plan(MEGATRON, implementation__muon_tp_mode="duplicated")
    step = plan_program(one).ranks[0].types[-1]
    gathers = [x.operator for x in step if isinstance(x.operator, Collective) and "muon" in x.operator.name]
    assert gathers and {each.gpus for each in gathers} == {2}


@pytest.mark.parametrize(
    ("tables", "changes", "kind", "message"),
    [
        (EAGER, {"cluster__gpus": 2, "parallelism__fsdp": True}, NotYetError, r"parallelism\.fsdp.*DTensors"),
        (EAGER, {"workload__model": "mixtral-8x7b"}, NotYetError, r"optimizer.*three dimensions.*megatron"),
        (EAGER, {"workload__precision": "fp16"}, NotYetError, r"workload\.precision.*fp16"),
        (
            EAGER,
            {"cluster__gpus": 2, "parallelism__distributed_optimizer": True},
            NotYetError,
            r"parallelism\.distributed_optimizer.*whole",
        ),
        (EAGER, {"implementation__main_parameters": True}, InputError, r"main_parameters.*muon steps the model"),
        (EAGER, {"workload__lora": {"rank": 8}}, NotYetError, r"workload\.lora.*Muon of adapters"),
        (EAGER, {"implementation__muon_tp_mode": "duplicated"}, InputError, r"muon_tp_mode.*no such option.*megatron"),
        (EAGER, {"implementation__muon_split_qkv": False}, InputError, r"muon_split_qkv.*no such option"),
        (EAGER, {"implementation__muon_fp32_matmul_prec": "high"}, InputError, r"muon_fp32_matmul_prec.*bf16"),
        (EAGER, {"implementation__muon_num_ns_steps": 0}, InputError, r"muon_num_ns_steps"),
        (
            EAGER,
            {"implementation__optimizer": "adamw", "implementation__muon_nesterov": True},
            InputError,
            r'muon_nesterov.*nothing is stepped by Muon.*"muon"',
        ),
        (MEGATRON, {"implementation__optimizer_precision": "bf16"}, NotYetError, r"optimizer_precision.*momentum"),
        (MEGATRON, {"implementation__muon_tp_mode": "whole"}, InputError, r"muon_tp_mode.*blockwise"),
        (
            MEGATRON,
            {"workload__precision": "fp8", "workload__fp8_param_gather": True},
            NotYetError,
            r"fp8_param_gather.*Muon",
        ),
    ],
)
def test_what_is_not_known_is_refused(tables, changes, kind, message) -> None:
    with pytest.raises(kind, match=message) as caught:
        plan(tables, **changes)
    assert "\n" not in str(caught.value)


def test_defaults_are_the_frameworks() -> None:
    eager, megatron = (plan(tables).implementation.muon for tables in (EAGER, MEGATRON))
    assert eager is not None and eager.nesterov and not eager.split_qkv
    assert megatron is not None and not megatron.nesterov and megatron.split_qkv


def test_a_forecast_says_what_muon_steps_and_what_nobody_measured() -> None:
    for tables, words in ((EAGER, ("AdamW embedding",)), (MEGATRON, ("none was measured", "whole matrices"))):
        told = [line for line in jc.predict(tables).assumptions if "Muon" in line]
        assert len(told) == 1 and all(one in told[0] for one in words)


def job(tmp_path: Any, flags: str, split: str = "--use-distributed-optimizer") -> Any:
    path = tmp_path / "train.sh"
    text = LLAMA.replace("--vocab-size 128256", f"--vocab-size 128256 {flags}")
    path.write_text(text.replace('"--use-distributed-optimizer"', f'"{split}"'), encoding="utf-8")
    return jc.convert(path, gpu="h100-sxm")


def test_megatrons_flags_are_keys(tmp_path: Any) -> None:
    flags = (
        "--optimizer muon --muon-momentum 0.95 --muon-num-ns-steps 10 --muon-tp-mode distributed --muon-use-nesterov"
    )
    found = job(tmp_path, f"{flags} --muon-no-split-qkv --muon-fp32-matmul-prec high --muon-scale-mode spectral")
    run = found.tables["implementation"]
    assert {key: value for key, value in run.items() if key.startswith(("optimizer", "muon"))} == {
        "optimizer": "muon",
        "muon_num_ns_steps": 10,
        "muon_tp_mode": "distributed",
        "muon_nesterov": True,
        "muon_split_qkv": False,
        "muon_fp32_matmul_prec": "high",
    }
    assert found.tables["parallelism"]["distributed_optimizer"] is True
    assert found.warnings == ()
    assert re.search(r'^optimizer = "muon" +# --optimizer muon \(line \d+\)$', found.text, re.MULTILINE)
    jc.predict(found.tables)


def test_dist_muon_is_the_layer_wise_distributed_optimizer(tmp_path: Any) -> None:
    found = job(tmp_path, "--optimizer dist_muon", split="--no-align-grad-reduce")
    assert found.tables["implementation"]["optimizer"] == "muon"
    assert found.tables["parallelism"]["distributed_optimizer"] is True
    assert [told for told in found.warnings if "dist_muon" in told and "twice the bytes" in told]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--optimizer muon --muon-tp-mode whole", r"--muon-tp-mode.*'whole'"),
        ("--optimizer muon --muon-fp32-matmul-prec low", r"--muon-fp32-matmul-prec.*'low'"),
        ("--optimizer muon --muon-scalar-optimizer lion", r"--muon-scalar-optimizer.*lion are not known"),
        ("--optimizer adaptive_muon", r"--optimizer.*states of adaptive_muon are not known"),
    ],
)
def test_jobs_that_are_not_known_are_refused(tmp_path: Any, flags: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(tmp_path, flags)
