"""Locked clocks under the limit at which the governor works: what a lock can gain, and what it cannot, on any GPU.

A lock only cuts off what a board would do above it. A board alone gains next to nothing. GPUs in step lose to clocks
that wander, each for itself, and to cards that differ; a lock near the limit spares them the former alone.
"""

import numpy as np
import pytest
from ways_agree import ways_agree

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.limits import card_lag, card_lag_at_lock, held_clock_mhz
from joulecast.simulator.fluid.prepared import prepare
from joulecast.simulator.fluid.steady_state import simulate
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import plan_from_dict

GPUS = ["a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "mi300x"]


def plan(gpu, tp, **power):
    """Two layers' worth of work on one GPU or in a group, at 0.7 of the board's limit."""
    model = load_gpu(gpu)
    limit = round(0.7 * model.number("power_limit_w"))
    return plan_from_dict(
        {
            "workload": {
                "model": "llama-3.1-8b",
                "layers": 4,
                "sequence_length": 4096,
                "micro_batch_size": 2,
                "global_batch_size": 8,
            },
            "cluster": {"gpu": gpu, "gpus": tp},
            "parallelism": {"tensor_model_parallel_size": tp},
            "power": {"power_limit_w": limit, **power},
        }
    )


def locks(gpu, clock_mhz):
    """Some clocks of the board on both sides of one."""
    clocks = gpu_model(load_gpu(gpu)).clocks_mhz
    places = np.searchsorted(clocks, clock_mhz * np.linspace(0.92, 1.15, 7)).clip(0, len(clocks) - 1)
    return clocks[np.unique(places)].tolist()


def time_of(found, **values):
    """Iteration time with other parameters of the board [s]."""
    return simulate(prepare(found, gpu_model(load_gpu(found.cluster.gpu)).with_values(values))).step_time_s


@pytest.mark.parametrize("gpu", GPUS)
def test_a_lock_gains_one_board_next_to_nothing(gpu):
    governed = forecast(plan(gpu, 1))
    times = [time_of(plan(gpu, 1, clock_mhz=lock)) for lock in locks(gpu, governed.clock_mhz)]
    assert min(times) > (1 - 0.003) * governed.time_s
    assert times[-1] == pytest.approx(governed.time_s, rel=0.004)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("tp", [2, 8])
def test_a_lock_gains_a_group_no_more_than_its_wandering_costs(gpu, tp):
    """Boards that neither wander nor miss their limit while they wait are the bound; cards differ there as well."""
    governed, in_step = (
        time_of(plan(gpu, tp), **values)
        for values in ({}, {"governor.wander": 0.0, "governor.in_step_loss": 0.0, "governor.card_clock_spread": 0.0})
    )
    clock = forecast(plan(gpu, tp)).clock_mhz
    times = [time_of(plan(gpu, tp, clock_mhz=lock)) for lock in locks(gpu, clock)]
    assert (1 - 0.004) * in_step < min(times)
    assert min(times) > 0.94 * governed
    assert max(np.diff(times)) < 0.06 * governed  # no cliff on the way from one to the other


def test_cards_that_differ_are_not_made_alike_by_a_lock():
    """By hand: where the limit holds the mean card at 1,500 MHz, the slowest stays a lag below it at any lock."""
    model = gpu_model(load_gpu("h200-sxm"))
    one, many = (card_lag(np.array([1500.0]), n, model, 0.013)[0] for n in (8, 1024))
    assert 0.0 < one < many
    slowest = 1500.0 * (1.0 - one)
    locks = np.array([1200.0, slowest, 1495.0, 1500.0, 1900.0])
    lag = card_lag_at_lock(locks, np.array([[1500.0]]), 8, model, 0.013)[0]
    assert locks[:4] * (1.0 - lag[:4]) == pytest.approx([1200.0, slowest, slowest, slowest])
    assert lag[4] == pytest.approx(one)  # where the mean card holds such a clock for a moment


def test_what_holds_a_clock_is_the_second_and_the_last_milliseconds():
    """By hand: power in W is half the clock in MHz of one instruction and a quarter of another, the limit is 500 W."""
    gpu = gpu_model(load_gpu("h200-sxm")).with_values({"governor.settled_share": 1.0, "governor.burst_share": 1.04})
    clocks = gpu.clocks_mhz

    def held(time_s):
        times = np.array([time_s, time_s, 1.0])[:, None] * np.ones(len(clocks))
        power = np.array([0.5, 0.25, 0.1])[:, None] * clocks
        burst, both = held_clock_mhz(clocks, times, times * power, np.array([1.0, 1.0, 0.0]), 500.0, gpu)
        return burst[:, 0], both[:, 0]

    top = gpu.max_clock_mhz
    long, both = held(1.0)
    assert long == pytest.approx([1040.0, top, top])
    assert both == pytest.approx([1040.0, 500.0 / 0.375, top])
    short, both = held(1e-5)  # a kernel's worth: both draw their mean
    assert short[:2] == pytest.approx(520.0 / 0.375, rel=0.01)
    assert both[:2] == pytest.approx(500.0 / 0.375, rel=0.01)


def four_stages(clock_mhz):
    """Mixtral on 64 A100s, near the power limit above 1,200 MHz."""
    return plan_from_dict(
        {
            "workload": {"model": "mixtral-8x7b", "sequence_length": 4096, "global_batch_size": 64},
            "cluster": {"gpu": "a100-sxm-80gb", "gpus": 64, "gpus_per_node": 8},
            "parallelism": {
                "pipeline_model_parallel_size": 4,
                "expert_model_parallel_size": 8,
                "distributed_optimizer": True,
            },
            "implementation": {"framework": "megatron"},
            "power": {"clock_mhz": clock_mhz},
        }
    )


def test_a_lower_lock_is_never_faster_while_boards_hold_it():
    plans = [four_stages(clock) for clock in (1185, 1215, 1230, 1245, 1260, 1275, 1290, 1305)]
    assert max(np.diff([forecast(one).time_s for one in plans])) <= 0.001 * forecast(plans[0]).time_s
    for one in plans[2:6]:
        ways_agree(one, time=0.005)


@pytest.mark.parametrize("even", [1200, 1245])
def test_a_higher_lock_of_one_stage_does_not_slow_the_others(even):
    slowest = forecast(four_stages(even)).time_s
    for stage in range(4):
        for higher in (1275, 1305):
            clocks = [higher if rank == stage else even for rank in range(4)]
            assert forecast(four_stages(clocks)).time_s <= 1.001 * slowest


@pytest.mark.parametrize("lock", [1380, 1440, 1500, 1560])
def test_the_closed_form_locks_as_the_simulation_does(lock):
    found = plan("h100-sxm", 8, clock_mhz=lock)
    ways_agree(found, time=0.01)


@pytest.mark.parametrize("clocks", [[1200, 1395], {"forward": 1200, "backward": 1395, "optimizer": 1395}])
def test_a_clock_does_not_wander_below_its_own_lock_because_another_is_locked_higher(clocks):
    """On 16 A100s of two nodes: what holds a stage, or forwards, at 1,200 MHz is a lock, not a governor."""

    def locked(clock_mhz):
        return plan_from_dict(
            {
                "workload": {"model": "llama-2-7b", "sequence_length": 4096, "global_batch_size": 16},
                "cluster": {"gpu": "a100-sxm-80gb", "gpus": 16},
                "parallelism": {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 2},
                "power": {"clock_mhz": clock_mhz},
                "implementation": {"framework": "megatron"},
            }
        )

    even, uneven = forecast(locked(1200)), forecast(locked(clocks))
    assert uneven.time_s < even.time_s
    ways_agree(locked(clocks), time=0.02)


def test_a_forecast_says_that_nobody_measured_a_locked_group():
    said = "boards at a locked clock keep in step"
    assert any(said in one for one in forecast(plan("h100-sxm", 8, clock_mhz=1500)).assumptions)
    assert not any(said in one for one in forecast(plan("h100-sxm", 8, clock_mhz=600)).assumptions)
    assert not any(said in one for one in forecast(plan("h100-sxm", 1, clock_mhz=1200)).assumptions)
    assert not any(said in one for one in forecast(plan("h100-sxm", 8)).assumptions)
