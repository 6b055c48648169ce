"""What can be wrong with a card, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from joulecast.calibrate.devices.cross_check import STALL_S, compare, polled
from joulecast.calibrate.devices.protocol import CardFacts, Neighbour, Sample, Settings

#: Energy of the counter over that of the polled power: beyond this factor the counter is not one of energy.
WILD_RATIO = 10.0
#: Relative difference between counter and polled power that is reported.
DISAGREEMENT = 0.05
#: Power without work, as a share of the card's own limit, above which somebody else must be working. Idle cards with
#: their clocks up draw 15-25 %.
BUSY_SHARE = 0.35
#: Share of readings with a running kernel from which on the card counts as busy.
BUSY_READINGS = 0.5
#: Temperature without work from which on measurements would soon be throttled [°C].
HOT_C = 75.0


class Code(StrEnum):
    """Names of what can be found."""

    NO_PACKAGE = "no-package"
    NO_DRIVER = "no-driver"
    NO_PERMISSION = "no-permission"
    NO_GPU = "no-gpu"
    NO_ANSWER = "no-answer"
    NO_READINGS = "no-readings"
    NO_COUNTER = "no-counter"
    NO_CLOCK = "no-clock"
    COUNTER_STILL = "counter-still"
    COUNTER_BACKWARD = "counter-backward"
    COUNTER_WRONG = "counter-wrong"
    DISAGREEMENT = "counter-disagrees"
    NOT_COMPARED = "not-compared"
    MISSING_READING = "missing-reading"
    STALLS = "stalls"
    BUSY = "busy"
    NEIGHBOUR = "neighbour"
    THROTTLED = "throttled"
    HOT = "hot"
    MIG = "mig"
    LIMIT_CHANGED = "limit-changed"
    CLOCK_LOCKED = "clock-locked"
    NO_PRIVILEGE = "no-privilege"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a card.

    Attributes
    ----------
    severity
        ``error``: nothing should be measured; ``warning``: the result suffers; ``note``: something cannot be done.
    """

    code: Code
    severity: str
    message: str
    remedy: str


def of_facts(facts: CardFacts, settings: Settings) -> Iterator[Finding]:
    """What the card says about itself, and what is set on it."""
    if facts.mig:
        yield Finding(
            Code.MIG,
            "error",
            "the card is partitioned: its sensors speak of the whole, work runs on a part",
            "Switch the partitions off (nvidia-smi -mig 0, amd-smi set --compute-partition SPX), or take another card.",
        )
    limit, default = facts.power_limit_w, facts.default_power_limit_w
    if limit is not None and default is not None and abs(limit - default) > 0.5:
        yield Finding(
            Code.LIMIT_CHANGED,
            "warning",
            f"the power limit is {limit:g} W; the card's own is {default:g} W",
            "The description will be that of the card at this limit. Give the limit back, or calibrate with --active.",
        )
    if settings.locked_clock_mhz is not None:
        low, high = settings.locked_clock_mhz
        yield Finding(
            Code.CLOCK_LOCKED, "warning", f"the clock is locked to {low:g}-{high:g} MHz", "Unlock it: nvidia-smi -rgc."
        )
    if not (facts.may_set_clocks and facts.may_set_power_limit):
        what = " and ".join(
            name
            for name, may in (("clocks", facts.may_set_clocks), ("the power limit", facts.may_set_power_limit))
            if not may
        )
        yield Finding(
            Code.NO_PRIVILEGE,
            "note",
            f"this user may not set {what}",
            "Passive calibration needs no such right; --active needs an administrator.",
        )


def of_readings(samples: Sequence[Sample], facts: CardFacts) -> Iterator[Finding]:
    """Readings that are missing or late."""
    has_power = any(polled(sample) is not None for sample in samples)
    yield from _of_energy(samples, facts, has_power)
    if not any(sample.sm_clock_mhz is not None for sample in samples):
        yield Finding(
            Code.NO_CLOCK,
            "error",
            "the driver does not tell the clock, without which no measurement can be fitted",
            "Update the driver; virtual machines may hide it: measure on the host.",
        )
    if facts.energy_counter or has_power:
        yield from _of_side_readings(samples, has_power)
    yield from _of_stalls(samples)


def _of_energy(samples: Sequence[Sample], facts: CardFacts, has_power: bool) -> Iterator[Finding]:
    """How the energy of a window is known, if at all."""
    if facts.energy_counter and all(sample.energy_j is None for sample in samples):
        yield Finding(
            Code.NO_READINGS,
            "error",
            "the card has an energy counter, but the driver gives no reading of it",
            "Update the driver; virtual machines may hide it: measure on the host, or on another card.",
        )
    elif not facts.energy_counter and not has_power:
        yield Finding(
            Code.NO_READINGS,
            "error",
            "the card reports neither energy nor power",
            "Virtual machines often hide them: measure on the host, or on another card.",
        )
    elif not facts.energy_counter:
        yield Finding(
            Code.NO_COUNTER,
            "warning",
            "the card has no energy counter: energy is integrated from polled power",
            "Expect a few percent more uncertainty.",
        )


