"""Laws of units: what a run takes grows with its tokens, money and carbon with energy and time, replicas copy work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.model.cluster.site_cost import Prices, cost_of

#: The same examples on every run.
few = settings(derandomize=True, deadline=None, max_examples=6, database=None)
many = settings(derandomize=True, deadline=None, max_examples=100, database=None)
positive = st.floats(1e-3, 1e9)


def plan(replicas: int = 1, **workload: Any) -> dict[str, Any]:
    """A pipeline of two stages, and copies of it, at a clock that no limit changes."""
    return {
        "workload": {
            "model": "llama-3.2-1b",
            "layers": 4,
            "sequence_length": 1024,
            "global_batch_size": 4 * replicas,
            **workload,
        },
        "cluster": {"gpu": "h100-sxm", "gpus": 2 * replicas},
        "parallelism": {"pipeline_model_parallel_size": 2},
        "implementation": {"framework": "megatron"},
        "power": {"clock_mhz": 1005},
    }


@few
@given(st.floats(1e6, 1e15), st.floats(1.0, 100.0))
def test_a_run_grows_with_its_tokens_and_an_iteration_does_not(tokens: float, factor: float) -> None:
    once, more = (jc.predict(plan(training_tokens=tokens * by)) for by in (1.0, factor))
    assert once.time_s == more.time_s and once.energy_j == more.energy_j
    assert once.site is not None and more.site is not None
    one, many_times = once.site.to_dict()["run"], more.site.to_dict()["run"]
    for key, value in one.items():
        assert many_times[key] == pytest.approx(factor * value), key


@many
@given(st.tuples(*[positive] * 6), positive, positive, st.integers(1, 10_000), st.floats(0.01, 100.0))
def test_money_and_carbon_are_linear_in_energy_and_in_the_time_of_gpus(
    of: tuple[float, ...], energy_j: float, time_s: float, gpus: int, factor: float
) -> None:
    prices = Prices(*of)
    base, hungry, slow = (cost_of(e, t, gpus, prices) for e, t in (
        (energy_j, time_s), (factor * energy_j, time_s), (energy_j, factor * time_s)
    ))  # fmt: skip
    for by_energy, by_time in (("electricity", "hardware"), ("operational_kg", "embodied_kg")):
        assert getattr(hungry, by_energy) == pytest.approx(factor * getattr(base, by_energy))
        assert getattr(slow, by_time) == pytest.approx(factor * getattr(base, by_time))
        assert getattr(hungry, by_time) == getattr(base, by_time)
        assert getattr(slow, by_energy) == getattr(base, by_energy)
    assert cost_of(energy_j, time_s, 2 * gpus, prices).hardware == pytest.approx(2 * base.hardware)


@few
@given(st.integers(3, 8))
def test_further_replicas_compute_as_long_as_two(replicas: int) -> None:
    """Each has the same batch, and gradients that are reduced: only communication grows."""
    two, more = jc.predict(plan(2)), jc.predict(plan(replicas))
    assert [r.compute_s for r in more.ranks] == pytest.approx([r.compute_s for r in two.ranks], rel=1e-9)
    assert 2 * more.tokens == replicas * two.tokens
    assert more.time_s >= two.time_s
