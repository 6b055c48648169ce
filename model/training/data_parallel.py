"""Gradient reduction over data-parallel ranks: after the backward, or overlapped with it in buckets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from joulecast.errors import InputError
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, streaming
from joulecast.model.kernels.operators import DTYPE_BYTES, Collective
from joulecast.model.training.parameters import (
    ParameterTensor,
    layer_parameters,
    parameters_of_stage,
    vision_parameters,
)

#: ``torch.nn.parallel.DistributedDataParallel``: the first bucket and the others, in bytes.
DDP_FIRST_BUCKET_BYTES = 1024 * 1024
DDP_BUCKET_BYTES = 25 * 1024 * 1024
#: Megatron's buckets of 40 million fp32 gradients, in bytes.
MEGATRON_BUCKET_BYTES = 4 * 40_000_000


def gradient_reduction(
    parameters: Sequence[ParameterTensor],
    implementation: Implementation,
    data_parallel: int,
    bucket_bytes: float | None = None,
    *,
    scatter: bool = False,
) -> tuple[Launch, ...]:
    """Reduction after the last backward, nothing overlapped.

    Parameters
    ----------
    bucket_bytes
        Gradients gathered in one all-reduce, in the order of the parameters: 0 one for each parameter, infinity one for
        all. By default what the framework does: ``pytorch-eager`` 0, ``megatron`` infinity.
    scatter
        Reduce-scatter in place of all-reduce: every rank keeps the gradients of its share of the optimizer's states.
    """
    if data_parallel == 1:
        return ()
    own = math.inf if implementation.megatron else 0.0
    limit = own if bucket_bytes is None else bucket_bytes
    width = DTYPE_BYTES[implementation.gradient_dtype]
    out: list[Launch] = []
    first, pending = "", 0
    for place, parameter in enumerate(parameters):
        first = first or parameter.name
        pending += parameter.elements
        if pending * width >= limit or place == len(parameters) - 1:
            name = "gradients" if math.isinf(limit) else first
            out += _reduced(name, pending, implementation, data_parallel, scatter, waits=True)
            first, pending = "", 0
    return tuple(out)


def overlapped_gradient_reduction(
    launches: Iterable[Launch],
    sizes: Mapping[str, int],
    implementation: Implementation,
    data_parallel: int,
    bucket_bytes: float | None = None,
    *,
    scatter: bool = False,
) -> tuple[Launch, ...]:
    """Last backward of an iteration with the reduction of full buckets beside it.

    Parameters
    ----------
    launches
        The backward of a stage's last micro-batch: head, layers (last to first), embedding.
    sizes
        Elements of each parameter that a launch can complete, from :func:`gradient_sizes`.
    bucket_bytes
        When a bucket is full; by default the framework's own size. DDP's first bucket is no larger than 1 MiB.
    scatter
        As in :func:`gradient_reduction`.

    Returns
    -------
    tuple of Launch
        The launches, and between them: in eager mode a division of each finished gradient by the number of replicas, as
        DDP does when it marks a gradient ready; an asynchronous reduction where a bucket is full; and a final one that
        the compute stream waits for. The buckets share the communication stream with the layers' own collectives.
    """
    if data_parallel == 1:
        return tuple(launches)
    dtype, eager = implementation.gradient_dtype, not implementation.megatron
    limit, full = _bucket_limits(implementation, bucket_bytes)
    out: list[Launch] = []
    pending, bucket = 0, 0
    place: list[int] = []  # of each of the layers' communications on a stream that they share with the buckets
    for launch in launches:
        if launch.stream == "communication":
            place.append(len(place) + bucket)
        elif launch.waits:
            launch = _past_buckets(launch, place, bucket)
        out.append(launch)
        if not launch.completes:
            continue
        try:
            elements = sizes[launch.completes]
        except KeyError:
            raise InputError(f"no size is known for the gradient of {launch.completes!r}", key="sizes") from None
        if eager:
            out.append(streaming("unary", f"{launch.completes}.divide", elements, dtype=dtype))
        pending += elements
        if pending * DTYPE_BYTES[dtype] >= limit:
            out += _reduced(f"bucket{bucket}", pending, implementation, data_parallel, scatter, waits=False)
            pending, bucket = 0, bucket + 1
            limit = full
    if pending:
        out += _reduced(f"bucket{bucket}", pending, implementation, data_parallel, scatter, waits=False)
    return _wait_for_last(out)


def _reduced(
    name: str, elements: int, implementation: Implementation, gpus: int, scatter: bool, *, waits: bool
) -> tuple[Launch, ...]:
    """A reduction; in front of it Megatron's division by the replicas, where the collective does not average."""
    kind, dtype = "reduce_scatter" if scatter else "all_reduce", implementation.gradient_dtype
    size = float(elements * DTYPE_BYTES[dtype])
    operator = among_replicas(kind, size, gpus, dtype, f"{name}.{kind}", implementation)
    reduction = Launch(operator, stream="communication", waits=waits)
    if not implementation.megatron or implementation.averaged:
        return (reduction,)
    return (streaming("unary", f"{name}.divide", elements, dtype=dtype), reduction)


