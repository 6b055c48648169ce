"""Time and energy of every type of instruction at every clock, from its launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective, Operator
from joulecast.model.power.component_power import limited_kernels
from joulecast.model.power.contention import Alone, alone
from joulecast.model.power.kernel_power import (
    COMPONENTS,
    KernelTimes,
    at_clock,
    clock_tree_power_w,
    idle_power_w,
    wait_power_w,
)
from joulecast.model.power.limits import hold_at_peak
from joulecast.simulator.instructions.host import gaps_with_tower, host_gaps, of_towers
from joulecast.simulator.instructions.overlap import drag_beside, follow, is_overlapped
from joulecast.simulator.instructions.overlap_steady import contended_stacks

#: Where components that a resting or waiting GPU draws stand among :data:`COMPONENTS`.
STATIC, CLOCK, SM = (COMPONENTS.index(name) for name in ("static", "clock", "sm"))


@dataclass(frozen=True, eq=False)
class Kernels:
    """Distinct kernels of a program and their behaviour on a grid of ``c`` clocks.

    ``held_mhz`` is the clock at which each really runs where parts of the GPU are limited, shape ``(c, kernels)``.
    """

    operators: tuple[Operator, ...]
    costs: Costs
    clocks_mhz: Array
    times: KernelTimes
    held_mhz: Array | None = None

    @cached_property
    def row(self) -> dict[Operator, int]:
        """Place of each operator among them."""
        return {operator: i for i, operator in enumerate(self.operators)}

    @property
    def communication_s(self) -> Array:
        """Times of the collectives, 0 of all others, shape ``(c, kernels)`` [s]."""
        collective = [isinstance(operator, Collective) for operator in self.operators]
        return np.where(np.array(collective, dtype=bool), self.times.time_s, 0.0)

    def component_j(self, name: str) -> Array:
        """Energy that a component takes of every kernel, shape ``(c, kernels)`` [J]."""
        return np.broadcast_to(self.times.components_j[name], self.times.time_s.shape)

    def at(self, columns: Int) -> Kernels:
        """The same kernels at some of the grid's clocks, which ``columns`` names in any order and number.

        What a limit makes of a kernel at one clock rests on its times at those below, down to the GPU's lowest. A few
        clocks are therefore taken from a table of all: alone they would make another grid, and give other times.
        """
        parts = {name: self.component_j(name)[columns] for name in self.times.components_j}
        times = KernelTimes(self.times.time_s[columns], self.times.energy_j[columns], parts)
        held = None if self.held_mhz is None else self.held_mhz[columns]
        return replace(self, clocks_mhz=self.clocks_mhz[columns], times=times, held_mhz=held)

    def alone(self, rows: Sequence[int], unit_s: float = 1.0) -> Alone:
        """Kernels ``rows`` without any other beside them, at every clock."""
        index = np.array(rows, dtype=np.int64)
        return alone(self.costs, index, self.times.time_s[:, index].T / unit_s, self.clocks_mhz, unit_s)


@dataclass(frozen=True, eq=False)
class InstructionTable:
    """Types of instructions of one rank on a grid of clocks.

    Attributes
    ----------
    duration_s, energy_j
        Shape ``(types, clocks)`` [s], [J].
    components_j
        Energy by component, shape ``(types, clocks, components)``, in the order of :data:`COMPONENTS` [J].
    communication_s
        Three times: communication beside compute; no compute, but communication or waiting for the group; and of the
        second the waiting alone. Shape ``(types, clocks, 3)`` [s].
    counts
        How often each distinct kernel runs in each type, shape ``(types, kernels)``.
    beside_j
        The part of the energy that communication beside whole instructions draws, by component as above; ``None`` where
        there is none [J].
    """

    duration_s: Array
    energy_j: Array
    components_j: Array
    communication_s: Array
    counts: Array
    beside_j: Array | None = None

    @property
    def exposed_s(self) -> Array:
        """Communication, and waiting for the group, without compute beside it; shape ``(types, clocks)`` [s]."""
        return np.asarray(self.communication_s[..., 1])


def kernels_of(
    programs: Sequence[Sequence[Sequence[Launch]]],
    clocks_mhz: Array,
    gpu: GpuModel,
    peak_w: float | None = None,
    others: Sequence[Operator] = (),
    component_limits_w: Mapping[str, float] | None = None,
) -> Kernels:
    """Every distinct operator of all ranks' types, lowered and evaluated at every clock in one call.

    ``peak_w`` is the board's instant limit, ``None`` without one; ``others`` are operators beside the programs;
    ``component_limits_w`` limits parts of the GPU, see :mod:`joulecast.model.power.component_power`.
    """
    operators = distinct_operators(programs, others)
    return kernels_at(operators, lower(operators, gpu), clocks_mhz, gpu, peak_w, component_limits_w)


def distinct_operators(
    programs: Sequence[Sequence[Sequence[Launch]]], others: Sequence[Operator] = ()
) -> tuple[Operator, ...]:
    """Every distinct operator of all ranks' types, and of others beside them, in the order in which they come."""
    launched = (launch.operator for rank in programs for launches in rank for launch in launches)
    return tuple(dict.fromkeys((*launched, *others)))


