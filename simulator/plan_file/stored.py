"""What must hold of tensors that a plan keeps, or sends to experts, in fewer bits than it computes with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.simulator.plan_file.source import Problem, Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

INPUT = "implementation.activation_func_fp8_input_store"
OUTPUT = "implementation.attention_output_store"
DISPATCH = "implementation.moe_dispatch_precision"


def check_stored(plan: Plan, source: Source) -> None:
    """Refuse a format where nothing is known of its kernels."""
    run = plan.implementation
    given = {INPUT: run.activation_func_fp8_input_store, OUTPUT: run.attention_output_store}
    given[DISPATCH] = run.moe_dispatch_precision
    megatron = (run.framework != "megatron", "it is known of Megatron", 'Set implementation.framework = "megatron"')
    problems = {
        INPUT: (megatron, *_of_input(plan)),
        OUTPUT: (megatron, *_of_output(plan)),
        DISPATCH: (megatron, *_of_dispatch(plan)),
    }
    for key, value in given.items():
        source.refuse(problems[key] if value else (), key, remedy="{}, or leave this key out.")


def _of_input(plan: Plan) -> tuple[Problem, ...]:
    model = plan.workload.model
    return (
        (
            not model.gated_mlp or model.activation != "silu",
            "Megatron keeps the input of SwiGLU so, and the model has another activation",
            "Choose another model",
        ),
        (
            plan.implementation.moe_fused_mlp,
            "products with the activation in them keep its input as they make it",
            "Set implementation.moe_fused_mlp = false",
        ),
    )


def _of_output(plan: Plan) -> tuple[Problem, ...]:
    narrow = plan.workload.narrow
    return (
        (
            narrow is None or narrow.dtype != "fp8",
            "it is known beside linear layers in FP8",
            'Set workload.precision = "fp8"',
        ),
        (
            bool(plan.implementation.attention_precision),
            "attention in FP8 keeps its output so",
            "Remove attention_precision",
        ),
    )


def _of_dispatch(plan: Plan) -> tuple[Problem, ...]:
    narrow = plan.workload.narrow
    return (
        (
            narrow is None or narrow.recipe != "blockwise",
            "experts take tokens in FP8 with a scale for 1 x 128 values",
            'Set workload.precision = "fp8" and workload.fp8_recipe = "blockwise"',
        ),
        (
            plan.implementation.moe_token_dispatcher_type != "flex",
            "FP8 with its scales is sent by DeepEP",
            'Set implementation.moe_token_dispatcher_type = "flex"',
        ),
    )


def stored_assumptions(plan: Plan) -> tuple[str, ...]:
    """What nobody has measured of such tensors."""
    run = plan.implementation
    if not (run.attention_output_store or run.moe_dispatch_precision):
        return ()
    return ("kernels that pack attention's output or turn dispatched rows for weights' gradients are estimates",)
