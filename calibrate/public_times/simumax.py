"""Efficiencies of SimuMax (Moore Threads): bf16 products and attention by shape, as shares of a published peak.

Products, plain or grouped by expert, run 100 times back to back through Transformer Engine, and the host's clock times
the last 75; grouped ones 50 times and the last 40. Attention is causal, but its operations are counted in full. It is
FlashAttention-2 on A100 and what Transformer Engine takes, cuDNN's kernels, on later cards.

Lines stand in the order in which they were timed (``test_gemm_efficiency.py``, ``test_grouped_gemm_efficiency.py`` of
its sources). One product follows another within milliseconds, so that the board is still under load, and rests only
where the host plans the next model, which takes seconds: a short product's clock is that of what went before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from joulecast.calibrate.public_times.form import measured_on
from joulecast.tables import Line

#: Columns by which the form is known.
COLUMNS = frozenset({"system", "operator", "shape", "efficiency_of_peak"})
#: Dense peaks to which the efficiencies refer [FLOP/s].
PEAKS = {"a100": 312e12, "b200": 2250e12, "h100": 989e12, "h200": 989e12}
#: Runs before the clock starts, and runs that it times.
PRODUCT_RUNS, GROUPED_RUNS, ATTENTION_RUNS = (25, 75), (10, 40), (5, 20)
#: Tokens of a sweep over models. Products of other numbers were added from sorted lists, without planning in between.
SWEPT_TOKENS = 4096
#: Padded vocabularies of the models that were swept (DeepSeek-V2 and -V3, Llama 3), and ranks that share one.
VOCABULARIES, RANKS = (102_400, 128_256, 128_384, 129_280), (1, 2, 4, 8)
#: Rows of a head's weights on one rank, in whole blocks of 128: its gradient is the last product of a model.
HEADS = frozenset(-(-words // (128 * ranks)) * 128 for words in VOCABULARIES for ranks in RANKS)


def contents(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Rows of a whole file; an operator that nobody knows keeps its name as ``op``.

    What the board multiplied since it last rested counts as runs of the product that follows, by operations: at equal
    rates they took as long. The pauses of milliseconds in which the next operands are made are left out.
    """
    found = []
    script, done = "", 0.0
    for line in lines:
        row, flops = _content(line)
        if line["operator"] != script:
            script, done = line["operator"], 0.0
        if row["op"] == "gemm":
            own = row["runs_before"] + row["runs"]
            row["runs_before"] += done / flops
            done = 0.0 if _ends_model(row) else done + own * flops
        found.append(row)
    return found


def _ends_model(row: dict[str, Any]) -> bool:
    """Whether a product is the last of a model, behind which the board rests."""
    return (row["layout"], row["K"]) == ("nt", SWEPT_TOKENS) and row["M"] in HEADS and "batch" not in row


def _content(line: Line) -> tuple[dict[str, Any], float]:
    """The row of one line, and the operations of one run."""
    system, kind = line["system"], line["operator"].rpartition("/")[2]
    label = re.sub(r"_(bf16|fp8|fp16|ceperm).*$", "", system)
    sizes = dict(part.strip().partition("=")[::2] for part in line["shape"].split(","))
    row = {"name": f"{system} {kind} {line['shape']}", **measured_on(label)}
    build = _KINDS.get(kind.removeprefix("fp8_"))
    if build is None:
        return row | {"op": kind}, 0.0
    dtype = "fp8" if kind.startswith("fp8_") else "bf16"
    peak = PEAKS.get(label.partition("_")[0])
    if peak is None:
        raise line.error(f"no peak is known for {system!r}", "system", f"Known: {', '.join(PEAKS)}.")
    fields, flops = build(replace(line, cells=sizes))
    if fields["op"] == "flash_attn":
        fields["backend"] = "FLASH_ATTENTION" if label.startswith("a") else "CUDNN_ATTENTION"
    share = line.positive("efficiency_of_peak") * peak * (2.0 if dtype == "fp8" else 1.0)
    return row | fields | {"dtype": dtype, "time_s": flops / share}, flops


def _product(shape: Line) -> tuple[dict[str, Any], float]:
    b, m, n, k = (shape.whole(key) for key in ("b", "m", "n", "k"))
    fields = {
        "op": "gemm",
        "M": b * m,
        "N": n,
        "K": k,
        "layout": shape.cells.get("layout", "TN").lower(),
        "accumulate": shape.cells.get("accumulate") == "True",
        "out_dtype": shape.cells.get("out_dtype", "bf16"),
        **_back_to_back(PRODUCT_RUNS),
    }
    return fields, 2.0 * b * m * n * k


def _grouped(shape: Line) -> tuple[dict[str, Any], float]:
    """One product per expert: forward, gradient of the input, gradient of the weight."""
    groups, m, n, k = (shape.whole(key) for key in ("ng", "M", "N", "K"))
    stage = shape.cells.get("stage", "fwd")
    sizes = {"fwd": (m, n, k, "tn"), "bwd_grad_act": (m, k, n, "nn"), "bwd_grad_w": (n, k, m, "nt")}
    if stage not in sizes:
        raise shape.error(f"unknown stage {stage!r}", "shape", f"Known: {', '.join(sizes)}.")
    rows, columns, inner, layout = sizes[stage]
    fields = {
        "op": "gemm",
        "batch": groups,
        "M": rows,
        "N": columns,
        "K": inner,
        "layout": layout,
        "accumulate": shape.cells.get("accumulate") == "True",
        "out_dtype": shape.cells.get("main_grad_dtype", "bf16")
        if stage == "bwd_grad_w"
        else shape.cells.get("out_dtype", "bf16"),
        "separate": True,
        **_back_to_back(GROUPED_RUNS),
        "launches": groups,
    }
    return fields, 2.0 * groups * m * n * k


def _attention(shape: Line) -> tuple[dict[str, Any], float]:
    keys = ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
    batch, sequence, heads, kv_heads, wide, value = (shape.whole(key) for key in keys)
    fields = {
        "op": "flash_attn",
        "B": batch,
        "S": sequence,
        "Hq": heads,
        "Hkv": kv_heads,
        "D": wide,
        "Dv": value,
        "causal": True,
        **_back_to_back(ATTENTION_RUNS),
    }
    return fields, 2.0 * batch * sequence**2 * max(heads, kv_heads) * (wide + value)


def _forward(shape: Line) -> tuple[dict[str, Any], float]:
    fields, flops = _attention(shape)
    return fields | {"direction": "fwd"}, flops


def _backward(shape: Line) -> tuple[dict[str, Any], float]:
    fields, flops = _attention(shape)
    return fields | {"direction": "bwd"}, 2.5 * flops


def _back_to_back(runs: tuple[int, int]) -> dict[str, Any]:
    return {"timing": "queue", "runs_before": runs[0], "runs": runs[1], "launches": 1}


_KINDS = {"matmul": _product, "group_matmul": _grouped, "sdp_fwd": _forward, "sdp_bwd": _backward}
