"""Measuring microbenchmarks on cards whose truth is known, and on cards with something wrong."""

import json
from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.descriptions.describe import fit_all
from joulecast.calibrate.descriptions.from_rows import facts_of
from joulecast.calibrate.devices import simulated_sensors
from joulecast.calibrate.devices.protocol import Settings
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_runner import SimulatedRunner
from joulecast.calibrate.devices.simulated_sensors import Faults, Sensors
from joulecast.calibrate.fit.power import at_rest, power_at_observed_clock_w
from joulecast.calibrate.fit.tables import collect
from joulecast.calibrate.measure.faults import Reason
from joulecast.calibrate.measure.protocol import Measurement, measure
from joulecast.calibrate.measure.recording import Failed
from joulecast.calibrate.measure.sampler import SamplerPool, VirtualSampler
from joulecast.calibrate.measure.settings import MeasureSettings, expected_cost_s
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.rows.measured import row_of
from joulecast.errors import DeviceError, MeasurementError
from joulecast.model.power.governor import TENSOR_CLOCK_SHARE

ROWS = {
    "gemm": {"op": "gemm", "M": 4096, "N": 4096, "K": 4096, "dtype": "bf16"},
    "small": {"op": "gemm", "M": 512, "N": 512, "K": 512, "dtype": "bf16"},
    "copy": {"op": "copy", "bytes": 2**30, "dtype": "bf16"},
    "exp": {"op": "exp", "bytes": 2**28, "dtype": "fp32"},
}
IDLE = {"op": "idle"}
NO_HISTORY = Sensors(history_step_s=0.0)
PULSE = {"op": "pulse", "M": 4096, "N": 4096, "K": 4096, "dtype": "bf16", "busy_s": 0.4, "idle_s": 0.2}


def benchmark(row, **rest):
    return Microbenchmark(str(row["op"]), row, "stratum", **rest)


def measured(card, row, runner=None, settings=None, budget_s=float("inf"), **rest):
    with SamplerPool() as pool:
        return measure(card, runner or SimulatedRunner(card), pool, benchmark(row, **rest), settings, budget_s)


def truth(row, settle_s=1.0, seconds=2.6):
    """Time, energy and power of a repetition in the stretch that is measured, without any measuring."""
    card = SimulatedCard(sensors=Sensors(repeat_noise=0.0))
    load = SimulatedRunner(card).prepare(benchmark(row))
    load.run(settle_s)
    begin_s, begin_j = card.board.state.time_s, card.board.state.energy_j
    repetitions, busy_s = load.run(seconds)
    power = (card.board.state.energy_j - begin_j) / (card.board.state.time_s - begin_s)
    return busy_s / repetitions, power * busy_s / repetitions, power


@pytest.mark.parametrize("name", ROWS)
def test_energy_of_a_repetition_is_recovered(name):
    found = measured(SimulatedCard(), ROWS[name])
    assert isinstance(found, Measurement)
    time_s, energy_j, power_w = truth(ROWS[name], found.row["settle_s"], found.row["measured_window_s"])
    assert found.row["time_s"] == pytest.approx(time_s, rel=5e-3)
    assert found.row["power_w"] == pytest.approx(power_w, rel=5e-3)
    assert found.row["energy_j"] == pytest.approx(energy_j, rel=5e-3)
    assert found.error < 0.005 and found.warnings == ()
    assert found.row["measured_window_s"] >= 2.5 and found.row["measured_history_steps"] >= 125
    assert found.row["measured_energy_source"] == "history"
    assert abs(found.row["measured_history_over_counter"]) < 0.04


def test_a_steady_benchmark_costs_one_window():
    found = measured(SimulatedCard(), ROWS["copy"])
    assert found.windows == found.row["measured_repeats"] == 1
    assert found.spent_s < 3.65
    found = measured(SimulatedCard(sensors=NO_HISTORY), ROWS["copy"])
    assert found.windows == found.row["measured_repeats"] == 1
    assert found.spent_s == pytest.approx(expected_cost_s(ROWS["copy"], MeasureSettings()), abs=0.05)
    assert found.row["measured_energy_source"] == "counter" and found.row["measured_counter_steps"] >= 20


