"""A job in a pipeline, the clocks that plans request for its instructions, and what was measured under them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from joulecast.arrays import Array
from joulecast.errors import InputError
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.simulator.closed_form.evaluator import NO_CLOCK_NS, TABLE_CLOCKS, Clocks, Evaluator, make_evaluator
from joulecast.simulator.schedules import BACKWARD, FORWARD, Instruction, Schedule

#: Directions in the order of every axis of length 2.
DIRECTIONS = (FORWARD, BACKWARD)
#: Most plans of one job that a fit may read.
FITTED_PLANS = 5


@dataclass(frozen=True)
class PipelineJob:
    """One job and the clocks that its plans request.

    Attributes
    ----------
    name
        For messages.
    gpu
        The GPU model: all that is known of the card before any reading.
    wait_power_w
        Power of one GPU that waits for another stage, before any reading [W].
    gpus_per_stage
        GPUs that execute a stage together, or in data-parallel replicas.
    schedule
        Order of execution; ``s`` stages.
    clocks_mhz
        The ``c`` different requested clocks, lowest first [MHz].
    clock_index
        Position in ``clocks_mhz`` for every instruction of every plan, shape ``(instructions, n)``.
    """

    name: str
    gpu: GpuModel
    wait_power_w: float
    gpus_per_stage: int
    schedule: Schedule
    clocks_mhz: Array
    clock_index: Clocks

    @property
    def plans(self) -> int:
        """Number of plans, ``n``."""
        return int(self.clock_index.shape[1])

    @cached_property
    def share(self) -> Array:
        """Share of a stage's instructions of one direction at each clock, shape ``(n, s, 2, c)``."""
        stages, clocks = self.schedule.pipeline_size, len(self.clocks_mhz)
        row = np.array([t for types in self.types for t in types])
        counts = np.zeros((self.plans, 2 * stages, clocks))
        for plan, indices in enumerate(self.clock_index.T):
            np.add.at(counts[plan], (row, indices), 1.0)
        return counts.reshape(self.plans, stages, 2, clocks) / self.schedule.microbatches

    @cached_property
    def types(self) -> list[list[int]]:
        """Per stage and instruction, the row of a table of shape ``(2 s, c)``: stage by stage, forward first."""
        return [
            [2 * stage + DIRECTIONS.index(instruction.kind) for instruction in order]
            for stage, order in enumerate(self.schedule.ranks)
        ]

    def simulate(self, time_s: Array) -> Array:
        """Time of the pipeline under every plan, shape ``(v, n)`` [s].

        Parameters
        ----------
        time_s
            ``v`` variants of the time of an instruction by stage, direction and clock, shape ``(v, s, 2, c)`` [s].
        """
        clocks = len(self.clocks_mhz)
        together = TABLE_CLOCKS // clocks
        found = []
        for first in range(0, len(time_s), together):
            part = np.rint(time_s[first : first + together] * 1e9).astype(np.int64)
            table = np.full(self._evaluator.duration_ns.shape, NO_CLOCK_NS)
            rows = part.reshape(len(part), -1, clocks).transpose(1, 0, 2)
            table[:, : len(part) * clocks] = rows.reshape(len(table), -1)
            shift = (clocks * np.arange(len(part), dtype=np.uint8))[:, None]
            index = (self.clock_index[:, None, :] + shift).reshape(len(self.clock_index), -1)
            time_ns, _ = replace(self._evaluator, duration_ns=table).evaluate(index)
            found.append(time_ns.reshape(len(part), self.plans) * 1e-9)
        return np.concatenate(found)

    @cached_property
    def _evaluator(self) -> Evaluator:
        """Evaluator of the schedule, whose table has a row for each stage and direction."""
        table = np.zeros((2 * self.schedule.pipeline_size, 1), dtype=np.int64)
        return make_evaluator(self.schedule, self.types, table, np.zeros(table.shape), 0.0)

    def mean_clock_mhz(self) -> Array:
        """Mean requested clock of all instructions of each plan, shape ``(n,)`` [MHz]."""
        return np.asarray(self.clocks_mhz[self.clock_index].mean(axis=0))


