"""Plans on a GPU with kernels of a user's own: every way of forecasting has them, and the answer says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ways_agree import ways_agree

import joulecast as jc
from joulecast.calibrate.descriptions.own_kernels import with_own_kernels
from joulecast.calibrate.rows.measured import row_of
from joulecast.files import write_text
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.description_writer import dump_description
from joulecast.plan.sweep.rows import Forecaster
from joulecast.plan.sweep.space import space_from_dict
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

STREAM = {"op": "stream", "pattern": "rmsnorm", "shape": [8192, 2048], "bytes_read": 2.0**25, "bytes_written": 2.0**25}
ROWS: list[dict[str, Any]] = [
    {**STREAM, "time_s": 1e-5, "power_w": 600},
    {"op": "gemm", "M": 2048, "N": 8192, "K": 2048, "time_s": 2e-4, "power_w": 600},
    {"op": "flash_attn", "B": 1, "Hq": 8, "Hkv": 8, "S": 4096, "D": 64, "direction": "bwd"}
    | {"backend": "CUDNN_ATTENTION", "time_s": 4e-4},
    {"op": "gemm", "dtype": "fp16", "M": 512, "N": 512, "K": 512, "time_s": 5e-6},
]


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a description with own kernels."""
    path = tmp_path_factory.mktemp("own") / "mine.toml"
    rows = [row_of(row, "mine.jsonl", line) for line, row in enumerate(ROWS, start=1)]
    write_text(path, dump_description(with_own_kernels(rows, load_gpu("h200-sxm")).to_dict()))
    return str(path)


def tables(gpu: str, framework: str = "pytorch-eager", **split: int) -> dict[str, Any]:
    workload = {"model": "llama-3.2-1b", "sequence_length": 4096, "global_batch_size": 8, "layers": 4}
    run = {"framework": framework}
    return {"workload": workload, "cluster": {"gpu": gpu, "gpus": 4}, "parallelism": split, "implementation": run}


def plan_on(gpu: str, framework: str = "pytorch-eager", **split: int) -> Plan:
    return plan_from_dict(tables(gpu, framework, **split))


@pytest.mark.parametrize("framework", ["pytorch-eager", "megatron"])
@pytest.mark.parametrize("split", ["tensor_model_parallel_size", "pipeline_model_parallel_size"])
def test_the_closed_form_agrees_with_the_simulation(mine: str, framework: str, split: str) -> None:
    plans = [plan_on(gpu, framework, **{split: 2}) for gpu in ("h200-sxm", mine)]
    library, own = closed_form(plans).time_s
    assert own > 1.01 * library  # the products of the rows take longer
    ways_agree(plans[1], time=0.02, energy=0.02)


def test_a_row_of_a_sweep_is_the_forecast_of_its_plan(mine: str) -> None:
    forecaster = Forecaster(space_from_dict(tables(mine) | {"cluster": {"gpu": ["h200-sxm", mine], "gpus": 4}}))
    found = (row for row in forecaster.forecast(range(2)) if isinstance(row, dict))
    rows = sorted(found, key=lambda row: row["plan"])
    alone = closed_form([plan_on("h200-sxm"), plan_on(mine)])
    assert [row["time_s"] for row in rows] == pytest.approx(alone.time_s.tolist(), rel=1e-12)
    assert rows[0]["energy_j"] != rows[1]["energy_j"]


def test_the_answer_says_what_is_scaled_and_from_which_rows(mine: str) -> None:
    usual, own = (forecast(plan_on(gpu)) for gpu in ("h200-sxm", mine))
    added = [said for said in own.assumptions if said.startswith(("kernels ", "the plan runs no kernel "))]
    assert not set(added) & set(usual.assumptions)
    norm, product, unused, attention = added
    assert norm.startswith("kernels streaming.rmsnorm.bf16 take 0.") and norm.endswith("by 1 row of mine.jsonl")
    assert "of the time and " in norm and "of the energy above idle of the library's" in norm
    assert "of 6.9e+10 to 6.9e+10 operations: those of " in product and product.endswith("are taken to differ alike")
    assert "attention.cudnn.backward.bf16" in attention and "energy" not in attention
    assert unused == "the plan runs no kernel gemm.fp16.tn: what h200-sxm has of its own changes nothing"


def test_what_the_rows_do_not_name_stays_as_it_was(mine: str, tmp_path: Path) -> None:
    text = (Path(mine)).read_text(encoding="utf-8")
    gpu, own = jc.gpu("h200-sxm"), jc.gpu(mine)
    for operator in (jc.Gemm(4096, 4096, 4096, layout="nt"), jc.Attention(1, 8, 8, 4096, 64)):
        assert gpu.predict(operator).energy_j == own.predict(operator).energy_j
    (tmp_path / "kin.toml").write_text(
        'schema_version = 1\nname = "kin"\nlike = "h100-sxm"\n[derivation]\nrelative = "mine.toml"\n', encoding="utf-8"
    )
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    kin = load_gpu(tmp_path / "kin.toml").kernel
    assert kin.parameters["own.gemm.bf16.tn.time.rows"].sd == 0  # a relative's are carried over as they are
    assert kin["own.gemm.bf16.tn.time.1.factor"] == load_gpu(mine).kernel["own.gemm.bf16.tn.time.1.factor"]
