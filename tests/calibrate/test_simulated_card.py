"""The simulated card: its steady state is the model's, its sensors are those of real cards, its faults can be seen."""

import signal
import subprocess
import sys
from itertools import pairwise

import pytest

from joulecast.calibrate.devices import open_device
from joulecast.calibrate.devices.protocol import Settings
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_board import Dynamics
from joulecast.calibrate.devices.simulated_runner import SimulatedRunner
from joulecast.calibrate.devices.simulated_sensors import Faults, Sensors
from joulecast.calibrate.devices.simulated_work import SimulatedWork
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.rows.operators import operator_of
from joulecast.errors import DeviceError, InputError, MeasurementError, PermissionDeniedError, UnknownNameError
from joulecast.model.kernels.operators import Gemm
from joulecast.model.power.kernel_power import idle_power_w
from joulecast.model.predict import predict_work

GEMM = {"op": "gemm", "M": 8192, "N": 8192, "K": 8192, "dtype": "bf16", "data": "randn"}
SMALL = {"op": "gemm", "M": 1024, "N": 1024, "K": 1024, "dtype": "bf16", "data": "zeros"}
COPY = {"op": "copy", "bytes": 2.0**30, "dtype": "bf16"}
NORM = {"op": "stream", "pattern": "rmsnorm", "bytes_read": 2.0**26, "bytes_written": 2.0**26, "shape": [8192, 4096]}
ATTENTION = {
    "op": "flash_attn",
    "backend": "CUDNN_ATTENTION",
    "direction": "bwd",
    "B": 4,
    "Hq": 32,
    "Hkv": 8,
    "S": 4096,
    "D": 128,
    "dtype": "bf16",
}


def load(card, row):
    return SimulatedRunner(card).prepare(Microbenchmark("row", row, "any"))


def measure(card, row, settle_s=3.0, window_s=2.6):
    """Time of a repetition and true mean power of a window."""
    prepared = load(card, row)
    prepared.run(settle_s)
    start = card.now()
    count, busy_s = prepared.run(window_s)
    return busy_s / count, card.board.power_between(start, card.now())


def forecast(card, row, **conditions):
    work = operator_of(row)
    found = predict_work([work], card.truth, **conditions)
    return found.time_s[0], found.power_w[0]


@pytest.mark.parametrize("row", [GEMM, SMALL, COPY, NORM, ATTENTION], ids=lambda r: r.get("pattern") or r["op"])
@pytest.mark.parametrize("settings", [Settings(), Settings(power_limit_w=400.0), Settings((345.0, 1200.0))], ids=str)
def test_it_settles_where_the_model_says(row, settings):
    card = SimulatedCard(sensors=Sensors(repeat_noise=0.0), dynamics=Dynamics(thermal_tau_s=0.3))
    card.apply(settings)
    time_s, power_w = measure(card, row)
    locked = settings.locked_clock_mhz
    expected = forecast(card, row, clock_mhz=locked and locked[1], power_limit_w=settings.power_limit_w)
    assert time_s == pytest.approx(expected[0], rel=4e-3)
    assert power_w == pytest.approx(expected[1], rel=4e-3)


def test_idle_is_the_models_and_a_limit_below_the_lowest_clocks_power_is_not_held():
    card = SimulatedCard()
    assert measure(card, {"op": "idle"})[1] == pytest.approx(float(idle_power_w(1980.0, card.truth)), rel=1e-3)
    card.apply(Settings(power_limit_w=200.0))
    hungry = SimulatedCard(truth={"power.static_w": 180.0})
    hungry.apply(Settings(power_limit_w=200.0))
    power_w = measure(hungry, GEMM)[1]
    assert power_w > 205.0
    seen = []
    hungry.watch(0.5, lambda: seen.append(hungry.sample()))
    load(hungry, GEMM).run(2.2)
    assert seen[-1].sm_clock_mhz == 345.0
    assert "power_limit" in seen[-1].reasons


def test_truth_moves_the_card_and_an_unknown_name_is_refused():
    name = "power.tensor_pj_per_flop.bf16"
    plain = SimulatedCard()
    raised = SimulatedCard(truth={name: 1.3 * plain.truth[name]})
    for card in (plain, raised):
        card.apply(Settings((345.0, 1200.0)))
    (time_s, less), (_, more) = measure(plain, GEMM), measure(raised, GEMM)
    voltage = 1.0 - plain.truth["voltage.slope"] * (1.0 - 1200.0 / 1980.0)
    added = 0.3 * 2.0 * 8192**3 * plain.truth[name] * 1e-12 * voltage**2
    assert (more - less) * time_s == pytest.approx(added, rel=0.025)  # the warmth that it brings leaks a little more
    with pytest.raises(UnknownNameError, match=r"tensor_pj_per_flop\.bf16"):
        SimulatedCard(truth={"power.tensor_pj_per_flop.bf61": 1.0})


