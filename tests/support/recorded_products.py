"""Forecasts of recorded products whose cycles were counted, and of row-wise kernels beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from paths import ROOT
from row_files import csv_rows

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import DTYPE_BYTES, Gemm, Streaming
from joulecast.model.power.governor import TENSOR_CLOCK_SHARE
from joulecast.model.power.kernel_power import kernel_time_s
from joulecast.model.transformer.unfused_norm import by_column

PRODUCTS = ROOT / "validate" / "recorded" / "products"


@dataclass(frozen=True)
class RowKernel:
    """A kernel of `rows.csv`: its pattern, tensors that it reads and writes (0: one row), and their type."""

    pattern: str
    reads: float = 1.0
    writes: float = 1.0
    dtype: str = "bf16"

    def operator(self, rows: int, columns: int, sets: int) -> Streaming:
        """The kernel on as many sets of tensors in turn."""
        size = DTYPE_BYTES[self.dtype] * rows * columns
        read_, written = self.reads * size, self.writes * size or DTYPE_BYTES[self.dtype] * columns
        shape = {"rows": rows, "columns": columns, "footprint_bytes": (read_ + written) * sets}
        return Streaming(self.pattern, read_, written, dtype=self.dtype, **shape)


@dataclass(frozen=True)
class ColumnKernel:
    """A product with, or addition of, a number of each column, as norms have it that are not fused."""

    def operator(self, rows: int, columns: int, sets: int) -> Streaming:
        """The kernel on as many sets of tensors in turn."""
        operator = by_column("weighed", rows * columns, "bf16").operator
        assert isinstance(operator, Streaming)
        return replace(operator, footprint_bytes=4.0 * rows * columns * sets)


KERNELS: dict[str, RowKernel | ColumnKernel] = {
    "add": RowKernel("add", 2),
    "add_bias": ColumnKernel(),
    "bias_reduce": RowKernel("bias_reduce", 1, 0),
    "cast_to_bf16": RowKernel("unary", 1, 0.5, "fp32"),
    "copy": RowKernel("copy"),
    "gelu": RowKernel("gelu"),
    "gelu_backward": RowKernel("gelu_backward", 2),
    "layernorm": RowKernel("layernorm"),
    "layernorm_bwd_input": RowKernel("norm_backward", 2),
    "mul_rows": ColumnKernel(),
    "rmsnorm": RowKernel("rmsnorm"),
    "softmax": RowKernel("softmax"),
    "sum_all_rows_fp32": RowKernel("bias_reduce", 1, 0, "fp32"),
    "gamma": RowKernel("gamma_backward", 2, 0),
}


def read(name: str, gpu: str, use: str) -> list[dict[str, str]]:
    """Rows of a file on one card and of one use."""
    return csv_rows(PRODUCTS / name, gpu=gpu, use=use)


def errors_of_products(rows: Sequence[Mapping[str, str]], gpu: str) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors of times at the clocks that follow from the cycles, and operations, both of shape ``(n,)``."""
    sizes = np.array([[float(row[key]) for key in "MNK"] for row in rows])
    time, cycles = np.array([[float(row["time_s"]), float(row["cycles"])] for row in rows]).T
    products = [
        Gemm(m=int(m), n=int(n), k=int(k), layout=row["layout"], bias=row.get("bias") == "1")
        for (m, n, k), row in zip(sizes, rows, strict=True)
    ]
    card = gpu_model(load_gpu(gpu))
    board = np.minimum(cycles / time / 1e6 / TENSOR_CLOCK_SHARE, card.max_clock_mhz)
    return kernel_time_s(lower(products, card), board, card) / time - 1.0, 2.0 * sizes.prod(axis=1)


def row_errors(gpu: str, use: str, kernel: str) -> np.ndarray:
    """Relative errors of times of a kernel of :data:`KERNELS` at the card's highest clock, shape ``(n,)``."""
    measured = {}
    for row in read("rows.csv", gpu, use):
        measured[row["kernel"], row["rows"], row["columns"], row["buffers"]] = float(row["time_s"])
    operators, times = [], []
    for (name, rows, columns, buffers), time in measured.items():
        if name != ("layernorm_bwd_both" if kernel == "gamma" else kernel):
            continue
        operators.append(KERNELS[kernel].operator(int(rows), int(columns), int(buffers)))
        input_s = measured["layernorm_bwd_input", rows, columns, buffers] if kernel == "gamma" else 0.0
        times.append(time - input_s)
    card = gpu_model(load_gpu(gpu))
    return kernel_time_s(lower(operators, card), card.max_clock_mhz, card) / np.array(times) - 1.0
