"""Kernels of compute and communication beside each other on one GPU.

A communication kernel holds ``ctas`` SMs, one a thread block; what compute needs of the SMs takes longer by the share
that is left, to a power: persistent and wave-quantised kernels lose more than the share, memory-bound ones nothing,

    core' = core·(1 − ctas/SMs)^−a

The blocks copy through the same on-chip network and memory: their copying, not the link, takes longer, by a factor that
grows from ``cta_slowdown`` beside kernels that leave the memory alone to ``cta_slowdown_memory`` beside memory-bound
ones. With few blocks the copying binds and communication slows a lot, with many the link does and it hardly slows.
Fitted to recorded parts of layers beside one all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.model.costs import Costs
from joulecast.model.gpu_model import GpuModel

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Alone:
    """Kernels that have the GPU to themselves, in any one unit of time; arrays of shape ``(n, c)`` for ``c`` clocks.

    Attributes
    ----------
    time
        Of one launch, under the board's instant limit.
    fixed, core, memory, link
        What the launch latency, the SMs, the memory and the link need on their own.
    """

    time: Array
    fixed: Array
    core: Array
    memory: Array
    link: Array


def alone(costs: Costs, rows: NDArray[np.int64], time: Array, clocks_mhz: Array, unit_s: float = 1.0) -> Alone:
    """Rows ``rows`` of kernels whose times are ``time``, shape ``(n, c)``, in units of ``unit_s``."""

    def column(values: Array) -> Array:
        return np.broadcast_to(values[rows, None] / unit_s, time.shape)

    core = costs.core_cycles[rows, None] / (clocks_mhz[None, :] * 1e6 * unit_s)
    return Alone(time, column(costs.fixed_s), core, column(costs.memory_s), column(costs.link_s))


def compute_drag(kernels: Alone, i: int, ctas: float, gpu: GpuModel) -> Array:
    """Time of compute kernel ``i`` beside ``ctas`` communication blocks over its time alone, shape ``(c,)`` [1]."""
    return _stretch(kernels, i, sm_loss(ctas, gpu), gpu)


def sm_loss(ctas: float, gpu: GpuModel) -> float:
    """Factor by which the SMs' part of a kernel takes longer beside ``ctas`` communication blocks [1]."""
    left = max(1.0 - ctas / gpu.sm_count, 1.0 / gpu.sm_count)
    return float(left ** -gpu["contention.compute_slowdown"])


def communication_drag(kernels: Alone, i: int, beside: int, gpu: GpuModel) -> Array:
    """Time of communication kernel ``i`` beside compute kernel ``beside`` over its time alone, shape ``(c,)`` [1]."""
    core, memory = kernels.core[beside], kernels.memory[beside]
    bound = memory / np.maximum(np.maximum(core, memory), 1e-30)
    free, full = gpu["contention.cta_slowdown"], gpu["contention.cta_slowdown_memory"]
    return _stretch(kernels, i, free + (full - free) * bound, gpu)


def _stretch(kernels: Alone, i: int, factor: Array | float, gpu: GpuModel) -> Array:
    """Time with the SMs' part longer by ``factor`` over the time without, shape ``(c,)`` [1]."""
    p = gpu["kernel.overlap_exponent"]
    core, rest = kernels.core[i], kernels.memory[i] ** p + kernels.link[i] ** p
    before = kernels.fixed[i] + (core**p + rest) ** (1.0 / p)
    after = kernels.fixed[i] + ((core * factor) ** p + rest) ** (1.0 / p)
    return np.asarray(after / np.maximum(before, 1e-30))
