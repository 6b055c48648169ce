"""What a row makes a simulated card do over time: kernels, pauses, and products beside them that set the clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from joulecast.calibrate.devices.simulated_board import SAME_TIME_S, Board
from joulecast.calibrate.devices.simulated_work import SimulatedWork
from joulecast.calibrate.rows.operators import operator_of
from joulecast.errors import InputError, MeasurementError
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Gemm

#: Size of the square products beside a kernel, how often they run in a row, and how long the kernel then runs.
COMPANION_SIZE, COMPANION_COUNT, GROUP_S = 8192, 12, 4e-3
#: Input values of the products beside a kernel.
COMPANIONS = ("randn", "zeros")


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time in a load.

    Attributes
    ----------
    work
        What runs; idle work for a pause.
    repetitions, duration_s
        When it ends: after so many repetitions, or so long.
    pause_ratio
        A pause as long as the phase before it, times this.
    counted
        Whether its repetitions are those of the benchmark.
    """

    work: SimulatedWork
    repetitions: float = float("inf")
    duration_s: float = float("inf")
    pause_ratio: float | None = None
    counted: bool = True


def phases_of(row: Mapping[str, Any], board: Board) -> list[Phase]:
    """Phases that a row repeats.

    Raises
    ------
    MeasurementError
        The row cannot run on this card; the message says why.
    """
    gpu = board.gpu
    work = operator_of(row)
    if work.reason:
        raise MeasurementError(work.reason, key=str(row.get("name") or row.get("op") or ""))
    try:
        main = SimulatedWork(work.operators, work.counts, gpu)
    except InputError as error:
        raise MeasurementError(error.message, key=str(row.get("name") or row["op"]), remedy=error.remedy) from error
    companion = str(row.get("companion") or "none")
    if row["op"] == "pulse":
        return [
            Phase(main, duration_s=float(row["busy_s"])),
            Phase(board.idle, duration_s=float(row["idle_s"]), counted=False),
        ]
    if companion != "none":
        return [_companion(companion, str(row.get("dtype")), gpu), Phase(main, repetitions=_group(main, board))]
    if main.is_idle or work.busy_share == 1.0:
        return [Phase(main)]
    pause = Phase(board.idle, pause_ratio=1.0 / work.busy_share - 1.0, counted=False)
    return [Phase(main, repetitions=1.0), pause]


def _companion(word: str, dtype: str, gpu: GpuModel) -> Phase:
    if word not in COMPANIONS:
        raise MeasurementError(
            f"unknown companion {word!r}", key="companion", remedy=f"Known: {', '.join(COMPANIONS)}."
        )
    half = dtype if dtype == "fp16" else "bf16"
    product = Gemm(COMPANION_SIZE, COMPANION_SIZE, COMPANION_SIZE, half, data=word)
    return Phase(SimulatedWork((product,), (1.0,), gpu), repetitions=COMPANION_COUNT, counted=False)


def _group(work: SimulatedWork, board: Board) -> float:
    return float(max(1, round(GROUP_S / work.table(board.limit_w).time_s[-1])))


class Player:
    """Runs phases in turn, again and again, and counts what belongs to the benchmark.

    Attributes
    ----------
    repetitions, busy_s
        Of the counted phases so far.
    """

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._phases: Iterator[Phase] = cycle(phases)
        self._begin_next(0.0)
        self.repetitions = self.busy_s = 0.0

    def play(self, board: Board, until_s: float) -> None:
        """Advance the board to a time."""
        while board.state.time_s < until_s - SAME_TIME_S:
            start = board.state.time_s
            done = board.run(self._phase.work, min(until_s, start + self._left_s), self._left)
            spent = board.state.time_s - start
            self._left -= done
            self._left_s -= spent
            self._spent_s += spent
            if self._phase.counted:
                self.repetitions += done
                self.busy_s += spent
            if self._left <= 1e-9 or self._left_s <= SAME_TIME_S:
                self._begin_next(self._spent_s)

    def _begin_next(self, before_s: float) -> None:
        """Begin the next phase, after one that took so long."""
        self._phase = next(self._phases)
        self._left, self._left_s, self._spent_s = self._phase.repetitions, self._phase.duration_s, 0.0
        if self._phase.pause_ratio is not None:
            self._left_s = max(self._phase.pause_ratio * before_s, 2.0 * SAME_TIME_S)
