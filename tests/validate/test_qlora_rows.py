"""Adapters beside weights in 4 bits, as an H100 ran them: iterations, and kernels of one iteration each."""

import json
from collections import Counter
from pathlib import Path

import pytest

from joulecast import gpu as gpu_named
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.plan import plan_from_dict
from joulecast.validate import run_suite

ROWS = Path(__file__).parents[2] / "validate" / "recorded" / "h100_sxm" / "train_qlora.jsonl"
#: Values of tensors of 4,096 tokens: of the hidden size, of keys, and of the MLP.
HIDDEN, KEYS, WIDE = 4096 * 4096, 4096 * 1024, 4096 * 14336
LOGITS = 4096 * 128256


@pytest.fixture(scope="module")
def forecasts():
    return run_suite("plans", ROWS).to_dict()


def test_iterations(forecasts):
    """Within 3 % where the host keeps up; 48 layers, whose windows differ by 5 %, 10 % short, one that waits 20 %."""
    errors = {}
    for row in forecasts["rows"]:
        measured, predicted = row["measured"], row["predicted"]
        errors[row["name"]] = [predicted[key] / measured[key] - 1.0 for key in ("time_s", "energy_j")]
    assert len(errors) == 7 and not forecasts.get("skipped")
    times, energies = ([abs(error[i]) for error in errors.values()] for i in (0, 1))
    assert sum(times) / 7 < 0.056 and sorted(times)[-2] < 0.107 and max(times) < 0.203
    assert sum(energies) / 7 < 0.036 and max(energies) < 0.095
    assert forecasts["summary"]["all"]["memory_error_percent"] < 0.35


def kernels(name):
    """Operators of an iteration."""
    (row,) = (one for one in map(json.loads, ROWS.read_text().splitlines()) if one["name"] == name)
    (rank,) = plan_program(plan_from_dict(row["plan"])).ranks
    return [one.operator for launches in rank.types for one in launches for _ in range(one.repeat)]


def counted(operators, pattern, dtype, read, written):
    """Kernels that read and write so many tensors of a type, by their values; small ones left out."""
    found = Counter()
    for one in operators:
        if getattr(one, "pattern", "") == pattern and one.dtype == dtype and one.elements >= KEYS:
            each = one.elements * DTYPE_BYTES[dtype]
            found[one.elements] += (one.bytes_read, one.bytes_written) == (read * each, written * each)
    return +found


def test_kernels_of_linear_layers_in_4_bits():
    """As many of each kind and size as a profile of that iteration has."""
    found = kernels("qlora_llama-3.1-8b_S2048_mb2_r16_all_double_full")
    written = Counter(one.elements for one in found if one.name.endswith(".nf4"))
    assert written == {14336 * 4096: 288, 4096 * 4096: 192, 1024 * 4096: 192}
    scales = Counter(one.elements for one in found if one.name.endswith((".absmax", ".offset")))
    assert scales == {size / 64: 2 * count for size, count in written.items()}
    assert counted(found, "add", "bf16", 2, 1) == {HIDDEN: 640, WIDE: 160, KEYS: 160}
    assert counted(found, "copy", "bf16", 1, 1).total() + counted(found, "copy", "fp32", 1, 1).total() == 513
    assert counted(found, "unary", "bf16", 1, 2) == {HIDDEN: 194, LOGITS: 1}
    assert counted(found, "unary", "fp32", 1, 0.5) == {HIDDEN: 194, LOGITS: 1}


def test_kernels_of_a_prepared_model():
    """The same where ``prepare_model_for_kbit_training`` was called."""
    found = kernels("qlora_llama-3.1-8b_S2048_mb2_r16_all_double_full_prepared")
    assert counted(found, "unary", "bf16", 1, 2) == {HIDDEN: 481, WIDE: 192, KEYS: 192, LOGITS: 1}
    assert counted(found, "unary", "fp32", 1, 0.5) == {HIDDEN: 865, WIDE: 256, KEYS: 256, LOGITS: 2}
    assert counted(found, "add", "fp32", 1.5, 1) == {HIDDEN: 160, WIDE: 128, KEYS: 128}
    assert counted(found, "add", "fp32", 2, 1) == {HIDDEN: 449, WIDE: 32, KEYS: 32}
    assert counted(found, "add", "bf16", 2, 1) == {HIDDEN: 96}
    assert counted(found, "copy", "bf16", 1, 1) == {HIDDEN: 64}
    assert counted(found, "copy", "fp32", 1, 1) == {HIDDEN: 193, WIDE: 128, KEYS: 128}
    assert counted(found, "mul", "fp32", 2, 1)[WIDE] == 160
    assert counted(found, "unary", "bf16", 1, 1) == {HIDDEN: 256, WIDE: 192, KEYS: 192}


@pytest.mark.parametrize(
    ("name", "clock_mhz", "took"),
    [
        ("qlora_llama-3.1-8b_S2048_mb2_r16_all_double_full", 1980, {58.7: 68.2, 16.8: 20.7, 4.2: 6.6}),
        ("qlora_llama-3.2-3b_S2048_mb8_r8_2_bf16", 1900, {25.2: 32.2, 9.4: 13.4}),
    ],
)
def test_time_of_written_out_weights(name, clock_mhz, took):
    """Microseconds by millions of weights; the memory alone would take three quarters of it."""
    found = {round(one.elements / 1e6, 1): one for one in kernels(name) if one.name.endswith(".nf4")}
    gpu = gpu_named("h100-sxm")
    for millions, time_us in took.items():
        assert gpu.predict(found[millions], clock_mhz=clock_mhz).time_s == pytest.approx(1e-6 * time_us, rel=0.05)