def kernels_at(
    operators: tuple[Operator, ...],
    costs: Costs,
    clocks_mhz: Array,
    gpu: GpuModel,
    peak_w: float | None,
    component_limits_w: Mapping[str, float] | None = None,
) -> Kernels:
    """Lowered operators at every clock, under limits as :func:`kernels_of` has them."""
    found = Kernels(operators, costs, clocks_mhz, at_clock(costs, clocks_mhz[:, None], gpu))
    return under_limits(found, gpu, peak_w, component_limits_w)


def under_limits(
    kernels: Kernels, gpu: GpuModel, peak_w: float | None, component_limits_w: Mapping[str, float] | None
) -> Kernels:
    """The same kernels under a board's instant limit, and under limits of its parts [W]."""
    if peak_w is not None:
        kernels = replace(kernels, times=hold_at_peak(kernels.times, kernels.clocks_mhz, peak_w, gpu))
    if component_limits_w:
        times, held = limited_kernels(kernels.times, kernels.clocks_mhz, component_limits_w, gpu)
        kernels = replace(kernels, times=times, held_mhz=held)
    return kernels


def instruction_table(
    types: Sequence[Sequence[Launch]],
    kernels: Kernels,
    gpu: GpuModel,
    lag: Array | None = None,
    beside_transfers: bool = False,
    taken_s: dict[tuple[Launch, ...], Array] | None = None,
    host_s: Array | None = None,
    tower_host_s: Array | None = None,
) -> InstructionTable:
    """Durations and energies of one rank's types of instructions.

    Compute and synchronous communication follow each other; for communication beside compute see
    :mod:`joulecast.simulator.instructions.overlap`. The idle power under kernels that run at the same time is counted
    once.

    Parameters
    ----------
    types
        Launches of each type of instruction.
    kernels
        The kernels that they launch, at every clock.
    lag
        How far the slowest GPU of the rank's group lies below the group's mean clock, from
        :func:`joulecast.model.power.limits.group_lag`, shape ``(clocks,)``; the others wait meanwhile. ``None`` for
        clocks that never move [1].
    beside_transfers
        Whether kernels of pipeline transfers wait on the SMs while the rank computes.
    taken_s
        Keeps how long overlapping launches take, for other ranks that run the same ones [s].
    host_s
        Time of the host for each type's launches, shape ``(types,)``: no instruction is shorter, and one that is not
        much longer waits where its kernels are short [s].
    tower_host_s
        What of that is a vision tower's; ``None``: nothing [s].
    """
    counts = kernel_counts(types, kernels)
    serial, exposed = counts @ kernels.times.time_s.T, counts @ kernels.communication_s.T
    duration, exposed, beside = beside_each_other(types, serial, exposed, kernels, gpu, beside_transfers, taken_s)
    parts = np.stack([counts @ kernels.component_j(name).T for name in COMPONENTS], -1)
    add_idling(parts, duration - serial, kernels, gpu)  # negative where kernels overlap
    waiting = np.zeros_like(duration)
    if lag is not None:
        waiting = at_pace(duration - exposed, kernels.clocks_mhz, lag) - (duration - exposed)
        duration, exposed = duration + waiting, exposed + waiting
        add_idling(parts, waiting, kernels, gpu, waiting)
    if host_s is not None and host_s.any():
        gaps = _host_gaps(types, kernels, duration, host_s, tower_host_s)
        duration = duration + gaps
        add_idling(parts, gaps, kernels, gpu)
    return InstructionTable(duration, parts.sum(-1), parts, np.stack([beside, exposed, waiting], -1), counts)