def _of_side_readings(samples: Sequence[Sample], has_power: bool) -> Iterator[Finding]:
    """What a card may lack beside its energy."""
    has_temperature = any(sample.temperature_c is not None for sample in samples)
    missing = [name for name, there in (("polled power", has_power), ("temperature", has_temperature)) if not there]
    if missing:
        yield Finding(
            Code.MISSING_READING,
            "warning",
            f"the driver does not tell: {', '.join(missing)}",
            "Update the driver; without the temperature, a card that is still warm from other work is not known to be.",
        )


def _of_stalls(samples: Sequence[Sample]) -> Iterator[Finding]:
    stalls = [sample.call_s for sample in samples if sample.call_s > STALL_S]
    if stalls:
        yield Finding(
            Code.STALLS,
            "warning",
            f"{len(stalls)} of {len(samples)} readings took up to {max(stalls):.1f} s",
            "Windows with such readings are repeated; stop other programs that poll the driver.",
        )


def of_counter(
    samples: Sequence[Sample], counter_w: float | None, power_w: float | None, *, history: bool
) -> Iterator[Finding]:
    """An energy counter that cannot be believed; rows rest on it where the driver keeps no ``history`` of the power."""
    energies = [sample.energy_j for sample in samples if sample.energy_j is not None]
    if not energies:
        return
    remedy = "Update the driver; where that does not help, take another card."
    length = samples[-1].time_s - samples[0].time_s
    if any(after < before for before, after in pairwise(energies)):
        yield Finding(Code.COUNTER_BACKWARD, "error", "the energy counter runs backward", remedy)
    elif energies[-1] == energies[0]:
        yield Finding(Code.COUNTER_STILL, "error", f"the energy counter stood still for {length:.1f} s", remedy)
    elif counter_w is not None and power_w and not 1.0 / WILD_RATIO <= counter_w / power_w <= WILD_RATIO:
        message = f"the energy counter says {counter_w:.0f} W, the polled power {power_w:.0f} W"
        yield Finding(Code.COUNTER_WRONG, "error", message, remedy)
    elif (off := compare(samples)) is None:
        yield Finding(
            Code.NOT_COMPARED,
            "note",
            "energy counter and polled power could not be compared: one is missing or the power is unsteady",
            "They are compared again under load.",
        )
    elif abs(off) > DISAGREEMENT:
        yield Finding(
            Code.DISAGREEMENT,
            "warning",
            f"polled power is {off:+.1%} off the energy counter",
            f"Energies are taken from the {'power history' if history else 'counter'}. "
            "If it is the one that is off, all energies are off by as much.",
        )


def of_company(
    samples: Sequence[Sample], neighbours: Sequence[Neighbour], power_w: float | None, facts: CardFacts
) -> Iterator[Finding]:
    """Somebody else on the card."""
    used = [sample.utilisation > 0.0 for sample in samples if sample.utilisation is not None]
    working = bool(used) and sum(used) / len(used) >= BUSY_READINGS
    own_limit = facts.default_power_limit_w or facts.power_limit_w
    hungry = power_w is not None and own_limit is not None and power_w > BUSY_SHARE * own_limit
    names = ", ".join(str(neighbour.pid) for neighbour in neighbours)
    if working or hungry:
        what = f"draws {power_w:.0f} W" if hungry and power_w is not None else "is working"
        who = f"processes {names}" if names else "nobody is named: in a container the driver hides processes"
        yield Finding(
            Code.BUSY,
            "error",
            f"the card {what} without work of ours ({who})",
            "Stop the other work, wait until the card has come to rest, or take another card.",
        )
    elif names:
        yield Finding(
            Code.NEIGHBOUR,
            "warning",
            f"other processes hold the card: {names}",
            "They are idle now; if they begin to work, windows are spoilt. Stop them.",
        )


def of_heat(samples: Sequence[Sample]) -> Iterator[Finding]:
    """A card that is too hot, or held back."""
    held = {reason for sample in samples for reason in sample.reasons} & {"thermal", "hardware"}
    hottest = max((s.temperature_c for s in samples if s.temperature_c is not None), default=None)
    warm = "" if hottest is None else f" at {hottest:.0f} °C"
    if held:
        why = "its temperature" if "thermal" in held else "the board's power supply"
        yield Finding(
            Code.THROTTLED,
            "error",
            f"the card holds its clock back for {why}{warm}",
            "Check cooling and power supply; measure when it runs freely.",
        )
    elif hottest is not None and hottest >= HOT_C:
        yield Finding(
            Code.HOT,
            "warning",
            f"the card is at {hottest:.0f} °C without work",
            "It will throttle under load: let it cool, or check the air.",
        )
