"""Kernels that move data through memory or L2: copies, exponentials, reductions, a fused step."""

from __future__ import annotations

from collections.abc import Callable

from joulecast.calibrate.microbenchmarks.kernel import Bench, Kernel, allocating_kernel, copy_kernel, kernel_into
from joulecast.calibrate.microbenchmarks.row_forms import MEBI
from joulecast.errors import MeasurementError


def build(bench: Bench) -> Kernel:
    """The kernel of a row whose ``op`` names it; buffers follow ``shape``, ``mb``, ``params`` or ``M K``."""
    maker = _MAKERS.get(str(bench.row.get("op")))
    if maker is None:
        raise MeasurementError(f"{bench.name}: no streaming kernel {bench.row.get('op')!r}", key="op")
    return maker(bench)


def _shape(bench: Bench) -> tuple[int, ...]:
    """The row's ``shape``, or a flat buffer of ``mb`` MiB."""
    sides = bench.row.get("shape")
    if sides is not None:
        return tuple(int(side) for side in sides)
    size = bench.row.get("mb")
    if not isinstance(size, int | float) or size <= 0:
        raise MeasurementError(f"{bench.name}: neither shape nor mb", key="shape")
    return (int(size * MEBI) // bench.dtype().itemsize,)


def _copy(bench: Bench) -> Kernel:
    source = bench.values(*_shape(bench))
    return copy_kernel(source, bench.torch.empty_like(source))


def _fill(bench: Bench) -> Kernel:
    out = bench.empty(*_shape(bench))
    return Kernel(lambda: out.fill_(1.0), result=lambda: out)


def _reduce_min(bench: Bench) -> Kernel:
    source = bench.values(*_shape(bench))
    out = bench.empty(*source.shape[:-1])
    return Kernel(lambda: bench.torch.amin(source, dim=-1, out=out), result=lambda: out)


def _gemv(bench: Bench) -> Kernel:
    matrix, vector = bench.values(bench.whole("M"), bench.whole("K")), bench.values(bench.whole("K"))
    out = bench.empty(bench.whole("M"))
    return Kernel(lambda: bench.torch.mv(matrix, vector, out=out), result=lambda: out)


def adamw_step(bench: Bench, elements: int, tensors: int) -> Kernel:
    """One fused AdamW step on ``elements`` parameters in ``tensors`` equal tensors of the row's data type.

    It reads parameters, gradients and two moments, and writes all but the gradients.
    """
    torch = bench.torch
    parameters = []
    for _ in range(tensors):
        parameter = bench.values(max(1, elements // tensors)).requires_grad_(True)
        parameter.grad = bench.values(max(1, elements // tensors))
        parameters.append(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    return Kernel(optimizer.step, capture=False, result=lambda: parameters)


_MAKERS: dict[str, Callable[[Bench], Kernel]] = {
    "copy": _copy,
    "exp": lambda bench: kernel_into(bench, bench.torch.exp, bench.values(*_shape(bench))),
    "fill": _fill,
    "sum": lambda bench: allocating_kernel(bench.values(*_shape(bench)).sum),
    "reduce_min": _reduce_min,
    "gemv": _gemv,
    "adamw": lambda bench: adamw_step(bench, bench.whole("params"), 1),
}