def test_a_row_is_what_rows_are():
    found = measured(SimulatedCard(), {**ROWS["gemm"], "data": "randn", "flops": 1.5e11})
    row = row_of(json.loads(json.dumps(found.row)), "f", 1)
    assert row.name == "gemm" and row.op == "gemm"
    assert row.configuration.items() >= {**ROWS["gemm"], "data": "randn", "flops": 1.5e11}.items()
    assert row.configuration.keys() - ROWS["gemm"].keys() == {"name", "data", "flops", "settle_s", "target_window_s"}
    assert row.settle_s >= 1.0 and row.window_s == 2.5
    assert row.measured.temperature_c is not None and 1200 < row.measured.sm_clock_mhz < 1980
    assert row.measured.raw["power_cap_fraction"] > 0.9  # a product this large is held by the limit
    assert row.measured.raw["measured_reasons"]["power_limit"] > 0.9


def test_the_clock_that_a_card_counted_is_that_of_its_board_and_lower_on_tensor_cores():
    found = measured(SimulatedCard(), ROWS["gemm"]).row
    slowed = TENSOR_CLOCK_SHARE * found["measured_sm_clock_mean_mhz"]
    assert found["measured_counted_clock_mhz"] == pytest.approx(slowed, rel=5e-3)
    locked = SimulatedCard()
    locked.apply(Settings(locked_clock_mhz=(990.0, 990.0)))
    assert measured(locked, ROWS["copy"]).row["measured_counted_clock_mhz"] == pytest.approx(990.0)


@pytest.mark.parametrize(
    "row",
    [
        IDLE,
        PULSE,
        {"op": "duty", "duty": 0.5},
        {**ROWS["copy"], "companion": "randn"},
        {**ROWS["copy"], "companion": "none"},
    ],
)
def test_work_with_pauses_or_beside_other_work_has_no_clock_of_its_own(row):
    found = measured(SimulatedCard(), row)
    assert isinstance(found, Measurement) and "measured_counted_clock_mhz" not in found.row


class CountingRunner(SimulatedRunner):
    """Work whose clock is counted as 1000, 1001, … MHz, except in the runs that ``fails`` tells."""

    def __init__(self, card, fails=()):
        super().__init__(card)
        self.fails, self.runs = fails, []

    def prepare(self, benchmark):
        load, real = super().prepare(benchmark), self

        class Counting:
            def run(self, duration_s):
                count, seconds = load.run(duration_s)
                seconds *= 1 + 0.2 * (len(real.runs) % 2)
                real.runs.append(seconds)
                place = len(real.runs)
                self.counted_clock_mhz = None if place in real.fails else 1000.0 + 100.0 * (place % 2)
                return count, seconds

            def close(self):
                load.close()

        return Counting()


def test_the_counted_clock_is_the_mean_over_the_seconds_of_all_runs():
    card = SimulatedCard()
    runner = CountingRunner(card)
    settings = MeasureSettings(most_windows=2, error=1e-9)
    row = measured(card, ROWS["copy"], runner, settings).row
    assert row["measured_repeats"] == 2
    of_windows = np.array(runner.runs[-2 * settings.segments :])
    places = np.arange(len(runner.runs) + 1)[-len(of_windows) :]
    clocks = 1000.0 + 100.0 * (places % 2)
    assert abs(np.mean(clocks) - np.average(clocks, weights=of_windows)) > 1.0
    assert row["measured_counted_clock_mhz"] == pytest.approx(np.average(clocks, weights=of_windows))


def test_a_run_that_was_not_counted_leaves_the_row_without_a_counted_clock():
    runner = CountingRunner(SimulatedCard())
    assert "measured_counted_clock_mhz" in measured(runner.card, ROWS["copy"], runner).row
    last = len(runner.runs)
    runner = CountingRunner(SimulatedCard(), fails=(last,))
    assert "measured_counted_clock_mhz" not in measured(runner.card, ROWS["copy"], runner).row
    assert len(runner.runs) == last
    while_settling = CountingRunner(SimulatedCard(), fails=(1,))
    assert "measured_counted_clock_mhz" in measured(while_settling.card, ROWS["copy"], while_settling).row


def test_other_counters_give_the_same():
    _, _, power_w = truth(ROWS["copy"])
    volta = replace(NO_HISTORY, counter_step_s=0.02, counter_phase_s=0.004)
    assert measured(SimulatedCard(sensors=volta), ROWS["copy"]).row["power_w"] == pytest.approx(power_w, rel=5e-3)
    slow = measured(SimulatedCard(sensors=replace(NO_HISTORY, counter_step_s=0.2)), ROWS["copy"])
    assert slow.row["measured_counter_steps"] >= 20 and slow.row["measured_window_s"] >= 4.0
    assert slow.row["power_w"] == pytest.approx(power_w, rel=5e-3)


