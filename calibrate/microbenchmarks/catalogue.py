"""Every microbenchmark that a calibration may choose from, by kind of work (stratum).

Shapes span what training of language models runs: small to large, thin, deep and shallow products in the layouts of
forward and gradients, heads of 64 and 128, short and long sequences, tensors in and out of L2; and work whose clock or
input values differ while all else is equal, from which power at other clocks and the cost of toggling follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from joulecast.calibrate.devices.protocol import CardFacts
from joulecast.calibrate.microbenchmarks import row_forms as forms
from joulecast.calibrate.microbenchmarks.collective_catalogue import collectives, overlaps
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.microbenchmarks.row_forms import Row
from joulecast.errors import InputError
from joulecast.model.operators import DTYPE_BYTES

#: Share of a card's memory that one microbenchmark may take.
MEMORY_SHARE = 0.6
#: Memory of a card whose driver does not tell [bytes].
UNKNOWN_MEMORY_BYTES = 16 << 30

SQUARES = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
THIN = ((16, 12288, 12288), (32, 8192, 8192), (128, 4096, 16384), (256, 12288, 4096), (1024, 8192, 2048))
DEEP = ((512, 512, 32768), (1024, 1024, 65536), (2048, 2048, 28672), (256, 4096, 16384))
SHALLOW = ((8192, 8192, 64), (8192, 8192, 256), (16384, 4096, 512), (32768, 1024, 1024))
PROJECTIONS = ((8192, 22016, 4096), (8192, 4096, 11008), (16384, 5120, 13824), (4096, 6144, 5120), (8192, 896, 4864))
VOCABULARIES = ((8192, 50304, 2048), (4096, 151936, 3584))
#: Not multiples of any tile, or a little more than whole waves of tiles.
ODD = ((1000, 3000, 5000), (4104, 4104, 4104), (520, 6008, 3000), (4224, 4224, 4096), (2112, 2048, 8192))
INPUT_GRADIENTS = (
    (4096, 4096, 4096),
    (16384, 4096, 11008),
    (4096, 2048, 50304),
    (8192, 3072, 5120),
    (2048, 2048, 2048),
)
WEIGHT_GRADIENTS = (
    (4096, 4096, 4096),
    (22016, 4096, 8192),
    (50304, 2048, 4096),
    (5120, 3072, 8192),
    (1024, 1024, 8192),
)
BATCHED = ((16, 1024, 1024, 1024), (64, 512, 512, 512), (32, 2048, 2048, 128))
BIASED = ((4096, 12288, 3072), (8192, 8192, 8192))
VALUES = {
    (8192, 8192, 6144): ("zeros", "ones", "pow2", "sparse0.25", "sparse0.5", "sparse0.75", "sparse0.9"),
    (5120, 5120, 5120): ("zeros", "pow2", "sparse0.5"),
    (16384, 4096, 4096): ("zeros", "sparse0.5"),
}
#: Shapes by data type; the last of each also with zeros.
OTHER_TYPES = {
    "fp16": ((1024, 1024, 1024), (4096, 5120, 5120), (8192, 12288, 4096), (8192, 8192, 8192)),
    "tf32": ((1024, 1024, 1024), (4096, 5120, 5120), (8192, 4096, 12288), (8192, 8192, 8192)),
    "fp32": ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 8192, 2048), (4096, 4096, 5120)),
    "fp8": ((1024, 1024, 1024), (4096, 5120, 5120), (8192, 14336, 4096), (8192, 8192, 512), (8192, 8192, 8192)),
}
#: Batch, heads, key-value heads, sequence, head width, causal.
ATTENTION = (
    (4, 32, 8, 4096, 128, True),
    (2, 32, 32, 2048, 128, True),
    (8, 16, 16, 1024, 128, True),
    (16, 16, 16, 512, 64, True),
    (1, 32, 8, 16384, 128, True),
    (1, 8, 1, 8192, 128, True),
    (8, 12, 12, 2048, 64, True),
    (2, 40, 40, 4096, 128, False),
)
#: Those of :data:`ATTENTION` that also run on FlashAttention-2.
FLASH = (0, 1, 3, 4, 7)
COPIES, COPIES_L2 = (128, 512, 2048, 8192), (1, 4, 8, 16, 20)
BUFFERS = (("fill", 256), ("fill", 4096), ("sum", 256), ("sum", 4096), ("exp", 256), ("exp", 2048))
BUFFERS_L2 = (("fill", 16), ("sum", 16), ("exp", 8))
MATRIX_VECTOR = ((2048, 2048), (4096, 4096), (8192, 8192), (32768, 8192))
ELEMENTWISE = {
    "add": ((16384, 4096), (4096, 5120)),
    "mul": ((8192, 11008), (4096, 8192)),
    "cat": ((8192, 22016), (4096, 8192)),
    "strided_unary": ((8192, 11008), (16384, 4096)),
    "strided_binary": ((8192, 11008), (16384, 4096)),
    "strided_silu_backward": ((8192, 11008), (16384, 4096)),
    "gelu": ((8192, 16384), (4096, 12288)),
    "gelu_backward": ((8192, 16384), (4096, 12288)),
    "bias_reduce": ((8192, 16384), (4096, 4096)),
}
NORMS = {
    "rmsnorm": ((8192, 4096), (16384, 8192), (4096, 2048)),
    "rmsnorm_backward_both": ((8192, 4096), (16384, 8192)),
    "rmsnorm_backward_input": ((8192, 4096),),
    "layernorm": ((8192, 4096), (4096, 12288)),
    "layernorm_backward_both": ((8192, 4096), (4096, 12288)),
    "softmax": ((8192, 8192), (16384, 4096)),
}
LOSSES = ((4096, 128256), (8192, 32000))
#: Tokens and width of look-ups; vocabulary, width and tokens of their gradients.
LOOKUPS = ((8192, 4096), (16384, 2048))
LOOKUP_GRADIENTS = ((128256, 4096, 8192), (50304, 2048, 16384))
#: Parameters and tensors of bf16 steps.
STEPS = ((1 << 28, 16), (1 << 30, 64))
TILES = (
    ((32, 32, 64), 4, 4),
    ((64, 64, 32), 4, 4),
    ((64, 128, 64), 4, 4),
    ((128, 128, 32), 4, 4),
    ((128, 128, 64), 8, 4),
    ((128, 256, 64), 8, 3),
    ((256, 64, 64), 8, 4),
)
#: Shapes of tiled products, and how many of :data:`TILES` each takes.
TILED_SHAPES = (((4096, 4096, 4096), 7), ((1024, 8192, 2048), 3))
NORM_TILES = ((1, 1), (1, 4), (2, 8), (4, 16), (8, 32))
MIN_TILES = ((1, 256, 4), (4, 64, 1), (4, 1024, 8), (16, 256, 4))
DUTIES = (0.2, 0.4, 0.6, 0.8)
#: Side, busy and idle time, values: long pulses meet the power limit, short ones run above it at full clock.
PULSES = (
    (4096, 1.0, 0.5, "randn"),
    (4096, 0.2, 0.1, "randn"),
    (4096, 0.05, 0.05, "randn"),
    (4096, 0.02, 0.02, "randn"),
    (4096, 0.005, 0.01, "randn"),
    (4096, 0.005, 0.005, "zeros"),
    (2048, 0.002, 0.004, "randn"),
)
INTERLEAVES = ((4, 0, 60), (8, 400, 0), (0, 200, 100), (20, 100, 200))
#: A resting card is kept awake this often [s].
AWAKE_S = 0.02


def single_gpu(facts: CardFacts | None = None, *, memory_bytes: int | None = None) -> tuple[Microbenchmark, ...]:
    """Microbenchmarks of one card, those left out that its memory or its maker rules out.

    What else they need stands in ``needs``; the runner knows what there is.

    Parameters
    ----------
    facts
        What the card says about itself.
    memory_bytes
        Its memory, where the facts do not tell.
    """
    memory = (facts.memory_bytes if facts else None) or memory_bytes or UNKNOWN_MEMORY_BYTES
    amd = facts is not None and facts.vendor.casefold() == "amd"
    return tuple(
        benchmark
        for benchmark in _candidates()
        if footprint_bytes(benchmark.row) <= MEMORY_SHARE * memory
        and not (amd and "cudnn-attention" in benchmark.needs)
    )


def multi_gpu(gpus: int) -> tuple[Microbenchmark, ...]:
    """Collectives among ``gpus`` GPUs of one host, and work beside them.

    Raises
    ------
    InputError
        Fewer than two GPUs.
    """
    if gpus < 2:
        raise InputError(f"collectives need at least two GPUs, not {gpus}", key="gpus")
    return (*collectives(gpus), *overlaps(gpus))


def footprint_bytes(row: Mapping[str, Any]) -> float:
    """About how much memory a row's buffers take [bytes]."""
    op = row.get("op")
    width = DTYPE_BYTES.get(str(row.get("dtype")), 2)
    if op in ("gemm", "tile_gemm", "pulse"):
        m, n, k = row["M"], row["N"], row["K"]
        return float(row.get("batch", 1) * (width * (m * k + n * k) + max(width, 2) * m * n))
    if op == "flash_attn":
        query, shared = (row["B"] * row["S"] * row["D"] * row[heads] * width for heads in ("Hq", "Hkv"))
        return float((2 * query + 2 * shared) * (1 if row["direction"] == "fwd" else 3))
    table = 2.0 * row.get("vocabulary", 0) * row["shape"][-1] if "vocabulary" in row else 0.0
    return table + float(row.get("bytes", 0.0))


