"""Optimizers beside AdamW in PyTorch and Megatron: what each launches and keeps, by its name in a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch
from joulecast.model.training.adafactor import adafactor_state_bytes, adafactor_step, adafactor_temporary_bytes
from joulecast.model.training.bitsandbytes_steps import KINDS, bitsandbytes_state_bytes, bitsandbytes_step
from joulecast.model.training.parameters import ParameterTensor
from joulecast.model.training.sgd import KERNELS, sgd_state_bytes, sgd_step


def no_bytes(parameter: ParameterTensor, implementation: Implementation) -> float:
    """Bytes of an optimizer that needs none for the moment."""
    return 0.0


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """What an optimizer does.

    Attributes
    ----------
    launches
        Those of a step, from the parameters, the framework and the ranks that share the states.
    state_bytes
        Bytes that it keeps for a parameter.
    temporary_bytes
        Bytes that it needs while it steps one.
    sharded
        Whether it steps the shards of FSDP.
    """

    launches: Callable[[Sequence[ParameterTensor], Implementation, int], tuple[Launch, ...]]
    state_bytes: Callable[[ParameterTensor, Implementation], float]
    temporary_bytes: Callable[[ParameterTensor, Implementation], float] = no_bytes
    sharded: bool = False


#: The rules, by what a plan calls the optimizer.
RULES = {
    "adafactor": OptimizerRule(adafactor_step, adafactor_state_bytes, adafactor_temporary_bytes),
    **dict.fromkeys(KINDS, OptimizerRule(bitsandbytes_step, bitsandbytes_state_bytes)),
    **dict.fromkeys(KERNELS, OptimizerRule(sgd_step, sgd_state_bytes, sharded=True)),
}