def test_without_a_counter_power_is_integrated_and_its_error_stated():
    _, _, power_w = truth(ROWS["copy"])
    found = measured(SimulatedCard(faults=Faults(energy_counter=False), sensors=NO_HISTORY), ROWS["copy"])
    assert found.row["measured_energy_source"] == "polled"
    assert found.row["power_w"] == pytest.approx(power_w, rel=5e-3)
    assert 0.0 < found.row["measured_energy_sd"] < 0.005


def test_noise_is_answered_by_more_windows_until_the_budget_ends():
    noisy = Sensors(repeat_noise=0.1)
    found = measured(SimulatedCard(sensors=noisy), ROWS["copy"])
    assert found.windows == MeasureSettings().most_windows
    assert found.error > 0.005
    assert any("the standard error is" in warning for warning in found.warnings)
    assert found.row["measured_warnings"] == list(found.warnings)
    short = measured(SimulatedCard(sensors=noisy), ROWS["copy"], budget_s=7.0)
    assert short.windows == 2 and short.spent_s < 7.0
    assert measured(SimulatedCard(sensors=noisy), ROWS["copy"], budget_s=0.1).windows == 1


def test_stated_errors_hold():
    """Over many cards the deviations are about as large as the stated standard errors."""
    time_s, _, power_w = truth(ROWS["small"])
    pulls = []
    for seed in range(12):
        found = measured(SimulatedCard(seed=seed, sensors=Sensors(repeat_noise=0.004)), ROWS["small"]).row
        pulls.append((found["time_s"] / time_s - 1.0) / found["measured_time_sd"])
        assert abs(found["power_w"] / power_w - 1.0) < 0.005
    assert 0.4 < (sum(p * p for p in pulls) / len(pulls)) ** 0.5 < 2.5


def test_a_stall_repeats_the_window():
    _, _, power_w = truth(ROWS["copy"])
    found = measured(SimulatedCard(faults=Faults(stall_every_s=2.0, stall_s=0.9)), ROWS["copy"])
    assert isinstance(found, Failed) and found.reason == Reason.DRIVER_STALLED
    card = SimulatedCard(faults=Faults(stall_every_s=4.5, stall_s=0.9))
    card.sleep(1.2)  # the first window is spoilt, the second is not
    found = measured(card, ROWS["copy"])
    assert isinstance(found, Measurement)
    assert found.row["measured_spoilt_windows"] == found.windows == 1
    assert found.row["power_w"] == pytest.approx(power_w, rel=5e-3)
    assert found.row["measured_stall_s"] < 0.15


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (Faults(counter="still"), Reason.COUNTER_STILL),
        (Faults(counter="backward"), Reason.COUNTER_BACKWARD),
        (Faults(missing=("energy_j",)), Reason.NO_READINGS),
        (Faults(dies_at_s=2.0), Reason.DEVICE_LOST),
    ],
)
@pytest.mark.parametrize("sensors", [Sensors(), NO_HISTORY], ids=["history", "counter"])
def test_what_cannot_be_measured_is_a_named_failure(faults, reason, sensors):
    found = measured(SimulatedCard(faults=faults, sensors=sensors), ROWS["copy"])
    assert isinstance(found, Failed)
    assert (found.name, found.reason) == ("copy", reason)
    assert found.detail


def test_a_card_that_is_still_warm_says_so_and_its_leakage_is_taken_at_that_temperature():
    card = SimulatedCard()
    cold = measured(card, ROWS["copy"]).row
    card.sleep(60.0)
    rested = measured(card, IDLE).row
    measured(card, ROWS["gemm"], settings=replace(MeasureSettings(), settle_s=30.0, most_settle_s=40.0))
    warm = measured(card, IDLE).row
    assert cold["measured_temp_change_k"] > 1.0 and warm["measured_temp_change_k"] < -1.0
    assert abs(rested["measured_temp_change_k"]) < 1.0
    assert warm["power_w"] > rested["power_w"] + 2.0
    for row, unsteady in ((rested, False), (warm, True)):
        found = at_rest([row_of(row, "rows.jsonl", 1)])
        assert bool(np.isfinite(found.temperature_c[0])) == unsteady
        assert found.expected_w(card.truth) == pytest.approx(row["power_w"], abs=0.5)
    found = collect([row_of(cold, "rows.jsonl", 1)])
    assert found.temperature_c[0] == cold["gpu_temp_c"]
    assert power_at_observed_clock_w(found, card.truth) == pytest.approx(cold["power_w"], abs=0.5)


