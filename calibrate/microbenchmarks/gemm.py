"""Matrix products by the vendor's library: C[M, N] = A[M, K] · B[N, K]ᵀ in every layout of a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joulecast.calibrate.microbenchmarks.kernel import Bench, Kernel, allocating_kernel
from joulecast.errors import MeasurementError

#: How PyTorch is told what to do with 32-bit products.
PRECISION = {"tf32": "high", "fp32": "highest"}


def build(bench: Bench) -> Kernel:
    """The product of a row: ``M N K dtype data``, and where given ``layout batch bias``."""
    dtype = str(bench.row.get("dtype") or "bf16")
    if dtype == "fp8":
        return _scaled(bench)
    if int(bench.row.get("batch") or 1) > 1:
        return _batched(bench)
    torch = bench.torch
    left, right = _operands(bench)
    out = bench.empty(bench.whole("M"), bench.whole("N"))
    if bench.row.get("bias"):
        bias = bench.values(bench.whole("N"))

        def once() -> None:
            torch.addmm(bias, left, right, out=out)
    else:

        def once() -> None:
            torch.mm(left, right, out=out)

    return Kernel(_with_precision(torch, dtype, once), result=lambda: out)


def square(bench: Bench, size: int, data: str) -> Kernel:
    """A square product of given values in bf16 or fp16, as the companion or part of other benchmarks."""
    torch = bench.torch
    dtype = bench.dtype("fp16" if bench.row.get("dtype") == "fp16" else "bf16")
    left, right = (bench.values(size, size, dtype=dtype, data=data) for _ in range(2))
    out = bench.empty(size, size, dtype=dtype)
    return Kernel(lambda: torch.mm(left, right.t(), out=out), result=lambda: out)


def _operands(bench: Bench, *batch: int) -> tuple[Any, Any]:
    """A as (M, K) and B as (K, N), of each product of a ``batch``, stored as the layout says.

    ``tn``: both with K innermost, as activations and a weight; ``nn``: B with N innermost, as for the gradient of the
    input; ``nt``: A with M and B with N innermost, as for the gradient of a weight.
    """
    m, n, k = bench.whole("M"), bench.whole("N"), bench.whole("K")
    layout = str(bench.row.get("layout") or "tn")
    if layout == "tn":
        return bench.values(*batch, m, k), bench.values(*batch, n, k).transpose(-1, -2)
    if layout == "nn":
        return bench.values(*batch, m, k), bench.values(*batch, k, n)
    if layout == "nt":
        return bench.values(*batch, k, m).transpose(-1, -2), bench.values(*batch, k, n)
    raise MeasurementError(f"{bench.name}: unknown layout {layout!r}", key="layout", remedy="Known: tn, nn, nt.")


def _batched(bench: Bench) -> Kernel:
    torch, batch = bench.torch, bench.whole("batch")
    left, right = _operands(bench, batch)
    out = bench.empty(batch, bench.whole("M"), bench.whole("N"))
    once = _with_precision(torch, str(bench.row.get("dtype") or "bf16"), lambda: torch.bmm(left, right, out=out))
    return Kernel(once, result=lambda: out)


def _scaled(bench: Bench) -> Kernel:
    """8-bit floats (e4m3) with one scale for each operand, result in bf16."""
    torch = bench.torch
    m, n, k = bench.whole("M"), bench.whole("N"), bench.whole("K")
    if str(bench.row.get("layout") or "tn") != "tn":
        raise MeasurementError(f"{bench.name}: products of fp8 exist in layout tn only", key="layout")
    left, right = bench.values(m, k), bench.values(n, k).t()
    one = torch.ones((), device=bench.device, dtype=torch.float32)
    return allocating_kernel(lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16))


def _with_precision(torch: Any, dtype: str, once: Callable[[], Any]) -> Callable[[], Any]:
    """Launch 32-bit products as the data type says, and leave PyTorch's own setting as it was."""
    precision = PRECISION.get(dtype)
    if precision is None:
        return once

    def inside() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            once()
        finally:
            torch.set_float32_matmul_precision(before)

    return inside
