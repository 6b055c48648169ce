"""How a published time was taken: what of it is the kernel's, and what the clock had come to by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.rows.measured import Row

#: What the host needs to put one product of Transformer Engine into the queue, one of several that a single call
#: launches, and its attention [s]; estimates: no shorter time is found in published tables of back-to-back kernels.
LAUNCH_S, GROUPED_LAUNCH_S, ATTENTION_LAUNCH_S = 14e-6, 8.5e-6, 95e-6
#: What launching an eager PyTorch product and waiting for its end adds to its time [s]; estimate: the time of
#: products that take nothing (LLMCompass, smallest shapes on A100 and MI210, less a kernel's 4 us).
WAITED_S = 25e-6
#: What a profiler's duration differs by from the time that a kernel takes in a row of its like, on which descriptions
#: are calibrated [s]: it holds the first loads of a product, which newer libraries hide behind the product before, and
#: not the gap between two of vLLM's kernels; PyTorch's leave none in a graph, as theirs were measured. Estimates:
#: smallest operators of Vidur against H200's.
PRODUCT_OFFSET_S, GAP_S = 1.5e-6, 0.6e-6
#: No kernel takes less [s].
SHORTEST_S = 1e-6


def observed_time_s(rows: Sequence[Row], kernel_s: Array) -> Array:
    """What a measurement reads of kernels that take ``kernel_s``, shape ``(n,)`` [s].

    ``timing`` of a row: ``kernel`` (a profiler's), ``queue`` (the host's clock over runs back to back, so that none is
    shorter than a launch), ``waited`` (the host's clock, launching and waiting for each). Other rows read the kernel's.
    """
    kinds = np.array([str(row.configuration.get("timing") or "") for row in rows])
    launches = np.array([float(row.configuration.get("launches") or 1) for row in rows])
    single = np.where([row.op == "flash_attn" for row in rows], ATTENTION_LAUNCH_S, LAUNCH_S)
    launching = np.where(launches > 1, GROUPED_LAUNCH_S * launches, single)
    gap = np.where([row.op.startswith("vllm_") for row in rows], GAP_S * launches, 0.0)
    profiled = kernel_s + np.where([row.op == "gemm" for row in rows], PRODUCT_OFFSET_S, -gap)
    kernel_s = np.where(kinds == "kernel", np.maximum(profiled, SHORTEST_S), kernel_s)
    queued = np.where(kinds == "queue", np.maximum(kernel_s, launching), kernel_s)
    return np.asarray(queued + np.where(kinds == "waited", WAITED_S, 0.0))


def with_windows(rows: Sequence[Row], times: Callable[[Array, Array], Array]) -> tuple[Array, Array]:
    """When each row's window begins after the start of its load, and how long it takes, shape ``(n,)`` each [s].

    Rows that state ``runs`` instead of times begin after ``runs_before`` runs and last ``runs``; how long one takes,
    ``times`` answers for windows of any length.
    """
    settle = np.array([row.settle_s for row in rows])
    window = np.array([row.window_s for row in rows])
    runs = np.array([float(row.configuration.get("runs") or 0) for row in rows])
    if not runs.any():
        return settle, window
    before = np.array([float(row.configuration.get("runs_before") or 0) for row in rows])
    for _ in range(2):
        taken = times(settle, window)
        settle, window = np.where(runs > 0, before * taken, settle), np.where(runs > 0, runs * taken, window)
    return settle, window
