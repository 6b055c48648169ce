"""A user's training loop, metered on cards whose truth is known, in virtual time unless a test says otherwise."""

import json
import re
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from fake_nvml import FakeNvml
from paths import ROOT

import joulecast as jc
from joulecast.calibrate.devices.protocol import Settings
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_sensors import Faults, Sensors
from joulecast.calibrate.measure.faults import FaultError, Reason
from joulecast.calibrate.meter.local_gpus import open_gpus
from joulecast.calibrate.meter.loop import MeterWarning
from joulecast.calibrate.meter.oddities import oddities
from joulecast.calibrate.meter.result import compared
from joulecast.errors import DeviceError, InputError, MeasurementError
from joulecast.validate import run_suite

GEMM = {"op": "gemm", "M": 8192, "N": 8192, "K": 8192, "dtype": "bf16", "data": "randn"}
PLAN = {
    "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "micro_batch_size": 4, "global_batch_size": 4},
    "cluster": {"gpu": "h200-sxm", "gpus": 1},
}
NO_HISTORY = Sensors(history_step_s=0.0)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No launcher, and no PyTorch, whatever the machine has."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def busy(**options):
    card = SimulatedCard(**options)
    card.begin(GEMM)
    return card


def metered(card, step_s=0.1, steps=1000, **options):
    """The meter of a loop whose iterations take so long, and that stops when nothing more is measured."""
    with jc.meter(PLAN, devices=[card], **options) as meter:
        for _ in range(steps):
            card.sleep(step_s)
            meter.step()
            if meter.done:
                break
    return meter


def quantities(meter):
    return {quantity.name: quantity for quantity in meter.result.quantities}


@pytest.mark.parametrize(("sensors", "source"), [(Sensors(), "history"), (NO_HISTORY, "counter")])
def test_time_power_and_energy_of_an_iteration_are_the_cards(sensors, source):
    card = busy(sensors=sensors)
    card.sleep(5.0)  # warm
    meter = metered(card, step_s=0.07)
    row, found = meter.result.row, quantities(meter)
    end = card.now()
    power_w = card.board.power_between(end - row["measured_window_s"], end)
    assert found["time_s"].measured == pytest.approx(0.07, rel=1e-6)
    assert found["power_w"].measured == pytest.approx(power_w, rel=3e-3)
    assert found["energy_j"].measured == pytest.approx(0.07 * power_w, rel=3e-3)
    assert 1200 < found["sm_clock_mhz"].measured < 1980
    assert row["measured_energy_source"] == source
    assert row["measured_repeats"] == 5 and row["measured_window_s"] > 5 * 2.5
    assert row["measured_steps"] == pytest.approx(5 * 3.2 / 0.07, rel=0.05)
    assert row["settle_s"] >= 1.0 and row["measured_reasons"]["power_limit"] > 0.9
    assert meter.result.warnings == () and not meter.result.partial


def test_the_forecast_is_that_of_the_plan_and_stands_beside():
    forecast = jc.predict(PLAN)
    meter = metered(busy(), windows=1)
    found = quantities(meter)
    assert found["time_s"].forecast == forecast.time_s and found["time_s"].p95 == forecast.time_s_p95
    assert found["energy_j"].forecast == pytest.approx(forecast.energy_j)
    assert found["peak_mem_bytes"].forecast == forecast.ranks[0].memory_bytes
    assert found["time_s"].error_percent == pytest.approx(100 * (forecast.time_s / found["time_s"].measured - 1))
    lines = str(meter.result).splitlines()
    assert "1 GPU, 32 iterations in 1 window" in lines[0] and lines[2].startswith("time [s]")
    assert f" {forecast.time_s:.4g}  {forecast.time_s_p05:.4g} to {forecast.time_s_p95:.4g}  " in lines[2]
    assert lines[6].split() == ["peak", "memory", "[GB]", f"{forecast.ranks[0].memory_bytes / 1e9:.4g}"]
    assert json.loads(json.dumps(meter.result.to_dict()))["quantities"]["time_s"]["forecast"] == forecast.time_s


def test_one_window_tells_no_standard_error():
    meter = metered(busy(), windows=1)
    assert "the standard error is unknown: one window cannot tell it" in meter.result.warnings
    assert quantities(meter)["time_s"].standard_error is None


