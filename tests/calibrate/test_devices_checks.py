"""The examination of a card names what is wrong with it."""

import sys
from dataclasses import replace

import pytest

from joulecast.calibrate.devices.checks import examine, examine_at
from joulecast.calibrate.devices.cross_check import compare
from joulecast.calibrate.devices.findings import Code
from joulecast.calibrate.devices.protocol import Settings
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_runner import SimulatedRunner
from joulecast.calibrate.devices.simulated_sensors import Faults, Sensors
from joulecast.calibrate.measure.protocol import measure
from joulecast.calibrate.measure.sampler import VirtualSampler
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.errors import DeviceError

GEMM = {"op": "gemm", "M": 4096, "N": 4096, "K": 4096}


def found(card):
    card.sleep(2.0)  # a hot card finds its clock
    return {(finding.code, finding.severity) for finding in examine(card).findings}


def test_a_healthy_card_has_nothing_and_its_counter_is_known():
    card = SimulatedCard()
    examination = examine(card)
    assert examination.findings == ()
    assert examination.fit
    examination.demand_fit(lambda line: None)
    true = card.board.power_between(0.0, card.now())
    assert examination.step_s == pytest.approx(0.1, rel=0.01)
    assert examination.counter_power_w == pytest.approx(true, rel=0.01)
    assert examination.polled_power_w == pytest.approx(true, rel=0.01)
    assert examination.call_s == pytest.approx(0.002)
    assert card.now() < 2.1


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (Faults(mig=True), {(Code.MIG, "error")}),
        (Faults(counter="still"), {(Code.COUNTER_STILL, "error")}),
        (Faults(counter="backward"), {(Code.COUNTER_BACKWARD, "error")}),
        (Faults(power_error=0.08), {(Code.DISAGREEMENT, "warning")}),
        (Faults(power_error=-0.08), {(Code.DISAGREEMENT, "warning")}),
        (Faults(power_error=0.03), set()),
        (Faults(power_error=15.0), {(Code.COUNTER_WRONG, "error"), (Code.BUSY, "error")}),
        (Faults(energy_counter=False), {(Code.NO_COUNTER, "warning")}),
        (Faults(energy_counter=False, missing=("power_w", "average_power_w")), {(Code.NO_READINGS, "error")}),
        (Faults(missing=("energy_j",)), {(Code.NO_READINGS, "error")}),
        (Faults(missing=("temperature_c",)), {(Code.MISSING_READING, "warning")}),
        (Faults(missing=("sm_clock_mhz",)), {(Code.NO_CLOCK, "error")}),
        (
            Faults(missing=("power_w", "average_power_w")),
            {(Code.MISSING_READING, "warning"), (Code.NOT_COMPARED, "note")},
        ),
        (Faults(privileged=False), {(Code.NO_PRIVILEGE, "note")}),
        (Faults(stall_every_s=0.9, stall_s=0.6), {(Code.STALLS, "warning")}),
        (Faults(inlet_offset_c=39.0), {(Code.HOT, "warning")}),
        (Faults(inlet_offset_c=70.0), {(Code.THROTTLED, "error")}),
    ],
    ids=lambda value: "" if isinstance(value, set) else str(value),
)
def test_each_fault_has_its_name_and_nothing_else_is_found(faults, expected):
    assert found(SimulatedCard(faults=faults)) == expected


def test_somebody_elses_work_is_found_by_its_power_where_nobody_is_named():
    seen = examine(SimulatedCard(faults=Faults(neighbour_w=150.0)))
    hidden = examine(SimulatedCard(faults=Faults(neighbour_w=150.0, neighbour_visible=False)))
    by_power = examine(
        SimulatedCard(faults=Faults(neighbour_w=150.0, neighbour_visible=False, missing=("utilisation",)))
    )
    for examination, words in ((seen, "4242"), (hidden, "nobody is named"), (by_power, "draws 27")):
        assert [finding.code for finding in examination.findings] == [Code.BUSY]
        assert words in examination.findings[0].message
        assert not examination.fit
        with pytest.raises(DeviceError, match=r"\[busy\].*another card"):
            examination.demand_fit(lambda line: None)


def test_an_idle_process_on_the_card_is_a_warning():
    class Visited(SimulatedCard):
        def neighbours(self):
            return SimulatedCard(faults=Faults(neighbour_w=1.0)).neighbours()

    assert found(Visited()) == {(Code.NEIGHBOUR, "warning")}


def test_settings_of_others_are_told(tmp_path):
    file = tmp_path / "card.json"
    SimulatedCard(file=file).apply(Settings((345.0, 1200.0), 500.0))
    examination = examine_at(f"sim:{file}")
    assert {finding.code for finding in examination.findings} == {Code.LIMIT_CHANGED, Code.CLOCK_LOCKED}
    assert examination.fit
    assert examination.facts.power_limit_w == 500.0


def test_errors_come_first():
    faults = Faults(privileged=False, energy_counter=False, mig=True)
    assert [f.severity for f in examine(SimulatedCard(faults=faults)).findings] == ["error", "warning", "note"]


def test_a_card_that_cannot_be_opened_is_a_finding(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    for locator in ("nvml:0", "amd:0"):
        examination = examine_at(locator)
        assert examination.facts is None
        assert [finding.code for finding in examination.findings] == [Code.NO_PACKAGE]
        assert "nstall" in examination.findings[0].remedy


@pytest.mark.parametrize(
    ("sensors", "source"), [(Sensors(history_step_s=0.02), "power history"), (Sensors(history_step_s=0.0), "counter")]
)
def test_a_disagreement_names_what_energies_rest_on(sensors, source):
    """The same that rows say of themselves."""
    card = SimulatedCard(sensors=sensors, faults=Faults(power_error=0.08))
    (found,) = (one for one in examine(card).findings if one.code is Code.DISAGREEMENT)
    assert f"Energies are taken from the {source}." in found.remedy
    row = measure(card, SimulatedRunner(card), VirtualSampler, Microbenchmark("gemm", GEMM, "gemm")).row
    assert row["measured_energy_source"] in source


def test_sensors_are_compared_under_load_too():
    card = SimulatedCard(faults=Faults(power_error=0.06))
    load = SimulatedRunner(card).prepare(Microbenchmark("gemm", GEMM, "gemm"))
    samples = []
    load.run(2.0)
    end = card.watch(0.02, lambda: samples.append(card.sample()))
    load.run(2.5)
    end()
    assert compare(samples) == pytest.approx(0.06, abs=0.01)
    assert compare([replace(s, energy_j=None) for s in samples]) is None
    unsteady = [replace(s, power_w=s.power_w * (1.3 if i % 2 else 0.7)) for i, s in enumerate(samples)]
    assert compare(unsteady) is None


def test_a_counter_that_counts_another_unit_is_found():
    class Thousandths(SimulatedCard):
        def sample(self):
            plain = super().sample()
            return replace(plain, energy_j=plain.energy_j / 1000.0)

    assert found(Thousandths(sensors=Sensors(counter_noise_j=0.0))) == {(Code.COUNTER_WRONG, "error")}
