"""Products whose rows are not aligned to 16 bytes: which count by layout, and what they cost."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Gemm
from joulecast.model.kernels.unaligned import OPERANDS, RESULT, WORDS, unaligned_costs
from joulecast.validate.suites import run_suite

FREE, WORD, OPERAND, OUT = 1.0, 7.0 * WORDS.slowdown, 7.0 * OPERANDS.slowdown, 7.0 * RESULT.slowdown


def factor(m, n, k, dtype="bf16", layout="tn", out_dtype=""):
    sizes = (np.array([float(size)]) for size in (m, n, k))
    return unaligned_costs(*sizes, dtype, layout, out_dtype, 7.0)[0][0]


@pytest.mark.parametrize(
    ("sizes", "layout", "expected"),
    [
        ((8191, 8192, 8192), "tn", FREE),  # a column's length never counts
        ((8192, 8200, 8184), "tn", FREE),
        ((8192, 8192, 8188), "tn", WORD),
        ((8192, 8190, 8192), "tn", WORD),
        ((8192, 8192, 8191), "tn", OPERAND),
        ((8192, 8191, 8192), "tn", OUT),
        ((8192, 8191, 8191), "tn", OPERAND),
        ((8192, 8192, 50257), "nn", OPERAND),  # gradient of the input of a head of odd vocabulary
        ((8192, 8191, 8192), "nn", OPERAND),
        ((50257, 4096, 8192), "nt", OPERAND),  # gradient of its weight
        ((8192, 4096, 8191), "nt", FREE),
        ((8192, 4095, 8192), "nt", OPERAND),
    ],
)
def test_what_counts_by_layout(sizes, layout, expected):
    assert factor(*sizes, layout=layout) == pytest.approx(expected)


def test_bytes_count_not_values():
    assert factor(8192, 8192, 8200, dtype="fp8") == pytest.approx(WORD)
    assert factor(8192, 8196, 8192, dtype="tf32") == FREE
    assert factor(8192, 8191, 8192, dtype="tf32") == pytest.approx(WORD)  # an odd number of words
    assert factor(8192, 8191, 8191, dtype="fp32") == FREE  # loads single values anyway
    assert factor(8192, 8196, 8192) == pytest.approx(WORD)
    assert factor(8192, 8196, 8192, out_dtype="fp32") == FREE


def test_unaligned_products_take_longer_and_more_energy(h200):
    aligned, words, single = (lower([Gemm(8192, 8192, k)], h200) for k in (8192, 8190, 8191))
    assert 3.0 < words.core_cycles[0] / aligned.core_cycles[0] < 3.6
    assert 6.0 < single.core_cycles[0] / aligned.core_cycles[0] < 7.2
    assert aligned.tensor_j[0] < words.tensor_j[0] < single.tensor_j[0]
    assert words.activity[0] == pytest.approx(aligned.activity[0], rel=1e-3)
    assert single.tensor_use[0] < words.tensor_use[0] < aligned.tensor_use[0]


def test_smaller_matrix_units_lose_less():
    """The fallback's instructions are those of older units: A100's lose less, and nothing gains."""
    loss = {}
    for card in ("a40", "a100-sxm-80gb", "h100-sxm", "b200"):
        gpu = gpu_model(load_gpu(card))
        aligned, words = (lower([Gemm(8192, 8192, k)], gpu).core_cycles[0] for k in (8192, 8190))
        loss[card] = words / aligned
    assert list(loss.values()) == sorted(loss.values())
    assert min(loss.values()) > 0.99


def test_measured_products_are_forecast():
    """Nine products of one H200; the six unaligned ones chose three factors of time and two of energy."""
    rows = Path(str(files("joulecast.validate").joinpath("recorded", "h200_sxm", "edges", "recording.jsonl")))
    found = run_suite("kernels", rows, gpu="h200-sxm").summary["gemm"]
    assert found["rows"] == 9
    assert found["time_worst_percent"] < 6.3
    assert found["energy_worst_percent"] < 7.0


@pytest.mark.parametrize("layout", ["tn", "nn", "nt"])
def test_many_products_cost_what_each_costs_alone(layout):
    """Aligned ones among them leave early where they are alone; 0 to 17 bytes off in each size."""
    sizes = np.array(np.meshgrid(*[4096.0 + np.arange(0, 18, 3)] * 3)).reshape(3, -1)
    together = np.array(unaligned_costs(*sizes, "bf16", layout, "", 7.0))
    alone = [np.ravel(unaligned_costs(*one[:, None], "bf16", layout, "", 7.0)) for one in sizes.T]
    assert np.array_equal(together, np.transpose(alone))
    assert len(np.unique(together[0])) == (4 if layout == "tn" else 3)  # elsewhere a result is as wide as an operand
