"""How much longer kernels of compute and communication take that run on one GPU at the same time.

A communication kernel holds ``ctas`` SMs, one for each of its thread blocks, so that the SMs' part of a compute kernel
takes longer. A product works through its tiles in waves, and needs more waves on the SMs that are left. Other kernels
slow by the share of SMs that is gone, to a power that is fitted:

    core' = core·⌈tiles / (SMs − ctas − stranded)⌉ / ⌈tiles / SMs⌉    or    core·(1 − ctas/SMs)^−a

Both are longer by ``contention.interference`` where a description has it: on AMD's cards, whose published products
gain far less from running beside collectives than SMs and power explain.

``stranded`` SMs stay empty: blocks of the library's products come in clusters of two within one part of the chip, and a
communication kernel may leave an odd number of SMs there. It was seen on an H200
(``calibrate/recorded/h200_sxm_beside``). Beside 24 blocks of an all-gather or a reduce-scatter, products of 11 waves at
the power limit take a little more than 15/11 as long, even while the collective only waits for its peers. That is as
if 32 SMs were gone: the 24, and one in each of the chip's eight parts.

The memory is shared. A compute kernel's memory part takes longer by the share u of the bandwidth that the collective
uses; a collective that would use more than half of it is itself held to what compute leaves, or to half:

    memory' = memory / (1 − u)

The communication's blocks copy through the same on-chip network and memory. Their copying, not the link, takes longer,
by a factor from ``cta_slowdown`` beside kernels that leave the memory alone to ``cta_slowdown_memory`` beside
memory-bound ones. With few blocks copying is the bottleneck and communication slows a lot; with many the link is, and
it hardly slows. The factors were fitted to recorded parts of layers beside one all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array, Int
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.costs import Costs
from joulecast.model.power.kernel_power import overlap_exponent

#: Most of the memory's bandwidth that a communication takes from a kernel beside it [1].
MOST_MEMORY = 0.5


@dataclass(frozen=True, eq=False)
class Alone:
    """Kernels that have the GPU to themselves, in any one unit of time; arrays of shape ``(n, c)`` for ``c`` clocks.

    Attributes
    ----------
    time
        Of one launch, under the board's instant limit.
    fixed, core, memory, link
        What the launch latency with waits, the SMs, the memory and the link need on their own.
    tiles
        As :class:`~joulecast.model.kernels.costs.Costs` has them [1].
    overlap
        Exponent of their smooth maximum, as :class:`~joulecast.model.kernels.costs.Costs` has it.
    """

    time: Array
    fixed: Array
    core: Array
    memory: Array
    link: Array
    tiles: Array
    overlap: Array


def alone(costs: Costs, rows: Int, time: Array, clocks_mhz: Array, unit_s: float = 1.0) -> Alone:
    """Rows ``rows`` of kernels whose times are ``time``, shape ``(n, c)``, in units of ``unit_s``."""

    def column(values: Array, unit: float = unit_s) -> Array:
        return np.broadcast_to(values[rows, None] / unit, time.shape)

    core = costs.core_cycles[rows, None] / (clocks_mhz[None, :] * 1e6 * unit_s)
    memory, link = column(costs.memory_s), column(costs.link_s)
    tiles, overlap = column(costs.tiles, 1.0), column(costs.overlap, 1.0)
    return Alone(time, column(costs.fixed_s + costs.wait_s), core, memory, link, tiles, overlap)


def compute_drag(kernels: Alone, i: int, beside: int, ctas: float, gpu: GpuModel) -> Array:
    """Time of compute kernel ``i`` beside communication ``beside`` over its time alone, shape ``(c,)`` [1].

    ``ctas``: the communication's thread blocks.
    """
    tiles = kernels.tiles[i]
    slower = np.where(tiles > 0.0, wave_loss(np.maximum(tiles, 1.0), ctas, gpu), sm_loss(ctas, gpu))
    used = np.minimum(_memory_use(kernels, beside), MOST_MEMORY)
    return _stretch(kernels, i, slower, gpu, 1.0 / (1.0 - used))


def fewer_sms_drag(kernels: Alone, i: int, free_sms: int, gpu: GpuModel) -> Array:
    """Time of compute kernel ``i`` on all SMs but some, with nothing beside it, over its time on all [1].

    Shape ``(c,)``. Waves have fewer tiles, and no SM is stranded; other kernels lose what they do beside communication.
    """
    tiles = np.maximum(kernels.tiles[i], 1.0)
    left = max(gpu.sm_count - free_sms, 1)
    waves = np.ceil(tiles / left) / np.ceil(tiles / gpu.sm_count)
    lost = (left / gpu.sm_count) ** -gpu["contention.compute_slowdown"]
    return _stretch(kernels, i, np.where(kernels.tiles[i] > 0.0, waves, lost), gpu)


def sm_loss(ctas: ArrayLike, gpu: GpuModel) -> Array:
    """Factor by which the SMs' part of a kernel without waves takes longer beside ``ctas`` blocks [1]."""
    left = np.maximum(1.0 - np.asarray(ctas) / gpu.sm_count, 1.0 / gpu.sm_count)
    return np.asarray(left ** -gpu["contention.compute_slowdown"] * _interference(ctas, gpu))


