"""FSDP whose parameters stay gathered after the forward: what is gathered and summed, how often, and what it holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plan_tables import changed
from ways_agree import ways_agree

from joulecast.errors import InputError
from joulecast.model.kernels.operators import DTYPE_BYTES, Collective
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import plan_program, stage_parameters
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

BASE: dict[str, Any] = {
    "workload": {
        "model": "llama-3.1-8b",
        "sequence_length": 4096,
        "micro_batch_size": 1,
        "global_batch_size": 32,
    },
    "cluster": {"gpu": "h100-sxm", "gpus": 16},
    "parallelism": {"pipeline_model_parallel_size": 4, "fsdp": True, "fsdp_reshard_after_forward": False},
    "schedule": {"name": "1f1b", "recompute": "full"},
    "implementation": {
        "modules": "torchtitan",
        "parameter_precision": "fp32",
        "attention_backend": "flash-attention-2",
    },
}


WAY = "parallelism__fsdp_reshard_after_forward"


def plan(**values: Any) -> Plan:
    return plan_from_dict(changed(BASE, values))


def moved(of: Plan, rank: int) -> dict[str, dict[str, float]]:
    """Bytes of FSDP's collectives in each type of instruction."""
    program = plan_program(of).ranks[rank]
    found: dict[str, dict[str, float]] = {}
    for name, launches in zip(program.names, program.types, strict=True):
        kinds = found.setdefault(name, {})
        for one in (x.operator for x in launches):
            if isinstance(one, Collective) and one.kind in ("all_gather", "reduce_scatter"):
                kinds[one.kind] = kinds.get(one.kind, 0.0) + one.bytes
    return found


@pytest.mark.parametrize("rank", [0, 3])
def test_a_pipeline_gathers_and_sums_once_a_step(rank: int) -> None:
    of = plan()
    elements = sum(p.elements for p in stage_parameters(of, rank))
    assert moved(of, rank) == {
        "forward": {},
        "backward": {},
        "optimizer": {"all_gather": pytest.approx(2 * elements), "reduce_scatter": pytest.approx(4 * elements)},
    }
    added = [x.operator for x in plan_program(of).ranks[rank].types[1] if x.operator.name == "gradients.accumulate"]
    assert sum(one.elements for one in added) == elements
    assert {one.dtype for one in added} == {"fp32"}


def test_one_stage_gathers_once_a_micro_batch_and_sums_each() -> None:
    """Only the layers' second gathering is saved: what is outside them stays in any case."""
    alone = {"parallelism__pipeline_model_parallel_size": 1, "schedule__name": "none"}
    kept, again = (plan(**alone, parallelism__fsdp_reshard_after_forward=way) for way in (False, True))
    with_it, without = moved(again, 0), moved(kept, 0)
    assert without["forward"] == with_it["forward"]
    assert without["backward"] == {"reduce_scatter": with_it["backward"]["reduce_scatter"]}
    assert without["optimizer"] == {}
    assert forecast(kept, must_fit=False).time_s < forecast(again, must_fit=False).time_s


def test_whole_parameters_and_gradients_lie_in_memory() -> None:
    of = plan()
    for rank in range(4):
        elements = sum(p.elements for p in stage_parameters(of, rank))
        found = footprint_of(of, rank)
        assert found.gathered == DTYPE_BYTES["bf16"] * elements
        assert found.gradients == DTYPE_BYTES["fp32"] * elements
        assert found.parameters == DTYPE_BYTES["fp32"] * elements / 4


def test_layers_of_one_stage_wait_whole_for_their_backward() -> None:
    """As the first backward begins, all parameters are whole; at its end, with all gradients, none but one layer's."""
    alone = {"parallelism__pipeline_model_parallel_size": 1, "schedule__name": "none"}
    for batch in (32, 16):  # two micro-batches and one
        kept, again = (
            footprint_of(plan(**alone, **{"workload__global_batch_size": batch, WAY: way}), 0) for way in (False, True)
        )
        elements = sum(p.elements for p in stage_parameters(plan(**alone), 0))
        assert kept.gathered == DTYPE_BYTES["bf16"] * elements > again.gathered
        assert kept.total_bytes - again.total_bytes <= kept.gathered - again.gathered
        assert replace(kept, gathered=0, gradients=0, cached=0) == replace(again, gathered=0, gradients=0, cached=0)
    short = {"workload__sequence_length": 16, "workload__global_batch_size": 2, "cluster__gpus": 2}
    kept = footprint_of(plan(**alone, **short), 0)
    assert kept.gathered + kept.gradients > DTYPE_BYTES["fp32"] * elements / 2  # fullest at the end


@pytest.mark.parametrize("stages", [1, 4])
def test_closed_form_and_simulation_agree(stages: int) -> None:
    of = plan(
        parallelism__pipeline_model_parallel_size=stages,
        schedule__name="1f1b" if stages > 1 else "none",
        parallelism__fsdp_shard_size=2,
    )
    ways_agree(of, time=0.02, must_fit=False)


def test_megatron_and_experts_are_refused() -> None:
    for values in (
        {"implementation": {"framework": "megatron"}},
        {"workload__model": "mixtral-8x7b", "implementation": {"framework": "pytorch-eager"}},
    ):
        with pytest.raises(InputError, match="fsdp_reshard_after_forward"):
            plan(**values)
