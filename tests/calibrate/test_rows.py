"""Measured rows: split on reading, mapped to operators, grouped for cross-validation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joulecast.calibrate.rows.measured import MEASURED_FIELDS, read_rows, recorded_rows
from joulecast.calibrate.rows.operators import KERNEL_OPS, group_key, operator_of
from joulecast.calibrate.rows.overlap import OVERLAP_OPS, launches_of
from joulecast.errors import DataError
from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Streaming, Tile
from joulecast.model.training.step import embedding_backward, head_backward, head_forward, layer_backward

GEMM = {"name": "g", "op": "gemm", "M": 64, "N": 128, "K": 256, "dtype": "bf16", "time_s": 1e-3, "settle_s": 0.8}


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def one(tmp_path: Path, **fields: Any) -> Any:
    return read_rows(write(tmp_path, json.dumps(GEMM | fields)))[0]


def test_configuration_never_holds_a_measurement(tmp_path: Path) -> None:
    row = one(tmp_path, power_w=1.0, power_w_per_gpu=[1.0], measured_x=3, peak_mem_bytes_per_gpu=[1])
    assert row.configuration.keys() == {"name", "op", "M", "N", "K", "dtype", "settle_s"}
    assert row.measured.time_s == 1e-3
    for row in recorded_rows():
        keys = {key.removesuffix("_per_gpu") for key in row.configuration}
        assert not keys & MEASURED_FIELDS
        assert not any(key.startswith("measured_") for key in keys)


def test_sizes_that_few_rows_have_are_read() -> None:
    product = operator_of(GEMM | {"batch": 3}).operators[0]
    tiled = operator_of(
        GEMM | {"op": "tile_gemm", "tile_m": 64, "tile_n": 64, "tile_k": 32, "warps": 4, "stages": 3, "split_k": 5}
    ).operators[0]
    assert isinstance(product, Gemm) and product.batch == 3
    assert isinstance(tiled, Gemm) and tiled.tile == Tile(64, 64, 32, 4, 3, 5)
    shape = {"B": 1, "Hq": 8, "Hkv": 8, "S": 512, "D": 192, "Dv": 128}
    heads = operator_of({"op": "flash_attn", **shape, "backend": "FLASH_ATTENTION", "direction": "fwd"}).operators[0]
    assert isinstance(heads, Attention) and (heads.head_dim, heads.value_dim) == (160, 128)


def test_how_much_of_the_time_work_between_pauses_takes() -> None:
    pulses = operator_of(GEMM | {"op": "pulse", "busy_s": 1.5, "idle_s": 0.5})
    assert pulses.busy_share == 0.75 and not pulses.is_single and not pulses.is_sequence
    assert operator_of({"op": "duty", "duty": 1.0}).is_single
    paused = replace(operator_of({"op": "interleave", "n8": 1, "nv": 2}), busy_share=0.5)
    assert not paused.is_sequence and replace(paused, busy_share=1.0).is_sequence


def test_sums_and_means_over_gpus(tmp_path: Path) -> None:
    row = one(tmp_path, power_w_per_gpu=[100.0, 200.0], sm_clock_mhz_per_gpu=[1980.0, None], energy_j=3.0)
    assert (row.measured.power_w, row.measured.sm_clock_mhz, row.measured.energy_j) == (300.0, 1980.0, 3.0)
    row = one(tmp_path, power_w_per_gpu=[100.0, None], sm_clock_mhz_per_gpu=[None, None])
    assert (row.measured.power_w, row.measured.sm_clock_mhz, row.measured.energy_j) == (None, None, None)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sm_clock_mhz": 1.98}, r"\[sm_clock_mhz\]: 1\.98 MHz is not the clock of a GPU\. Give clocks in MHz"),
        ({"sm_clock_mhz": 1.98e9}, "is not the clock of a GPU"),
        ({"power_w": 690e3}, r"\[power_w\]: 690000 W, which no GPU draws\. Give power in watts"),
        ({"gpus": 4, "power_w_per_gpu": [690e3] * 4}, "4 GPUs never draw"),
        ({"power_w": 690.0, "energy_j": 690.0}, r"\[energy_j\]: energy over time is 6\.9e\+05 W, the power 690 W"),
        ({"power_w": 690.0, "energy_j": 0.69, "time_s": 1.0}, "Give seconds, joules and watts everywhere"),
    ],
)
def test_other_units_are_refused(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    """They were fitted: a row a thousand times off is an outlier to a fit, no mistake."""
    with pytest.raises(DataError, match=says):
        one(tmp_path, **fields)


@pytest.mark.parametrize(
    ("key", "read"), [("time_ms", "time_s"), ("power_mw", "power_w"), ("sm_clock_ghz", "sm_clock_mhz")]
)
def test_a_key_in_another_unit_is_refused_where_nothing_else_has_the_quantity(
    tmp_path: Path, key: str, read: str
) -> None:
    """It stood unread: a table without times, as if none had been measured."""
    with pytest.raises(DataError, match=rf"rows\.jsonl:1 \[{key}\]: '{key}' is in another unit\. Write {read}, in "):
        read_rows(write(tmp_path, json.dumps({"op": "gemm", key: 1.5})))
    assert len(read_rows(write(tmp_path, json.dumps({"op": "gemm", key: 1.5, read: 1500.0})))) == 1


def test_the_counted_clock_is_measured_and_of_one_gpu(tmp_path: Path) -> None:
    row = one(tmp_path, measured_counted_clock_mhz=1700.5)
    assert row.measured.counted_clock_mhz == 1700.5
    assert "measured_counted_clock_mhz" not in row.configuration
    assert one(tmp_path).measured.counted_clock_mhz is None
    assert one(tmp_path, gpus=1, measured_counted_clock_mhz=1700.5).measured.counted_clock_mhz == 1700.5
    assert one(tmp_path, gpus=2, measured_counted_clock_mhz=1700.5).measured.counted_clock_mhz is None


def test_name_falls_back_to_id_and_to_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, '{"id": 7, "op": "gemm"}', "", '{"op": "gemm"}')
    assert [row.name for row in read_rows(path)] == ["7", "rows.jsonl:3"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"op": ', "not a JSON object"),
        ("[1]", "not a JSON object"),
        ('{"op": "gemm", "time_s": NaN}', "NaN"),
        ('{"op": "gemm", "M": 1e999}', "1e999 is too large"),
        ('{"op": "gemm", "energy_j": -1}', "not positive"),
        ('{"op": "gemm", "time_s": 0.0}', "not positive"),
        ('{"a":' * 100_000, "recursion"),
        ('{"op": "gemm", "measured_counted_clock_mhz": 0}', "not positive"),
        ('{"op": "gemm", "measured_counted_clock_mhz": "fast"}', "not a number"),
        ('{"op": "gemm", "time_s": "fast"}', "not a number"),
        ('{"op": "gemm", "power_w_per_gpu": 3}', "not a list"),
    ],
)
def test_broken_line_names_file_and_line(tmp_path: Path, line: str, what: str) -> None:
    path = write(tmp_path, json.dumps(GEMM), line)
    with pytest.raises(DataError, match=what) as caught:
        read_rows(path)
    assert f"{path}:2" in str(caught.value)


def test_folder_and_missing_paths(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no \\*\\.jsonl"):
        read_rows(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        read_rows(tmp_path / "absent.jsonl")
    write(tmp_path, json.dumps(GEMM))
    assert len(read_rows(tmp_path)) == 1
    assert len(read_rows([tmp_path, tmp_path])) == 2


def test_recorded_rows_are_all_understood() -> None:
    rows = recorded_rows()
    assert len(rows) > 300
    for row in rows:
        if row.op in OVERLAP_OPS:
            assert launches_of(row.configuration), row.name
            continue
        work = operator_of(row.configuration)
        assert not work.reason, row.name
        assert len(work.operators) == len(work.counts)


def test_flops_of_the_data_agree() -> None:
    for row in recorded_rows():
        operators = operator_of(row.configuration).operators
        if "flops" in row.configuration:
            assert isinstance(operators[0], Gemm | Attention)
            assert operators[0].flops == pytest.approx(row.configuration["flops"])
        if "bytes" in row.configuration and len(operators) == 1 and isinstance(operators[0], Streaming):
            assert operators[0].bytes_read + operators[0].bytes_written == pytest.approx(row.configuration["bytes"])


def only(**fields: Any) -> Any:
    work = operator_of(fields)
    assert work.is_single, work.reason
    return work.operators[0]


def test_kinds_of_rows() -> None:
    assert only(op="gemm", M=1, N=8, K=16, dtype="fp16", data="zeros") == Gemm(1, 8, 16, "fp16", "zeros")
    tiled = only(op="tile_gemm", M=1, N=2, K=3, tile_m=64, tile_n=32, tile_k=16, warps=4, stages=3)
    assert tiled.tile == Tile(64, 32, 16, 4, 3)
    attention = only(
        op="flash_attn", B=1, Hq=8, Hkv=2, S=64, D=64, causal=False, backend="CUDNN_ATTENTION", direction="bwd"
    )
    assert attention == Attention(1, 8, 2, 64, 64, False, "cudnn", "backward")
    add = only(op="add", shape=[4, 6], bytes=144.0)
    assert (add.bytes_read, add.bytes_written, add.elements, add.rows, add.columns) == (96.0, 48.0, 24.0, 4, 6)
    adam = only(op="adamw", params=10, bytes=280.0, dtype="fp32")
    assert (adam.bytes_read, adam.bytes_written, adam.elements) == (160.0, 120.0, 10.0)
    bare, gpu = only(op="adamw", bytes=28e7, dtype="fp32"), gpu_model(load_gpu("h200-sxm"))
    told, counted = lower([bare, only(op="adamw", params=10**7, bytes=28e7, dtype="fp32")], gpu).fixed_s
    assert told == counted  # by the bytes where a row does not tell the number
    assert only(op="copy", bytes=8).elements == 2.0
    assert only(op="fill", bytes=8).bytes_read == 0.0
    assert only(op="p2p", bytes=8, gpus=2) == Collective("send_recv", 8.0, 2)
    assert only(op="all_reduce", bytes=8, gpus=4, ctas=8).ctas == 8


def test_what_cannot_be_mapped_says_why() -> None:
    assert "unknown op 'conv'" in operator_of({"op": "conv"}).reason
    assert "no op" in operator_of({}).reason
    assert "'K'" in operator_of({"op": "gemm", "M": 1, "N": 1}).reason
    assert "data type" in operator_of({"op": "gemm", "M": 1, "N": 1, "K": 1, "dtype": "int3"}).reason
    assert "backend" in operator_of({"op": "flash_attn", "backend": "MATH"}).reason


def test_near_duplicates_share_a_group() -> None:
    gemm = {"op": "gemm", "dtype": "bf16", "M": 8, "N": 8, "K": 8}
    assert group_key(gemm | {"data": "zeros", "name": "a"}) == group_key(gemm | {"data": "randn", "name": "b"})
    assert group_key(gemm) != group_key(gemm | {"dtype": "fp16"})
    attention = {"op": "flash_attn", "B": 1, "Hq": 8, "Hkv": 8, "S": 64, "D": 64, "causal": True}
    assert group_key(attention | {"backend": "a", "direction": "fwd"}) == group_key(attention | {"backend": "b"})
    assert group_key({"op": "all_reduce", "gpus": 2}) == group_key({"op": "all_gather", "gpus": 2, "bytes": 1})
    tile = {"op": "tile_reduce_min", "bytes": 8, "tile_rows": 1, "tile_cols": 64}
    assert group_key(tile | {"warps": 1}) == group_key(tile | {"warps": 8})
    assert group_key(tile) != group_key(tile | {"tile_rows": 2})
    stream = {"op": "stream", "pattern": "rmsnorm", "bytes": 8, "dtype": "bf16"}
    assert group_key(stream) == group_key({"op": "rms_norm", "bytes": 8, "dtype": "bf16"})


def test_kernels_of_a_training_step() -> None:
    row = {"op": "stream", "pattern": "mul", "bytes_read": 8.0, "bytes_written": 4.0, "shape": [2, 1], "bytes": 12.0}
    assert only(**row).pattern == "mul"
    assert only(op="gemm", M=8, N=8, K=8, layout="nt").layout == "nt"
    work = operator_of(row | {"pattern": "rmsnorm_backward_both"})
    assert work.is_sequence
    assert not work.is_single
    assert "'shape'" in operator_of(row | {"shape": None}).reason


def test_rows_of_several_kernels_are_those_of_a_step() -> None:
    """Of a call of PyTorch's that launches several, with bytes as a plan's."""
    config, run, tokens = load_model("llama-3.2-1b"), Implementation(), 2 * 4096
    step = {
        "embedding_backward": embedding_backward(config, run, 2, 4096, accumulate=False, head_here=False),
        "cross_entropy": head_forward(config, run, 2, 4096),
        "cross_entropy_backward": head_backward(config, run, 2, 4096),
        "rmsnorm_backward_both": layer_backward(config, run, 2, 4096),
    }
    for pattern, launches in step.items():
        rows = config.vocab if pattern == "embedding_backward" else tokens
        columns = config.vocab if "cross_entropy" in pattern else config.hidden
        row = {"op": "stream", "pattern": pattern, "shape": [rows, columns], "elements": tokens * config.hidden}
        of_row = [moved(one) for one in operator_of(row | {"bytes_read": 1.0, "bytes_written": 1.0}).operators]
        of_step = [moved(launch.operator) for launch in launches if isinstance(launch.operator, Streaming)]
        assert len(of_row) > 1
        assert [one for one in of_row if one not in of_step and one[0] != "embedding_segments"] == []


def moved(kernel: Any) -> tuple[Any, ...]:
    return kernel.pattern, kernel.bytes_read, kernel.bytes_written


@pytest.mark.parametrize("kind", ["index", "gather", "index_put", "index_put_accumulate", "scatter_add", "index_add"])
def test_rows_of_experts_tokens_are_their_own_operator(kind: str) -> None:
    sizes = {"tokens": 512, "hidden": 64, "experts": 8, "experts_per_token": 2}
    work = operator_of({"op": "expert_rows", "kernel": kind, **sizes})
    assert [one.name for one in work.operators][-1] == kind


def test_every_kernel_op_of_the_data_is_listed() -> None:
    ops = {row.op for row in recorded_rows() if row.gpus == 1}
    assert ops <= KERNEL_OPS