def _candidates() -> Iterator[Microbenchmark]:
    yield from _products()
    yield from _other_products()
    yield from _attentions()
    yield from _buffers()
    yield from _training_kernels()
    yield from _tiles()
    yield from _mixtures()
    yield from _beside()


def _named(stratum: str, name: str, row: Row, *needs: str) -> Microbenchmark:
    return Microbenchmark(name, {"name": name, **row}, stratum, needs)


def _gemm(stratum: str, row: Row, *needs: str) -> Microbenchmark:
    words = [str(row[key]) for key in ("batch",) if key in row] + [f"{row['M']}x{row['N']}x{row['K']}"]
    suffix = row["layout"] if row["layout"] != "tn" else row["data"]
    bias = ["bias"] if row.get("bias") else []
    return _named(stratum, "_".join(["gemm", *bias, row["dtype"], *words, suffix]), row, *needs)


def _products() -> Iterator[Microbenchmark]:
    shapes = [(side, side, side) for side in SQUARES]
    for m, n, k in (*shapes, *THIN, *DEEP, *SHALLOW, *PROJECTIONS, *VOCABULARIES, *ODD):
        yield _gemm("gemm.bf16", forms.gemm_row(m, n, k))
    for m, n, k in BIASED:
        yield _gemm("gemm.bf16", forms.gemm_row(m, n, k, bias=True))
    for m, n, k in INPUT_GRADIENTS:
        yield _gemm("gemm.gradient", forms.gemm_row(m, n, k, layout="nn"))
    for m, n, k in WEIGHT_GRADIENTS:
        yield _gemm("gemm.gradient", forms.gemm_row(m, n, k, layout="nt"))


