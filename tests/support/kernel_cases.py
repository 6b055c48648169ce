"""Kernels of every kind with every option."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import joulecast as jc
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.kernels.delta_work import DELTA_WORK
from joulecast.model.kernels.documents import Documents
from joulecast.model.kernels.operators import Operator, Scan
from joulecast.model.kernels.scan_work import WORK

ODD = (1, 1000, 4096, 129, 8192, 64, 500, 16384, 24, 2560, 7000, 256)


def mixed(number: int, **options: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    """So many combinations of options, each walked through at a pace of its own."""
    for i in islice(count(), number):
        yield {
            name: some[(i * (2 * place + 1) + i // len(some)) % len(some)]
            for place, (name, some) in enumerate(options.items())
        }


def products() -> Iterator[Operator]:
    sizes = {"m": ODD, "n": ODD[3:], "k": ODD[1:9]}
    kinds = {
        "dtype": ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8"), "layout": ("tn", "nn", "nt"), "batch": (1, 1, 8, 3),
        "data": ("randn", "zeros", "randn", "pow2", "sparse0.75"), "out_dtype": ("", "", "fp32"),
        "accumulate": (False, True), "footprint_bytes": (None, 1e6, 3.2e7, float("inf")), "parts": (1, 1, 1, 4),
    }  # fmt: skip
    yield from (jc.Gemm(**one) for one in mixed(60, **sizes, **kinds))
    for blocked, apart in ((True, False), (False, True), (True, True)):
        yield jc.Gemm(3000, 4096, 2048, "fp8", batch=6, block_scaled=blocked, separate=apart)
    yield jc.Gemm(3000, 4096, 2048, layout="nt", batch=6, grouped=True)
    yield jc.Gemm(3000, 4096, 2048, "fp8", out_dtype="bf16", fast_accumulation=True)


def tiled_products() -> Iterator[Operator]:
    tiles = {
        "m": (128, 64, 256, 32, 16), "n": (128, 256, 64, 32), "k": (64, 32, 128), "warps": (8, 4, 16, 2, 1),
        "stages": (3, 2, 4, 1), "split_k": (1, 1, 4, 2), "staged": (True, True, False),
    }  # fmt: skip
    sizes = {"m": (4096, 1000, 300), "n": (4096, 8192, 129), "k": (4096, 1000, 16384)}
    kinds = {"dtype": ("bf16", "fp16", "fp8", "tf32"), "batch": (1, 1, 5), "data": ("randn", "zeros"),
             "out_dtype": ("", "fp32"), "accumulate": (False, True, False)}  # fmt: skip
    for tile, work in zip(mixed(60, **tiles), mixed(60, **sizes, **kinds), strict=True):
        yield jc.Gemm(**work, tile=jc.Tile(**tile))
    for m in (300, 3000):  # an SM of which has a block or two, and waits for its loads
        yield jc.Gemm(m, 129, 4096, tile=jc.Tile(64, 64, 32, 4, 4))


def attention() -> Iterator[Operator]:
    sizes = {
        "batch": (1, 2, 9), "heads": (32, 8, 3), "sequence": (4096, 1000, 128, 16384), "causal": (True, False),
        "head_dim": (128, 64, 96, 192, 256), "kv_sequence": (0, 0, 8192), "dtype": ("bf16", "bf16", "bf16", "fp8"),
    }  # fmt: skip
    backends = ("cudnn", "flash-attention-1", "flash-attention-2", "flash-attention-3")
    for direction in ("forward", "backward"):
        for one in mixed(28, **sizes, backend=backends):
            if one["kv_sequence"] >= one["sequence"] or not one["kv_sequence"]:
                yield jc.Attention(**one, kv_heads=1 + one["heads"] // 4, direction=direction)


def documents() -> Iterator[Operator]:
    for lengths in (((128.0, 32.0),), ((300.0, 4.0), (1448.0, 2.0)), ((96.0, 2.0), (3904.0, 1.0))):
        for direction in ("forward", "backward"):
            for backend in ("flash-attention-2", "flex", "cudnn"):
                yield jc.Attention(
                    2, 16, 4, 4096, 128, backend=backend, direction=direction, documents=Documents(lengths)
                )


def tiled_attention() -> Iterator[Operator]:
    tiles = {"m": (128, 64, 32, 16), "n": (64, 128, 32), "warps": (4, 8, 16, 1), "stages": (2, 3, 1, 4)}
    sizes = {
        "batch": (1, 4), "heads": (16, 5), "sequence": (4096, 600, 64), "head_dim": (128, 64, 256),
        "causal": (True, False), "kv_sequence": (0, 5000),
    }  # fmt: skip
    for direction in ("forward", "backward"):
        for tile, work in zip(mixed(28, **tiles), mixed(28, **sizes), strict=True):
            yield jc.Attention(**work, kv_heads=work["heads"], direction=direction, tile=jc.Tile(**tile))


def streaming() -> Iterator[Operator]:
    patterns = (
        "copy", "add", "rmsnorm", "layernorm", "softmax", "log_softmax", "reduce_min", "fill", "swiglu", "adamw",
        "vllm_rms_norm", "vllm_silu_and_mul", "vllm_rotary", "embedding", "zero_grad", "exp", "sum", "norm_backward",
        "rope",
    )  # fmt: skip
    sizes = {
        "rows": (4096, 300, 20000, 1), "columns": (4096, 130, 151936, 1100, 64), "dtype": ("bf16", "fp32"),
        "data": ("randn", "zeros", "pow2"), "footprint_bytes": (None, float("inf"), 2e7, 4.6e7),
        "far": (0.0, 0.4),
    }  # fmt: skip
    for one in mixed(5 * len(patterns), pattern=patterns, **sizes):
        size = 2.0 * one["rows"] * one["columns"]
        far = one.pop("far") * size
        yield jc.Streaming(bytes_read=size, bytes_written=0.6 * size, elements=size / 2, far_bytes=far, **one)
    for columns in (50_000, 100_000, 200_000):  # of which shared memory holds some rows, and some in bf16 alone
        for dtype in ("bf16", "fp32"):
            yield jc.Streaming("log_softmax", 4e8, 4e8, rows=2000, columns=columns, dtype=dtype)
    yield jc.Streaming("embedding", 4e8, 1e8, sm_cycles=1e9, activity=2.0)


def tiled_rows() -> Iterator[Operator]:
    patterns = ("rmsnorm", "layernorm", "softmax", "reduce_min", "exp", "sum", "tile_rmsnorm", "add", "gelu")
    tiles = {
        "rows": (1, 4, 64, 16), "columns": (0, 256, 0, 2048, 1000), "warps": (4, 8, 1, 32, 16),
        "staged": (False, False, True),
    }  # fmt: skip
    sizes = {
        "rows": (8192, 500, 60000),
        "columns": (4096, 1024, 65536, 96),
        "dtype": ("bf16", "fp32"),
        "own": (True, False),
    }
    for tile, work in zip(mixed(60, **tiles), mixed(60, pattern=patterns, **sizes), strict=True):
        size = 2.0 * work["rows"] * work["columns"]
        elements = size / 2 if work.pop("own") else 0.0
        yield jc.Streaming(bytes_read=size, bytes_written=size, elements=elements, **work).with_tile(jc.RowTile(**tile))
    for rows in (1e5, 1e6):  # whose blocks are started more slowly than they run
        work = jc.Streaming("reduce_min", 64 * rows, 2 * rows, elements=32 * rows, rows=int(rows), columns=32)
        yield work.with_tile(jc.RowTile(1, 0, 1))
    for columns, warps in ((8192, 1), (32768, 4), (60_000, 8)):  # a thread of which lacks a few registers
        yield jc.Streaming("rmsnorm", 3e8, 3e8, rows=9000, columns=columns).with_tile(jc.RowTile(1, 0, warps))
    for warps in (4, 8):  # several of which load the same few columns again and again
        work = jc.Streaming("reduce_min", 2e9, 2e6, elements=5e8, rows=500_000, columns=1024, dtype="fp32")
        yield work.with_tile(jc.RowTile(1, 64, warps))


def collectives() -> Iterator[Operator]:
    kinds = (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "send_recv",
        "ring_step",
        "rings_step",
    )
    fabrics = (
        None, Fabric(4, None, 1e11, 0.9, 5e-6), None, Fabric(nvls=True), Fabric(8, 2e11, 5e10, 0.8, 9e-6, 1.3),
        Fabric(2, None, 2e11, 0.95, 4e-6, 1.0, nvls=True, sharp=True),
    )  # fmt: skip
    sizes = {
        "gpus": (8, 2, 16, 64, 1), "bytes": (1e6, 2.5e8, 3e4), "ctas": (None, 4, 16), "threads": (None, 256, 1024),
        "copy_engine": (False, False, True), "fabric": fabrics,
    }  # fmt: skip
    for one in mixed(12 * len(kinds), kind=kinds, **sizes):
        if one["fabric"] is not None:
            one["gpus"] = max(one["gpus"], one["fabric"].domains)
        yield jc.Collective(**one)
    for algorithm in ("ring", "tree", "nvls", "sharp", "auto"):
        for fabric in fabrics:
            for gpus, size in ((8, 1e8), (64, 1e8), (64, 1e5)):
                yield jc.Collective("all_reduce", size, gpus, fabric=fabric, algorithm=algorithm)


def in_fp4() -> Iterator[Operator]:
    for m, n, k in ((8192, 8192, 8192), (4096, 28672, 8192), (512, 512, 7168)):
        for layout, more in (("tn", {}), ("nt", {"accumulate": True}), ("tn", {"batch": 8, "separate": True})):
            yield jc.Gemm(m, n, k, "fp4", layout=layout, out_dtype="fp32" if layout == "nt" else "bf16", **more)
    for cycles in (0.0, 2e7):
        yield jc.Streaming("cat", 2e8, 1.125e8, elements=1e8, dtype="fp4", footprint_bytes=math.inf, sm_cycles=cycles)


def scans() -> Iterator[Operator]:
    """Every kernel of a state-space mixer and of linear attention, of sizes of a model's and of a small one's."""
    for kernel in WORK:
        for sizes in ((1, 8192, 128, 64, 8, 128, 128), (2, 1000, 24, 32, 1, 64, 256)):
            for gated in (False, True):
                yield Scan(kernel, *sizes, gated=gated)
    for kernel in DELTA_WORK:
        for sizes in ((1, 8192, 32, 128, 32, 128, 64), (2, 1000, 24, 32, 8, 64, 64)):
            yield Scan(kernel, *sizes)


KINDS = {
    "products in FP4": in_fp4,
    "products": products, "tiled products": tiled_products, "attention": attention, "tiled attention": tiled_attention,
    "documents": documents,
    "streaming": streaming, "tiled rows": tiled_rows, "collectives": collectives,
    "scans": scans,
}  # fmt: skip
TILED = ("tiled products", "tiled attention", "tiled rows")
