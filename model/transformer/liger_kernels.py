"""Liger's kernels in transformers' modules: RMSNorm, rotary embedding and the gate of an MLP, one Triton kernel each.

    norm      a block for each row, which it reads once, or for 16 short ones; backward one block for each SM, which
              takes its rows one after another and leaves a row of the weight's gradient, which are then summed
    rope      a block for each token, which rotates queries and keys in place
    gate      a block for each row; backward computes the activation again and puts both gradients in the inputs' place

What attention gives behind rotation in place has tokens first, so that no copy turns its gradients. Norms of models
that use a gradient again beside them (``in_place=False``: Gemma 2 and 3, GLM-4, EXAONE-4) write theirs into zeros.
Where one product makes gate and up (Phi-3, GLM-4), or queries, keys and values, all are copied out of it first.

Source: ``rms_norm.py``, ``rope.py``, ``swiglu.py`` and ``geglu.py`` in ``liger_kernel/ops`` of Liger 0.8.5.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.model.framework.launches import Launch, issued, row_wise, streaming
from joulecast.model.framework.layer_shard import Shard
from joulecast.model.kernels.operators import DTYPE_BYTES, RowTile, Streaming
from joulecast.model.transformer.row_operators import rounded

#: SMs of an H100 or H200: each has one row of a loss at a time, and leaves one of the gradient of a norm's weight.
SMS = 132
#: Rows from which norms take :data:`ROWS_OF_BLOCK` of them in a block, if these have at most so many columns.
MANY_ROWS, SHORT_ROW, ROWS_OF_BLOCK = 32768, 256, 16
#: Cycles of an SM in a norm's backward: for a row, for a short one, for each byte of either, and for a value where
#: short ones share blocks. Norms of 896 to 8,192 columns in bf16 and fp32 on an H200, alone and in iterations, are met
#: within 8 % (`validate/recorded/liger`) [estimates, +-8 %; of short rows +-20 %].
ROW, FEW_VALUES, ROW_BYTE, SHORT_VALUE = 1380.0, 700.0, 0.155, 1.45
#: Cycles of an SM for a value whose GELU is computed, and its gradient, by the most columns of a block, and for a
#: column that the block has beyond its row's: four widths on an H200 [estimates, +-15 %].
GELU = {8192: (0.44, 0.47), 16384: (0.54, 0.65), 65536: (0.29, 1.0)}
GELU_SPARE = 0.2


def swaps_norms(s: Shard) -> bool:
    """Whether norms are Liger's."""
    return "rms_norm" in s.implementation.liger


def swaps_rotation(s: Shard) -> bool:
    """Whether rotary embedding is Liger's."""
    return "rope" in s.implementation.liger


def swaps_gate(s: Shard) -> bool:
    """Whether the gate of the MLP is Liger's."""
    return not {"swiglu", "geglu"}.isdisjoint(s.implementation.liger)


def block_columns(columns: int) -> int:
    """Columns of the block that takes a row: the next power of two.

    >>> block_columns(14336), block_columns(4096)
    (16384, 4096)
    """
    return 1 << (columns - 1).bit_length()


def warps(columns: int) -> int:
    """Warps of such a block (``calculate_settings``)."""
    block = block_columns(columns)
    return next(count for least, count in ((32768, 32), (8192, 16), (2048, 8), (0, 4)) if block >= least)


def norm_forward(name: str, s: Shard, rows: int, columns: int) -> Launch:
    """The norm of ``rows`` rows."""
    dtype, short = s.dtype, _short(rows, columns)
    launch = row_wise("rmsnorm", f"{name}.liger", rows, columns, dtype=dtype)
    return _by_rows(launch, columns, ROWS_OF_BLOCK if short else 1)


def norm_backward(name: str, s: Shard, rows: int, columns: int, completes: str = "") -> tuple[Launch, ...]:
    """Gradients of input and weight of :func:`norm_forward`."""
    values, dtype = rows * columns, s.dtype
    zeros = (streaming("fill", f"{name}.liger.grad.fill", values, reads=0, dtype=dtype),)
    begun = FEW_VALUES if columns <= SHORT_ROW else ROW
    cycles = rows * (begun + ROW_BYTE * DTYPE_BYTES[dtype] * columns)
    if _short(rows, columns):
        cycles = SHORT_VALUE * values
    gradient = issued("mul", f"{name}.liger.grad", values, cycles, activity=1.0, reads=2, dtype=dtype)
    partial = streaming(
        "reduce",
        f"{name}.gamma.grad",
        SMS * columns,
        writes=1 / SMS,
        dtype="fp32",
        completes="" if dtype != "fp32" else completes,
    )
    narrow = rounded(f"{name}.gamma.round", columns, completes=completes)
    ends = (partial,) if dtype == "fp32" else (partial, narrow)
    return (*(zeros if s.config.norm_place != "before" else ()), gradient, *ends)


def rotary(s: Shard, suffix: str = "") -> tuple[Launch, ...]:
    """Rotation of queries and keys in place, or of their gradients."""
    if not (s.config.rotary and s.implementation.rotary):
        return ()
    dtype, width = s.dtype, s.tokens * s.config.head_dim
    turned = s.config.rotary_fraction * width * (s.heads + s.kv_heads)
    parts = (("query", s.heads), ("key", s.kv_heads)) if s.config.joint_projections and not suffix else ()
    copies = (streaming("strided_unary", f"rotary.{part}.copy", heads * width, dtype=dtype) for part, heads in parts)
    return (*copies, streaming("unary", f"rotary.liger{suffix}", turned, dtype=dtype))


def gate_forward(s: Shard, *, joint: bool) -> tuple[Launch, ...]:
    """Activated gate times up, which are copied out of a ``joint`` product first."""
    values, dtype = s.tokens * s.ffn, s.dtype
    copies = (streaming("strided_unary", f"gate.{part}.copy", values, dtype=dtype) for part in ("gate", "up"))
    return (*(copies if joint else ()), _gate("gate.liger", s, reads=2, writes=1))


def gate_backward(s: Shard, *, joint: bool) -> tuple[Launch, ...]:
    """Gradient of :func:`gate_forward`."""
    joined = streaming("copy", "gate.grad.cat", 2 * s.tokens * s.ffn, dtype=s.dtype)
    return (_gate("gate.liger.grad", s, reads=3, writes=2), *((joined,) if joint else ()))


def _gate(name: str, s: Shard, *, reads: int, writes: int) -> Launch:
    """A kernel that takes a row of the gate in a block; the hyperbolic tangent of a GELU sets its pace."""
    values, dtype = s.tokens * s.ffn, s.dtype
    if s.config.activation != "gelu":
        launch = row_wise("mul", name, s.tokens, s.ffn, reads=reads, writes=writes, dtype=dtype)
        return _by_rows(launch, s.ffn, 1)
    block = block_columns(s.ffn)
    each = next(cycles for most, cycles in GELU.items() if block <= most)[writes - 1]
    cycles = s.tokens * (each * s.ffn + GELU_SPARE * (block - s.ffn))
    return issued("mul", name, values, cycles, reads=reads, writes=writes, dtype=dtype)


def _short(rows: int, columns: int) -> bool:
    return block_columns(columns) <= SHORT_ROW and rows >= MANY_ROWS


def _by_rows(launch: Launch, columns: int, rows: int) -> Launch:
    """The launch with Liger's blocks: so many rows in each."""
    operator = launch.operator
    if isinstance(operator, Streaming):
        launch = replace(launch, operator=operator.with_tile(RowTile(rows, 0, warps(columns))))
    return launch
