"""Runs microbenchmarks on several processes that act as one: the first leads, the others follow its commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from joulecast.calibrate.microbenchmarks.engine import (
    BATCH_S,
    ESTIMATE_S,
    MOST_LAUNCHES,
    engine_for,
    keep_filled,
    launches_for,
)
from joulecast.calibrate.microbenchmarks.group_work import Ranks, work_of
from joulecast.calibrate.microbenchmarks.kernel import Bench
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.microbenchmarks.torch_backend import in_words
from joulecast.errors import MeasurementError

Command = Mapping[str, Any]


class Member:
    """One process of the group; all carry out the same commands in the same order.

    Parameters
    ----------
    torch, device
        The module, and this process's device.
    control
        A process group of CPU tensors for commands and outcomes.
    """

    def __init__(self, torch: Any, device: Any, control: Any) -> None:
        self._torch, self._device, self._control = torch, device, control
        self._ranks = Ranks(torch, device)
        self._engine = engine_for(torch, device)
        self._once: Callable[[], Any] | None = None
        self._name = ""

    def follow(self) -> None:
        """Carry out the leader's commands until it says ``end``."""
        while True:
            command = self._told(None)
            if command["do"] == "end":
                return
            self._outcomes(command)

    def lead(self, command: Command) -> list[float]:
        """Have all members carry out a command.

        Returns
        -------
        list
            The seconds that each one took, on its device's clock.

        Raises
        ------
        MeasurementError
            It failed on some of them; the first one's message.
        """
        self._told(command)
        if command["do"] == "end":
            return []
        outcomes = self._outcomes(command)
        failures = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(outcomes) if text]
        if failures:
            raise MeasurementError(failures[0])
        return [seconds for _, seconds in outcomes]

    def _told(self, command: Command | None) -> Command:
        box = [command]
        self._torch.distributed.broadcast_object_list(box, src=0, group=self._control)
        told = box[0]
        if told is None:
            raise MeasurementError("the leading process gave no command")
        return told

    def _outcomes(self, command: Command) -> list[tuple[str, float]]:
        """What became of the command on every member: what went wrong, if anything, and the seconds it took."""
        try:
            with in_words(self._torch, str(command.get("name") or self._name)):
                mine = ("", self._obey(command))
        except MeasurementError as error:
            mine = (str(error), 0.0)
        every: list[Any] = [None] * self._ranks.size
        self._torch.distributed.all_gather_object(every, mine, group=self._control)
        return [(str(text), float(seconds)) for text, seconds in every]

    def _obey(self, command: Command) -> float:
        if command["do"] == "prepare":
            self._close()
            self._name = str(command["name"])
            # Every rank draws other values, as in training.
            seed = f"{self._name}/{self._ranks.rank}"
            with self._engine.preparing():
                self._once = work_of(Bench(self._torch, self._device, command["row"], seed), self._ranks).once
            return 0.0
        if command["do"] == "run":
            return self._run(int(command["count"]), int(command["batches"]))
        self._close()
        return 0.0

    def _run(self, count: int, batches: int) -> float:
        if self._once is None:
            raise MeasurementError("nothing is prepared")
        with self._engine.preparing():
            self._once()  # brings all members together before the clock starts
        batch = self._engine.batch(self._once, count, capture=False)
        return keep_filled(self._engine, batch, lambda launched: launched < batches)[1]

    def _close(self) -> None:
        self._once = None
        self._engine.release()


class GroupLoad:
    """A prepared microbenchmark on all members; their clocks are not counted."""

    counted_clock_mhz: float | None = None

    def __init__(self, member: Member, name: str) -> None:
        self._member, self._name, self._once_s = member, name, 0.0
        self._estimate()

    def _estimate(self) -> None:
        """Time of one repetition, from runs that grow until they are long enough."""
        count = 1
        self._measured(count, 1)
        while self._measured(count, 1) < ESTIMATE_S and count < MOST_LAUNCHES:
            count = min(MOST_LAUNCHES, max(2 * count, math.ceil(1.2 * ESTIMATE_S / self._once_s)))

    def _measured(self, count: int, batches: int) -> float:
        """Run, and remember the time of a repetition: the slowest member's."""
        seconds = max(self._member.lead({"do": "run", "name": self._name, "count": count, "batches": batches}))
        self._once_s = max(seconds / (count * batches), 1e-7)
        return seconds

    def run(self, duration_s: float) -> tuple[int, float]:
        """Repetitions in about so long, and the slowest member's seconds.

        Raises
        ------
        MeasurementError
            It failed on some member.
        """
        count = launches_for(BATCH_S, self._once_s)
        batches = max(1, round(duration_s / (count * self._once_s)))
        return count * batches, self._measured(count, batches)

    def close(self) -> None:
        """Free the memory of all members."""
        self._member.lead({"do": "close", "name": self._name})


class GroupRunner:
    """Prepares microbenchmarks of several GPUs; used by the leading process alone."""

    def __init__(self, member: Member, size: int) -> None:
        self._member, self._size = member, size

    def prepare(self, benchmark: Microbenchmark) -> GroupLoad:
        """Allocate and warm up on all members.

        Raises
        ------
        MeasurementError
            It cannot run on some member, or it is for another number of GPUs.
        """
        if benchmark.gpus != self._size:
            raise MeasurementError(f"{benchmark.name}: it takes {benchmark.gpus} GPUs, here are {self._size}")
        self._member.lead({"do": "prepare", "name": benchmark.name, "row": dict(benchmark.row)})
        try:
            return GroupLoad(self._member, benchmark.name)
        except MeasurementError:
            self._member.lead({"do": "close", "name": benchmark.name})
            raise

    def end(self) -> None:
        """Let the other processes go."""
        self._member.lead({"do": "end"})
