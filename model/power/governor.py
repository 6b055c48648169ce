"""The clock that a board settles at: its power limit, and its limit on tensor throughput.

The slow loop holds the average power of about one second at ``settled_share`` of the limit. A second limiter holds
tensor kernels below the maximum clock even far from the power limit, by how much of the tensor units' rate they use.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array, Int
from joulecast.model.hardware.gpu_model import GpuModel

#: Clock at which SMs run products on their tensor cores over the one that the board has set: 0.902 to 0.911 of products
#: in four precisions and at eleven clocks, counted on an H200 (0.902 to 0.917 on H100s), whatever they draw. All other
#: kernels get the whole clock. Forecasts go by the clock that is set, and the share is in the cycles of products.
TENSOR_CLOCK_SHARE = 0.907
#: How long the fast loop takes to follow a change of power, in its time constants.
REMEMBERED = 2.0


def settled_power_w(power_limit_w: ArrayLike, gpu: GpuModel) -> Array:
    """Average power at which a board under ``power_limit_w`` settles [W]."""
    return np.asarray(power_limit_w, dtype=np.float64) * gpu["governor.settled_share"]


def tensor_clock_mhz(tensor_use: ArrayLike, gpu: GpuModel) -> Array:
    """Highest clock that the second limiter grants a kernel with this share of the dense tensor rate [MHz]."""
    use = np.maximum(np.asarray(tensor_use, dtype=np.float64), 1e-9)
    return np.minimum(gpu.max_clock_mhz, gpu["governor.tensor_clock_mhz"] / use)


def settle_clock_mhz(clocks_mhz: Array, power_w: Array, limit_w: ArrayLike, ceiling_mhz: ArrayLike) -> Array:
    """Clock at which a workload's power meets a limit.

    Parameters
    ----------
    clocks_mhz
        Grid of clocks, ascending, shape ``(c,)``.
    power_w
        Power of each of ``n`` workloads at each clock, shape ``(c, n)``, rising with the clock.
    limit_w
        Power to settle at, shape ``()`` or ``(n,)``.
    ceiling_mhz
        Highest clock allowed, shape ``()`` or ``(n,)``.

    Returns
    -------
    ndarray
        Clock between the steps of the grid: the board alternates between two of them. The lowest clock where even that
        exceeds the limit. Shape ``(n,)``.
    """
    limit = np.asarray(limit_w, dtype=np.float64)
    return clock_of_rising(clocks_mhz, np.maximum.accumulate(power_w, axis=0), limit, ceiling_mhz)


def clock_of_rising(clocks_mhz: Array, power_w: Array, limit_w: Array, ceiling_mhz: ArrayLike) -> Array:
    """:func:`settle_clock_mhz` of powers that nowhere fall."""
    above = (power_w > limit_w).argmax(axis=0)
    over_all = power_w[-1] > limit_w
    upper = np.where(over_all, np.maximum(above, 1), 1)
    columns = np.arange(power_w.shape[1])
    clock = clock_between(clocks_mhz, upper, power_w[upper - 1, columns], power_w[upper, columns], limit_w)
    return np.asarray(np.minimum(np.where(over_all, clock, clocks_mhz[-1]), ceiling_mhz))


def clock_between(clocks_mhz: Array, upper: Int, below_w: Array, above_w: Array, limit_w: Array) -> Array:
    """Clock that draws the limit between those at ``upper - 1`` and ``upper``, whose powers are given [MHz]."""
    share = np.minimum(np.maximum((limit_w - below_w) / np.maximum(above_w - below_w, 1e-9), 0.0), 1.0)
    below = clocks_mhz[upper - 1]
    return np.asarray(below + (clocks_mhz[upper] - below) * share)