def test_a_new_load_bursts_before_the_slow_average_meets_the_limit():
    card = SimulatedCard()
    start, prepared = card.now(), load(card, GEMM)
    prepared.run(4.0)
    power = card.board.power_between
    assert power(start, start + 0.02) > 800.0
    assert power(start + 0.2, start + 0.8) == pytest.approx(700.0 * card.truth["governor.burst_share"], rel=0.01)
    assert power(start + 2.0, start + 4.0) == pytest.approx(700.0 * card.truth["governor.settled_share"], rel=0.005)


def test_settings_take_their_time():
    card = SimulatedCard(truth={"transition.clock_s": 0.05})
    seen = []
    card.watch(0.01, lambda: seen.append(card.sample()))
    card.apply(Settings((345.0, 990.0)))
    card.sleep(0.1)
    late = next(s for s in seen if s.sm_clock_mhz == 990.0)
    assert late.time_s == pytest.approx(0.05, abs=0.011)
    assert seen[0].sm_clock_mhz == 1980.0
    assert "locked_clock" in late.reasons
    card.apply(Settings())
    card.sleep(0.1)
    assert card.sample().sm_clock_mhz == 1980.0


def test_work_warms_the_card_and_warmth_costs_power():
    card = SimulatedCard(dynamics=Dynamics(thermal_tau_s=4.0))
    cold = card.sample().temperature_c
    idle = card.board.power_between(-1.0, 0.0)
    load(card, GEMM).run(30.0)
    end, warm = card.now(), card.sample().temperature_c
    expected = card.truth["power.thermal_resistance_k_per_w"] * (692.8 - idle)
    assert warm - cold == pytest.approx(expected, abs=1.5)
    card.sleep(1.0)
    extra = card.board.power_between(end + 0.1, end + 0.2) - idle
    assert extra == pytest.approx(card.truth["power.leakage_w_per_k"] * expected, rel=0.06)
    card.sleep(30.0)
    assert card.sample().temperature_c == cold


def test_the_counter_moves_in_steps_and_is_right_on_average():
    card = SimulatedCard(sensors=Sensors(counter_step_s=0.1, counter_phase_s=0.03, counter_noise_j=0.05))
    seen = []
    end = card.watch(0.01, lambda: seen.append(card.sample()))
    load(card, GEMM).run(6.0)
    end()
    moves = [b.time_s for a, b in pairwise(seen) if b.energy_j != a.energy_j]
    assert len(moves) == 60
    assert all((t - 0.03 + 1e-6) % 0.1 < 0.012 for t in moves)
    first, last = seen[305], seen[-1]
    true = card.board.energy_at(5.93) - card.board.energy_at(3.03)
    assert last.energy_j - first.energy_j == pytest.approx(true, abs=0.3)
    assert true > 1900.0
    power = [s.power_w for s in seen[300:]]
    assert len(set(power)) == pytest.approx(30, abs=1)


def test_polled_power_sees_the_window_before_each_step_only():
    sensors = Sensors(power_step_s=0.1, power_window_s=0.025, counter_phase_s=0.0, power_noise_w=0.0)
    card = SimulatedCard(sensors=sensors)
    prepared = load(card, {**GEMM, "op": "pulse", "busy_s": 0.05, "idle_s": 0.05})
    seen = []
    card.watch(0.1, lambda: seen.append(card.sample()))
    prepared.run(3.0)
    mean = card.board.power_between(1.0, 3.0)
    assert mean == pytest.approx(card.board.power_between(2.0, 3.0), rel=0.03)
    assert mean > 400.0
    # The window falls into the pause, always.
    assert all(s.power_w < 160.0 for s in seen[1:])
    assert seen[-1].average_power_w == pytest.approx(mean, rel=0.03)