def _other_products() -> Iterator[Microbenchmark]:
    for batch, m, n, k in BATCHED:
        yield _gemm("gemm.batched", forms.gemm_row(m, n, k, batch=batch))
    for (m, n, k), kinds in VALUES.items():
        for data in kinds:
            yield _gemm("gemm.data", forms.gemm_row(m, n, k, data=data))
    for dtype, shapes in OTHER_TYPES.items():
        needs = ("fp8",) if dtype == "fp8" else ()
        for m, n, k in shapes:
            yield _gemm(f"gemm.{dtype}", forms.gemm_row(m, n, k, dtype), *needs)
        yield _gemm(f"gemm.{dtype}", forms.gemm_row(*shapes[-1], dtype, data="zeros"), *needs)


def _attention(index: int, backend: str, *, backward: bool) -> Microbenchmark:
    *sides, causal = ATTENTION[index]
    row = forms.attention_row(*sides, causal=causal, backend=backend, backward=backward)
    needs = "cudnn-attention" if backend == "cudnn" else "flash-attention"
    shape = "_".join(str(side) for side in ATTENTION[index])
    stratum = f"attention.{'backward' if backward else 'forward'}"
    return _named(stratum, f"attn_{row['direction']}_{row['backend']}_{shape}", row, needs)


def _attentions() -> Iterator[Microbenchmark]:
    for backward in (False, True):
        for index in range(len(ATTENTION)):
            yield _attention(index, "cudnn", backward=backward)
        for index in FLASH:
            yield _attention(index, "flash-attention-2", backward=backward)


def _buffers() -> Iterator[Microbenchmark]:
    for size in COPIES:
        yield _named("memory.copy", f"copy_{size}MB", forms.buffer_row("copy", size))
    for size in COPIES_L2:
        yield _named("memory.l2", f"copy_{size}MB", forms.buffer_row("copy", size))
    for op, size in BUFFERS_L2:
        yield _named("memory.l2", f"{op}_{size}MB", forms.buffer_row(op, size))
    for data in ("zeros", "ones", "pow2", "sparse0.5"):
        yield _named("memory.data", f"copy_1024MB_{data}", forms.buffer_row("copy", 1024, data=data))
    for op, size in BUFFERS:
        yield _named("memory.reduce" if op == "sum" else "memory.copy", f"{op}_{size}MB", forms.buffer_row(op, size))
    yield _named("memory.reduce", "reduce_min_262144x2048", forms.shaped_row("reduce_min", 262144, 2048, "fp32"))
    yield _named("memory.copy", "exp_fp32_262144x1024", forms.shaped_row("exp", 262144, 1024, "fp32"))
    for rows, columns in MATRIX_VECTOR:
        yield _named("memory.reduce", f"gemv_{rows}x{columns}", forms.gemv_row(rows, columns))