def add_idling(parts_j: Array, time_s: Array, kernels: Kernels, gpu: GpuModel, polling_s: Array | float = 0.0) -> None:
    """Add what an idle board draws for a time, by component in place, and its SMs while they poll [J]."""
    idle, clock = idle_power_w(kernels.clocks_mhz, gpu), clock_tree_power_w(kernels.clocks_mhz, gpu)
    parts_j[..., STATIC] += time_s * (idle - clock)
    parts_j[..., CLOCK] += time_s * clock
    parts_j[..., SM] += polling_s * (wait_power_w(kernels.clocks_mhz, gpu) - idle)


def _host_gaps(
    types: Sequence[Sequence[Launch]], kernels: Kernels, duration_s: Array, host_s: Array, tower_host_s: Array | None
) -> Array:
    if tower_host_s is None or not tower_host_s.any():
        return host_gaps(duration_s, host_s[:, None])
    tower_s = kernel_counts(of_towers(types), kernels) @ kernels.times.time_s.T
    return gaps_with_tower(duration_s, host_s[:, None], tower_s, tower_host_s[:, None])


def kernel_counts(types: Sequence[Sequence[Launch]], kernels: Kernels) -> Array:
    """How often each distinct kernel runs in each type of instruction, shape ``(types, kernels)``."""
    counts = np.zeros((len(types), len(kernels.operators)))
    for row, launches in enumerate(types):
        for launch in launches:
            counts[row, kernels.row[launch.operator]] += launch.repeat
    return counts


def beside_each_other(
    types: Sequence[Sequence[Launch]],
    serial_s: Array,
    communication_s: Array,
    kernels: Kernels,
    gpu: GpuModel,
    beside_transfers: bool,
    taken_s: dict[tuple[Launch, ...], Array] | None = None,
) -> tuple[Array, Array, Array]:
    """Duration, exposed communication and communication beside compute, each of shape ``(types, clocks)`` [s].

    Parameters
    ----------
    types, kernels, beside_transfers, taken_s
        As :func:`instruction_table` has them.
    serial_s, communication_s
        All of a type's kernels one after the other, and its communication alone, shape ``(types, clocks)`` [s].
    """
    duration, exposed, beside = serial_s.copy(), communication_s.copy(), np.zeros_like(serial_s)
    found = {row: tuple(launches) for row, launches in enumerate(types) if is_overlapped(launches)}
    known = {} if taken_s is None else taken_s
    fresh = [launches for launches in dict.fromkeys(found.values()) if launches not in known]
    alone_ = [kernels.alone([kernels.row[launch.operator] for launch in launches]) for launches in fresh]
    known.update(zip(fresh, contended_stacks(fresh, alone_, gpu), strict=True))
    for row, launches in found.items():
        taken = known[launches]
        duration[row], exposed[row] = follow(launches, taken)
        communicates = np.array([launch.repeat if launch.stream == "communication" else 0 for launch in launches])
        beside[row] = np.maximum(communicates @ taken - exposed[row], 0.0)
    if beside_transfers:
        duration = duration + (duration - exposed) * drag_beside(gpu["collective.transfer_ctas"], gpu)
    return duration, exposed, beside


def at_pace(compute_s: Array, clocks_mhz: Array, lag: Array) -> Array:
    """Compute time of the slowest of a group at each mean clock, shape ``(types, clocks)`` [s].

    Parameters
    ----------
    compute_s
        At each clock of the grid, shape ``(types, clocks)`` [s].
    clocks_mhz
        The grid, shape ``(clocks,)`` [MHz].
    lag
        How far the slowest lies below each mean clock, shape ``(clocks,)`` or of each type ``(types, clocks)`` [1].
    """
    slow = clocks_mhz * (1.0 - lag)
    upper = np.minimum(np.maximum(np.searchsorted(clocks_mhz, slow), 1), len(clocks_mhz) - 1)
    share = (slow - clocks_mhz[upper - 1]) / (clocks_mhz[upper] - clocks_mhz[upper - 1])
    rows = np.arange(len(compute_s))[:, None]
    below = compute_s[rows, upper - 1]
    pace = below + share * (compute_s[rows, upper] - below)
    return np.asarray(np.maximum(pace, compute_s))
