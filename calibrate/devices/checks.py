"""Whether a card is fit to be measured."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from statistics import median

from joulecast.calibrate.devices import open_device
from joulecast.calibrate.devices.cross_check import counter_power, polled
from joulecast.calibrate.devices.findings import (
    Code,
    Finding,
    of_company,
    of_counter,
    of_facts,
    of_heat,
    of_readings,
)
from joulecast.calibrate.devices.protocol import CardFacts, Device, Sample
from joulecast.calibrate.rows.measured import mean_of_present
from joulecast.errors import DeviceError

#: How long a card is watched, and how often it is read meanwhile [s]: some twenty steps of a slow counter.
WATCH_S, PERIOD_S = 2.0, 0.01
#: What the keys of errors from opening a card mean.
_UNREACHABLE = {
    "package": Code.NO_PACKAGE,
    "driver": Code.NO_DRIVER,
    "permission": Code.NO_PERMISSION,
    "device": Code.NO_GPU,
}


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found.

    Attributes
    ----------
    facts
        What the card says about itself; ``None`` where it could not be opened.
    findings
        Errors first.
    step_s
        Time between two steps of the energy counter; ``None`` where it does not step [s].
    counter_power_w, polled_power_w
        Mean power over the same time by either sensor; ``None`` where there is none [W].
    call_s
        Time of a reading, the median [s].
    readings
        What a sample of this card holds, and where each comes from.
    """

    facts: CardFacts | None
    findings: tuple[Finding, ...]
    step_s: float | None = None
    counter_power_w: float | None = None
    polled_power_w: float | None = None
    call_s: float | None = None
    readings: Mapping[str, str] = field(default_factory=dict)

    @property
    def fit(self) -> bool:
        """Whether the card can be measured."""
        return not any(finding.severity == "error" for finding in self.findings)

    def demand_fit(
        self, say: Callable[[str], None], *, notes: bool = False, bearable: Container[Code] = frozenset()
    ) -> None:
        """Tell what is odd, and refuse a card that is not fit.

        Parameters
        ----------
        say
            Prints a line for people: warnings, errors beyond the one that is raised, and notes where they are wanted.
        bearable
            Errors that count as warnings here.

        Raises
        ------
        DeviceError
            The first error that was found.
        """
        refused: Finding | None = None
        for finding in self.findings:
            severity = "warning" if finding.code in bearable and finding.severity == "error" else finding.severity
            if severity == "error" and refused is None:
                refused = finding
            elif severity != "note" or notes:
                say(f"{severity} [{finding.code.value}]: {finding.message}. {finding.remedy}")
        if refused is not None:
            raise DeviceError(refused.message, key=refused.code.value, remedy=refused.remedy)


def examine_at(locator: str, watch_s: float = WATCH_S) -> Examination:
    """Open, examine and close a card; one that cannot be opened, or does not answer, is a finding too."""
    try:
        device = open_device(locator)
    except DeviceError as error:
        return _without(None, _UNREACHABLE.get(error.key or "", Code.NO_GPU), error)
    try:
        return examine(device, watch_s)
    except DeviceError as error:
        return _without(device.facts, Code.NO_ANSWER, error)
    finally:
        device.close()


def _without(facts: CardFacts | None, code: Code, error: DeviceError) -> Examination:
    return Examination(facts, (Finding(code, "error", error.message, error.remedy or ""),))


def examine(device: Device, watch_s: float = WATCH_S) -> Examination:
    """Watch a card that has no work of ours, and say what is wrong with it.

    Raises
    ------
    DeviceError
        It does not answer.
    """
    samples = _watch(device, watch_s)
    facts, power = device.facts, mean_of_present([polled(sample) for sample in samples])
    readings = device.power_readings
    counter_w, step = counter_power(samples)
    found = [
        *of_facts(facts, device.settings()),
        *of_readings(samples, facts),
        *of_counter(samples, counter_w, power, history="power_history" in readings),
        *of_company(samples, device.neighbours(), power, facts),
        *of_heat(samples),
    ]
    order = ("error", "warning", "note")
    findings = tuple(sorted(found, key=lambda finding: order.index(finding.severity)))
    call_s = median(sample.call_s for sample in samples)
    return Examination(facts, findings, step, counter_w, power, call_s, readings)


def _watch(device: Device, watch_s: float) -> list[Sample]:
    end = device.now() + watch_s
    samples = [device.sample()]
    while device.now() < end:
        device.sleep(PERIOD_S)
        samples.append(device.sample())
    return samples
