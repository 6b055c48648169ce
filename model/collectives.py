"""Collectives over the links of one node, and in stages across nodes.

A ring moves ``S·(steps + δ)/n`` bytes through every GPU: all-reduce has 2(n−1) steps, all-gather and reduce-scatter
n−1. δ is the local copy at the ring's ends. Thread blocks copy at a rate that follows the SM clock, in series with the
link:

    t = α + ((S·(steps + δ_cta)/(n·CTAs·b·f))^p + (S·(steps + δ_link)/(n·B))^p)^(1/p),      α = α0 + α1·(n − 1)

Measured on H200 with NCCL 2.28 over NVLink 4, NVLS off: b ≈ 27 GB/s per CTA at 1980 MHz, B ≈ 380 GB/s. Across nodes a
hierarchical ring adds its inter-node stage at the network's rate; that form is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import InputError
from joulecast.model.gpu_model import GpuModel

Array = NDArray[np.float64]

#: Steps of each kind as a multiple of (n − 1), and share of the bytes that one GPU moves both ways.
STEPS = {
    "all_reduce": 2.0,
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "all_to_all": 1.0,
    "broadcast": 1.0,
    "send_recv": 1.0,
}


#: Algorithms of an all-reduce. A ring is measured. A tree moves every byte up and down once, in 2·log2(n) hops; in the
#: switch (NVLS) a GPU sends its buffer once and receives the result once. Both forms are estimates.
ALGORITHMS = ("ring", "tree", "nvls")
#: Threads of a collective's block by default: NCCL_NTHREADS of recent GPUs.
DEFAULT_THREADS = 512
#: Share of the ring's link rate that reduction in the switch reaches: 480 GB/s of bus bandwidth published for 8 H100.
IN_SWITCH_SHARE = 0.8


@dataclass(frozen=True)
class CollectiveShapes:
    """Collectives of one kind; every field has shape ``(n,)``. ``ctas`` is NaN for the library's own choice."""

    bytes: Array
    gpus: Array
    ctas: Array
    nodes: Array
    network_bytes_per_s: Array


@dataclass(frozen=True)
class CollectiveWork:
    """Work of ``n`` collectives; every field has shape ``(n,)``."""

    fixed_s: Array
    cycles: Array
    link_s: Array
    link_bytes: Array
    ctas: Array


def collective_work(shapes: CollectiveShapes, kind: str, gpu: GpuModel, algorithm: str = "ring") -> CollectiveWork:
    """Time and bytes of collectives of one kind and algorithm; reads ``collective.*``.

    Raises
    ------
    InputError
        An unknown kind, or an algorithm that it does not have.
    """
    if kind not in STEPS:
        raise InputError(f"unknown collective {kind!r}", key="kind", remedy=f"Known: {', '.join(STEPS)}.")
    if algorithm not in ALGORITHMS or (algorithm != "ring" and kind != "all_reduce"):
        raise InputError(
            f"{kind} has no algorithm {algorithm!r}",
            key="algorithm",
            remedy="Use ring, or for an all-reduce tree or nvls.",
        )
    ctas = np.where(np.isnan(shapes.ctas), gpu["collective.default_ctas"], shapes.ctas)
    local = np.maximum(shapes.gpus / shapes.nodes, 1.0)
    by_cta = _moved(shapes.bytes, local, kind, gpu["collective.cta_copy_share"])
    by_link = _moved(shapes.bytes, local, kind, gpu["collective.link_copy_share"])
    hops = local - 1.0
    if algorithm == "tree":
        by_cta = by_link = np.where(local > 1, 2.0 * shapes.bytes, 0.0)
        hops = 2.0 * np.log2(local)
    elif algorithm == "nvls":
        by_cta = by_link = np.where(local > 1, shapes.bytes * (1.0 + 1.0 / local) / IN_SWITCH_SHARE, 0.0)
        hops = np.ones_like(local)
    if kind in ("broadcast", "send_recv"):
        energetic = 0.5 * shapes.bytes
    else:
        energetic = by_link
    bandwidth = gpu["collective.link_share"] * gpu.device["link_bandwidth_bytes_per_s"]
    across = _moved(shapes.bytes, shapes.nodes, kind, 0.0) / local
    fixed = gpu["collective.latency_s"] + gpu["collective.latency_per_gpu_s"] * hops
    fixed = fixed + gpu["collective.network_latency_s"] * STEPS[kind] * (shapes.nodes - 1.0)
    return CollectiveWork(
        fixed_s=fixed + across / (gpu["collective.network_share"] * shapes.network_bytes_per_s),
        cycles=by_cta / (ctas * gpu["collective.bytes_per_cta_cycle"]),
        link_s=by_link / bandwidth,
        link_bytes=energetic + across,
        ctas=ctas,
    )


def copy_share(threads: int | None) -> float:
    """Rate at which a block of ``threads`` copies, over that of a block of the library's own choice [1].

    An estimate, not measured: copying waits for the loads under way (Little's law), whose number grows with the threads
    until the default's saturate what a block may have under way; more threads gain nothing.
    """
    return 1.0 if threads is None else min(1.0, threads / DEFAULT_THREADS)


def _moved(bytes_: Array, members: Array, kind: str, copy_share: float) -> Array:
    """Bytes through one member of a ring, including the local copies; none where there is one member."""
    if kind in ("broadcast", "send_recv"):
        return np.where(members > 1, bytes_, 0.0)
    steps = STEPS[kind] * (members - 1.0)
    return np.where(members > 1, bytes_ * (steps + copy_share) / members, 0.0)
