"""Steps of ``torch.optim.SGD`` with and without momentum, over all parameters at once or one by one.

Of tensors that FSDP shards PyTorch takes one by one (``_default_to_fused_or_foreach`` knows none of ``DTensor``).

Source: ``torch/optim/sgd.py`` and ``optimizer.py`` of PyTorch 2.11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import ONE_BY_ONE, Launch, many_tensors, streaming
from joulecast.model.kernels.operators import DTYPE_BYTES, Streaming
from joulecast.model.training.parameters import ParameterTensor

#: Kernels: pattern, values read and written for each parameter. With momentum two before the step itself: the buffer
#: times its decay, and the gradient added to it.
STEP = (("add", 2, 1),)
KERNELS = {"sgd": STEP, "sgd-momentum": (("mul", 1, 1), ("add", 2, 1), *STEP)}
#: Cycles of an SM for a byte that blocks of many tensors move, beside which the memory works: up to 320 blocks are not
#: spread evenly over the SMs, and each waits for its values. Additions to 1.2 billion values in bf16 on an H100
#: [+-30 %].
PAUSES = 0.04


def sgd_step(
    parameters: Sequence[ParameterTensor], implementation: Implementation, shards: int = 1
) -> tuple[Launch, ...]:
    """Launches of a step on a rank's share of the parameters."""
    dtype, share = implementation.trained_dtype, sum(p.elements for p in parameters) / shards
    launches: list[Launch] = []
    for number, (pattern, reads, writes) in enumerate(KERNELS[implementation.optimizer]):
        name = f"optimizer.sgd.{number}"
        if not implementation.gathered:
            launches += map(_pausing, many_tensors(pattern, name, share, reads, writes, dtype))
            continue
        launches += (
            streaming(pattern, name, p.elements / shards, reads=reads, writes=writes, dtype=dtype) for p in parameters
        )
    return tuple(launches)


def _pausing(launch: Launch) -> Launch:
    """The same launch with the pauses of its blocks."""
    kernel = launch.operator
    if not isinstance(kernel, Streaming):
        return launch
    cycles = PAUSES * (kernel.bytes_read + kernel.bytes_written)
    return replace(launch, operator=replace(kernel, sm_cycles=cycles, overlap=ONE_BY_ONE))


def sgd_state_bytes(parameter: ParameterTensor, implementation: Implementation) -> float:
    """Bytes of a parameter's momentum, in its own type."""
    buffered = implementation.optimizer == "sgd-momentum"
    return float(buffered * parameter.elements * DTYPE_BYTES[implementation.trained_dtype])
