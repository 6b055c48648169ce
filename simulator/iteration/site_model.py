"""What surrounds a plan's GPUs: node type, network and site in one object, and quantities at every level of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array
from joulecast.errors import InputError
from joulecast.model.cluster.links import usual_node
from joulecast.model.cluster.node_power import NodePower, network_switch_power_w, node_ac_w, node_dc_w, node_power_w
from joulecast.model.cluster.site_cost import Prices, PriceSpread
from joulecast.model.hardware.catalogue import load_network, load_node, load_site
from joulecast.model.hardware.description import Facts, GpuDescription
from joulecast.model.uncertainty import NINETY_PERCENT
from joulecast.simulator.plan_file.site import Site

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan


@dataclass(frozen=True, eq=False)
class SiteModel:
    """What surrounds the GPUs of a plan: facts, prices and the facility's overhead.

    Attributes
    ----------
    node, network
        Facts of the node type and of the network between nodes.
    gpu_limit_w
        Default power limit of one GPU [W].
    pue
        Facility over computers.
    pue_sd
        Its standard deviation, 0 where the plan states it.
    prices, price_spread, currency
        Of energy and hardware, and how uncertain what the plan leaves to the catalogue is.
    """

    node: Facts
    network: Facts
    gpu_limit_w: float
    pue: float
    pue_sd: float
    prices: Prices
    price_spread: PriceSpread
    currency: str

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a whole node of this type."""
        return int(self.node["gpus_per_node"])

    def node_power(self, gpu_power_w: float, nic_activity: float) -> NodePower:
        """Parts of one whole node whose GPUs draw ``gpu_power_w`` each on average."""
        total = gpu_power_w * self.gpus_per_node
        return node_power_w(total, self.gpu_limit_w, self.node, self.network, nic_activity=nic_activity)

    def ac_w(self, dc_w: ArrayLike) -> Array:
        """Input power of a whole node that draws ``dc_w`` behind its supplies, any shape [W]."""
        return node_ac_w(dc_w, self.gpu_limit_w, self.node, self.network)

    def switches_w(self, gpus: int) -> float:
        """Input power of the network's switches for a job of so many GPUs [W]; a job within a node has none."""
        if gpus <= self.gpus_per_node:
            return 0.0
        cards = round(gpus / self.gpus_per_node * self.node["nics_per_node"])
        return network_switch_power_w(cards, self.network)

    def facility_power_w(self, gpu_power_w: ArrayLike, gpus: int, nic_activity: ArrayLike) -> Array:
        """Power at the facility's meter of ``gpus`` GPUs that draw ``gpu_power_w`` each on average, any shape [W]."""
        total = np.asarray(gpu_power_w, dtype=np.float64) * self.gpus_per_node
        dc = node_dc_w(total, self.gpu_limit_w, self.node, self.network, nic_activity=nic_activity)
        return np.asarray(self.pue * (self.ac_w(dc) * gpus / self.gpus_per_node + self.switches_w(gpus)))


@dataclass(frozen=True, slots=True)
class Levels:
    """One quantity of the whole job, from the GPUs' boards to the facility's meter.

    Attributes
    ----------
    gpu, node_dc, node_ac, network, facility
        GPUs; nodes behind their supplies; nodes at the outlet; switches between nodes; everything with cooling and
        distribution, which is PUE · (node_ac + network).
    """

    gpu: float
    node_dc: float
    node_ac: float
    network: float
    facility: float

    @property
    def values(self) -> tuple[float, ...]:
        """From the GPUs to the facility."""
        return self.gpu, self.node_dc, self.node_ac, self.network, self.facility

    def times(self, factor: float) -> Levels:
        """Every level times ``factor``."""
        return Levels(*(value * factor for value in self.values))

    def changed(self, half_widths: Levels, sign: float) -> Levels:
        """Every level at an end of its interval: with its logarithm changed by ``sign`` half-widths."""
        return Levels(*(v * exp(sign * half) for v, half in zip(self.values, half_widths.values, strict=True)))


def site_model(plan: Plan, gpu: GpuDescription) -> SiteModel | None:
    """What surrounds a plan's GPUs; ``None`` where neither the plan nor the catalogue has a node type for them.

    Raises
    ------
    InputError
        The node type has no price, and the plan's site none either.
    """
    name = plan.cluster.node or usual_node(gpu)
    if name is None:
        return None
    node = load_node(name)
    network = load_network(plan.cluster.network or node.text("network"))
    return surroundings(node, network, gpu.number("power_limit_w"), plan.site)


