"""From rows to the model's own terms: blocks as operators, training rows as plans that load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joulecast.calibrate.rows import Measured, Row, read_rows
from joulecast.model.kernels.operators import Attention, Collective, Gemm
from joulecast.validate.adapters import block_operators
from joulecast.validate.baselines import transformer_flops

SHARED = Path(__file__).parent.parent.parent / "shared" / "data" / "h200_sxm"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the measured rows are not at {SHARED}")

BLOCK = {
    "op": "block",
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "tp": 1,
    "B": 4,
    "S": 4096,
    "dtype": "bf16",
}


def block(**changes: Any) -> Row:
    return Row("b", "block", BLOCK | changes, Measured())


@pytest.mark.parametrize("direction", ["fwd", "fwd+bwd"])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_block_has_its_flops_and_no_communication(direction: str, tp: int) -> None:
    row = block(direction=direction, tp=tp)
    operators = block_operators(row)
    assert not any(isinstance(operator, Collective) for operator in operators)
    products = sum(o.flops for o in operators if isinstance(o, Gemm))
    attention = sum(o.flops for o in operators if isinstance(o, Attention))
    if direction == "fwd+bwd":
        attention *= 3 / 3.5  # the backward computes the scores again
    assert products + attention == pytest.approx(transformer_flops(row.configuration), rel=1e-6)


def test_a_gpt_block_has_bias_and_layer_norm() -> None:
    row = block(kv_heads=32, gated_mlp=False, bias=True, norm="LayerNorm", activation="GELU", direction="fwd+bwd")
    patterns = {getattr(operator, "pattern", "") for operator in block_operators(row)}
    assert {"layernorm", "gelu", "gelu_backward", "bias_reduce"} <= patterns


@needs_shared
def test_every_block_row_has_operators() -> None:
    rows = [row for row in read_rows(SHARED / "blocks.jsonl") if row.op == "block"]
    assert len(rows) == 14
    for row in rows:
        assert any(isinstance(o, Attention) and o.backend == "cudnn" for o in block_operators(row))
