"""The ``[network]`` table of a plan and the node type of its ``[cluster]``: from their keys to the cluster's links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.errors import UnknownNameError
from joulecast.model.cluster.links import PLAIN_NETWORK, LinkChoices, cluster_links, usual_node
from joulecast.model.hardware.catalogue import is_path, load_gpu, load_network, load_node, node_names
from joulecast.simulator.plan_file.names import place, resolve_path
from joulecast.simulator.plan_file.placement import tensor_fabric

if TYPE_CHECKING:
    from joulecast.model.cluster.fabric import ClusterLinks
    from joulecast.model.hardware.description import Facts, GpuDescription
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.schema import PlanFile
    from joulecast.simulator.plan_file.source import Source

GIGABIT_BYTES = 1e9 / 8.0


def read_links(parsed: PlanFile, gpu: GpuDescription, node: str | None, source: Source) -> ClusterLinks:
    """Links of the plan's cluster.

    Raises
    ------
    UnknownNameError
        No such node type or network.
    InputError
        A reduction in switches that cannot do it.
    """
    table, key = parsed.network, "cluster.node"
    network = None if table.name is None else resolve_path(table.name, source, "network.name")
    choices = LinkChoices(
        gpus_per_node=parsed.cluster.gpus_per_node,
        network=network,
        nics_per_node=table.nics_per_node,
        nic_bytes_per_s=None if table.nic_gbit_per_s is None else table.nic_gbit_per_s * GIGABIT_BYTES,
        efficiency=table.efficiency,
        step_latency_s=None if table.step_latency_us is None else table.step_latency_us * 1e-6,
        rails=table.rails,
        oversubscription=table.oversubscription,
        jitter=table.jitter,
        nvls=table.nvls,
        sharp=table.sharp,
    )
    try:
        name = node or usual_node(gpu)
        facts = None if name is None else load_node(name)
        key = "network.name"
        joined = load_network(network or (PLAIN_NETWORK if facts is None else facts.text("network")))
    except UnknownNameError as error:
        raise place(error, source, key) from None
    if facts is not None and node is not None and _holds_others(facts, gpu) and not is_path(parsed.cluster.gpu):
        _refuse_other_boards(facts, gpu, source)
    if table.nvls and not (facts and facts.get("supports_in_network_reduction", 0.0)):
        what = f"the links within {name}" if name else f"nodes of {gpu.name}"
        raise source.error(f"{what} cannot reduce in switches", "network.nvls", remedy="Set it to false.")
    if table.sharp and not joined.get("supports_in_network_reduction", 0.0):
        raise source.error(
            f"{joined.name} cannot reduce in its switches",
            "network.sharp",
            remedy="Set it to false, or network.name to an InfiniBand network.",
        )
    return cluster_links(gpu, name, parsed.cluster.gpus, choices)


def _holds_others(node: Facts, gpu: GpuDescription) -> bool:
    """Whether a node type of the catalogue holds other GPUs than these; a user's own type holds what they say."""
    if node.name not in node_names() or usual_node(gpu) == node.name or "gpu" not in node.parameters:
        return False
    return load_gpu(node.text("gpu")).text("product") != gpu.text("product")


def _refuse_other_boards(node: Facts, gpu: GpuDescription, source: Source) -> None:
    """Refuse a node type whose board takes no GPU of this kind: its architecture or its form is another."""
    holds = load_gpu(node.text("gpu"))
    if all(holds.text(key) == gpu.text(key) for key in ("architecture", "form_factor")):
        return
    usual = usual_node(gpu)
    remedy = "Leave it out" if usual is None else f"Leave it out for {usual}"
    raise source.error(
        f"node type {node.name} holds {holds.name}, not {gpu.name}",
        "cluster.node",
        remedy=f"{remedy}, or give the path of a node type of your own.",
    )


def node_assumptions(plan: Plan, gpu: GpuDescription) -> tuple[str, ...]:
    """What is taken for granted of a node type that the catalogue has with other GPUs."""
    node = None if plan.cluster.node is None else load_node(plan.cluster.node)
    if node is None or is_path(str(plan.cluster.node)) or not _holds_others(node, gpu):
        return ()
    return (f"price, links and power of node type {node.name} are those with {node.text('gpu')}, not {gpu.name}",)


def network_assumptions(plan: Plan, gpu: GpuDescription) -> tuple[str, ...]:
    """What a forecast of several nodes takes for granted of what joins them."""
    cluster = plan.cluster
    if cluster.nodes == 1:
        return ()
    name, links = cluster.node or usual_node(gpu), cluster.links
    kind = f"nodes like {name}" if name else f"nodes of {links.domain_gpus} GPUs on their own links"
    network = cluster.network or (load_node(name).text("network") if name else PLAIN_NETWORK)
    cards = f"{links.nics_per_domain:g} cards of {links.nic_bytes_per_s / GIGABIT_BYTES:g} Gbit/s"
    spread = f"{100 * cluster.node_clock_spread:g} %"
    domains = tensor_fabric(plan).domains
    split = f"tensor-parallel ranks lie on {domains} nodes each: what they exchange crosses the network in every layer"
    return (
        f"{kind} ({links.domain_gpus} GPUs, {cards}) on {network}; every GPU has its share of them, as all communicate "
        "at once",
        f"clocks of cards on different nodes differ by {spread} at the power limit, and the slowest sets the pace",
        *((split,) if domains > 1 else ()),
    )
