"""Forecasts of recorded products whose cycles were counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Gemm
from joulecast.model.power.governor import TENSOR_CLOCK_SHARE
from joulecast.model.power.kernel_power import kernel_time_s


def errors_of_products(rows: Sequence[Mapping[str, str]], gpu: str) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors of times at the clocks that follow from the cycles, and operations, both of shape ``(n,)``."""
    sizes = np.array([[float(row[key]) for key in "MNK"] for row in rows])
    time, cycles = np.array([[float(row["time_s"]), float(row["cycles"])] for row in rows]).T
    products = [
        Gemm(m=int(m), n=int(n), k=int(k), layout=row["layout"]) for (m, n, k), row in zip(sizes, rows, strict=True)
    ]
    card = gpu_model(load_gpu(gpu))
    board = np.minimum(cycles / time / 1e6 / TENSOR_CLOCK_SHARE, card.max_clock_mhz)
    return kernel_time_s(lower(products, card), board, card) / time - 1.0, 2.0 * sizes.prod(axis=1)