def test_rows_that_tell_of_their_warmth_tell_of_the_room_of_the_described_card():
    def rows(inlet_offset_c):
        card = SimulatedCard(faults=Faults(inlet_offset_c=inlet_offset_c))
        found = [measured(card, row).row for row in (ROWS["gemm"], ROWS["copy"], IDLE, ROWS["exp"], ROWS["gemm"])]
        return [row_of(row, "rows.jsonl", 1) for row in found]

    def inlet_c(*found):
        fit = fit_all(found, facts_of("h200-sxm"), cross_validate=False).description
        return fit.power.parameters["inlet_c"].number

    here, warm = rows(0.0), rows(8.0)
    untold = [replace(row, measured=replace(row.measured, temperature_change_k=None)) for row in warm]
    others = [replace(row, configuration={**row.configuration, "card": "other"}) for row in warm]
    assert inlet_c(*warm) > inlet_c(*here) + 2.0  # of 8 K, after few rows
    assert inlet_c(*untold) == pytest.approx(35.0, abs=0.5)
    assert inlet_c(*here, *others) == pytest.approx(inlet_c(*here), abs=0.7)


def test_a_window_in_which_the_counter_jumps_is_measured_again_or_fails_by_name(monkeypatch):
    healthy = measured(SimulatedCard(sensors=NO_HISTORY), ROWS["copy"])
    monkeypatch.setattr(simulated_sensors, "JUMP_EVERY_S", 3.5)
    found = measured(SimulatedCard(faults=Faults(counter="jumps"), sensors=NO_HISTORY), ROWS["copy"])
    assert found.row["power_w"] == pytest.approx(healthy.row["power_w"], rel=0.01)
    assert found.row["measured_spoilt_windows"] == 1
    monkeypatch.setattr(simulated_sensors, "JUMP_EVERY_S", 1.0)
    found = measured(SimulatedCard(faults=Faults(counter="jumps"), sensors=NO_HISTORY), ROWS["copy"])
    assert isinstance(found, Failed)
    assert found.reason == Reason.COUNTER_JUMPED
    assert "the energy counter jumped by 656" in found.detail


def test_where_power_has_a_history_a_counter_that_jumps_is_told_and_spoils_nothing(monkeypatch):
    healthy = measured(SimulatedCard(), ROWS["copy"])
    monkeypatch.setattr(simulated_sensors, "JUMP_EVERY_S", 3.5)
    found = measured(SimulatedCard(faults=Faults(counter="jumps")), ROWS["copy"])
    assert found.row["power_w"] == pytest.approx(healthy.row["power_w"], rel=0.01)
    assert "measured_spoilt_windows" not in found.row
    (told,) = [warning for warning in found.warnings if "counter" in warning]
    assert told.startswith("the energy counter jumped: 9") and "on which alone the row rests" in told


def test_neither_energy_nor_power_is_a_named_failure():
    faults = Faults(energy_counter=False, missing=("power_w", "average_power_w"))
    found = measured(SimulatedCard(faults=faults, sensors=NO_HISTORY), ROWS["copy"])
    assert isinstance(found, Failed) and found.reason == Reason.NO_READINGS


class BrokenRunner:
    """Work that cannot begin, or that ends badly."""

    counted_clock_mhz = None

    def __init__(self, prepare=None, run=None, after=0):
        self.prepare_error, self.run_error, self.left = prepare, run, after
        self.closed = False

    def prepare(self, benchmark):
        if self.prepare_error:
            raise self.prepare_error
        return self

    def run(self, duration_s):
        self.left -= 1
        if self.left < 0:
            raise self.run_error
        self.card.sleep(duration_s)
        return 1, duration_s

    def close(self):
        self.closed = True


def has_stopped(sampler, card):
    sampler.take()
    card.sleep(0.5)
    return sampler.take() == ([], [])


def test_work_that_fails_is_a_named_failure():
    card = SimulatedCard()
    found = measured(card, ROWS["copy"], BrokenRunner(prepare=MeasurementError("fp8 is missing")))
    assert found == Failed("copy", "not-runnable", "fp8 is missing")
    runner = BrokenRunner(run=MeasurementError("out of memory"), after=3)
    runner.card = card
    sampler = VirtualSampler(card)
    found = measure(card, runner, lambda _: sampler, benchmark(ROWS["copy"]))
    assert found == Failed("copy", "work-failed", "out of memory")
    assert runner.closed and has_stopped(sampler, card)