@dataclass(frozen=True)
class PlanReadings:
    """What was measured under the ``n`` plans of a job; NaN where nothing was.

    Attributes
    ----------
    iteration_time_s
        Of the slowest GPU, shape ``(n,)`` [s].
    energy_j
        Of all GPUs over one iteration, shape ``(n,)`` [J].
    stage_energy_j
        Of all GPUs of each stage, shape ``(n, s)`` [J].
    instruction_time_s
        Mean over a plan's instructions of one stage and direction, whatever their clocks, shape ``(n, s, 2)`` [s].
    """

    iteration_time_s: Array
    energy_j: Array
    stage_energy_j: Array
    instruction_time_s: Array


def make_job(
    name: str,
    gpu: GpuModel,
    wait_power_w: float,
    gpus_per_stage: int,
    orders: Sequence[str],
    clocks_mhz: Sequence[Sequence[Sequence[float]]],
) -> PipelineJob:
    """Checked job.

    Parameters
    ----------
    orders
        Per stage its instructions in order of execution, ``F`` forward and ``B`` backward, for instance ``"FFBFBB"``.
    clocks_mhz
        Per plan, stage and instruction the requested clock; 0 leaves the clock as it is [MHz].

    Raises
    ------
    InputError
        A stage without as many forwards as backwards, other numbers of clocks than of instructions, clocks that are
        not positive, or more than 256 different ones.
    """
    microbatches = _microbatches(name, orders)
    rows = [[c for stage in plan for c in _held(stage, gpu.max_clock_mhz)] for plan in clocks_mhz]
    if any([len(stage) for stage in plan] != [len(order) for order in orders] for plan in clocks_mhz):
        raise InputError(f"a plan of {name} has not one clock for every instruction")
    table = np.array(rows, dtype=np.float64)
    if not np.isfinite(table).all() or (table <= 0).any():
        raise InputError(f"a plan of {name} requests a clock that is not positive")
    used, index = np.unique(table, return_inverse=True)
    if len(used) > TABLE_CLOCKS:
        raise InputError(
            f"the plans of {name} request {len(used)} different clocks; at most {TABLE_CLOCKS} are possible"
        )
    ranks = tuple(_instructions(order) for order in orders)
    schedule = Schedule("recorded", len(orders), microbatches, 1, ranks)
    indices = np.ascontiguousarray(index.reshape(table.shape).T.astype(np.uint8))
    return PipelineJob(name, gpu, wait_power_w, gpus_per_stage, schedule, used, indices)


def _microbatches(name: str, orders: Sequence[str]) -> int:
    """Micro-batches of a job, which each of its stages runs forward and backward."""
    microbatches = orders[0].count("F") if orders else 0
    for stage, order in enumerate(orders):
        if sorted(order) != sorted("FB" * microbatches):
            raise InputError(f"stage {stage} of {name} does not run {microbatches} forwards and backwards")
    if not microbatches:
        raise InputError(f"{name} has no instructions")
    return microbatches


def _held(clocks: Sequence[float], start: float) -> list[float]:
    """Requested clocks where 0 keeps the one before."""
    held: list[float] = []
    for clock in clocks:
        held.append(float(clock) if clock else (held[-1] if held else start))
    return held


def _instructions(order: str) -> tuple[Instruction, ...]:
    """Instructions of one stage; of each direction the micro-batches come in order."""
    done = {"F": 0, "B": 0}
    instructions = []
    for letter in order:
        instructions.append(Instruction(FORWARD if letter == "F" else BACKWARD, done[letter]))
        done[letter] += 1
    return tuple(instructions)


def choose_plans(job: PipelineJob, among: Sequence[int]) -> list[int]:
    """Plans to fit on, chosen by their requested clocks alone.

    The plans ``among`` in order of their mean requested clock, highest first (of equals the first one); of these the
    first, the last and those evenly spaced between.

    >>> [round(place) for place in np.linspace(0, 29, 5)]
    [0, 7, 14, 22, 29]
    """
    clock = job.mean_clock_mhz()
    order = sorted(among, key=lambda plan: (-clock[plan], plan))
    places = np.rint(np.linspace(0, len(order) - 1, min(FITTED_PLANS, len(order)))).astype(int)
    return sorted(order[place] for place in places)
