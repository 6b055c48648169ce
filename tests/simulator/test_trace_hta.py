"""Traces for Holistic Trace Analysis: what it needs, and what it makes of them against our ledger."""

import json
import os
import subprocess
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from command import status_of
from paths import EXAMPLES, ROOT, TESTS

import joulecast as jc
from joulecast.errors import InputError, UnknownNameError
from joulecast.simulator.events.timeline import covered_ns
from joulecast.simulator.instructions.memory_over_time import memory_over_time
from joulecast.simulator.traces.breakdown import breakdown
from joulecast.simulator.traces.hta import COLLECTIVES, WAITING_KERNEL

#: Standard deviation of an end that is rounded to a microsecond, and how many of those a sum may be off.
ROUNDED_US, DEVIATIONS = 12.0**-0.5, 4.0
PLANS = ("llama-3.1-8b-4xh200", "llama-3.2-3b-4xh200-ddp", "llama-3.1-70b-8xh200")


@pytest.fixture(scope="module", params=PLANS)
def traced(request, tmp_path_factory):
    """Forecast, timeline, and the folder of its traces."""
    iteration = jc.predict(EXAMPLES / f"{request.param}.toml")
    folder = tmp_path_factory.mktemp("hta") / "trace"
    iteration.write_trace(folder, "hta")
    return iteration, iteration.timeline(), folder


def events(path):
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def rounding_us(found):
    """How far sums over these events may be off: ends of each unbroken piece, of any and of compute, are rounded."""
    ends = 0
    for kernels in (found, [e for e in found if not e["name"].startswith("nccl")]):
        pairs = sorted((e["ts"], e["ts"] + e["dur"]) for e in kernels)
        last = np.maximum.accumulate([end for _, end in pairs])
        ends += 2 * (1 + int((np.array([start for start, _ in pairs[1:]]) > last[:-1]).sum()))
    return DEVIATIONS * ROUNDED_US * ends**0.5


def test_time_passes_as_the_ledger_says(traced):
    iteration, timeline, _ = traced
    for one, rank in zip(timeline.timelines, iteration.ranks, strict=True):
        found = breakdown(one)
        ledger = (
            rank.compute_s,
            rank.exposed_communication_s,
            rank.overlapped_communication_s,
            rank.waiting_s,
        )
        assert found.compute_s + found.exposed_communication_s + found.waiting_s == pytest.approx(one.time_s)
        # A trace has the mean clock of each instruction, where the ledger has all clocks of several iterations.
        assert astuple(found) == pytest.approx(ledger, abs=4e-3 * iteration.time_s)


def test_files_are_those_of_a_profiler(traced):
    iteration, timeline, folder = traced
    each = iteration.gpus // len(iteration.ranks)
    files = {f"rank{stage * each}.json" for stage in range(len(iteration.ranks))}
    assert {path.name for path in folder.iterdir()} == files
    for stage in range(len(iteration.ranks)):
        path = folder / f"rank{stage * each}.json"
        assert f'"rank": {stage * each}' in path.read_text(encoding="utf-8").split("\n")[0]
        found = events(path)
        assert all(e["cat"] == "kernel" and isinstance(e["ts"], int) and e["dur"] >= 0 for e in found)
        sent = [e["args"] for e in found if e["name"].startswith("nccl") and e["name"] != WAITING_KERNEL]
        assert sent
        known = {name for _, name in COLLECTIVES.values()}
        for arguments in sent:
            assert arguments["Collective name"] in known
            assert arguments["dtype"] == "BFloat16" and arguments["Group size"] > 1
            whole = not arguments["Collective name"].endswith("_base")  # gathers and scatters share
            assert (
                arguments["In msg nelems"] > 0 and (arguments["In msg nelems"] == arguments["Out msg nelems"]) == whole
            )
        assert {e["tid"] for e in found} == {e["args"]["stream"] for e in found} == {7, 20}  # PyTorch's numbers
        assert (found[0]["name"], found[0]["ts"], found[0]["dur"]) == ("iteration begins", 0, 0)
        ends = max(e["ts"] + e["dur"] for e in found)
        assert ends == pytest.approx(timeline.time_s * 1e6, abs=1)


