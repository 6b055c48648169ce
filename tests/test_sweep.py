"""Sweeps: the best plans, constraints, and what survives interruptions."""

import contextlib
import csv
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.cli import main
from joulecast.errors import GuardError, InputError, UnknownNameError
from joulecast.plan.sweep import search, workers
from joulecast.plan.sweep.choose import best, is_undominated, to_simulate
from joulecast.plan.sweep.journal import read_lines
from joulecast.plan.sweep.legal import combinations
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.rows import needed_bytes
from joulecast.plan.sweep.space import space_from_dict
from joulecast.plan.sweep.workers import Workers
from joulecast.simulator.footprints import footprint_of

TP, PP = "parallelism__tensor_model_parallel_size", "parallelism__pipeline_model_parallel_size"
VP, MICRO = "parallelism__virtual_pipeline_model_parallel_size", "workload__micro_batch_size"

SPLITS = {TP: [1, 2, 4, 8], PP: [1, 2, 4], MICRO: [1, 2, 4]}


def plans_of(space):
    """Every plan of a space in which all combinations of sizes that divide each other are legal."""
    plans = Plans(space)
    found = combinations(space, plans)
    return [plans.plan(found.of(number)) for number in range(len(found))]


@pytest.fixture(scope="module")
def small(tables):
    """Every plan of a small space, in closed form alone."""
    return jc.sweep(tables(**SPLITS, schedule__recompute=["none", "full"]))


def test_every_plan_is_there_and_the_best_is_the_fastest(small):
    assert small.counts["legal"] == len(small.rows) + small.legal - small.fitting
    assert small.best[0]["time_s"] == min(row["time_s"] for row in small.rows)
    assert [row["plan"] for row in small.rows] == sorted(row["plan"] for row in small.rows)
    assert all(row["source"] == "closed-form" for row in small.rows)
    assert all(0.0 <= row["memory_margin"] < 1.0 for row in small.rows)


def test_the_best_plans_are_simulated_exactly_as_predict_does(tables):
    space = tables(**SPLITS, objective__top=3)
    found = jc.sweep(space)
    assert [row["source"] for row in found.best] == ["simulated"] * 3
    first = found.best[0]
    overrides = [f"{key}={json.dumps(first[key])}" for key in found.keys]
    plain = {name: table for name, table in tables().items() if name not in ("constraints", "objective")}
    from joulecast.simulator.plan import plan_from_dict

    iteration = jc.predict(plan_from_dict(plain, overrides=overrides))
    assert (first["time_s"], first["energy_j"]) == (iteration.time_s, iteration.energy_j)
    assert first["money"] == pytest.approx(float(iteration.site.cost.money))
    assert first["time_s_p05"] < first["time_s"] < first["time_s_p95"]
    quick = {row["plan"]: row for row in jc.sweep(tables(**SPLITS)).rows}
    for row in found.best:
        assert quick[row["plan"]]["money"] == pytest.approx(row["money"], rel=0.03)


def test_plans_in_doubt_are_named_and_simulated_where_they_may_be_the_best(tables, small):
    """Pipelines of few micro-batches; one that a tenth would make the best is simulated beside the best."""
    by_count = {row["plan"]: 16 // (row[MICRO.replace("__", ".")] * row["data_parallel_size"]) for row in small.rows}
    for row in small.rows:
        few = row[PP.replace("__", ".")] > 1 and by_count[row["plan"]] <= 3
        assert bool(row["doubt"]) == few
        assert not few or f"{by_count[row['plan']]} micro-batches" in row["doubt"]
    rows = [
        {"plan": n, "time_s": t, "tokens": 1, "doubt": why}
        for n, (t, why) in enumerate([(1.0, ""), (1.05, ""), (1.08, "few"), (1.2, "few"), (1.09, "")])
    ]
    space = space_from_dict(tables(**SPLITS))
    assert [row["plan"] for row in to_simulate(rows, space, 2)] == [0, 1, 2]
    assert [row["plan"] for row in to_simulate(rows[:2], space, 2)] == [0, 1]


def test_objectives_are_counted_for_one_token(tables):
    found = jc.sweep(tables(**SPLITS, workload__global_batch_size=[16, 32]))
    per_token = [row["time_s"] / row["tokens"] for row in found.rows]
    assert found.best[0]["time_s"] / found.best[0]["tokens"] == min(per_token)


def test_a_front_of_two_and_three_objectives(tables, small):
    for names, columns in ((["time", "energy"], 2), (["time", "energy", "money"], 3)):
        found = jc.sweep(tables(**SPLITS, power__power_limit_w=[400, 550, 700], objective__minimise=names))
        values = np.array([[row["time_s"], row["energy_j"], row["money"]][:columns] for row in found.rows])
        front = {row["plan"] for row in found.best}
        for row, own in zip(found.rows, values, strict=True):
            beaten = ((values <= own).all(axis=1) & (values < own).any(axis=1)).any()
            assert (row["plan"] in front) == (not beaten)
        assert len(found.best) > 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=30))
