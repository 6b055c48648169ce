"""Descriptions with a user's own kernels from rows: recorded ones of an H200, and what bad rows get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from paths import SHARED_DATA

from joulecast.calibrate.descriptions.own_kernels import own_kernel_lines, with_own_kernels
from joulecast.calibrate.fit.unclocked import forecast_rows
from joulecast.calibrate.rows.measured import Row, read_rows, recorded_rows, row_of
from joulecast.calibrate.rows.operators import operator_of
from joulecast.errors import DataError, InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.description import GpuDescription

H200 = load_gpu("h200-sxm")
PRODUCT: dict[str, Any] = {"op": "gemm", "M": 4096, "N": 4096, "K": 4096, "time_s": 2e-4}
STREAM: dict[str, Any] = {
    "op": "stream",
    "bytes_read": 1e8,
    "bytes_written": 1e8,
    "time_s": 6e-5,
    "shape": [8192, 4096],
}


def rows_of(*contents: dict[str, Any]) -> list[Row]:
    return [row_of(content, "mine.jsonl", line) for line, content in enumerate(contents, start=1)]


def errors(gpu: GpuDescription, rows: Sequence[Row]) -> tuple[float, float, float]:
    """Mean errors of time and energy, and share of times within their intervals."""
    found = forecast_rows([operator_of(row.configuration) for row in rows], rows, gpu)
    time, energy = np.array([(row.measured.time_s, row.measured.energy_j) for row in rows], dtype=np.float64).T
    off = (np.abs(forecast / real - 1).mean() for forecast, real in ((found.time_s, time), (found.energy_j, energy)))
    return (*off, float(np.mean((found.time_s_p05 <= time) & (time <= found.time_s_p95))))


def flash_attention_as_own() -> list[Row]:
    """Recorded rows of FlashAttention-2 by their work, given as if they were one's own in place of cuDNN's."""
    recorded = [row for row in recorded_rows() if row.configuration.get("backend") == "FLASH_ATTENTION"]
    contents = [{**row.configuration, **row.measured.raw, "backend": "CUDNN_ATTENTION"} for row in recorded]
    named = [row_of(content, row.file, row.line) for content, row in zip(contents, recorded, strict=True)]
    return sorted(named, key=lambda row: operator_of(row.configuration).operators[0].flops)


def test_half_of_the_rows_of_an_unknown_kernel_tell_the_others() -> None:
    rows = flash_attention_as_own()
    few = [row for place, row in enumerate(rows) if place % 6]
    splits = ((rows[::2], rows[1::2], 0.011), (rows[1::2], rows[::2], 0.011), (rows[::6], few, 0.046))
    for given, other, most in splits:
        before, after = errors(H200, other), errors(with_own_kernels(given, H200), other)
        assert min(before[:2]) > 0.35 and max(after[:2]) < most and after[2] >= (1.0 if most < 0.02 else 0.7)


def test_rows_are_forecast_as_they_were_measured() -> None:
    """Of kernels below the board's limit to the digits that the file has; their clock is the forecast's."""
    files = ["kernels_training.jsonl"]
    rows = [r for r in recorded_rows(files) if r.configuration.get("pattern") in ("rmsnorm", "gelu", "add")]
    own = with_own_kernels(rows, H200)
    free = [row for row in rows if row.measured.sm_clock_mhz == 1980.0]
    assert len(free) > 3 and errors(H200, free)[0] > 0.01 and max(errors(own, free)[:2]) < 1e-4
    assert max(errors(own, rows)[:2]) < 0.01


def test_rows_without_a_clock_are_taken_at_the_one_that_is_forecast() -> None:
    """What the board's limit holds is taken to draw its power, so that it runs at the same clock."""
    windows = {"settle_s": 5, "target_window_s": 2}
    big = {**PRODUCT, "M": 8192, "N": 8192, "K": 8192, **windows, "time_s": 1.6e-3}
    free = {**STREAM, "pattern": "rmsnorm", **windows}
    rows = rows_of(big, free)
    held, own = own_kernel_lines(with_own_kernels(rows, H200))
    assert held["energy_from"] == pytest.approx(held["time_from"], rel=1e-4) and own["energy_from"] is None
    works = [operator_of(row.configuration) for row in rows]
    found = forecast_rows(works, rows, with_own_kernels(rows, H200))
    assert found.time_s == pytest.approx([1.6e-3, 6e-5], rel=3e-3)
    assert found.clock_mhz == pytest.approx(forecast_rows(works, rows, H200).clock_mhz, rel=0.01)


def test_a_row_of_a_short_measurement_is_compared_with_the_forecast_of_one() -> None:
    """At the beginning the board's instant limit holds large products."""
    rows = rows_of({**PRODUCT, "M": 8192, "N": 8192, "K": 8192, "time_s": 1.5e-3})
    forecast = forecast_rows([operator_of(rows[0].configuration)], rows, H200)
    (line,) = own_kernel_lines(with_own_kernels(rows, H200))
    assert line["time_from"] == pytest.approx(1.5e-3 / float(forecast.time_s[0]), rel=1e-4)


