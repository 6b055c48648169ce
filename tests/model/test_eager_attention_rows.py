"""Softmax and mask of attention of separate kernels, against kernels of an H200."""

import numpy as np
import pytest
from paths import ROOT
from row_files import json_rows

from joulecast.model.architecture.hf import parse_config
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.layer_shard import shard
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.lowering import lower
from joulecast.model.power.kernel_power import kernel_time_s
from joulecast.model.transformer import transformers_attention

FOLDER = ROOT / "validate/recorded/eager_attention"
RUN = Implementation(framework="pytorch-eager", modules="transformers", attention_backend="unfused")


def shapes(row):
    config = {
        "model_type": "llama",
        "hidden_size": row["heads"] * row["head_dim"],
        "head_dim": row["head_dim"],
        "num_attention_heads": row["heads"],
        "num_hidden_layers": 1,
        "intermediate_size": 512,
        "vocab_size": 512,
    }
    return shard(parse_config(config, name="", file=""), RUN, row["batch"], row["tokens"])


def ratio(row, kind, launch, gpu: GpuModel) -> float:
    time = kernel_time_s(lower([launch.operator], gpu), gpu.max_clock_mhz, gpu)[0]
    return float(time * 1e6 / sum(row["measured_us"][kind]))


@pytest.fixture(scope="module")
def rows():
    return [row for row in json_rows(FOLDER / "attention.jsonl") if row["dtype"] == "bf16" and row["tokens"] % 4 == 0]


def test_softmax_of_short_and_of_long_rows(rows, h200: GpuModel) -> None:
    """A warp holds a row of up to 2,048; longer ones take twice as long."""
    found = {
        row["tokens"]: ratio(row, "softmax", transformers_attention.row_softmax(shapes(row)), h200) for row in rows
    }
    assert max(abs(one - 1.0) for one in found.values()) < 0.14
    assert abs(np.mean(list(found.values())) - 1.0) < 0.05


def test_masks_are_added_at_a_pace_of_their_own(rows, h200: GpuModel) -> None:
    for row in rows:
        launch = transformers_attention.mask_added("mask", shapes(row), "bf16")
        assert ratio(row, "mask", launch, h200) == pytest.approx(1.0, abs=0.06)
