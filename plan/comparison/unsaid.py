"""What a plan has where its file does not say: parts whose defaults follow from other keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from joulecast.model.architecture.hf import load_model
from joulecast.model.cluster.links import LinkChoices, cluster_links
from joulecast.simulator.plan_file.muon import read_muon
from joulecast.simulator.plan_file.names import resolve_path
from joulecast.simulator.plan_file.schema_implementation import ImplementationTable
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.model.hardware.description import GpuDescription
    from joulecast.simulator.plan_file.plan import Plan

#: Keys of a plan that are its model's own where its file does not say.
OF_MODEL = ("workload.layers", "implementation.rotary", "implementation.tie_embeddings")


def _links(plan: Plan, gpu: GpuDescription) -> Plan:
    """With the links of its cluster, node type and network."""
    cluster = plan.cluster
    choices = LinkChoices(gpus_per_node=cluster.gpus_per_node, network=cluster.network)
    return replace(plan, cluster=replace(cluster, links=cluster_links(gpu, cluster.node, cluster.gpus, choices)))


def _rails(plan: Plan, gpu: GpuDescription) -> Plan:
    """With the rails that its network cards spread over."""
    cluster = plan.cluster
    cards = round(cluster.links.nics_per_domain)
    choices = LinkChoices(gpus_per_node=cluster.gpus_per_node, network=cluster.network, nics_per_node=cards)
    return replace(plan, cluster=replace(cluster, links=cluster_links(gpu, cluster.node, cluster.gpus, choices)))


def _model(plan: Plan, gpu: GpuDescription) -> Plan:
    """With what its model has; one whose sizes stand in the plan's file is as it is."""
    workload = plan.workload
    if workload.model_name == "inline":
        return plan
    own = load_model(resolve_path(workload.model_name, Source(plan.file), "workload.model"))
    run = replace(plan.implementation, rotary=own.rotary, tie_embeddings=own.tied_embeddings)
    return replace(plan, workload=replace(workload, layers=own.layers), implementation=run)


def _muon(plan: Plan, gpu: GpuDescription) -> Plan:
    """With the options that its framework has by default."""
    run = plan.implementation
    table = ImplementationTable.model_validate({"framework": run.framework, "optimizer": run.optimizer})
    return replace(plan, implementation=replace(run, muon=read_muon(table, Source())))


def _stage_layers(plan: Plan, gpu: GpuDescription) -> Plan:
    """With as many layers on every stage."""
    layers = plan.parallelism.stage_layers
    even = (sum(layers) // len(layers),) * len(layers)
    return replace(plan, parallelism=replace(plan.parallelism, stage_layers=even))


#: Of parts of a plan, the same plan where its file says nothing of them.
UNSAID: dict[str, Callable[[Plan, GpuDescription], Plan]] = {
    "cluster.links": _links,
    "implementation.muon": _muon,
    "parallelism.stage_layers": _stage_layers,
    "cluster.links.rails": _rails,
    **dict.fromkeys(OF_MODEL, _model),
}
