"""Printed intervals against everything evaluated again: every parameter deviates, and the iteration is simulated."""

import numpy as np
import pytest

from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.uncertainty import FEW_DIRECTIONS, NINETY_PERCENT, changes, deviations, spread_of
from joulecast.simulator.iteration import forecast as forecasts
from joulecast.simulator.iteration import uncertainty
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import load_plan, plan_from_dict

#: How far the parameters' part may be from a whole evaluation.
RATIO = (0.75, 1.3)
#: Plans with and without communication beside kernels, at the power limit, below it and at a clock.
PLANS = (
    ("llama-3.1-70b-8xh200", ()),
    ("llama-3.1-70b-8xh200", ("power.clock_mhz=1200",)),
    ("llama-3.1-8b-4xh200", ()),
    ("llama-3.1-8b-4xh200-nanobatches", ("implementation.host_launch_us=0",)),
    ("llama-3.2-3b-4xh200-ddp", ()),
    ("llama-3.1-70b-64xh100-fsdp", ()),
)


@pytest.fixture
def without_forms(monkeypatch):
    """Intervals of the parameters alone."""
    monkeypatch.setattr(uncertainty, "form_spreads", lambda amount, *_: (np.zeros(len(amount)),) * 2)


@pytest.mark.parametrize(("name", "settings"), PLANS)
def test_the_interval_is_as_wide_as_whole_forecasts_again(examples, without_forms, monkeypatch, name, settings):
    plan = load_plan(examples / f"{name}.toml", settings)
    description = gpu_of(plan)

    def forecast(values):
        monkeypatch.setattr(forecasts, "gpu_model", lambda of: gpu_model(of).with_values(values))
        return forecasts.forecast(plan, gpu=description, must_fit=False)

    found = forecast({})
    again = [forecast(values) for values in deviations(description, FEW_DIRECTIONS, plan.cluster.nodes)]
    for quantity in ("time_s", "energy_j"):
        base, high = getattr(found, quantity), getattr(found, f"{quantity}_p95")
        moved = np.array([[getattr(one, quantity)] for one in again])
        expected = float(spread_of(changes(np.array([base]), moved))[0])
        assert RATIO[0] < np.log(high / base) / NINETY_PERCENT / expected < RATIO[1], quantity


@pytest.mark.parametrize(("gpu", "limit_w"), [("b200", 1000), ("b200", 600), ("gb200", 1200)])
def test_energy_is_at_most_as_uncertain_as_time_and_power_together(gpu, limit_w):
    """Published steps tell the time of such a plan, and the board's limit its power: the product is no less known."""
    plan = plan_from_dict(
        {
            "workload": {"model": "llama-3.1-70b", "sequence_length": 8192, "global_batch_size": 16},
            "cluster": {"gpu": gpu, "gpus": 4},
            "parallelism": {"tensor_model_parallel_size": 4},
            "schedule": {"recompute": "full"},
            "implementation": {"framework": "megatron", "generation": "megatron-bridge-2025"},
            "power": {"power_limit_w": limit_w},
        }
    )
    found = forecasts.forecast(plan, must_fit=False)
    low, high = (getattr(found, f"time_s_{end}") * getattr(found, f"power_w_{end}") for end in ("p05", "p95"))
    assert low * (1 - 1e-9) <= found.energy_j_p05 < found.energy_j < found.energy_j_p95 <= high * (1 + 1e-9)