def test_the_documented_rules_give_our_breakdown(traced):
    """Union of compute kernels, of all kernels, and first to last kernel: what the analysis computes."""
    iteration, timeline, folder = traced
    each = iteration.gpus // len(iteration.ranks)
    for stage, one in enumerate(timeline.timelines):
        found = events(folder / f"rank{stage * each}.json")
        start, end = (np.array([e["ts"] + k * e["dur"] for e in found]) for k in (0, 1))
        compute = np.array([not e["name"].startswith("nccl") for e in found])
        ours, rounding = breakdown(one), rounding_us(found)
        busy, computes = covered_ns(start, end), covered_ns(start[compute], end[compute])
        assert computes == pytest.approx(ours.compute_s * 1e6, abs=rounding)
        assert busy - computes == pytest.approx(ours.exposed_communication_s * 1e6, abs=rounding)
        assert end.max() - start.min() - busy == pytest.approx(ours.waiting_s * 1e6, abs=rounding)


def test_the_analysis_agrees_with_the_ledger(traced):
    python = Path(os.environ.get("JOULECAST_HTA_PYTHON", ROOT / ".venv-hta" / "bin" / "python"))
    if not python.is_file():
        pytest.skip(f"no environment with Holistic Trace Analysis: {python} (make hta-environment)")
    iteration, timeline, folder = traced
    script = TESTS / "support" / "read_back_hta.py"
    run = subprocess.run(
        [str(python), "-I", str(script), str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    each = iteration.gpus // len(iteration.ranks)
    rows = {row["rank"]: row for row in found["temporal"]}
    overlap = {row["rank"]: row["comp_comm_overlap_pctg"] for row in found["overlap"]}
    for stage, one in enumerate(timeline.timelines):
        ours, row = breakdown(one), rows[stage * each]
        rounding = rounding_us(events(folder / f"rank{stage * each}.json"))
        assert row["compute_time(us)"] == pytest.approx(ours.compute_s * 1e6, abs=rounding)
        assert row["non_compute_time(us)"] == pytest.approx(ours.exposed_communication_s * 1e6, abs=rounding)
        assert row["idle_time(us)"] == pytest.approx(ours.waiting_s * 1e6, abs=rounding)
        communicating = ours.exposed_communication_s + ours.overlapped_communication_s
        assert overlap[stage * each] == pytest.approx(100 * ours.overlapped_communication_s / communicating, abs=0.05)


def test_gathered_and_scattered_elements(tmp_path, examples):
    jc.predict(examples / "llama-3.1-70b-8xh200.toml").write_trace(tmp_path / "t", "hta")
    found = {}
    for event in events(tmp_path / "t" / "rank0.json"):
        arguments = event["args"]
        if "Collective name" in arguments:
            ratio = arguments["In msg nelems"] / arguments["Out msg nelems"]
            found.setdefault(arguments["Collective name"], set()).add(round(ratio, 3))
    assert found["_allgather_base"] == {0.25}
    assert found["_reduce_scatter_base"] == {4.0}


def test_nothing_is_left_where_it_fails(tmp_path, capsys, examples):
    plan = examples / "llama-3.1-8b-4xh200.toml"
    iteration = jc.predict(plan)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="not empty"):
        iteration.write_trace(tmp_path / "full", "hta")
    with pytest.raises(InputError, match="no such folder"):
        iteration.write_trace(tmp_path / "no" / "trace", "hta")
    with pytest.raises(UnknownNameError, match="perfetto"):
        iteration.write_trace(tmp_path / "x", "perfeto")
    status = status_of("predict", plan, "--trace", str(tmp_path / "x"), "--trace-format", "chrome")
    assert status == 2 and "trace-format" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_memory_rises_with_forwards_to_the_footprints_peak(traced):
    from joulecast.simulator.instructions.footprints import footprint_of

    iteration, timeline, _ = traced
    for rank, forecast in enumerate(iteration.ranks):
        footprint = footprint_of(iteration.plan, rank)
        steps = timeline.schedule.ranks[rank]
        start, end = timeline.result.start_ns[rank] * 1e-9, timeline.result.end_ns[rank] * 1e-9
        time, held = memory_over_time(footprint, steps, start, end)
        assert held.max() == pytest.approx(forecast.memory_bytes)
        assert held[0] == held[-1] == pytest.approx(forecast.memory_bytes - footprint.activations) or len(time) == 1
        assert (np.diff(time) >= 0).all()
