"""Power by part of the package, and limits on parts: nothing is lost, limits are held, errors name what is legal."""

import numpy as np
import pytest

import joulecast as jc
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.catalogue import gpu_names, load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.component_power import CHIPLETS, ONE_DIE, STACKS, by_part, package_of, rest_power_w
from joulecast.model.power.kernel_power import COMPONENTS, idle_power_w
from joulecast.simulator.instructions.repeated import Conditions, predict_repeated

PRODUCT = jc.Gemm(8192, 8192, 8192)
GATHER = jc.Collective("all_gather", 1e9, 8)
BESIDE = [Launch(GATHER, "communication"), Launch(PRODUCT), Launch(PRODUCT)]


@pytest.fixture(scope="module")
def mi300x():
    return jc.gpu("mi300x")


@pytest.fixture(scope="module")
def model():
    return gpu_model(load_gpu("mi300x"))


@pytest.mark.parametrize("package", [CHIPLETS, ONE_DIE])
def test_every_component_is_shared_out_once(package):
    assert set(package.shares) <= set(COMPONENTS)
    for shares in package.shares.values():
        assert len(shares) == len(package.parts)
        assert sum(shares) == pytest.approx(1.0)


def test_parts_follow_from_the_device():
    assert package_of(gpu_model(load_gpu("mi300x"))) is CHIPLETS
    assert package_of(gpu_model(load_gpu("h200-sxm"))) is ONE_DIE


@pytest.mark.parametrize("gpu", ["mi300x", "h200-sxm"])
@pytest.mark.parametrize("operator", [PRODUCT, GATHER, jc.Streaming("copy", 1e9, 1e9)])
def test_parts_sum_to_the_board(gpu, operator):
    k = jc.gpu(gpu).predict(operator)
    assert sum(k.power_by_part_w.values()) == pytest.approx(k.power_w)
    rest = rest_power_w(k.clock_mhz, gpu_model(load_gpu(gpu)))
    assert all(k.power_by_part_w[part] >= value * (1 - 1e-9) for part, value in rest.items())


def test_parts_at_rest_sum_to_the_idle_board(model):
    clocks = model.clocks_mhz[::100]
    parts = rest_power_w(clocks, model)
    assert sum(parts.values()) == pytest.approx(idle_power_w(clocks, model))
    assert np.ptp(parts["compute"]) > 10 * np.ptp(parts["io"]), "only the compute dies have the clock tree"


def test_products_load_the_compute_dies_and_collectives_the_others(mi300x):
    product, gather = (mi300x.predict(o).power_by_part_w for o in (PRODUCT, GATHER))
    assert product["compute"] > 3 * gather["compute"]
    assert gather["io"] > 2 * product["io"]


def test_an_all_gather_passes_the_compute_dies_and_the_memory(model):
    """Each byte that is sent passes L2, and each stack, twice: what the description has for these."""
    sent = model["power.link_pj_per_byte"]
    compute, io, hbm = CHIPLETS.shares["link"]
    assert compute * sent == pytest.approx(2 * model["power.l2_pj_per_byte"], rel=0.15)
    byte = model["power.hbm_base_pj_per_byte"] + model["power.hbm_toggle_pj_per_byte"]
    assert hbm * sent == pytest.approx(2 * STACKS * byte, rel=0.2)
    assert io > 0.5


@pytest.mark.parametrize(
    ("operator", "part", "limit"),
    [
        (PRODUCT, "compute", 400),
        (PRODUCT, "compute", 100),
        (PRODUCT, "io", 60),
        (GATHER, "io", 120),
        (GATHER, "hbm", 30),
    ],
)
def test_a_limit_is_met(mi300x, operator, part, limit):
    free, held = mi300x.predict(operator), mi300x.predict(operator, component_limits_w={part: limit})
    assert held.power_by_part_w[part] == pytest.approx(limit, rel=2e-3)
    assert held.time_s > free.time_s
    assert held.clock_mhz < free.clock_mhz
    assert held.time_s_p05 < held.time_s < held.time_s_p95


