"""What is expected of a card before it is measured."""

import math

import pytest

from joulecast.calibrate.fit.device_priors import priors_for
from joulecast.calibrate.fit.priors import power_priors, time_priors
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import gpu_names, read_gpu


def test_the_reference_card_keeps_the_priors_as_they_are_written():
    priors = priors_for(read_gpu("h200-sxm").device)
    assert priors.time == time_priors()
    assert priors.power == power_priors()


@pytest.mark.parametrize("name", [n for n in gpu_names() if n != "h200-sxm-rows"])
def test_every_card_has_priors_inside_their_bounds(name):
    for key, prior in priors_for(read_gpu(name).device).all.items():
        assert prior.lower <= prior.start <= prior.upper and prior.lower < prior.upper, key


def test_priors_follow_the_hardware_and_grow_with_the_distance():
    here, there = (priors_for(read_gpu(name).device) for name in ("h200-sxm", "a100-sxm-80gb"))
    name = "power.tensor_pj_per_flop.bf16"
    assert there.power[name].start == pytest.approx(1.25 * here.power[name].start)
    assert there.power[name].upper == pytest.approx(1.25 * here.power[name].upper)
    assert there.power[name].rel_sd == pytest.approx((0.3**2 + 0.25**2) ** 0.5)
    eta = "kernel.attention.flash-attention-2.forward.eta"
    assert there.time[eta].start == pytest.approx(2 * here.time[eta].start)


def test_of_kin_is_known_what_was_fitted_to_the_reference_card():
    """An H100 has an H200's SMs: its search starts at what was fitted there, as sure as the fit and the rule are."""
    known, kin = read_gpu("h200-sxm"), priors_for(read_gpu("h100-sxm").device)
    fitted = known.tables["kernel"].parameters["gemm.eta"]
    prior = kin.time["kernel.gemm.eta"]
    assert prior.start == fitted.number != time_priors()["kernel.gemm.eta"].start
    assert prior.sd == pytest.approx(math.hypot(fitted.sd, 0.10 * 0.4 * fitted.number))  # the rule's, between kin
    assert prior.rel_sd < time_priors()["kernel.gemm.eta"].rel_sd
    assert "h200-sxm" in prior.source
    leakage = "power.leakage_w_per_k"  # no row identified it: the weak prior stays
    assert known.tables["power"].parameters["leakage_w_per_k"].status == "assumed"
    assert kin.power[leakage].source == power_priors()[leakage].source


def test_other_architectures_keep_the_weak_priors():
    eta = "kernel.gemm.eta"
    assert priors_for(read_gpu("a100-sxm-80gb").device).time[eta].source == time_priors()[eta].source


def test_an_architecture_without_a_figure_is_named():
    device = dict(read_gpu("a100-sxm-80gb").device)
    from dataclasses import replace

    device["architecture"] = replace(device["architecture"], value="Fermi")
    with pytest.raises(InputError, match="Fermi"):
        priors_for(device)
