"""A card whose physics are known: what measuring, choosing and fitting are tested against.

Time is virtual: :meth:`SimulatedCard.sleep` and the loads of
:class:`~joulecast.calibrate.devices.simulated_runner.SimulatedRunner` advance it at once. As nothing else can happen
while a load runs, a sampler asks to be called: :meth:`SimulatedCard.watch`. With ``realtime`` the time is the
machine's, loads take as long as they say, and a sampler in another process reads the same card through its file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from joulecast.calibrate.devices.protocol import Device, Neighbour, PowerReading, Sample, Settings
from joulecast.calibrate.devices.simulated_board import Board, Dynamics
from joulecast.calibrate.devices.simulated_facts import (
    allowed,
    check_settings,
    components_j,
    facts_of,
    reasons_of,
    true_model,
)
from joulecast.calibrate.devices.simulated_file import (
    CardFile,
    SharedFiles,
    load_path,
    read_card_file,
)
from joulecast.calibrate.devices.simulated_loads import Player, phases_of
from joulecast.calibrate.devices.simulated_sensors import (
    Faults,
    Sensors,
    average_power_w,
    counter_j,
    noise,
    polled_power_w,
    power_history,
)
from joulecast.calibrate.devices.simulated_time import Time
from joulecast.calibrate.devices.simulated_work import SimulatedWork
from joulecast.errors import DeviceError, InputError, PermissionDeniedError, UnknownNameError

#: The process number that a simulated neighbour has.
NEIGHBOUR_PID = 4242


class SimulatedCard(Device):
    """A simulated card.

    Parameters
    ----------
    gpu
        Catalogue name or path of the description that gives the card its facts and, unless overridden, its physics.
    truth
        True values that differ from the description, by the names of its parameters, for instance
        ``{"power.tensor_pj_per_flop.bf16": 0.55}``.
    sensors, faults, dynamics
        What the card shows, what is wrong with it, and how it moves.
    seed
        Of the sensors' noise.
    realtime
        Whether the card lives in the machine's time.
    file
        Where its settings and load are kept for other processes; by default nowhere.

    Attributes
    ----------
    truth
        The true numbers, for tests.
    board
        The simulated board, for tests.

    Raises
    ------
    UnknownNameError
        A parameter that the description does not have.
    """

    def __init__(
        self,
        gpu: str = "h200-sxm",
        truth: Mapping[str, float] | None = None,
        *,
        sensors: Sensors | None = None,
        faults: Faults | None = None,
        dynamics: Dynamics | None = None,
        seed: int = 0,
        realtime: bool = False,
        file: Path | None = None,
    ) -> None:
        start = time.monotonic() if realtime else 0.0
        content = CardFile(
            gpu=gpu,
            truth=dict(truth or {}),
            sensors=sensors or Sensors(),
            faults=faults or Faults(),
            seed=seed,
            realtime=realtime,
            start_s=start,
        )
        self._set_up(content, file, dynamics or Dynamics())
        if file is not None:
            load_path(file).unlink(missing_ok=True)
            self._files.write_settings(content)

    @classmethod
    def open(cls, file: Path) -> SimulatedCard:
        """The card of a file that ``SimulatedCard(file=FILE)`` made.

        Raises
        ------
        InputError
            No such file, not a simulated card, or set as none can be.
        """
        card = cls.__new__(cls)
        content = read_card_file(file)
        try:
            card._set_up(content, file, Dynamics())
            check_settings(Settings(content.locked_clock_mhz, content.power_limit_w), card.facts)
        except InputError as error:
            key = "gpu" if error.key is None and isinstance(error, UnknownNameError) else error.key
            raise InputError(error.message, file=str(file), key=key, remedy=error.remedy) from None
        return card

    def _set_up(self, content: CardFile, file: Path | None, dynamics: Dynamics) -> None:
        self._content, self._files = content, SharedFiles(file)
        self.sensors, self.faults = content.sensors, content.faults
        self.truth = true_model(content.gpu, content.truth)
        warm = self.truth.with_values({"power.inlet_c": self.truth["power.inlet_c"] + content.faults.inlet_offset_c})
        highest, limit = allowed(content, self.truth)
        self.board = Board(warm, dynamics, content.start_s, content.faults.neighbour_w, highest=highest, limit_w=limit)
        self._time = Time(self.board)
        self._highest_j = 0.0
        self._next_stall_s = content.start_s + content.faults.stall_every_s
        self._facts = facts_of(content, self.truth, f"sim:{file or content.gpu}")

    @property
    def realtime(self) -> bool:
        """Whether the card lives in the machine's time."""
        return self._content.realtime

    @property
    def power_readings(self) -> dict[str, str]:
        """Where the fields of a sample come from, for people."""
        sensors = self.sensors
        found = {
            "energy_j": f"simulated counter, a step in {sensors.counter_step_s:g} s",
            "power_w": f"simulated, mean of {sensors.power_window_s:g} s once in {sensors.power_step_s:g} s",
            "average_power_w": f"simulated, mean of {sensors.average_window_s:g} s",
        }
        if self.history_step_s:
            found["power_history"] = f"simulated, mean of every {sensors.history_step_s:g} s"
        lacking = {*self.faults.missing, *(() if self.faults.energy_counter else ("energy_j",))}
        return {name: source for name, source in found.items() if name not in lacking}

    @property
    def shared(self) -> bool:
        """Whether other processes can open the card; one that lives here alone ends with this process."""
        return self._files.file is not None

    def now(self) -> float:
        """The card's time [s]."""
        return time.monotonic() if self.realtime else self._time.now_s

    def sleep(self, duration_s: float) -> None:
        """Wait, idle or under what :meth:`begin` has started."""
        if self.realtime:
            time.sleep(max(duration_s, 0.0))
        elif not self._time.calling:
            self._read_settings()
            self._time.advance(self._time.now_s + max(duration_s, 0.0))

    def watch(self, period_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Call somebody every so often while virtual time passes; returns what ends it.

        A callback may take samples; the time does not move for it, except that a stalled reading makes it miss turns.

        Raises
        ------
        InputError
            The card lives in the machine's time: read it from another process or thread.
        """
        if self.realtime:
            raise InputError("a simulated card in real time calls nobody", remedy="Sample it from another process.")
        return self._time.watch(period_s, callback)

    def sample(self, *, counter: bool = True) -> Sample:
        """Read the card."""
        call = self._wait_for_reading()
        self.catch_up()
        board, sensors, faults, seed = self.board, self.sensors, self.faults, self._content.seed
        now = self._alive()
        found = Sample(
            time_s=now + call / 2.0 if self._time.calling else now - call / 2.0,
            call_s=call,
            energy_j=self._counter_j() if counter else None,
            power_w=polled_power_w(board, sensors, faults, seed),
            average_power_w=average_power_w(board, sensors, faults),
            sm_clock_mhz=board.clocks_mhz[board.index],
            memory_clock_mhz=self.truth.device.get("memory_clock_mhz"),
            temperature_c=float(round(board.state.temperature_c)),
            reasons=reasons_of(board),
            components_j=components_j(board) if sensors.components else {},
            utilisation=0.0 if board.work.is_idle and not faults.neighbour_w else 1.0,
        )
        nothing: dict[str, Any] = dict.fromkeys(faults.missing)
        return replace(found, **nothing) if nothing else found

    @property
    def history_step_s(self) -> float | None:
        """Time between two readings of the power history [s]; ``None`` without one."""
        return self.sensors.history_step_s or None

    def power_history(self, since_s: float) -> Sequence[PowerReading]:
        """What the driver wrote down after a time."""
        if self.history_step_s is None:
            return ()
        self.catch_up()
        return power_history(self.board, self.sensors, self.faults, self._content.seed, self._alive(), since_s)

    def _alive(self) -> float:
        """The card's time, unless it died [s]."""
        now = self.now()
        if self.faults.dies_at_s is not None and now >= self.faults.dies_at_s:
            raise DeviceError("the card does not answer any more", remedy="Simulated: it was told to die.")
        return now

    def neighbours(self) -> Sequence[Neighbour]:
        """Other processes on the card."""
        seen = self.faults.neighbour_w > 0.0 and self.faults.neighbour_visible
        return [Neighbour(NEIGHBOUR_PID, 2**30)] if seen else []

    def settings(self) -> Settings:
        """What is set now."""
        self._read_settings()
        return Settings(self._content.locked_clock_mhz, self._content.power_limit_w)

    def apply(self, settings: Settings) -> None:
        """Set clocks and power limit."""
        if not self.faults.privileged:
            raise PermissionDeniedError("this user may not set clocks or power limits", remedy="Use --passive.")
        check_settings(settings, self._facts)
        self._read_settings()
        self.catch_up()
        content = self._content.model_copy(
            update={
                "locked_clock_mhz": settings.locked_clock_mhz,
                "power_limit_w": settings.power_limit_w,
                "set_at_s": self.now(),
            }
        )
        late = "transition.power_limit_s"
        if settings.locked_clock_mhz != self._content.locked_clock_mhz:
            late = "transition.clock_s"
        self._content = content
        self._use_settings(content, self.truth[late])
        self._files.write_settings(content)

    def begin(self, row: Mapping[str, Any]) -> Player:
        """Start the work of a row; it goes on until :meth:`end`, and other processes see it in real time.

        Raises
        ------
        MeasurementError
            The row cannot run on this card.
        """
        self.catch_up()
        player = self._time.player = Player(phases_of(row, self.board))
        self._share(row)
        return player

    def end(self) -> None:
        """Stop the work."""
        self.catch_up()
        self._time.player = None
        self._share(None)

    def execute(self, work: SimulatedWork, *, repetitions: float) -> tuple[float, float]:
        """Run work so often, then idle; start and end on the card's clock [s]. For single launches in virtual time."""
        self._read_settings()
        return self._time.execute(work, repetitions)

    def timing_noise(self) -> float:
        """Relative error of the time of a run that ends now."""
        return noise(self._content.seed, "time", self.now(), self.sensors.repeat_noise)

    def _counter_j(self) -> float | None:
        """The counter. Where another process runs the work, its state differs by a hair from what was computed here."""
        energy = counter_j(self.board, self.sensors, self.faults, self._content.seed)
        if energy is None or self.faults.counter == "backward":
            return energy
        self._highest_j = max(self._highest_j, energy)
        return self._highest_j

    def _wait_for_reading(self) -> float:
        """Let the time of a reading pass; returns how long it took [s]."""
        duration = self.sensors.call_s
        if self.faults.stall_every_s and self.now() >= self._next_stall_s:
            duration += self.faults.stall_s
            self._next_stall_s = self.now() + self.faults.stall_every_s
        if self.realtime:
            time.sleep(duration)
        else:
            self._time.block(duration)
        return duration

    def catch_up(self) -> None:
        """Bring the board to the present, after what other processes did."""
        self._read_settings()
        if not self.realtime:
            return
        shared = self._files.changed_load()
        if shared is not None:
            self.board.state, row = shared
            self._time.player = None if row is None else Player(phases_of(row, self.board))
        now = time.monotonic()
        skip = now - self.board.state.time_s - self.board.dynamics.memory_s
        if self._time.player is None and skip > 0.0:
            self._time.rest(skip)
        self._time.advance(now)

    def _share(self, row: Mapping[str, Any] | None) -> None:
        if self.realtime:
            self._files.write_load(self.board.state, row)

    def _read_settings(self) -> None:
        content = self._files.changed_settings()
        if content is not None and content != self._content:
            self._content = content
            self._use_settings(content, self.truth["transition.clock_s"])

    def _use_settings(self, content: CardFile, late_s: float) -> None:
        since = self.board.state.time_s
        if self.realtime and content.set_at_s is not None:
            since = content.set_at_s
        highest, limit = allowed(content, self.truth)
        self.board.set_later(since + late_s, highest, limit)
