"""The trace of a forecast: tracks, nesting, counters."""

import json
from itertools import pairwise

import pytest

from joulecast.cli import main


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory, request):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    examples = request.getfixturevalue("examples")
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(examples / "llama-3.1-8b-4xh200.toml"), "--json", "--trace", str(path)])
    assert not stop.value.code
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def trace(trace_file):
    return trace_file["traceEvents"]


def test_one_track_per_stream_and_counters_per_gpu(trace):
    tracks = {(e["pid"], e["tid"]) for e in trace if e["ph"] == "X"}
    assert tracks == {(0, 0), (0, 1), (1, 0), (1, 1)}
    counters = {(e["pid"], e["name"]) for e in trace if e["ph"] == "C"}
    assert counters == {(rank, name) for rank in (0, 1) for name in ("power [W]", "clock [MHz]", "memory [GB]")}


def test_kernels_lie_within_instructions_and_do_not_overlap(trace):
    for rank in (0, 1):
        for stream in (0, 1):
            events = [e for e in trace if e["ph"] == "X" and (e["pid"], e["tid"]) == (rank, stream)]
            kernels = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] != e["args"]["instruction"])
            assert len(kernels) > 100
            assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(kernels))
    whole = [(e["ts"], e["ts"] + e["dur"]) for e in trace if e["ph"] == "X" and e["pid"] == 0]
    assert min(a for a, _ in whole) == 0
    assert sum(1 for e in trace if e["ph"] == "X" and e["args"]["instruction"].startswith("forward ")) > 16


@pytest.mark.parametrize("whole", [int, round])
def test_slices_nest_for_readers_that_round_or_truncate(trace, whole):
    """Perfetto drops a slice that begins within another one and ends after it."""
    tracks = {}
    for e in trace:
        if e["ph"] == "X":
            start, length = (whole(e[key] * 1000.0) for key in ("ts", "dur"))
            tracks.setdefault((e["pid"], e["tid"]), []).append((start, -length))
    for slices in tracks.values():
        open_until = []
        for start, negative in sorted(slices):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or start - negative <= open_until[-1]
            open_until.append(start - negative)


def test_nothing_is_written_where_there_is_no_folder(capsys, examples, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(examples / "llama-3.1-8b-4xh200.toml"), "--trace", str(tmp_path / "no" / "trace.json")])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith("error: ")


def test_arrows_lead_from_a_running_instruction_to_one_that_begins_later(trace):
    slices = {rank: [e for e in trace if e["ph"] == "X" and (e["pid"], e["tid"]) == (rank, 0)] for rank in (0, 1)}
    ends = {phase: {e["id"]: e for e in trace if e["ph"] == phase} for phase in "sf"}
    assert len(ends["s"]) == len(ends["f"]) == 16
    for i, sent in ends["s"].items():
        received = ends["f"][i]
        assert sent["ts"] < received["ts"]
        for end in (sent, received):
            assert any(e["ts"] <= end["ts"] < e["ts"] + e["dur"] for e in slices[end["pid"]])


def test_the_counter_integrates_to_the_energy_of_the_iteration(trace_file):
    events, summary = trace_file["traceEvents"], trace_file["otherData"]
    energy = 0.0
    for rank in (0, 1):
        steps = [
            (e["ts"], e["args"]["power [W]"])
            for e in events
            if e["ph"] == "C" and e["pid"] == rank and "power" in e["name"]
        ]
        energy += 2e-6 * sum(power * (b - a) for (a, power), (b, _) in pairwise(steps))
    assert energy == pytest.approx(summary["energy_j"], rel=1e-4)