def test_the_scatter_is_how_far_rows_lie_from_what_the_others_tell() -> None:
    """Of factors 0.8, 0.8 and 1.6 the first is told exactly, the second off by half of ln 2, the last by ln 2."""
    shapes = [{**STREAM, "pattern": "rmsnorm", "bytes_read": b, "bytes_written": b} for b in (5e7, 1e8, 2e8)]
    clocked = [{**shape, "sm_clock_mhz": 1980, "time_s": 1e-4} for shape in shapes]
    found = [own_kernel_lines(with_own_kernels(rows_of(row), H200))[0]["time_from"] for row in clocked]
    aimed = zip(clocked, found, (0.8, 0.8, 1.6), strict=True)
    rows = rows_of(*({**row, "time_s": 1e-4 * factor / before} for row, before, factor in aimed))
    (line,) = own_kernel_lines(with_own_kernels(rows, H200))
    assert (line["time_from"], line["time_to"]) == pytest.approx((0.8, 1.6), rel=1e-4)
    assert line["time_sd"] == pytest.approx(np.log(2) * np.sqrt(1.25 / 3), abs=2e-4)


def test_one_kernel_in_place_of_several_scales_each_of_that_part() -> None:
    row = {**STREAM, "pattern": "rmsnorm_backward_both", "of": "norm", "power_w": 600, "sm_clock_mhz": 1980}
    first, second = own_kernel_lines(with_own_kernels(rows_of(row), H200))
    kinds = [f"streaming.{pattern}.bf16.of.norm" for pattern in ("norm_backward", "gamma_backward")]
    assert [first["kernel"], second["kernel"]] == kinds
    assert first["time_from"] == second["time_to"] and first["energy_from"] == second["energy_to"] is not None
    assert first["time_sd"] == pytest.approx(
        0.5 * abs(np.log(first["time_from"])), abs=1e-4
    )  # nothing tells its scatter


def test_new_rows_of_a_kind_replace_the_old_and_leave_others() -> None:
    rows = [*rows_of({**STREAM, "pattern": "rmsnorm", "power_w": 600}), row_of(PRODUCT, "other.jsonl", 1)]
    both = with_own_kernels(rows, H200)
    again = with_own_kernels(rows_of({**STREAM, "pattern": "rmsnorm"}), both, "mine")
    one, other = ({line["kernel"]: line for line in own_kernel_lines(of)} for of in (both, again))
    assert one["streaming.rmsnorm.bf16"]["time_from"] == other["streaming.rmsnorm.bf16"]["time_from"]
    assert other["streaming.rmsnorm.bf16"]["energy_from"] is None
    assert one["gemm.bf16.tn"] == other["gemm.bf16.tn"]
    assert (both.name, again.name) == ("h200-sxm", "mine")
    sources = [again.kernel.parameters[f"own.{kind}.time.rows"].source for kind in one]
    assert sources == ["1 row of mine.jsonl", "1 row of other.jsonl"]


def test_a_stream_row_has_its_type() -> None:
    (work,) = operator_of({**STREAM, "pattern": "unary", "dtype": "fp32"}).operators
    assert (work.dtype, work.elements) == ("fp32", 2.5e7)


@pytest.mark.parametrize(
    ("content", "key", "says"),
    [
        ({**PRODUCT, "K": None}, "K", "field 'K' is missing"),
        ({**STREAM, "pattern": "rmsnorm", "shape": None}, "op", "field 'shape' is missing"),
        ({**STREAM, "pattern": "rmsnrm"}, "pattern", "has no parameter 'kernel.streaming.rmsnrm"),
        ({**STREAM, "pattern": "cross_entropy"}, "of", "one in place of several (log_softmax, nll_loss)"),
        ({**STREAM, "pattern": "unary", "of": "two words"}, "of", "not how names of kernels begin"),
        ({**PRODUCT, "time_s": None}, "time_s", "nothing was timed"),
        ({**PRODUCT, "time_s": 0.2}, "time_s", "times the forecast one"),
        ({**PRODUCT, "power_w": 60}, "energy_j", "the energy above that of an idle GPU is -"),
        ({**PRODUCT, "gpu": "h100-sxm"}, "gpu", "measured on h100-sxm, not on NVIDIA H200"),
        ({**PRODUCT, "products": ["A100"], "card_label": "an A100"}, "gpu", "measured on an A100, not on NVIDIA H200"),
        ({"op": "all_reduce", "bytes": 1e7, "gpus": 4, "time_s": 1e-4}, "gpus", "a kernel of several GPUs"),
        ({"op": "duty", "duty": 0.5, "time_s": 1e-4}, "op", "the kernel pauses"),
        ({"op": "norm", "time_s": 1e-4}, "op", "unknown op 'norm'"),
    ],
)
def test_a_bad_row_is_named(content: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(DataError) as found:
        with_own_kernels(rows_of(PRODUCT, content), H200)
    error = found.value
    assert (error.file, error.line, error.key) == ("mine.jsonl", 2, key) and says in error.message
    assert error.remedy and "\n" not in str(error)


def test_the_card_of_a_row_may_be_named_and_some_row_must_be_there() -> None:
    for card in ("h200-sxm", "NVIDIA H200"):
        assert own_kernel_lines(with_own_kernels(rows_of({**PRODUCT, "gpu": card}), H200))
    with pytest.raises(InputError, match="no row of a kernel"):
        with_own_kernels([], H200)


@pytest.mark.skipif(not SHARED_DATA.exists(), reason="measured rows that are not shipped are absent")
def test_rows_that_are_not_shipped_are_read() -> None:
    rows = [
        row for row in read_rows(SHARED_DATA / "h200_sxm/kernels.jsonl") if row.op in ("gemm", "rms_norm", "softmax")
    ]
    own = with_own_kernels(rows, H200)
    assert {line["kernel"] for line in own_kernel_lines(own)} >= {"gemm.bf16.tn", "streaming.softmax.bf16"}
    before, after = errors(H200, rows), errors(own, rows)
    assert after[0] < before[0] and after[1] < before[1]
