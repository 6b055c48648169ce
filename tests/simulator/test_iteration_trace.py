"""The trace of a forecast: tracks, nesting, counters."""

import json
from itertools import pairwise

import pytest
from command import run, status_of
from perfetto_rules import faults

from joulecast.simulator.plan_file.plan import load_plan
from joulecast.simulator.traces.iteration_trace import write_iteration_trace

#: Numbers of the two stages' processes; the streams of each are threads from the same number on.
GPUS = (1, 3)


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory, request):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    examples = request.getfixturevalue("examples")
    assert status_of("predict", str(examples / "llama-3.1-8b-4xh200.toml"), "--json", "--trace", path) == 0
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def trace(trace_file):
    return trace_file["traceEvents"]


def test_one_track_per_stream_and_counters_per_gpu(trace):
    tracks = {(e["pid"], e["tid"]) for e in trace if e["ph"] == "X"}
    assert tracks == {(1, 1), (1, 2), (3, 3), (3, 4)}
    counters = {(e["pid"], e["name"], *e["args"]) for e in trace if e["ph"] == "C"}
    assert counters == {
        (pid, *name) for pid in GPUS for name in (("power", "[W]"), ("clock", "[MHz]"), ("memory", "[GB]"))
    }


def test_kernels_lie_within_instructions_and_do_not_overlap(trace):
    for pid in GPUS:
        for stream in (0, 1):
            events = [e for e in trace if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, pid + stream)]
            kernels = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] != e["args"]["instruction"])
            assert len(kernels) > 100
            assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(kernels))
    whole = [(e["ts"], e["ts"] + e["dur"]) for e in trace if e["ph"] == "X" and e["pid"] == GPUS[0]]
    assert min(a for a, _ in whole) == 0
    assert sum(1 for e in trace if e["ph"] == "X" and e["args"]["instruction"].startswith("forward ")) > 16


EXAMPLES = ("llama-3.2-3b-4xh200-ddp", "llama-3.1-70b-64xh100-fsdp", "llama-3.1-8b-4xh200-nanobatches")
#: Half a minute each.
LARGE = ("gpt3-175b-64xa100", "gpt3-175b-512xh100")


@pytest.mark.parametrize("whole", [int, round], ids=["truncated", "rounded"])
def test_perfetto_finds_no_fault(trace, whole):
    assert faults(trace, whole) == {}


@pytest.mark.parametrize("name", [*EXAMPLES, *(pytest.param(name, marks=pytest.mark.long) for name in LARGE)])
def test_perfetto_finds_no_fault_in_traces_of_the_examples(name, examples, tmp_path):
    path = write_iteration_trace(tmp_path / "trace.json", load_plan(examples / f"{name}.toml"))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert len(events) > 5000
    assert faults(events) == faults(events, round) == {}


BREAKS = {
    "number_0_is_kept": ("X", {"tid": 0}),
    "thread_without_name": ("X", {"tid": 99}),
    "slice_drop_overlapping_complete_event": ("X", {"dur": 1e9}),
    "negative_time": ("X", {"dur": -1.0}),
    "flow_no_enclosing_slice": ("f", {"ts": 1e9}),
    "flow_without_end": ("s", {"id": 99}),
    "counter_is_no_number": ("C", {"args": {"[W]": "many"}}),
}


@pytest.mark.parametrize("fault", BREAKS)
def test_a_fault_would_be_found(trace, fault):
    phase, change = BREAKS[fault]
    places = [i for i, e in enumerate(trace) if e["ph"] == phase]
    at = places[len(places) // 4]
    broken = [*trace[:at], trace[at] | change, *trace[at + 1 :]]
    assert fault in faults(broken)


def test_nothing_is_written_where_there_is_no_folder(capsys, examples, tmp_path):
    status, out, err = run(
        capsys, "predict", str(examples / "llama-3.1-8b-4xh200.toml"), "--trace", str(tmp_path / "no" / "trace.json")
    )
    assert (status, out) == (2, "")
    assert err.startswith("error: ")


def test_arrows_lead_from_a_running_instruction_to_one_that_begins_later(trace):
    slices = {pid: [e for e in trace if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, pid)] for pid in GPUS}
    ends = {phase: {e["id"]: e for e in trace if e["ph"] == phase} for phase in "sf"}
    assert len(ends["s"]) == len(ends["f"]) == 16
    for i, sent in ends["s"].items():
        received = ends["f"][i]
        assert sent["ts"] < received["ts"]
        for end in (sent, received):
            assert any(e["ts"] <= end["ts"] < e["ts"] + e["dur"] for e in slices[end["pid"]])


def test_activations_go_to_the_stage_behind_and_gradients_back(trace):
    to = {e["id"]: e["pid"] for e in trace if e["ph"] == "f"}
    ways = [(e["name"], e["pid"], to[e["id"]]) for e in trace if e["ph"] == "s"]
    assert sorted(ways) == [("activations", *GPUS)] * 8 + [("gradients", *reversed(GPUS))] * 8


def test_clocks_are_told_where_they_change_in_the_iteration_shown(trace_file):
    """From its begin, at the governor's ticks of 10 ms, to its end."""
    events, summary = trace_file["traceEvents"], trace_file["otherData"]
    for pid in GPUS:
        times = [e["ts"] for e in events if e["ph"] == "C" and e["pid"] == pid and e["name"] == "clock"]
        assert times[0] == 0.0 and all(before < after for before, after in pairwise(times))
        steps = [(after - before) / 10e3 for before, after in pairwise(times[1:])]
        assert steps == pytest.approx([round(step) for step in steps], abs=1e-4)
        assert times[-1] < 1e6 * summary["time_s"]


def test_the_counter_integrates_to_the_energy_of_the_iteration(trace_file):
    events, summary = trace_file["traceEvents"], trace_file["otherData"]
    energy = 0.0
    for pid in GPUS:
        steps = [
            (e["ts"], e["args"]["[W]"]) for e in events if e["ph"] == "C" and e["pid"] == pid and e["name"] == "power"
        ]
        energy += 2e-6 * sum(power * (b - a) for (a, power), (b, _) in pairwise(steps))
    assert energy == pytest.approx(summary["energy_j"], rel=1e-4)
