"""Types of weights, gradients and moments that a plan leaves to the framework, and those that none is known in."""

from __future__ import annotations

from joulecast.errors import NotYetError
from joulecast.model.framework.wide_values import values_dtype
from joulecast.simulator.plan_file.schema import PlanFile
from joulecast.simulator.plan_file.source import Source


def check_types(parsed: PlanFile, source: Source) -> None:
    """Refuse types of weights, gradients and moments, and steps, in which no framework's kernels are known."""
    run = parsed.implementation
    mixed, sharded = run.framework == "megatron", parsed.parallelism.fsdp
    users_modules = run.modules != "joint"
    narrow, kept, moments = compute_dtype(parsed), kept_dtype(parsed), moments_dtype(parsed)
    wide = run.parameter_precision == "fp32" and not mixed
    cast = 'Set implementation.modules = "transformers" or "torchtitan", or parallelism.fsdp = true, or leave it out.'
    name, leave = "Megatron" if mixed else "PyTorch", "Leave the key out"
    for key, known, what, remedy in (
        (
            "parameter_precision",
            run.parameter_precision in (None, narrow) or (wide and (sharded or users_modules)),
            f"weights in {run.parameter_precision} beside products in {narrow} are not known "
            + ("of modules with joint products" if wide else f"of {name}"),
            cast if wide else f'{leave}, or set it to "{narrow}".',
        ),
        (
            "zero_grad_set_to_none",
            not mixed or run.zero_grad_set_to_none is None,
            "this is PyTorch's: Megatron zeroes a buffer of gradients",
            f"{leave}.",
        ),
        (
            "gradient_clipping",
            run.gradient_clipping in (None, True, mixed),
            "Megatron is known with the norm of gradients that it clips by",
            f"{leave}, or set it to true.",
        ),
        (
            "gradient_precision",
            run.gradient_precision in (None, kept, (mixed or sharded) and narrow),
            f"gradients in {run.gradient_precision} are not known here, where {name} has them in {kept}",
            f'{leave}, or set it to "{kept}".',
        ),
        (
            "reference_precision",
            run.reference_precision in (None, *(() if mixed else (parameter_dtype(parsed), narrow))),
            f"a reference in {run.reference_precision} is not known here, where the parameters are in "
            f"{parameter_dtype(parsed)} and products in {narrow}",
            f'{leave}, or set it to "{narrow}".',
        ),
        (
            "optimizer_precision",
            run.optimizer_precision in (None, moments) or (mixed and run.optimizer_precision == narrow == "bf16"),
            f"moments in {run.optimizer_precision} are not known here, where {name} has them in {moments}",
            f'{leave}, or set it to "{moments}".',
        ),
        (
            "main_parameters",
            run.main_parameters in (None, mixed) or not mixed,
            "Megatron is known with main parameters in fp32",
            f"{leave}, or set it to true.",
        ),
    ):
        if not known:
            raise source.error(what, f"implementation.{key}", remedy=remedy, kind=NotYetError)


def compute_dtype(parsed: PlanFile) -> str:
    """Type of weights and of all that is not multiplied in FP8 or FP4."""
    return values_dtype(parsed.workload.precision)


def parameter_dtype(parsed: PlanFile) -> str:
    """Type in which the framework keeps the weights that it computes with."""
    return parsed.implementation.parameter_precision or compute_dtype(parsed)


def kept_dtype(parsed: PlanFile) -> str:
    """Type in which the framework keeps gradients and moments by default: PyTorch that of what is trained."""
    if parsed.implementation.framework == "megatron":
        return "fp32"
    return parameter_dtype(parsed) if parsed.workload.lora is None else parsed.workload.lora.precision


def moments_dtype(parsed: PlanFile) -> str:
    """Type in which the framework keeps the optimizer's moments by default: that of the weights that it steps."""
    return "fp32" if parsed.implementation.main_parameters else kept_dtype(parsed)
