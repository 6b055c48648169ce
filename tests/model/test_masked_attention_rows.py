"""Attention that adds a mask to every score, beside kernels of an H200."""

from pathlib import Path

import numpy as np
import pytest
from row_files import json_rows

import joulecast as jc

ROWS = Path(__file__).parents[2] / "validate" / "recorded" / "masked" / "attention.jsonl"
#: The clock of such short runs, and one at which the card's limit holds no forecast [MHz].
SHORT_MHZ, FREE_MHZ = 1980, 1410


def time_at_short_s(gpu, kernel):
    return gpu.predict(kernel, clock_mhz=FREE_MHZ).time_s * FREE_MHZ / SHORT_MHZ


@pytest.fixture(scope="module")
def ratios():
    """Forecast over measured time of each masked row, forward and backward, with its head and tokens."""
    gpu, found = jc.gpu("h200-sxm"), []
    for row in json_rows(ROWS):
        if row["mask"]:
            shape = {name: row[name] for name in ("batch", "heads", "head_dim")}
            more = {"kv_heads": row["heads"], "sequence": row["tokens"], "causal": False, "each_score": "mask"}
            measured = row["forward_us"], row["backward_us"] + row["backward_beside_us"]
            for direction, us in zip(("forward", "backward"), measured, strict=True):
                time_s = time_at_short_s(gpu, jc.Attention(**shape, **more, direction=direction))
                found.append((direction, row["head_dim"], row["tokens"], 1e6 * time_s / us))
    return found


@pytest.mark.parametrize(("direction", "mean", "worst"), [("forward", 0.04, 0.12), ("backward", 0.06, 0.28)])
def test_heads_take_what_their_kernel_does(ratios, direction, mean, worst):
    off = np.array([abs(ratio - 1.0) for way, _, _, ratio in ratios if way == direction])
    assert off.size == 45 and off.mean() < mean and off.max() < worst


def test_long_backwards(ratios):
    off = [abs(ratio - 1.0) for way, _, tokens, ratio in ratios if way == "backward" and tokens >= 2048]
    assert max(off) < 0.1


def test_widths_between_kernels_cost_what_the_next_one_does():
    gpu = jc.gpu("h200-sxm")

    def time_s(head_dim, direction):
        one = jc.Attention(1, 16, 16, 8192, head_dim, causal=False, each_score="mask", direction=direction)
        return time_at_short_s(gpu, one)

    for direction in ("forward", "backward"):
        assert time_s(80, direction) == pytest.approx(time_s(128, direction), rel=0.03)
        assert time_s(160, direction) == pytest.approx(time_s(192, direction), rel=0.03)
    assert time_s(192, "forward") > time_s(256, "forward")  # whose registers do not spill


def test_masks_in_compiled_graphs_take_longer_backward():
    gpu = jc.gpu("h200-sxm")
    times = [
        gpu.predict(jc.Attention(1, 32, 32, 4096, 128, causal=False, each_score=mask, direction="backward")).time_s
        for mask in ("mask", "graph-mask")
    ]
    assert times[1] / times[0] == pytest.approx(1.15, abs=0.02)