def test_an_interruption_stops_the_sampler_and_frees_the_memory():
    card, runner = SimulatedCard(), BrokenRunner(run=KeyboardInterrupt(), after=2)
    runner.card = card
    sampler = VirtualSampler(card)
    with pytest.raises(KeyboardInterrupt):
        measure(card, runner, lambda _: sampler, benchmark(ROWS["copy"]))
    assert runner.closed and has_stopped(sampler, card)


def test_a_hot_card_marks_its_row():
    found = measured(SimulatedCard(faults=Faults(inlet_offset_c=60.0)), ROWS["gemm"])
    assert found.row["measured_reasons"]["thermal"] > 0.5
    assert any("throttled for its temperature" in warning for warning in found.warnings)


def test_counter_and_polled_power_are_held_against_each_other():
    found = measured(SimulatedCard(faults=Faults(power_error=0.08), sensors=NO_HISTORY), ROWS["copy"])
    assert any("polled power is +8" in warning for warning in found.warnings)
    assert not measured(SimulatedCard(faults=Faults(power_error=0.03), sensors=NO_HISTORY), ROWS["copy"]).warnings


@pytest.mark.parametrize("phase_s", [0.01 * k for k in range(0, 10, 3)])
@pytest.mark.parametrize(("error", "told"), [(0.09, True), (-0.09, True), (0.015, False), (0.0, False)])
def test_history_and_counter_are_held_against_each_other(error, told, phase_s):
    card = SimulatedCard(faults=Faults(power_error=error), sensors=Sensors(counter_phase_s=phase_s))
    found = measured(card, ROWS["copy"])
    assert found.row["measured_history_over_counter"] == pytest.approx(error, abs=0.04)
    assert any("off the energy counter" in warning for warning in found.warnings) is told


def test_idling_has_power_alone():
    found = measured(SimulatedCard(), {"op": "idle"})
    assert found.windows == 1
    assert 60 < found.row["power_w"] < 140
    assert not {"time_s", "energy_j", "measured_time_sd"} & found.row.keys()


def test_settling_is_asked_for_by_the_row():
    found = measured(SimulatedCard(), {"op": "idle", "settle_s": 6.0, "target_window_s": 4.0})
    assert found.row["settle_s"] == pytest.approx(6.0, abs=0.1)
    assert found.row["target_window_s"] == 4.0 and found.row["measured_window_s"] >= 4.0


def test_a_duty_cycle_has_its_share():
    found = measured(SimulatedCard(), {"op": "duty", "duty": 0.4})
    assert found.row["measured_busy_share"] == pytest.approx(0.4, rel=0.03)
    assert found.row["power_w"] == pytest.approx(truth({"op": "duty", "duty": 0.4})[2], rel=0.02)
    assert not {"time_s", "energy_j"} & found.row.keys()


def test_pulses_tell_the_power_of_their_busy_part():
    time_s, _, power_w = truth(PULSE, 1.2, 3.0)
    found = measured(SimulatedCard(), PULSE).row
    assert found["power_w"] == pytest.approx(power_w, rel=0.01)
    assert found["time_s"] == pytest.approx(time_s, rel=0.01)
    assert found["measured_busy_share"] == pytest.approx(2 / 3, rel=0.01)
    idle = measured(SimulatedCard(), {"op": "idle"}).row["power_w"]
    assert found["measured_idle_power_w"] == pytest.approx(idle, rel=0.2)
    whole = found["measured_busy_share"] * found["measured_busy_power_w"]
    assert whole + (1 - found["measured_busy_share"]) * found["measured_idle_power_w"] == pytest.approx(
        found["power_w"]
    )
    assert "energy_j" not in found


def test_pulses_too_long_for_batches_take_a_second_window():
    found = measured(SimulatedCard(), {**PULSE, "busy_s": 1.0, "idle_s": 0.5})
    assert found.windows >= 2 and found.error < 0.05
    assert 0.0 < found.row["measured_energy_sd"] <= found.error


def test_work_beside_other_work_has_no_energy_of_its_own():
    found = measured(SimulatedCard(), {**ROWS["copy"], "companion": "randn"}).row
    assert not {"energy_j", "power_w"} & found.keys()
    assert found["measured_loop_power_w"] > 500 and found["time_s"] > 0


