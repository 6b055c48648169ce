"""Conservation laws of forecasts in closed form, held in every call; a breach is a defect and comes with its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Bool
from joulecast.errors import GuardError
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.kernel_power import idle_power_w
from joulecast.simulator.closed_form.clocks import Board, Settled
from joulecast.simulator.closed_form.layout import Layout
from joulecast.simulator.plan_file.plan import Plan

if TYPE_CHECKING:
    from joulecast.simulator.closed_form.forecast import ClosedForm


#: Relative tolerance of what must be equal.
TOLERANCE = 1e-9


def check_ranks(
    plans: Sequence[Plan],
    layout: Layout,
    board: Board,
    settled: Settled,
    busy_s: Array,
    worked_j: Array,
    time_s: Array,
    gpu: GpuModel,
) -> None:
    """Hold every kind of rank against the laws that a simulation keeps.

    Parameters
    ----------
    busy_s, worked_j
        Time and energy of each rank row's instructions, added up over its stages, shape ``(r,)`` [s], [J].
    time_s
        Of each plan's iteration, shape ``(n,)`` [s].

    Raises
    ------
    GuardError
        A rank is busy for longer than the iteration lasts, its time or its energy does not add up, or its mean power is
        below that of an idle GPU or above the board's instant limit.
    """
    time = time_s[layout.plan_of_rank]
    slack = TOLERANCE * time
    lowest, power = board.clocks_mhz[0], settled.energy_j / time
    most = layout.limit_w * gpu["governor.peak_share"]
    slowed = settled.clock_mhz > lowest  # at the lowest clock nothing can be done about more power
    laws: tuple[tuple[str, Bool, Array], ...] = (
        ("its power is no number", ~np.isfinite(power), power),
        ("busy for longer than the iteration lasts", busy_s > time + slack, busy_s),
        ("work and waits do not add up to the iteration", np.abs(busy_s + settled.wait_s - time) > slack, busy_s),
        (
            "energy of work and waits does not add up",
            np.abs(worked_j + settled.wait_j - settled.energy_j) > TOLERANCE * settled.energy_j,
            worked_j,
        ),
        ("draws less than an idle GPU", power < idle_power_w(lowest, gpu) * (1.0 - TOLERANCE), power),
        ("draws more than the board allows", slowed & (power > most * (1.0 + TOLERANCE)), power),
    )
    for law, broken, value in laws:
        if broken.any():
            row = int(broken.argmax())
            raise GuardError(
                f"closed form, stage {int(layout.first_rank[row])}: {law} ({value[row]:.6g}, in {time[row]:.6g} s)",
                plans[int(layout.plan_of_rank[row])],
            )


def check_summary(plans: Sequence[Plan], made: ClosedForm) -> None:
    """Hold whole forecasts against what every forecast keeps.

    Raises
    ------
    GuardError
        Time or energy is not above zero, or shares of the time are not shares.
    """
    shares = made.waiting_share, made.communication_share
    sound = (made.time_s > 0) & (made.energy_j > 0) & np.isfinite(made.time_s) & np.isfinite(made.energy_j)
    for share in shares:
        sound &= (share >= -TOLERANCE) & (share <= 1.0 + TOLERANCE)
    sound &= sum(shares) <= 1.0 + TOLERANCE
    if not sound.all():
        row = int(np.argmin(sound))
        found = {name: float(getattr(made, name)[row]) for name in ("time_s", "energy_j")}
        found |= {"waiting_share": float(shares[0][row]), "communication_share": float(shares[1][row])}
        raise GuardError(f"closed form: {found} cannot be", plans[row])