def test_a_limit_that_does_not_bind_changes_nothing(mi300x):
    assert mi300x.predict(GATHER, component_limits_w={"compute": 700, "io": 400}) == mi300x.predict(GATHER)


def test_limits_of_parts_and_of_the_board_hold_together(mi300x):
    k = mi300x.predict(PRODUCT, component_limits_w={"compute": 500}, power_limit_w=500)
    assert k.power_w <= 500
    assert k.power_by_part_w["compute"] <= 500
    assert k == mi300x.predict(PRODUCT, power_limit_w=500)


def test_limits_hold_under_concurrency(model):
    free, held = (
        predict_repeated([BESIDE], model, Conditions(in_step=8, component_limits_w=limits))
        for limits in (None, {"compute": 350.0})
    )
    for found in (free, held):
        parts = by_part(found.components_j, model)
        assert sum(parts.values()) == pytest.approx(found.energy_j)
    assert parts["compute"] / held.time_s == pytest.approx(350.0, rel=2e-3)
    assert held.clock_mhz < free.clock_mhz


def test_power_moved_to_the_compute_dies_makes_products_faster(mi300x):
    limits, more = {"compute": 400.0, "io": 300.0}, {"compute": 450.0, "io": 250.0}
    fast, slow = (mi300x.predict(PRODUCT, component_limits_w=w) for w in (more, limits))
    assert fast.time_s < slow.time_s


@pytest.mark.parametrize(
    ("limits", "error", "said"),
    [
        (
            {"compute": 20},
            jc.InputError,
            "component_limits_w.compute.*at rest.*needs 1 W more to work. The lowest whole limit is 57",
        ),
        ({"compute": float("nan")}, jc.InputError, "at rest"),
        ({"compute": -5}, jc.InputError, "at rest"),
        ({"xcd": 300}, jc.UnknownNameError, "compute, hbm, io"),
    ],
)
def test_limits_that_cannot_be(mi300x, model, limits, error, said):
    with pytest.raises(error, match=said):
        mi300x.predict(PRODUCT, component_limits_w=limits)
    with pytest.raises(error, match=said):
        predict_repeated([BESIDE], model, Conditions(component_limits_w=limits))


def test_the_lowest_limit_that_is_told_works(mi300x):
    k = mi300x.predict(PRODUCT, component_limits_w={"compute": 57})
    assert k.power_by_part_w["compute"] == pytest.approx(57, rel=2e-3)


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_parts(name):
    model = gpu_model(load_gpu(name))
    assert all(np.all(value >= 0) for value in rest_power_w(model.clocks_mhz, model).values())


@pytest.mark.parametrize("plan", ["llama-3.1-8b-4xh200-nanobatches", "llama-3.1-8b-4xh200", "llama-3.2-3b-4xh200-ddp"])
def test_parts_over_the_time_of_an_iteration_sum_to_the_board(examples, plan):
    """At every time, also where communication runs beside computation, or behind whole instructions."""
    timeline = jc.predict(examples / f"{plan}.toml").timeline()
    for stage, whole in enumerate(timeline.timelines):
        parts, board = timeline.part_power(stage), whole.profile()
        assert set(parts) == {"compute", "hbm", "link"}
        for profile in parts.values():
            np.testing.assert_array_equal(profile.time_ns, board.time_ns)
            assert profile.power_w.min() > -1e-6
        np.testing.assert_allclose(sum(p.power_w for p in parts.values()), board.power_w, rtol=1e-9)
        sent = whole.energy_by_component_j()["link"] + timeline.base_w[stage, -1] * whole.time_s
        assert parts["link"].energy_j == pytest.approx(sent)
        assert sent > 0


def test_communication_beside_computation_loads_link_and_compute_dies_at_once(examples):
    parts = jc.predict(examples / "llama-3.1-8b-4xh200-nanobatches.toml").timeline().part_power(0)
    sends = parts["link"].power_w > 0.5 * parts["link"].power_w.max()
    assert np.median(parts["compute"].power_w[sends]) > 300
