"""Operators of a transformer block as Vidur profiles them (Agrawal et al., MLSys 2024), fp16, inference.

One block runs twenty times in eager PyTorch, with vLLM's kernels for RMSNorm, the gated activation and the rotary
embedding, under a profiler whose durations are whole microseconds; a time is that of the operator's kernels alone.
Weights are uniform within ±0.001, so that all values behind the first activation are zero: the down projection
multiplies zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joulecast.calibrate.public_times.form import measured_on
from joulecast.tables import Line

#: Columns by which the form is known.
COLUMNS = frozenset({"gpu", "model", "tp", "tokens", "operator", "hidden", "ffn_per_rank", "median_time_s"})
#: Linear layers, and the values that they multiply.
LINEAR = {"attn_pre_proj": "randn", "attn_post_proj": "randn", "mlp_up_proj": "randn", "mlp_down_proj": "zeros"}
BYTES = 2
#: Twenty blocks take a tenth of a second or so, and nothing runs before.
WINDOW_S = 0.1


def contents(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Rows of a whole file.

    The linear layers of a block tell how wide its queries, keys and values are, and how many bytes pass through the
    cache between two uses of a weight.
    """
    blocks: dict[tuple[str, ...], dict[str, tuple[int, int]]] = {}
    for line in lines:
        if line["operator"] in LINEAR:
            sides = line.whole("N"), line.whole("K")
            blocks.setdefault(_block(line), {})[line["operator"]] = sides
    return [_content(line, blocks.get(_block(line), {})) for line in lines]


def _block(line: Line) -> tuple[str, ...]:
    return (line["gpu"], line["model"], line["tp"])


def _content(line: Line, layers: dict[str, tuple[int, int]]) -> dict[str, Any]:
    operator, tokens = line["operator"], line.whole("tokens")
    row: dict[str, Any] = {
        "name": f"{line['gpu']} {line['model']} tp{line['tp']} {tokens} {operator}",
        "operator": operator,
        "dtype": line.cells.get("dtype") or "fp16",
        "timing": "kernel",
        "settle_s": 0.0,
        "target_window_s": WINDOW_S,
        "time_s": line.positive("median_time_s"),
        **measured_on(line["gpu"]),
    }
    if operator in LINEAR:
        shape = {key: line.whole(key) for key in ("M", "N", "K")}
        touched = BYTES * sum(n * k + tokens * (n + k) for n, k in layers.values())
        return row | {"op": "gemm", **shape, "data": LINEAR[operator], "footprint_bytes": touched}
    return row | _small(line, tokens, layers)


def _small(line: Line, tokens: int, layers: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Fields of a small operator; an unknown one keeps its name as ``op``, which no suite knows."""
    hidden, ffn = line.whole("hidden"), line.whole("ffn_per_rank")
    # Of the profiled models those without a gate have LayerNorm, GELU and attention beside the MLP: two additions.
    parallel = layers.get("mlp_up_proj", (2 * ffn, 0))[0] == ffn
    operator = line["operator"]
    if operator in ("input_layernorm", "post_attention_layernorm"):
        op, read, written, columns = "layer_norm" if parallel else "vllm_rms_norm", hidden, hidden, hidden
    elif operator == "mlp_act":
        op, read, written, columns = ("gelu", ffn, ffn, ffn) if parallel else ("vllm_silu_and_mul", 2 * ffn, ffn, ffn)
    elif operator == "add":
        op, read, written, columns = "add", 2 * hidden, hidden, hidden
    elif operator == "attn_rope" and {"attn_pre_proj", "attn_post_proj"} <= layers.keys():
        # Queries and keys change in place: of the fused projection's output the values stay.
        columns = (layers["attn_pre_proj"][0] + layers["attn_post_proj"][1]) // 2
        op, read, written = "vllm_rotary", columns, columns
    else:
        return {"op": operator}
    total = BYTES * tokens * (read + written)
    far, touched = 0, total
    if operator == "add":  # the residual was written a layer ago, and the sum replaces other lines
        far = touched = 2 * total // 3
    elif operator == "attn_rope":  # in place, beside the values of the same projection
        touched = BYTES * tokens * layers["attn_pre_proj"][0]
    return {
        "op": op,
        "bytes": total,
        "footprint_bytes": touched,
        "far_bytes": far,
        "rows": tokens,
        "cols": columns,
        "launches": 2 if op == "add" and parallel else 1,
    }
