"""Calibrations of the simulated card, whose truth is known: what is recovered, and what survives interruptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from joulecast.calibrate.descriptions.describe import fit_all
from joulecast.calibrate.devices.findings import Code, Finding
from joulecast.calibrate.devices.protocol import Settings
from joulecast.calibrate.devices.reserved import reserved
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_runner import SimulatedRunner
from joulecast.calibrate.devices.simulated_sensors import Faults
from joulecast.calibrate.measure.protocol import Measurement
from joulecast.calibrate.measure.recorder import Recorder
from joulecast.calibrate.measure.recording import FILE_NAME, Card, Failed, read_recording
from joulecast.calibrate.measure.sampler import SamplerPool
from joulecast.calibrate.microbenchmarks.catalogue import in_fp16, single_gpu
from joulecast.calibrate.microbenchmarks.protocol import Load, Microbenchmark
from joulecast.calibrate.sessions import reference
from joulecast.calibrate.sessions.active import settings_of, swept
from joulecast.calibrate.sessions.base import base_name, base_of_card
from joulecast.calibrate.sessions.design import Choice
from joulecast.calibrate.sessions.live import LiveOptions, measure_card
from joulecast.calibrate.sessions.replay import fit_folder
from joulecast.calibrate.sessions.session import Outcome, Session, SessionSettings
from joulecast.errors import DeviceError, InputError, MeasurementError
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.operators import Attention, Gemm, Streaming
from joulecast.model.kernels.toggling import memory_toggle
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work

#: Different from every prior, and from the description that the card is derived from.
TRUTH = {
    "power.tensor_pj_per_flop.bf16": 0.66,
    "power.tensor_pj_per_flop.fp16": 0.72,
    "power.attention_pj_per_flop.cudnn.forward": 0.9,
    "power.gemm_pj_per_l2_byte": 14.0,
    "power.hbm_base_pj_per_byte": 24.0,
    "power.hbm_toggle_pj_per_byte": 36.0,
    "power.sm_w": 45.0,
    "power.clock_w": 58.0,
    "power.static_w": 64.0,
    "voltage.slope": 0.55,
    "kernel.gemm.eta": 0.88,
    "kernel.streaming.copy.bandwidth_share": 0.84,
}
#: Strata of the quick tests.
QUICK = ("gemm.bf16", "gemm.data", "memory.copy", "attention.forward", "idle", "pulse")


@pytest.fixture(autouse=True)
def few_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer training steps make choosing quicker."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(reference, "STEPS", reference.STEPS[:2])


@dataclass
class Notes:
    """A listener that remembers, and may interrupt."""

    interrupt_after: int = 10**9
    plans: list[Choice] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    rows: list[Measurement] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    events: int = 0

    def _event(self) -> None:
        self.events += 1
        if self.events >= self.interrupt_after:
            raise KeyboardInterrupt

    def planned(self, choice: Choice, left_s: float) -> None:
        self.plans.append(choice)
        self._event()

    def started(self, name: str, left_s: float) -> None:
        self.names.append(name)
        self._event()

    def measured(self, measurement: Measurement) -> None:
        self.rows.append(measurement)
        self._event()

    def failed(self, failure: Failed) -> None:
        self.failures.append(failure)
        self._event()

    def warned(self, finding: Finding) -> None:
        self.findings.append(finding)


class Refusing(SimulatedRunner):
    """Runs nothing that needs more than PyTorch, which shows only when it is tried."""

    def prepare(self, benchmark: Microbenchmark) -> Load:
        if benchmark.needs:
            raise MeasurementError(f"{benchmark.needs[0]} is missing", key=benchmark.name)
        return super().prepare(benchmark)


def benchmarks(card: SimulatedCard, strata: tuple[str, ...] = QUICK) -> list[Microbenchmark]:
    """Those of some kinds of work."""
    return [b for b in single_gpu(card.facts) if b.stratum in strata]


def session(
    card: SimulatedCard,
    folder: Path,
    budget_s: float,
    notes: Notes | None = None,
    chosen: list[Microbenchmark] | None = None,
    *,
    runner: SimulatedRunner | None = None,
    active: bool = False,
) -> Outcome:
    """One sitting at the card."""
    base = base_of_card("h200-sxm", card.facts)
    with Recorder(folder, Card(card.facts, {}, how={"base": "h200-sxm"})) as recorder, SamplerPool() as samplers:
        return Session(
            card,
            runner or SimulatedRunner(card),
            samplers,
            recorder,
            base,
            benchmarks(card) if chosen is None else chosen,
            SessionSettings(budget_s, active),
            notes or Notes(),
        ).run()


def fitted(folder: Path) -> GpuModel:
    """What a recording says, without uncertainty."""
    rows = read_recording(folder).rows
    card = SimulatedCard("h200-sxm")
    described = fit_all(rows, base_of_card("h200-sxm", card.facts), cross_validate=False).description
    return replace(gpu_model(described), description=None)


KERNELS = (
    Gemm(8192, 8192, 8192),
    Gemm(4096, 4096, 4096),
    Attention(4, 32, 8, 4096, 128, backend="cudnn"),
    Streaming("copy", 5e8, 5e8, elements=2.5e8),
)


def power_errors(found: GpuModel, truth: GpuModel, clock_mhz: float) -> np.ndarray:
    """Relative errors of the power of some kernels at a clock, the limit far away."""
    work = [Work((kernel,)) for kernel in KERNELS]
    predicted, true = (predict_work(work, gpu, clock_mhz=clock_mhz, power_limit_w=2e3) for gpu in (found, truth))
    return predicted.power_w / true.power_w - 1.0


def test_a_short_calibration_recovers_most_of_the_truth(tmp_path: Path) -> None:
    card, notes = SimulatedCard("h200-sxm", TRUTH), Notes()
    outcome = session(card, tmp_path, 120.0, notes)
    assert outcome.reason == "budget"
    assert 100.0 < outcome.spent_s <= 121.0
    assert len(notes.rows) == outcome.rows >= 22
    assert outcome.reached.time < outcome.before.time
    assert outcome.reached.energy < 0.8 * outcome.before.energy
    found = fitted(tmp_path)
    assert np.abs(power_errors(found, card.truth, 1300.0)).max() < 0.05
    assert found["kernel.gemm.eta"] == pytest.approx(TRUTH["kernel.gemm.eta"], rel=0.02)
    before = predict_work([Work((k,)) for k in KERNELS], found)
    true = predict_work([Work((k,)) for k in KERNELS], card.truth)
    assert before.energy_j == pytest.approx(true.energy_j, rel=0.03)


def energy_of_a_byte(gpu: GpuModel, data: str) -> float:
    return gpu["power.hbm_base_pj_per_byte"] + memory_toggle(data) * gpu["power.hbm_toggle_pj_per_byte"]


@pytest.mark.slow
def test_eight_minutes_recover_energies_and_power_at_clocks_never_visited(tmp_path: Path) -> None:
    card = SimulatedCard("h200-sxm-rows", TRUTH)  # patterns' own energies within what is expected of a card
    chosen = list(single_gpu(card.facts))
    outcome = session(card, tmp_path, 480.0, chosen=chosen)
    assert outcome.spent_s <= 481.0
    found, truth = fitted(tmp_path), card.truth
    assert found["power.tensor_pj_per_flop.bf16"] == pytest.approx(truth["power.tensor_pj_per_flop.bf16"], rel=0.03)
    for data in ("randn", "sparse0.5", "pow2", "zeros"):
        assert energy_of_a_byte(found, data) == pytest.approx(energy_of_a_byte(truth, data), rel=0.05), data
    for part in (
        "power.hbm_base_pj_per_byte",
        "power.hbm_toggle_pj_per_byte",
    ):  # of a byte that flips no bit, and of bits
        assert found[part] == pytest.approx(truth[part], rel=0.05), part
    clocks = [row.measured.sm_clock_mhz or 0.0 for row in read_recording(tmp_path).rows]
    assert min(clocks) > 1350.0  # what follows was never visited
    for clock, most in ((1300.0, 0.05), (1200.0, 0.05), (1100.0, 0.05), (1000.0, 0.051)):  # the last 5.0 % off
        assert np.abs(power_errors(found, truth, clock)).max() < most, clock


@pytest.mark.parametrize("event", [1, 2, 5])
def test_an_interrupted_session_goes_on_and_measures_nothing_twice(tmp_path: Path, event: int) -> None:
    card = SimulatedCard("h200-sxm", TRUTH)
    with pytest.raises(KeyboardInterrupt):
        session(card, tmp_path, 24.0, Notes(interrupt_after=event))
    first = [row.name for row in read_recording(tmp_path).rows]
    assert len(first) == (event - 1) // 2  # every row that was told of, and none that was not
    notes = Notes()
    outcome = session(SimulatedCard("h200-sxm", TRUTH), tmp_path, 24.0, notes)
    rows = read_recording(tmp_path).rows
    assert [row.name for row in rows][: len(first)] == first
    assert len({row.name for row in rows}) == len(rows) == outcome.rows
    assert len(rows) >= 4
    assert outcome.spent_s <= 25.0  # earlier sittings count
    spent = sum(row.measured.raw["measured_spent_s"] for row in rows)
    assert 18.0 < spent <= 25.0


class Impatient(SimulatedRunner):
    """Interrupted in the middle of a measurement."""

    calls = 0

    def prepare(self, benchmark: Microbenchmark) -> object:  # type: ignore[override]
        load, own = super().prepare(benchmark), self

        class Interrupted:
            counted_clock_mhz = None

            def run(self, duration_s: float) -> tuple[int, float]:
                own.calls += 1
                if own.calls == 30:
                    raise KeyboardInterrupt
                return load.run(duration_s)

            def close(self) -> None:
                load.close()

        return Interrupted()


def test_an_interruption_inside_a_measurement_loses_only_that_one(tmp_path: Path) -> None:
    card = SimulatedCard("h200-sxm", TRUTH)
    with pytest.raises(KeyboardInterrupt):
        session(card, tmp_path, 40.0, runner=Impatient(card))
    kept = len(read_recording(tmp_path).rows)
    assert kept >= 1
    # A kill while the last line was written leaves a torn one.
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes()[:-100])
    outcome = session(card, tmp_path, 30.0)
    rows = read_recording(tmp_path).rows
    assert len({row.name for row in rows}) == len(rows) == outcome.rows > kept


def test_a_session_measures_everything_or_stops_when_nothing_helps(tmp_path: Path) -> None:
    card = SimulatedCard("h200-sxm")
    outcome = session(card, tmp_path / "few", 500.0, chosen=benchmarks(card, ("idle", "memory.copy"))[:4])
    assert (outcome.reason, outcome.rows) == ("exhausted", 4)
    row = benchmarks(card, ("memory.copy",))[1]
    same = [replace(row, name=f"copy {i}", row={**row.row, "name": f"copy {i}"}) for i in range(40)]
    outcome = session(card, tmp_path / "same", 300.0, chosen=same)
    assert outcome.reason == "settled"
    assert outcome.rows < 40


def test_failures_are_recorded_once_and_the_session_goes_on(tmp_path: Path) -> None:
    card, notes = SimulatedCard("h200-sxm"), Notes()
    chosen = [*benchmarks(card, ("attention.forward",))[:5], *benchmarks(card, ("memory.copy", "idle"))]
    outcome = session(card, tmp_path, 20.0, notes, chosen, runner=Refusing(card))
    recording = read_recording(tmp_path)
    failed = [failure.name for failure in recording.failures]
    assert failed
    assert len(set(failed)) == len(failed) == outcome.failures
    assert {failure.reason for failure in recording.failures} == {"not-runnable"}
    assert all("attn" in name for name in failed)
    again = Notes()
    session(card, tmp_path, 26.0, again, chosen, runner=Refusing(card))
    assert not set(again.names) & {*failed, *recording.done}


def test_a_counter_that_stands_still_fails_by_name_and_is_tried_again(tmp_path: Path) -> None:
    broken = SimulatedCard("h200-sxm", faults=Faults(counter="still"))
    notes = Notes()
    session(broken, tmp_path, 20.0, notes, benchmarks(broken, ("memory.copy",))[:2])
    assert {f.reason for f in notes.failures} == {"counter-still"}
    outcome = session(SimulatedCard("h200-sxm"), tmp_path, 20.0, chosen=benchmarks(broken, ("memory.copy",))[:2])
    assert (outcome.rows, outcome.failures) == (2, 2)


def test_a_card_whose_readings_are_useless_ends_the_session(tmp_path: Path) -> None:
    card, notes = SimulatedCard("h200-sxm", faults=Faults(counter="still")), Notes()
    with pytest.raises(DeviceError, match="5 measurements in a row failed"):
        session(card, tmp_path, 100.0, notes)
    assert len(notes.failures) == 5


def test_a_lost_card_keeps_what_it_has_shown(tmp_path: Path) -> None:
    card = SimulatedCard("h200-sxm", faults=Faults(dies_at_s=14.0))
    with pytest.raises(DeviceError):
        session(card, tmp_path, 40.0)
    recording = read_recording(tmp_path)
    assert len(recording.rows) >= 2
    assert not recording.complete


def test_company_on_the_card_is_told_once(tmp_path: Path) -> None:
    card, notes = SimulatedCard("h200-sxm", faults=Faults(neighbour_w=20.0)), Notes()
    session(card, tmp_path, 15.0, notes)
    assert [finding.code for finding in notes.findings] == [Code.NEIGHBOUR]


def test_a_throttling_card_is_a_named_warning_and_its_rows_tell(tmp_path: Path) -> None:
    card, notes = SimulatedCard("h200-sxm", faults=Faults(inlet_offset_c=45.0)), Notes()
    session(card, tmp_path, 30.0, notes, benchmarks(card, ("gemm.bf16",))[6:12])
    assert [(f.code, f.severity) for f in notes.findings] == [(Code.THROTTLED, "warning")]
    assert any("throttled for its temperature" in warning for row in notes.rows for warning in row.warnings)


@pytest.fixture
def swept_card(tmp_path: Path) -> Iterator[tuple[SimulatedCard, list[Microbenchmark]]]:
    """A card that may be set, and what an active session adds."""
    card = SimulatedCard("h200-sxm", TRUTH)
    own = [b for b in swept(list(single_gpu(card.facts)), card.facts) if "gemm" in b.name or "idle" in b.name]
    yield card, own


def test_an_active_session_sets_clocks_and_limits_and_gives_them_back(
    swept_card: tuple[SimulatedCard, list[Microbenchmark]], tmp_path: Path
) -> None:
    card, own = swept_card
    session(card, tmp_path, 30.0, chosen=own, active=True)
    assert card.settings() == Settings()
    rows = read_recording(tmp_path).rows
    locked = [row for row in rows if "clock_mhz" in row.configuration]
    assert locked
    clocks = {row.name: (row.measured.sm_clock_mhz, row.configuration["clock_mhz"]) for row in locked}
    assert all(seen <= wanted for seen, wanted in clocks.values() if seen is not None)  # the power limit holds as well
    assert any(seen == wanted < 1300.0 for seen, wanted in clocks.values())
    with pytest.raises(KeyboardInterrupt):
        session(card, tmp_path / "again", 30.0, Notes(interrupt_after=4), own, active=True)
    assert card.settings() == Settings()


def test_a_calibration_keeps_others_away_from_its_card(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    card = SimulatedCard("h200-sxm", file=file)
    other, lone = SimulatedCard.open(file), SimulatedCard("h200-sxm")
    with reserved(card), reserved(lone), reserved(SimulatedCard("h200-sxm")):
        with pytest.raises(DeviceError, match="another process calibrates this card: Simulated h200-sxm") as refused:
            reserved(other).__enter__()
        assert refused.value.key == "reserved"
    with reserved(other):
        pass


def test_a_card_is_kept_by_whatever_word_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def card(word: str, identifier: str) -> Any:
        facts = SimpleNamespace(locator=f"nvml:{word}", name="NVIDIA H200")
        return SimpleNamespace(facts=facts, identifier=identifier, shared=True)

    with reserved(card("0", "GPU-a")), reserved(card("1", "GPU-b")):
        other = reserved(card("GPU-a", "GPU-a"))
        with pytest.raises(DeviceError, match="another process calibrates this card"):
            other.__enter__()


def test_what_an_active_session_adds_says_what_is_set() -> None:
    card = SimulatedCard("h200-sxm")
    found = swept(list(single_gpu(card.facts)), card.facts)
    assert len({b.name for b in found}) == len(found)
    clocks = {b.row["clock_mhz"] for b in found if "clock_mhz" in b.row}
    limits = {b.row["power_limit_w"] for b in found if "power_limit_w" in b.row}
    assert clocks <= set(card.facts.sm_clocks_mhz)
    assert min(clocks) < 0.35 * 1980.0
    assert all(200.0 < limit < 700.0 for limit in limits)
    one = next(b for b in found if "clock_mhz" in b.row)
    assert settings_of(one.row) == Settings((one.row["clock_mhz"], one.row["clock_mhz"]), None)
    assert settings_of({}) == Settings()
    unprivileged = replace(card.facts, may_set_clocks=False, may_set_power_limit=False)
    assert swept(list(single_gpu(card.facts)), unprivileged) == []


def test_a_recording_replays_to_the_same_bytes_wherever_it_lies(tmp_path: Path) -> None:
    from joulecast.model.hardware.description_writer import dump_description

    session(SimulatedCard("h200-sxm", TRUTH), tmp_path / "here", 15.0)
    elsewhere = tmp_path / "there" / "deep"
    elsewhere.mkdir(parents=True)
    elsewhere.joinpath(FILE_NAME).write_bytes((tmp_path / "here" / FILE_NAME).read_bytes())
    first, second = (fit_folder(folder).description for folder in (tmp_path / "here", elsewhere))
    assert dump_description(first.to_dict()) == dump_description(second.to_dict())
    assert first.name == "simulated-h200-sxm"
    assert first.power.provenance.startswith("calibrated on Simulated h200-sxm (driver simulated")


def test_a_cards_kind_is_found_by_its_name_and_its_own_figures_win() -> None:
    facts = SimulatedCard("h200-sxm").facts
    assert base_name(replace(facts, name="NVIDIA H200")) == "h200-sxm"
    assert base_name(replace(facts, name="NVIDIA A100-SXM4-80GB")) == "a100-sxm-80gb"
    with pytest.raises(InputError, match="--base NAME"):
        base_name(replace(facts, name="Voodoo 2"))
    base = base_of_card("h200-sxm", replace(facts, power_limit_w=600.0))
    assert base.device["power_limit_w"].number == 600.0
    assert "its own figure" in base.device["power_limit_w"].source
    assert "data sheet" in base.device["sm_count"].source


def test_a_card_without_bf16_is_measured_in_fp16(tmp_path: Path) -> None:
    options = LiveOptions("sim:v100-sxm2-32gb", tmp_path / "rec", None, 60.0, False, "", False)
    _, outcome = measure_card(options, lambda line: None, lambda question: False)
    rows = read_recording(tmp_path / "rec").rows
    assert len(rows) >= 9 and not outcome.failures
    assert "fp16" in {row.configuration["dtype"] for row in rows} <= {"fp16", "fp32", "fp64"}


def test_work_in_fp16_stands_once() -> None:
    names = [benchmark.name for benchmark in in_fp16(single_gpu())]
    assert len(names) == len(set(names)) and not any(name.startswith("gemm_bf16") for name in names)