def test_duty_cycles_pulses_and_companions_count_only_the_benchmarks_time():
    card = SimulatedCard(sensors=Sensors(repeat_noise=0.0))
    alone = forecast(card, {**GEMM})
    time_s, power_w = measure(card, {"op": "duty", "duty": 0.5}, window_s=5.0)
    assert time_s < 10.0 * alone[0]
    assert power_w == pytest.approx(forecast(card, {"op": "duty", "duty": 0.5})[1], rel=0.05)
    small = {**GEMM, "M": 4096, "N": 4096, "K": 4096}
    pulse = measure(card, {**small, "op": "pulse", "busy_s": 0.5, "idle_s": 0.5}, window_s=4.0)
    steady = measure(card, small)
    assert pulse[0] == pytest.approx(steady[0], rel=0.06)
    assert pulse[1] < 0.8 * steady[1]
    slow = {"op": "flash_attn", **{k: v for k, v in ATTENTION.items() if k != "op"}}
    beside = {word: measure(card, {**slow, "companion": word})[0] for word in ("randn", "zeros", "none")}
    assert beside["zeros"] < beside["randn"]
    assert measure(card, {**NORM, "companion": "randn"})[1] == pytest.approx(692.8, rel=0.01)
    assert measure(card, {**NORM, "companion": "zeros"})[1] < 550.0
    with pytest.raises(MeasurementError, match="companion"):
        load(card, {**NORM, "companion": "ones"})


def test_run_returns_whole_repetitions_even_of_long_work():
    card = SimulatedCard(sensors=Sensors(repeat_noise=0.0))
    count, busy_s = load(card, {**GEMM, "M": 65536, "N": 65536, "K": 65536}).run(0.1)
    assert count == 1
    assert busy_s > 0.5
    assert load(card, {"op": "idle"}).run(1.5) == (1, pytest.approx(1.5))


def test_the_time_of_runs_has_the_stated_noise():
    card = SimulatedCard(sensors=Sensors(repeat_noise=0.01))
    prepared = load(card, SMALL)
    times = [busy_s / count for count, busy_s in (prepared.run(0.05) for _ in range(60))]
    mean = sum(times) / len(times)
    spread = (sum((t - mean) ** 2 for t in times) / 59) ** 0.5
    assert spread / mean == pytest.approx(0.01, rel=0.35)
    again = SimulatedCard(sensors=Sensors(repeat_noise=0.01))
    assert load(again, SMALL).run(0.05)[1] / load(again, SMALL).run(0.05)[1] == pytest.approx(times[0] / times[1])


def test_components_add_up_to_the_whole():
    card = SimulatedCard(sensors=Sensors(components=True, counter_noise_j=0.0, counter_step_s=0.001))
    assert card.facts.components == ("xcd", "aid", "hbm")
    before = card.sample()
    load(card, COPY).run(1.0)
    after = card.sample()
    parts = {name: after.components_j[name] - before.components_j[name] for name in card.facts.components}
    assert sum(parts.values()) == pytest.approx(after.energy_j - before.energy_j, rel=2e-3)
    assert parts["hbm"] > 150.0
    assert parts["aid"] == 0.0


def test_a_stalled_reading_is_long_and_makes_the_sampler_miss_turns():
    card = SimulatedCard(faults=Faults(stall_every_s=2.0, stall_s=0.7))
    seen = []
    card.watch(0.05, lambda: seen.append(card.sample()))
    load(card, GEMM).run(5.0)
    stalls = [s for s in seen if s.call_s > 0.5]
    assert len(stalls) == 2
    gaps = [b.time_s - a.time_s for a, b in pairwise(seen)]
    assert sum(gap > 0.3 for gap in gaps) == 4  # into the middle of a stalled call, and out of it


def test_faults_show():
    backward = SimulatedCard(faults=Faults(counter="backward"))
    still = SimulatedCard(faults=Faults(counter="still"))
    none = SimulatedCard(faults=Faults(energy_counter=False, missing=("temperature_c",), privileged=False, mig=True))
    off = SimulatedCard(faults=Faults(power_error=0.1), sensors=Sensors(power_noise_w=0.0))
    moved = {}
    for name, card in {"backward": backward, "still": still, "off": off}.items():
        first = card.sample()
        card.sleep(1.0)
        moved[name] = card.sample().energy_j - first.energy_j
    assert moved["backward"] == pytest.approx(-moved["off"], rel=0.01)
    assert moved["still"] == 0.0
    assert off.sample().power_w == pytest.approx(1.1 * moved["off"], rel=0.01)
    assert none.sample().energy_j is None
    assert none.sample().temperature_c is None
    assert (none.facts.energy_counter, none.facts.may_set_clocks, none.facts.mig) == (False, False, True)
    with pytest.raises(PermissionDeniedError):
        none.apply(Settings(power_limit_w=300.0))


