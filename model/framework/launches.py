"""What a framework launches: operators on streams, in program order.

:class:`Launch` is what all lists of kernels are made of; the functions make launches of each kind of kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from joulecast.model.cluster.collectives import POINT_TO_POINT, TOKEN_EXCHANGES
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.implementation import Implementation
from joulecast.model.hashing import HashedOnce, hashed_once
from joulecast.model.kernels.multi_tensor import BLOCK_VALUES, MOST_BLOCKS
from joulecast.model.kernels.operators import DTYPE_BYTES, Collective, Gemm, Operator, Streaming

#: Cycles of an SM for a value that PyTorch copies into another order: queries and values out of a joint product, and
#: embeddings, in iterations of five models on an H200; rows of 1,024 values and more differ by 7 %.
REORDERED = 0.477
#: Exponent of the smooth maximum of instructions' and memory's time of PyTorch's kernels whose threads take values one
#: by one: a thread waits for its few loads before it goes on. Eleven such kernels at three clocks, 1.5 to 1.98 GHz, on
#: an H200 and on an H100, whose memory is slower by 0.7, are met within 3.3 % (rms) by 1.7 to 2.0, within 4.5 % by the
#: exponent of other kernels (`validate/recorded/single_values`) [+-0.3].
ONE_BY_ONE = 1.8
#: How much later PyTorch's element-wise kernels are over among others than where one follows itself [s]: the gap in
#: front is longer, and what they read and run is in no cache. By small ones of transformers' layers on an H200 and an
#: H100 (`validate/recorded/in_place`), which with 0.5 and 1.5 us are 7.3 and 6.9 % off (root mean square) in place of
#: 6.6 [+-0.4 us].
IN_PLACE_S = 1.0e-6


@hashed_once
@dataclass(frozen=True, slots=True)
class Launch(HashedOnce):
    """One operator put on a stream, in program order.

    Attributes
    ----------
    operator
        The kernel's work.
    stream
        ``compute`` or ``communication``. A communication starts once every compute launch listed before it has finished
        and every earlier communication has.
    waits
        On a communication: the compute stream stands still until it has finished (a synchronous collective). On a
        compute launch: it starts only after all communications listed before it have finished, but for the last
        ``outstanding`` ones.
    repeat
        Number of times the operator runs back to back (an optimizer's many equal launches).
    completes
        Name of the parameter whose gradient of this micro-batch is complete with this launch, else empty.
    share
        The launch is one of as many shares of a real one.
    free_sms
        SMs that a compute kernel leaves to communication, whether or not any runs beside it.
    prompt
        A communication whose blocks get their SMs before the compute launched behind it does.
    """

    operator: Operator
    stream: str = "compute"
    waits: bool = False
    outstanding: int = 0
    repeat: int = 1
    completes: str = ""
    prompt: bool = False
    share: int = 1
    free_sms: int = 0


def streaming(
    pattern: str,
    name: str,
    elements: float,
    *,
    reads: float = 1.0,
    writes: float = 1.0,
    dtype: str = "bf16",
    rows: int = 0,
    columns: int = 0,
    completes: str = "",
    sm_cycles: float = 0.0,
    activity: float = 1.0,
    chain_cycles: float = 0.0,
    late_s: float = 0.0,
    overlap: float = 0.0,
) -> Launch:
    """Launch of a memory-bound kernel that reads and writes ``reads`` and ``writes`` times ``elements`` values.

    Its data are taken to come from memory: in a training step hundreds of megabytes pass between two uses.
    """
    size = elements * DTYPE_BYTES[dtype]
    operator = Streaming(
        pattern,
        float(reads * size),
        float(writes * size),
        elements=float(elements),
        dtype=dtype,
        footprint_bytes=math.inf,
        rows=rows,
        columns=columns,
        name=name,
        sm_cycles=sm_cycles,
        activity=activity,
        chain_cycles=chain_cycles,
        late_s=late_s,
        overlap=overlap,
    )
    return Launch(operator, completes=completes)


def row_wise(
    pattern: str,
    name: str,
    rows: int,
    columns: int,
    *,
    reads: float = 1.0,
    writes: float = 1.0,
    dtype: str,
    completes: str = "",
) -> Launch:
    """Launch of such a kernel whose pace depends on the shape of its rows: a norm, a softmax, a sum, a gather."""
    return streaming(
        pattern,
        name,
        rows * columns,
        reads=reads,
        writes=writes,
        dtype=dtype,
        rows=rows,
        columns=columns,
        completes=completes,
    )


def elementwise(name: str, elements: float, *, writes: float = 1.0, completes: str = "") -> Launch:
    """Launch of a PyTorch kernel that takes each value in fp32 for itself, several at a time."""
    return streaming("unary", name, elements, writes=writes, dtype="fp32", completes=completes, late_s=IN_PLACE_S)


def of_rows(name: str, rows: float) -> Launch:
    """The same of a number of each row, which the kernel before has left in L2."""
    size = rows * DTYPE_BYTES["fp32"]
    kernel = Streaming("unary", size, size, rows, "fp32", footprint_bytes=2.0 * size, name=name, late_s=IN_PLACE_S)
    return Launch(kernel)


def issued(
    pattern: str,
    name: str,
    elements: float,
    sm_cycles: float,
    *,
    activity: float = 2.0,
    reads: float = 1.0,
    writes: float = 1.0,
    dtype: str = "bf16",
    chain_cycles: float = 0.0,
) -> Launch:
    """Launch of a kernel that takes so many cycles of SMs for its instructions, whatever it moves beside that.

    Such kernels of PyTorch's drew on an H200 1.6 to 2.4 times the SMs' power of kernels that wait for memory.
    """
    return streaming(
        pattern,
        name,
        elements,
        reads=reads,
        writes=writes,
        dtype=dtype,
        sm_cycles=sm_cycles,
        activity=activity,
        chain_cycles=chain_cycles,
    )


def one_by_one(
    pattern: str,
    name: str,
    elements: float,
    cycles: float,
    *,
    activity: float = 1.0,
    reads: float = 1.0,
    writes: float = 1.0,
    dtype: str = "bf16",
) -> Launch:
    """Launch of a PyTorch kernel whose threads take values one by one, each so many ``cycles`` of an SM."""
    return streaming(
        pattern,
        name,
        elements,
        reads=reads,
        writes=writes,
        dtype=dtype,
        sm_cycles=cycles * elements,
        activity=activity,
        overlap=ONE_BY_ONE,
        late_s=IN_PLACE_S if pattern == "unary" else 0.0,
    )


def reordered(name: str, elements: float, dtype: str) -> Launch:
    """Launch of PyTorch's copy of values into another order, which the SMs' instructions bind."""
    return one_by_one("copy", name, elements, REORDERED, dtype=dtype)


def linear_forward(name: str, tokens: int, outputs: int, inputs: int, dtype: str, *, bias: bool = False) -> Launch:
    """Launch of ``y[tokens, outputs] = x·Wᵀ``; a ``bias`` is added in its epilogue."""
    product = Gemm(tokens, outputs, inputs, dtype=dtype, footprint_bytes=math.inf, name=name, bias=bias)
    return Launch(product)


def input_gradient(name: str, tokens: int, outputs: int, inputs: int, dtype: str) -> Launch:
    """Launch of ``dx[tokens, inputs] = dy·W``."""
    return Launch(
        Gemm(tokens, inputs, outputs, dtype=dtype, layout="nn", footprint_bytes=math.inf, name=f"{name}.dgrad")
    )


def weight_gradient(name: str, tokens: int, outputs: int, inputs: int, dtype: str, completes: str = "") -> Launch:
    """Launch of ``dW[outputs, inputs] = dyᵀ·x``."""
    return Launch(
        Gemm(outputs, inputs, tokens, dtype=dtype, layout="nt", footprint_bytes=math.inf, name=f"{name}.wgrad"),
        completes=completes,
    )


def each_once(launches: Iterable[Launch], changed: Callable[[Launch], Launch]) -> tuple[Launch, ...]:
    """The launches, changed; those that are one object stay one, as equal layers share theirs."""
    given = tuple(launches)
    made = {key: changed(launch) for key, launch in {id(one): one for one in given}.items()}
    return tuple(made[id(one)] for one in given)


def added_up(launch: Launch, dtype: str) -> Launch:
    """A product that is added to what is there, in ``dtype``; empty: in its operands'."""
    if isinstance(launch.operator, Gemm):
        return replace(launch, operator=replace(launch.operator, out_dtype=dtype, accumulate=True))
    return launch


#: Communications that only move data: copy engines do these without SMs (NCCL 2.28 does between GPUs of one domain).
MOVES = ("all_gather", "all_to_all", *POINT_TO_POINT)


def column_sums(name: str, rows: int, columns: int, dtype: str, completes: str = "", groups: int = 1) -> Launch:
    """Launch of a gradient's sums over its rows, as of a bias, or over those of each of some groups."""
    return row_wise("bias_reduce", name, rows, columns, writes=groups / rows, dtype=dtype, completes=completes)


def norm_gradients(
    name: str, rows: int, columns: int, dtype: str, completes: str, reads: float = 2
) -> tuple[Launch, Launch]:
    """Launches of the gradient of a norm's input, which reads so many tensors, and of that of its weight."""
    return (
        row_wise("norm_backward", f"{name}.grad", rows, columns, reads=reads, dtype=dtype),
        row_wise(
            "gamma_backward",
            f"{name}.gamma.grad",
            rows,
            columns,
            reads=2,
            writes=1 / rows,
            dtype=dtype,
            completes=completes,
        ),
    )


def many_tensors(
    pattern: str, name: str, elements: float, reads: float, writes: float, dtype: str
) -> tuple[Launch, ...]:
    """Launches over all parameters at once, as PyTorch's ``foreach`` and fused optimizers make them.

    They share ``elements``: as many as fill a launch in each, and the rest in the last.
    """
    whole, rest = divmod(elements, MOST_BLOCKS * BLOCK_VALUES)
    return tuple(
        replace(streaming(pattern, name, size, reads=reads, writes=writes, dtype=dtype), repeat=count)
        for size, count in ((MOST_BLOCKS * BLOCK_VALUES, int(whole)), (rest, 1))
        if count and size >= 1
    )


def by_copy_engines(kind: str, fabric: Fabric | None, implementation: Implementation) -> bool:
    """Whether copy engines do a communication: it adds nothing up, and its GPUs lie in one domain of fast links."""
    return implementation.copy_engines and kind in MOVES and (fabric is None or fabric.domains == 1)


def collective(
    kind: str,
    name: str,
    size_bytes: float,
    implementation: Implementation,
    *,
    ranks: int | None = None,
    fabric: Fabric | None = None,
    waits: bool = True,
    rows: float = 0.0,
) -> Launch:
    """Launch of a collective among ``ranks``, by default the tensor-parallel ones, that fetches so many ``rows``."""
    near = ranks is not None or implementation.tensor_domains == 1
    operator = Collective(
        kind,
        size_bytes,
        implementation.tensor_parallel if ranks is None else ranks,
        ctas=(implementation.exchange_sms if kind in TOKEN_EXCHANGES else None) or implementation.ctas,
        fabric=fabric,
        dtype=implementation.dtype,
        name=name,
        threads=implementation.threads,
        copy_engine=near and by_copy_engines(kind, fabric, implementation),
        rows=rows,
    )
    return Launch(operator, stream="communication", waits=waits, prompt=implementation.comm_first)
