"""Time and energy of the kernels of a state-space mixer (Mamba-2), and of linear attention (Gated DeltaNet).

    t = t0 + ((c / f)^p + (bytes / (φ·B_HBM))^p)^(1/p)
    c = (flop_s / η_s + flop_p / η_p) / R + x·max(s, m / SMs) + bytes / (b·SMs)

A kernel reaches a share of the rate R at which the matrix units multiply its type, η_s in products with states and η_p
in those with pairs of a chunk's positions, and a share φ of the memory's bandwidth; an SM moves b bytes in a cycle.
Of some each step takes x cycles: s of them follow one another (states that pass from chunk to chunk), or m are shared
by the SMs (rows of a norm).
Operations, bytes and steps are counted in :mod:`joulecast.model.kernels.scan_work` and, of linear attention, in
:mod:`joulecast.model.kernels.delta_work`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.arrays import PICO, Columns, hbm_energy_j
from joulecast.model.kernels.delta_work import DELTA_WORK
from joulecast.model.kernels.operators import Scan
from joulecast.model.kernels.scan_work import WORK, sizes_of


class Pace(NamedTuple):
    """What a kernel reaches of what its code counts.

    ``state``, ``pairs`` and ``bandwidth`` are η_s, η_p and φ [1], ``step`` is x [cycles], ``moved`` is b [bytes] and
    ``overlap`` is p [1].
    """

    state: float = 1.0
    pairs: float = 1.0
    bandwidth: float = 1.0
    step: float = 0.0
    moved: float = math.inf
    overlap: float = 2.0


#: Work of every kernel.
KERNELS = {**WORK, **DELTA_WORK}
#: All that is not counted from the kernels' code, fitted to times of four shapes on an H200 and an H100; those of four
#: others are met as `validate/recorded/scans/README.md` says [estimates, +-10 % in the time of such shapes].
PACES = {
    "cumsum": Pace(bandwidth=0.93, moved=34.0),
    "state": Pace(state=0.24, bandwidth=0.93, moved=34.0),
    "pass": Pace(bandwidth=0.84, step=970.0),
    "pass_wide": Pace(bandwidth=0.85, step=980.0),
    "bmm": Pace(state=0.14, bandwidth=0.93, moved=240.0),
    "scan": Pace(state=0.65, pairs=0.078, bandwidth=0.93, moved=11.0),
    "dz": Pace(bandwidth=0.93, moved=38.0),
    "dstates": Pace(state=0.99, bandwidth=0.93, moved=25.0),
    "pass_backward": Pace(bandwidth=0.92, step=2580.0),
    "dx": Pace(pairs=0.059, bandwidth=0.93, moved=9.4),
    "db": Pace(state=0.11, bandwidth=0.93),
    "dc": Pace(state=0.12, bandwidth=0.86, moved=140.0),
    "dcb": Pace(pairs=0.11, bandwidth=0.76, moved=40.0),
    "bmm_backward": Pace(state=0.25, bandwidth=0.93, moved=51.0),
    "decays": Pace(pairs=0.056, bandwidth=0.75, moved=11.0),
    "cumsum_backward": Pace(bandwidth=0.51, step=6930.0),
    "conv": Pace(bandwidth=0.93, moved=17.0),
    "conv_backward": Pace(bandwidth=0.93, moved=9.3),
    "norm": Pace(bandwidth=0.93, moved=38.0),
    "norm_backward": Pace(bandwidth=0.93, step=1190.0, moved=21.0),
    "norm_again": Pace(bandwidth=0.93, step=1190.0, moved=21.0),
    # Of linear attention, fitted to two shapes on either card; those of two others are met as that page says. What
    # hands states on hides what it moves behind its steps.
    "unit": Pace(bandwidth=0.93),
    "delta_cumsum": Pace(bandwidth=0.25),
    "delta_solve": Pace(state=0.031, bandwidth=0.93),
    "delta_factors": Pace(state=0.21, bandwidth=0.93),
    "delta_states": Pace(bandwidth=0.93, step=2280.0, overlap=8.0),
    "delta_result": Pace(state=0.168, bandwidth=0.93),
    "delta_values": Pace(state=0.21, bandwidth=0.93),
    "delta_states_grad": Pace(bandwidth=0.93, step=4100.0, overlap=8.0),
    "delta_keys": Pace(state=0.103, bandwidth=0.56),
    "delta_factors_grad": Pace(state=0.151, bandwidth=0.93),
    "unit_grad": Pace(bandwidth=0.93),
}
#: Time beside cycles and memory (t0), fitted with these [s].
FIXED_S = 2.5e-6
#: Power of the SMs over that of SMs that move data and wait, and energy of an operation over one in a product of the
#: library's, in products with states and with pairs, whose operands each head reads and raises to a power anew. Fitted
#: to the power of eleven kernels of one shape, each over and over, on an H200 [estimates, +-20 %].
ACTIVITY, STATE_ENERGY, PAIR_ENERGY = 1.35, 2.0, 12.0


def lower_scans(operators: Sequence[Scan], gpu: GpuModel) -> Columns:
    """Columns of :class:`~joulecast.model.kernels.costs.Costs` of scans of one kernel and data type."""
    first, count = operators[0], len(operators)
    work, pace = KERNELS[first.kernel](sizes_of(operators)), PACES[first.kernel]
    products = work.states / pace.state + work.pairs / pace.pairs
    matrix = products / gpu.flops_per_cycle(first.dtype)
    steps = pace.step * np.maximum(work.steps, work.spread / gpu.sm_count)
    cycles = np.broadcast_to(matrix + steps + work.bytes / (pace.moved * gpu.sm_count), (count,))
    flops = np.broadcast_to(work.states + work.pairs, (count,))
    use = flops / (gpu.flops_per_cycle(first.dtype) * np.maximum(cycles, 1.0))
    per_flop = gpu[f"power.tensor_pj_per_flop.{first.dtype}"] * PICO
    switched = per_flop * (STATE_ENERGY * work.states + PAIR_ENERGY * work.pairs)
    return {
        "fixed_s": np.full(count, FIXED_S),
        "core_cycles": cycles,
        "memory_s": work.bytes / (pace.bandwidth * gpu.device["memory_bandwidth_bytes_per_s"]),
        "overlap": np.full(count, pace.overlap),
        "activity": np.full(count, ACTIVITY),
        "tensor_use": use,
        "tensor_j": np.broadcast_to(switched, (count,)),
        "onchip_j": work.bytes * gpu["power.l2_pj_per_byte"] * PICO,
        "hbm_j": hbm_energy_j(work.bytes, gpu),
    }