def test_undominated_rows_are_those_that_no_other_beats(rows):
    values = np.array(rows, dtype=float)
    expected = [not any((o <= v).all() and (o < v).any() for o in values) for v in values]
    assert is_undominated(values).tolist() == expected
    front = set(np.flatnonzero(expected))
    assert set(best(values, len(front))) == front
    assert len(set(best(values, 5))) == min(5, len(rows))


def test_constraints_are_kept(tables, small):
    limit = float(np.median([row["time_s"] for row in small.rows]))
    energy = max(row["energy_j"] for row in small.rows if row["time_s"] <= limit) * 0.999
    found = jc.sweep(
        tables(
            **SPLITS,
            schedule__recompute=["none", "full"],
            constraints__max_time_s=limit,
            constraints__max_energy_j=energy,
            constraints__min_memory_margin=0.2,
            objective__minimise="energy",
        )
    )
    kept = [
        row
        for row in small.rows
        if row["time_s"] <= limit and row["energy_j"] <= energy and row["memory_margin"] >= 0.2
    ]
    assert 0 < found.within == len(kept) < len(small.rows)
    assert found.best[0]["energy_j"] == min(row["energy_j"] for row in kept)


def test_the_tightest_of_impossible_constraints_is_named(tables, small):
    fastest = min(row["time_s"] for row in small.rows)
    with pytest.raises(InputError, match=r"tightest is max_time_s") as error:
        jc.sweep(tables(**SPLITS, constraints__max_time_s=0.9 * fastest, constraints__max_gpus=8))
    assert fastest <= float(error.value.message.rpartition(" ")[2]) < 1.0002 * fastest
    with pytest.raises(InputError, match=r"tightest is max_gpus = 4: the nearest feasible value.* is 8"):
        jc.sweep(tables(**SPLITS, constraints__max_gpus=4, constraints__max_time_s=100.0))
    with pytest.raises(InputError, match="no single constraint suffices to be loosened"):
        jc.sweep(tables(**SPLITS, constraints__max_gpus=4, constraints__max_time_s=0.9 * fastest))


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        ("max_time_s", 1e-3),
        ("max_run_time_s", 1.0),
        ("max_energy_j", 1.0),
        ("max_run_money", 1e-3),
        ("max_run_carbon_kg", 1e-3),
        ("max_power_w", 500.0),
        ("max_node_power_w", 2000.0),
        ("max_site_power_w", 2000.0),
        ("min_memory_margin", 0.99),
    ],
)
def test_the_nearest_feasible_value_is_feasible(tables, key, asked):
    """Given as the constraint it lets a simulated plan pass, limits on peak power too."""
    space = {PP: [1, 2], MICRO: [1, 2], "workload__training_tokens": 1e9, "objective__top": 2}
    with pytest.raises(InputError, match=f"tightest is {key}") as error:
        jc.sweep(tables(**space, **{f"constraints__{key}": asked}))
    feasible = float(error.value.message.rpartition(" ")[2])
    found = jc.sweep(tables(**space, **{f"constraints__{key}": feasible}))
    assert found.best[0]["source"] == "simulated"
    little = 0.98 if key.startswith("max") else 1.01
    with pytest.raises(InputError, match=f"tightest is {key}"):
        jc.sweep(tables(**space, **{f"constraints__{key}": little * feasible}))


