"""The kernels whose forecasts shall become certain: those of training steps, and the families that can be measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulecast.calibrate.fit.tables import family_of
from joulecast.calibrate.sessions.candidates import Candidate, Reference
from joulecast.errors import InputError
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective, Gemm, Operator
from joulecast.model.power.kernel_power import kernel_time_s

if TYPE_CHECKING:
    from joulecast.model.framework.implementation import AttentionBackend, Framework


class Step(NamedTuple):
    """A training step whose kernels matter."""

    model: str
    tensor_parallel: int
    micro_batch: int
    sequence: int
    attention: AttentionBackend
    dtype: str
    framework: Framework


STEPS = (
    Step("llama-3.1-8b", 1, 2, 4096, "cudnn", "bf16", "pytorch-eager"),
    Step("llama-3.1-8b", 2, 2, 4096, "flash-attention-2", "bf16", "megatron"),
    Step("llama-3.1-70b", 8, 1, 8192, "cudnn", "bf16", "megatron"),
    Step("llama-3.1-70b", 4, 1, 4096, "flash-attention-2", "bf16", "pytorch-eager"),
    Step("gpt3-175b", 8, 1, 2048, "cudnn", "bf16", "pytorch-eager"),
    Step("qwen2.5-1.5b", 1, 8, 2048, "cudnn", "bf16", "pytorch-eager"),
    Step("gpt-1.7b", 1, 8, 1024, "flash-attention-2", "fp16", "pytorch-eager"),
    Step("llama-3.2-3b", 1, 2, 4096, "cudnn", "fp8", "megatron"),
)
#: Micro-batches of a step: how much the optimizer weighs in it.
MICRO_BATCHES = 4
#: Share of the weight that the training steps have; the rest goes to the families of the candidates.
TRAINING_SHARE = 0.5
#: Clocks of the forecasts of training kernels, as shares of the highest one, and how much each matters.
CLOCKS: dict[float | None, float] = {None: 0.55, 0.75: 0.15, 0.55: 0.15, 0.4: 0.15}

#: Kernels of less weight are left out: together they have a few percent, and half of the kernels' number.
LEAST_WEIGHT = 2e-4


def reference_kernels(candidates: Sequence[Candidate], gpu: GpuModel) -> dict[Reference, float]:
    """Kernels and how much each forecast matters; the weights add up to 1.

    A kernel of a training step weighs as much as its share of the step's time, at the clock that the card chooses and
    at lower ones, which plans set; every family that the candidates can measure weighs the same, however many
    candidates it has. Without the second part nothing would be learnt about what only some users run; without the
    first, exotic kernels would cost as much time as those that fill an iteration.

    Parameters
    ----------
    candidates
        What could be measured.
    gpu
        Gives the kernels' times; what it cannot run is left out.
    """
    weights: defaultdict[Reference, float] = defaultdict(float)
    steps = [found for step in STEPS if (found := _shares(step, gpu))]
    for shares in steps:
        for operator, share in shares.items():
            for clock, part in CLOCKS.items():
                weights[Reference(operator, clock)] += TRAINING_SHARE * share * part / len(steps)
    families: dict[tuple[str, ...], set[Operator]] = {}
    for candidate in candidates:
        for operator in candidate.work.operators:
            families.setdefault(_family(operator), set()).add(replace(operator, name=""))
    for members in families.values():
        for operator in members:
            weights[Reference(operator)] += (1.0 - TRAINING_SHARE) / (len(families) * len(members))
    kept = {kernel: weight for kernel, weight in weights.items() if weight >= LEAST_WEIGHT}
    return {kernel: weight / sum(kept.values()) for kernel, weight in kept.items()}


def _family(operator: Operator) -> tuple[str, ...]:
    data = operator.data if isinstance(operator, Gemm) else ""
    return (family_of(operator), operator.dtype, data)


def _shares(step: Step, gpu: GpuModel) -> dict[Operator, float]:
    """Share of each kernel in a step's time; empty where the card cannot run it."""
    counts = _step_kernels(step)
    operators = list(counts)
    try:
        costs = lower(operators, gpu)
    except InputError:  # such as a data type that the card does not have
        return {}
    times = kernel_time_s(costs, np.full(len(operators), gpu.max_clock_mhz), gpu) * np.array(list(counts.values()))
    return dict(zip(operators, (times / times.sum()).tolist(), strict=True))


@lru_cache(maxsize=len(STEPS))
def _step_kernels(step: Step) -> Counter[Operator]:
    from joulecast.model.architecture.hf import load_model
    from joulecast.model.framework.implementation import Implementation
    from joulecast.model.training.step import single_gpu_training_step

    implementation = Implementation(
        step.framework, step.attention, tensor_parallel=step.tensor_parallel, dtype=step.dtype
    )
    launches = single_gpu_training_step(
        load_model(step.model), implementation, step.micro_batch, step.sequence, micro_batches=MICRO_BATCHES
    )
    repeats: Counter[int] = Counter()  # by identity: of ten thousand launches a hundred differ
    for launch in launches:
        repeats[id(launch.operator)] += launch.repeat
    counts: Counter[Operator] = Counter()
    for operator in {id(launch.operator): launch.operator for launch in launches}.values():
        if not isinstance(operator, Collective):
            counts[replace(operator, name="")] += repeats[id(operator)]
    return counts
