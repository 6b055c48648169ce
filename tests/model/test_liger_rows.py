"""Liger's kernels as recorded on an H200, beside the errors that the recording's page tells."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from paths import ROOT
from row_files import csv_rows

from joulecast.model.architecture.hf import load_model
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, added_up, linear_forward, weight_gradient
from joulecast.model.framework.layer_shard import shard
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.power.kernel_power import at_clock
from joulecast.model.transformer import liger_kernels, liger_loss

#: Errors of rows [%] by kernel and use.
Errors = dict[tuple[str, str], list[float]]
RECORDED = ROOT / "validate" / "recorded" / "liger"
#: A line of the page's table: a kernel, and for each use its mean error, rows, and largest error [%].
TOLD = re.compile(r"([\d.]+) \((\d+), at most (\d+)\)")


def launch(kernel: str, sizes: list[int], dtype: str) -> Launch:
    """The launch of a recorded kernel; what is wide in rows of products is the sum alone, as under autocast."""
    name, _, more = kernel.partition(" ")
    if name == "cross_entropy":
        kept = "bf16" if more == "in chunks" else dtype
        return liger_loss.gradients(name, sizes[0], sizes[-1], kept, capped=more == "capped")
    if name == "logits":
        return linear_forward(name, sizes[0], sizes[2], sizes[1], "bf16")
    if name == "sum":
        return added_up(weight_gradient(name, sizes[0], sizes[2], sizes[1], "bf16"), dtype)
    run = Implementation(modules="transformers", dtype="bf16" if name == "rope" else dtype, liger=("rope", "swiglu"))
    s = shard(load_model("llama-3.2-1b"), run, 1, sizes[0])
    if name == "rope":
        heads, kv_heads, head_dim = sizes[1:]
        return liger_kernels.rotary(
            replace(s, heads=heads, kv_heads=kv_heads, config=replace(s.config, head_dim=head_dim))
        )[-1]
    if name == "rms_norm":
        return liger_kernels.norm_backward(name, s, *sizes)[0] if more else liger_kernels.norm_forward(name, s, *sizes)
    if name == "element_mul":
        return liger_loss._scaled(name, *sizes, dtype)
    gate = replace(s, ffn=sizes[1], config=replace(s.config, activation="gelu" if name == "geglu" else "silu"))
    return (liger_kernels.gate_backward if more else liger_kernels.gate_forward)(gate, joint=False)[0]


@pytest.fixture(scope="module")
def errors() -> Errors:
    """Errors of the time at the clock that was read [%], by kernel and use."""
    gpu, found = gpu_model(load_gpu("h200-sxm")), defaultdict(list)
    for row in csv_rows(RECORDED / "kernels.csv"):
        sizes = [int(size) for size in re.findall(r"\d+", row["shape"])]
        costs = lower([launch(row["kernel"], sizes, row["dtype"]).operator], gpu)
        time_s = at_clock(costs, np.array([[float(row["sm_clock_mhz"])]]), gpu).time_s.item()
        found[row["kernel"], row["use"]].append(100 * (1e6 * time_s / float(row["time_us"]) - 1))
    return found


def told() -> dict[tuple[str, str], tuple[float, int, float]]:
    """What the page says of them."""
    found = {}
    for line in (RECORDED / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for use, cell in zip(("chose", "checks"), cells[1:], strict=False):
            if match := TOLD.fullmatch(cell):
                mean, count, most = match.groups()
                found[cells[0], use] = float(mean), int(count), float(most)
    return found


def test_the_page_tells_of_every_row(errors: Errors) -> None:
    assert {key: count for key, (_, count, _) in told().items()} == {key: len(rows) for key, rows in errors.items()}


@pytest.mark.parametrize(("kernel", "use"), told())
def test_kernels_are_met_as_the_page_says(errors: Errors, kernel: str, use: str) -> None:
    mean, _, most = told()[kernel, use]
    found = np.abs(errors[kernel, use])
    assert found.mean() < mean + 0.2 and found.max() < most + 1.0
