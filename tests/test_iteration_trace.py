"""The trace of a forecast: tracks, nesting, counters."""

import json
from itertools import pairwise

import numpy as np
import pytest

from joulecast.cli import main
from joulecast.model.launches import Launch
from joulecast.model.operators import Collective, Gemm
from joulecast.simulator.iteration_trace import lay_out


@pytest.fixture(scope="module")
def trace(tmp_path_factory, request):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    examples = request.getfixturevalue("examples")
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(examples / "llama-3.1-8b-4xh200.toml"), "--json", "--trace", str(path)])
    assert not stop.value.code
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def test_one_track_per_stream_and_counters_per_gpu(trace):
    tracks = {(e["pid"], e["tid"]) for e in trace if e["ph"] == "X"}
    assert tracks == {(0, 0), (0, 1), (1, 0), (1, 1)}
    counters = {(e["pid"], e["name"]) for e in trace if e["ph"] == "C"}
    assert counters == {(rank, name) for rank in (0, 1) for name in ("power [W]", "clock [MHz]")}


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


def test_nothing_is_written_where_there_is_no_folder(capsys, examples, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(examples / "llama-3.1-8b-4xh200.toml"), "--trace", str(tmp_path / "no" / "trace.json")])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith("error: ")


def test_a_synchronous_collective_stops_compute_and_an_asynchronous_one_does_not():
    gemm, reduce = Gemm(8, 8, 8), Collective("all_reduce", 8.0, 2)
    beside = [Launch(gemm), Launch(reduce, "communication"), Launch(gemm), Launch(gemm, waits=True, repeat=2)]
    begin, end = lay_out(beside, np.array([1.0, 5.0, 1.0, 1.0]))
    assert begin.tolist() == [0, 1, 1, 6]
    assert end.tolist() == [1, 6, 2, 8]
    begin, end = lay_out([Launch(gemm), Launch(reduce, "communication", waits=True), Launch(gemm)], np.ones(3))
    assert begin.tolist() == [0, 1, 2]
