"""Kernel times that others published: how their tables are read, and how far forecasts of other cards are off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joulecast.calibrate.row_operators import operator_of
from joulecast.calibrate.rows import Row, read_rows
from joulecast.calibrate.timing import LAUNCH_S, PRODUCT_OFFSET_S, WAITED_S, observed_time_s
from joulecast.cli import main
from joulecast.errors import DataError
from joulecast.model.operators import Attention, Gemm, Streaming

VIDUR = """gpu,model,tp,tokens,operator,M,N,K,hidden,ffn_per_rank,dtype,median_time_s,std_s
a100,some,2,128,attn_pre_proj,128,3072,4096,4096,5504,fp16,3e-5,1e-7
a100,some,2,128,attn_post_proj,128,4096,2048,4096,5504,fp16,2e-5,1e-7
a100,some,2,128,mlp_act,,,,4096,5504,fp16,6e-6,0
a100,some,2,128,attn_rope,,,,4096,5504,fp16,4e-6,0
a100,phi-2,2,128,add,,,,2560,5120,fp16,4e-6,0
h100,some,2,128,add,,,,4096,5504,fp16,2e-6,0
"""
SIMUMAX = """system,operator,shape,efficiency_of_peak
a100_pcie,accelerator/op/matmul,"b=1, m=4096, k=512, n=1024, layout=NT, accumulate=True, out_dtype=fp32",0.5
a100_pcie,accelerator/op/sdp_bwd,"batch=1, seq_len=4096, head_num=8, kv_head_num=2, qk_head_dim=192, v_head_dim=128",0.8
b200_bf16_ceperm,accelerator/op/group_matmul,"ng=8, M=64, N=512, K=256, stage=bwd_grad_w, main_grad_dtype=fp32",0.1
"""


def table(folder: Path, text: str) -> list[Row]:
    path = folder / "times.csv"
    path.write_text(text, encoding="utf-8")
    return read_rows(path)


def operator(row: Row) -> Any:
    return operator_of(row.configuration).operators[0]


def test_operators_of_a_profiled_block(tmp_path: Path) -> None:
    pre, _, act, rope, twice, plain = table(tmp_path, VIDUR)
    product = operator(pre)
    assert isinstance(product, Gemm)
    assert (product.m, product.n, product.k, product.dtype) == (128, 3072, 4096, "fp16")
    assert product.footprint_bytes == 2 * (3072 * 4096 + 4096 * 2048 + 128 * (3072 + 4096 + 4096 + 2048))
    gated = operator(act)
    assert isinstance(gated, Streaming)
    assert (gated.bytes_read, gated.bytes_written) == pytest.approx((2 * 128 * 2 * 5504, 2 * 128 * 5504))
    # 2048 columns of queries and 512 of keys, changed in place.
    assert operator(rope).bytes_read == operator(rope).bytes_written == 2 * 128 * 2560
    assert operator_of(twice.configuration).counts == (2,)
    assert operator(plain).bytes_read == 2 * 128 * 2 * 4096
    assert pre.measured.time_s == 3e-5 and pre.measured.energy_j is None


def test_efficiencies_are_times(tmp_path: Path) -> None:
    product, attention, grouped = table(tmp_path, SIMUMAX)
    assert product.measured.time_s == pytest.approx(2 * 4096 * 512 * 1024 / (0.5 * 312e12))
    gemm = operator(product)
    assert (gemm.layout, gemm.output_bytes_per_element) == ("nt", 8)
    fused = operator(attention)
    assert isinstance(fused, Attention)
    assert (fused.backend, fused.direction, fused.causal) == ("flash-attention-2", "backward", True)
    # Causal attention does half of the operations that its efficiency counts.
    assert attention.measured.time_s == pytest.approx(2 * fused.flops / (0.8 * 312e12))
    assert (operator(grouped).m, operator(grouped).n, operator(grouped).k) == (512, 256, 64)
    assert operator(grouped).batch == 8


def test_what_a_measurement_adds_to_a_kernel(tmp_path: Path) -> None:
    kernel = table(tmp_path, VIDUR)[0]
    queued = table(tmp_path, SIMUMAX)[0]
    waited = table(tmp_path, "gpu,M,N,K,time_s\na100,8192,64,64,3e-5\n")[0]
    short, long = 1e-6, 1e-3
    for time in (short, long):
        found = observed_time_s([kernel, queued, waited], np.full(3, time))
        assert found.tolist() == pytest.approx([time + PRODUCT_OFFSET_S, max(time, LAUNCH_S), time + WAITED_S])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a,b\n1,2\n", "unknown columns a, b"),
        ("gpu,M,N,K,time_s\na100,64,x,64,3e-5\n", "times.csv:2.*'x' is not a number"),
        ("gpu,M,N,K,time_s\na100,64,64,64,-1\n", "not above 0"),
        ("gpu,M,N,K,time_s\na100,64,64\n", "times.csv:2.*more or fewer fields"),
        (SIMUMAX.replace("a100_pcie", "z9"), "no peak is known for 'z9'"),
    ],
)
def test_broken_tables_are_named(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(DataError, match=wrong):
        table(tmp_path, text)


def test_rows_of_other_cards_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path, VIDUR)
    command = ["validate", "kernels", "--data", str(tmp_path), "--json", "--gpu"]
    with pytest.raises(SystemExit):
        main([*command, "h100-sxm"])
    report = json.loads(capsys.readouterr().out)
    assert len(report["rows"]) == 1
    assert [entry["name"] for entry in report["skipped"]] == ["times.csv: 5 rows of a100"]
    with pytest.raises(SystemExit, match="2"):
        main([*command, "h200-sxm"])
    assert "measured on NVIDIA A100-SXM4-80GB, not on NVIDIA H200" in capsys.readouterr().err
