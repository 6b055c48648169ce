"""Kernel times that others published: how their tables are read, and how far forecasts of other cards are off."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import status_of

from joulecast.calibrate.descriptions.from_rows import fit_rows
from joulecast.calibrate.rows.measured import Row, read_rows
from joulecast.calibrate.rows.operators import operator_of
from joulecast.calibrate.rows.timing import LAUNCH_S, PRODUCT_OFFSET_S, WAITED_S, observed_time_s
from joulecast.cli import main
from joulecast.errors import DataError, InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import ADDED_SHARE, lower
from joulecast.model.kernels.operators import Attention, Gemm, Streaming
from joulecast.model.power.kernel_power import idle_power_w, wait_power_w
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work
from joulecast.validate import run_suite

VIDUR = """gpu,model,tp,tokens,operator,M,N,K,hidden,ffn_per_rank,dtype,median_time_s,std_s
a100,some,2,128,attn_pre_proj,128,3072,4096,4096,5504,fp16,3e-5,1e-7
a100,some,2,128,attn_post_proj,128,4096,2048,4096,5504,fp16,2e-5,1e-7
a100,some,2,128,mlp_act,,,,4096,5504,fp16,6e-6,0
a100,some,2,128,attn_rope,,,,4096,5504,fp16,4e-6,0
a100,plain,2,128,mlp_up_proj,128,5120,2560,2560,5120,fp16,4e-6,0
a100,plain,2,128,add,,,,2560,5120,fp16,4e-6,0
h100,some,2,128,add,,,,4096,5504,fp16,2e-6,0
"""
SIMUMAX = """system,operator,shape,efficiency_of_peak
a100_pcie,accelerator/op/matmul,"b=1, m=4096, k=512, n=1024, layout=NT, accumulate=True, out_dtype=fp32",0.5
a100_pcie,accelerator/op/sdp_bwd,"batch=1, seq_len=4096, head_num=8, kv_head_num=2, qk_head_dim=192, v_head_dim=128",0.8
b200_fp8,accelerator/op/fp8_matmul,"b=2, m=4096, k=512, n=1024, layout=TN, accumulate=False, out_dtype=bf16",0.5
b200_bf16_ceperm,accelerator/op/group_matmul,"ng=8, M=64, N=512, K=256, stage=bwd_grad_w, main_grad_dtype=fp32",0.1
"""


def table(folder: Path, text: str) -> list[Row]:
    path = folder / "times.csv"
    path.write_text(text, encoding="utf-8")
    return read_rows(path)


def operator(row: Row) -> Any:
    return operator_of(row.configuration).operators[0]


def test_operators_of_a_profiled_block(tmp_path: Path) -> None:
    pre, _, act, rope, _, twice, plain = table(tmp_path, VIDUR)
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
    product, attention, narrow, grouped = table(tmp_path, SIMUMAX)
    assert product.measured.time_s == pytest.approx(2 * 4096 * 512 * 1024 / (0.5 * 312e12))
    gemm = operator(product)
    assert (gemm.layout, gemm.output_bytes_per_element) == ("nt", 8)
    fused = operator(attention)
    assert isinstance(fused, Attention)
    assert (fused.backend, fused.direction, fused.causal) == ("flash-attention-2", "backward", True)
    # Its efficiency counts twice what causal attention does, and five products of the mean width in the backward.
    counted = 2 * 2.5 * replace(fused, direction="forward").flops
    assert attention.measured.time_s == pytest.approx(counted / (0.8 * 312e12))
    assert (operator(grouped).m, operator(grouped).n, operator(grouped).k) == (512, 256, 64)
    assert operator(grouped).batch == 8
    assert (operator(narrow).dtype, operator(narrow).m, operator(narrow).output_bytes_per_element) == ("fp8", 8192, 2)
    assert narrow.measured.time_s == pytest.approx(2 * 8192 * 512 * 1024 / (0.5 * 4500e12))
    assert narrow.configuration["products"] == ["NVIDIA B200"]


def test_products_follow_one_another_until_the_host_plans_the_next_model(tmp_path: Path) -> None:
    def line(operator: str, shape: str) -> str:
        return f'b200_bf16_ceperm,accelerator/op/{operator},"{shape}",0.5\n'

    def product(m: int, k: int, n: int, layout: str) -> str:
        return line("matmul", f"b=1, m={m}, k={k}, n={n}, layout={layout}, accumulate=False, out_dtype=bf16")

    experts = line("group_matmul", "ng=4, M=64, N=512, K=256, stage=fwd")
    twice = product(4096, 1024, 2048, "TN") + product(4096, 512, 2048, "TN")
    heads = product(64128, 4096, 8192, "NT") + twice + product(64128, 2048, 8192, "NT") + twice
    rows = table(tmp_path, SIMUMAX.splitlines(keepends=True)[0] + twice + heads + 2 * experts)
    before = [row.configuration["runs_before"] for row in rows]
    assert before[:2] == [25, 25 + 2 * 100]  # 100 runs of twice the operations
    head = 64128 * 4096 * 8192 / (4096 * 1024 * 2048)
    assert before[2] == pytest.approx(25 + 150 / head)
    assert before[3:5] == before[:2]  # behind a head of the sweep the board has rested
    assert before[6] == pytest.approx(25 + 150 + head / 2 * 100)  # behind one of a list it has not
    assert before[8:] == [10, 60]  # another script begins anew


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
        ("", "times.csv: the file is empty"),
        ("gpu,M,N,K,time_s\na100,64,x,64,3e-5\n", "times.csv:2.*'x' is not a positive number"),
        ("gpu,M,N,K,time_s\na100,64,64,64,-1\n", "not a positive number"),
        ("gpu,M,N,K,time_s\na100,64,64\n", "times.csv:2.*not as many values"),
        (SIMUMAX.replace("a100_pcie", "z9"), "no peak is known for 'z9'"),
    ],
)
def test_broken_tables_are_named(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(DataError, match=wrong):
        table(tmp_path, text)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", None])
def test_a_folder_without_rows_names_those_below_it_that_have_some(tmp_path: Path, text: str | None) -> None:
    if text:
        (tmp_path / "other.csv").write_text(text, encoding="utf-8")
    for name in ("rows", "tables"):
        (tmp_path / name).mkdir()
    (tmp_path / "tables" / "more.csv").write_text("a,b\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"(lines|form)\.$"):
        read_rows(tmp_path)
    (tmp_path / "rows" / "a.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=rf"(lines|form)\. There are JSON lines in {re.escape(str(tmp_path / 'rows'))}\.$"
    ):
        read_rows(tmp_path)


def test_rows_of_other_cards_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path, VIDUR)
    command = ["validate", "kernels", "--data", str(tmp_path), "--json", "--gpu"]
    status_of(*command, "h100-sxm")
    report = json.loads(capsys.readouterr().out)
    assert len(report["rows"]) == 1
    assert [entry["name"] for entry in report["skipped"]] == ["times.csv: 6 rows of a100"]
    with pytest.raises(SystemExit, match="2"):
        main([*command, "h200-sxm"])
    assert "measured on NVIDIA A100-SXM4-80GB, not on NVIDIA H200" in capsys.readouterr().err


# Figures. A trivial rule is one rate for products and attention each, and one bandwidth, learnt from the same rows.

#: Card, table, mean error of the derived description and of one that is fitted to the other half [%].
FIGURES = [
    ("a100-sxm-80gb", "vidur_operators", 12.0, 8.0),
    ("a40", "vidur_operators", 13.0, 8.0),
    ("h100-sxm", "vidur_operators", 13.0, 8.0),
    ("a100-sxm-80gb", "llmcompass_matmul", 13.0, 6.0),
    ("mi210", "llmcompass_matmul", 8.0, 5.0),
    ("a100-pcie-80gb", "simumax_a100_pcie", 8.0, 6.5),
    ("b200", "simumax_b200_bf16_ceperm", 10.5, 8.0),
]
IDS = [f"{gpu} {table}" for gpu, table, *_ in FIGURES]
QUICK = [figure for figure in FIGURES if figure[1] == "llmcompass_matmul"]


@pytest.mark.parametrize(("gpu", "name", "derived", "_"), FIGURES, ids=IDS)
def test_a_card_that_was_never_measured(data: Path, gpu: str, name: str, derived: float, _: float) -> None:
    whole = run_suite("kernels", data / "other_gpus" / f"{name}.csv", gpu=gpu).summary["all"]
    assert whole["time_error_percent"] < derived
    assert whole["time_error_percent"] < whole["time_baseline_percent"]
    assert whole["time_inside_percent"] >= 80


@pytest.mark.parametrize(("gpu", "name", "_", "fitted"), QUICK)
def test_half_of_the_rows_foretell_the_other_half(data: Path, gpu: str, name: str, _: float, fitted: float) -> None:
    whole = run_suite("kernels", data / "other_gpus" / f"{name}.csv", gpu=gpu, folds=2).summary["all"]
    assert whole["time_error_percent"] < fitted
    assert whole["time_inside_percent"] >= 80


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("gpu", "name", "_", "fitted"), [f for f in FIGURES if f not in QUICK])
def test_half_of_a_large_table(data: Path, gpu: str, name: str, _: float, fitted: float) -> None:
    test_half_of_the_rows_foretell_the_other_half(data, gpu, name, _, fitted)


def test_derived_cards_rest_and_wait_as_measured(data: Path) -> None:
    folder = data / "a100_dvfs_inference"
    for name, file in (("a100-pcie-80gb", "a100_voltage_idle.csv"), ("h100-sxm", "h100_idle.csv")):
        lines = [line.split(",") for line in (folder / file).read_text("utf-8").splitlines()]
        clock, power = (np.array([float(line[i]) for line in lines[2:]]) for i in (0, lines[0].index("idle_power_w")))
        found = idle_power_w(clock, gpu_model(load_gpu(name)))
        assert np.mean(np.abs(found / power - 1.0)) < 0.08, name
    assert float(wait_power_w(1410.0, gpu_model(load_gpu("a100-pcie-80gb")))) == pytest.approx(83.6, rel=0.05)


@pytest.mark.parametrize(
    ("gpu", "stage", "clocks"),
    [
        ("a40", "stage_profile_bloom_a40.csv", (1005, 1200, 1410)),
        ("a100-sxm-80gb", "stage_profile_gpt3-175b_a100-sxm.csv", (1005, 1095, 1200)),
    ],
)
def test_derived_cards_draw_what_stages_of_products_draw(
    data: Path, gpu: str, stage: str, clocks: tuple[int, ...]
) -> None:
    lines = (data / "perseus_sosp24" / stage).read_text("utf-8").splitlines()[1:]
    power: dict[int, list[float]] = {}
    for _, _, clock, time, energy in (line.split(",") for line in lines):
        power.setdefault(int(clock), []).append(float(energy) / float(time))
    card = gpu_model(load_gpu(gpu))
    work = [Work((Gemm(8192, 8192, 8192, dtype="fp16"),))]
    for clock in clocks:
        found = float(predict_work(work, card, clock_mhz=clock).power_w[0])
        assert found == pytest.approx(np.mean(power[clock]), rel=0.1), clock


def test_a_fit_from_times_alone(tmp_path: Path, data: Path) -> None:
    times = data / "other_gpus" / "llmcompass_matmul.csv"
    fit = fit_rows([times], base="mi210", name="mine")
    assert (fit.rows, fit.description.name) == (22, "mine")
    share = fit.description.kernel.parameters["gemm.bandwidth_share"]
    before = load_gpu("mi210").kernel.parameters["gemm.bandwidth_share"]
    assert share.status == "fitted" and "removed" in share.source and share.sd < before.sd
    # What no product asks about stays as it was derived.
    copy = fit.description.kernel.parameters["streaming.copy.bandwidth_share"]
    assert copy == load_gpu("mi210").kernel.parameters["streaming.copy.bandwidth_share"]
    with pytest.raises(InputError, match="none of 42 rows was measured on AMD Instinct MI300X, but on a100, mi210"):
        fit_rows([times], base="mi300x")


# Forms


def seconds(operator: Any, gpu: str = "a100-sxm-80gb", **window: float) -> float:
    return float(predict_work([Work((operator,))], gpu_model(load_gpu(gpu)), **window).time_s[0])


def test_adding_to_a_wide_result_moves_more_bytes() -> None:
    plain, added = (Gemm(8192, 8192, 64, **more) for more in ({}, {"out_dtype": "fp32", "accumulate": True}))
    assert added.output_bytes_per_element == 4 * plain.output_bytes_per_element
    # Of a result in fp32 that is read and written, four times the bytes, 0.54 of the bandwidth is reached.
    assert 4.0 < seconds(added) / seconds(plain) < 4.0 / ADDED_SHARE


def test_separate_products_overlap_in_part() -> None:
    gpu = gpu_model(load_gpu("b200"))
    products = [Gemm(256, 4096, 4096, batch=b, separate=s) for b, s in ((1, False), (64, False), (64, True))]
    one, batch, separate = lower(products, gpu).core_cycles
    assert 1.1 * batch < separate < 64 * one


def test_weight_gradients_need_aligned_rows_of_m_and_n() -> None:
    """Tokens that are no whole 16 bytes are rows of a product's operands, but not of a gradient's."""
    for tokens, slower in ((4100, 1.6), (4101, 2.6)):  # whole words of 4 bytes, and single values
        sizes = {"m": 4096, "n": 4096, "k": tokens}
        assert seconds(Gemm(**sizes, layout="nt")) < seconds(Gemm(**sizes, layout="tn")) / slower


def test_a_block_of_threads_for_each_row() -> None:
    def norm(rows: int, columns: int = 8192) -> Streaming:
        size = 2.0 * rows * columns
        return Streaming("vllm_rms_norm", size, size, dtype="fp16", rows=rows, columns=columns)

    gpu = gpu_model(load_gpu("a100-sxm-80gb"))
    cycles = lower([norm(1), norm(108), norm(216), norm(217), norm(432)], gpu).core_cycles
    assert cycles[0] == cycles[1] < cycles[2] < cycles[3] < cycles[4] == pytest.approx(2 * cycles[2])
    between = gpu["kernel.row_blocks.vllm_rms_norm.block_cycles"]
    assert lower([norm(1, 1024)], gpu).core_cycles[0] - between == pytest.approx((cycles[0] - between) / 8)


def test_bytes_that_the_kernel_before_left_far_away() -> None:
    near = Streaming("add", 4e6, 2e6, footprint_bytes=4e6)
    far = Streaming("add", 4e6, 2e6, footprint_bytes=4e6, far_bytes=4e6)
    assert seconds(near) < seconds(far) < seconds(Streaming("add", 4e6, 2e6, footprint_bytes=float("inf")))


def test_a_short_test_runs_before_the_board_answers() -> None:
    product = Gemm(8192, 8192, 8192)
    first, later, settled = (seconds(product, "b200", settle_s=start, window_s=0.02) for start in (0.0, 0.1, 5.0))
    assert first < 0.9 * later
    assert later <= settled


def test_blackwell_answers_a_load_later() -> None:
    product = Gemm(8192, 8192, 8192)
    assert load_gpu("b200").transition["answer_s"] == load_gpu("gb300").transition["answer_s"] == 0.05
    at_once, still = (seconds(product, "b200", settle_s=start, window_s=0.01) for start in (0.0, 0.035))
    assert still == pytest.approx(at_once)
    assert seconds(product, "b200", settle_s=0.055, window_s=0.01) > 1.1 * at_once


def test_clocks_wander_less_where_the_limit_binds_less() -> None:
    wander = {name: load_gpu(name).governor["wander"] for name in ("h200-sxm", "h100-sxm", "a100-sxm-80gb", "a40")}
    assert wander["h100-sxm"] == pytest.approx(wander["h200-sxm"])
    assert wander["a100-sxm-80gb"] < 0.8 * wander["h200-sxm"] and wander["a40"] < 0.8 * wander["h200-sxm"]
