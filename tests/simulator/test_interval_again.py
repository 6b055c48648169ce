"""Printed intervals against everything evaluated again: every parameter deviates, and the iteration is simulated."""

import numpy as np
import pytest

from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.uncertainty import FEW_DIRECTIONS, NINETY_PERCENT, deviations, spread_of_changes
from joulecast.simulator.fluid.prepared import prepare, simulate, step_time_s
from joulecast.simulator.iteration import uncertainty
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import load_plan

#: How far the parameters' part may be from a whole evaluation: eight directions, whose signs meet by chance.
RATIO = (0.7, 1.45)
#: Plans with and without communication beside kernels, at the power limit, below it and at a clock.
PLANS = (
    ("llama-3.1-70b-8xh200", ()),
    ("llama-3.1-70b-8xh200", ("power.clock_mhz=1200",)),
    ("llama-3.1-8b-4xh200", ()),
    ("llama-3.1-8b-4xh200-nanobatches", ()),
    ("llama-3.2-3b-4xh200-ddp", ()),
    ("llama-3.1-70b-64xh100-fsdp", ()),
)


def simulated_s(plan, gpu):
    return step_time_s(*simulate(prepare(plan, gpu)))


@pytest.fixture
def without_forms(monkeypatch):
    """Intervals of the parameters alone."""
    monkeypatch.setattr(uncertainty, "form_spreads", lambda amount, *_: (np.zeros(len(amount)),) * 2)


@pytest.mark.parametrize(("name", "settings"), PLANS)
def test_the_interval_is_as_wide_as_whole_forecasts_again(examples, without_forms, name, settings):
    plan = load_plan(examples / f"{name}.toml", settings)
    description = gpu_of(plan)
    gpu = gpu_model(description)
    again = [simulated_s(plan, gpu.with_values(values)) for values in deviations(description, FEW_DIRECTIONS)]
    expected = float(spread_of_changes(np.array([simulated_s(plan, gpu)]), np.array(again)[:, None])[0])
    found = forecast(plan, must_fit=False)
    ratio = np.log(found.time_s_p95 / found.time_s) / NINETY_PERCENT / expected
    assert RATIO[0] < ratio < RATIO[1]
