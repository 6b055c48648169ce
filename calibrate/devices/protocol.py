"""What Joulecast asks of a GPU, whoever made it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card says about itself; nothing here changes while it is measured.

    Attributes
    ----------
    locator
        Where :func:`joulecast.calibrate.devices.open_device` finds the card again, also from another process:
        ``nvml:0``, ``amd:0``, ``sim:FILE``, ``replay:DIR``.
    name, vendor, driver
        As the driver reports them.
    power_limit_w, default_power_limit_w, power_limit_range_w
        Enforced now, at delivery, and what may be set; ``None`` where the card has none.
    max_sm_clock_mhz, max_memory_clock_mhz
        Highest application clocks.
    sm_clocks_mhz
        Clocks that can be locked, ascending; empty where the driver does not tell.
    sms, memory_bytes
        Streaming multiprocessors (compute units) and memory; ``None`` where the driver does not tell.
    energy_counter
        Whether the card accumulates its energy in hardware.
    may_set_clocks, may_set_power_limit
        Whether this process has the privilege; found without changing anything.
    mig
        Whether the card is partitioned.
    components
        Names of the components whose energy the card reports besides the whole, such as ``xcd``, ``aid``, ``hbm``.
    """

    locator: str
    name: str
    vendor: str
    driver: str
    power_limit_w: float | None
    default_power_limit_w: float | None
    power_limit_range_w: tuple[float, float] | None
    max_sm_clock_mhz: float
    max_memory_clock_mhz: float | None
    sm_clocks_mhz: tuple[float, ...] = ()
    sms: int | None = None
    memory_bytes: int | None = None
    energy_counter: bool = True
    may_set_clocks: bool = False
    may_set_power_limit: bool = False
    mig: bool = False
    components: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of a card.

    Attributes
    ----------
    time_s
        Host time in the middle of the call, on the card's clock (:meth:`Device.now`).
    call_s
        How long the call took; long ones are stalls of the driver.
    energy_j
        The card's accumulated energy counter, ``None`` where it has none.
    power_w, average_power_w
        The newest reading, and the reading that the driver averages itself; ``None`` where missing.
    sm_clock_mhz, memory_clock_mhz, temperature_c
        Readings; ``None`` where missing.
    reasons
        Why the card runs below the clock that was asked for; every vendor's are mapped to ``idle``, ``power_limit``,
        ``thermal``, ``hardware``, ``locked_clock`` and ``other``.
    components_j
        Accumulated energy by component where the card reports it.
    utilisation
        Share of the driver's last sampling period in which some kernel ran, whoever's; ``None`` where missing.
    """

    time_s: float
    call_s: float
    energy_j: float | None = None
    power_w: float | None = None
    average_power_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    reasons: tuple[str, ...] = ()
    components_j: Mapping[str, float] = field(default_factory=dict)
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class PowerReading:
    """A power that the driver wrote down by itself.

    Attributes
    ----------
    time_s
        When, on the card's clock (:meth:`Device.now`).
    power_w
        Power since the reading before [W].
    """

    time_s: float
    power_w: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may set on a card; ``None`` leaves it to the card.

    Attributes
    ----------
    locked_clock_mhz
        Lowest and highest SM clock.
    power_limit_w
        The power limit.
    """

    locked_clock_mhz: tuple[float, float] | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process on the card."""

    pid: int
    memory_bytes: int | None = None


class Device(ABC):
    """A card that can be read, and set where there is the privilege.

    What a class does not say itself is that of a card in the machine's time, which other processes can open, and whose
    driver writes down no power by itself.
    """

    _facts: CardFacts

    @property
    def facts(self) -> CardFacts:
        """What the card says about itself."""
        return self._facts

    @property
    def identifier(self) -> str:
        """What the card is called, whatever word opened it."""
        return self.facts.locator.partition(":")[2]

    @property
    def shared(self) -> bool:
        """Whether other processes can open the card; one that lives here alone ends with this process."""
        return True

    @property
    def realtime(self) -> bool:
        """Whether the card lives in the machine's time; one that does not calls whoever watches it."""
        return True

    @property
    def power_readings(self) -> dict[str, str]:
        """Where the fields of a sample come from, for people."""
        return {}

    @property
    def history_step_s(self) -> float | None:
        """Time between two powers that the driver writes down by itself [s]; ``None`` where it writes none."""
        return None

    def power_history(self, since_s: float) -> Sequence[PowerReading]:
        """Powers that the driver wrote down after a time, oldest first; it keeps those of the last seconds only.

        Parameters
        ----------
        since_s
            On the card's clock, as that of an earlier reading.

        Raises
        ------
        DeviceError
            The card does not answer.
        """
        return ()

    def now(self) -> float:
        """The time that samples carry [s]; real cards give ``time.monotonic()``, simulated ones their own."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Wait on the same clock."""
        time.sleep(max(duration_s, 0.0))

    @abstractmethod
    def sample(self, *, counter: bool = True) -> Sample:
        """Read the card.

        Parameters
        ----------
        counter
            Whether the energy counter is wanted, whatever it costs; without it a card may leave out all that is dear.

        Raises
        ------
        DeviceError
            The card does not answer.
        """

    def neighbours(self) -> Sequence[Neighbour]:
        """Other processes that use the card."""
        return ()

    def settings(self) -> Settings:
        """What is set now."""
        return Settings()

    @abstractmethod
    def apply(self, settings: Settings) -> None:
        """Set clocks and power limit; ``None`` gives back the card's own.

        Raises
        ------
        PermissionDeniedError
            Without the privilege.
        DeviceError
            A value that the card refuses.
        """

    def close(self) -> None:  # noqa: B027 - nothing to let go of is usual
        """Let go of the driver."""