def test_a_front_under_a_limit_of_peak_power_reaches_its_ends(tables):
    """Plans whose mean keeps to the limit and whose peak does not leave the front, and others come in their place."""
    space = {TP: [1, 2, 4], "power__power_limit_w": [400, 500, 600, 700], "objective__minimise": ["time", "energy"]}
    open_ = jc.sweep(tables(**space, objective__top=20))
    peaks = sorted(row["peak_job_power_w"] for row in open_.rows if "peak_job_power_w" in row)
    limit = peaks[len(peaks) // 2]
    held = jc.sweep(tables(**space, objective__top=4, constraints__max_site_power_w=limit))
    fastest = min(row["time_s"] for row in open_.rows if row.get("peak_job_power_w", np.inf) <= limit)
    assert all(row["peak_job_power_w"] <= limit for row in held.best)
    assert held.best[0]["time_s"] <= 1.03 * fastest


def test_a_list_that_is_one_value_of_a_plan_is_no_axis(tables):
    modules = {"schedule__recompute": "selective", "implementation__framework": "megatron"}
    one = space_from_dict(tables(**modules, schedule__recompute_modules=["mlp", "core_attn"]))
    assert "schedule.recompute_modules" not in one.keys
    two = space_from_dict(tables(**modules, schedule__recompute_modules=[["mlp"], ["core_attn"]]))
    assert two.values("schedule.recompute_modules") == (["mlp"], ["core_attn"])


def test_constraints_on_the_run_need_its_tokens(tables):
    with pytest.raises(InputError, match=r"max_run_time_s.*needs workload.training_tokens"):
        jc.sweep(tables(**SPLITS, constraints__max_run_time_s=1e6))
    found = jc.sweep(tables(**SPLITS, workload__training_tokens=1e9, constraints__max_run_money=1e6))
    row = found.best[0]
    assert row["run_time_s"] == pytest.approx(row["time_s"] * 1e9 / row["tokens"])


def test_rack_and_site_power(tables):
    open_ = jc.sweep(tables(**SPLITS, site__nodes_per_rack=4)).best[0]
    assert open_["rack_power_w"] == pytest.approx(4 * open_["node_power_w"])
    assert open_["node_power_w"] < open_["facility_power_w"]
    limit = 0.97 * open_["rack_power_w"]
    found = jc.sweep(tables(**SPLITS, site__nodes_per_rack=4, constraints__max_rack_power_w=limit))
    assert all(row["rack_power_w"] <= limit for row in found.best)
    with pytest.raises(InputError, match=r"needs site.nodes_per_rack"):
        jc.sweep(tables(**SPLITS, constraints__max_rack_power_w=limit))


def test_nothing_fits_memory(tables):
    space = tables(**SPLITS, workload__model="llama-3.1-405b", workload__global_batch_size=16)
    plans = plans_of(space_from_dict(space))
    least = min(max(footprint_of(plan, rank).total_bytes for rank in range(plan.pp)) for plan in plans)
    with pytest.raises(InputError, match=r"none of .* fits a GPU's memory; the nearest needs (.*) GB") as error:
        jc.sweep(space)
    assert f"needs {least / 1e9:.4g} GB a GPU" in str(error.value)


def test_what_does_not_fit_is_left_out_and_counted(tables):
    splits = {TP: [4, 8], MICRO: [1, 4], "schedule__recompute": ["none", "full"]}
    found = jc.sweep(tables(**splits, workload__model="qwen3-32b", parallelism__distributed_optimizer=True))
    assert 0 < found.fitting < found.legal
    for row in found.rows:
        assert row["memory_bytes"] <= 150754820096


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet"])
def test_files(tables, tmp_path, suffix):
    out = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    found = jc.sweep(tables(**SPLITS), out)
    assert [p.name for p in tmp_path.iterdir()] == [out.name]
    if suffix == "csv":
        with out.open() as file:
            times = [float(line["time_s"]) for line in csv.DictReader(file)]
    elif suffix == "parquet":
        import pyarrow.parquet as pq

        times = pq.read_table(out).column("time_s").to_pylist()
    else:
        text = out.read_text()
        lines = json.loads(text) if suffix == "json" else [json.loads(line) for line in text.splitlines()]
        times = [line["time_s"] for line in lines]
    assert times == [row["time_s"] for row in found.rows]


@pytest.mark.parametrize(
    ("out", "message"), [("rows.xls", "names no known form"), ("none/rows.csv", "no such folder"), (None, "no file")]
)
def test_bad_outputs(tables, tmp_path, out, message):
    with pytest.raises(InputError, match=message):
        jc.sweep(tables(**SPLITS), None if out is None else tmp_path / out, resume=out is None)


class Stop(Exception):
    """Ends a sweep in the middle."""


def interrupted(tables, out, after, monkeypatch, **options):
    """A sweep that is stopped after some calls of its progress."""
    monkeypatch.setattr(search, "BATCH", 4)
    calls = iter(range(after))

    def progress(done, of, what):
        if next(calls, None) is None:
            raise Stop

    space = space_from_dict(tables(**SPLITS, objective__top=2))
    return search.run_sweep(space, out, progress=progress, **options)


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_stopped_sweep_goes_on_where_it_was(tables, tmp_path, monkeypatch, after):
    out = tmp_path / "rows.csv"
    with pytest.raises(Stop):
        interrupted(tables, out, after, monkeypatch)
    partial = tmp_path / "rows.csv.partial"
    lines, _ = read_lines(partial)
    with partial.open("ab") as file:
        file.write(b'{"plan": 3, "time_s": 0.1')  # what a killed process leaves
    with pytest.raises(InputError, match="interrupted sweep left this file"):
        jc.sweep(tables(**SPLITS, objective__top=2), out)
    with pytest.raises(InputError, match="belongs to another space"):
        jc.sweep(tables(**{**SPLITS, TP: [1]}), out, resume=True)
    batches = sum("combinations" in line for line in lines)
    asked = []
    monkeypatch.setattr(search, "evaluate", lambda *a, real=search.evaluate: asked.append(a) or real(*a))
    resumed = interrupted(tables, out, 1000, monkeypatch, resume=True)
    fresh = interrupted(tables, None, 1000, monkeypatch)
    assert resumed.rows == fresh.rows and resumed.best == fresh.best and resumed.counts == fresh.counts
    assert batches and len(asked) == 2 * -(-len(fresh.rows) // 4) - batches
    assert not partial.exists()


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.85])
def test_of_what_is_cut_off_only_the_missing_rows_are_evaluated(tables, tmp_path, monkeypatch, share):
    """A file that ends anywhere: every whole row is kept, and nothing that it holds is computed again."""
    out, notes = tmp_path / "rows.csv", []
    with pytest.raises(Stop):
        interrupted(tables, out, 5, monkeypatch)
    partial = tmp_path / "rows.csv.partial"
    text = partial.read_bytes()
    partial.write_bytes(text[: round(share * len(text))])
    kept = {line["plan"] for line in read_lines(partial)[0] if "plan" in line}
    begun = {plan for line in read_lines(partial)[0] if "combinations" in line for plan in line["plans"]}
    asked = []
    monkeypatch.setattr(search, "evaluate", lambda *a, real=search.evaluate: asked.extend(a[1]) or real(*a))
    resumed = interrupted(tables, out, 1000, monkeypatch, resume=True, note=notes.append)
    assert kept and not kept & set(asked)
    assert begun - kept <= set(asked)
    assert f"holds {len(kept)} plans in closed form and 0 simulated ones; its torn last line was dropped" in notes[0]
    assert resumed.rows == interrupted(tables, None, 1000, monkeypatch).rows


