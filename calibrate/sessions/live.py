"""A whole calibration of a card: examine it, measure into a recording, and let go of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import current_thread, main_thread

from joulecast.calibrate.devices import locator_of, open_device
from joulecast.calibrate.devices.checks import examine
from joulecast.calibrate.devices.protocol import CardFacts, Device
from joulecast.calibrate.devices.reserved import reserved
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_runner import SimulatedRunner
from joulecast.calibrate.measure.recorder import Recorder
from joulecast.calibrate.measure.recording import Card, software_versions
from joulecast.calibrate.measure.sampler import SamplerPool
from joulecast.calibrate.microbenchmarks.catalogue import in_fp16, single_gpu
from joulecast.calibrate.microbenchmarks.protocol import CardRunner, Microbenchmark
from joulecast.calibrate.microbenchmarks.torch_backend import load_torch, torch_index
from joulecast.calibrate.microbenchmarks.torch_runner import TorchRunner
from joulecast.calibrate.sessions.active import CLOCK_SHARES, LIMIT_SHARES, swept
from joulecast.calibrate.sessions.base import base_name, base_of_card, odd_base
from joulecast.calibrate.sessions.display import Display, plus_minus
from joulecast.calibrate.sessions.duration import clock
from joulecast.calibrate.sessions.groups import group_command, group_sizes, measure_group
from joulecast.calibrate.sessions.other_cards import recorded_others, shipped_recordings
from joulecast.calibrate.sessions.replay import BASE_FILE, recorded_base, slug
from joulecast.calibrate.sessions.session import Outcome, Session, SessionSettings, costs_s
from joulecast.errors import DeviceError, InputError, MeasurementError
from joulecast.files import read_text, write_text
from joulecast.model.hardware.description import GpuDescription

#: Share of the budget that groups of GPUs get, together.
GROUPS_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What a user wants to be measured.

    Attributes
    ----------
    device
        A locator, or an index.
    record
        Folder of the recording; by default one named after the card.
    base
        Catalogue name or file of the card's data-sheet facts; by default found by the card's name.
    budget_s
        Seconds of measuring.
    active
        Whether clocks and power limits may be set.
    gpus
        Sizes of groups of GPUs to measure as well, such as ``2,4``; empty for none.
    alone
        Not to learn from shipped recordings of other cards of the kind.
    """

    device: str
    record: Path | None
    base: str | None
    budget_s: float
    active: bool
    gpus: str = ""
    alone: bool = False