def surroundings(node: Facts, network: Facts, gpu_limit_w: float, stated: Site) -> SiteModel:
    """Node type, network and a stated site together.

    Raises
    ------
    InputError
        The node type has no price and the site none either.
    """
    site = load_site(stated.name)

    def value(key: str) -> float:
        own = getattr(stated, key)
        return site[key] if own is None else float(own)

    def rel_sd(key: str) -> float:
        return 0.0 if getattr(stated, key) is not None else site.parameters[key].sd / site[key]

    rent, bought = stated.gpu_price_per_hour, stated.hardware_price_per_gpu
    hardware, hardware_sd = _hardware_price(node, site, bought) if rent is None else (0.0, 0.0)
    in_rent = rent is not None and stated.electricity_price_per_kwh is None
    life = float(np.hypot(rel_sd("hardware_lifetime_years"), rel_sd("hardware_utilisation")))
    prices = Prices(
        electricity_per_kwh=0.0 if in_rent else value("electricity_price_per_kwh"),
        carbon_kg_per_kwh=value("carbon_intensity_kg_per_kwh"),
        hardware_per_gpu=hardware,
        embodied_kg_per_gpu=value("embodied_kg_per_gpu"),
        lifetime_years=value("hardware_lifetime_years"),
        utilisation=value("hardware_utilisation"),
        rent_per_gpu_hour=rent,
    )
    spread = PriceSpread(
        electricity=0.0 if in_rent else rel_sd("electricity_price_per_kwh"),
        carbon=rel_sd("carbon_intensity_kg_per_kwh"),
        hardware=hardware_sd,
        embodied=rel_sd("embodied_kg_per_gpu"),
        working_life=life,
        rented=rent is not None,
    )
    pue = value("pue")
    currency = stated.currency or site.text("currency")
    return SiteModel(node, network, gpu_limit_w, pue, pue * rel_sd("pue"), prices, spread, currency)


def _hardware_price(node: Facts, site: Facts, stated: float | None) -> tuple[float, float]:
    """Price of a GPU with its share of node and network, and its relative standard deviation."""
    if stated is not None:
        return stated, 0.0
    if "price" not in node.parameters:
        raise InputError(
            f"node type {node.name} has no price",
            key="site.hardware_price_per_gpu",
            remedy="Add this key to the plan, or price to the node type.",
        )
    whole = node["price"] + node["nics_per_node"] * site["network_price_per_nic"]
    parts = node.parameters["price"].sd, node["nics_per_node"] * site.parameters["network_price_per_nic"].sd
    return whole / node["gpus_per_node"], float(np.hypot(*parts)) / whole


def half_widths(
    model: SiteModel, node: NodePower, gpu_rel_sd: float, time_rel_sd: float = 0.0, network_share: float = 0.0
) -> Levels:
    """Half of the logarithmic 90 % interval of energy at every level: independent parts in quadrature.

    Parameters
    ----------
    node
        Mean parts of one node.
    gpu_rel_sd, time_rel_sd
        Relative standard deviations of the GPUs' energy, and of the time over which all others draw their power; of
        power itself where there is no time.
    network_share
        Share of the switches in what the facility feeds.
    """
    facts = model.node.parameters
    parts = [facts[key].sd for key in ("cpu_training_power_w", "switch_power_w", "other_power_w") if key in facts]
    fans = facts.get("fan_power_w")
    if fans is not None and fans.number > 0:
        parts.append(fans.sd / fans.number * node.fan_w)
    others = time_rel_sd * (node.dc_w - node.gpu_w)
    dc = float(np.linalg.norm([gpu_rel_sd * node.gpu_w, others, *parts])) / node.dc_w
    ac = float(np.hypot(dc, facts["supply_efficiency"].sd / model.node["supply_efficiency"]))
    port = model.network.parameters["switch_port_power_w"]
    network = float(np.hypot(port.sd / port.number, time_rel_sd))
    inside = np.hypot((1.0 - network_share) * ac, network_share * network)
    facility = float(np.hypot(inside, model.pue_sd / model.pue))
    return Levels(*(NINETY_PERCENT * sd for sd in (gpu_rel_sd, dc, ac, network, facility)))
