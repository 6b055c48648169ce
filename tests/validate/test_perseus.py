"""Forecasts of pipeline iterations under plans that set every instruction's clock, on readings made up here."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from command import status_of
from row_files import csv_rows, write_csv, write_json

from joulecast.calibrate.studies.pipeline_plans import PlanReadings, choose_plans, make_job
from joulecast.calibrate.studies.pipeline_plans_fit import _Problem, fit_job
from joulecast.errors import DataError, InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.validate import run_suite
from joulecast.validate.published.perseus import run_perseus
from joulecast.validate.published.perseus_files import WORKLOAD, read_plans

STAGES, MICROBATCHES, PLANS = 4, 12, 14
WAIT_W = 90.0
BEYOND_S = 0.2


def orders():
    found = []
    for stage in range(STAGES):
        warmup = STAGES - stage - 1
        found.append("F" * warmup + "FB" * (MICROBATCHES - warmup) + "B" * warmup)
    return found


def iteration(time):
    """Of one plan: start every instruction as soon as it may; ``time`` by stage and place in its order."""
    ends, order = {}, orders()
    place, free = [0] * STAGES, [0.0] * STAGES
    done = [{"F": 0, "B": 0} for _ in range(STAGES)]
    while any(p < len(o) for p, o in zip(place, order, strict=True)):
        for s in range(STAGES):
            if place[s] == len(order[s]):
                continue
            letter = order[s][place[s]]
            number = done[s][letter]
            before = (letter, s - 1 if letter == "F" else s + 1, number)
            if 0 <= before[1] < STAGES and before not in ends:
                continue
            free[s] = max(free[s], ends.get(before, 0.0)) + time[s][place[s]]
            ends[letter, s, number] = free[s]
            done[s][letter] += 1
            place[s] += 1
    return max(free)


def instruction(stage, letter, clock):
    """Time and energy of the card that these tests measure: a knee at 1000 MHz, 300 W, stages that differ."""
    cycles = (30.0 + 4.0 * stage) * (1.0 if letter == "F" else 2.2)

    def time(f):
        return 1e-3 * (0.3 * cycles + 0.7 * cycles * 1100.0 / f)

    def power(f):
        voltage = 0.76 + 0.24 * max(f - 1000.0, 0.0) / 410.0
        return 95.0 + (125.0 + 8.0 * stage) * (voltage / 0.82) ** 2 * time(1100.0) / time(f)

    real = clock
    while power(real) > 300.0:
        real -= 0.5
    return time(real), power(real) * time(real)


def folder_of(path, *, gpus=1, plans=PLANS):
    """A folder of measured plans; ``gpus`` of each stage run side by side."""
    random = np.random.default_rng(5)
    rows, times, requests = [], [], []
    for plan in range(plans):
        clocks = []
        for order in orders():
            low = 1410 if plan < 2 else int(random.integers(71, 90)) * 15
            clocks.append([low + 15 * int(c == "B" and plan > 2) * (plan % 3) for c in order])
        work = [[instruction(s, c, f) for c, f in zip(orders()[s], clocks[s], strict=True)] for s in range(STAGES)]
        duration = iteration([[t for t, _ in stage] for stage in work]) + BEYOND_S
        energy = [sum(e for _, e in st) + WAIT_W * (duration - sum(t for t, _ in st)) for st in work]
        head = dict(zip(WORKLOAD, ("A100", "toy", "even", f"dp{gpus}+pp4+tp1", 1, MICROBATCHES), strict=True))
        row = head | {"plan": plan, "iteration_time_s": duration, "iteration_energy_j": gpus * sum(energy)}
        rows.append(row | {f"energy_rank{r}_j": energy[r // gpus] for r in range(STAGES * gpus)})
        for rank in range(STAGES * gpus):
            for name, letter in (("forward", "F"), ("backward", "B")):
                stage = rank // gpus
                mean = np.mean([t for (t, _), c in zip(work[stage], orders()[stage], strict=True) if c == letter])
                line = {"gpu": "A100", "model": "toy", "plan": plan, "rank": rank, "instruction": name}
                times.append(line | {"mean_s": mean})
        runs = [[[c, f, 1] for c, f in zip(orders()[s], clocks[s], strict=True)] for s in range(STAGES)]
        requests.append({"gpu": "A100", "model": "toy", "plan": plan, "forward_backward_clock_mhz_per_stage": runs})
    write(path, rows, times, requests)
    return path


def write(path, rows, times, requests):
    for name, table in (("measured_iterations.csv", rows), ("measured_instructions.csv", times)):
        write_csv(path / name, *table)
    write_json(path / "frequency_plans.jsonl", *requests)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def report(folder):
    return run_perseus(folder).to_dict()


def errors(report, quantity):
    rows = report["rows"]
    return np.array([r["predicted"][quantity] / r["measured"][quantity] - 1 for r in rows])


def test_other_physics_of_the_same_kind_is_forecast_closely(report):
    read = [int(p) for p in report["workloads"][0]["fitted_plans"]]
    others = [i for i in range(PLANS) if i not in read]
    assert np.abs(errors(report, "time_s")[others]).max() < 0.004
    assert np.abs(errors(report, "energy_j")[others]).max() < 0.006
    assert np.abs(errors(report, "time_s")).mean() < 0.005
    figures = report["summary"]["all"]
    assert figures["time_error_percent"] < 0.2 * figures["time_baseline_percent"]
    assert figures["energy_error_percent"] < 0.2 * figures["energy_baseline_percent"]


def test_the_time_beyond_the_pipeline_and_waiting_power_are_found(report):
    (workload,) = report["workloads"]
    assert workload["beyond_pipeline_s"] == pytest.approx(BEYOND_S, rel=0.1)
    assert workload["wait_power_w"] == pytest.approx(WAIT_W, rel=0.08)
    assert len(workload["fitted_plans"]) == 5
    assert workload["fitted_plans"][0] == "0"


def test_intervals_hold_most_readings(report):
    inside = report["summary"]["all"]
    assert inside["time_inside_percent"] > 80
    assert inside["energy_inside_percent"] > 80
    assert inside["time_half_width_percent"] < 2
    for row in report["rows"]:
        forecast = row["predicted"]
        assert forecast["time_s_p05"] < forecast["time_s"] < forecast["time_s_p95"]
        assert forecast["power_w"] == pytest.approx(forecast["energy_j"] / forecast["time_s"])


@pytest.mark.parametrize("fitted", [True, False])
def test_nothing_measured_under_a_plan_enters_its_own_forecast(folder, report, tmp_path, fitted):
    read = report["workloads"][0]["fitted_plans"]
    plan = read[1] if fitted else next(str(p) for p in range(PLANS) if str(p) not in read)
    for name in ("measured_iterations.csv", "measured_instructions.csv"):
        table = csv_rows(folder / name)
        for row in table:
            if row["plan"] == plan:
                row.update({k: 1.3 * float(v) for k, v in row.items() if k.endswith(("_s", "_j"))})
        write_csv(tmp_path / name, *table)
    (tmp_path / "frequency_plans.jsonl").write_bytes((folder / "frequency_plans.jsonl").read_bytes())
    changed = run_perseus(tmp_path).to_dict()
    before, after = report["rows"][int(plan)], changed["rows"][int(plan)]
    assert after["measured"] != before["measured"]
    assert after["predicted"] == before["predicted"]
    others = [i for i in range(PLANS) if str(i) != plan]
    same = all(changed["rows"][i]["predicted"] == report["rows"][i]["predicted"] for i in others)
    assert same is not fitted


def test_gpus_of_a_stage_are_counted_together(tmp_path):
    folder_of(tmp_path, gpus=2, plans=6)
    report = run_perseus(tmp_path).to_dict()
    assert np.abs(errors(report, "energy_j")).mean() < 0.01
    assert report["workloads"][0]["wait_power_w"] == pytest.approx(WAIT_W, rel=0.08)


def test_energy_of_all_gpus_together_is_enough(folder, tmp_path):
    copied(folder, tmp_path)
    path = tmp_path / "measured_iterations.csv"
    table = [{k: v for k, v in row.items() if not k.startswith("energy_rank")} for row in csv_rows(path)]
    write_csv(path, *table)
    assert np.abs(errors(run_perseus(tmp_path).to_dict(), "energy_j")).mean() < 0.01


def test_gzipped_files_are_the_same(folder, report, tmp_path):
    for path in folder.iterdir():
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert [r.energy_j for r in read_plans(tmp_path)] == [r["measured"]["energy_j"] for r in report["rows"]]


def copied(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_plans_that_cannot_be_forecast_are_named(folder, tmp_path):
    copied(folder, tmp_path)
    path = tmp_path / "frequency_plans.jsonl"
    lines = path.read_text().splitlines()
    swapped = json.loads(lines[3])
    first = swapped["forward_backward_clock_mhz_per_stage"][0]
    first[3], first[4] = first[4], first[3]
    path.write_text("\n".join([*lines[:3], json.dumps(swapped), *lines[5:]]))
    result = run_perseus(tmp_path)
    assert [name for name, _ in result.skipped] == ["A100 toy plan 3", "A100 toy plan 4"]
    assert "another order" in result.skipped[0][1]
    assert "no requested clocks" in result.skipped[1][1]
    assert len(result.rows) == PLANS - 2


def test_a_plan_alone_is_not_forecast_from_itself(tmp_path):
    folder_of(tmp_path, plans=1)
    result = run_perseus(tmp_path)
    assert result.rows == ()
    assert result.skipped == (("A100 toy plan 0", "no other plan to fit on"),)


def test_an_unknown_card_is_a_reason(folder, tmp_path):
    copied(folder, tmp_path)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("A100", "Z9"))
    result = run_perseus(tmp_path)
    assert len(result.skipped) == PLANS
    assert "z9" in result.skipped[0][1]


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "words"),
    [
        ("measured_iterations.csv", ",1,12,3,", ",1,12,2,", 5, "stands already on line 4"),
        (
            "measured_iterations.csv",
            "\nA100,toy,even,dp1+pp4+tp1,1,12,1,",
            "\nA100,toy,even,dp1+pp4+tp1,1,12,1,-",
            3,
            "-",
        ),
        ("measured_instructions.csv", "0,1,forward", "0,1,sideways", 4, "sideways"),
        ("frequency_plans.jsonl", '"plan": 2,', "", 3, "plan"),
        ("measured_iterations.csv", "iteration_time_s", "iteration_time", 1, "iteration_time_s"),
    ],
)
def test_broken_lines_are_named(folder, tmp_path, name, old, new, line, words):
    path = copied(folder, tmp_path) / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError) as error:
        run_perseus(tmp_path)
    assert (error.value.line, error.value.file) == (line, str(path))
    assert words in str(error.value)


def test_a_missing_file_is_named(folder, tmp_path):
    copied(folder, tmp_path)
    (tmp_path / "frequency_plans.jsonl").unlink()
    with pytest.raises(DataError, match=r"frequency_plans\.jsonl"):
        run_perseus(tmp_path)


def small_job(clocks):
    card = gpu_model(load_gpu("a100-pcie-80gb"))
    return make_job("small", card, 83.6, 1, ["FFBB", "FBFB"], [[[c] * 4, [c] * 4] for c in clocks])


def test_fitted_plans_are_chosen_by_requested_clocks_alone():
    job = small_job([1000, 1410, 1410, 1100, 1200, 1300, 1050, 1150])
    assert choose_plans(job, range(8)) == [0, 1, 3, 5, 7]
    assert choose_plans(job, [2, 3]) == [2, 3]


def test_a_clock_of_zero_keeps_the_one_before():
    card = gpu_model(load_gpu("a100-pcie-80gb"))
    job = make_job("small", card, 83.6, 1, ["FB"], [[[0, 1200]], [[1200, 0]]])
    assert job.clocks_mhz[job.clock_index].T.tolist() == [[1410, 1200], [1200, 1200]]


@pytest.mark.parametrize(
    ("orders", "clocks", "words"),
    [
        (["FB", "FFBB"], [[[1000] * 2, [1000] * 4]], "does not run 1 forwards"),
        (["FB"], [[[1000]]], "one clock for every instruction"),
        (["FB"], [[[1000, -5]]], "not positive"),
        ([""], [[[]]], "no instructions"),
    ],
)
def test_jobs_that_cannot_be(orders, clocks, words):
    card = gpu_model(load_gpu("a100-pcie-80gb"))
    with pytest.raises(InputError, match=words):
        make_job("odd", card, 83.6, 1, orders, clocks)


def test_a_fit_needs_readings():
    job = small_job([1000, 1410])
    nothing = PlanReadings(np.full(2, np.nan), np.full(2, np.nan), np.full((2, 2), np.nan), np.full((2, 2, 2), np.nan))
    with pytest.raises(InputError, match="iteration time"):
        fit_job(job, nothing, [0, 1])
    with pytest.raises(InputError, match="times of all stages"):
        fit_job(job, replace(nothing, iteration_time_s=np.ones(2)), [0, 1])


def test_plans_without_readings_make_a_fit_no_surer():
    random = np.random.default_rng(5)
    time, energy = random.uniform(0.04, 0.05, (3, 2, 2)), random.uniform(28.0, 31.0, (3, 2))
    few = PlanReadings(np.full(3, 0.4), energy.sum(axis=1), energy, time)
    many = PlanReadings(*(np.concatenate([each, np.full_like(each, np.nan)]) for each in vars(few).values()))
    many = replace(many, iteration_time_s=np.full(6, 0.4))
    clocks = [1005, 1200, 1410]
    alone, beside = fit_job(small_job(clocks), few, range(3)), fit_job(small_job(2 * clocks), many, range(6))
    assert beside.parameters == pytest.approx(alone.parameters, abs=1e-3)
    assert beside.root @ beside.root.T == pytest.approx(alone.root @ alone.root.T, rel=1e-2, abs=1e-6)


def test_many_variants_at_once_are_the_same_as_one_by_one():
    job = small_job([1000 + 15 * k for k in range(60)])
    time = np.linspace(0.01, 0.02, 7 * 4 * 60).reshape(7, 2, 2, 60)
    together = job.simulate(time)
    assert together.shape == (7, 60)
    assert np.array_equal(together, np.stack([job.simulate(t[None])[0] for t in time]))


def test_the_command_line_runs_the_suite(folder, report, capsys):
    assert status_of("validate", "perseus", "--data", folder, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["workloads"][0]["fitted_plans"] == report["workloads"][0]["fitted_plans"]
    assert printed["rows"] == report["rows"]


def test_fitting_options_are_refused(folder):
    with pytest.raises(InputError, match="chooses by itself"):
        run_suite("perseus", folder, folds=3)


def test_slopes_are_those_of_the_residuals():
    job = small_job([1005, 1200, 1410])
    random = np.random.default_rng(2)
    time = random.uniform(0.04, 0.05, (3, 2, 2))
    energy = np.array([[30.0, 31.0], [np.nan, np.nan], [28.0, 29.0]])
    readings = PlanReadings(np.full(3, 0.4), np.array([61.0, 60.0, 57.0]), energy, time)
    problem = _Problem.of(job, readings, [0, 1, 2])
    z = 0.3 * random.standard_normal(problem.form.size)
    exact = [(problem.residuals(z + e) - problem.residuals(z - e)) / 2e-5 for e in 1e-5 * np.eye(len(z))]
    assert problem.slopes(z) == pytest.approx(np.array(exact).T, rel=2e-3, abs=2e-2)


@pytest.mark.slow
def test_measured_plans(data):
    report = run_perseus(data / "perseus_sosp24").to_dict()
    assert report["skipped"] == []
    assert len(report["rows"]) == 170
    summary = report["summary"]
    assert summary["all"]["time_error_percent"] < 0.3
    assert summary["all"]["energy_error_percent"] < 0.35
    assert summary["all"]["time_inside_percent"] > 85
    assert summary["all"]["energy_inside_percent"] > 85
    assert summary["all"]["power_inside_percent"] > 85
    assert summary["all"]["power_half_width_percent"] < 1.2
    for workload in report["workloads"]:
        assert len(workload["fitted_plans"]) == 5
        figures = summary[workload["name"]]
        for word in ("time", "energy"):
            assert figures[f"{word}_error_percent"] < 1
            assert figures[f"{word}_error_percent"] < 0.5 * figures[f"{word}_baseline_percent"]
