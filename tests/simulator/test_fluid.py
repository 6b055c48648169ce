"""Instructions under changing clocks: exact where clocks stand still, conserving where they move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import GuardError, InputError
from joulecast.simulator.events.engine import simulate
from joulecast.simulator.events.segment_program import make_program
from joulecast.simulator.events.segments import make_segment
from joulecast.simulator.fluid.program import FluidProgram, make_fluid_program
from joulecast.simulator.fluid.simulation import FixedClock, FluidResult, simulate_fluid
from joulecast.simulator.schedules import Schedule, build_schedule

CLOCKS = np.linspace(1200.0, 1980.0, 27)
KINDS = {"forward": 0, "backward": 1, "backward_input": 1, "backward_weight": 0, "optimizer": 2}
POWER = np.array([[650.0], [640.0], [400.0]]) * (CLOCKS / 1600) ** 2
WAIT = np.full(len(CLOCKS), 165.0)


class Wandering:
    """A governor that moves a rank's clock up and down."""

    def __init__(self, rank: int) -> None:
        self.rank, self.seen = rank, list[float]()

    def step(self, power_w: float) -> int:
        self.seen.append(power_w)
        return (7 * len(self.seen) + 3 * self.rank) % len(CLOCKS)


def program(schedule: Schedule, base_s: Sequence[float] = (0.02, 0.05, 0.01), delay_s: float = 1e-3) -> FluidProgram:
    duration = np.array(base_s)[:, None] * 1600 / CLOCKS
    order = [[KINDS[i.kind] for i in rank] for rank in schedule.ranks]
    n = len(order)
    return make_fluid_program(schedule, order, [duration] * n, [POWER] * n, [WAIT] * n, delay_s)


def check_ledger(prog: FluidProgram, result: FluidResult) -> None:
    for r, executed in enumerate(result.executed):
        energy = (executed * prog.duration_s[r] * prog.power_w[r]).sum((1, 2)) + result.wait_s[r] @ prog.wait_power_w[r]
        np.testing.assert_allclose(result.energy_j[:, r], energy, rtol=1e-9)
        counts = np.bincount(prog.types[r], minlength=executed.shape[1])
        np.testing.assert_allclose(executed.sum(2), np.tile(counts, (len(executed), 1)), rtol=1e-9)
        time = (executed * prog.duration_s[r]).sum((1, 2)) + result.wait_s[r].sum(1)
        np.testing.assert_allclose(np.cumsum(time), result.iteration_end_s[:, r], rtol=1e-9)


@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.integers(1, 90), min_size=3, max_size=3),
    st.floats(1e-3, 0.2),
)
def test_equals_the_engine_at_fixed_clocks(
    name: str, size: int, rounds: int, milliseconds: list[int], tick_s: float
) -> None:
    schedule = build_schedule(name, size, rounds * size, virtual_stages_per_rank=2 if name.startswith("i") else 1)
    duration = np.array(milliseconds)[:, None] * 1e-3 * np.ones(2)
    order = [[KINDS[i.kind] for i in rank] for rank in schedule.ranks]
    fluid = make_fluid_program(
        schedule, order, [duration] * size, [duration * 0 + 500] * size, [np.full(2, 165.0)] * size, 2e-3
    )
    result = simulate_fluid(fluid, [FixedClock(1)] * size, [1] * size, tick_s=tick_s)
    exact = simulate(make_program(schedule, [make_segment([ms * 1_000_000]) for ms in milliseconds], order, 2_000_000))
    assert result.iteration_end_s.max() == pytest.approx(exact.time_ns * 1e-9, rel=1e-9)
    for r in range(size):
        np.testing.assert_allclose(result.start_s[r][0], exact.start_ns[r] * 1e-9, atol=1e-9)
        np.testing.assert_allclose(result.end_s[r][0], exact.end_ns[r] * 1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("tick_s", [1e-3, 5e-3, 0.3])
def test_conserves_work_and_energy_under_moving_clocks(name: str, tick_s: float) -> None:
    prog = program(build_schedule(name, 4, 6))
    governors = [Wandering(rank) for rank in range(4)]
    result = simulate_fluid(prog, governors, [0, 1, 2, 3], iterations=3, tick_s=tick_s)
    check_ledger(prog, result)
    assert result.power_w.T.tolist() == [governor.seen for governor in governors]
    for rank in range(4):
        followed = [rank, *((7 * tick + 3 * rank) % len(CLOCKS) for tick in range(1, len(result.power_w)))]
        assert result.clock_index[:, rank].tolist() == followed
    assert (len(result.power_w) - 1) * tick_s < result.iteration_end_s.max() <= len(result.power_w) * tick_s


def test_iterations_follow_each_other_without_a_barrier() -> None:
    prog = program(build_schedule("1f1b", 4, 8))
    ends = simulate_fluid(prog, [FixedClock(9)] * 4, [9] * 4, iterations=4).iteration_end_s
    period = np.diff(ends, axis=0)
    np.testing.assert_allclose(period[1:], period[1, 0], rtol=1e-9)
    assert period[1, 0] < ends[0].max()


def test_bad_tables_and_deadlocks_are_errors() -> None:
    schedule = build_schedule("1f1b", 2, 2)
    order = [[KINDS[i.kind] for i in rank] for rank in schedule.ranks]
    with pytest.raises(InputError, match="rank 0"):
        make_fluid_program(schedule, order, [np.ones((2, 3))] * 2, [np.ones((2, 3))] * 2, [np.ones(3)] * 2)
    good = program(schedule)
    circular = FluidProgram(
        good.types, good.duration_s, good.power_w, good.wait_power_w, good.target, good.source, good.delay_s
    )
    with pytest.raises(GuardError, match="waits for ever"):
        simulate_fluid(circular, [FixedClock(0)] * 2, [0, 0])
