"""The closed form beside the simulation of a plan."""

import math

import pytest

from joulecast.simulator.closed_form.forecast import closed_form
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan


def ways_agree(plan: Plan, *, time: float = math.inf, energy: float = math.inf, must_fit: bool = True) -> None:
    """Assert that time and energy differ by these shares at most."""
    walked, summed = forecast(plan, must_fit=must_fit), closed_form([plan])
    assert summed.time_s[0] == pytest.approx(walked.time_s, rel=time), summed.time_s[0]
    assert summed.energy_j[0] == pytest.approx(walked.energy_j, rel=energy), summed.energy_j[0]
