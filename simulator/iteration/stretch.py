"""How uncertain an iteration's time is by what single kernels do not show.

That is contention between kernels that run at the same time, transfers that hold SMs, and clocks that wander in a group
of GPUs. Kernels keep their times; the tables of instructions are made again with joint deviations of these parameters,
in one walk through an instruction's launches that has a column for every deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.kernel_power import COMPONENTS
from joulecast.simulator.fluid.prepared import Prepared, lag_of
from joulecast.simulator.fluid.rendezvous import transfers_wait_on_sms
from joulecast.simulator.instructions.clock_columns import locked_index
from joulecast.simulator.instructions.host import host_gaps, host_s
from joulecast.simulator.instructions.overlap import is_overlapped
from joulecast.simulator.instructions.overlap_steady import in_columns_of, shortened
from joulecast.simulator.instructions.overlapped_buckets import with_overlapped_buckets
from joulecast.simulator.instructions.tables import (
    InstructionTable,
    Kernels,
    beside_each_other,
    kernel_counts,
)

Deviations = Sequence[Mapping[str, float]]

#: How far clocks wander among GPUs that wait for each other.
WANDER = ("governor.wander", "governor.card_clock_spread")
#: Steps of the clock to either side over which an instruction's time is taken to be a power of it.
REACH = 8
#: Less than any kernel takes [s].
TINY_S = 1e-12


def stretches(prepared: Prepared, rank: int, columns: Int, deviations: Deviations) -> Array:
    """Change of the logarithm of the durations of a rank's types of instructions, at each deviation.

    Parameters
    ----------
    columns
        Places on the grid of clocks, shape ``(m,)``.
    deviations
        Values of parameters by ``table.dotted.name``, ``k`` of them.

    Returns
    -------
    ndarray
        Shape ``(k, types, m)``; zero where nothing runs beside anything and nobody waits.
    """
    plan, run = prepared.program.plan, prepared.program.ranks[rank]
    beside = transfers_wait_on_sms(plan)
    if prepared.locked and not (beside or run.overlapped or any(map(is_overlapped, run.types))):
        return np.zeros((len(deviations), len(run.types), len(columns)))
    copies = 1 + len(deviations)
    kernels = prepared.kernels[rank].at(np.tile(columns, copies))
    gpu = in_columns_of(prepared.gpu, deviations, len(columns))
    table = _lengths(prepared, rank, kernels, gpu, beside)
    if not prepared.locked:
        table = _in_groups(table, prepared, rank, columns, deviations)
    if (host := host_s(plan, prepared.gpu, run.types)).any():
        table = replace(table, duration_s=table.duration_s + host_gaps(table.duration_s, host[:, None]))
    table = with_overlapped_buckets(table, run.order, run.overlapped, kernels, gpu)
    length = np.log(np.maximum(table.duration_s, TINY_S)).reshape(len(run.types), copies, len(columns))
    return np.asarray((length[:, 1:] - length[:, :1]).swapaxes(0, 1))


def _lengths(prepared: Prepared, rank: int, kernels: Kernels, gpu: GpuModel, beside: bool) -> InstructionTable:
    """Durations of a rank's instructions without waits and without communication beside them; no energies."""
    run, counts = prepared.program.ranks[rank], prepared.tables[rank].counts.copy()
    for item in run.overlapped:
        counts[run.order[-1], kernels.row[item.operator]] -= item.buckets
    # Equal layers stretch alike: a few of them stand for all.
    types = [shortened(launches) for launches in run.types]
    few = kernel_counts(types, kernels)
    each = kernels.times.time_s.T
    serial, communication = few @ each, few @ kernels.communication_s.T
    length, exposed, hidden = beside_each_other(types, serial, communication, kernels, gpu, beside)
    longer = counts @ each / np.maximum(serial, TINY_S)
    nothing = np.zeros((*length.shape, len(COMPONENTS)))
    communication_parts = np.stack([longer * hidden, longer * exposed, np.zeros_like(hidden)], -1)
    return InstructionTable(longer * length, nothing[..., 0], nothing, communication_parts, counts)


def _in_groups(
    table: InstructionTable, prepared: Prepared, rank: int, columns: Int, deviations: Deviations
) -> InstructionTable:
    """The table of ranks that wait for the slowest of their groups, whose clocks wander as each deviation says."""
    clocks, own = prepared.clocks_mhz, prepared.tables[rank].duration_s
    named = [{name: each[name] for name in WANDER if name in each} for each in ({}, *deviations)]
    plan, highest = prepared.program.plan, clocks[locked_index(prepared.program, rank, clocks)][:, None]
    held = prepared.held_mhz[rank] if prepared.held_mhz else None
    lags = [lag_of(plan, clocks[columns], prepared.gpu.with_values(each), highest, held) for each in named]
    lower, upper = np.maximum(columns - REACH, 0), np.minimum(columns + REACH, len(clocks) - 1)
    ratio = np.divide(own[:, lower], own[:, upper], out=np.ones_like(own[:, lower]), where=own[:, upper] > 0)
    power = np.clip(np.log(ratio) / np.log(clocks[upper] / clocks[lower]), 0.0, 1.0)
    compute = table.duration_s - table.exposed_s
    waiting = compute * ((1.0 - np.concatenate(lags, axis=-1)) ** -np.tile(power, len(lags)) - 1.0)
    return replace(table, duration_s=table.duration_s + waiting)
