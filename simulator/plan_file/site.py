"""The ``[site]`` table of a plan: what surrounds the GPUs, what it costs and how much power it may draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulecast.errors import UnknownNameError
from joulecast.model.cluster.goodput import goodput
from joulecast.model.cluster.links import usual_node
from joulecast.model.hardware.catalogue import load_site
from joulecast.model.hardware.description import Facts
from joulecast.simulator.plan_file.names import place, resolve_path
from joulecast.simulator.plan_file.schema_surroundings import SiteTable
from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.model.hardware.description import GpuDescription
    from joulecast.simulator.plan_file.plan import Plan

#: Currency of the node types' prices.
NODE_CURRENCY = "USD"
#: Every plan's site unless it says otherwise.
DEFAULT_SITE = "default"
#: Keys of power limits, from the inside out.
LIMITS = ("node_power_limit_w", "rack_power_limit_w", "power_limit_w")
RENT = "site.gpu_price_per_hour"


@dataclass(frozen=True, slots=True)
class Site:
    """A site as the plan states it; ``None`` is what the catalogue's site ``name`` says, or no limit.

    Attributes
    ----------
    name
        Catalogue name or path of a site, see :func:`joulecast.model.hardware.catalogue.load_site`.
    hardware_price_per_gpu, embodied_kg_per_gpu
        A GPU with its share of node and network [currency], [kgCO2e].
    gpu_price_per_hour
        Rent of one of the plan's GPUs with its share of node and network [currency/h], in place of the former.
    goodput
        Share of a run's time in which training advances, failures of nodes apart.
    node_mtbf_hours, checkpoint_s, restart_s
        Failures of a node [h], and what they cost, see :func:`joulecast.model.cluster.goodput.goodput`; ``None``: none
        fail.
    node_power_limit_w, rack_power_limit_w
        At the node's and the rack's outlet [W].
    power_limit_w
        Of the job at the facility's meter [W].
    """

    name: str = DEFAULT_SITE
    currency: str | None = None
    pue: float | None = None
    electricity_price_per_kwh: float | None = None
    carbon_intensity_kg_per_kwh: float | None = None
    hardware_price_per_gpu: float | None = None
    gpu_price_per_hour: float | None = None
    embodied_kg_per_gpu: float | None = None
    hardware_lifetime_years: float | None = None
    hardware_utilisation: float | None = None
    goodput: float = 1.0
    node_mtbf_hours: float | None = None
    checkpoint_s: float = 30.0
    restart_s: float = 600.0
    node_power_limit_w: float | None = None
    nodes_per_rack: int | None = None
    rack_power_limit_w: float | None = None
    power_limit_w: float | None = None


def stated_limits(site: Site) -> tuple[str, ...]:
    """Keys of the power limits that a site states."""
    return tuple(key for key in LIMITS if getattr(site, key) is not None)


def site_assumptions(plan: Plan, gpu: GpuDescription) -> tuple[str, ...]:
    """What a plan asks beyond its GPUs that no forecast looks at, as nothing is known to surround them."""
    if plan.cluster.node or usual_node(gpu):
        return ()
    run = ("workload.training_tokens",) if plan.workload.training_tokens is not None else ()
    asked = (*(f"site.{key}" for key in stated_limits(plan.site)), *run)
    why = f"no node type is usual for {gpu.name}; cluster.node names one"
    return tuple(f"{key} is not looked at: {why}" for key in asked)


def goodput_of(plan: Plan) -> float:
    """Share of a run's time in which training advances, with failures where the site states how often nodes fail."""
    site = plan.site
    if site.node_mtbf_hours is None:
        return site.goodput
    return site.goodput * goodput(plan.cluster.nodes, 3600.0 * site.node_mtbf_hours, site.checkpoint_s, site.restart_s)


def read_site(table: SiteTable, gpu: str, source: Source) -> Site:
    """The checked table, for GPUs that the plan calls ``gpu``.

    Raises
    ------
    InputError
        No such site, a rack's limit without its nodes, GPUs that are both bought and rented, or a table of rents
        without the plan's.
    """
    name = resolve_path(table.name, source, "site.name")
    if name != DEFAULT_SITE or table.currency is not None:
        try:
            _check_currency(table, load_site(name), source)
        except UnknownNameError as error:
            raise place(error, source, "site.name") from None
    if table.rack_power_limit_w is not None and table.nodes_per_rack is None:
        raise source.error(
            "a rack's limit needs its number of nodes", "site.rack_power_limit_w", remedy="Add site.nodes_per_rack."
        )
    return Site(**table.said_of(Site) | {"name": name, "gpu_price_per_hour": _rent(table, gpu, source)})


def _rent(table: SiteTable, gpu: str, source: Source) -> float | None:
    """Price of an hour of the plan's GPUs, where they are rented."""
    rent = table.gpu_price_per_hour
    if rent is None:
        return None
    if table.hardware_price_per_gpu is not None:
        raise source.error(
            "GPUs are bought or rented", RENT, remedy="Leave out this key or site.hardware_price_per_gpu."
        )
    if not isinstance(rent, dict):
        return rent
    if gpu not in rent:
        known = ", ".join(rent) or "none"
        raise source.error(f"no rent of {gpu}, but of {known}", RENT, remedy=f'Add "{gpu}" and its price to the table.')
    return rent[gpu]


def _check_currency(table: SiteTable, site: Facts, source: Source) -> None:
    """Prices that the table leaves to the catalogue are in the catalogue's currencies."""
    known = site.text("currency")
    currency = known if table.currency is None else table.currency
    if table.gpu_price_per_hour is not None:
        return  # of electricity and hardware nothing is left to the catalogue
    inherited = {"electricity_price_per_kwh": known, "hardware_price_per_gpu": NODE_CURRENCY}
    foreign = [key for key, other in inherited.items() if getattr(table, key) is None and other != currency]
    if foreign:
        raise source.error(
            f"prices are in {currency}, but the default of {foreign[0]} is in {inherited[foreign[0]]}",
            "site.currency" if table.currency else "site.name",
            remedy=f"Add {' and '.join(f'site.{key}' for key in foreign)}.",
        )