def wave_loss(tiles: Array, ctas: float, gpu: GpuModel) -> Array:
    """Waves of products of ``tiles`` beside ``ctas`` communication blocks over those that they take alone [1]."""
    left = gpu.sm_count - ctas - (np.floor(gpu.get("contention.stranded_sms", 0.0)) if ctas else 0.0)
    waves = np.ceil(tiles / np.maximum(left, 1.0)) / np.ceil(tiles / gpu.sm_count)
    return np.asarray(waves * _interference(ctas, gpu))


def _interference(ctas: ArrayLike, gpu: GpuModel) -> Array:
    """Factor of caches and memory paths that kernels share, beside any communication [1]."""
    return np.where(np.asarray(ctas) > 0.0, gpu.get("contention.interference", 1.0), 1.0)


def communication_drag(kernels: Alone, i: int, beside: int, gpu: GpuModel) -> Array:
    """Time of communication kernel ``i`` beside compute kernel ``beside`` over its time alone, shape ``(c,)`` [1]."""
    core, memory = kernels.core[beside], kernels.memory[beside]
    bound = memory / np.maximum(np.maximum(core, memory), 1e-30)
    free, full = gpu["contention.cta_slowdown"], gpu["contention.cta_slowdown_memory"]
    left = np.maximum(1.0 - _memory_use(kernels, beside), MOST_MEMORY)
    return np.maximum(_stretch(kernels, i, free + (full - free) * bound, gpu), _memory_use(kernels, i) / left)


def memory_share(kernels: Alone, i: int, drag: Array, beside: int, beside_drag: Array) -> Array:
    """Share of the memory's bandwidth that two kernels use beside each other, shape ``(c,)`` [1].

    ``drag``, ``beside_drag``: their times then over their times alone.
    """
    return np.asarray(_memory_use(kernels, i) / drag + _memory_use(kernels, beside) / beside_drag)


def _memory_use(kernels: Alone, i: int) -> Array:
    """Share of the memory's bandwidth that kernel ``i`` uses alone, shape ``(c,)`` [1]."""
    return np.asarray(kernels.memory[i] / np.maximum(kernels.time[i], 1e-30))


def _stretch(kernels: Alone, i: int, sms: Array | float, gpu: GpuModel, memory: Array | float = 1.0) -> Array:
    """Time with the SMs' and the memory's parts longer by these factors over the time without, shape ``(c,)`` [1]."""
    p = overlap_exponent(kernels.overlap[i], gpu)
    core, rest, link = kernels.core[i], kernels.memory[i], kernels.link[i] ** p
    before = kernels.fixed[i] + (core**p + rest**p + link) ** (1.0 / p)
    after = kernels.fixed[i] + ((core * sms) ** p + (rest * memory) ** p + link) ** (1.0 / p)
    return np.asarray(after / np.maximum(before, 1e-30))
