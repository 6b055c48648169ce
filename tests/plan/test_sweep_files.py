"""Rows of a sweep in files, and what of them survives interruptions."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from row_files import csv_rows, json_rows

import joulecast as jc
from joulecast.errors import InputError
from joulecast.files import lock
from joulecast.plan.sweep import rows, search
from joulecast.plan.sweep.lines import read_lines
from joulecast.plan.sweep.space import space_from_dict

TP = "parallelism__tensor_model_parallel_size"
SPLITS = {
    TP: [1, 2, 4, 8],
    "parallelism__pipeline_model_parallel_size": [1, 2, 4],
    "workload__micro_batch_size": [1, 2, 4],
}


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet"])
def test_files(tables, tmp_path, suffix):
    out = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    found = jc.sweep(tables(**SPLITS), out)
    assert [p.name for p in tmp_path.iterdir()] == [out.name]
    if suffix == "parquet":
        import pyarrow.parquet as pq

        lines = pq.read_table(out).to_pylist()
    else:
        lines = {"csv": csv_rows, "jsonl": json_rows, "json": lambda path: json.loads(path.read_text())}[suffix](out)
    assert [float(line["time_s"]) for line in lines] == [row["time_s"] for row in found.rows]


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
    monkeypatch.setattr(search, "JOB_HERE", 4)
    calls = iter(range(after))

    def progress(done, of, what):
        if next(calls, None) is None:
            raise Stop

    space = space_from_dict(tables(**SPLITS, objective__top=2))
    return search.run_sweep(space, out, progress=progress, **options)


@pytest.mark.parametrize("after", [1, 6, 13, 23])
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
    kept = {line["plan"] for line in lines if "plan" in line}
    batches = [set(line["plans"]) <= kept for line in lines if "combinations" in line]
    asked = []
    monkeypatch.setattr(search, "evaluate", lambda *a, real=search.evaluate: asked.append(a) or real(*a))
    resumed = interrupted(tables, out, 1000, monkeypatch, resume=True)
    fresh = interrupted(tables, None, 1000, monkeypatch)
    assert resumed.rows == fresh.rows and resumed.best == fresh.best and resumed.counts == fresh.counts
    assert batches and len(asked) == 2 * -(-len(fresh.rows) // 4) - sum(batches)
    assert not partial.exists()


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.85])
def test_of_what_is_cut_off_only_the_missing_rows_are_evaluated(tables, tmp_path, monkeypatch, share):
    """A file that ends anywhere: every whole row is kept, and nothing that it holds is computed again."""
    out, notes = tmp_path / "rows.csv", []
    with pytest.raises(Stop):
        interrupted(tables, out, 25, monkeypatch)
    partial = tmp_path / "rows.csv.partial"
    text = partial.read_bytes()
    cut = text[: round(share * len(text))]
    partial.write_bytes(cut[:-2] if cut.endswith(b"\n") else cut)  # within a line
    kept = {line["plan"] for line in read_lines(partial)[0] if "plan" in line}
    begun = {plan for line in read_lines(partial)[0] if "combinations" in line for plan in line["plans"]}
    asked = []
    monkeypatch.setattr(search, "evaluate", lambda *a, real=search.evaluate: asked.extend(a[1]) or real(*a))
    resumed = interrupted(tables, out, 1000, monkeypatch, resume=True, note=notes.append)
    assert kept and not kept & set(asked)
    assert begun - kept <= set(asked)
    assert f"holds {len(kept)} plans in closed form and 0 simulated ones; its torn last line was dropped" in notes[0]
    assert resumed.rows == interrupted(tables, None, 1000, monkeypatch).rows


def test_parts_of_other_sweeps_stay(tables, tmp_path, monkeypatch):
    """They are not read; what a worker left that was killed within its first line goes with the sweep's own."""
    out = tmp_path / "rows.csv"
    with pytest.raises(Stop):
        interrupted(tables, out, 1, monkeypatch)
    torn, others = (tmp_path / f"rows.csv.partial-{name}.part" for name in ("a", "b"))
    torn.write_bytes(b'{"joulecast_sweep": 4, "spa')
    others.write_text('{"joulecast_sweep": 4, "space": "x"}\n{"plan": 0, "source": "closed-form", "time_s": 1.0}\n')
    resumed = interrupted(tables, out, 1000, monkeypatch, resume=True)
    assert resumed.rows == interrupted(tables, None, 1000, monkeypatch).rows
    assert set(tmp_path.iterdir()) == {out, others}


