"""Steps that torchtitan publishes on H100s with slower memory and 500 W: bf16 and FP8, with tensor parallelism too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from row_files import csv_rows

from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.plan_file.plan import plan_from_dict

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "validate/recorded/published/torchtitan/h100_96gb_500w.csv"
#: What sets the card apart from the catalogue's: HBM2e [B, B/s], as torchtitan's report has it.
FACTS = {
    'name = "h100-sxm"': 'name = "h100-sxm-hbm2e"',
    "memory_bytes = {value = 85_520_809_984": "memory_bytes = {value = 102_000_000_000",
    "memory_bandwidth_bytes_per_s = {value = 3.35e12": "memory_bandwidth_bytes_per_s = {value = 2.4e12",
    'memory_kind = {value = "HBM3"': 'memory_kind = {value = "HBM2e"',
    "memory_clock_mhz = {value = 2619": "memory_clock_mhz = {value = 1593",
    "memory_bus_bits = {value = 5120": "memory_bus_bits = {value = 6144",
}
#: Keys of the steps' variants in FP8.
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "gathered": {"fp8_param_gather": True},
    "rowwise": {"fp8_recipe": "rowwise"},
}


def rows() -> list[dict[str, str]]:
    return csv_rows(ROWS)


def tables(row: dict[str, str], gpu: Path) -> dict[str, Any]:
    split, context = int(row["tensor_parallel"]), int(row["context_parallel"])
    stages = int(row["pipeline_parallel"])
    chunks = stages * (2 if row["schedule"] == "interleaved-1f1b" else 1)  # and as many micro-batches, by default
    pipeline = {
        "pipeline_model_parallel_size": stages,
        "virtual_pipeline_model_parallel_size": chunks // stages,
        "stage_layers": shared_out(128, chunks),
        "fsdp_reshard_after_forward": False,
    }
    return {
        "workload": {
            "model": row["model"],
            "sequence_length": int(row["sequence_length"]),
            "micro_batch_size": int(row["local_batch"]) // chunks,
            "global_batch_size": int(row["global_batch"]),
            "precision": row["precision"],
            **VARIANTS[row["variant"]],
        },
        "cluster": {"gpu": str(gpu), "gpus": int(row["gpus"]), "gpus_per_node": 8},
        "parallelism": {
            "fsdp": True,
            "tensor_model_parallel_size": split,
            "sequence_parallel": split > 1,
            "context_parallel_size": context,
            "cp_comm_type": "all_gather",
            **(pipeline if stages > 1 else {}),
        },
        "schedule": {
            "name": row["schedule"],
            "recompute": {"selective": "operators"}.get(row["recompute"], row["recompute"]),
        },
        "overlap": {"tp_comm": row["async_tensor_parallel"] == "true"},
        "implementation": {
            "modules": "torchtitan",
            "compile": row["compile"] == "true",
            "parameter_precision": "fp32",
            "gradient_clipping": True,
            "attention_backend": "flash-attention-2",
        },
        "power": {"power_limit_w": 500},
    }


def shared_out(blocks: int, stages: int) -> list[int]:
    """Layers of stages as torchtitan shares them: the first and the last have one less, for embedding and head."""
    each = [blocks // stages] * stages
    return [each[0] - 1, *each[1:-1], each[-1] - 1]


def test_steps_are_met_though_nothing_is_fitted_to_them(tmp_path: Path) -> None:
    """Times: 8 % short to 7 % long, in pipelines 9 % short to 3 % long; memory reserved 7 % low to 9 % high.

    PyTorch's ring among four and eight ranks takes 25 and 30 % longer than its kernels are forecast to.
    """
    gpu = described(tmp_path)
    found = rows()
    assert len(found) == 21
    plans = [plan_from_dict(tables(row, gpu)) for row in found]
    closed = closed_form(plans)
    errors, reserved = {}, {}
    for row, plan, time_s in zip(found, plans, closed.time_s, strict=True):
        tokens = int(row["global_batch"]) * int(row["sequence_length"])
        measured_s = tokens / (int(row["gpus"]) * float(row["tokens_per_s_per_gpu"]))
        errors[row["id"]] = time_s / measured_s - 1
        most = max(footprint_of(plan, rank).reserved_bytes for rank in range(plan.pp))
        reserved[row["id"]] = most / 2**30 / float(row["memory_gib"]) - 1
    ring = [errors.pop(name) for name in ("8b_8_fp8_128k_cp4", "8b_8_fp8_256k_cp8")]
    assert ring == [pytest.approx(-0.20, abs=0.02), pytest.approx(-0.23, abs=0.02)]
    in_pipelines = {name: error for name, error in errors.items() if name.startswith("405b")}
    assert max(map(abs, in_pipelines.values())) < 0.1, in_pipelines
    assert max(abs(error) for name, error in errors.items() if name not in in_pipelines) < 0.09, errors
    assert sum(map(abs, errors.values())) / len(errors) == pytest.approx(0.049, abs=0.01), errors
    assert abs(errors["70b_256_fp8_tp8"]) < 0.05
    assert reserved.pop("8b_8_fp8_rowwise_one") == pytest.approx(-0.2, abs=0.02)  # why it holds more is not known
    pipelined = [reserved.pop(name) for name in list(reserved) if name.startswith("405b")]
    assert min(pipelined) > -0.04 and max(pipelined) < 0.10, pipelined
    assert max(reserved.values()) < 0 and min(reserved.values()) > -0.08, reserved
    assert sum(reserved.values()) / len(reserved) == pytest.approx(-0.029, abs=0.01), reserved


def described(folder: Path) -> Path:
    """The card of the report: the catalogue's with its own memory."""
    text = (ROOT / "model/catalogue_data/gpus/h100-sxm.toml").read_text(encoding="utf-8")
    for usual, own in FACTS.items():
        assert usual in text
        text = text.replace(usual, own)
    gpu = folder / "h100-sxm-hbm2e.toml"
    gpu.write_text(text, encoding="utf-8")
    return gpu