SWEEP = """
import sys
from pathlib import Path
from joulecast.plan.sweep import search
from joulecast.plan.sweep.space import load_space
search.BATCH = 8
space, out, workers, resume = sys.argv[1:]
search.run_sweep(load_space(space), Path(out), workers=int(workers), resume=resume == "resume")
"""
SPACE = """
[workload]
model = "llama-3.2-1b"
sequence_length = 2048
global_batch_size = 64
micro_batch_size = "all"
[cluster]
gpu = "h200-sxm"
gpus = 16
[parallelism]
tensor_model_parallel_size = "all"
pipeline_model_parallel_size = [1, 2, 4, 8]
[objective]
top = 0
[power]
power_limit_w = {min = 400, max = 700, step = 100}
"""


def children_of(process):
    """Ids of the processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == process.pid:
                found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_process_resumes(tmp_path, workers):
    """kill -9 at several points: every whole line stays, and the resumed table is the one of an undisturbed run."""
    space, out, whole = tmp_path / "space.toml", tmp_path / "rows.jsonl", tmp_path / "whole.jsonl"
    space.write_text(SPACE)
    partial = tmp_path / "rows.jsonl.partial"
    kept, mode = b"", "new"
    for rows in (3, 40) if workers == 1 else (20,):
        command = [sys.executable, "-c", SWEEP, str(space), str(out), str(workers), mode]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if partial.exists() and partial.read_bytes().count(b'"source"') >= rows:
                break
            time.sleep(0.001)
        children = children_of(process)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert partial.read_bytes().startswith(kept)
        kept, mode = partial.read_bytes()[: read_lines(partial)[1]], "resume"
        assert kept.count(b'"source"') >= rows
        while any(Path(f"/proc/{child}/stat").exists() for child in children):  # workers end with it
            assert time.monotonic() < deadline
            time.sleep(0.01)
    subprocess.run([*command[:-1], "resume"], check=True, capture_output=True)
    jc.sweep(space, whole)
    assert out.read_bytes() == whole.read_bytes()
    assert not partial.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from joulecast.plan.sweep import journal, rows, search
from joulecast.plan.sweep.space import load_space
rows.TOGETHER = 5
space, out, mode, call = sys.argv[1:]
module, name = {"evaluating": (rows, "closed_form"), "writing": (journal.Journal, "_write"),
                "simulating": (rows, "forecast"), "nothing": (rows, "resume")}[mode]
real, calls = getattr(module, name, None), 0
def killed(*given, **named):
    global calls
    calls += 1
    if calls == int(call):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given, **named)
setattr(module, name, killed)
asked = rows.closed_form
def told(plans, **named):
    print(len(plans))
    return asked(plans, **named)
rows.closed_form = told
search.run_sweep(load_space(space, ["objective.top=3"]), Path(out), resume=mode == "nothing")
"""


