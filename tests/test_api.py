"""The public functions for programs."""

import math

import pytest

import joulecast as jc


@pytest.fixture(scope="module")
def h200():
    return jc.gpu("h200-sxm")


def test_kernel_forecast(h200):
    k = h200.predict(jc.Gemm(m=8192, n=8192, k=8192, dtype="bf16"))
    assert 1e-3 < k.time_s < 3e-3
    assert k.energy_j == pytest.approx(k.power_w * k.time_s)
    assert sum(k.energy_by_component_j.values()) == pytest.approx(k.energy_j)
    assert 1000 < k.clock_mhz < 1980
    assert k.limited_by == "compute"


def test_a_copy_is_limited_by_memory(h200):
    k = h200.predict(jc.Streaming("copy", 1e9, 1e9, name="my copy"), clock_mhz=1980)
    assert (k.limited_by, k.clock_mhz, k.name) == ("memory", 1980, "my copy")


def test_a_lower_limit_lowers_clock_and_power(h200):
    gemm = jc.Gemm(m=8192, n=8192, k=8192)
    usual, limited = h200.predict(gemm), h200.predict(gemm, power_limit_w=400)
    assert limited.clock_mhz < usual.clock_mhz
    assert limited.power_w <= 400
    assert limited.time_s > usual.time_s


@pytest.mark.parametrize("options", [{"clock_mhz": 5000}, {"clock_mhz": math.nan}, {"power_limit_w": 1}])
def test_out_of_range(h200, options):
    with pytest.raises(jc.InputError, match="out of the range of h200-sxm"):
        h200.predict(jc.Gemm(m=128, n=128, k=128), **options)


def test_unknown_gpu():
    with pytest.raises(jc.UnknownNameError, match="h200-sxm"):
        jc.gpu("h200-smx")


def test_kernel_as_frame(h200):
    pytest.importorskip("pandas")
    frame = h200.predict(jc.Gemm(m=1024, n=1024, k=1024)).to_frame()
    assert len(frame) == 1
    assert {"time_s", "energy_j", "tensor_j", "limited_by"} <= set(frame)


def test_predict_takes_a_path_or_a_plan(examples):
    from joulecast.simulator.plan import load_plan

    path = examples / "llama-3.1-8b-4xh200.toml"
    whole = jc.predict(path)
    assert jc.predict(load_plan(path)).to_dict() == whole.to_dict() == jc.predict(str(path)).to_dict()
    assert jc.predict(path, ["workload.global_batch_size=16"]).time_s > whole.time_s
    with pytest.raises(jc.InputError, match="overrides"):
        jc.predict(load_plan(path), ["cluster.gpus=4"])


def test_iteration_as_frame(examples):
    pytest.importorskip("pandas")
    assert len(jc.predict(examples / "llama-3.1-8b-4xh200.toml").to_frame())
