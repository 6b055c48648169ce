"""Steps of bitsandbytes' AdamW and Lion: one kernel for each parameter, and the host waits for every one of them.

Moments are in fp32, or in 8 bits with a scale in fp32 for each block of 256 values. Parameters of fewer than 4,096
values keep them in fp32, and so do embeddings where Hugging Face's Trainer makes the optimizer. Kernels of 8 bits take
a block of 256 threads for as many values, each of which searches a table of 256 numbers for its new moments: they are
bound by their instructions, not by memory. Kernels of fp32 moments take a block of 1,024 threads for 4,096 values,
which load one tensor after the other. Behind each launch ``torch.cuda.synchronize`` is called, so that the GPU waits
for all that Python does between two of them:

    t = wait + t0 + ((max(blocks·c_block / SMs, c_alone) / f)^q + (bytes / (φ·B))^q)^(1/q)

Source: ``csrc/cuda/optimizers.cu`` and ``optim/optimizer.py`` of bitsandbytes 0.50, ``trainer.py`` of transformers
5.17.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.model.training.parameters import ParameterTensor

#: Values that share a scale of 8 bits and a block of threads, those of a block with fp32 moments, and the least values
#: of a parameter whose moments are in 8 bits.
NARROW_BLOCK, WIDE_BLOCK, LEAST_NARROW = 256, 4096, 4096
#: Parameters that Hugging Face's Trainer keeps fp32 moments of: those of ``nn.Embedding``.
EMBEDDINGS = ("embedding.weight", "positions.weight")


@dataclass(frozen=True, slots=True)
class Kind:
    """One of these optimizers.

    Attributes
    ----------
    moments
        Moments of a parameter: two of AdamW, one of Lion.
    narrow
        Whether they are kept in 8 bits.
    """

    moments: int
    narrow: bool


#: The optimizers, by what a plan calls them.
KINDS = {
    "adamw-8bit": Kind(2, narrow=True),
    "adamw-32bit": Kind(2, narrow=False),
    "lion-8bit": Kind(1, narrow=True),
    "lion-32bit": Kind(1, narrow=False),
}
#: Cycles of an SM for a block by number of moments, with as many blocks on it as its registers hold: four with two
#: moments in 8 bits, five with one; of fp32 one. By kernels of 268 million and of 1.2 billion values on an H100.
NARROW_CYCLES, WIDE_CYCLES = {2: 1832.0, 1: 1091.0}, {2: 8045.0, 1: 6800.0}
#: Cycles that a block takes alone, by adapters of 14,000 to 230,000 values there.
NARROW_ALONE, WIDE_ALONE = {2: 6700.0, 1: 5000.0}, {2: 8045.0, 1: 6800.0}
#: Exponent of the smooth maximum of a block's waits and the memory's time.
NARROW_OVERLAP, WIDE_OVERLAP = 0.0, 1.65
#: Power of the SMs over that of kernels that wait for memory.
NARROW_POWER, WIDE_POWER = 1.7, 1.0


def bitsandbytes_step(
    parameters: Sequence[ParameterTensor], implementation: Implementation, shards: int = 1
) -> tuple[Launch, ...]:
    """Launches of a step; ``shards`` is 1, as no rank holds a part of a parameter."""
    sizes = Counter((p.elements, _narrow(p, implementation)) for p in parameters)
    return tuple(
        replace(_kernel(elements, implementation, narrow=narrow), repeat=count)
        for (elements, narrow), count in sizes.items()
    )


def _narrow(parameter: ParameterTensor, implementation: Implementation) -> bool:
    """Whether a parameter's moments are in 8 bits."""
    wide = implementation.wide_embedding_states and parameter.name in EMBEDDINGS
    return KINDS[implementation.optimizer].narrow and parameter.elements >= LEAST_NARROW and not wide


def _kernel(elements: int, implementation: Implementation, *, narrow: bool) -> Launch:
    """Step of one parameter: it reads gradient, parameter and moments and writes the last two."""
    moments, dtype = KINDS[implementation.optimizer].moments, implementation.trained_dtype
    size = DTYPE_BYTES[dtype]
    states = _moment_bytes(elements, moments, narrow=narrow) / elements
    block, cycles, alone, overlap, power = (
        (NARROW_BLOCK, NARROW_CYCLES[moments], NARROW_ALONE[moments], NARROW_OVERLAP, NARROW_POWER)
        if narrow
        else (WIDE_BLOCK, WIDE_CYCLES[moments], WIDE_ALONE[moments], WIDE_OVERLAP, WIDE_POWER)
    )
    return streaming(
        "unary",
        f"optimizer.{implementation.optimizer}" if narrow else f"optimizer.{implementation.optimizer}.wide",
        elements,
        reads=2.0 + states / size,
        writes=1.0 + states / size,
        dtype=dtype,
        sm_cycles=-(-elements // block) * cycles,
        chain_cycles=alone,
        overlap=overlap,
        activity=power,
        late_s=implementation.step_wait_s,
    )


def _moment_bytes(elements: int, moments: int, *, narrow: bool) -> float:
    """Bytes of a parameter's moments with the scales of their blocks.

    >>> _moment_bytes(4097, 2, narrow=True)
    8330.0
    """
    if not narrow:
        return 4.0 * moments * elements
    return moments * (elements + 4.0 * -(-elements // NARROW_BLOCK))


def bitsandbytes_state_bytes(parameter: ParameterTensor, implementation: Implementation) -> float:
    """Bytes of a parameter's moments; the table of 1,024 bytes that all of a kind share is left out."""
    narrow = _narrow(parameter, implementation)
    return _moment_bytes(parameter.elements, KINDS[implementation.optimizer].moments, narrow=narrow)