def test_a_hot_card_throttles_and_a_dead_one_does_not_answer():
    hot = SimulatedCard(faults=Faults(inlet_offset_c=45.0))
    seen = []
    hot.watch(1.0, lambda: seen.append(hot.sample()))
    load(hot, SMALL).run(40.0)
    cool = measure(SimulatedCard(), SMALL)
    assert "thermal" in seen[-1].reasons
    assert 86.0 < seen[-1].temperature_c < 95.0
    assert seen[-1].sm_clock_mhz < 1900.0
    assert cool[1] > 0
    dead = SimulatedCard(faults=Faults(dies_at_s=1.0))
    dead.sample()
    dead.sleep(1.0)
    with pytest.raises(DeviceError, match="answer"):
        dead.sample()


def test_a_neighbour_draws_power_whether_it_is_seen_or_not():
    for visible in (True, False):
        card = SimulatedCard(faults=Faults(neighbour_w=150.0, neighbour_visible=visible))
        assert bool(card.neighbours()) is visible
        assert card.sample().power_w > 260.0
        assert card.sample().utilisation == 1.0
    assert SimulatedCard().sample().utilisation == 0.0


def test_what_cannot_be_set_is_refused():
    card = SimulatedCard()
    for wrong in (Settings((300.0, 1200.0)), Settings((1200.0, 2100.0)), Settings((1500.0, 1200.0))):
        with pytest.raises(DeviceError, match="345 to 1980 MHz"):
            card.apply(wrong)
    with pytest.raises(DeviceError, match="200 to 700 W"):
        card.apply(Settings(power_limit_w=100.0))
    assert card.settings() == Settings()


def test_single_launches_have_their_own_place_in_time():
    card = SimulatedCard()
    work = SimulatedWork((Gemm(8192, 8192, 8192),), (1.0,), card.truth)
    start, end = card.execute(work, repetitions=2.0)
    assert end - start == pytest.approx(2.0 * work.table(700.0).time_s[-1], rel=0.2)
    card.sleep(0.01)
    assert card.board.power_between(start, end) > 600.0
    assert card.board.power_between(end, end + 0.01) < 140.0


