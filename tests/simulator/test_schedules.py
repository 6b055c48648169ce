"""Orders of execution: complete, free of deadlock, and with the bubbles and activations that their papers state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.model.memory.pipeline_rank import in_flight
from joulecast.simulator.events.engine import simulate
from joulecast.simulator.events.segment_program import make_program
from joulecast.simulator.events.segments import make_segment
from joulecast.simulator.schedules import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    BOTH_ENDS,
    FORWARD,
    FORWARD_BACKWARD,
    TWO_WAY,
    Schedule,
    build_schedule,
    copies_of_model,
    fewest_microbatches,
    most_in_flight,
    peak_in_flight,
    schedule_names,
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(schedule_names()))
    size = 1 if name == "none" else draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 3)) if name == "interleaved-1f1b" else 2 if name in BOTH_ENDS else 1
    size += size % 2 if name in TWO_WAY else 0
    microbatches = draw(st.integers(1, 5)) * (size if name == "interleaved-1f1b" else 1)
    microbatches += max(0, fewest_microbatches(name, size) - 1)
    microbatches += microbatches % 2 if name in TWO_WAY else 0
    return build_schedule(name, size, microbatches, virtual_stages_per_rank=chunks)


def iteration_ns(schedule: Schedule, durations: dict[str, int], latency_ns: int = 0) -> int:
    kinds = sorted(durations)
    segments = [make_segment([durations[k]]) for k in kinds]
    order = [[kinds.index(i.kind) for i in rank] for rank in schedule.ranks]
    return simulate(make_program(schedule, segments, order, latency_ns)).time_ns


def whole(schedule: Schedule) -> Schedule:
    """The same schedule with every forward and backward an instruction of its own."""
    return replace(schedule, ranks=tuple(tuple(part for one in rank for part in one.parts) for rank in schedule.ranks))


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
    if schedule.name in TWO_WAY:
        every = {(k, c) for k, c in every if c == (k >= schedule.microbatches // 2)}
    for rank in whole(schedule).ranks:
        seen = Counter((i.kind, i.microbatch, i.chunk) for i in rank)
        assert set(seen.values()) == {1}
        done = {kind: {(k, c) for kind_, k, c in seen if kind_ == kind} for kind in {i.kind for i in rank}}
        assert done[FORWARD] == every
        assert done.get(BACKWARD, set()) | done.get(BACKWARD_INPUT, set()) == every
        assert not done.get(BACKWARD, set()) & done.get(BACKWARD_INPUT, set())
        assert done.get(BACKWARD_WEIGHT, set()) == done.get(BACKWARD_INPUT, set())
        assert rank[-1].kind == "optimizer"


@given(schedules(), st.integers(0, 50))
def test_no_deadlock_and_no_time_below_the_work(schedule: Schedule, latency: int) -> None:
    durations = {
        FORWARD: 10,
        BACKWARD: 20,
        BACKWARD_INPUT: 10,
        BACKWARD_WEIGHT: 10,
        FORWARD_BACKWARD: 30,
        "optimizer": 5,
    }
    time = iteration_ns(schedule, durations, latency)
    assert time >= 30 * schedule.microbatches * schedule.chunks // copies_of_model(schedule.name) + 5


@given(schedules())
def test_own_forward_comes_before_backward_and_weight_gradient_last(schedule: Schedule) -> None:
    rank_of = {FORWARD: 0, BACKWARD: 1, BACKWARD_INPUT: 1, BACKWARD_WEIGHT: 2}
    for rank in whole(schedule).ranks:
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


@pytest.mark.parametrize("name", ["none", "gpipe", "1f1b", "zb-h1", "interleaved-1f1b"])
def test_as_many_are_in_flight_as_memory_holds(name: str) -> None:
    """On one rank as well, where GPipe has nothing to fill."""
    built = 0
    for size, microbatches, chunks in product(range(1, 6), range(1, 13), (1, 2, 3)):
        try:
            schedule = build(name, size, microbatches, chunks)
        except InputError:
            continue  # as micro-batches do not divide into rounds, or it has one chunk or one rank
        built += 1
        for rank in range(size):
            assert peak_in_flight(schedule, rank) == in_flight(name, rank, size, microbatches, chunks)
    assert built >= 12


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
        ("zb-v", 4, 8, 1, "virtual_pipeline"),
        ("zb-v", 4, 8, 3, "virtual_pipeline"),
        ("dualpipe-v", 4, 7, 2, "global_batch_size"),
        ("dualpipe", 4, 6, 2, "global_batch_size"),
        ("dualpipe", 4, 9, 2, "global_batch_size"),
        ("dualpipe", 3, 8, 2, "pipeline_model_parallel_size"),
    ],
)
def test_bad_arguments(name: str, size: int, microbatches: int, chunks: int, key: str) -> None:
    with pytest.raises(InputError, match=key):
        build_schedule(name, size, microbatches, virtual_stages_per_rank=chunks)


@given(schedules(), st.integers(1, 30), st.integers(1, 30))
def test_longer_instructions_are_never_faster(schedule: Schedule, forward: int, more: int) -> None:
    base = {FORWARD: forward, BACKWARD: 20, BACKWARD_INPUT: 10, BACKWARD_WEIGHT: 10, "optimizer": 5}
    base[FORWARD_BACKWARD] = forward + 20
    longer = {FORWARD: forward + more, FORWARD_BACKWARD: forward + more + 20}
    assert iteration_ns(schedule, base | longer) >= iteration_ns(schedule, base)


@given(st.sampled_from(["gpipe", "1f1b", "zb-h1"]), st.integers(1, 5), st.integers(1, 6), st.integers(1, 40))
def test_more_microbatches_are_never_faster(name: str, size: int, microbatches: int, forward: int) -> None:
    durations = {FORWARD: forward, BACKWARD: 20, BACKWARD_INPUT: 10, BACKWARD_WEIGHT: 10}
    fewer, more = (iteration_ns(build(name, size, m), durations, 3) for m in (microbatches, microbatches + 1))
    assert more > fewer


def rank_spans(schedule: Schedule, durations: dict[str, int]) -> list[tuple[int, int]]:
    """When each rank begins and ends its instructions."""
    flat, edges = list(schedule.flat()), schedule.edges
    waits: list[list[int]] = [[] if i in schedule.offsets else [i - 1] for i in range(len(flat))]
    for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        waits[target].append(source)
    end: dict[int, int] = {}
    while len(end) < len(flat):
        ready = [i for i, of in enumerate(waits) if i not in end and all(j in end for j in of)]
        end |= {i: max((end[j] for j in waits[i]), default=0) + durations[flat[i][1].kind] for i in ready}
    starts = {i: end[i] - durations[flat[i][1].kind] for i in end}
    return [(starts[a], end[b - 1]) for a, b in zip(schedule.offsets[:-1], schedule.offsets[1:], strict=True)]


@pytest.mark.parametrize(("size", "microbatches"), [(2, 3), (2, 9), (3, 5), (4, 7), (4, 16), (8, 15), (8, 32)])
def test_a_folded_zero_bubble_has_none_in_even_parts_and_the_memory_of_1f1b(size: int, microbatches: int) -> None:
    # Qi et al., arXiv:2405.15362: no rank waits once it has begun; 2 p halves of what 1F1B's first rank keeps p times.
    schedule = build("zb-v", size, microbatches, 2)
    spans = rank_spans(schedule, {FORWARD: 100, BACKWARD_INPUT: 100, BACKWARD_WEIGHT: 100})
    assert [(begin, end - begin) for begin, end in spans] == [(100 * r, 600 * microbatches) for r in range(size)]
    assert {peak_in_flight(schedule, r) for r in range(size)} == {2 * size}


@pytest.mark.parametrize(("size", "microbatches"), [(2, 4), (4, 8), (8, 24)])
def test_a_folded_pipeline_waits_where_weight_gradients_are_short(size: int, microbatches: int) -> None:
    # Input gradients of 120 and weight gradients of 80 leave twice the difference a rank below; 1F1B leaves 600.
    spans = rank_spans(build("zb-v", size, microbatches, 2), {FORWARD: 100, BACKWARD_INPUT: 120, BACKWARD_WEIGHT: 80})
    assert spans[0][1] == 600 * microbatches + (size - 1) * 80


def test_a_folded_pipeline_has_both_ends_on_the_first_rank() -> None:
    schedule = build("zb-v", 4, 8, 2)
    assert [schedule.virtual_stage(rank, chunk) for rank in range(4) for chunk in range(2)] == [0, 7, 1, 6, 2, 5, 3, 4]
    edges = schedule.edges
    assert (abs(edges.source_rank - edges.target_rank) <= 1).all()  # no link from the last to the first
    crossed = edges.source_rank != edges.target_rank
    assert (edges.link[crossed] == edges.source_rank.clip(max=edges.target_rank)[crossed]).all()


def test_activations_that_weigh_the_most() -> None:
    schedule = build("zb-v", 4, 16, 2)
    assert [most_in_flight(schedule, rank, (1.0, 1.0)) for rank in range(4)] == [(7, 1), (6, 2), (5, 3), (4, 4)]
    assert most_in_flight(schedule, 3, (1.0, 5.0)) == (4, 4)


@pytest.mark.parametrize(("size", "microbatches"), [(2, 4), (4, 8), (4, 20), (8, 16), (8, 40)])
def test_pairs_leave_the_bubble_and_the_activations_of_their_paper(size: int, microbatches: int) -> None:
    # DeepSeek-V3, arXiv:2412.19437, table 2: (PP/2 - 1)(F&B + B - 3W) and PP + 1; the folded half has PP / 2 ranks.
    durations = {FORWARD: 100, BACKWARD: 200, BACKWARD_INPUT: 100, BACKWARD_WEIGHT: 100, FORWARD_BACKWARD: 300}
    for name, stages in (("dualpipe-v", 2 * size), ("dualpipe", size)):
        schedule = build(name, size, microbatches, 2)
        bubble = (stages // 2 - 1) * (300 + 200 - 3 * 100)
        work = 300 * microbatches * 2 // copies_of_model(name)
        assert max(end for _, end in rank_spans(schedule, durations)) == work + bubble
        assert {peak_in_flight(schedule, r) for r in range(size)} == {stages + 1}


@pytest.mark.parametrize("microbatches", [8, 20])
def test_what_a_pair_saves_shortens_the_iteration(microbatches: int) -> None:
    schedule = build("dualpipe-v", 4, microbatches, 2)
    durations = {FORWARD: 100, BACKWARD: 200, BACKWARD_INPUT: 100, BACKWARD_WEIGHT: 100}
    spans = [rank_spans(schedule, durations | {FORWARD_BACKWARD: pair})[0][1] for pair in (300, 240)]
    pairs = sum(one.kind == FORWARD_BACKWARD for one in schedule.ranks[0])
    assert spans[0] - spans[1] >= 60 * pairs


def test_two_ways_are_mirror_images() -> None:
    schedule = build("dualpipe", 6, 14, 2)
    for rank in range(6):
        mirrored = [
            (i.kind, (i.microbatch + 7) % 14, 1 - i.chunk, i.beside and ((i.beside[0] + 7) % 14, 1 - i.beside[1]))
            for i in schedule.ranks[rank]
        ]
        assert mirrored == [(i.kind, i.microbatch, i.chunk, i.beside) for i in schedule.ranks[5 - rank]]
    assert schedule.virtual_stages == 6
    assert [schedule.virtual_stage(1, chunk) for chunk in range(2)] == [1, 4]


def test_orders_of_folded_pipelines_are_those_of_pytorch() -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kinds = {"F": FORWARD, "I": BACKWARD_INPUT, "W": BACKWARD_WEIGHT, "B": BACKWARD}
    named = {"zb-v": schedules.ScheduleZBVZeroBubble, "dualpipe-v": schedules.ScheduleDualPipeV}
    for name, size, microbatches in product(named, (2, 3, 4, 8), (16, 19, 3)):
        if microbatches < fewest_microbatches(name, size):
            continue
        ours, theirs = build(name, size, microbatches, 2), object.__new__(named[name])
        theirs.pp_group_size, theirs._n_microbatches = size, microbatches
        theirs.n_local_stages, theirs.num_stages, theirs._num_stages = 2, 2 * size, 2 * size
        theirs.stage_index_to_group_rank = schedules.generate_stage_to_rank_mapping(size, 2 * size, style="v")
        for rank in range(size):
            actions = [a for a in theirs._calculate_single_rank_operations(rank) if a is not None]
            apart = [part for a in actions for part in (getattr(a, "sub_actions", None) or (a,))]
            expected = [(kinds[a.computation_type.value], a.microbatch_index, a.stage_index) for a in apart]
            order = whole(ours).ranks[rank]
            assert [(i.kind, i.microbatch, ours.virtual_stage(rank, i.chunk)) for i in order] == expected
            paired = [bool(getattr(a, "sub_actions", None)) for a in actions]
            assert [i.kind == FORWARD_BACKWARD for i in ours.ranks[rank]] == paired
