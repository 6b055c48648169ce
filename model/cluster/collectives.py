"""Collectives over the links of one domain, and across the network between domains.

A ring moves ``S·(steps + δ)/n`` bytes through every GPU: all-reduce has 2(n−1) steps, all-gather and reduce-scatter
n−1. δ is the local copy at the ring's ends. Thread blocks copy at a rate that follows the SM clock, in series with the
link:

    t = α + ((S·(steps + δ_cta)/(n·CTAs·b·f))^p + (S·(steps + δ_link)/(n·B))^p)^(1/p),      α = α0 + α1·(n − 1)

Measured on H200 with NCCL 2.28 over NVLink 4, NVLS off: b ≈ 27 GB/s per CTA at 1980 MHz, B ≈ 380 GB/s. In an
all-to-all every member sends its n − 1 parts straight to the others, all at once: δ is 0, and B ≈ 325 GB/s.

Across D domains of r members each the chunks pass both kinds of links one after the other, many at a time, so the
slower kind sets the pace. What leaves a domain, over the network cards of its members, is

    ring  S·steps/n      tree  S/0.45      hierarchical  2·S·(D−1)/D      SHARP  S      all-to-all  r·S·(n−r)/n

and every step takes its latency: a ring has ``steps·D/n`` steps to another domain, a tree 2·log2 D, SHARP 2. Slices
of a buffer are passed on as they arrive, so that the steps' latencies are hidden behind the transfers of a large one,
but for those from member to member of one domain, α1·(r − 1), which are measured to add to its time.
A library takes the fastest algorithm for an all-reduce: trees for small ones, since a large one's volume goes through
them at half of 0.9 of the rate of a ring's. References: Thakur et al. 2005 (doi:10.1177/1094342005051521);
the cost model that NCCL chooses by (its source file ``tuning``); Klenk et al., ISCA 2020, for reduction in the switch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from joulecast.arrays import Array
from joulecast.errors import InputError
from joulecast.model.hardware.gpu_model import GpuModel

#: Steps of each kind as a multiple of (n − 1), and share of the bytes that one GPU moves both ways.
STEPS = {
    "all_reduce": 2.0,
    **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "token_exchange", "hybrid_exchange"), 1.0),
    **dict.fromkeys(("broadcast", "send_recv", "ring_step", "rings_step"), 1.0),
}

#: Passes of the moved bytes through a GPU's memory: what is received is written, and passed on from L2; a sum reads its
#: own share as well [1]. A product of two streams took 1.00-1.08, 1.20 and 1.12 times as long beside an all-gather, a
#: reduce-scatter and an all-reduce of four H200s, 1.21 and 1.17 beside the former of two H100s.
MEMORY_PASSES = {
    "all_reduce": 1.5,
    **dict.fromkeys(("reduce_scatter", "all_to_all", "token_exchange", "hybrid_exchange"), 2.0),
}
#: What an all-gather reads of the share that a GPU gives: half of all bytes on two GPUs.
READ_SHARE = {"all_gather": 1.0}

#: What one SM's block of DeepEP's and of HybridEP's kernels exchanges, which the bulk copy engine feeds [B/s]; and how
#: sharply the lesser of blocks and links decides. 16, 24 and 32 SMs of DeepEP dispatched and combined 336, 469 and 568
#: GB/s in the mean on 8 GB200, 304, 410 and 482 on 16, met within 5 and 15 %. 16 SMs of HybridEP reached 92 to 96 % of
#: what 32 did on 8 to 36 GB200 (all in HybridEP's README, kernels alone) [estimates, +-10 and +-20 %].
TOKEN_EXCHANGES, TOKEN_EXPONENT = {"token_exchange": 22e9, "hybrid_exchange": 67e9}, 3.0
#: What a block of HybridEP's takes for each row that it fetches from another GPU to sum it, however wide [s]: it keeps
#: few under way. 877 and 577 us for 65,000 and 43,000 rows of 1 KB by 32 blocks on 8 B200 (a comparison of branches of
#: HybridEP, May 2026) are 0.43 us, the README's 16 blocks over its 32 for rows of 14 KB 0.2 us; between them [estimate,
#: +-45 %].
ROW_S = 0.3e-6
#: Kinds in which every member sends straight to all others: NCCL's, and DeepEP's or HybridEP's of experts' tokens.
EXCHANGES = ("all_to_all", *TOKEN_EXCHANGES)
#: Rate at which DeepEP's and HybridEP's kernels exchange tokens within a domain over that of its links, where blocks
#: enough copy them [1]: 153 and 158 of 200 GB/s on eight H800 (DeepEP's README); and what an exchange takes beside [s].
#: HybridEP took 391 and 675 us on 8 and 64 GB200, 1,485 and 4,626 on 16 and 64 H100, for 4,096 tokens of 7,168 values,
#: each to 8 of 256 experts in 4 of 8 groups (arXiv 2603.07685, table 7): met within 9 % [estimates, +-5 and +-40 %].
TOKEN_LINK_SHARE, TOKEN_LATENCY_S = 0.76, 90e-6
#: Most of its network's rate that an exchange between nodes reaches, whatever factor other collectives have from steps
#: that hide them: the same table's NCCL had 40.7 and 44.9 of 50 GB/s on 16 and 64 H100, HybridEP 40 [estimate, +-5
#: %].
EXCHANGE_NETWORK_SHARE = 0.85

#: Kinds whose bytes go from one GPU to another as they are.
POINT_TO_POINT = ("broadcast", "send_recv", "ring_step", "rings_step")
#: Those in which every member sends to the next: in one ring, or in one for each member of a domain, each of which
#: leaves the domain by another's card.
RING_STEPS = ("ring_step", "rings_step")

#: Algorithms of an all-reduce. A ring within a domain is measured. A tree moves every byte up and down once; in the
#: switch (NVLS) a GPU sends its buffer once and receives the result once, and across domains a tree or the network's
#: switches (SHARP) do the rest. ``auto`` is the fastest of those that the fabric has. All but the ring are estimates.
ALGORITHMS = ("ring", "tree", "nvls", "sharp", "auto")
#: Threads of a collective's block by default: NCCL_NTHREADS of recent GPUs.
DEFAULT_THREADS = 512
#: Rate at which a tree reduces over that at which data leave a domain: NCCL's figures, half of ``busBw * .9``.
TREE_SHARE = 0.45
#: Share of the ring's link rate that reduction in the switch reaches: 480 GB/s of bus bandwidth published for 8 H100.
IN_SWITCH_SHARE = 0.8
#: Network of which a description's ``network_share`` and ``network_latency_s`` speak: InfiniBand's efficiency, and one
#: step through three switches with the library's proxy [s]. Other networks scale them.
REFERENCE_EFFICIENCY, REFERENCE_STEP_S = 0.95, 7.8e-6


@dataclass(frozen=True)
class CollectiveShapes:
    """Collectives of one kind; every field has shape ``(n,)``.

    Attributes
    ----------
    ctas
        NaN for the library's own choice.
    domains, link_bytes_per_s, exit_bytes_per_s, efficiency, step_latency_s, delay, nvls, sharp
        As :class:`joulecast.model.cluster.fabric.Fabric` has them; a NaN link rate is the GPU's own.
    rows
        As :class:`~joulecast.model.kernels.operators.Collective` has them.
    """

    bytes: Array
    gpus: Array
    ctas: Array
    domains: Array
    link_bytes_per_s: Array
    exit_bytes_per_s: Array
    efficiency: Array
    step_latency_s: Array
    delay: Array
    nvls: Array
    sharp: Array
    rows: Array


@dataclass(frozen=True)
class CollectiveWork:
    """Work of ``n`` collectives; every field has shape ``(n,)``.

    Attributes
    ----------
    fixed_s
        Latencies that no transfer hides [s].
    cycles
        SM cycles of the thread blocks' copying.
    link_s
        What the slower of the links within a domain and between domains takes, at least the steps' latencies [s].
    link_bytes
        Bytes that cost energy on the GPU's links.
    memory_bytes
        Bytes through the GPU's memory.
    """

    fixed_s: Array
    cycles: Array
    link_s: Array
    link_bytes: Array
    memory_bytes: Array
    ctas: Array


def collective_work(shapes: CollectiveShapes, kind: str, gpu: GpuModel, algorithm: str) -> CollectiveWork:
    """Time and bytes of collectives of one kind and algorithm; reads ``collective.*``.

    Raises
    ------
    InputError
        An unknown kind, or an algorithm that it does not have.
    """
    if kind not in STEPS:
        raise InputError(f"unknown collective {kind!r}", key="kind", remedy=f"Known: {', '.join(STEPS)}.")
    if algorithm not in ALGORITHMS or (algorithm not in ("ring", "auto") and kind != "all_reduce"):
        raise InputError(
            f"{kind} has no algorithm {algorithm!r}",
            key="algorithm",
            remedy="Use ring or auto, or for an all-reduce tree, nvls or sharp.",
        )
    if algorithm != "auto" or kind != "all_reduce":
        return _work(shapes, kind, gpu, "ring" if algorithm == "auto" else algorithm)
    return _fastest(shapes, gpu)


def _fastest(shapes: CollectiveShapes, gpu: GpuModel) -> CollectiveWork:
    """The fastest algorithm of each all-reduce at the highest clock."""
    best = _work(shapes, "all_reduce", gpu, "ring")
    usable = {"tree": np.ones(len(shapes.bytes), dtype=bool), "nvls": shapes.nvls > 0}
    usable["sharp"] = (shapes.sharp > 0) & (shapes.domains > 1)
    for algorithm, possible in usable.items():
        if not possible.any():
            continue
        other = _work(shapes, "all_reduce", gpu, algorithm)
        better = possible & (_time_s(other, gpu) < _time_s(best, gpu))
        columns = {f.name: np.where(better, getattr(other, f.name), getattr(best, f.name)) for f in fields(best)}
        best = CollectiveWork(**columns)
    return best


def _time_s(work: CollectiveWork, gpu: GpuModel) -> Array:
    return work.fixed_s + np.maximum(work.cycles / (gpu.max_clock_mhz * 1e6), work.link_s)


def _work(shapes: CollectiveShapes, kind: str, gpu: GpuModel, algorithm: str) -> CollectiveWork:
    n, domains = shapes.gpus, shapes.domains
    ctas = np.where(np.isnan(shapes.ctas), gpu["collective.default_ctas"], shapes.ctas)
    local = np.maximum(n / domains, 1.0)
    ring = kind not in EXCHANGES
    by_cta = _moved(shapes.bytes, n, kind, ring * gpu["collective.cta_copy_share"])
    by_link = _moved(shapes.bytes, n, kind, ring * gpu["collective.link_copy_share"])
    if algorithm == "tree":
        by_cta = by_link = np.where(n > 1, 2.0 * shapes.bytes, 0.0)
    elif algorithm in ("nvls", "sharp"):
        by_cta = by_link = np.where(local > 1, shapes.bytes * (1.0 + 1.0 / local) / IN_SWITCH_SHARE, 0.0)
        by_cta = np.where(domains > 1, by_cta + 2.0 * shapes.bytes / local, by_cta)
    by_link = np.where(local > 1, by_link, 0.0)
    if not ring:
        by_link = by_link * np.where(n > 1, (local - 1.0) / np.maximum(n - 1.0, 1.0), 0.0)
    rate, latency = _within(shapes, kind, gpu)
    leaving = np.where(domains > 1, _leaving(shapes, kind, algorithm), 0.0)
    most = math.inf if ring else EXCHANGE_NETWORK_SHARE
    share = min(gpu["collective.network_share"], most) * shapes.efficiency / REFERENCE_EFFICIENCY
    across = leaving / (share * shapes.exit_bytes_per_s) * shapes.delay
    steps = _latency_s(shapes, kind, algorithm, gpu)
    inside = gpu["collective.latency_per_gpu_s"] * (local - 1.0) * (kind not in (*POINT_TO_POINT, *TOKEN_EXCHANGES))
    energetic = 0.5 * shapes.bytes if kind in ("broadcast", "send_recv") else by_link
    if not ring:  # a member copies its own part beside what it sends
        energetic = by_link + np.where(n > 1, gpu["collective.link_copy_share"] * shapes.bytes / n, 0.0)
    return CollectiveWork(
        fixed_s=latency + np.where(domains > 1, inside, steps),
        cycles=(kind not in TOKEN_EXCHANGES) * by_cta / (ctas * gpu["collective.bytes_per_cta_cycle"]),
        link_s=np.maximum(_with_rows(by_link / rate, shapes), np.where(domains > 1, np.maximum(across, steps), 0.0)),
        link_bytes=energetic + leaving / local,
        memory_bytes=_moved(shapes.bytes, n, kind, READ_SHARE.get(kind, 0.0)) * MEMORY_PASSES.get(kind, 1.0),
        ctas=ctas,
    )


def _with_rows(moved_s: Array, shapes: CollectiveShapes) -> Array:
    """Time of the links, or of blocks that fetch rows one by one, a smooth maximum [s]."""
    rows_s = shapes.rows * ROW_S / shapes.ctas
    longer = (moved_s**TOKEN_EXPONENT + rows_s**TOKEN_EXPONENT) ** (1.0 / TOKEN_EXPONENT)
    return np.where(shapes.rows > 0, longer, moved_s)


def _within(shapes: CollectiveShapes, kind: str, gpu: GpuModel) -> tuple[Array, float]:
    """Rate of one GPU's links within a domain [B/s], and latency of a communication [s]."""
    share, latency = gpu["collective.link_share"], gpu["collective.latency_s"]
    if kind == "send_recv":  # neither ring nor reduction; where it was not measured it is taken for a ring's
        share = gpu.get("collective.transfer_link_share", share)
        latency = gpu.get("collective.transfer_latency_s", latency)
    elif kind == "all_to_all":
        share = gpu.get("collective.exchange_link_share", share)
    elif kind in TOKEN_EXCHANGES:
        share, latency = TOKEN_LINK_SHARE, latency + TOKEN_LATENCY_S
    own = np.isnan(shapes.link_bytes_per_s)
    rate = share * np.where(own, gpu.device["link_bandwidth_bytes_per_s"], shapes.link_bytes_per_s)
    if kind in TOKEN_EXCHANGES:
        slower = (rate / (TOKEN_EXCHANGES[kind] * shapes.ctas)) ** TOKEN_EXPONENT
        rate = rate * (1.0 + np.where(np.isnan(slower), 0.0, slower)) ** (-1.0 / TOKEN_EXPONENT)
    return rate, latency