def test_iterations_that_differ_show_in_the_standard_error():
    card = busy()
    with jc.meter(PLAN, devices=[card], windows=4) as meter:
        for number in range(1000):
            card.sleep(0.1 if (number // 40) % 2 else 0.11)
            meter.step()
            if meter.done:
                break
    time_s = quantities(meter)["time_s"]
    assert 0.1 < time_s.measured < 0.11
    assert 1e-4 < time_s.standard_error < 5e-3


def test_the_cards_are_waited_for_at_the_ends_of_windows_alone():
    waited = []
    card = busy()
    meter = metered(card, step_s=0.02, synchronize=lambda: waited.append(card.now()), windows=2)
    assert meter.steps > 300
    assert len(waited) == 5  # warmed up; settled, and the end, of two windows
    gaps = [b - a for a, b in pairwise(waited)]
    assert waited[0] < 0.1 and min(gaps[1], gaps[3]) > 2.5
    assert gaps[0] > 1.0 and gaps[2] >= 0.5


def test_steps_that_are_still_running_belong_to_the_window_that_waits_for_them():
    """The host runs ahead: it counts steps at once, and the card has done them when it is waited for."""
    card = busy()
    launched = [0]

    def synchronize():
        card.sleep(0.05 * launched[0])
        launched[0] = 0

    with jc.meter(PLAN, devices=[card], synchronize=synchronize, windows=2) as meter:
        while not meter.done:
            launched[0] += 1
            card.sleep(0.005)
            meter.step()
    assert quantities(meter)["time_s"].measured == pytest.approx(0.055, rel=0.01)


def test_a_loop_that_ends_early_keeps_its_part_and_says_what_to_do(tmp_path):
    with pytest.warns(MeterWarning, match=r"ended after 40 steps, before a window closed.*3 steps and then 4 s"):
        meter = metered(busy(), steps=40)
    result = meter.result
    assert result.partial and result.row["measured_partial"] is True
    assert quantities(meter)["time_s"].measured == pytest.approx(0.1)
    assert quantities(meter)["power_w"].measured == pytest.approx(693, rel=0.02)
    meter.write(tmp_path / "rows.jsonl")
    assert json.loads((tmp_path / "rows.jsonl").read_text())["measured_partial"] is True


def test_one_step_after_warming_up_is_a_part():
    with pytest.warns(MeterWarning, match="ended after 4 steps, before it settled"):
        meter = metered(busy(), steps=4)
    row = meter.result.row
    assert (row["measured_steps"], row["time_s"], meter.result.partial) == (1, pytest.approx(0.1), True)


def test_power_has_what_the_error_of_energy_has_beyond_that_of_time():
    row = {"gpus": 1, "rank": 0, "world_size": 1, "time_s": 2.0, "energy_j": 1000.0, "power_w": 500.0}
    row["measured_energy_sd"] = 0.05
    iteration = jc.predict(PLAN)
    for time_sd, expected in ((0.03, [0.06, 50.0, 20.0]), (None, [None, 50.0, 25.0]), (0.06, [0.12, 50.0, 0.0])):
        found = compared({**row, "measured_time_sd": time_sd}, iteration)
        assert [quantity.standard_error for quantity in found[:3]] == pytest.approx(expected)


def test_a_loop_that_ends_before_anything_was_measured():
    with pytest.warns(MeterWarning, match="before it warmed up"):
        meter = metered(busy(), steps=2)
    with pytest.raises(MeasurementError, match=r"nothing was measured: the loop ended after 2 steps.*Let it run"):
        _ = meter.result


def test_an_error_of_the_loop_is_the_loops():
    card = busy()
    with pytest.raises(ZeroDivisionError), jc.meter(PLAN, devices=[card]) as meter:
        for number in range(100):
            card.sleep(0.1)
            meter.step()
            1 / (70 - number)
    assert meter.done and not meter.result.partial
    assert meter.result.row["measured_repeats"] == 1


def test_a_card_that_dies_does_not_stop_the_loop(monkeypatch):
    def dead(*_):
        raise DeviceError("the card does not answer any more")

    card = busy()
    with jc.meter(PLAN, devices=[card]) as meter:
        monkeypatch.setattr(meter._watch, "windows", dead)
        with pytest.warns(MeterWarning, match="not metered any more.*does not answer"):
            for _ in range(100):
                card.sleep(0.1)
                meter.step()
    assert meter.done and meter.steps == 100
    with pytest.raises(MeasurementError, match="nothing was measured: no further window: the card does not answer"):
        _ = meter.result


def test_a_window_in_which_the_driver_stalls_is_taken_again():
    card = busy(faults=Faults(stall_every_s=6.5, stall_s=1.0))
    meter = metered(card, windows=3)
    assert meter.result.row["measured_repeats"] == 3
    assert meter.result.row["measured_spoilt_windows"] >= 1
    assert quantities(meter)["time_s"].measured == pytest.approx(0.1, rel=1e-6)


def test_a_driver_that_always_stalls_is_given_up():
    card = busy(faults=Faults(stall_every_s=2.0, stall_s=1.0))
    with pytest.warns(MeterWarning, match="not metered any more"):
        meter = metered(card)
    assert meter.done and meter.steps < 1000
    with pytest.raises(MeasurementError, match="nothing was measured: no further window: "):
        _ = meter.result


def test_a_fault_that_does_not_pass_ends_the_metering(monkeypatch):
    def faulty(*_):
        raise FaultError(Reason.NO_READINGS, "no readings")

    card = busy()
    with jc.meter(PLAN, devices=[card]) as meter:
        monkeypatch.setattr(meter._watch, "windows", faulty)
        with pytest.warns(MeterWarning, match="not metered any more.*no readings"):
            while not meter.done and meter.steps < 100:
                card.sleep(0.1)
                meter.step()
    assert meter.done and meter.steps < 70  # the first window ended it


def test_long_iterations_make_windows_of_whole_ones():
    meter = metered(busy(sensors=NO_HISTORY), step_s=4.0, windows=2)
    assert meter.result.row["measured_steps"] == 2
    assert meter.result.row["measured_window_s"] == pytest.approx(8.0, abs=0.3)


@pytest.mark.parametrize("sensors", [Sensors(), NO_HISTORY], ids=["history", "counter"])
@pytest.mark.parametrize(("busy_s", "rest_s"), [(0.4, 0.2), (1.0, 0.5), (0.21, 0.1)])
def test_what_power_does_within_an_iteration_is_neither_drift_nor_error(sensors, busy_s, rest_s):
    card = SimulatedCard(sensors=sensors)
    card.begin({"op": "pulse", "M": 4096, "N": 4096, "K": 4096, "dtype": "bf16", "busy_s": busy_s, "idle_s": rest_s})
    card.sleep(10 * (busy_s + rest_s))
    meter = metered(card, step_s=busy_s + rest_s, windows=3)
    end = card.now()
    power_w = card.board.power_between(end - 6 * (busy_s + rest_s), end)
    power = quantities(meter)["power_w"]
    assert power.measured == pytest.approx(power_w, rel=5e-3)
    assert power.standard_error < 0.005 * power.measured
    assert meter.result.warnings == ()


def test_several_gpus_of_a_process(tmp_path):
    cards = [busy(file=tmp_path / "a"), busy(file=tmp_path / "b", truth={"power.static_w": 120.0})]
    plan = {**PLAN, "cluster": {"gpu": "h200-sxm", "gpus": 2}}
    plan["workload"] = {**PLAN["workload"], "global_batch_size": 8}
    with jc.meter(plan, devices=cards, windows=2) as meter:
        while not meter.done:
            for card in cards:
                card.sleep(0.1)
            meter.step()
    row, forecast = meter.result.row, jc.predict(plan)
    found = quantities(meter)
    assert len(row["power_w_per_gpu"]) == row["gpus"] == 2
    assert found["power_w"].measured == pytest.approx(sum(row["power_w_per_gpu"]))
    assert found["power_w"].forecast == pytest.approx(forecast.power_w)
    assert found["energy_j"].measured == pytest.approx(found["power_w"].measured * 0.1, rel=1e-3)


def test_a_rank_of_a_pipeline_is_held_against_its_stage(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    plan = {
        "workload": {**PLAN["workload"], "micro_batch_size": 1, "global_batch_size": 8},
        "cluster": {"gpu": "h200-sxm", "gpus": 4},
        "parallelism": {"pipeline_model_parallel_size": 2},
    }
    forecast = jc.predict(plan)
    card = busy()
    with jc.meter(plan, devices=[card], windows=1) as meter:
        while not meter.done:
            card.sleep(0.1)
            meter.step()
    found, last = quantities(meter), forecast.ranks[1]
    assert "1 GPU of rank 3, 3" in str(meter.result)
    assert found["power_w"].forecast == pytest.approx(last.power_w)
    assert found["energy_j"].forecast == pytest.approx(last.energy_j, rel=1e-6)
    assert found["peak_mem_bytes"].forecast == last.memory_bytes
    assert last.memory_bytes != forecast.ranks[0].memory_bytes
    assert found["time_s"].forecast == forecast.time_s


def test_fewer_gpus_than_the_plan_has_are_told():
    plan = {**PLAN, "cluster": {"gpu": "h200-sxm", "gpus": 4}}
    plan["workload"] = {**PLAN["workload"], "global_batch_size": 16}
    card = busy()
    with jc.meter(plan, devices=[card], windows=1) as meter:
        while not meter.done:
            card.sleep(0.1)
            meter.step()
    assert any("1 of the plan's 4 GPUs are metered" in warning for warning in meter.result.warnings)
    assert quantities(meter)["power_w"].forecast == pytest.approx(jc.predict(plan).power_w / 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_s": 1.0}, "a window of 1 s is too short.*2.5 or more"),
        ({"settle_s": 0.0}, "settle_s.*not positive"),
        ({"windows": 0}, r"\[windows\]: 0 is out of range. Give 1 or more"),
        ({"windows": 2.5}, r"\[windows\]: 2.5 is no whole number"),
        ({"window_s": "3"}, r"\[window_s\]: '3' is no number. Give 3 without quotes"),
        ({"warm_up_steps": None}, r"\[warm_up_steps\]: None is no number"),
        ({"warm_up_steps": -1}, r"\[warm_up_steps\]: -1 is out of range"),
        ({"synchronize": True}, r"\[synchronize\]: True cannot be called"),
        ({"name": 3}, r"\[name\]: 3 is no text"),
        ({"devices": 1}, "1 is no list of GPUs"),
        ({"devices": [None]}, r"\[devices\]: None is no GPU"),
        ({"devices": [1.5]}, r"\[devices\]: 1.5 is no GPU"),
        ({"devices": ["tpu:0"]}, r"\[devices\]: unknown kind of card 'tpu:0'"),
        ({"devices": []}, "no list of GPUs"),
        ({"devices": "sim:h200-sxm"}, "no list of GPUs"),
        ({"devices": ["sim:h200-sxm", "sim:h200-sxm"]}, "names a GPU twice"),
        ({"devices": ["sim:missing.json"]}, "no such simulated card"),
        ({"overrides": "workload.modle=1"}, "modle"),
    ],
)
def test_what_cannot_be_metered_is_refused_before_the_loop(options, message):
    with pytest.raises(InputError, match=message), jc.meter(PLAN, **{"devices": [busy()], **options}):
        pytest.fail("the loop began")


def test_a_plan_that_is_none():
    with pytest.raises(InputError, match="int is no plan"):
        jc.meter(3)


def test_no_gpu_is_a_named_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(DeviceError, match=r"^\[devices\]: no GPU 0: .*joulecast doctor"), jc.meter(PLAN):
        pytest.fail("the loop began")


@pytest.mark.parametrize("environment", [("2", "2"), ("x", "2"), ("-1", "2")])
def test_a_rank_that_is_none(monkeypatch, environment):
    monkeypatch.setenv("RANK", environment[0])
    monkeypatch.setenv("WORLD_SIZE", environment[1])
    with pytest.raises(InputError, match=r"RANK is .*torchrun"), jc.meter(PLAN, devices=[busy()]):
        pytest.fail("the loop began")


def test_a_meter_measures_one_loop():
    meter = metered(busy(), windows=1)
    with pytest.raises(InputError, match="one loop"):
        meter.__enter__()


class FakeTorch(ModuleType):
    """What a meter asks of PyTorch."""

    def __init__(self, current=0, count=2):
        super().__init__("torch")
        self.synchronized = []
        self.version = SimpleNamespace(hip=None)
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            current_device=lambda: current,
            device_count=lambda: count,
            synchronize=self.synchronized.append,
            max_memory_allocated=lambda index: 10**9 * (index + 1),
            get_device_properties=lambda index: SimpleNamespace(uuid=f"uuid-{index}"),
        )


def opened(monkeypatch, torch, devices=None):
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    return open_gpus(devices)


def test_numbers_are_pytorchs_where_it_is_imported(monkeypatch):
    gpus = opened(monkeypatch, torch := FakeTorch(), [1])
    assert gpus.devices[0].facts.locator == "nvml:GPU-uuid-1"
    gpus.synchronize()
    assert torch.synchronized == [1]
    device = type("device", (), {"__str__": lambda self: "cuda:1"})()
    assert opened(monkeypatch, torch, [device]).indices == opened(monkeypatch, torch, ["cuda:1"]).indices == (1,)
    assert gpus.peak_memory() == {"peak_mem_bytes": 2 * 10**9}
    assert opened(monkeypatch, torch, [0, 1]).peak_memory() == {"peak_mem_bytes_per_gpu": [10**9, 2 * 10**9]}
    with pytest.raises(InputError, match=r"PyTorch sees 2 GPUs, not 3.*CUDA_VISIBLE_DEVICES"):
        opened(monkeypatch, torch, [2])
    assert opened(monkeypatch, torch, ["nvml:0"]).peak_memory() == {}


@pytest.mark.parametrize(
    ("current", "count", "local", "index"),
    [(1, 2, "0", 1), (0, 2, "1", 1), (0, 1, "1", 0), (0, 2, None, 0), (0, 2, "x", 0)],
)
def test_the_gpu_of_a_rank_that_names_none(monkeypatch, current, count, local, index):
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    gpus = opened(monkeypatch, FakeTorch(current, count))
    assert gpus.devices[0].facts.locator == f"nvml:GPU-uuid-{index}"


def test_a_card_in_the_machines_time_is_read_by_a_process_of_its_own(tmp_path):
    busy(file=tmp_path / "card.json", realtime=True)
    with jc.meter(PLAN, devices=[f"sim:{tmp_path / 'card.json'}"], windows=1) as meter:
        begin, spent = time.monotonic(), time.process_time()
        while not meter.done:
            time.sleep(0.02)
            meter.step()
        share = (time.process_time() - spent) / (time.monotonic() - begin)
    found = quantities(meter)
    assert 0.02 < found["time_s"].measured < (time.monotonic() - begin) / meter.steps + 1e-3
    assert found["power_w"].measured == pytest.approx(693, rel=0.05)
    assert share < 0.05  # 0.006 alone; processes that share a core cost several times that
    assert 0.0 < meter.result.row["measured_core_share"] < 0.05


def test_a_step_costs_next_to_nothing():
    with pytest.warns(MeterWarning), jc.meter(PLAN, devices=[card := busy()]) as meter:
        for _ in range(4):
            card.sleep(0.01)
            meter.step()
        begin = time.perf_counter()
        for _ in range(20_000):
            meter.step()
        assert (time.perf_counter() - begin) / 20_000 < 10e-6


def blocks_of_the_guide():
    """Python of the page that shows a meter: a plain loop, and one of transformers' Trainer."""
    page = (ROOT / "docs" / "guides" / "finetuning.md").read_text(encoding="utf-8")
    return [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "jc.meter" in block]


@pytest.fixture
def guide(tmp_path, monkeypatch):
    """A folder with the guide's plan, and a card on which its loops run."""
    lines = [
        f"[{table}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()) for table, keys in PLAN.items()
    ]
    (tmp_path / "finetuning.toml").write_text("".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    card, real = busy(), jc.meter
    monkeypatch.setattr(jc, "meter", lambda plan: real(plan, devices=[card]))
    return card


def test_the_loop_of_the_guide_runs(guide, capsys):
    exec(blocks_of_the_guide()[0], {"loader": range(250), "train_step": lambda _: guide.sleep(0.1)})
    assert "5 windows" in capsys.readouterr().out
    assert json.loads(Path("measured.jsonl").read_text())["name"] == "finetuning"


def test_the_callback_of_the_guide_counts_steps_of_the_optimizer(guide, monkeypatch):
    class Trainer:
        """Calls its callbacks as transformers' does: by keyword, a sub-step for each micro-batch but the last."""

        def __init__(self, model, args, *, train_dataset, callbacks):
            self.callbacks = callbacks

        def train(self):
            for micro_batch in range(600):
                guide.sleep(0.05)
                self.call("on_step_end" if micro_batch % 2 else "on_substep_end")
                if micro_batch in (101, 301):
                    guide.sleep(3.0)
                    self.call("on_evaluate" if micro_batch == 101 else "on_save")

        def call(self, event):
            for callback in self.callbacks:
                getattr(callback, event)("arguments", "state", "control", model="model")

    transformers = ModuleType("transformers")
    transformers.Trainer = Trainer
    transformers.TrainerCallback = type("TrainerCallback", (), {"on_substep_end": lambda self, *_, **__: None})
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    exec(blocks_of_the_guide()[1], {"model": None, "args": None, "dataset": None})
    row = json.loads(Path("measured.jsonl").read_text())
    assert row["time_s"] == pytest.approx(0.1) and row["measured_repeats"] == 5


def test_a_card_that_is_not_the_plans_is_told(monkeypatch):
    limited = busy(faults=Faults(neighbour_w=20.0))
    limited.apply(Settings(power_limit_w=500.0))
    told = " / ".join(metered(limited, windows=1).result.warnings)
    assert "power limit of sim:h200-sxm is 500 W, the plan's 700 W" in told and "other processes hold" in told
    same = metered(limited, windows=1, overrides=["power.power_limit_w=500"])
    assert "power limit" not in " ".join(same.result.warnings)


def test_another_product_and_a_partition_are_told(monkeypatch):
    driver = FakeNvml()
    driver.mig = [1, 1]
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    iteration = jc.predict({**PLAN, "cluster": {"gpu": "h100-sxm", "gpus": 1}})
    gpus = open_gpus(["nvml:0"])
    row = {"gpus": 1, "world_size": 1, "plan_gpus": 1}
    told = oddities(row, gpus, iteration, waited_for=False)
    assert told[0].startswith("nothing waits for the GPUs")
    assert told[1] == "nvml:0 is NVIDIA H200, the plan's GPU is NVIDIA H100 80GB HBM3"
    assert "partitioned" in told[2] and len(told) == 3
    driver.mig = [0, 0]
    assert oddities(row, open_gpus(["nvml:0"]), jc.predict(PLAN), waited_for=True) == []


@pytest.mark.parametrize(("drifts", "settled_s", "told"), [([0.05, 0.05, 0.0], 2.0, 0), ([0.05] * 9, 2.6, 1)])
def test_windows_wait_until_the_card_has_settled_but_not_for_ever(monkeypatch, drifts, settled_s, told):
    card = busy()
    with jc.meter(PLAN, devices=[card], windows=1) as meter:
        monkeypatch.setattr(meter._watch, "drift", lambda since_s: drifts.pop(0))
        while not meter.done:
            card.sleep(0.1)
            meter.step()
    assert meter.result.row["settle_s"] == pytest.approx(settled_s, abs=0.25)
    assert sum("still changed by 5.0%" in warning for warning in meter.result.warnings) == told


def test_of_a_loop_that_failed_no_part_is_kept():
    waited = []
    with (
        pytest.raises(ZeroDivisionError),
        jc.meter(PLAN, devices=[card := busy()], synchronize=lambda: waited.append(1)) as meter,
    ):
        for number in range(40):
            card.sleep(0.1)
            meter.step()
            1 / (28 - number)
    assert len(waited) == 2  # never after the error: the GPU may be lost
    with pytest.raises(MeasurementError, match=r"no window has closed yet.*Let it run"):
        _ = meter.result


def test_limits_of_stages_are_the_plans():
    plan = {**PLAN, "cluster": {"gpu": "h200-sxm", "gpus": 2}, "power": {"power_limit_w": [500, 700]}}
    plan["parallelism"] = {"pipeline_model_parallel_size": 2}
    row = {"gpus": 1, "world_size": 2, "plan_gpus": 2}
    gpus = open_gpus([SimulatedCard()])
    assert oddities(row, gpus, jc.predict(plan), waited_for=True) == []


def test_a_row_carries_the_model_of_a_file_and_is_read_where_there_is_none(tmp_path):
    config = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
    config |= {"vocab_size": 32000, "num_hidden_layers": 4}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[workload]\nmodel = "config.json"\nsequence_length = 2048\nglobal_batch_size = 1\n'
        '[cluster]\ngpu = "h200-sxm"\ngpus = 1\n'
    )
    card = busy()
    with jc.meter(plan, devices=[card], windows=2) as meter:
        for _ in range(200):
            card.sleep(0.1)
            meter.step()
    meter.write(tmp_path / "rows.jsonl")
    file.unlink()
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["plan"]["workload"]["model"] == config
    assert not run_suite("plans", tmp_path / "rows.jsonl").to_dict().get("skipped")
