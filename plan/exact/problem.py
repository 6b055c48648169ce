"""What a front is asked of: a graph of instructions, their options, and what waiting costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from joulecast.arrays import Array, Int
from joulecast.errors import InputError
from joulecast.plan.exact.dag import InstructionDag
from joulecast.plan.knobs.options import TIME_QUANTUM_S, Option, OptionSet, make_options, quanta

if TYPE_CHECKING:
    from joulecast.plan.exact.front_intervals import OptionKernels
    from joulecast.plan.exact.rounding_kernels import Graph
    from joulecast.plan.exact.site_limits import SiteLimits

Choice = NDArray[np.int32]

#: Excess of an option's cost over the hull, relative to its energy, up to which rounding may choose it as well.
NEAR_HULL = 0.002


@dataclass(frozen=True, eq=False)
class FrontProblem:
    """Instructions with options; a plan is a choice of one option for each.

    Attributes
    ----------
    dag
        Instructions and who waits for whom.
    sets
        Options of each kind of instruction.
    kind
        Index into ``sets`` of every instruction, shape ``(n,)``.
    wait_power_w
        Power of all GPUs of each pipeline rank while they wait, shape ``(ranks,)`` [W].
    power_limit_w
        Mean power that a rank's GPUs may draw, shape ``(ranks,)``; ``None`` where the options' times are measured ones,
        which hold what the board allowed [W].
    averaged_s
        Over what time, if not over an iteration [s].
    notes
        What was assumed.
    gpus_per_rank
        GPUs that share the choices of a rank: tensor-parallel ranks and replicas.
    kernels
        What the options run, where they are forecast: how sure plans are; ``None`` where they were measured.
    site
        Power limits of the site, which plans must keep; ``None`` for none.
    """

    dag: InstructionDag
    sets: tuple[OptionSet, ...]
    kind: Int
    wait_power_w: Array
    power_limit_w: Array | None = None
    averaged_s: float | None = None
    notes: tuple[str, ...] = ()
    gpus_per_rank: int = 1
    kernels: OptionKernels | None = None
    site: SiteLimits | None = None

    @property
    def total_wait_power_w(self) -> float:
        """Power while all ranks wait [W]."""
        return float(self.wait_power_w.sum())

    def option(self, instruction: int, choice: int) -> Option:
        """The option that a choice means for an instruction."""
        return self.sets[int(self.kind[instruction])].options[choice]

    @cached_property
    def graph(self) -> Graph:
        """Graph and options as the inner loops read them: instructions in an order that respects dependencies."""
        from joulecast.plan.exact.rounding_kernels import Graph

        dag, n = self.dag, self.dag.instructions
        place = np.empty(n, dtype=np.int64)
        place[dag.order] = np.arange(n)
        source, target = place[dag.source], place[dag.target]
        offset = np.cumsum([0, *(len(s.options) for s in self.sets)])
        kind = self.kind[dag.order]
        time = np.concatenate([s.time_s for s in self.sets])
        corner, near = np.zeros(len(time), dtype=np.int64), np.zeros(len(time), dtype=np.int64)
        for first, options in zip(offset[:-1], self.sets, strict=True):
            # The fastest option is none where another one takes as many quanta, but all begin with it.
            corner[first] = near[first] = first
            corner[first + options.hull] = first + options.hull
            beside = first + options.near_hull(NEAR_HULL)
            near[beside] = beside
        return Graph(
            *_neighbours(n, target, source, dag.latency_s),
            *_neighbours(n, source, target, dag.latency_s),
            offset[:-1][kind],
            (offset[:-1] + [s.worth - 1 for s in self.sets])[kind],
            time,
            np.concatenate([s.quanta for s in self.sets]) * TIME_QUANTUM_S,
            np.concatenate([s.cost_j for s in self.sets]),
            np.maximum.accumulate(corner),
            np.maximum.accumulate(near),
        )

    @cached_property
    def rounding_s(self) -> float:
        """What an iteration takes longer at most where times of options and latencies are rounded up to quanta [s]."""
        from joulecast.plan.exact.rounding_kernels import length

        g = self.graph
        latency: Array = quanta(g.before_s) * np.float64(TIME_QUANTUM_S)
        added = g._replace(before_s=np.maximum(latency - g.before_s, 0.0))
        most = [np.full(len(s.options), max((s.quanta * TIME_QUANTUM_S - s.time_s).max(), 0.0)) for s in self.sets]
        return float(length(added, np.concatenate(most), g.fastest, np.zeros(self.dag.instructions)))

    def evaluate(self, choice: Choice) -> tuple[float, float]:
        """Iteration time and energy of a plan, with the options' own times and energies.

        ``energy = Σ instruction energies + Σ over ranks of P_wait · (time - Σ instruction times)``

        Parameters
        ----------
        choice
            Index of an option of every instruction, shape ``(n,)``.

        Returns
        -------
        time_s, energy_j
            [s], [J]
        """
        time = self.time_s(choice)
        return time, float(self.rank_energies_j(choice, time).sum())

    def time_s(self, choice: Choice) -> float:
        """Iteration time of a plan: the longest chain of instructions and latencies [s]."""
        times = [self.option(v, c).time_s for v, c in enumerate(choice.tolist())]
        latency: list[float] = self.dag.latency_s.tolist()
        starts = self.dag.starts(times, latency)
        return max(start + time for start, time in zip(starts, times, strict=True))

    def rank_energies_j(self, choice: Choice, time_s: float) -> Array:
        """Energy of every rank's GPUs in an iteration of this plan that lasts ``time_s``, shape ``(ranks,)`` [J]."""
        chosen = [self.option(v, c) for v, c in enumerate(choice.tolist())]
        ranks = len(self.dag.ranks)
        energy = np.bincount(self.dag.rank_of, [o.energy_j for o in chosen], ranks)
        busy = np.bincount(self.dag.rank_of, [o.time_s for o in chosen], ranks)
        return np.asarray(energy + self.wait_power_w * (time_s - busy))


