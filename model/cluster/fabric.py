"""How the GPUs of a cluster are joined, and what one group of ranks has of it.

GPUs of one *domain* (a node, or an NVLink rack) reach each other over the fast links; domains reach each other through
network cards, leaf switches and, beyond the leaves, switches above that may be oversubscribed. A group of ``n`` ranks
whose neighbours lie ``stride`` GPUs apart has in one domain of ``d`` GPUs

    r = max(1, d / stride)   members,   D = ⌈n·stride/d⌉ ≤ n   domains,

and one domain more where domains do not hold whole groups: some group then lies across two, and the others wait for it.

All GPUs of a node are taken to communicate at once, as in a training step, so each member has its share of the node's
network cards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from joulecast.errors import InputError
from joulecast.model.cluster.extremes import slowest_of
from joulecast.model.hashing import HashedOnce, hashed_once


@hashed_once
@dataclass(frozen=True, slots=True)
class ClusterLinks(HashedOnce):
    """What joins the GPUs of a cluster.

    Attributes
    ----------
    domain_gpus
        GPUs joined by the fast links.
    link_bytes_per_s, peer_bytes_per_s
        From one GPU to all others of its domain and to one of them, one direction [B/s]; ``None`` is the GPU's own.
    nics_per_domain
        Network cards that the GPUs of a domain share.
    nic_bytes_per_s
        Line rate of one, one direction [B/s].
    efficiency
        Share of it that large messages reach.
    step_latency_s, hop_latency_s
        Of one step between two domains under one leaf switch, the library's part included, and of each further switch.
    leaf_gpus, fan_out
        GPUs that reach each other through one switch, and ports of a switch towards the GPUs.
    oversubscription
        Rate into a leaf switch over the rate out of it; 1 is full bisection.
    jitter
        Relative standard deviation of the time of one transfer between domains.
    nvls, sharp
        Whether the switches within a domain, and those of the network, reduce.
    """

    domain_gpus: int
    link_bytes_per_s: float | None
    peer_bytes_per_s: float | None
    nics_per_domain: float
    nic_bytes_per_s: float
    efficiency: float
    step_latency_s: float
    hop_latency_s: float
    leaf_gpus: float
    fan_out: float
    oversubscription: float = 1.0
    jitter: float = 0.0
    nvls: bool = False
    sharp: bool = False


@dataclass(frozen=True, slots=True)
class Fabric:
    """What one group of ranks has of a cluster's links.

    Attributes
    ----------
    domains
        Domains that the group spans.
    link_bytes_per_s
        From one member to the others of its domain, one direction [B/s]; ``None`` is the GPU's own links.
    exit_bytes_per_s
        From the members in one domain together to other domains, one direction, by line rate [B/s].
    efficiency
        Share of the line rate that large messages reach.
    step_latency_s
        One step from domain to domain [s].
    delay
        Factor on the transfers between domains: a step is as slow as the slowest of the domains' [1].
    nvls, sharp
        Whether the switches within a domain, and those of the network, reduce.
    """

    domains: int = 1
    link_bytes_per_s: float | None = None
    exit_bytes_per_s: float = math.inf
    efficiency: float = 1.0
    step_latency_s: float = 0.0
    delay: float = 1.0
    nvls: bool = False
    sharp: bool = False


@lru_cache(maxsize=4096)
def fabric_of(members: int, stride: int, links: ClusterLinks) -> Fabric:
    """What a group has of a cluster's links.

    Parameters
    ----------
    members
        Ranks of the group.
    stride
        Distance of neighbours in ranks: with Megatron's order (tensor, context, expert, data, pipeline, innermost
        first) the product of the sizes inside.

    Raises
    ------
    InputError
        Members or stride below 1.
    """
    if members < 1 or stride < 1:
        raise InputError(f"a group of {members} ranks {stride} apart", key="members", remedy="Use whole numbers.")
    reach = members * stride
    domains = math.ceil(reach / links.domain_gpus)
    if max(reach, links.domain_gpus) % min(reach, links.domain_gpus):
        domains += 1
    domains = min(members, domains)
    if domains == 1:
        return within_domain(members, links)
    local = members / domains
    link = _link_bytes_per_s(local, links)
    thinned = links.oversubscription if reach > links.leaf_gpus else 1.0
    return Fabric(
        domains=domains,
        link_bytes_per_s=link,
        exit_bytes_per_s=links.nics_per_domain * local / links.domain_gpus * links.nic_bytes_per_s / thinned,
        efficiency=links.efficiency,
        step_latency_s=links.step_latency_s + 2.0 * _levels_above(reach, links) * links.hop_latency_s,
        delay=1.0 + links.jitter * slowest_of(domains),
        nvls=links.nvls,
        sharp=links.sharp,
    )


def within_domain(members: int, links: ClusterLinks) -> Fabric:
    """What a group within one domain has of its links."""
    return Fabric(link_bytes_per_s=_link_bytes_per_s(members, links), nvls=links.nvls)


def _link_bytes_per_s(local: float, links: ClusterLinks) -> float | None:
    """Rate from one member to the ``local`` others in its domain: in a mesh only the links to these count [B/s]."""
    link, peer = links.link_bytes_per_s, links.peer_bytes_per_s
    if link is None or peer is None or local <= 1:
        return link
    return min(link, max(1.0, local - 1.0) * peer)


def _levels_above(reach: int, links: ClusterLinks) -> int:
    """Levels of switches above the leaves that it takes to join ``reach`` GPUs in a fat tree."""
    levels, joined = 0, links.leaf_gpus
    while joined < reach:
        joined *= max(2.0, links.fan_out)
        levels += 1
    return levels
