"""Runs microbenchmarks on a simulated card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_loads import Player, phases_of
from joulecast.calibrate.microbenchmarks.protocol import Load, Microbenchmark
from joulecast.model.power.governor import TENSOR_CLOCK_SHARE


class SimulatedRunner:
    """Prepares microbenchmarks on a simulated card.

    Parameters
    ----------
    card
        Where they run.
    """

    def __init__(self, card: SimulatedCard) -> None:
        self.card = card

    def missing(self, benchmark: Microbenchmark) -> tuple[str, ...]:
        """Nothing that a microbenchmark needs."""
        return ()

    def prepare(self, benchmark: Microbenchmark) -> Load:
        """Prepare a load.

        Raises
        ------
        MeasurementError
            The row is none that a card can run.
        """
        phases = phases_of(benchmark.row, self.card.board)
        if len(phases) > 1 or phases[0].work.is_idle or "companion" in benchmark.row:
            return SimulatedLoad(self.card, benchmark.row)
        on_tensor_cores = phases[0].work.table(self.card.board.limit_w).tensor_use > 0.0
        return SimulatedLoad(self.card, benchmark.row, counted_share=TENSOR_CLOCK_SHARE if on_tensor_cores else 1.0)


class SimulatedLoad:
    """A prepared row: its phases advance the card's time.

    Attributes
    ----------
    counted_clock_mhz
        Mean clock of the last run, ``counted_share`` of the one that the board sets [MHz]; ``None`` before the first,
        and without that share.
    """

    def __init__(self, card: SimulatedCard, row: Mapping[str, Any], *, counted_share: float | None = None) -> None:
        self._card, self._row, self._counted_share = card, row, counted_share
        self.counted_clock_mhz: float | None = None

    def run(self, duration_s: float) -> tuple[int, float]:
        """Keep the card busy for about so long.

        Returns
        -------
        tuple
            Whole repetitions of the row's operators, and the seconds in which they ran: pauses of duty cycles and
            pulses, and the products beside a kernel, count in neither. Idling is one repetition of its whole duration.
        """
        card = self._card
        start = card.now()
        player = card.begin(self._row)
        begin_s, cycles = card.board.state.time_s, card.board.megacycles
        try:
            self._wait(duration_s)
            while player.repetitions < 1.0 and self._row.get("op") != "idle":
                self._wait(0.25 * duration_s)
        finally:
            card.end()
        if self._counted_share is not None:
            set_mhz = (card.board.megacycles - cycles) / (card.board.state.time_s - begin_s)
            self.counted_clock_mhz = self._counted_share * set_mhz
        return self._counted(player, card.now() - start)

    def close(self) -> None:
        """Nothing to free."""

    def _wait(self, duration_s: float) -> None:
        self._card.sleep(duration_s)
        if self._card.realtime:
            self._card.catch_up()

    def _counted(self, player: Player, duration_s: float) -> tuple[int, float]:
        if self._row.get("op") == "idle":
            return 1, duration_s
        whole = int(player.repetitions + 1e-6)
        return whole, player.busy_s * whole / player.repetitions * (1.0 + self._card.timing_noise())
