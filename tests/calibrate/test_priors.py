"""Where searches start: complete, within bounds, and with a source."""

import numpy as np
import pytest

from joulecast.calibrate.fit.priors import COLLECTIVE, CONTENTION, FIXED, GOVERNOR, power_priors, time_priors
from joulecast.calibrate.fit.tables import family_of
from joulecast.calibrate.rows.measured import recorded_rows
from joulecast.calibrate.rows.operators import operator_of
from joulecast.model.hardware.description import TABLES
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.lowering import lower
from joulecast.model.power.kernel_power import at_clock

ALL = {**time_priors(), **power_priors(), **COLLECTIVE, **CONTENTION, **GOVERNOR, **FIXED}


@pytest.mark.parametrize("name", ALL)
def test_every_start_lies_within_its_bounds(name):
    prior = ALL[name]
    assert prior.lower <= prior.start <= prior.upper
    assert prior.lower < prior.upper
    assert prior.sd >= 0 and np.isfinite(prior.sd)
    assert prior.source
    assert name.partition(".")[0] in TABLES


def test_searches_share_no_parameter():
    parts = [time_priors(), power_priors(), COLLECTIVE, CONTENTION, GOVERNOR, FIXED]
    assert len(ALL) == sum(len(part) for part in parts)


def test_spread_is_relative_to_the_start_and_absolute_at_zero():
    prior = time_priors()["kernel.gemm.eta"]
    assert prior.sd == pytest.approx(prior.rel_sd * prior.start)
    zero = [p for p in ALL.values() if p.start == 0 and p.rel_sd > 0]
    assert all(p.sd == p.rel_sd for p in zero)


def test_the_starts_alone_describe_every_recorded_kernel(h200):
    """With no row fitted every kernel already has a plausible time and power."""
    gpu = GpuModel("prior", h200.device, {name: prior.start for name, prior in ALL.items()})
    operators = [o for row in recorded_rows() for o in operator_of(row.configuration).operators]
    times = at_clock(lower(operators, gpu), 1500.0, gpu)
    assert np.all(times.time_s > 0)
    assert np.all((times.power_w > 80) & (times.power_w < 1500))


def test_every_kernel_family_has_parameters():
    names = [name.removeprefix("kernel.") for name in time_priors()]
    for row in recorded_rows():
        for operator in operator_of(row.configuration).operators:
            family = family_of(operator)
            assert family == "collective" or any(name.startswith(f"{family}.") for name in names), family
