"""Orders of execution: complete, free of deadlock, and with the bubbles and activations that their papers state."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.simulator.events.engine import simulate
from joulecast.simulator.events.segment_program import make_program
from joulecast.simulator.events.segments import make_segment
from joulecast.simulator.schedules import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Schedule,
    build_schedule,
    peak_in_flight,
    schedule_names,
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(schedule_names()))
    size = 1 if name == "none" else draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 3)) if name == "interleaved-1f1b" else 1
    microbatches = draw(st.integers(1, 5)) * (size if chunks > 1 or name == "interleaved-1f1b" else 1)
    return build_schedule(name, size, microbatches, virtual_stages_per_rank=chunks)


def iteration_ns(schedule: Schedule, durations: dict[str, int], latency_ns: int = 0) -> int:
    kinds = sorted(durations)
    segments = [make_segment([durations[k]]) for k in kinds]
    order = [[kinds.index(i.kind) for i in rank] for rank in schedule.ranks]
    return simulate(make_program(schedule, segments, order, latency_ns)).time_ns


def uniform(schedule: Schedule, forward: int = 100, backward: int = 200) -> int:
    per_chunk = schedule.chunks
    return iteration_ns(
        schedule,
        {
            FORWARD: forward // per_chunk,
            BACKWARD: backward // per_chunk,
            BACKWARD_INPUT: backward // 2,
            BACKWARD_WEIGHT: backward // 2,
        },
    )


def build(name: str, size: int, microbatches: int, chunks: int = 1) -> Schedule:
    return build_schedule(name, size, microbatches, virtual_stages_per_rank=chunks, tail=())


@given(schedules())
def test_each_microbatch_once_per_chunk(schedule: Schedule) -> None:
    every = {(k, c) for k in range(schedule.microbatches) for c in range(schedule.chunks)}
    for rank in schedule.ranks:
        seen = Counter((i.kind, i.microbatch, i.chunk) for i in rank)
        assert set(seen.values()) == {1}
        for kind in {i.kind for i in rank} - {"optimizer"}:
            assert {(k, c) for kind_, k, c in seen if kind_ == kind} == every
        assert rank[-1].kind == "optimizer"


@given(schedules(), st.integers(0, 50))
def test_no_deadlock_and_no_time_below_the_work(schedule: Schedule, latency: int) -> None:
    durations = {FORWARD: 10, BACKWARD: 20, BACKWARD_INPUT: 10, BACKWARD_WEIGHT: 10, "optimizer": 5}
    time = iteration_ns(schedule, durations, latency)
    assert time >= 30 * schedule.microbatches * schedule.chunks + 5


@given(schedules())
def test_own_forward_comes_before_backward_and_weight_gradient_last(schedule: Schedule) -> None:
    rank_of = {FORWARD: 0, BACKWARD: 1, BACKWARD_INPUT: 1, BACKWARD_WEIGHT: 2}
    for rank in schedule.ranks:
        stage: dict[tuple[int, int], list[int]] = {}
        for i in rank[:-1]:
            stage.setdefault((i.microbatch, i.chunk), []).append(rank_of[i.kind])
        assert all(order == sorted(order) for order in stage.values())


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("size", "microbatches"), [(2, 4), (4, 8), (8, 8), (4, 3)])
def test_bubble_of_uniform_durations(name: str, size: int, microbatches: int) -> None:
    work = 300 * microbatches
    time = uniform(build(name, size, microbatches))
    assert Fraction(time - work, time) == Fraction(size - 1, microbatches + size - 1)


def test_interleaving_divides_the_bubble() -> None:
    for chunks in (1, 2, 4):
        assert uniform(build("interleaved-1f1b", 4, 8, chunks), 400, 800) == 1200 * 8 + 3 * 1200 // chunks


@pytest.mark.parametrize(("size", "microbatches"), [(2, 4), (4, 8), (8, 16)])
def test_zero_bubble_h1_bubble(size: int, microbatches: int) -> None:
    # (p - 1)(F + B - W) against (p - 1)(F + B + W) of 1F1B
    assert uniform(build("zb-h1", size, microbatches)) == 300 * microbatches + (size - 1) * 100


@pytest.mark.parametrize(("size", "microbatches"), [(2, 4), (4, 8), (4, 3), (8, 64)])
def test_activations_in_flight(size: int, microbatches: int) -> None:
    for r in range(size):
        assert peak_in_flight(build("1f1b", size, microbatches), r) == min(microbatches, size - r)
        assert peak_in_flight(build("gpipe", size, microbatches), r) == microbatches
        assert peak_in_flight(build("zb-h1", size, microbatches), r) <= min(microbatches, size)


@pytest.mark.parametrize(("size", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 8, 4), (8, 16, 3)])
def test_activations_in_flight_interleaved(size: int, microbatches: int, chunks: int) -> None:
    schedule = build("interleaved-1f1b", size, microbatches, chunks)
    for r in range(size):
        warmup = 2 * (size - r - 1) + (chunks - 1) * size
        assert peak_in_flight(schedule, r) == min(microbatches * chunks, warmup + 1)


def test_interleaved_order_of_rank_zero() -> None:
    order = build("interleaved-1f1b", 2, 4, 2).ranks[0]
    text = " ".join(f"{i.kind[0].upper()}{i.microbatch}{'ab'[i.chunk]}" for i in order)
    assert text == "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"


def test_interleaved_accepts_fewer_microbatches_than_stages() -> None:
    assert uniform(build("interleaved-1f1b", 4, 3, 2)) > 0


@pytest.mark.parametrize(
    ("name", "size", "microbatches", "chunks", "key"),
    [
        ("1F1B", 2, 4, 1, "schedule.name"),
        ("none", 2, 4, 1, "schedule.name"),
        ("1f1b", 0, 4, 1, "pipeline_model_parallel_size"),
        ("1f1b", 2, 0, 1, "global_batch_size"),
        ("1f1b", 2, 4, 2, "virtual_pipeline"),
        ("interleaved-1f1b", 4, 9, 2, "global_batch_size"),
    ],
)
def test_bad_arguments(name: str, size: int, microbatches: int, chunks: int, key: str) -> None:
    with pytest.raises(InputError, match=key):
        build_schedule(name, size, microbatches, virtual_stages_per_rank=chunks)


@given(schedules(), st.integers(1, 30), st.integers(1, 30))
def test_longer_instructions_are_never_faster(schedule: Schedule, forward: int, more: int) -> None:
    base = {FORWARD: forward, BACKWARD: 20, BACKWARD_INPUT: 10, BACKWARD_WEIGHT: 10, "optimizer": 5}
    assert iteration_ns(schedule, base | {FORWARD: forward + more}) >= iteration_ns(schedule, base)


@given(st.sampled_from(["gpipe", "1f1b", "zb-h1"]), st.integers(1, 5), st.integers(1, 6), st.integers(1, 40))
def test_more_microbatches_are_never_faster(name: str, size: int, microbatches: int, forward: int) -> None:
    durations = {FORWARD: forward, BACKWARD: 20, BACKWARD_INPUT: 10, BACKWARD_WEIGHT: 10}
    fewer, more = (iteration_ns(build(name, size, m), durations, 3) for m in (microbatches, microbatches + 1))
    assert more > fewer
