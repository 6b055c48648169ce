"""From node types and networks of the catalogue to the links of a cluster."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from joulecast.model.cluster.fabric import ClusterLinks
from joulecast.model.cluster.node_power import SWITCH_PORTS
from joulecast.model.hardware.catalogue import load_network, load_node
from joulecast.model.hardware.description import Facts, GpuDescription

#: Node where the GPU has no usual one: eight GPUs on their own links, each with a network card of this network.
PLAIN_NODE_GPUS, PLAIN_NETWORK = 8, "infiniband-ndr"
#: Links that join two GPUs and reach no others: AMD's have no switches (CDNA 2 to CDNA 4 whitepapers).
PAIR_LINKS = "xGMI"
#: Relative standard deviation of the time of a transfer between two domains: an estimate. Flows that share a fat tree's
#: links collide by chance: static routing left networks of full bisection 55-60 % of it (Hoefler et al., CLUSTER 2008,
#: doi:10.1109/CLUSTR.2008.4663762); rails and adaptive routing leave a few per cent to chance.
TRANSFER_JITTER = 0.03
#: Rails that the cards of a node spread over at most: leaf switches that one node is connected to.
MOST_RAILS = 8
#: Where a network does not state its library's part of a step [s].
STEP_OVERHEAD_S = 6e-6


@dataclass(frozen=True, slots=True)
class LinkChoices:
    """What a plan says about links; ``None`` leaves the node type's or the network's own.

    Attributes
    ----------
    gpus_per_node
        GPUs joined by the fast links.
    network
        Catalogue name or path of the network between nodes.
    nics_per_node, nic_bytes_per_s, efficiency, step_latency_s
        Cards of a node, line rate of each, share of it for large messages, one step under a leaf switch.
    rails
        Leaf switches that a node's cards spread over.
    oversubscription, jitter, nvls, sharp
        As :class:`joulecast.model.cluster.fabric.ClusterLinks` has them.
    """

    gpus_per_node: int | None = None
    network: str | None = None
    nics_per_node: int | None = None
    nic_bytes_per_s: float | None = None
    efficiency: float | None = None
    step_latency_s: float | None = None
    rails: int | None = None
    oversubscription: float = 1.0
    jitter: float = TRANSFER_JITTER
    nvls: bool = False
    sharp: bool = False


@lru_cache(maxsize=1)
def _usual_nodes() -> dict[str, str]:
    text = files("joulecast.model").joinpath("catalogue_data", "usual_nodes.toml").read_text(encoding="utf-8")
    return {str(k): str(v) for k, v in tomllib.loads(text)["nodes"].items()}


def usual_node(gpu: GpuDescription) -> str | None:
    """Node type in which a GPU usually stands, by the product's name; ``None`` where there is no usual one."""
    product = gpu.device.get("product")
    return None if product is None else _usual_nodes().get(str(product.value))


def cluster_links(gpu: GpuDescription, node: str | None, gpus: int, choices: LinkChoices) -> ClusterLinks:
    """Links of a cluster.

    Parameters
    ----------
    gpu
        The GPUs; their own links where the node type has no other.
    node
        Catalogue name or path of the node type; ``None`` takes the GPU's usual one.
    gpus
        GPUs in use; fewer than a node's share all of its network cards.
    choices
        What the plan says.

    Raises
    ------
    UnknownNameError
        No such node type or network.
    """
    name = node or usual_node(gpu)
    if name is None:
        network = load_network(choices.network or PLAIN_NETWORK)
        return _links(*_own_links(gpu), PLAIN_NODE_GPUS, float(PLAIN_NODE_GPUS), network, gpus, choices)
    facts = load_node(name)
    network = load_network(choices.network or facts.text("network"))
    rate, peer = facts["link_bandwidth_bytes_per_s"], facts["peer_bandwidth_bytes_per_s"]
    own = gpu.number("link_bandwidth_bytes_per_s")
    link = None if rate == own and peer == rate else rate
    count, cards = int(facts["gpus_per_node"]), facts["nics_per_node"]
    return _links(link, peer, count, cards, network, gpus, choices)


def _own_links(gpu: GpuDescription) -> tuple[float | None, float | None]:
    """Rates of a GPU's links where no node type is known: a mesh of pairs, or all that it has to any other GPU.

    AMD's links join two GPUs each: seven join eight GPUs, three join four. Those of MI250X are several to some of its
    neighbours and none to others, which is no mesh.
    """
    links = int(gpu.number("link_count"))
    if not gpu.text("link_kind").startswith(PAIR_LINKS) or PLAIN_NODE_GPUS % (links + 1):
        return None, None
    own = gpu.number("link_bandwidth_bytes_per_s")
    return own, own / links


def _links(
    link: float | None, peer: float | None, count: int, cards: float, network: Facts, gpus: int, choices: LinkChoices
) -> ClusterLinks:
    domain = min(choices.gpus_per_node or _filled(count, gpus), gpus)
    cards = float(choices.nics_per_node or cards * domain / count)
    fan_out = network.get("switch_ports", SWITCH_PORTS) / 2.0
    rails = choices.rails or max(1, min(MOST_RAILS, round(cards)))
    step = network["latency_s"] + network.get("message_overhead_s", STEP_OVERHEAD_S)
    return ClusterLinks(
        domain_gpus=domain,
        link_bytes_per_s=link,
        peer_bytes_per_s=peer,
        nics_per_domain=cards,
        nic_bytes_per_s=choices.nic_bytes_per_s or network["nic_bandwidth_bytes_per_s"],
        efficiency=choices.efficiency or network["bandwidth_efficiency"],
        step_latency_s=step if choices.step_latency_s is None else choices.step_latency_s,
        hop_latency_s=network["hop_latency_s"],
        leaf_gpus=fan_out * rails * domain / cards,
        fan_out=fan_out,
        oversubscription=choices.oversubscription,
        jitter=choices.jitter,
        nvls=choices.nvls,
        sharp=choices.sharp,
    )


def _filled(count: int, gpus: int) -> int:
    """GPUs of a domain of up to ``count`` when ``gpus`` are spread evenly; a rack is rarely used in full."""
    if gpus <= count:
        return gpus
    even = [size for size in range(count // 2 + 1, count + 1) if gpus % size == 0]
    return max(even, default=count)
