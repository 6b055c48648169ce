"""Limits on parts of every GPU of a plan: held at every instant, in the closed form as well, and refused by name."""

import json
import re

import numpy as np
import pytest

import joulecast as jc
from joulecast.errors import GuardError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.component_power import waiting_power_w
from joulecast.model.power.kernel_power import wait_power_w
from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.fluid import part_limits
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import plan_from_dict

TABLES = {
    "workload": {
        "model": "llama-3.2-1b",
        "sequence_length": 2048,
        "micro_batch_size": 1,
        "global_batch_size": 8,
    },
    "cluster": {"gpu": "h200-sxm", "gpus": 4},
    "parallelism": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
}
NANOBATCHES = {"overlap": {"nanobatches": 2}, "workload": TABLES["workload"] | {"micro_batch_size": 2}}


def plan(limits=None, **tables):
    power = {"component_limits_w": limits} if limits else {}
    return plan_from_dict(TABLES | {"power": power | tables.pop("power", {})} | tables)


def peaks(iteration):
    """Highest power of each part of any stage at any instant."""
    timeline = iteration.timeline()
    found = [timeline.part_power(stage) for stage in range(len(iteration.ranks))]
    return {part: max(float(each[part].power_w.max()) for each in found) for part in found[0]}


@pytest.fixture(scope="module")
def free():
    return forecast(plan())


@pytest.mark.parametrize("limits", [{"compute": 300.0}, {"hbm": 60.0}, {"link": 40.0}, {"compute": 250.0, "hbm": 50.0}])
def test_a_limit_holds_at_every_instant_and_costs_time(free, limits):
    held = forecast(plan(limits))
    highest, without = peaks(held), peaks(free)
    for part, limit in limits.items():
        assert without[part] > 1.2 * limit, "the limit must bind"
        assert highest[part] == pytest.approx(limit, rel=2e-3)
        assert all(rank.power_by_part_w[part] <= limit for rank in held.ranks)
    assert held.time_s > free.time_s
    assert held.clock_mhz < free.clock_mhz or "compute" not in limits
    assert held.timeline().time_s == pytest.approx(held.time_s, rel=1e-3)
    assert held.timeline().energy_j == pytest.approx(held.energy_j, rel=1e-3)


def test_beside_each_other_the_sum_of_powers_meets_the_limit():
    found = forecast(plan({"compute": 300.0}, **NANOBATCHES))
    for stage in range(2):
        _, power = found.timeline().part_power(stage)["compute"].resampled(10e-3)
        assert power[:-1].max() < 1.01 * 300
    assert found.clock_mhz < forecast(plan(**NANOBATCHES)).clock_mhz


def test_below_the_lowest_clock_work_rests():
    lowest = plan(power={"clock_mhz": 345.0})
    slow, held = forecast(lowest), forecast(plan({"compute": 100.0}))
    assert held.time_s > slow.time_s
    assert max(rank.power_by_part_w["compute"] for rank in held.ranks) <= 100


def test_a_limit_that_does_not_bind_changes_nothing(free):
    far = forecast(plan({"compute": 2000.0, "hbm": 900.0}))
    assert (far.time_s, far.energy_j, far.clock_mhz) == pytest.approx((free.time_s, free.energy_j, free.clock_mhz))


def test_parts_sum_to_the_gpu(free):
    for rank in free.ranks:
        assert sum(rank.power_by_part_w.values()) == pytest.approx(rank.power_w)
    assert set(json.loads(json.dumps(free.to_dict()))["stages"][0]["power_by_part_w"]) == {"compute", "hbm", "link"}


def test_under_a_fixed_total_power_moved_to_the_compute_dies_is_faster():
    """Memory has power to spare; the compute dies have not."""
    slow, fast = (forecast(plan({"compute": c, "hbm": 350.0 - c})) for c in (220.0, 250.0))
    assert fast.time_s < 0.97 * slow.time_s


def test_a_power_cap_lets_light_kernels_run_faster_than_a_clock_does():
    """At one time of iteration a cap on the clock takes less energy; a cap on power leaves norms their clock."""
    capped = forecast(plan({"compute": 300.0}))
    clocks = [forecast(plan(power={"clock_mhz": clock})) for clock in (795.0, 900.0, 1005.0, 1110.0)]
    energy = np.interp(-capped.time_s, [-c.time_s for c in clocks], [c.energy_j for c in clocks])
    assert energy < capped.energy_j < 1.1 * energy
    assert max(peaks(c)["compute"] for c in clocks) > 1.01 * 300, "a clock holds no power"


@pytest.mark.parametrize("tables", [{}, NANOBATCHES])
@pytest.mark.parametrize("limits", [{"compute": 300.0}, {"compute": 220.0, "hbm": 60.0}])
def test_the_closed_form_agrees(limits, tables):
    one = plan(limits, **tables)
    whole, fast = forecast(one), closed_form([one, plan(**tables)])
    assert fast.time_s[0] == pytest.approx(whole.time_s, rel=0.01)
    assert fast.energy_j[0] == pytest.approx(whole.energy_j, rel=0.01)
    assert fast.clock_mhz[0] == pytest.approx(whole.clock_mhz, rel=0.08), "mean of clocks beside their median"
    assert fast.time_s[0] > 1.1 * fast.time_s[1]


def test_waiting_is_within_the_lowest_legal_limit():
    gpu = gpu_model(load_gpu("h200-sxm"))
    drawn = waiting_power_w(gpu.clocks_mhz, gpu)
    assert sum(drawn.values()) == pytest.approx(wait_power_w(gpu.clocks_mhz, gpu))
    limit = float(np.ceil(drawn["compute"][0] + 1.0))
    columns = part_limits.wait_columns(gpu.clocks_mhz, {"compute": limit}, gpu)
    assert drawn["compute"][columns].max() <= limit < drawn["compute"][-1]
    assert forecast(plan({"compute": limit})).time_s > 0


@pytest.mark.parametrize(
    ("limits", "error", "said"),
    [
        (
            {"compute": 60},
            jc.InputError,
            r"power.component_limits_w.compute.*while it waits.*lowest whole limit is [6-9]\d",
        ),
        ({"xcd": 300}, jc.InputError, "power.component_limits_w.*unknown part.*compute, hbm, link"),
        ({"compute": "300"}, jc.InputError, "power.component_limits_w"),
    ],
)
def test_limits_that_cannot_be(limits, error, said):
    with pytest.raises(error) as caught:
        plan(limits)
    assert re.search(said, str(caught.value)), str(caught.value)


def test_the_guard_sees_a_part_above_its_limit(monkeypatch):
    monkeypatch.setattr(
        "joulecast.simulator.instructions.tables.limited_kernels", lambda times, clocks, limits, gpu: (times, None)
    )
    monkeypatch.setattr(
        "joulecast.simulator.fluid.prepared.limited", lambda table, clocks, limits, gpu: (table, clocks[-1:])
    )
    with pytest.raises(GuardError, match=r"stage 0: compute draws .* W under a limit of 300 W"):
        forecast(plan({"compute": 300.0}))