def among_replicas(kind: str, size: float, gpus: int, dtype: str, name: str, run: Implementation) -> Collective:
    """A communication of parameters or gradients, held to the blocks that the plan says."""
    return Collective(kind, size, gpus, ctas=run.ctas, dtype=dtype, name=name, threads=run.threads)


def _bucket_limits(implementation: Implementation, bucket_bytes: float | None) -> tuple[float, float]:
    """When the first bucket is full, and when the others are [bytes]."""
    megatron = implementation.megatron
    full = float(MEGATRON_BUCKET_BYTES if megatron else DDP_BUCKET_BYTES) if bucket_bytes is None else bucket_bytes
    return (full if megatron else min(full, DDP_FIRST_BUCKET_BYTES)), full


def _past_buckets(launch: Launch, place: Sequence[int], buckets: int) -> Launch:
    """A launch that waits for its layer's communication, but not for the ``buckets`` launched since.

    ``place`` has the position of each of the layers' communications on the stream that they share with the buckets.
    """
    awaited = len(place) - 1 - launch.outstanding
    outstanding = len(place) + buckets - 1 - (place[awaited] if awaited >= 0 else -1)
    return launch if outstanding == launch.outstanding else replace(launch, outstanding=outstanding)


def gradient_sizes(config: ModelConfig, implementation: Implementation) -> dict[str, int]:
    """Elements on one rank of every parameter name that :attr:`Launch.completes` can take."""
    outer = parameters_of_stage(config, implementation, 0, first=True, last=True)
    head = parameters_of_stage(config, implementation, 0, first=False, last=True)
    layers = (p for kind in config.kinds for p in layer_parameters(kind, implementation))
    vision = vision_parameters(config, implementation, numbered=False)
    return {p.name: p.elements for p in (*outer, *head, *layers, *vision)}


def gathered_bytes(parameters: Sequence[ParameterTensor], implementation: Implementation, dtype: str = "") -> float:
    """Bytes of parameters in ``dtype``, by default that of the computation; of linear layers in FP8 if kept so."""
    kept, width = implementation.narrow, DTYPE_BYTES[dtype or implementation.dtype]
    narrow = kept.value_bytes if kept is not None and kept.parameters else width
    return float(sum(p.elements * (narrow if p.linear else width) for p in parameters))


def distributed_optimizer_gather(
    parameters: Sequence[ParameterTensor], implementation: Implementation, data_parallel: int
) -> tuple[Launch, ...]:
    """All-gather of the updated parameters where the optimizer's states are split over the data-parallel ranks."""
    if data_parallel == 1:
        return ()
    dtype = implementation.trained_dtype
    size = gathered_bytes(parameters, implementation, dtype)
    operator = among_replicas("all_gather", size, data_parallel, dtype, "parameters.all_gather", implementation)
    return (Launch(operator, stream="communication", waits=True),)


def is_bucket(launch: Launch) -> bool:
    """Whether a launch reduces a bucket of gradients."""
    return launch.stream == "communication" and launch.operator.name.startswith("bucket")


def _wait_for_last(launches: list[Launch]) -> tuple[Launch, ...]:
    """Let the compute stream wait for the last bucket; it follows all other communications on its stream."""
    for i in range(len(launches) - 1, -1, -1):
        if launches[i].stream == "communication":
            launches[i] = replace(launches[i], waits=True)
            break
    return tuple(launches)