def make_problem(
    dag: InstructionDag,
    options: Sequence[Sequence[Option]],
    kind: Sequence[int],
    wait_power_w: Array | float,
    *,
    names: Sequence[str] | None = None,
    power_limit_w: Array | None = None,
    averaged_s: float | None = None,
    notes: Sequence[str] = (),
    gpus_per_rank: int = 1,
    kernels: OptionKernels | None = None,
    site: SiteLimits | None = None,
) -> FrontProblem:
    """Checked problem; options of one kind must all belong to one rank, or all ranks wait at the same power.

    Parameters
    ----------
    options
        All options of each kind.
    kind
        Index into ``options`` of every instruction in the graph's flat order.
    wait_power_w
        Of all GPUs of a rank: one number, or one for each rank [W].
    names
        Of the kinds, for errors.
    kernels
        What forecast options run.
    site
        Power limits of the site.

    Raises
    ------
    InputError
        A waiting power is negative, or a kind has no usable option.
    """
    wait = np.broadcast_to(np.asarray(wait_power_w, dtype=np.float64), (len(dag.ranks),)).copy()
    if not np.isfinite(wait).all() or (wait < 0).any():
        raise InputError(f"a waiting power of {wait.min():g} W", key="--wait-power", remedy="Use watts, 0 or more.")
    kinds = np.asarray(kind, dtype=np.int64)
    labels = list(names) if names is not None else [f"kind {i}" for i in range(len(options))]
    sets = []
    for i, ways in enumerate(options):
        ranks = np.unique(dag.rank_of[kinds == i])
        if len(np.unique(wait[ranks])) > 1:
            raise InputError(f"{labels[i]} runs on ranks of different waiting power", remedy="Give each its own kind.")
        sets.append(make_options(ways, float(wait[ranks[0]]) if len(ranks) else 0.0, labels[i]))
    return FrontProblem(
        dag, tuple(sets), kinds, wait, power_limit_w, averaged_s, tuple(notes), gpus_per_rank, kernels, site
    )


def _neighbours(n: int, of: Int, neighbour: Int, latency_s: Array) -> tuple[Int, Int, Array]:
    """Neighbours of all instructions in a row: where each one's begin, shape ``(n + 1,)``, which, at what latency."""
    by = np.argsort(of, kind="stable")
    return np.searchsorted(of[by], np.arange(n + 1)), neighbour[by], latency_s[by]
