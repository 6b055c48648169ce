"""The SimPy engine against hand-made cases, and the memoised maps against the engine on random programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memoised import simulate_memoised

from joulecast.errors import GuardError, InputError
from joulecast.simulator.events.engine import simulate
from joulecast.simulator.events.guards import check_causality
from joulecast.simulator.events.segment_program import Program, make_program
from joulecast.simulator.events.segments import Segment, make_segment
from joulecast.simulator.schedules import Instruction, Schedule, build_schedule


@st.composite
def segments(draw: st.DrawFn, kernels: int = 12) -> Segment:
    n = draw(st.integers(1, kernels))
    stream = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    wait = []
    for i in range(n):
        others = [-1] + [j for j in range(i) if stream[j] != stream[i]]
        wait.append(draw(st.sampled_from(others)))
    return make_segment(
        draw(st.lists(st.integers(0, 50), min_size=n, max_size=n)),
        stream=stream,
        wait=wait,
        output_kernel=draw(st.integers(0, n - 1)),
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    name = draw(st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"]))
    size, rounds = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    chunks = draw(st.integers(1, 2)) if name.startswith("i") else 1
    schedule = build_schedule(name, size, size * rounds, virtual_stages_per_rank=chunks)
    pool = draw(st.lists(segments(), min_size=1, max_size=5))
    order = [[draw(st.integers(0, len(pool) - 1)) for _ in rank] for rank in schedule.ranks]
    latency = draw(
        st.lists(st.integers(0, 30), min_size=len(schedule.edges.source), max_size=len(schedule.edges.source))
    )
    return make_program(schedule, pool, order, latency)


def single(*instructions: Segment) -> Program:
    schedule = Schedule("none", 1, 1, 1, (tuple(Instruction("forward", k) for k in range(len(instructions))),))
    return make_program(schedule, instructions, [list(range(len(instructions)))])


@settings(max_examples=150, deadline=None)
@given(programs())
def test_memoised_equals_the_engine(program: Program) -> None:
    exact, quick = simulate(program, kernels=True), simulate_memoised(program)
    assert quick.time_ns == exact.time_ns
    for rank in range(program.ranks):
        assert quick.sent_ns[rank].tolist() == exact.sent_ns[rank].tolist()
        kernels = exact.kernels[rank]
        for stream, free in enumerate((quick.compute_free_ns[rank], quick.communication_free_ns[rank])):
            ends = kernels.end_ns[kernels.stream == stream]
            assert free[-1] == ends.max(initial=0)
    check_causality(program, exact)


def test_overlap_of_two_streams() -> None:
    # compute 10, then its all-reduce 30 beside compute 20, then compute 5 that waits for it
    segment = make_segment([10, 30, 20, 5], stream=[0, 1, 0, 0], wait=[-1, 0, -1, 1])
    kernels = simulate(single(segment), kernels=True).kernels[0]
    assert kernels.start_ns.tolist() == [0, 10, 10, 40]
    assert kernels.end_ns.tolist() == [10, 40, 30, 45]


def test_communication_crosses_instructions_and_is_joined() -> None:
    reduce = make_segment([10, 100], stream=[0, 1], wait=[-1, 0])
    plain = make_segment([20])
    join = make_segment([0, 5], stream=[1, 0], wait=[-1, 0])
    result = simulate(single(reduce, plain, join))
    assert result.end_ns[0].tolist() == [110, 30, 115]
    assert simulate_memoised(single(reduce, plain, join)).time_ns == result.time_ns == 115


def test_runs_are_fused() -> None:
    segment = make_segment([1, 2, 3, 4, 5, 6], stream=[0, 0, 0, 1, 0, 0], wait=[-1, -1, -1, 2, -1, 3])
    assert [(r.stream, r.duration_ns) for r in segment.runs] == [(0, 6), (1, 4), (0, 5), (0, 6)]
    assert segment.offset_in_run_ns.tolist() == [0, 1, 3, 0, 0, 0]


def test_a_circle_of_inputs_is_named() -> None:
    program = make_program(build_schedule("1f1b", 2, 1), [make_segment([1])], [[0, 0, 0], [0, 0, 0]])
    circular = replace(program, source=np.array([1, 4]), target=np.array([3, 1]))
    for run in (simulate, simulate_memoised):
        with pytest.raises(GuardError, match="rank 0 waits for ever"):
            run(circular)


@pytest.mark.parametrize(
    "bad",
    [
        {"duration_ns": []},
        {"duration_ns": [-1]},
        {"duration_ns": [1, 2], "stream": [0, 2]},
        {"duration_ns": [1, 2], "stream": [0, 0], "wait": [-1, 0]},
        {"duration_ns": [1, 2], "stream": [0, 1], "wait": [1, -1]},
        {"duration_ns": [1, 2], "stream": [0]},
        {"duration_ns": [1, 2], "output_kernel": 2},
        {"duration_ns": [1, 2], "names": ["a"]},
    ],
)
def test_bad_segments(bad: dict[str, object]) -> None:
    with pytest.raises(InputError):
        make_segment(**bad)  # type: ignore[arg-type]


def test_bad_programs() -> None:
    schedule, one = build_schedule("1f1b", 2, 1), make_segment([1])
    with pytest.raises(InputError, match="one segment for every"):
        make_program(schedule, [one], [[0, 0], [0, 0, 0]])
    with pytest.raises(InputError, match="durations must not be negative"):
        make_segment([5, -1])
    with pytest.raises(InputError, match="outside"):
        make_program(schedule, [one], [[0, 0, 1], [0, 0, 0]])
    with pytest.raises(InputError, match="negative"):
        make_program(schedule, [one], [[0, 0, 0], [0, 0, 0]], -1)


def test_edges_within_a_rank_cost_nothing() -> None:
    schedule = build_schedule("interleaved-1f1b", 1, 2, virtual_stages_per_rank=2)
    program = make_program(schedule, [make_segment([7])], [[0] * len(schedule.ranks[0])], 1000)
    assert simulate(program).time_ns == 7 * 9
    assert np.all(program.latency_ns == 0)


@settings(max_examples=60, deadline=None)
@given(programs(), st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 4))
def test_more_layers_are_never_faster(program: Program, extra_ns: list[int], which: int) -> None:
    grown = list(program.segments)
    old = grown[which % len(grown)]
    n, more = len(old), len(extra_ns)
    grown[which % len(grown)] = make_segment(
        [*old.duration_ns, *extra_ns],
        stream=[*old.stream, *[0] * more],
        wait=[*old.wait, *[-1] * more],
        output_kernel=n + more - 1 if old.stream[old.output_kernel] == 0 else old.output_kernel,
    )
    assert simulate(replace(program, segments=tuple(grown))).time_ns >= simulate(program).time_ns