def _latency_s(shapes: CollectiveShapes, kind: str, algorithm: str, gpu: GpuModel) -> Array:
    """Latency of the steps within and between domains [s]."""
    n, domains = shapes.gpus, shapes.domains
    local = np.maximum(n / domains, 1.0)
    levels = np.log2(np.maximum(domains, 1.0))
    if algorithm == "ring":
        near = np.ones_like(n) if kind in (*RING_STEPS, *TOKEN_EXCHANGES) else n - domains
        far = STEPS[kind] * domains * (n - 1.0) / n if kind not in (*POINT_TO_POINT, *EXCHANGES) else 1.0
    elif algorithm == "tree":
        near = np.where(domains > 1, 2.0 * (local - 1.0), 2.0 * np.log2(n))
        far = 2.0 * levels
    else:
        near = np.ones_like(n)
        far = 2.0 * levels if algorithm == "nvls" else 2.0 * np.ones_like(n)
    step = gpu["collective.network_latency_s"] * shapes.step_latency_s / REFERENCE_STEP_S * shapes.delay
    return np.asarray(gpu["collective.latency_per_gpu_s"] * near + np.where(domains > 1, far * step, 0.0))


def _leaving(shapes: CollectiveShapes, kind: str, algorithm: str) -> Array:
    """Bytes that leave one domain, of all the group's members in it."""
    size, n, domains = shapes.bytes, shapes.gpus, shapes.domains
    local = np.maximum(n / domains, 1.0)
    if kind in ("broadcast", "send_recv", "rings_step"):
        return size
    if kind == "ring_step":  # one member's card carries what leaves, whatever the others have
        return np.asarray(size * local)
    if kind in EXCHANGES:
        return np.asarray(local * size * (n - local) / n)
    if algorithm == "ring":
        return np.asarray(size * STEPS[kind] * (n - 1.0) / n)
    if algorithm == "sharp":
        return size
    if algorithm == "tree":
        return np.asarray(size / TREE_SHARE)
    return np.asarray(2.0 * size * (domains - 1.0) / domains)


def copy_share(threads: int | None) -> float:
    """Rate at which a block of ``threads`` copies, over that of a block of the library's own choice [1].

    An estimate, not measured: copying waits for the loads under way (Little's law), whose number grows with the threads
    until the default's saturate what a block may have under way; more threads gain nothing.
    """
    return 1.0 if threads is None else min(1.0, threads / DEFAULT_THREADS)


def _moved(bytes_: Array, members: Array, kind: str, copy_share: float) -> Array:
    """Bytes through one member of a ring, including the local copies; none where there is one member."""
    if kind in POINT_TO_POINT:
        return np.where(members > 1, bytes_, 0.0)
    steps = STEPS[kind] * (members - 1.0)
    return np.where(members > 1, bytes_ * (steps + copy_share) / members, 0.0)
