"""Types of weights, gradients and moments that a plan leaves to the framework, and those that no plan can have yet."""

from __future__ import annotations

from joulecast.errors import NotYetError
from joulecast.model.framework.narrow import NARROW
from joulecast.simulator.plan_file.schema import PlanFile
from joulecast.simulator.plan_file.source import Source


def reserved(parsed: PlanFile, source: Source) -> None:
    """Options that are understood but not implemented."""
    run = parsed.implementation
    mixed, sharded = run.framework == "megatron", parsed.parallelism.fsdp
    users_modules = run.modules != "joint"
    narrow, kept = compute_dtype(parsed), kept_dtype(parsed)
    neutral = {
        "implementation.parameter_precision": run.parameter_precision in (None, narrow)
        or (run.parameter_precision == "fp32" and (sharded or users_modules) and not mixed),
        "implementation.zero_grad_set_to_none": not mixed or run.zero_grad_set_to_none is None,
        "implementation.gradient_clipping": run.gradient_clipping in (None, True, mixed),
        "implementation.gradient_precision": run.gradient_precision in (None, kept, (mixed or sharded) and narrow),
        "implementation.optimizer_precision": run.optimizer_precision in (None, moments_dtype(parsed))
        or (mixed and run.optimizer_precision == narrow == "bf16"),
        "implementation.main_parameters": run.main_parameters in (None, mixed) or not mixed,
    }
    for key, is_neutral in neutral.items():
        if not is_neutral:
            autocast = key == "implementation.parameter_precision" and run.parameter_precision == "fp32" and not mixed
            remedy = (
                'Set implementation.modules = "transformers" or "torchtitan", or fsdp.' if autocast else "Remove it."
            )
            raise source.error("this option is reserved and not yet implemented", key, remedy=remedy, kind=NotYetError)


def compute_dtype(parsed: PlanFile) -> str:
    """Type of weights and of all that is not multiplied in FP8 or FP4."""
    return "bf16" if parsed.workload.precision in NARROW else parsed.workload.precision


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
