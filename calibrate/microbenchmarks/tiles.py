"""Kernels with explicit tiles, in Triton: matrix product, attention, norms, softmax, exponentials, row minima."""

from __future__ import annotations

from joulecast.calibrate.microbenchmarks import tile_attention, tile_kernels
from joulecast.calibrate.microbenchmarks.kernel import Bench, Kernel
from joulecast.calibrate.microbenchmarks.tile_kernels import GROUP
from joulecast.calibrate.microbenchmarks.triton_kernels import compiled
from joulecast.errors import MeasurementError

EPSILON = 1e-6
#: Weights of every column, by the pattern of whole rows.
WEIGHTS = {"rmsnorm": 1, "layernorm": 2, "softmax": 0}


def build(bench: Bench) -> Kernel:
    """The kernel of a row whose ``op`` begins with ``tile_``."""
    makers = {
        "tile_gemm": _gemm,
        "tile_attention": tile_attention.build,
        "tile_rmsnorm": _whole_rows,
        "tile_layernorm": _whole_rows,
        "tile_softmax": _whole_rows,
        "tile_exp": _exponential,
        "tile_reduce_min": _reduce_min,
    }
    return makers[str(bench.row["op"])](bench)


def _divides(bench: Bench, whole: str, part: str) -> int:
    """How often ``part`` fits into ``whole``; tiles have no masks along these sides."""
    size, tile = bench.whole(whole), bench.whole(part)
    if size % tile:
        raise MeasurementError(f"{bench.name}: {whole} = {size} is not a multiple of {part} = {tile}", key=part)
    return size // tile


def _gemm(bench: Bench) -> Kernel:
    kernel = compiled(tile_kernels.matmul)
    m, n, k = bench.whole("M"), bench.whole("N"), bench.whole("K")
    tile_m, tile_n, tile_k = bench.whole("tile_m"), bench.whole("tile_n"), bench.whole("tile_k")
    _divides(bench, "K", "tile_k")
    left, right, out = bench.values(m, k), bench.values(k, n), bench.empty(m, n)
    grid = (-(-m // tile_m) * -(-n // tile_n),)
    launch, warps, stages = kernel[grid], bench.whole("warps"), bench.whole("stages")

    def once() -> None:
        launch(left, right, out, m, n, k, tile_m, tile_n, tile_k, GROUP, num_warps=warps, num_stages=stages)

    return Kernel(once, result=lambda: out)


def _whole_rows(bench: Bench) -> Kernel:
    """Norms, with their weights, and softmax: a program takes whole rows."""
    pattern = str(bench.row["op"]).removeprefix("tile_")
    columns, tile_rows = bench.whole("hidden"), bench.whole("tile_rows")
    source = bench.values(bench.whole("rows"), columns)
    weights = [bench.values(columns) for _ in range(WEIGHTS[pattern])]
    constants = (columns, tile_rows, *([EPSILON] if weights else []))
    out = bench.torch.empty_like(source)
    launch = compiled(getattr(tile_kernels, pattern))[(_divides(bench, "rows", "tile_rows"),)]
    warps = bench.whole("warps")
    return Kernel(lambda: launch(source, *weights, out, *constants, num_warps=warps), result=lambda: out)


def _exponential(bench: Bench) -> Kernel:
    rows, tile_columns = bench.whole("rows"), bench.whole("tile_cols")
    source = bench.values(rows, bench.whole("cols"))
    out = bench.torch.empty_like(source)
    grid = (rows * _divides(bench, "cols", "tile_cols"),)
    launch, warps = compiled(tile_kernels.exponential)[grid], bench.whole("warps")
    return Kernel(lambda: launch(source, out, tile_columns, num_warps=warps), result=lambda: out)


def _reduce_min(bench: Bench) -> Kernel:
    kernel = compiled(tile_kernels.reduce_min)
    columns, tile_rows, tile_columns = bench.whole("cols"), bench.whole("tile_rows"), bench.whole("tile_cols")
    _divides(bench, "cols", "tile_cols")
    source, out = bench.values(bench.whole("rows"), columns), bench.empty(bench.whole("rows"))
    launch, warps = kernel[(_divides(bench, "rows", "tile_rows"),)], bench.whole("warps")
    return Kernel(lambda: launch(source, out, columns, tile_rows, tile_columns, num_warps=warps), result=lambda: out)
