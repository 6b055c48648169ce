"""Attention of few heads: split keys, blocks that share an SM, and backward's tail of long sequences."""

import heapq
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from joulecast.model.kernels.few_heads import ALONE, key_splits, longest_of_pairs
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention
from joulecast.validate.suites import run_suite

SMS = 132


def splits(heads, sequence, head_dim=128, sms=SMS):
    columns = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (heads, sequence, sequence, head_dim)))
    return key_splits(*(np.atleast_1d(column) for column in columns), sms)


def test_keys_are_split_until_the_places_are_filled():
    """64 queries a block, two blocks an SM: 64 blocks take four parts, 128 two, 256 of 264 places none."""
    assert splits([1, 2, 4, 8], 4096).tolist() == [4, 2, 1, 1]
    assert splits(3, 4096).tolist() == [
        4
    ]  # 192 blocks fill 73 % of the places, four times as many 97 % of three rounds
    assert splits([1, 1], [64, 128]).tolist() == [1, 1]  # no more parts than blocks of 128 keys
    assert splits(1, 1024).tolist() == [8]  # 16 blocks: parts of one block of keys each
    assert splits(1, 1024, head_dim=64).tolist() == [4]  # keys in blocks of 256
    assert splits(4, 4096, sms=264).tolist() == [2]
    few, many = np.array([64.0]), np.array([2.0**20])
    assert 0.85 * 128 <= key_splits(np.ones(1), few, many, np.array([128.0]), SMS)[0] <= 128  # as many as there may be


def test_a_part_of_a_block_takes_the_place_of_a_whole_one():
    for heads in (1, 2, 3):
        whole = 128 * np.arange(1, 60)
        assert np.array_equal(splits(heads, whole), splits(heads, whole - 63))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_splits_fill_as_well_as_the_rule_says(head_dim):
    for heads in range(1, 5):
        for sequence in range(128, 8192, 320):
            count = splits(heads, sequence, head_dim)[0]
            blocks = heads * -(-sequence // 64)
            if blocks >= 0.8 * 2 * SMS:
                assert count == 1
                continue
            filled = blocks * count / (2 * SMS)
            assert filled / np.ceil(filled) > min(0.4, blocks / (2 * SMS) * 0.99)


def pairs(heads, blocks, causal=1.0, sms=SMS):
    values = (np.array([float(v)]) for v in (heads, blocks, blocks, causal))
    return longest_of_pairs(*values, 0.0, sms)[0]


def test_blocks_that_share_an_sm():
    assert pairs(4, 32) == 0.0  # 128 blocks, each alone
    # The last block of 32 units beside one of 28, which it outlasts by four.
    assert pairs(8, 32) == pytest.approx(2 * 28 + 4 / ALONE)
    assert pairs(4, 32, sms=108) == pytest.approx(2 * 20 + 12 / ALONE)  # A100
    assert pairs(8, 32, causal=0.0) == 64


def cycles(gpu, heads, sequence, backend="cudnn", direction="forward"):
    return lower([Attention(1, heads, 1, sequence, 128, backend=backend, direction=direction)], gpu).core_cycles[0]


def test_flash_attention_2_of_few_heads_takes_less_time_the_more_it_splits(h200):
    one, two, four, eight = (cycles(h200, heads, 4096, "flash-attention-2") for heads in (1, 2, 4, 8))
    assert one / four == pytest.approx(0.31, abs=0.05)
    assert two / four == pytest.approx(0.56, abs=0.05)
    assert eight / four == pytest.approx(1.66, abs=0.1)


def end_of(heads, blocks):
    """Blocks of heads in turn, a head's longest first, each on the SM that is free first."""
    free = [0.0] * SMS
    for _ in range(heads):
        for units in range(blocks, 0, -1):
            heapq.heapreplace(free, free[0] + units)
    return max(free)


@pytest.mark.parametrize(("heads", "blocks"), [(2, 128), (8, 32), (16, 32), (16, 64), (32, 64), (32, 128), (8, 256)])
def test_backward_follows_blocks_placed_in_turn(h200, heads, blocks):
    quiet = {
        f"kernel.attention.cudnn.backward.{k}": v
        for k, v in (("block_overhead", 0.0), ("fixed_cycles", 0.0), ("imbalance", 0.56))
    }
    gpu = h200.with_values(quiet)
    units = 4 * blocks * (blocks + 1) / 2 / SMS
    unit = (
        cycles(gpu, 404, blocks * 128, direction="backward") - cycles(gpu, 400, blocks * 128, direction="backward")
    ) / units
    assert cycles(gpu, heads, blocks * 128, direction="backward") / unit == pytest.approx(
        end_of(heads, blocks), rel=0.05
    )


def test_measured_attention_of_few_heads_is_forecast():
    """One to 16 heads of 4,096 tokens and two of 16,384; four heads chose the rate of a block alone."""
    rows = Path(str(files("joulecast.validate").joinpath("recorded", "h200_sxm", "edges", "recording.jsonl")))
    found = run_suite("kernels", rows, gpu="h200-sxm").summary
    assert found["attention"]["rows"] == 22
    assert found["attention"]["time_error_percent"] < 3.5
    assert found["attention"]["time_worst_percent"] < 10.0
    assert found["streaming"]["time_error_percent"] < 4.0
    assert found["streaming"]["time_worst_percent"] < 12.0