def test_another_process_sees_and_gives_back_the_settings(tmp_path):
    file = tmp_path / "card.json"
    card = SimulatedCard(file=file)
    card.apply(Settings((345.0, 1200.0), 500.0))
    script = (
        "import sys; from joulecast.calibrate.devices import open_device\n"
        "from joulecast.calibrate.devices.protocol import Settings\n"
        "card = open_device(sys.argv[1]); print(card.settings()); card.apply(Settings())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, card.facts.locator], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(Settings((345.0, 1200.0), 500.0))
    assert card.settings() == Settings()
    card.sleep(0.1)
    assert card.sample().sm_clock_mhz == 1980.0


def test_files_that_are_no_cards_are_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.json: no such simulated card"):
        open_device(f"sim:{tmp_path / 'none.json'}")
    foreign = tmp_path / "foreign.json"
    foreign.write_text('{"gpu": "h200-sxm", "colour": "red"}')
    with pytest.raises(InputError, match=r"foreign\.json \[colour\]"):
        open_device(f"sim:{foreign}")
    foreign.write_text('{"schema_name": "other"}')
    with pytest.raises(InputError, match="version 1"):
        open_device(f"sim:{foreign}")
    with pytest.raises(InputError, match="unknown kind of card"):
        open_device("cuda:0")


def test_a_fault_that_nobody_knows_is_refused(tmp_path):
    """A card with a misspelt fault would be a healthy one."""
    file = tmp_path / "card.json"
    file.write_text('{"gpu": "h200-sxm", "faults": {"counter": "stuck"}}')
    with pytest.raises(InputError, match=r"card\.json \[faults\.counter\]: not a simulated card: .*'still'"):
        open_device(f"sim:{file}")


def test_a_sampler_in_another_process_reads_the_card_while_it_works(tmp_path):
    file = tmp_path / "card.json"
    card = SimulatedCard(file=file, realtime=True)
    script = (
        "import sys; from joulecast.calibrate.devices import open_device\n"
        "card = open_device(sys.argv[1]); print(flush=True)\n"
        "for _ in range(20):\n"
        "    s = card.sample(); print(s.time_s, s.energy_j, s.power_w, *s.reasons, flush=True); card.sleep(0.05)"
    )
    reader = subprocess.Popen([sys.executable, "-c", script, f"sim:{file}"], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    reader.stdout.readline()
    start = card.now()
    count, busy_s = load(card, GEMM).run(0.7)
    end = card.now()
    rows = [line.split() for line in reader.communicate(timeout=120)[0].splitlines()]
    seen = [(float(t), float(e), float(p), words) for t, e, p, *words in rows]
    working = [row for row in seen if start + 0.2 < row[0] < end]
    assert len(working) >= 3
    assert all(power > 600.0 and "idle" not in words for _, _, power, words in working)
    assert "idle" in seen[-1][3]
    energies = [row[1] for row in seen]
    assert energies == sorted(energies)
    card.sample()  # up to the present
    own = card.board.energy_at(seen[-1][0]) - card.board.energy_at(seen[0][0])
    # The counter is up to two idle steps late; and until the work is said to have ended, which a busy machine says
    # late, it counts on.
    assert energies[-1] - energies[0] == pytest.approx(own, abs=30.0 + 700.0 * (end - start - 0.7))
    assert own > 400.0
    assert 0.7 <= busy_s <= end - start
    assert count > 300


def test_a_card_in_real_time_calls_nobody():
    with pytest.raises(InputError, match="another process"):
        SimulatedCard(realtime=True).watch(0.1, lambda: None)


def test_a_runner_refuses_what_it_does_not_know():
    with pytest.raises(MeasurementError, match="unknown op"):
        SimulatedRunner(SimulatedCard()).prepare(Microbenchmark("b", {"op": "sorting"}, "any"))


def test_the_work_of_a_process_that_was_killed_ends_with_it(tmp_path):
    file = tmp_path / "card"
    SimulatedCard(file=file, realtime=True)
    code = f"""
import os, signal
from pathlib import Path
from joulecast.calibrate.devices.simulated import SimulatedCard
SimulatedCard.open(Path({str(file)!r})).begin({{"op": "gemm", "M": 8192, "N": 8192, "K": 8192, "dtype": "bf16"}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert SimulatedCard.open(file).sample().utilisation == 0.0


def test_a_card_without_bf16_has_company_in_fp16():
    time_s, _ = measure(SimulatedCard("v100-sxm2-32gb"), {**GEMM, "dtype": "fp16", "companion": "randn"}, 0.5, 0.5)
    assert time_s > 0.0
    with pytest.raises(MeasurementError, match="no rate for matrix products in bf16"):
        load(SimulatedCard("v100-sxm2-32gb"), GEMM).run(0.1)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"sensor": {}}', r"\[sensor\]: not a simulated card: unknown key\. Did you mean 'sensors'"),
        ('{"sensors": {"counter_steps": 1}}', r"\[sensors\.counter_steps\]: .*Did you mean 'counter_step_s'"),
        ('{"faults": {"zzz": 1}}', r"\[faults\.zzz\]: .*Known: stall_every_s, "),
        ('{"sensors": {"counter_step_s": 0}}', r"\[sensors\.counter_step_s\]: .* greater than 0"),
        ('{"sensors": {"power_step_s": NaN}}', r"\[sensors\.power_step_s\]: .* finite number"),
        ('{"sensors": {"call_s": -1}}', r"\[sensors\.call_s\]: .* greater than or equal to 0"),
        ('{"faults": {"missing": ["time_s"]}}', r"\[faults\.missing\.0\]: .*'energy_j', 'power_w'"),
        ('{"truth": {"power.static_w": NaN}}', r"\[truth\.power\.static_w\]: .* finite number"),
        ('{"locked_clock_mhz": [5000, 9000]}', r"\[locked_clock_mhz\]: clocks from 5000 to 9000 MHz cannot be locked"),
        ('{"power_limit_w": 30}', r"card\.json \[power_limit_w\]: a limit of 30 W cannot be set"),
        ('{"gpu": "h200-sxm", "gpu": "a40"}', r"card\.json: not valid JSON: the key 'gpu' stands twice"),
        ("", r"card\.json:1: not valid JSON"),
        ("[]", r"card\.json: not a simulated card: Input should be an object"),
    ],
)
def test_a_file_that_describes_no_card_is_refused_by_key(content, told, tmp_path):
    (tmp_path / "card.json").write_text(content)
    with pytest.raises(InputError, match=told):
        open_device(f"sim:{tmp_path / 'card.json'}")


def test_which_simulated_card_must_be_said():
    with pytest.raises(InputError, match=r"which simulated card is not said\. Give sim:FILE"):
        open_device("sim:")
