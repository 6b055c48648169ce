"""Communication beside whole instructions: what only the optimizer, or the next iteration's forwards, wait for.

Megatron reduces a chunk's gradients bucket by bucket from its last backward on, and gathers updated parameters before
each chunk's first forward, on a stream of its own; other instructions run meanwhile. With instructions that end at E
and begin at B, of length d, and n buckets of time t each in the order of the instructions,

    reduction:  end ← max(end + n·t,  E − d·(n − 1)/n + n·t,  E + t),      exposed = end − E of the rank's last one
    gathering:  end ← end + n·t,      exposed = max(end − (n − 1)·t − B,  end − B − d·(n − 1)/n) over all

Idle slots between instructions are not counted on: they would only hide more. What is exposed of either adds to the
optimizer's instruction, where every rank waits for it at the same time. While they last, compute goes on at 1/L of its
pace, as communication kernels have their share of the SMs and memory; of a hidden second, 1 − 1/L is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Collective
from joulecast.model.power.kernel_power import COMPONENTS
from joulecast.simulator.instructions.overlap import blocks_of, lost_beside
from joulecast.simulator.instructions.tables import InstructionTable, Kernels, add_idling

#: Components that communication adds to what the board draws anyway.
CARRIED = tuple(name for name in COMPONENTS if name not in ("static", "clock"))


@dataclass(frozen=True, slots=True)
class OverlappedBuckets:
    """Buckets of gradients or parameters that travel beside a rank's instructions.

    Attributes
    ----------
    operator
        The collective of one bucket.
    buckets
        How many.
    position
        In the rank's order, of the instruction that makes the gradients, or needs the parameters first.
    gathers
        Whether parameters are gathered ahead of that instruction, rather than its gradients reduced.
    """

    operator: Collective
    buckets: int
    position: int
    gathers: bool = False


def exposed_s(items: Sequence[OverlappedBuckets], bucket_s: Sequence[Array], lengths_s: Array) -> Array:
    """Time that communication takes beyond the instructions beside it, shape ``(c,)`` [s].

    Parameters
    ----------
    bucket_s
        Time of one bucket of each item at every clock, each of shape ``(c,)`` [s].
    lengths_s
        Length of the rank's instructions in order, the optimizer left out, shape ``(instructions, c)`` [s].
    """
    ends = lengths_s.cumsum(0)
    positions = [item.position for item in items]
    counts = np.array([item.buckets for item in items], dtype=np.float64)
    finish = ends[-1] if len(ends) else np.zeros(lengths_s.shape[1])
    return beyond_s([item.gathers for item in items], counts, bucket_s, ends[positions], lengths_s[positions], finish)


def beyond_s(
    gathers: Sequence[bool],
    buckets: Array,
    bucket_s: Sequence[Array] | Array,
    ends_s: Array,
    lengths_s: Array,
    finish_s: Array,
) -> Array:
    """:func:`exposed_s` from the ends and lengths of the instructions at the items' positions.

    Parameters
    ----------
    gathers
        Of each item, whether its parameters are gathered.
    buckets
        How many, shape ``(items, …)``.
    bucket_s, ends_s, lengths_s
        Of each item, shape ``(items, …)`` [s].
    finish_s
        End of the rank's last instruction, shape ``(…)`` [s].
    """
    reduced, gathered, late = np.zeros_like(finish_s), np.zeros_like(finish_s), np.zeros_like(finish_s)
    for gather, n, one, end, length in zip(gathers, buckets, bucket_s, ends_s, lengths_s, strict=True):
        inside = length * (n - 1) / n
        if gather:
            begin = end - length
            gathered = gathered + n * one
            late = np.maximum(late, np.maximum(gathered - (n - 1) * one - begin, gathered - begin - inside))
        else:
            reduced = np.maximum(np.maximum(reduced, end - inside) + n * one, end + one)
    return np.asarray(np.maximum(reduced - finish_s, 0.0) + late)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Communication of a rank's iteration: kernels and how often each runs, times of shape ``(c,)``, energy.

    Energy is what it draws on top of what the board draws anyway, shape ``(c, components)`` [J].
    """

    rows: list[int]
    counts: Array
    exposed_s: Array
    hidden_s: Array
    energy_j: Array

    @property
    def hidden_share(self) -> Array:
        """Share of the communication that nothing waits for, shape ``(c,)``."""
        return np.asarray(self.hidden_s / (self.hidden_s + self.exposed_s))


def _sums(table: InstructionTable, order: Sequence[int], items: Sequence[OverlappedBuckets], kernels: Kernels) -> _Sums:
    rows = [kernels.row[item.operator] for item in items]
    counts = np.array([item.buckets for item in items], dtype=np.float64)
    times = kernels.times
    exposed = exposed_s(items, [times.time_s[:, row] for row in rows], table.duration_s[list(order[:-1])])
    hidden = np.maximum(counts @ times.time_s[:, rows].T - exposed, 0.0)
    energy = np.zeros(table.components_j.shape[1:])
    for component in CARRIED:
        energy[:, COMPONENTS.index(component)] = counts @ kernels.component_j(component)[:, rows].T
    return _Sums(rows, counts, exposed, hidden, energy)


def with_overlapped_buckets(
    table: InstructionTable, order: Sequence[int], items: Sequence[OverlappedBuckets], kernels: Kernels, gpu: GpuModel
) -> InstructionTable:
    """A rank's table with the communication beside its instructions.

    The time that it takes beyond them is on account of the last one, the optimizer, with its energy. What the hidden
    part draws on top of the other instructions is spread over these.
    """
    if not items:
        return table
    sums, last = _sums(table, order, items, kernels), order[-1]
    longer = sums.exposed_s + sums.hidden_s * lost_beside(blocks_of(items[0].operator, gpu), gpu)
    duration, communication = table.duration_s.copy(), table.communication_s.copy()
    duration[last] += longer
    communication[last, :, :2] += np.stack([sums.hidden_s, sums.exposed_s], -1)
    beside = np.zeros_like(table.components_j)
    beside[sorted(set(order[:-1]))] = (sums.hidden_share / (len(order) - 1))[:, None] * sums.energy_j
    parts = table.components_j + beside
    parts[last] += (1.0 - sums.hidden_share)[:, None] * sums.energy_j
    add_idling(parts[last], longer, kernels, gpu, sums.exposed_s)
    run = table.counts.copy()
    np.add.at(run, (last, sums.rows), sums.counts)  # chunks may share a kernel
    return replace(
        table,
        duration_s=duration,
        energy_j=parts.sum(-1),
        components_j=parts,
        communication_s=communication,
        counts=run,
        beside_j=beside,
    )
