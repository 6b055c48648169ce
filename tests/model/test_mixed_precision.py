"""Parameters kept wider than they are computed with, and what becomes of gradients around the optimizer's step."""

from __future__ import annotations

from typing import Any

import pytest

from joulecast.errors import InputError, NotYetError
from joulecast.model.framework.launches import Launch
from joulecast.model.kernels.operators import Collective, Streaming
from joulecast.simulator.instructions.footprints import footprint_of
from joulecast.simulator.instructions.program import instruction_launches
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.implementation import implementation_of
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict
from joulecast.simulator.schedules import BACKWARD, FORWARD, OPTIMIZER, Instruction

MODEL = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 8192,
    "vocab_size": 32000,
    "num_hidden_layers": 4,
}


def plan(*, fsdp: bool = True, gpus: int = 2, micro_batches: int = 1, **implementation: Any) -> Plan:
    return plan_from_dict(
        {
            "workload": {
                "model": MODEL,
                "sequence_length": 4096,
                "micro_batch_size": 1,
                "global_batch_size": gpus * micro_batches,
            },
            "cluster": {"gpu": "h200-sxm", "gpus": gpus},
            "parallelism": {"fsdp": fsdp},
            "implementation": implementation,
        }
    )


def launches(one: Plan, kind: str) -> tuple[Launch, ...]:
    return instruction_launches(one, implementation_of(one), Instruction(kind, 0, 0), 0)


def streams(found: tuple[Launch, ...], ending: str) -> list[Streaming]:
    return [
        x.operator
        for x in found
        for _ in range(x.repeat)
        if isinstance(x.operator, Streaming) and x.operator.name.endswith(ending)
    ]


def moved(operators: list[Streaming]) -> float:
    return sum(o.bytes_read + o.bytes_written for o in operators)


def parameters(one: Plan) -> float:
    """Elements that a GPU keeps, from the bytes of its optimizer's states."""
    width = 4.0 if one.implementation.parameter_precision == "fp32" else 2.0
    return footprint_of(one, 0).optimizer / (2 * width)


def test_shards_are_gathered_narrow_and_gradients_reduced_wide() -> None:
    narrow, wide = plan(), plan(parameter_precision="fp32")
    for kind, name, times in ((FORWARD, "all_gather", 1.0), (BACKWARD, "reduce_scatter", 2.0)):
        sizes = [
            sum(
                x.operator.bytes
                for x in launches(one, kind)
                if isinstance(x.operator, Collective) and name == x.operator.kind
            )
            for one in (narrow, wide)
        ]
        assert sizes[1] == pytest.approx(times * sizes[0])
    casts = streams(launches(wide, FORWARD), "shards.cast")
    assert len(casts) == 5  # four layers, and what lies outside
    assert moved(casts) == pytest.approx(6 * parameters(wide))
    assert not streams(launches(narrow, FORWARD), "shards.cast")
    assert moved(streams(launches(wide, BACKWARD), "reduce_scatter.copy")) == pytest.approx(6 * 2 * parameters(wide))


def test_gradients_may_be_reduced_narrow_and_are_kept_wide() -> None:
    wide, mixed = plan(parameter_precision="fp32"), plan(parameter_precision="fp32", gradient_precision="bf16")
    assert implementation_of(mixed).gradient_dtype == "bf16" and implementation_of(mixed).kept_gradient_dtype == "fp32"
    assert moved(streams(launches(mixed, BACKWARD), "reduce_scatter.copy")) < moved(
        streams(launches(wide, BACKWARD), "reduce_scatter.copy")
    )
    assert forecast(mixed).time_s < forecast(wide).time_s


def test_states_of_wide_parameters_are_twice_as_large_and_the_step_moves_twice_the_bytes() -> None:
    narrow, wide = plan(), plan(parameter_precision="fp32")
    small, large = footprint_of(narrow, 0), footprint_of(wide, 0)
    assert large.parameters == pytest.approx(2 * small.parameters)
    assert large.optimizer == pytest.approx(2 * small.optimizer)
    steps = [moved(streams(launches(one, OPTIMIZER), "adamw")) for one in (narrow, wide)]
    assert steps[1] == pytest.approx(2 * steps[0])


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_clipping_reads_gradients_once_and_scales_them(precision: str) -> None:
    clipped = plan(parameter_precision=precision, gradient_clipping=True)
    found = launches(clipped, OPTIMIZER)
    width = 4 if precision == "fp32" else 2
    assert moved(streams(found, "grad_norm")) == pytest.approx(width * parameters(clipped))
    assert moved(streams(found, "clip")) == pytest.approx(2 * width * parameters(clipped))
    assert not streams(launches(plan(parameter_precision=precision), OPTIMIZER), "clip")


@pytest.mark.parametrize(("micro_batches", "share"), [(1, 0.0), (2, 0.5), (4, 0.75)])
def test_dropped_gradients_are_added_to_by_all_backwards_but_the_first(micro_batches: int, share: float) -> None:
    kept, dropped = (
        plan(fsdp=False, gpus=1, micro_batches=micro_batches, zero_grad_set_to_none=drops) for drops in (False, True)
    )
    added = [moved(streams(launches(one, BACKWARD), ".accumulate")) for one in (kept, dropped)]
    assert added[1] == pytest.approx(share * added[0])
    assert streams(launches(kept, OPTIMIZER), "zero_grad") and not streams(launches(dropped, OPTIMIZER), "zero_grad")
    assert forecast(dropped).time_s < forecast(kept).time_s


def test_shards_that_are_set_to_zero_are_added_to_and_cost_their_zeros() -> None:
    dropped, kept = plan(), plan(zero_grad_set_to_none=False)
    assert not streams(launches(dropped, BACKWARD), "shards.accumulate")
    assert moved(streams(launches(kept, BACKWARD), "shards.accumulate")) == pytest.approx(6 * parameters(kept))
    assert streams(launches(kept, OPTIMIZER), "zero_grad")


def test_memory_of_gradients_that_wait_as_zeros() -> None:
    dropped, kept = (footprint_of(plan(fsdp=False, gpus=1, zero_grad_set_to_none=d), 0) for d in (True, False))
    assert kept.gradients == pytest.approx(kept.parameters)
    assert dropped.gradients < kept.gradients


@pytest.mark.parametrize(
    "implementation",
    [
        {"framework": "megatron", "parameter_precision": "fp32"},
        {"framework": "megatron", "gradient_clipping": False},
        {"framework": "megatron", "zero_grad_set_to_none": True},
        {"parameter_precision": "fp16"},
        {"gradient_precision": "fp32"},
        {"parameter_precision": "fp32", "optimizer_precision": "bf16"},
    ],
)
def test_what_no_framework_does_is_refused(implementation: dict[str, Any]) -> None:
    with pytest.raises((InputError, NotYetError)) as error:
        plan(**implementation)
    assert set(implementation) & {str(error.value).partition("implementation.")[2].partition("]")[0]}
