"""Fronts under a power limit of the boards: no clock and no limit on time that is left out makes a plan better."""

from functools import cache

import numpy as np
import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.plan.fronts.forecast_front import forecast_front
from joulecast.plan.knobs.front_space import FrontSpace
from joulecast.simulator.plan_file.plan import plan_from_dict

#: GPU, model, stages, schedule, length of a sequence, batch, limit [W]; by how much the first plan of an exact front,
#: and of one that keeps one clock for each stage, is slower than what boards do at free clocks, at most.
PIPELINES = {
    "a40": ("a40", "llama-3.1-8b", 4, "1f1b", 1024, 8, 180, 0.058, 0.065),
    "a40-zero-bubble": ("a40", "llama-3.1-8b", 4, "zb-h1", 1024, 12, 168, 0.07, 0.09),
    "l40s": ("l40s", "llama-3.1-8b", 4, "1f1b", 2048, 8, 200, 0.065, 0.095),
    "l4": ("l4", "llama-3.2-1b", 4, "zb-h1", 1024, 8, 50, 0.065, 0.14),
    "l4-pair": ("l4", "llama-3.2-1b", 2, "gpipe", 512, 16, 48, 0.055, 0.13),
    "h200": ("h200-sxm", "llama-3.1-8b", 4, "1f1b", 4096, 8, 350, 0.045, 0.06),
}
#: Clocks of the pipeline whose front once began later than with all clocks [MHz].
FEW = (240, 330, 420, 525, 555, 660, 975, 1080)


@cache
def plan(name):
    gpu, model, stages, schedule, length, batch, limit, *_ = PIPELINES[name]
    return plan_from_dict(
        {
            "workload": {"model": model, "sequence_length": length, "global_batch_size": batch},
            "cluster": {"gpu": gpu, "gpus": stages},
            "parallelism": {"pipeline_model_parallel_size": stages},
            "schedule": {"name": schedule},
            "power": {"power_limit_w": limit},
        }
    )


@cache
def front(name, simple=None):
    return forecast_front(plan(name), simple=simple, switch_s=0.0)


@pytest.mark.parametrize("name", PIPELINES)
def test_the_first_plan_is_near_what_boards_do_at_free_clocks(name):
    time_s, (exact, even) = jc.predict(plan(name)).time_s, PIPELINES[name][-2:]
    assert front(name).plans[0].time_s < (1.0 + exact) * time_s
    assert front(name, "rank").plans[0].time_s < (1.0 + even) * time_s


@pytest.mark.parametrize("name", PIPELINES)
def test_fewer_clocks_are_never_faster(name):
    grid, random = gpu_model(load_gpu(plan(name).cluster.gpu)).clocks_mhz, np.random.default_rng(0)
    for clocks in (FEW if name.startswith("a40") else (), *(random.choice(grid, 12, replace=False) for _ in range(2))):
        if len(clocks):
            space = FrontSpace(clocks_mhz=tuple(sorted(float(clock) for clock in clocks)))
            try:
                few = forecast_front(plan(name), space=space, switch_s=0.0)
            except InputError as error:
                assert "no plan keeps the power limit" in str(error)
                continue
            assert few.plans[0].time_s > 0.994 * front(name).plans[0].time_s


@pytest.mark.parametrize("simple", [None, "rank"])
@pytest.mark.parametrize("name", PIPELINES)
def test_the_fastest_plan_does_not_depend_on_a_limit_on_time(name, simple):
    fastest = front(name, simple).plans[0].time_s
    for limit_s in (1.0001 * fastest, 1.2 * fastest):
        limited = forecast_front(plan(name), simple=simple, switch_s=0.0, time_limit_s=limit_s)
        assert limited.plans[0].time_s == pytest.approx(fastest, rel=1e-9)
    with pytest.raises(InputError) as caught:
        forecast_front(plan(name), simple=simple, switch_s=0.0, time_limit_s=0.998 * fastest)
    assert float(caught.value.remedy.split()[3]) == pytest.approx(fastest, rel=2e-5)


@pytest.mark.parametrize("name", PIPELINES)
def test_no_mean_power_over_a_second_exceeds_the_limit(name):
    """By sampling, where fronts look at the ends of instructions alone."""
    problem = front(name).problem
    point = front(name).plans[0]
    chosen = [problem.option(v, c) for v, c in enumerate(point.choice.tolist())]
    starts = problem.dag.starts([o.time_s for o in chosen], problem.dag.latency_s.tolist())
    at = np.linspace(0.0, point.time_s, 20_001)
    for rank, wait_w in enumerate(problem.wait_power_w.tolist()):
        power = np.full(len(at) - 1, wait_w)
        for v in np.flatnonzero(problem.dag.rank_of == rank).tolist():
            power[(at[:-1] >= starts[v]) & (at[:-1] < starts[v] + chosen[v].time_s)] = (
                chosen[v].energy_j / chosen[v].time_s
            )
        window = min(round(problem.averaged_s / at[1]), len(power))
        spent = np.concatenate([[0.0], np.cumsum(np.tile(power, 2))])
        means = (spent[window:] - spent[:-window]) / window
        assert means.max() <= 1.003 * problem.power_limit_w[rank]


@pytest.mark.parametrize("name", ["a40", "l40s", "l4-pair", "h200"])
def test_predict_repeats_the_first_plan_that_keeps_one_clock_for_each_kind_of_instruction(name):
    found = front(name, "stage")
    clocks = {"forward": [], "backward": [], "optimizer": []}
    for own, kinds in zip(found.clocks_mhz(found.plans[0]), found.instructions(), strict=True):
        of = dict(zip(kinds, own, strict=True))
        for kind, clock in of.items():
            clocks[kind].append(clock)
    gpu, model, stages, schedule, length, batch, limit, *_ = PIPELINES[name]
    locked = plan_from_dict(
        {
            "workload": {"model": model, "sequence_length": length, "global_batch_size": batch},
            "cluster": {"gpu": gpu, "gpus": stages},
            "parallelism": {"pipeline_model_parallel_size": stages},
            "schedule": {"name": schedule},
            "power": {"power_limit_w": limit, "clock_mhz": clocks},
        }
    )
    assert jc.predict(locked).time_s == pytest.approx(found.plans[0].time_s, rel=0.01)
