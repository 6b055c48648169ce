"""Limits on parts of a package, in an iteration: the loop of a part is faster than the board's.

It averages over about a millisecond, what a kernel takes. Each kernel's clock therefore falls until the part's power
meets the limit, and where even the lowest clock is too much the kernel rests in between
(:mod:`joulecast.model.power.component_power`). Where kernels run beside each other their powers add up: the clock of
the whole instruction falls until its mean meets the limit. A GPU that waits for others is held likewise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.errors import GuardError
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.component_power import by_part, under_limits, waiting_power_w
from joulecast.model.power.kernel_power import COMPONENTS
from joulecast.model.power.settled import Curves
from joulecast.simulator.instructions.clock_columns import in_columns
from joulecast.simulator.instructions.tables import InstructionTable, Kernels

if TYPE_CHECKING:
    from joulecast.simulator.fluid.prepared import Prepared
    from joulecast.simulator.fluid.steady_state import SteadyState


#: Relative tolerance of the guard.
TOLERANCE = 1e-9


def limited(
    table: InstructionTable, clocks_mhz: Array, component_limits_w: Mapping[str, float], gpu: GpuModel
) -> tuple[InstructionTable, Array]:
    """Instructions whose parts are limited, and the highest clock of each.

    Parameters
    ----------
    table
        ``n`` types on the grid of clocks.
    clocks_mhz
        The grid, ascending, shape ``(c,)``.
    component_limits_w
        By part [W].

    Returns
    -------
    table, ceiling_mhz
        The table, held back at the lowest clock where a limit demands it; and a clock for each type, shape ``(n,)``.
    """
    # A type without work has no power; it is left as it is.
    busy = table.duration_s[:, -1] > 0
    duration = np.where(busy[:, None], table.duration_s, 1.0)
    parts = {c: table.components_j[..., i].T for i, c in enumerate(COMPONENTS)}
    curves, ceiling = under_limits(Curves(duration.T, table.energy_j.T, parts), clocks_mhz, component_limits_w, gpu)
    longer = replace(
        table,
        duration_s=np.where(busy[:, None], curves.time_s.T, table.duration_s),
        energy_j=curves.energy_j.T,
        components_j=np.stack([curves.components_j[c].T for c in COMPONENTS], -1),
    )
    return longer, ceiling


def index_below(clocks_mhz: Array, ceiling_mhz: Array) -> Int:
    """Index of the highest clock of the grid that is not above a ceiling, shape ``(n,)``."""
    return np.maximum(np.searchsorted(clocks_mhz, ceiling_mhz + 1e-6) - 1, 0)


def wait_columns(clocks_mhz: Array, component_limits_w: Mapping[str, float], gpu: GpuModel) -> Int:
    """Clock index at which a GPU waits at each clock index of the governor, shape ``(c,)``."""
    drawn = waiting_power_w(clocks_mhz, gpu)
    below = np.ones(len(clocks_mhz), dtype=np.bool_)
    for part, limit in component_limits_w.items():
        below &= drawn[part] <= limit
    highest = int(np.flatnonzero(below)[-1]) if below.any() else 0
    return np.minimum(np.arange(len(clocks_mhz)), highest)


def spent_at_clocks(prepared: Prepared, rank: int, busy_s: Array, waited_s: Array) -> tuple[Array, Array]:
    """Clocks at which a stage's GPU ran, ascending, and how long [MHz], [s].

    Parameters
    ----------
    busy_s, waited_s
        Time of each type of instruction, and of waiting, where the governor set a clock; ``(types, clocks)`` and
        ``(clocks,)`` [s].
    """
    clocks, columns = prepared.clocks_mhz, prepared.columns[rank]
    if prepared.kernels[rank].held_mhz is None:
        return clocks, waited_s + in_columns(busy_s, columns).sum(0)
    mhz = np.append(clocks[prepared.wait_columns], real_clock_mhz(prepared, rank))
    order = np.argsort(mhz, kind="stable")
    return mhz[order], np.append(waited_s, busy_s)[order]


def real_clock_mhz(prepared: Prepared, rank: int) -> Array:
    """Mean clock over the kernels of each type where the governor sets a clock, shape ``(types, clocks)`` [MHz]."""
    kernels, table, columns = prepared.kernels[rank], prepared.tables[rank], prepared.columns[rank]
    if kernels.held_mhz is None:
        return kernels.clocks_mhz[columns]
    return np.take_along_axis(mean_clock_mhz(table, kernels), columns, axis=1)


def mean_clock_mhz(table: InstructionTable, kernels: Kernels) -> Array:
    """Mean clock over the limited kernels of each type on the grid of clocks, shape ``(types, clocks)`` [MHz]."""
    held = np.broadcast_to(kernels.clocks_mhz[:, None], kernels.times.time_s.shape)
    held = held if kernels.held_mhz is None else kernels.held_mhz
    time = table.counts @ kernels.times.time_s.T
    return np.asarray(
        np.divide(table.counts @ (kernels.times.time_s * held).T, time, out=np.zeros_like(time), where=time > 0)
    )


def check_parts(steady: SteadyState) -> None:
    """Hold every instruction and every wait of the iterations that count against the limits of their plan.

    Raises
    ------
    GuardError
        A part's mean power in one of them exceeds its limit.
    """
    prepared, gpu = steady.prepared, steady.prepared.gpu
    limits = dict(prepared.program.plan.power.component_limits_w)
    if not limits:
        return
    waiting = waiting_power_w(prepared.clocks_mhz[prepared.wait_columns], gpu)
    for rank, table in enumerate(prepared.tables):
        ran = (steady.executed(rank) > 0) & (table.duration_s > 0)
        energy = by_part({c: table.components_j[ran, i] for i, c in enumerate(COMPONENTS)}, gpu)
        waits = steady.waited_s(rank) > 0
        for part, limit in limits.items():
            drawn = np.concatenate([energy[part] / table.duration_s[ran], waiting[part][waits]])
            if np.any(drawn > limit * (1.0 + TOLERANCE)):
                raise GuardError(f"stage {rank}: {part} draws {drawn.max():.6g} W under a limit of {limit:g} W")
