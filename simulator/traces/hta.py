"""A folder of traces that Holistic Trace Analysis reads, one file for each followed GPU.

The events are those of PyTorch's profiler: ``X`` events of category ``kernel`` with device, stream and correlation, and
for collectives what is sent among how many. Times are whole microseconds, rounded at both ends alike: the analysis
would round fractions apart. It counts from a rank's first kernel to its last, so an empty one marks either end of the
iteration. See https://hta.readthedocs.io.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joulecast.files import write_folder
from joulecast.model.kernels.operators import DTYPE_BYTES, Collective
from joulecast.simulator.events.segments import COMMUNICATION
from joulecast.simulator.instructions.kernel_segments import MARKER
from joulecast.simulator.traces.kernel_timeline import KernelTimeline

#: Kinds of collectives: what NCCL's kernel is called, and PyTorch's collective.
COLLECTIVES = {
    "all_reduce": ("AllReduce_Sum", "allreduce"),
    "all_gather": ("AllGather", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter_Sum", "_reduce_scatter_base"),
    "all_to_all": ("SendRecv", "all_to_allv"),
    "token_exchange": ("SendRecv", "all_to_allv"),
    "hybrid_exchange": ("SendRecv", "all_to_allv"),
    "broadcast": ("Broadcast", "broadcast"),
    "send_recv": ("SendRecv", "send"),
}
#: Data types as PyTorch spells them.
DTYPES = {
    "bf16": "BFloat16",
    "fp16": "Half",
    "fp32": "Float",
    "tf32": "Float",
    "fp64": "Double",
    "fp8": "Float8_e4m3fn",
    "fp4": "Float4_e2m1fn_x2",
}
#: A rank that waits for its group does so within a kernel of NCCL.
WAITING_KERNEL = "ncclDevKernel_Wait"
#: Stream numbers as PyTorch uses them.
STREAMS = {0: 7, 1: 20}

Event = dict[str, Any]


def write_hta_folder(path: str | os.PathLike[str], iteration: KernelTimeline, gpu: str) -> Path:
    """Write a new folder with ``rank0.json`` and so on: one GPU of each pipeline stage, with its global rank.

    Parameters
    ----------
    gpu
        Name of the GPU.

    Raises
    ------
    InputError
        Something other than an empty folder stands there already, or it cannot be written; nothing is left behind.
    """
    target = Path(path)
    each = iteration.plan.tp * iteration.plan.replicas
    write_folder(
        target,
        {f"rank{s * each}.json": _text(iteration, s, s * each, gpu) for s in range(len(iteration.timelines))},
    )
    return target


def _text(iteration: KernelTimeline, stage: int, rank: int, gpu: str) -> str:
    """A rank's file; the analysis looks for the rank line by line, and expects it early."""
    world = {"backend": "nccl", "rank": rank, "world_size": iteration.plan.cluster.gpus}
    head = {"schemaVersion": 1, "distributedInfo": world, "deviceProperties": [{"id": 0, "name": gpu}]}
    events = ",\n".join(map(json.dumps, rank_events(iteration, stage)))
    return f'{json.dumps(head)[:-1]}, "traceEvents": [\n{events}\n]}}\n'


def rank_events(iteration: KernelTimeline, stage: int) -> Iterator[Event]:
    """Kernels of one GPU of a stage, in the order of their streams."""
    timeline, operators = iteration.timelines[stage], iteration.operators
    known = [_names(operator, name) for operator, name in zip(operators, timeline.names, strict=True)]
    yield _kernel("iteration begins", 0, 0, STREAMS[0], {})
    rows = zip(
        timeline.start_ns.tolist(), timeline.end_ns.tolist(), timeline.stream.tolist(), timeline.name.tolist(),
        timeline.instruction.tolist(), strict=True,
    )  # fmt: skip
    for start, end, stream, name, instruction in rows:
        kernel, arguments = known[name]
        begin = _us(start)
        where = STREAMS[COMMUNICATION if kernel == WAITING_KERNEL else stream]
        yield _kernel(
            kernel, begin, _us(end) - begin, where, arguments | {"instruction": timeline.instruction_names[instruction]}
        )
    yield _kernel("iteration ends", _us(timeline.finish_ns), 0, STREAMS[0], {})


def _kernel(name: str, start_us: int, duration_us: int, stream: int, arguments: dict[str, Any]) -> Event:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start_us,
        "dur": duration_us,
        "args": {"device": 0, "stream": stream, "correlation": 0, **arguments},
    }


def _us(time_ns: int) -> int:
    return (time_ns + 500) // 1000


def _names(operator: object, name: str) -> tuple[str, dict[str, Any]]:
    """A kernel's name in PyTorch's traces, and what it says of a collective."""
    if name == MARKER:
        return WAITING_KERNEL, {}
    if not isinstance(operator, Collective):
        return name, {}
    kernel, collective = COLLECTIVES[operator.kind]
    elements = operator.bytes / DTYPE_BYTES[operator.dtype]
    share = {"all_gather": (operator.gpus, 1), "reduce_scatter": (1, operator.gpus)}.get(operator.kind, (1, 1))
    return f"ncclDevKernel_{kernel}_{operator.dtype}_{operator.algorithm.upper()}_LL({name})", {
        "Collective name": collective,
        "In msg nelems": round(elements / share[0]),
        "Out msg nelems": round(elements / share[1]),
        "Group size": operator.gpus,
        "dtype": DTYPES[operator.dtype],
    }
