"""Laws that the ledger of every forecast keeps, and what a breach says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from joulecast.errors import GuardError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.simulator.fluid.prepared import prepare
from joulecast.simulator.fluid.steady_state import simulate
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.iteration.ledger_guards import check_iteration
from joulecast.simulator.iteration.result import Iteration
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan, load_plan, plan_from_dict


def plan() -> Plan:
    return plan_from_dict(
        {
            "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 16},
            "cluster": {"gpu": "h200-sxm-rows", "gpus": 4},
            "parallelism": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
        }
    )


def broken(change: Callable[[Iteration], Iteration]) -> None:
    chosen = plan()
    prepared = prepare(chosen, gpu_model(load_gpu("h200-sxm-rows")))
    check_iteration(change(forecast(chosen)), simulate(prepared))


def first_rank(**values: Any) -> Callable[[Iteration], Iteration]:
    return lambda whole: replace(whole, ranks=(replace(whole.ranks[0], **values), *whole.ranks[1:]))


def test_guards_accept_a_sound_forecast_and_name_the_stage_of_a_broken_one() -> None:
    broken(lambda whole: whole)
    with pytest.raises(GuardError, match="all stages: energy"):
        broken(lambda whole: replace(whole, energy_j=whole.energy_j * (1 + 1e-8)))
    with pytest.raises(GuardError, match="stage 0: energy by component"):
        broken(first_rank(energy_by_component_j={"static": 1.0}))
    with pytest.raises(GuardError, match="stage 0: energy by instruction"):
        broken(first_rank(energy_by_instruction_j={"forward": 1.0}))
    with pytest.raises(GuardError, match="stage 0: parts of"):
        broken(first_rank(waiting_s=1.0))
    with pytest.raises(GuardError, match="stage 0: parts of"):  # though they add up
        own = forecast(plan()).ranks[0]
        less, more = -own.exposed_communication_s, own.compute_s + 2 * own.exposed_communication_s
        broken(first_rank(exposed_communication_s=less, compute_s=more))


def test_a_breach_is_reported_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def breach(*args: Any) -> None:
        raise GuardError("stage 0: a law does not hold")

    monkeypatch.setattr("joulecast.simulator.iteration.forecast.check_iteration", breach)
    with pytest.raises(GuardError, match="please report it with this plan: Plan") as found:
        forecast(plan())
    assert found.value.plan == plan()
    assert found.value.message == "stage 0: a law does not hold"
    assert repr(plan().workload) in str(found.value)


def test_guards_compare_with_the_power_over_the_ticks() -> None:
    prepared = prepare(plan(), gpu_model(load_gpu("h200-sxm-rows")))
    steady = simulate(prepared)
    power = steady.result.power_w.copy()
    power[3, 1] *= 1.001
    with pytest.raises(GuardError, match="stage 1: power over time"):
        check_iteration(forecast(plan()), replace(steady, result=replace(steady.result, power_w=power)))


def test_guards_cost_less_than_a_millisecond(examples: Any, calls_of: Callable[[Callable[[], object]], int]) -> None:
    chosen = load_plan(examples / "gpt3-175b-64xa100.toml")
    prepared = prepare(chosen, gpu_model(gpu_of(chosen)))
    steady, whole = simulate(prepared), forecast(chosen)
    guarding = calls_of(lambda: check_iteration(whole, steady))
    assert guarding < 550
    assert guarding < 0.01 * calls_of(lambda: simulate(prepared))