@contextmanager
def unwinding() -> Iterator[None]:
    """Meanwhile signals that would end this process at once first end what it has started, and tell what is kept."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    ours = current_thread() is main_thread()  # no other may say what a signal does
    deadly = [n for n in (signal.SIGTERM, signal.SIGHUP) if ours and signal.getsignal(n) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)


@unwinding()
def measure_card(
    options: LiveOptions, say: Callable[[str], None], agree: Callable[[str], bool]
) -> tuple[Path, Outcome]:
    """Measure a card into a recording.

    Parameters
    ----------
    options
        What is wanted.
    say
        Prints a line for people.
    agree
        Asks whether the card may be changed as the question tells.

    Returns
    -------
    tuple
        The recording's folder, and how the session ended.

    Raises
    ------
    DeviceError
        The card is missing, not fit to be measured, measured by another process, or was lost.
    InputError
        The card's kind is unknown, the folder holds another card's recording, or cannot be written.
    MeasurementError
        Nothing can be run on the card.
    """
    with closing(open_device(locator_of(options.device))) as device, reserved(device):
        facts = device.facts
        sizes = group_sizes(options.gpus, _present(facts)) if options.gpus else []
        active = _examine(device, options.active, say) and agree(_question(facts))
        if options.active and not active:
            say("passive calibration: nothing on the card is changed")
        share = 1.0 - GROUPS_SHARE if sizes else 1.0
        settings = SessionSettings(share * options.budget_s, active)
        folder = options.record or Path(f"{slug(facts.name)}.recording")
        outcome = _measure(device, folder, options, settings, say)
    with _kept(folder, say):
        for size in sizes:
            _measure_group(size, folder, GROUPS_SHARE * options.budget_s / len(sizes), say)
    return folder, outcome


@contextmanager
def _kept(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Whoever ends it early learns what is kept."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit) as end:
        how = "" if isinstance(end, InputError) else "interrupted: "
        say(f"{how}what was measured is kept in {folder}: the same command goes on, or fit it with --replay {folder}")
        raise


def _examine(device: Device, active: bool, say: Callable[[str], None]) -> bool:
    """Refuse a card that is not fit, tell what is odd about it, and whether it may be set as is wanted."""
    examine(device).demand_fit(say, notes=active)
    return active and (device.facts.may_set_clocks or device.facts.may_set_power_limit)


def _question(facts: CardFacts) -> str:
    found = []
    if facts.may_set_clocks:
        low, high = (share * facts.max_sm_clock_mhz for share in (CLOCK_SHARES[0], CLOCK_SHARES[-1]))
        found.append(f"lock its clock to {len(CLOCK_SHARES)} values from {low:.0f} to {high:.0f} MHz")
    if facts.may_set_power_limit and facts.power_limit_range_w is not None:
        least, most = facts.power_limit_range_w
        low, high = (least + share * (most - least) for share in (LIMIT_SHARES[0], LIMIT_SHARES[-1]))
        found.append(f"set its power limit to {len(LIMIT_SHARES)} values from {low:.0f} to {high:.0f} W")
    return f"{facts.name} ({facts.locator}): {' and '.join(found)}, and give its own settings back at the end?"


def _measure(
    device: Device, folder: Path, options: LiveOptions, settings: SessionSettings, say: Callable[[str], None]
) -> Outcome:
    """Measure one GPU into the recording in ``folder``, a new one or one to go on with."""
    facts, runner = device.facts, runner_for(device)
    versions = software_versions(with_torch=not isinstance(device, SimulatedCard))
    base = options.base or base_name(facts)
    from_file = Path(base).is_file()
    shipped = None if options.alone else shipped_recordings(facts.name)
    how = {
        "base": BASE_FILE if from_file else base,
        "mode": "active" if settings.active else "passive",
        "protocol": asdict(settings.measure),
        **({"others": shipped} if shipped else {}),
    }
    description = base_of_card(base, facts)  # known to be usable before a folder is made
    if odd := odd_base(base, facts):
        say(f"warning: {odd}")
    with Recorder(folder, Card(facts, versions, how=how)) as recorder, SamplerPool() as samplers:
        named = recorder.recording.card.how.get("base") == BASE_FILE
        if from_file and named and not (folder / BASE_FILE).exists():  # new, or it ended with its first line
            write_text(folder / BASE_FILE, read_text(Path(base), "TOML"))
        if recorder.resumed:
            _tell_resumed(recorder, folder, settings.budget_s, say)
            begun = base_of_card(recorded_base(recorder.recording.card, folder), facts)
            if options.base and begun.device != description.device:
                raise _other_base(options.base, begun.name, folder)
            description = begun
        others = recorded_others(recorder.recording.card)
        if others:
            say(f"{len(others)} rows of other cards of this kind are known beforehand")
        benchmarks, done = _benchmarks(facts, description), recorder.recording.done
        benchmarks += [b for b in swept(benchmarks, facts) if settings.active or b.name in done]
        with Display(settings.budget_s, say) as display, _kept(folder, say):
            session = Session(
                device,
                runner,
                samplers,
                recorder,
                base=description,
                benchmarks=benchmarks,
                settings=settings,
                display=display,
                others=others,
            )
            outcome = session.run()
        recorder.end(reason=outcome.reason, rows=outcome.rows, spent_s=outcome.spent_s)
    _tell(outcome, folder, say)
    return outcome


def runner_for(device: Device) -> CardRunner:
    """What runs microbenchmarks on a card.

    Raises
    ------
    MeasurementError
        PyTorch is missing, or it does not see the card.
    """
    return SimulatedRunner(device) if isinstance(device, SimulatedCard) else TorchRunner(f"cuda:{torch_index(device)}")


def _other_base(base: str, begun: str, folder: Path) -> InputError:
    """What was chosen from one card's facts does not go on from another's; what was measured holds for both."""
    return InputError(
        f"{base} has other data-sheet facts than those of {begun}, with which {folder} was begun",
        key="--base",
        remedy=f"Leave --base out, give --record another folder, or fit again with --replay {folder} --base {base}.",
    )


def _benchmarks(facts: CardFacts, description: GpuDescription) -> list[Microbenchmark]:
    """What a card may be measured with, in the 16-bit type that its products have."""
    found = single_gpu(facts)
    return [*found] if "tensor_flops_per_sm_per_cycle.bf16" in description.device else in_fp16(found)


def _tell_resumed(recorder: Recorder, folder: Path, budget_s: float, say: Callable[[str], None]) -> None:
    """Rows of an earlier run count, and so does the time that they took; who wants neither learns what to do."""
    recording = recorder.recording
    spent = clock(sum(costs_s(recording.rows).values()))
    say(
        f"going on with {folder}: {len(recording.rows)} rows are there, begun {recording.card.started}; "
        f"{spent} of the budget of {clock(budget_s)} went into them"
    )
    say(f"to measure anew, give --record another folder, or move {folder} away")
    for warning in recorder.recording.warnings:
        say(f"warning: {warning}")


def _tell(outcome: Outcome, folder: Path, say: Callable[[str], None]) -> None:
    words = {
        "budget": "the budget has ended",
        "settled": "more rows would hardly help",
        "exhausted": "everything has been measured",
    }
    say(
        f"{words[outcome.reason]}: {outcome.rows} rows and {outcome.failures} failures in {clock(outcome.spent_s)}, "
        f"kept in {folder}"
    )
    say(f"forecasts of training kernels: {plus_minus(outcome.before)} before, {plus_minus(outcome.reached)} reached")


def _present(facts: CardFacts) -> int:
    """GPUs that PyTorch sees."""
    if facts.locator.startswith("sim:"):
        raise InputError("a simulated card stands alone", key="--gpus", remedy="Leave the option out.")
    return int(load_torch().cuda.device_count())


def _measure_group(size: int, folder: Path, budget_s: float, say: Callable[[str], None]) -> None:
    """A group that fails does not spoil what the single card has shown."""
    say(f"collectives among {size} GPUs: {clock(budget_s)}")
    try:
        measure_group(group_command(size, folder, budget_s), budget_s)
    except (MeasurementError, DeviceError) as error:
        say(f"warning: {error}")
