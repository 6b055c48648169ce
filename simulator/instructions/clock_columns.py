"""The clock at which an instruction runs when the governor sets one.

Two things can hold an instruction below the governor's clock: a clock that the plan sets for it, and the board's
instant limit on power. A column is an index into the grid of clocks. :func:`clock_columns` says which column an
instruction runs at for each that the governor may set, and :func:`at_columns` rearranges its table accordingly, once,
so that the simulation and every ledger read the same numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.simulator.instructions.program import PlanProgram
from joulecast.simulator.instructions.tables import InstructionTable
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    GENERATION,
    OPTIMIZER,
    SCORING,
    SPLITS_BACKWARD,
)

#: Name under ``power.clock_mhz`` of each kind of instruction.
PLAN_NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    BACKWARD_INPUT: "backward",
    BACKWARD_WEIGHT: "weight_gradient",
    OPTIMIZER: "optimizer",
    GENERATION: "forward",
    SCORING: "forward",
}


def locked_index(program: PlanProgram, rank: int, clocks_mhz: Array) -> Int:
    """Clock index that the plan sets for each type of instruction of a rank; the highest one where it sets none.

    A forward and a backward in one keep to the lower of theirs.
    """
    order = program.ranks[rank].order
    found = np.full(len(program.ranks[rank].types), len(clocks_mhz) - 1)
    if not program.plan.power.clocks_mhz:
        return found
    for kind, instruction in zip(order, program.schedule.ranks[rank], strict=True):
        for part in instruction.parts:
            clock = program.plan.power.clock_mhz(rank, PLAN_NAMES[part.kind])
            if clock is not None:
                found[kind] = min(found[kind], int(np.abs(clocks_mhz - clock).argmin()))
    return found


def is_locked(plan: Plan) -> bool:
    """Whether the plan sets a clock for every kind of instruction that it runs."""
    names = {"forward", "backward", "optimizer"}
    if plan.schedule.name in SPLITS_BACKWARD:
        names.add("weight_gradient")
    return all(plan.power.clock_mhz(0, name) is not None for name in names)


def clock_columns(table: InstructionTable, locked: Int, peak_w: float) -> Int:
    """Clock index at which each type runs at each clock index of the governor, shape ``(types, clocks)``.

    Parameters
    ----------
    locked
        From :func:`locked_index`.
    peak_w
        The board's instant limit [W]; a type that exceeds it at every clock runs at the lowest.
    """
    over = table.energy_j > peak_w * table.duration_s
    clocks = over.shape[1]
    allowed = np.where(over.any(axis=1), over.argmax(axis=1) - 1, clocks - 1)
    highest = np.maximum(np.minimum(allowed, locked), 0)
    return np.asarray(np.minimum(np.arange(clocks), highest[:, None]))


def at_columns(table: InstructionTable, columns: Int) -> InstructionTable:
    """The table with every type's columns rearranged."""
    rows = np.arange(len(columns))[:, None]
    return replace(
        table,
        duration_s=table.duration_s[rows, columns],
        energy_j=table.energy_j[rows, columns],
        components_j=table.components_j[rows, columns],
        communication_s=table.communication_s[rows, columns],
        beside_j=None if table.beside_j is None else table.beside_j[rows, columns],
    )


def in_columns(executed: Array, columns: Int) -> Array:
    """Executions counted by the governor's clock, counted by the clock they ran at; both ``(types, clocks)``."""
    real = np.zeros_like(executed)
    np.add.at(real, (np.arange(len(columns))[:, None], columns), executed)
    return real


def mean_power_w(table: InstructionTable) -> Array:
    """Mean power of each type at each clock, 0 for a type without kernels, shape ``(types, clocks)`` [W]."""
    return np.asarray(
        np.divide(table.energy_j, table.duration_s, out=np.zeros_like(table.energy_j), where=table.duration_s > 0)
    )
