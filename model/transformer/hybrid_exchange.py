"""What HybridEP's kernels exchange beside the experts' tokens.

They find out who gets what from the choices of all tokens of all ranks, a byte for each token and expert, which they
gather and scan in every forward. Beside a token they send its weights, in fp32 and of all experts of the domain that it
goes to, and bring these weights' gradients back: for narrow rows and many experts as many bytes as the tokens have.

Their results are fetched row by row from the ranks that have them (`model/cluster/collectives.py`). Rows are sorted by
kernels that look at each local expert of each token that arrived, which for few experts of many takes longer than the
rows: 394, 257 and 154 us for 65,000 tokens of 32 experts, 36 of 256 for each, 43,000 of 32 and of 16, 8 of 256 and of
128, and 267, 127 and 104 us back, for rows of 1 KB on B200 (a comparison of branches of HybridEP, May 2026).

Source: DeepEP's ``hybrid-ep`` branch, ``executor.cu`` (``allgather_routing_map``) and ``hybrid_ep_backend.cuh``.
"""

from __future__ import annotations

from joulecast.model.architecture.experts import Experts
from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.launches import Launch, collective, streaming

#: Bytes of a token's weight for an expert.
_WEIGHT = 4.0
#: Cycles of an SM for a token and a local expert, where rows are sorted and where they are summed [estimates, +-20 %].
SORTED, SUMMED = 52.0, 30.0


def weight_bytes(run: Implementation, experts: Experts, rows: int) -> float:
    """Weights beside ``rows`` copies of tokens [bytes]."""
    if not run.hybrid_exchange:
        return 0.0
    domains = run.expert_fabric.domains if run.expert_fabric is not None else 1
    return _WEIGHT * rows * experts.count / domains


def choices(run: Implementation, experts: Experts, tokens: int) -> tuple[Launch, ...]:
    """All ranks' choices, gathered, and scanned for the tokens of a rank's own experts; at the memory's pace."""
    if run.expert_parallel == 1:
        return ()
    made = float(run.expert_parallel * tokens * experts.count)
    fabric, ranks = run.expert_fabric, run.expert_parallel
    return (
        collective("all_gather", "router.map.gathered", made, run, ranks=ranks, fabric=fabric),
        streaming("reduce", "router.map.scanned", made, writes=1.0 / ranks, dtype="fp8"),
    )


def buffer_bytes(run: Implementation, experts: Experts, tokens: int, hidden: int) -> float:
    """Where tokens and weights arrive: room for those of all ranks of the domain, as if all went to one [bytes]."""
    if not run.hybrid_exchange or run.expert_parallel == 1:
        return 0.0
    domains = run.expert_fabric.domains if run.expert_fabric is not None else 1
    return float(run.expert_parallel * tokens * (2 * hidden + _WEIGHT * experts.count / domains))
