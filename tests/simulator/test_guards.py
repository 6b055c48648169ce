"""Energy is ∫ power dt, nothing is used above 100 %, nothing starts too early: and breaches are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.errors import GuardError
from joulecast.simulator.events.engine import EngineResult, simulate
from joulecast.simulator.events.guards import check_beside, check_causality, check_energy, check_shares, check_streams
from joulecast.simulator.events.segment_program import Program, make_program
from joulecast.simulator.events.segments import make_segment
from joulecast.simulator.events.timeline import PowerProfile, Timeline, timeline_of_instructions, timeline_of_kernels
from joulecast.simulator.schedules import build_schedule


def case(seed: int) -> tuple[Program, EngineResult, list[Timeline]]:
    rng = np.random.default_rng(seed)
    schedule = build_schedule("1f1b", 3, 4)
    pool = []
    for _ in range(3):
        n = int(rng.integers(2, 9))
        stream = rng.integers(0, 2, n)
        others = [[-1] + [j for j in range(i) if stream[j] != stream[i]] for i in range(n)]
        wait = [int(rng.choice(o)) for o in others]
        power = rng.random((n, 3)) * 300
        pool.append(make_segment(rng.integers(0, 9000, n), stream=stream, wait=wait, power_w=power))
    order = [rng.integers(0, 3, len(r)).tolist() for r in schedule.ranks]
    program = make_program(schedule, pool, order, int(rng.integers(0, 500)))
    result = simulate(program, kernels=True)
    lines = [
        timeline_of_kernels(
            program, r, k, components=("a", "b", "c"), base_power_w=85, wait_power_w=80, finish_ns=result.time_ns
        )
        for r, k in enumerate(result.kernels)
    ]
    return program, result, lines


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_laws_hold(seed: int) -> None:
    program, result, lines = case(seed)
    check_causality(program, result)
    for line in lines:
        ledger = line.energy_by_component_j()
        check_energy(line, line.energy_j)
        check_energy(line, sum(ledger[k] for k in sorted(ledger)))
        check_streams(line)
        check_shares(line, np.where(line.stream == 0, 0.75, 0.25)[:, None], ["SMs"])
        assert line.energy_by_instruction_j().sum() == pytest.approx(sum(ledger[c] for c in "abc"), rel=1e-12)
        start, power = line.profile().resampled(1e-6)
        assert len(start) == len(power) and power.sum() * 1e-6 == pytest.approx(line.energy_j, rel=1e-9)
        assert 85 <= line.profile().mean_w <= line.profile().power_w.max()


def test_waiting_power_is_drawn_only_while_nothing_runs() -> None:
    run = timeline_of_instructions(0, [1.0, 2.0], [2.0, 3.0], ["F0", "B0"], [500.0, 600.0])
    line = replace(run, base_power_w=100.0, wait_power_w=65.0, finish_ns=4 * 10**9)
    assert line.profile().power_w.tolist() == [165.0, 600.0, 700.0, 165.0]
    assert line.energy_by_component_j() == pytest.approx({"power": 1100.0, "base": 400.0, "waiting": 130.0})
    frame = line.to_frame()
    assert frame["name"].tolist() == ["F0", "B0"] and frame["power_w"].tolist() == [500.0, 600.0]


def test_it_does_not_matter_when_a_timeline_begins() -> None:
    line = timeline_of_instructions(0, [0.0, 2.0], [1.0, 3.0], ["F0", "B0"], [500.0, 600.0])
    line = replace(line, base_power_w=100.0, wait_power_w=65.0)
    at, span = ("begin_ns", "finish_ns", "start_ns", "end_ns"), 5 * 10**9
    later = replace(line, **{name: getattr(line, name) + span for name in at})
    assert later.energy_by_component_j() == line.energy_by_component_j()
    assert later.profile().mean_w == line.profile().mean_w == pytest.approx((1100.0 + 300.0 + 65.0) / 3.0)


@given(st.integers(1, 3000), st.integers(1, 10**7))
def test_whole_steps_of_power_are_as_many_as_they_are(steps: int, step_ns: int) -> None:
    """And none without power after them."""
    begin = 12345
    profile = PowerProfile(np.array([begin, begin + steps * step_ns]), np.array([500.0]))
    start, power = profile.resampled(step_ns * 1e-9)
    assert len(start) == steps and power == pytest.approx(np.full(steps, 500.0))
    assert profile.mean_w == pytest.approx(500.0)
    start, power = profile.resampled(2.0 * steps * step_ns * 1e-9)
    assert start.tolist() == [begin * 1e-9] and power == pytest.approx([250.0])


def test_breaches_name_the_rank() -> None:
    _, _, lines = case(7)
    line = lines[1]
    with pytest.raises(GuardError, match=r"rank 1: .* in the ledger"):
        check_energy(line, line.energy_j * (1 + 3e-9))
    with pytest.raises(GuardError, match=r"rank 1: nan J in the ledger"):
        check_energy(line, float("nan"))
    with pytest.raises(GuardError, match=r"rank 1: SMs used to (120|240) %"):
        check_shares(line, np.full((len(line.start_ns), 1), 1.2), ["SMs"])
    with pytest.raises(GuardError, match=r"rank 1: .*two kernels at once"):
        check_streams(replace(line, stream=np.zeros_like(line.stream), start_ns=np.zeros_like(line.start_ns)))
    with pytest.raises(GuardError, match=r"rank 1: .*after the timeline"):
        check_streams(replace(line, finish_ns=line.finish_ns // 2))
    with pytest.raises(GuardError, match=r"rank 1: .*starts before the timeline"):
        check_streams(replace(line, begin_ns=int(line.start_ns.min()) + 1))
    with pytest.raises(GuardError, match=r"rank 1: .*ends before it starts"):
        check_streams(replace(line, start_ns=line.start_ns + 10**9))


def test_two_kernels_use_a_memory_once() -> None:
    check_beside([0.5, 1.0], "gate", "sum")
    with pytest.raises(GuardError, match="gate beside sum: memory used to 120 %"):
        check_beside([0.5, 1.2], "gate", "sum")


def test_early_kernels_are_found() -> None:
    schedule = build_schedule("1f1b", 2, 2)
    segment = make_segment([100, 50, 30], stream=[0, 1, 0], wait=[-1, 0, 1])
    program = make_program(schedule, [segment], [[0] * 5, [0] * 5], 20)
    result = simulate(program, kernels=True)
    check_causality(program, result)

    def moved(rank: int, kernel: int) -> EngineResult:
        k = result.kernels[rank]
        start = k.start_ns.copy()
        start[kernel] -= 5
        kernels = list(result.kernels)
        kernels[rank] = replace(k, start_ns=start)
        return replace(result, kernels=tuple(kernels))

    with pytest.raises(GuardError, match=r"rank 0: .*waits for"):
        check_causality(program, moved(0, 1))
    with pytest.raises(GuardError, match=r"rank 1: .*input has arrived"):
        check_causality(program, moved(1, 0))
    with pytest.raises(GuardError, match=r"rank 0: .*stream 0 is free"):
        check_causality(program, moved(0, 3))
    with pytest.raises(GuardError, match="recorded"):
        check_causality(program, simulate(program))
