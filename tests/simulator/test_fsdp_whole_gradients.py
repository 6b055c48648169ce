"""FSDP under ``no_sync``: gradients of accumulated micro-batches add up whole and are reduced once."""

from __future__ import annotations

from typing import Any

import pytest
from plan_tables import changed
from ways_agree import ways_agree

from joulecast.errors import DoesNotFitError, InputError
from joulecast.model.kernels.operators import Collective
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program, stage_parameters
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.iteration.nearest_fit import forecast_or_nearest
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

BASE: dict[str, Any] = {
    "workload": {
        "model": "llama-3.1-8b",
        "sequence_length": 2048,
        "micro_batch_size": 1,
        "global_batch_size": 32,
        "precision": "bf16",
    },
    "cluster": {"gpu": "h100-sxm", "gpus": 8},
    "parallelism": {"fsdp": True, "fsdp_sync_each_batch": False},
    "schedule": {"recompute": "full"},
    "implementation": {
        "modules": "transformers",
        "parameter_precision": "fp32",
        "gradient_precision": "bf16",
        "attention_backend": "flash-attn-2",
    },
}


def plan(**values: Any) -> Plan:
    return plan_from_dict(changed(BASE, values))


def of_kinds(of: Plan) -> dict[str, dict[str, float]]:
    """Bytes that are reduced, and elements that are added, in each type of instruction."""
    program = plan_program(of).ranks[0]
    found = {}
    for name, launches in zip(program.names, program.types, strict=True):
        operators = [x.operator for x in launches]
        sums = [x.bytes for x in operators if isinstance(x, Collective) and x.kind == "reduce_scatter"]
        added = [x.elements for x in operators if x.name == "gradients.accumulate"]
        found[name] = {"reduced": sum(sums), "added": sum(added)}
    return found


def test_the_last_backward_alone_reduces_what_all_have_added() -> None:
    of = plan()
    elements = sum(p.elements for p in stage_parameters(of, 0))
    added = {"added": pytest.approx(0.75 * elements)}  # four micro-batches, the first of which finds none
    assert of_kinds(of) == {
        "forward": {"reduced": 0, "added": 0},
        "backward": {"reduced": 0, **added},
        "backward with gradient reduction": {"reduced": pytest.approx(2 * elements), **added},
        "optimizer": {"reduced": 0, "added": 0},
    }
    order = plan_program(of).ranks[0].order
    assert order.count(plan_program(of).ranks[0].names.index("backward with gradient reduction")) == 1


def test_whole_gradients_lie_on_every_gpu_while_micro_batches_add_up() -> None:
    of, each = plan(), plan(parallelism__fsdp_sync_each_batch=True)
    elements = sum(p.elements for p in stage_parameters(of, 0))
    more = footprint_of(of, 0).total_bytes - footprint_of(each, 0).total_bytes
    assert footprint_of(of, 0).gradients >= 2 * elements
    assert more == pytest.approx(2 * elements - 4 * elements / 8, rel=0.02)


def test_one_micro_batch_is_as_without() -> None:
    ways = [plan(workload__global_batch_size=8, parallelism__fsdp_sync_each_batch=way) for way in (False, True)]
    assert footprint_of(ways[0], 0) == footprint_of(ways[1], 0)
    assert forecast(ways[0]).time_s == pytest.approx(forecast(ways[1]).time_s, rel=1e-6)


def test_adapters_hardly_change() -> None:
    lora: dict[str, Any] = {"workload__lora": {"rank": 8}, "implementation__parameter_precision": "bf16"}
    ways = [plan(**lora, parallelism__fsdp_sync_each_batch=way) for way in (False, True)]
    held = [footprint_of(way, 0).total_bytes for way in ways]
    assert held[0] == pytest.approx(held[1], rel=0.001)


@pytest.mark.parametrize("batch", [16, 64])
def test_closed_form_and_simulation_agree(batch: int) -> None:
    of = plan(workload__global_batch_size=batch)
    ways_agree(of, time=0.02)


def test_less_is_sent_over_a_slow_network() -> None:
    slow = {"cluster__gpus": 16, "workload__global_batch_size": 64, "network": {"nic_gbit_per_s": 25.0}}
    once, each = (forecast(plan(**slow, parallelism__fsdp_sync_each_batch=way)).time_s for way in (False, True))
    assert once < each


def test_the_remedy_is_named_where_it_suffices() -> None:
    def load(settings: Any) -> Plan:
        return plan_from_dict(changed(BASE, {"cluster__gpu": "rtx-4090"}), None, list(settings))

    with pytest.raises(DoesNotFitError, match=r"--set parallelism.fsdp_sync_each_batch=true, which takes"):
        forecast_or_nearest(load)


@pytest.mark.parametrize(
    "values",
    [
        {"implementation": {"framework": "megatron"}},
        {"parallelism__pipeline_model_parallel_size": 2, "schedule__name": "1f1b"},
        {"parallelism": {"fsdp_sync_each_batch": False}, "implementation": {"modules": "transformers"}},
    ],
)
def test_where_it_is_not_known_it_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="fsdp_sync_each_batch"):
        plan(**values)