def test_components_are_recorded():
    found = measured(SimulatedCard(sensors=Sensors(components=True)), ROWS["copy"]).row
    parts = [found[f"measured_{name}_w"] for name in ("xcd", "aid", "hbm")]
    assert sum(parts) == pytest.approx(found["power_w"], rel=0.02)


def test_scatter_is_no_drift_and_pulses_stay_with_the_counter():
    scattered = [measured(SimulatedCard(seed=s, sensors=Sensors(history_noise_w=35.0)), ROWS["exp"]) for s in range(8)]
    assert not any("still changed" in warning for found in scattered for warning in found.warnings)
    assert sum(found.row["settle_s"] < 1.1 for found in scattered) >= 6
    pulse = measured(SimulatedCard(), PULSE).row
    assert pulse["measured_energy_source"] == "counter" and pulse["measured_counter_steps"] >= 20


def test_stated_errors_of_the_history_hold():
    """Deviations from the truth are about as large as stated, and known to half a percent for what a window costs."""
    noisy = [measured(SimulatedCard(seed=s, sensors=Sensors(history_noise_w=12.0)), ROWS["copy"]) for s in range(12)]
    _, _, power_w = truth(ROWS["copy"], 1.0, 2.6)
    pulls = [(m.row["power_w"] / power_w - 1.0) / m.row["measured_energy_sd"] for m in noisy]
    assert 0.4 < (sum(p * p for p in pulls) / len(pulls)) ** 0.5 < 2.0
    assert all(m.error < 0.005 for m in noisy) and sum(m.spent_s < 4.2 for m in noisy) >= 11


class BothRunner:
    """The same work on two cards."""

    counted_clock_mhz = None

    def __init__(self, cards):
        self.cards = cards

    def prepare(self, benchmark):
        self.loads = [SimulatedRunner(card).prepare(benchmark) for card in self.cards]
        return self

    def run(self, duration_s):
        done = [load.run(duration_s) for load in self.loads]
        return done[0]

    def close(self):
        pass


def test_several_cards_are_summed():
    cards = [SimulatedCard(), SimulatedCard(seed=1, truth={"power.static_w": 100.0})]
    time_s, _, power_w = truth(ROWS["copy"])
    found = measure(cards, BothRunner(cards), VirtualSampler, benchmark(ROWS["copy"], gpus=2)).row
    first, second = found["power_w_per_gpu"]
    assert first == pytest.approx(power_w, rel=5e-3)
    assert abs(second - first) > 5.0
    assert found["energy_j"] == pytest.approx((first + second) * found["time_s"])
    assert len(found["sm_clock_mhz_per_gpu"]) == len(found["gpu_temp_c_per_gpu"]) == 2
    row = row_of(found, "f", 1)
    assert row.measured.power_w == pytest.approx(first + second)
    assert row.measured.time_s == pytest.approx(time_s, rel=5e-3)


def test_a_stall_of_one_card_spoils_the_window_of_all():
    cards = [SimulatedCard(), SimulatedCard(faults=Faults(stall_every_s=1.5, stall_s=0.5))]
    found = measure(cards, BothRunner(cards), VirtualSampler, benchmark(ROWS["copy"], gpus=2))
    assert isinstance(found, Failed) and found.reason == Reason.DRIVER_STALLED


def test_the_number_of_cards_must_fit():
    found = measured(SimulatedCard(), ROWS["copy"], gpus=2)
    assert found == Failed("copy", "not-runnable", "it takes 2 GPUs, 1 are measured")


@pytest.mark.parametrize("sensors", [Sensors(), NO_HISTORY], ids=["history", "counter"])
def test_a_drift_that_does_not_end_is_told(sensors):
    class Drifting(SimulatedCard):
        def sample(self, *, counter=True):
            found = super().sample(counter=counter)
            return replace(found, power_w=400.0 * 1.2**found.time_s)

        def power_history(self, since_s):
            found = super().power_history(since_s)
            return [replace(one, power_w=400.0 * 1.2**one.time_s) for one in found]

    found = measured(Drifting(sensors=sensors), ROWS["copy"])
    assert found.row["settle_s"] == pytest.approx(MeasureSettings().most_settle_s, abs=0.03)
    assert any("still changed by" in warning for warning in found.warnings)


def test_a_device_error_in_the_work_is_the_devices():
    runner = BrokenRunner(run=DeviceError("fell off the bus"))
    assert measured(SimulatedCard(), ROWS["copy"], runner).reason == Reason.DEVICE_LOST
