"""Every microbenchmark that a calibration may choose from, by kind of work (stratum)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from joulecast.calibrate.devices.protocol import CardFacts
from joulecast.calibrate.microbenchmarks import catalogue_shapes as listed
from joulecast.calibrate.microbenchmarks import row_forms as forms
from joulecast.calibrate.microbenchmarks.collective_catalogue import collectives, overlaps
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.microbenchmarks.row_forms import Row
from joulecast.errors import InputError
from joulecast.model.kernels.operators import DTYPE_BYTES

#: Share of a card's memory that one microbenchmark may take.
MEMORY_SHARE = 0.6
#: Memory of a card whose driver does not tell [bytes].
UNKNOWN_MEMORY_BYTES = 16 << 30


def single_gpu(facts: CardFacts | None = None) -> tuple[Microbenchmark, ...]:
    """Microbenchmarks of one card, those left out that its memory or its maker rules out.

    What else they need stands in ``needs``; the runner knows what there is.

    Parameters
    ----------
    facts
        What the card says about itself.
    """
    memory = (facts.memory_bytes if facts else None) or UNKNOWN_MEMORY_BYTES
    amd = facts is not None and facts.vendor.casefold() == "amd"
    return tuple(
        benchmark
        for benchmark in _candidates()
        if footprint_bytes(benchmark.row) <= MEMORY_SHARE * memory
        and not (amd and "cudnn-attention" in benchmark.needs)
    )


def in_fp16(benchmarks: Sequence[Microbenchmark]) -> list[Microbenchmark]:
    """The same work with fp16 in place of bf16, for a card that has none; what then stands twice comes once."""
    found = {benchmark.name: benchmark for benchmark in benchmarks if benchmark.row.get("dtype") != "bf16"}
    for benchmark in benchmarks:
        name = benchmark.name.replace("gemm_bf16_", "gemm_fp16_")
        row = {**benchmark.row, "name": name, "dtype": "fp16"}
        found.setdefault(name, replace(benchmark, name=name, row=row))
    return list(found.values())


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
    squares = [(side, side, side) for side in listed.SQUARES]
    others = (listed.THIN, listed.DEEP, listed.SHALLOW, listed.PROJECTIONS, listed.VOCABULARIES, listed.ODD)
    for m, n, k in chain(squares, *others):
        yield _gemm("gemm.bf16", forms.gemm_row(m, n, k))
    for m, n, k in listed.BIASED:
        yield _gemm("gemm.bf16", forms.gemm_row(m, n, k, bias=True))
    for m, n, k in listed.INPUT_GRADIENTS:
        yield _gemm("gemm.gradient", forms.gemm_row(m, n, k, layout="nn"))
    for m, n, k in listed.WEIGHT_GRADIENTS:
        yield _gemm("gemm.gradient", forms.gemm_row(m, n, k, layout="nt"))


def _other_products() -> Iterator[Microbenchmark]:
    for batch, m, n, k in listed.BATCHED:
        yield _gemm("gemm.batched", forms.gemm_row(m, n, k, batch=batch))
    for (m, n, k), kinds in listed.VALUES.items():
        for data in kinds:
            yield _gemm("gemm.data", forms.gemm_row(m, n, k, data=data))
    for dtype, shapes in listed.OTHER_TYPES.items():
        needs = ("fp8",) if dtype == "fp8" else ()
        for m, n, k in shapes:
            yield _gemm(f"gemm.{dtype}", forms.gemm_row(m, n, k, dtype), *needs)
        yield _gemm(f"gemm.{dtype}", forms.gemm_row(*shapes[-1], dtype, data="zeros"), *needs)


def _attention(index: int, backend: str, *, backward: bool) -> Microbenchmark:
    *sides, causal = listed.ATTENTION[index]
    row = forms.attention_row(*sides, causal=causal, backend=backend, backward=backward)
    needs = "cudnn-attention" if backend == "cudnn" else "flash-attention"
    shape = "_".join(str(side) for side in listed.ATTENTION[index])
    stratum = f"attention.{'backward' if backward else 'forward'}"
    return _named(stratum, f"attn_{row['direction']}_{row['backend']}_{shape}", row, needs)


def _attentions() -> Iterator[Microbenchmark]:
    for backward in (False, True):
        for index in range(len(listed.ATTENTION)):
            yield _attention(index, "cudnn", backward=backward)
        for index in listed.FLASH:
            yield _attention(index, "flash-attention-2", backward=backward)


def _buffers() -> Iterator[Microbenchmark]:
    for size in listed.COPIES:
        yield _named("memory.copy", f"copy_{size}MB", forms.buffer_row("copy", size))
    for size in listed.COPIES_L2:
        yield _named("memory.l2", f"copy_{size}MB", forms.buffer_row("copy", size))
    for op, size in listed.BUFFERS_L2:
        yield _named("memory.l2", f"{op}_{size}MB", forms.buffer_row(op, size))
    # Bytes that flip no bit are a kind of work of their own: nothing else tells what the others' bits cost.
    for stratum, kinds in (("memory.still", ("zeros", "ones")), ("memory.data", ("pow2", "sparse0.5"))):
        for data in kinds:
            yield _named(stratum, f"copy_1024MB_{data}", forms.buffer_row("copy", 1024, data=data))
    for op, size in listed.BUFFERS:
        yield _named("memory.reduce" if op == "sum" else "memory.copy", f"{op}_{size}MB", forms.buffer_row(op, size))
    yield _named("memory.reduce", "reduce_min_262144x2048", forms.shaped_row("reduce_min", 262144, 2048))
    yield _named("memory.copy", "exp_fp32_262144x1024", forms.shaped_row("exp", 262144, 1024))
    for rows, columns in listed.MATRIX_VECTOR:
        yield _named("memory.reduce", f"gemv_{rows}x{columns}", forms.gemv_row(rows, columns))


def _training_kernels() -> Iterator[Microbenchmark]:
    for stratum, patterns in (("elementwise", listed.ELEMENTWISE), ("norm", listed.NORMS)):
        for pattern, shapes in patterns.items():
            for rows, columns in shapes:
                yield _stream(stratum, pattern, rows, columns)
    for pattern in ("cross_entropy", "cross_entropy_backward"):
        for rows, columns in listed.LOSSES:
            yield _stream("loss", pattern, rows, columns)
    for tokens, width in listed.LOOKUPS:
        yield _stream("embedding", "embedding", tokens, width, tokens=50304)
    for vocabulary, width, tokens in listed.LOOKUP_GRADIENTS:
        yield _stream("embedding", "embedding_backward", vocabulary, width, tokens=tokens)
    for parameters, tensors in listed.STEPS:
        yield _stream("optimizer", "adamw_bf16", parameters, tensors)
        yield _stream("optimizer", "foreach_zero", parameters, tensors)
    yield _named("optimizer", f"adamw_{1 << 28}", forms.adamw_row(1 << 28))


def _stream(stratum: str, pattern: str, rows: int, columns: int, *, tokens: int = 0) -> Microbenchmark:
    return _named(stratum, f"{pattern}_{rows}x{columns}", forms.stream_row(pattern, rows, columns, tokens=tokens))


def _tiles() -> Iterator[Microbenchmark]:
    for (m, n, k), count in listed.TILED_SHAPES:
        for tile, warps, stages in listed.TILES[-count:]:
            name = "_".join(str(v) for v in ("tile_mm", m, n, k, *tile, warps, stages))
            yield _named("tile", name, forms.tile_gemm_row(m, n, k, tile, warps, stages), "triton")
    for tile_rows, warps in listed.NORM_TILES:
        row = forms.tile_whole_rows_row("tile_rmsnorm", 65536, 4096, tile_rows, warps)
        yield _named("tile", f"tile_rms_{tile_rows}_{warps}", row, "triton")
    for tile_rows, tile_columns, warps in listed.MIN_TILES:
        row = forms.tile_reduce_min_row(524288, 1024, tile_rows, tile_columns, warps)
        yield _named("tile", f"tile_rmin_{tile_rows}_{tile_columns}_{warps}", row, "triton")


def _mixtures() -> Iterator[Microbenchmark]:
    yield _named("idle", "idle", forms.idle_row())
    yield _named("idle", "idle_awake", forms.idle_row(listed.AWAKE_S))
    for share in listed.DUTIES:
        yield _named("duty", f"duty_{share}", forms.duty_row(share))
    for side, busy, idle, data in listed.PULSES:
        name = f"pulse_{side}_{busy}s_{idle}s_{data}"
        yield _named("pulse", name, forms.pulse_row(side, busy, idle, data))
    for n8, nv, n2 in listed.INTERLEAVES:
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
            row = {**one.row, "companion": companion, "name": name}
            yield Microbenchmark(name, row, f"companion.{companion}", one.needs)