def _training_kernels() -> Iterator[Microbenchmark]:
    for stratum, patterns in (("elementwise", ELEMENTWISE), ("norm", NORMS)):
        for pattern, shapes in patterns.items():
            for rows, columns in shapes:
                yield _stream(stratum, pattern, rows, columns)
    for pattern in ("cross_entropy", "cross_entropy_backward"):
        for rows, columns in LOSSES:
            yield _stream("loss", pattern, rows, columns)
    for tokens, width in LOOKUPS:
        yield _stream("embedding", "embedding", tokens, width, tokens=50304)
    for vocabulary, width, tokens in LOOKUP_GRADIENTS:
        yield _stream("embedding", "embedding_backward", vocabulary, width, tokens=tokens)
    for parameters, tensors in STEPS:
        yield _stream("optimizer", "adamw_bf16", parameters, tensors)
        yield _stream("optimizer", "foreach_zero", parameters, tensors)
    yield _named("optimizer", f"adamw_{1 << 28}", forms.adamw_row(1 << 28))


def _stream(stratum: str, pattern: str, rows: int, columns: int, *, tokens: int = 0) -> Microbenchmark:
    return _named(stratum, f"{pattern}_{rows}x{columns}", forms.stream_row(pattern, rows, columns, tokens=tokens))


def _tiles() -> Iterator[Microbenchmark]:
    for (m, n, k), count in TILED_SHAPES:
        for tile, warps, stages in TILES[-count:]:
            name = "_".join(str(v) for v in ("tile_mm", m, n, k, *tile, warps, stages))
            yield _named("tile", name, forms.tile_gemm_row(m, n, k, tile, warps, stages), "triton")
    for tile_rows, warps in NORM_TILES:
        row = forms.tile_rmsnorm_row(65536, 4096, tile_rows, warps)
        yield _named("tile", f"tile_rms_{tile_rows}_{warps}", row, "triton")
    for tile_rows, tile_columns, warps in MIN_TILES:
        row = forms.tile_reduce_min_row(524288, 1024, tile_rows, tile_columns, warps)
        yield _named("tile", f"tile_rmin_{tile_rows}_{tile_columns}_{warps}", row, "triton")


def _mixtures() -> Iterator[Microbenchmark]:
    yield _named("idle", "idle", forms.idle_row())
    yield _named("idle", "idle_awake", forms.idle_row(AWAKE_S))
    for share in DUTIES:
        yield _named("duty", f"duty_{share}", forms.duty_row(share))
    for side, busy, idle, data in PULSES:
        name = f"pulse_{side}_{busy}s_{idle}s_{data}"
        yield _named("pulse", name, forms.pulse_row(side, busy, idle, data))
    for n8, nv, n2 in INTERLEAVES:
        yield _named("interleave", f"interleave_{n8}_{nv}_{n2}", forms.interleave_row(n8, nv, n2))


def _beside() -> Iterator[Microbenchmark]:
    alone = (
        _gemm("", forms.gemm_row(4096, 4096, 4096)),
        _gemm("", forms.gemm_row(4096, 2048, 8192, layout="nn")),
        _attention(0, "cudnn", backward=False),
        _attention(0, "cudnn", backward=True),
        _attention(0, "flash-attention-2", backward=False),
        _stream("", "copy", 8192, 8192),
        _stream("", "add", 16384, 4096),
        _stream("", "mul", 8192, 11008),
        _stream("", "cat", 8192, 22016),
        _stream("", "rmsnorm", 8192, 4096),
        _stream("", "rmsnorm_backward_both", 8192, 4096),
        _stream("", "layernorm", 4096, 12288),
        _stream("", "strided_unary", 8192, 11008),
        _stream("", "gelu_backward", 8192, 16384),
        _stream("", "softmax", 8192, 8192),
        _stream("", "cross_entropy", 4096, 128256),
    )
    for companion in ("randn", "zeros", "none"):
        for one in alone:
            name = f"{one.name}_beside_{companion}"
            row = {**forms.beside(one.row, companion), "name": name}
            yield Microbenchmark(name, row, f"companion.{companion}", one.needs)
