"""What an H200 is believed to be before anything was measured on it."""

from __future__ import annotations

import pytest

from joulecast.calibrate.descriptions.from_rows import facts_of
from joulecast.calibrate.fit.device_priors import DevicePriors, priors_for
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model


@pytest.fixture(scope="module")
def priors() -> DevicePriors:
    """Of the H200."""
    return priors_for(facts_of("h200-sxm").device)


@pytest.fixture(scope="module")
def gpu(priors: DevicePriors) -> GpuModel:
    """At the priors."""
    base = facts_of("h200-sxm")
    return GpuModel(base.name, gpu_model(base).device, priors.starts())
