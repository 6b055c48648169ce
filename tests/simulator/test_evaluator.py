"""Many plans at once give the engine's integer times, on both backends."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.simulator.closed_form.evaluator import BLOCK, Backend, Evaluator, blocked, make_evaluator
from joulecast.simulator.events.engine import simulate
from joulecast.simulator.events.segment_program import make_program
from joulecast.simulator.events.segments import make_segment
from joulecast.simulator.schedules import BOTH_ENDS, Schedule, build_schedule, schedule_names

KINDS = {"forward": 0, "backward": 1, "backward_input": 2, "backward_weight": 3, "optimizer": 4, "forward_backward": 5}
CLOCKS = 7
LATENCY_NS = 13
WAIT_W = 70.0


def types(schedule: Schedule) -> list[list[int]]:
    return [[r * len(KINDS) + KINDS[i.kind] for i in row] for r, row in enumerate(schedule.ranks)]


def evaluator(schedule: Schedule, rng: np.random.Generator) -> tuple[Evaluator, np.ndarray, np.ndarray]:
    shape = (len(schedule.ranks) * len(KINDS), CLOCKS)
    duration, energy = rng.integers(0, 1000, shape), rng.random(shape)
    return make_evaluator(schedule, types(schedule), duration, energy, WAIT_W, LATENCY_NS), duration, energy


def engine_ns(schedule: Schedule, duration: np.ndarray, clock_index: np.ndarray) -> tuple[int, np.ndarray]:
    flat = np.concatenate([duration[t] for t in types(schedule)])[np.arange(len(clock_index)), clock_index]
    offsets = schedule.offsets
    order = [list(range(a, b)) for a, b in pairwise(offsets)]
    time = simulate(make_program(schedule, [make_segment([d]) for d in flat], order, LATENCY_NS)).time_ns
    return time, np.array([flat[o].sum() for o in order])


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("name", schedule_names())
def test_equals_the_engine(name: str, backend: Backend) -> None:
    size = 1 if name == "none" else 4
    schedule = build_schedule(
        name, size, 8, virtual_stages_per_rank=2 if name == "interleaved-1f1b" or name in BOTH_ENDS else 1
    )
    rng = np.random.default_rng(1)
    ev, duration, energy = evaluator(schedule, rng)
    clocks = rng.integers(0, CLOCKS, (ev.instructions, BLOCK + 3), dtype=np.uint8)
    time, joules = ev.evaluate(clocks, backend=backend)
    for p in (0, 1, BLOCK - 1, BLOCK, BLOCK + 2):
        exact, busy = engine_ns(schedule, duration, clocks[:, p])
        assert time[p] == exact
        kinds = np.concatenate(types(schedule))
        expected = energy[kinds, clocks[:, p]].sum() + WAIT_W * (exact - busy).sum() * 1e-9
        assert joules[p] == pytest.approx(expected, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_random_plans_equal_the_engine(name: str, size: int, rounds: int, seed: int) -> None:
    chunks = 1 + seed % 3 if name.startswith("i") else 1
    schedule = build_schedule(name, size, size * rounds, virtual_stages_per_rank=chunks)
    rng = np.random.default_rng(seed)
    ev, duration, _ = evaluator(schedule, rng)
    clocks = rng.integers(0, CLOCKS, (ev.instructions, 2), dtype=np.uint8)
    time, _ = ev.evaluate(clocks)
    assert time.tolist() == [engine_ns(schedule, duration, clocks[:, p])[0] for p in range(2)]


def test_blocks_and_rows_of_plans_give_the_same() -> None:
    rng = np.random.default_rng(2)
    ev, _, _ = evaluator(build_schedule("1f1b", 3, 5), rng)
    clocks = rng.integers(0, CLOCKS, (ev.instructions, 300), dtype=np.uint8)
    by_row, by_block = ev.evaluate(clocks), ev.evaluate(blocked(clocks))
    assert by_block[0].shape == (2 * BLOCK,)
    assert np.array_equal(by_row[0], by_block[0][:300])
    assert np.array_equal(by_row[1], by_block[1][:300])


def test_a_slower_instruction_is_never_faster() -> None:
    rng = np.random.default_rng(3)
    schedule = build_schedule("1f1b", 4, 6)
    shape = (len(schedule.ranks) * len(KINDS), CLOCKS)
    duration = np.sort(rng.integers(1, 1000, shape), axis=1)
    ev = make_evaluator(schedule, types(schedule), duration, duration * 0.0, 0.0)
    clocks = rng.integers(0, CLOCKS - 1, (ev.instructions, ev.instructions), dtype=np.uint8)
    slower = clocks + np.eye(ev.instructions, dtype=np.uint8)
    assert np.all(ev.evaluate(slower)[0] >= ev.evaluate(clocks)[0])


@pytest.mark.parametrize(
    ("clocks", "message"),
    [
        (np.zeros((3, 4), np.uint8), "uint8 and shape"),
        (np.zeros((18, 4), np.int64), "uint8 and shape"),
        (np.full((18, 4), CLOCKS, np.uint8), "outside the tables"),
        (np.zeros((2, 18, 100), np.uint8), "must hold"),
    ],
)
def test_bad_plans(clocks: np.ndarray, message: str) -> None:
    ev, _, _ = evaluator(build_schedule("1f1b", 2, 4), np.random.default_rng(0))
    assert ev.instructions == 18
    with pytest.raises(InputError, match=message):
        ev.evaluate(clocks)


def test_bad_tables() -> None:
    schedule = build_schedule("1f1b", 2, 1)
    order = [[0, 0, 0]] * 2
    for bad in ((np.ones((1, 2)), np.ones((1, 3))), (-np.ones((1, 2)), np.ones((1, 2)))):
        with pytest.raises(InputError, match="fit together"):
            make_evaluator(schedule, order, *bad, 0.0)
    with pytest.raises(InputError, match="outside"):
        make_evaluator(schedule, [[0, 0, 1]] * 2, np.ones((1, 2)), np.ones((1, 2)), 0.0)
    with pytest.raises(InputError, match="one type"):
        make_evaluator(schedule, [[0, 0]] * 2, np.ones((1, 2)), np.ones((1, 2)), 0.0)
