"""Kernels of a user's own in place of a library's: by how much their times and energies differ.

A description may have, of a kind of kernel, factors on the forecast time and on the forecast dynamic energy at a few
amounts of work ``w``. Between them the logarithm of a factor is linear in ``ln w``, beyond them the nearest holds:

    t' = r(w) · t(f)        E' = P_idle(f) · t' + e(w) · (E(f) - P_idle(f) · t)

at every clock ``f``, so that clocks, limits and contention act as on any kernel. Where no energy was measured the work
takes what it took, and the SMs draw their power for the new time. ``joulecast calibrate --kernels`` writes the factors,
as parameters ``own.<kind>.time.<i>.factor`` of the table ``[kernel]``, and how many kinds there are as ``own.kinds``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Attention, Gemm, Operator, Streaming

#: How names of parameters of the table ``[kernel]`` begin that tell of own kernels.
OWN = "own."
#: Parameter that counts the kinds of own kernels; a description without it has none.
KINDS = f"{OWN}kinds"
#: What a kind may have factors on.
QUANTITIES = ("time", "energy")
#: Columns of a kernel's costs that are times, or cycles, and those that are dynamic energy.
TIMES = ("fixed_s", "wait_s", "core_cycles", "memory_s", "link_s")
ENERGIES = ("tensor_j", "vector_j", "onchip_j", "hbm_j", "link_j")


def kind_of(operator: Operator) -> str:
    """Kind of a kernel: what it does and in which type, whatever its shape; empty for what cannot be a user's own.

    Examples
    --------
    >>> kind_of(Gemm(64, 64, 64, layout="nt")), kind_of(Streaming("rmsnorm", 1e6, 1e6))
    ('gemm.bf16.nt', 'streaming.rmsnorm.bf16')
    """
    if isinstance(operator, Gemm):
        ways = [way for way in ("grouped", "separate", "block_scaled", "row_scaled") if getattr(operator, way)]
        return ".".join(["tile_gemm" if operator.tile else "gemm", operator.dtype, operator.layout, *ways])
    if isinstance(operator, Attention):
        backend = "tile" if operator.tile else operator.backend
        return f"attention.{backend}.{operator.direction}.{operator.dtype}"
    return f"streaming.{operator.pattern}.{operator.dtype}" if isinstance(operator, Streaming) else ""


def work_of(operator: Operator) -> float:
    """Amount of work by which kernels of a kind differ: operations of products and attention, bytes of others."""
    if isinstance(operator, Streaming):
        return operator.bytes_read + operator.bytes_written
    return operator.flops if isinstance(operator, Gemm | Attention) else 0.0


def own_kinds(gpu: GpuModel) -> list[str]:
    """Kinds of kernels that the GPU has of its own."""
    if not gpu.get(f"kernel.{KINDS}", 0.0):  # asked in every lowering
        return []
    begin, end = f"kernel.{OWN}", ".time.rows"
    return [n[len(begin) : -len(end)] for n in gpu.parameters if n.startswith(begin) and n.endswith(end)]


def own_kind(operator: Operator, kinds: Sequence[str]) -> str:
    """Which of a GPU's own kinds a kernel is of; empty where it is the library's.

    A kind ``<kind>.of.<name>`` has those kernels alone whose names in a plan begin so; the longest such name counts.
    """
    kind = kind_of(operator)
    mine = [one for one in kinds if one == kind or one.startswith(f"{kind}.of.")]
    return max((one for one in mine if operator.name.startswith(one[len(kind) + 4 :])), key=len, default="")


def knots(kind: str, quantity: str, gpu: GpuModel) -> tuple[Array, Array]:
    """Amounts of work of a kind, ascending, and its factors on time or energy there; none where not measured."""
    key = f"kernel.{OWN}{kind}.{quantity}"
    places = range(1, 1 + int(gpu.get(f"{key}.rows", 0)))
    work, factor = (np.array([gpu[f"{key}.{i}.{name}"] for i in places]) for name in ("work", "factor"))
    return work, gpu.get(f"{key}.all", 1.0) * factor


def interpolated(work: float, at: Array, factors: Array) -> float:
    """Factor at an amount of work, from those at others."""
    return float(np.exp(np.interp(np.log(max(work, 1.0)), np.log(at), np.log(factors))))


def scale_own(
    columns: dict[str, Array],
    operators: Sequence[Operator],
    rows: Int,
    kinds: Sequence[str],
    gpu: GpuModel,
) -> None:
    """Scale the costs of those kernels, whose ``rows`` of the columns are given, that are of the GPU's own kinds."""
    found = [own_kind(operator, kinds) for operator in operators]
    told = {(kind, quantity): knots(kind, quantity, gpu) for kind in set(found) - {""} for quantity in QUANTITIES}
    for row, operator, kind in zip(rows, operators, found, strict=True):
        if not kind:
            continue
        slower = interpolated(work_of(operator), *told[kind, "time"])
        for name in TIMES:
            columns[name][row] *= slower
        columns["tensor_use"][row] = min(columns["tensor_use"][row] / slower, 1.0)
        at, factors = told[kind, "energy"]
        if len(at):
            dearer = interpolated(work_of(operator), at, factors)
            columns["activity"][row] *= dearer / slower
            for name in ENERGIES:
                columns[name][row] *= dearer
