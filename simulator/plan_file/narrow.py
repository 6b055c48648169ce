"""What of a plan runs in FP8 or FP4, which layers do not, and what a forecast says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.errors import InputError
from joulecast.model.framework.narrow import NARROW, PYTORCH_RECIPES, Narrow, narrow_on
from joulecast.model.hardware.description import GpuDescription
from joulecast.simulator.plan_file.names import place
from joulecast.simulator.plan_file.schema import PlanFile
from joulecast.simulator.plan_file.schema_workload import WorkloadTable
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan

MEGATRON = 'Set implementation.framework = "megatron"'


def narrow_of(parsed: PlanFile, gpu: GpuDescription, source: Source) -> Narrow | None:
    """How the plan's linear layers run in FP8 or FP4 on its GPU, if they do."""
    table, megatron = parsed.workload, parsed.implementation.framework == "megatron"
    if table.precision == "fp8":
        recipe = _fp8_recipe(table, source, megatron=megatron)
        check_gathered(parsed, recipe, source)
    elif table.precision == "fp4":
        recipe = "nvfp4"
        if not megatron:
            raise source.error(
                "linear layers in FP4 are known as Transformer Engine runs them",
                "workload.precision",
                remedy=f"{MEGATRON}, or another precision.",
            )
    else:
        return None
    try:
        return narrow_on(gpu, recipe, parameters=table.fp8_param_gather or table.fp4_param_gather)
    except InputError as error:
        raise place(error, source, error.key or "cluster.gpu") from None


def _fp8_recipe(table: WorkloadTable, source: Source, *, megatron: bool) -> str:
    recipe = table.fp8_recipe or ("delayed" if megatron else "tensorwise")
    known, other = ("PyTorch", "pytorch-eager") if megatron else ("Transformer Engine", "megatron")
    if recipe == "rowwise" if megatron else recipe not in PYTORCH_RECIPES:
        raise source.error(
            f"{recipe} scaling is known as {known} has it",
            "workload.fp8_recipe",
            remedy=f'Set implementation.framework = "{other}", or another recipe.',
        )
    return recipe


def check_gathered(parsed: PlanFile, recipe: str, source: Source) -> None:
    """PyTorch's FSDP gathers weights in FP8 with one scale for each; nothing else of PyTorch keeps them so."""
    if not parsed.workload.fp8_param_gather or parsed.implementation.framework == "megatron":
        return
    if recipe != "tensorwise" or not parsed.parallelism.fsdp:
        raise source.error(
            "in pytorch-eager weights are in FP8 where FSDP gathers them, with one scale for each",
            "workload.fp8_param_gather",
            remedy='Set parallelism.fsdp = true with fp8_recipe = "tensorwise", or leave the key out.',
        )


def wide_layers(parsed: PlanFile, layers: int, source: Source) -> tuple[bool, ...]:
    """Whether each layer stays in bf16 where others run in FP8 or FP4; empty where none does."""
    table = parsed.workload
    start, end = table.num_layers_at_start_in_bf16, table.num_layers_at_end_in_bf16
    if table.precision not in NARROW or start + end == 0:
        return ()
    key = f"workload.num_layers_at_{'end' if end else 'start'}_in_bf16"
    if parsed.implementation.framework != "megatron":
        raise source.error(
            "layers that stay in bf16 are known of Megatron", key, remedy=f"{MEGATRON}, or leave the key out."
        )
    if start + end > layers:
        raise source.error(
            f"{start} first and {end} last layers stay in bf16, but there are {layers}",
            key,
            remedy=f"Keep at most {layers} layers in bf16.",
        )
    return (*(True,) * start, *(False,) * (layers - start - end), *(True,) * end)


def narrow_assumptions(plan: Plan) -> tuple[str, ...]:
    """How linear layers in FP4 are forecast."""
    if plan.workload.precision != "fp4":
        return ()
    return (
        "linear layers in NVFP4 are an estimate: products reach the share of FP4's rate that FP8's reach of theirs, at "
        "half the energy of an operation; casts with their Hadamard transform are bound by memory, of gradients by "
        "stochastic rounding",
    )
