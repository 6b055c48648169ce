"""Collectives by size, GPUs and thread blocks, and parts of a transformer layer beside one."""

from __future__ import annotations

from collections.abc import Iterator

from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.microbenchmarks.row_forms import Row

KIBI, MEBI = 1 << 10, 1 << 20
SIZES = (64 * KIBI, 256 * KIBI, MEBI, 4 * MEBI, 16 * MEBI, 64 * MEBI, 256 * MEBI, 1024 * MEBI)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
#: Thread blocks that the library is held to, for some sizes.
CTAS, CTA_SIZES = (1, 2, 4, 8, 16, 32), (16 * MEBI, 64 * MEBI, 256 * MEBI)
CTA_KINDS = {"all_reduce": CTA_SIZES, "all_gather": (64 * MEBI,), "reduce_scatter": (64 * MEBI,)}
PAIR_SIZES = (MEBI, 16 * MEBI, 64 * MEBI, 256 * MEBI)
#: The layer whose parts run beside an all-reduce: name, width, heads, key-value heads, width of the MLP.
LAYER = ("llama8b", 4096, 32, 8, 14336)
LAYER_BATCH, LAYER_SEQUENCE = 4, 4096
OVERLAP_CTAS, LAYER_CTAS = (None, 2, 4, 8, 16, 32), (None, 4, 8, 16)
#: Products beside an all-gather: M, N, K and gathered bytes.
GATHERED = ((8192, 8192, 8192, 256 * MEBI), (8192, 8192, 2048, 256 * MEBI))


def collectives(gpus: int) -> Iterator[Microbenchmark]:
    """Collectives among ``gpus`` GPUs."""
    for kind in KINDS:
        for size in SIZES:
            yield _collective(kind, gpus, size, None)
        for size in CTA_KINDS.get(kind, ()):
            for ctas in CTAS:
                yield _collective(kind, gpus, size, ctas)
    if gpus == 2:
        for size in PAIR_SIZES:
            row: Row = {"op": "p2p", "gpus": gpus, "bytes": size, "dtype": "bf16"}
            name = f"p2p_{size}"
            yield Microbenchmark(name, {"name": name, **row}, "collective.p2p", ("nccl",), gpus)


def _collective(kind: str, gpus: int, size: int, ctas: int | None) -> Microbenchmark:
    name = f"{kind}_{gpus}_{ctas}_{size}"
    row: Row = {"name": name, "op": kind, "gpus": gpus, "ctas": ctas, "bytes": size, "dtype": "bf16"}
    return Microbenchmark(name, row, f"collective.{kind}", ("nccl",), gpus)


def overlaps(gpus: int) -> Iterator[Microbenchmark]:
    """Compute beside one collective, and the same without it and one after the other."""
    for part in ("attn", "mlp"):
        yield _overlap(gpus, part, "compute", None, "")
        yield _overlap(gpus, part, "sequential", None, "")
        for ctas in OVERLAP_CTAS:
            yield _overlap(gpus, part, "overlap", ctas, "all")
    for ctas in (None, 4, 16):
        yield _overlap(gpus, "attn", "overlap", ctas, "after_qkv")
    yield _overlap(gpus, "layer", "sequential", None, "")
    for ctas in LAYER_CTAS:
        yield _overlap(gpus, "layer", "nanobatch", ctas, "")
    for m, n, k, size in GATHERED:
        for mode in ("sequential", "concurrent"):
            yield _gathered(gpus, m, n, k, size, mode)


def _overlap(gpus: int, part: str, mode: str, ctas: int | None, scope: str) -> Microbenchmark:
    model, hidden, heads, shared, width = LAYER
    words = [mode, *([scope] if scope else []), *([str(ctas)] if mode in ("overlap", "nanobatch") else [])]
    name = f"part_{model}_tp{gpus}_{part}_{'_'.join(words)}"
    row: Row = {
        "name": name,
        "op": "overlap",
        "model": model,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": shared,
        "ffn": width,
        "tp": gpus,
        "B": LAYER_BATCH,
        "S": LAYER_SEQUENCE,
        "direction": "fwd",
        "gpus": gpus,
        "part": part,
        "ctas": ctas,
        "mode": mode,
        "dtype": "bf16",
    }
    if scope:
        row["scope"] = scope
    return Microbenchmark(name, row, f"overlap.{part}", ("nccl",), gpus)


def _gathered(gpus: int, m: int, n: int, k: int, size: int, mode: str) -> Microbenchmark:
    name = f"gemm_allgather_{gpus}_{mode}_{m}_{n}_{k}_{size}"
    row: Row = {
        "name": name,
        "op": "gemm_allgather",
        "M": m,
        "N": n,
        "K": k,
        "bytes": size,
        "gpus": gpus,
        "mode": mode,
        "dtype": "bf16",
    }
    return Microbenchmark(name, row, "overlap.gemm", ("nccl",), gpus)