@pytest.mark.parametrize(
    ("mode", "call", "closed", "simulated"),
    [("evaluating", 4, 15, 0), ("writing", 11, 7, 0), ("simulating", 3, None, 2)],
)
def test_kill_9_loses_what_was_under_way_alone(tmp_path, mode, call, closed, simulated):
    """Rows that are evaluated together, the rest of those while they are written, or one simulation."""
    space, out = tmp_path / "space.toml", tmp_path / "rows.jsonl"
    space.write_text(SPACE)
    whole = len(jc.sweep(space).rows)

    def run(*of):
        return subprocess.run(
            [sys.executable, "-c", KILLED, str(space), str(out), *map(str, of)], capture_output=True, text=True
        )

    assert run(mode, call).returncode == -signal.SIGKILL
    lines, _ = read_lines(tmp_path / "rows.jsonl.partial")
    kept = sum(line.get("source") == "closed-form" for line in lines)
    assert kept == (whole if closed is None else closed)
    assert sum(line.get("source") == "simulated" for line in lines) == simulated
    again = run("nothing", 0)
    assert again.returncode == 0, again.stderr
    assert sum(map(int, again.stdout.split())) == whole - kept
    assert [json.loads(line) for line in out.read_text().splitlines()] == list(
        jc.sweep({**tomllib.loads(SPACE), "objective": {"top": 3}}).rows
    )


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from joulecast.cli import main
main(["sweep", *sys.argv[2:]])
"""


def test_a_full_disk(tmp_path):
    """A file that may not grow: what fits is kept, to the last whole row, and the sweep goes on from there."""
    pytest.importorskip("resource")
    space, out, whole = tmp_path / "space.toml", tmp_path / "rows.jsonl", tmp_path / "whole.jsonl"
    space.write_text(SPACE)
    command = [sys.executable, "-c", FULL]
    plain = {
        key: value for key, value in os.environ.items() if not key.startswith("COV")
    }  # who counts lines writes too
    full = subprocess.run([*command, "20000", str(space), "--out", str(out)], capture_output=True, text=True, env=plain)
    partial = tmp_path / "rows.jsonl.partial"
    assert full.returncode == 2
    assert "cannot be written: File too large. What was written stays; make room" in full.stderr
    assert full.stderr.count("\n") == 1
    assert partial.stat().st_size == 20000
    kept = sum("source" in line for line in read_lines(partial)[0])
    assert kept >= 20
    again = [*command, str(10**9), str(space), "--out"]
    done = subprocess.run([*again, str(out), "--resume"], check=True, capture_output=True, text=True)
    assert f"holds {kept} plans in closed form and 0 simulated ones; its torn last line was dropped" in done.stderr
    jc.sweep(space, whole)
    assert out.read_bytes() == whole.read_bytes()


def test_processes_give_the_same_table(tables, small):
    again = jc.sweep(tables(**SPLITS, schedule__recompute=["none", "full"]), workers=2)
    assert again.rows == small.rows
    assert again.counts == small.counts


#: An expression that ends its process.
END = "__import__('os')._exit(9)"


def dying(folder):
    """Jobs whose number 1 ends its process the first time."""
    died = str(folder / "died")
    first = f"10 if __import__('os').path.exists({died!r}) else (open({died!r}, 'w').close(), {END})"
    return {n: (first if n == 1 else f"{10 * n}",) for n in range(6)}


def test_jobs_of_a_lost_worker_are_done_again(tmp_path, monkeypatch):
    """Workers evaluate expressions; one of them ends its process the first time."""
    assert dict(Workers(2).results(eval, dying(tmp_path))) == {n: 10 * n for n in range(6)}
    monkeypatch.setattr(workers, "MOST_LOSSES", 2)
    with pytest.raises(InputError, match=r"workers were lost 2 times; 2 jobs are left"):
        list(Workers(2).results(eval, {0: (END,), 1: (END,)}))


def test_errors_of_workers_arrive_as_they_are():
    """An error that could not be copied from process to process would look like a lost worker."""
    for error in (UnknownNameError("schedule", "1f1c", ("1f1b",)), GuardError("a law", ("plan",))):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_dask_gives_the_same_table(tables, small, tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        found = jc.sweep(
            tables(**SPLITS, schedule__recompute=["none", "full"], objective__top=2), dask=cluster.scheduler_address
        )
        redone = Workers(dask=cluster.scheduler_address).results(eval, dying(tmp_path))
        assert dict(redone) == {n: 10 * n for n in range(6)}
    plain = jc.sweep(tables(**SPLITS, schedule__recompute=["none", "full"], objective__top=2))
    assert found.rows == plain.rows
    assert found.best == plain.best


def test_a_scheduler_that_does_not_answer(tables, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "CONNECT_S", 0.5)
    with pytest.raises(InputError, match="--workers and --dask exclude each other"):
        jc.sweep(tables(**SPLITS), workers=2, dask="tcp://127.0.0.1:9")
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        jc.sweep(tables(**SPLITS), dask="tcp://127.0.0.1:9")


def test_memory_is_that_of_the_fullest_rank(tables):
    names = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"]
    split = {PP: [2, 4, 8], VP: [1, 2]}
    for plan in plans_of(space_from_dict(tables(**split, schedule__name=names, schedule__recompute=["full"]))):
        each = [footprint_of(plan, rank).total_bytes for rank in range(plan.pp)]
        assert needed_bytes(plan) == max(each)
        for enough in each:  # what is above it is told, by the first rank or by a later one
            assert (needed_bytes(plan, enough) > enough) == (max(each) > enough)


def test_interleaved_plans_are_swept(tables):
    found = jc.sweep(tables(**{PP: [2, 4], VP: [1, 2, 4]}, schedule__name=["1f1b", "interleaved-1f1b"]))
    names = {row["schedule.name"] for row in found.rows}
    assert names == {"1f1b", "interleaved-1f1b"}


def run(capsys, *arguments):
    """Exit status, standard output and standard error of ``joulecast sweep``."""
    with pytest.raises(SystemExit) as stop:
        main(["sweep", *map(str, arguments)])
    out, err = capsys.readouterr()
    return stop.value.code or 0, out, err


@pytest.fixture
def file(tmp_path):
    """A small SPACE.toml."""
    path = tmp_path / "space.toml"
    path.write_text(
        '[workload]\nmodel = "llama-3.2-1b"\nsequence_length = 2048\nglobal_batch_size = 16\n'
        'micro_batch_size = [1, 2]\n[cluster]\ngpu = "h200-sxm"\ngpus = 8\n[parallelism]\n'
        "tensor_model_parallel_size = [1, 2, 3]\n[objective]\ntop = 1\n"
    )
    return path


def test_the_command(file, tmp_path, capsys):
    code, out, err = run(capsys, file, "--out", tmp_path / "rows.csv")
    assert code == 0
    assert "6 offered, 4 legal, 4 fit memory, 4 keep to constraints, 1 simulated" in out
    assert "a heuristic chose which plans were simulated" in out
    assert "wrote" in err
    plan = tmp_path / "best.toml"
    code, out, _ = run(capsys, file, "--json", "--set", "objective.minimise=energy", "--plan", plan)
    found = json.loads(out)
    assert found["minimise"] == ["energy"]
    assert found["counts"]["legal"] == 4
    assert found["best"][0]["source"] == "simulated"
    assert jc.predict(plan).energy_j == found["best"][0]["energy_j"]
    code, out, _ = run(capsys, file, "--csv", "--set", "objective.top=0")
    assert len(list(csv.DictReader(io.StringIO(out)))) == 4


def test_why_combinations_are_left_out_is_told(file, capsys):
    """Others of them are legal, so the sweep goes on."""
    code, out, _ = run(capsys, file, "--json", "--set", "overlap.comm_ctas=[8, 200]")
    found = json.loads(out)
    assert code == 0 and found["counts"]["legal"] == 4
    assert "overlap.comm_ctas: 200 thread blocks" in found["notes"][-1] and "nearest is 132" in found["notes"][-1]
    _, out, _ = run(capsys, file, "--json")
    assert "left out, such as" not in json.loads(out)["notes"][-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "there is no file to resume"),
        (["--out", "rows.txt"], "names no known form"),
        (["--set", "constraints.max_time_s=1e-6"], "the tightest is max_time_s"),
        (["--set", "parallelism.tensor_model_parallel_size=[3]"], "is a legal plan"),
        (["--set", "constraints.max_time_s=-1"], "Use a value above 0"),
    ],
)
def test_what_the_command_refuses(file, capsys, arguments, message):
    code, out, err = run(capsys, file, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_file_that_changed_between_two_sweeps_is_read_again(tables, tmp_path):
    whole = (resources.files("joulecast.model") / "catalogue_data" / "gpus" / "h100-sxm.toml").read_text()
    file, node = tmp_path / "card.toml", tmp_path / "node.toml"
    node.write_text((resources.files("joulecast.model") / "catalogue_data" / "nodes" / "hgx-h100.toml").read_text())
    space = tables(**SPLITS, objective__top=0, cluster__gpu=str(file), cluster__node=str(node))
    found = []
    for number in ("3.35e12", "1.5e12"):
        file.write_text(whole.replace("value = 3.35e12", f"value = {number}", 1))
        found.append(jc.sweep(space).rows)
    assert found[1][0]["time_s"] > 1.1 * found[0][0]["time_s"]
    node.write_text(re.sub(r"(?m)^other_power_w = \{value = [\d.]+", "other_power_w = {value = 5000", node.read_text()))
    (first, *_) = jc.sweep(space).rows
    assert first["facility_energy_j"] > 1.05 * found[1][0]["facility_energy_j"]