def test_only_one_process_sweeps_into_a_file(tables, tmp_path):
    """Else one that goes on would mix its rows with those of another that is not done."""
    pytest.importorskip("fcntl")
    out = tmp_path / "rows.csv"
    with (tmp_path / "rows.csv.partial").open("ab") as held:
        lock(held.fileno(), tmp_path, "", "")
        for resume in (True, False):
            with pytest.raises(InputError, match=r"partial: another process sweeps into this file\. Wait for its end"):
                jc.sweep(tables(**SPLITS), out, resume=resume)
    jc.sweep(tables(**SPLITS), out, resume=True)
    assert list(tmp_path.iterdir()) == [out]


def test_rows_of_many_combinations_are_evaluated_in_company(tables, tmp_path, monkeypatch):
    """A row alone, or one for so many combinations; all at once where nothing is kept. The table is the same."""
    assert [rows.rows_together(count, kept=True) for count in (1, 2699, 2700, 5232, 10**6)] == [1, 1, 2, 2, 16]
    assert rows.rows_together(5232, kept=True, processes=2) == 1
    sizes = []
    real = rows.closed_form
    monkeypatch.setattr(rows, "closed_form", lambda plans, **named: sizes.append(len(plans)) or real(plans, **named))
    alone = jc.sweep(tables(**SPLITS), tmp_path / "rows.csv")
    assert set(sizes) == {1}
    monkeypatch.setattr(rows, "ALONE", 4)
    sizes.clear()
    assert jc.sweep(tables(**SPLITS), tmp_path / "rows.csv").rows == alone.rows
    assert 1 < max(sizes) <= 1 + len(alone.rows) // 4
    sizes.clear()
    assert jc.sweep(tables(**SPLITS)).rows == alone.rows
    assert sizes == [len(alone.rows)]


#: A sweep whose processes note in a file which rows they begin to compute.
SWEEP = """
import os, sys
from pathlib import Path
from joulecast.plan.sweep import rows, search
from joulecast.plan.sweep.space import load_space
space, out, workers, resume = sys.argv[1:]
log = os.open(out + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def noting(real):
    def call(forecaster, asked):
        plans = [asked] if isinstance(asked, int) else [number for number, *_ in asked]
        os.write(log, "".join(f"{real.__name__} {plan}\\n" for plan in plans).encode())
        return real(forecaster, asked)
    return call
rows.Forecaster._rows = noting(rows.Forecaster._rows)
rows.Forecaster.simulate = noting(rows.Forecaster.simulate)
if __name__ == "__main__":
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
pipeline_model_parallel_size = [1, 4]
[objective]
top = 0
[power]
power_limit_w = {min = 400, max = 700, step = 50}
"""


@pytest.fixture(scope="module")
def undisturbed():
    """Rows of an undisturbed sweep of ``SPACE``, and those with the three best simulated."""
    tables = tomllib.loads(SPACE)
    return [jc.sweep({**tables, "objective": {"top": top}}).rows for top in (0, 3)]


def cpu_of(process):
    """Ticks of processor time that a process has had."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11])


def children_of(process):
    """Ids of the processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == process.pid:
                found.append(int(stat.parent.name))
    return found


def kept_of(out):
    """Whole lines of a sweep's file and of its workers' parts, as they stand."""
    files = sorted(out.parent.glob(f"{out.name}.partial*"))
    return {file.name: file.read_bytes()[: read_lines(file)[1]] for file in files}


