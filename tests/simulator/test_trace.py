"""Traces have the structure that Perfetto reads, and appear whole or not at all."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from joulecast.errors import InputError
from joulecast.simulator.events.engine import simulate
from joulecast.simulator.events.segment_program import make_program
from joulecast.simulator.events.segments import make_segment
from joulecast.simulator.events.timeline import Timeline, timeline_of_kernels
from joulecast.simulator.schedules import build_schedule
from joulecast.simulator.traces.perfetto import Arrow, Counter, write_trace


def timelines() -> list[Timeline]:
    schedule = build_schedule("1f1b", 2, 3)
    segment = make_segment(
        [1500, 700, 2000],
        stream=[0, 1, 0],
        wait=[-1, 0, -1],
        names=["gemm", "all-reduce", "norm"],
        power_w=[[500.0, 100.0], [50.0, 10.0], [200.0, 300.0]],
    )
    program = make_program(schedule, [segment], [[0] * len(r) for r in schedule.ranks], 300)
    result = simulate(program, kernels=True)
    return [
        timeline_of_kernels(
            program, r, k, components=("tensor", "hbm"), base_power_w=90, wait_power_w=75, finish_ns=result.time_ns
        )
        for r, k in enumerate(result.kernels)
    ]


def test_structure(tmp_path: Path) -> None:
    lines = timelines()
    clock = Counter("SM clock [MHz]", 1, np.array([0.0, 1e-6, 2e-6]), np.array([1980.0, 1980.0, 1965.0]))
    arrow = Arrow("activations", 0, 3500, 1, 3800)
    path = write_trace(
        tmp_path / "trace.json", lines, counters=[clock], arrows=[arrow], labels={0: "first"}, metadata={"plan": "x"}
    )
    trace = json.loads(path.read_text())
    assert trace["otherData"] == {"plan": "x"}
    by_phase: dict[str, list[dict[str, object]]] = {}
    for event in trace["traceEvents"]:
        by_phase.setdefault(event["ph"], []).append(event)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
    assert set(by_phase) == {"M", "X", "C", "s", "f"}
    assert len(by_phase["X"]) == sum(len(t.start_ns) for t in lines)
    assert {(e["pid"], e["tid"]) for e in by_phase["X"]} == {(1, 1), (1, 2), (3, 3), (3, 4)}
    tracks = {(e["pid"], e["tid"], e["args"]["name"]) for e in by_phase["M"] if e["name"] == "thread_name"}  # type: ignore[index]
    assert tracks == {(pid, pid + s, n) for pid in (1, 3) for s, n in enumerate(("compute", "communication"))}
    names = {e["args"]["name"] for e in by_phase["M"] if e["name"] == "process_name"}  # type: ignore[index]
    assert names == {"first", "GPU 1"}
    gemm = next(e for e in by_phase["X"] if e["name"] == "gemm")
    assert gemm["dur"] == 1.5 and gemm["args"] == {"instruction": "forward 0.0", "power_above_idle_w": 600.0}
    power = [e for e in by_phase["C"] if e["name"] == "power"]
    assert {e["pid"] for e in power} == {1, 3} and power[0]["args"] == {"[W]": 690.0}
    assert [(e["name"], e["args"]) for e in by_phase["C"] if e["pid"] == 3 and e["name"] != "power"] == [
        ("SM clock", {"[MHz]": 1980.0}),
        ("SM clock", {"[MHz]": 1965.0}),
    ]
    assert by_phase["s"][0]["id"] == by_phase["f"][0]["id"]


def test_of_steps_that_begin_together_the_last_counts(tmp_path: Path) -> None:
    steps = Counter("memory [GB]", 0, np.array([0.0, 1e-6, 1e-6, 2e-6]), np.array([1.0, 2.0, 3.0, 3.0]))
    trace = json.loads(write_trace(tmp_path / "t.json", timelines()[:1], counters=[steps]).read_text())
    found = [(e["ts"], e["args"]["[GB]"]) for e in trace["traceEvents"] if e["name"] == "memory"]
    assert found == [(0.0, 1.0), (1.0, 3.0)]


def test_the_order_of_dictionaries_does_not_matter(tmp_path: Path) -> None:
    lines, pairs = timelines(), [("b", 1), ("a", 2)]
    texts = []
    for ordered in (pairs, pairs[::-1]):
        labels = {rank - 1: name for name, rank in ordered}
        texts.append(write_trace(tmp_path / "t.json", lines, labels=labels, metadata=dict(ordered)).read_text())
    assert texts[0] == texts[1]


def test_a_name_in_gz_is_compressed_to_the_same_bytes_every_time(tmp_path: Path) -> None:
    """What reads traces unpacks a file of this name; plain text of this name was none."""
    plain = write_trace(tmp_path / "t.json", timelines()).read_text(encoding="utf-8")
    packed = [write_trace(tmp_path / f"{n}.json.gz", timelines()).read_bytes() for n in range(2)]
    assert packed[0] == packed[1]
    assert gzip.decompress(packed[0]).decode() == plain


def test_nothing_is_written_where_it_fails(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(tmp_path / "missing" / "trace.json", timelines())
    bad = Counter("clock", 0, np.array([0.0]), np.array([np.nan]))
    with pytest.raises(ValueError, match="JSON compliant"):
        write_trace(tmp_path / "trace.json", timelines(), counters=[bad])
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_trace(tmp_path / "folder", timelines())
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
