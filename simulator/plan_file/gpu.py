"""The GPU of a plan, as the plan's framework finds it."""

from __future__ import annotations

from functools import lru_cache

from joulecast.model.hardware.catalogue import load_gpu, load_training
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.training.factors import LAUNCH, trained
from joulecast.simulator.plan_file.plan import Plan


def gpu_of(plan: Plan) -> GpuDescription:
    """Description of the plan's GPU; for Megatron, with what long training runs have shown of its architecture.

    Raises
    ------
    UnknownNameError, InputError
        No such GPU, or a wrong file.
    """
    return as_trained(load_gpu(plan.cluster.gpu), plan)


def as_trained(description: GpuDescription, plan: Plan) -> GpuDescription:
    """A description as the plan's framework finds it."""
    if plan.implementation.framework != "megatron":
        return description
    return _trained(description, plan.implementation.generation)


@lru_cache(maxsize=64)
def _trained(description: GpuDescription, generation: str) -> GpuDescription:
    return trained(description, generation, load_training())


def launch_s(plan: Plan, gpu: GpuModel) -> float:
    """Time that the plan's host needs for a launch [s]; 0 where it is never waited for."""
    i = plan.implementation
    if i.cuda_graphs:
        return 0.0
    return gpu.get(f"kernel.{LAUNCH}", 0.0) if i.host_launch_us is None else 1e-6 * i.host_launch_us