@pytest.mark.parametrize(("workers", "killed"), [(1, "parent"), (2, "parent"), (2, "worker")])
def test_kill_9_loses_the_rows_in_flight_alone(tmp_path, undisturbed, workers, killed):
    """Wherever a process ends, whole lines stay, one row a process is lost, and the table is the same."""
    script, space, out = (tmp_path / name for name in ("run.py", "space.toml", "rows.jsonl"))
    script.write_text(SWEEP)
    space.write_text(SPACE.replace("top = 0", "top = 3"))
    log = tmp_path / "rows.jsonl.log"
    log.touch()
    whole, anywhere = len(undisturbed[0]), random.Random(workers)
    begun, mode, kept = 0, "new", {}
    command = [sys.executable, str(script), str(space), str(out), str(workers)]
    times = 3 if workers == 1 else 1
    for number in sorted(anywhere.sample(range(1, whole + 3), times)):
        process = subprocess.Popen([*command, mode], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None and log.read_bytes().count(b"\n") < number + begun:
            time.sleep(0.0005)
        children = children_of(process)
        if killed == "worker":
            os.kill(max(children, key=cpu_of), signal.SIGKILL)
            assert process.wait(60) == 0
            break
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        while any(Path(f"/proc/{child}/stat").exists() for child in children):  # workers end with it
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before, kept, mode = kept, kept_of(out), "resume"
        assert all(kept[name].startswith(content) for name, content in before.items())
        lost = log.read_bytes().count(b"\n") - b"".join(kept.values()).count(b'"source"') - begun
        assert 0 <= lost <= workers
        begun += lost
    else:
        subprocess.run([*command, "resume"], check=True, capture_output=True)
    assert begun <= log.read_bytes().count(b"\n") - whole - 3 <= begun + workers * (killed == "worker")
    assert json_rows(out) == list(undisturbed[1])
    assert not kept_of(out)


KILLED = """
import os, signal, sys
from pathlib import Path
from joulecast.plan.sweep import lines, rows, search
from joulecast.plan.sweep.space import load_space
from joulecast.simulator.iteration import forecast
space, out, mode, call = sys.argv[1:]
module, name = {"evaluating": (rows, "closed_form"), "writing": (lines, "write_all"),
                "simulating": (forecast, "forecast"), "nothing": (rows, "resume")}[mode]
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
    [("evaluating", 4, 3, 0), ("writing", 11, 8, 0), ("simulating", 3, None, 2)],
)
def test_kill_9_loses_what_was_under_way_alone(tmp_path, undisturbed, mode, call, closed, simulated):
    """The row that is evaluated, or written, or one simulation."""
    space, out = tmp_path / "space.toml", tmp_path / "rows.jsonl"
    space.write_text(SPACE)
    whole = len(undisturbed[0])

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
    assert json_rows(out) == list(undisturbed[1])


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from joulecast.cli import main
main(["sweep", *sys.argv[2:]])
"""


@pytest.mark.parametrize(("workers", "most"), [(1, 20000), (2, 6000)])
def test_a_full_disk(tmp_path, workers, most):
    """A file that may not grow: what fits is kept, to the last whole row, and the sweep goes on from there."""
    pytest.importorskip("resource")
    space, out, whole = tmp_path / "space.toml", tmp_path / "rows.jsonl", tmp_path / "whole.jsonl"
    space.write_text(SPACE)
    command = [sys.executable, "-c", FULL]
    plain = {
        key: value for key, value in os.environ.items() if not key.startswith("COV")
    }  # who counts lines writes too
    options = [str(space), "--workers", str(workers), "--out"]
    full = subprocess.run([*command, str(most), *options, str(out)], capture_output=True, text=True, env=plain)
    assert full.returncode == 2
    assert "cannot be written: File too large. What was written stays; make room" in full.stderr
    assert full.stderr.count("\n") == 1
    files = tmp_path.glob("rows.jsonl.partial*")
    assert max(file.stat().st_size for file in files) == most
    kept = b"".join(kept_of(out).values()).count(b'"source"')
    assert kept >= most // 1000
    done = subprocess.run(
        [*command, str(10**9), *options, str(out), "--resume"], check=True, capture_output=True, text=True
    )
    assert f"holds {kept} plans in closed form and 0 simulated ones" in done.stderr
    assert ("; its torn last line was dropped" in done.stderr) == (workers == 1)
    jc.sweep(space, whole)
    assert out.read_bytes() == whole.read_bytes()
    assert not kept_of(out)
