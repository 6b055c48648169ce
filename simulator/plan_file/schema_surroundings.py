"""``[cluster]``, ``[network]``, ``[power]`` and ``[site]``: where a model is trained, and under which limits."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from joulecast.model.cluster.links import TRANSFER_JITTER
from joulecast.model.power.limits import NODE_CLOCK_SPREAD
from joulecast.simulator.plan_file.schema_table import Table

#: Most GPUs of a plan, far above all that were built: what depends on each of them stays within memory.
MOST_GPUS = 10_000_000

#: Most cards of a node, leaf switches and Gbit/s of a card, and longest step between nodes [us]: above any that exist.
MOST_CARDS, MOST_GBIT_PER_S, MOST_STEP_US = 1024, 1e5, 1e6

_Watts = Annotated[float, Field(gt=0)]
_Price = Annotated[float, Field(ge=0)]


class ClusterTable(Table):
    """``[cluster]``: where it is trained."""

    gpu: str = Field(description="Catalogue name, the driver's name, or path of a GPU description.")
    gpus: int = Field(gt=0, le=MOST_GPUS, description="GPUs in total.")
    gpus_per_node: int | None = Field(
        None,
        gt=0,
        le=MOST_GPUS,
        description="GPUs joined by the fast links; default: the node type's, 8 where it is not known.",
    )
    node: str | None = Field(
        None, description="Catalogue name or path of the node type; default: the one in which the GPU is usually sold."
    )
    node_clock_spread: float = Field(
        NODE_CLOCK_SPREAD,
        ge=0,
        le=0.2,
        description="Relative standard deviation of clocks at the power limit between cards of different nodes.",
    )


class NetworkTable(Table):
    """``[network]``: what joins the nodes; by default what the node type has."""

    name: str | None = Field(None, description="Catalogue name or path of the network; default: the node type's.")
    nics_per_node: int | None = Field(
        None, gt=0, le=MOST_CARDS, description="Network cards of a node; default: the node type's."
    )
    nic_gbit_per_s: float | None = Field(
        None,
        gt=0,
        le=MOST_GBIT_PER_S,
        description="Line rate of a card, one direction [Gbit/s]; default: the network's.",
    )
    efficiency: float | None = Field(
        None, gt=0, le=1, description="Share of it that large messages reach; default: the network's."
    )
    step_latency_us: float | None = Field(
        None,
        ge=0,
        le=MOST_STEP_US,
        description="One step between two nodes on one leaf switch [us]; default: the network's.",
    )
    rails: int | None = Field(
        None,
        gt=0,
        le=MOST_CARDS,
        description="Leaf switches that a node's cards spread over; default: one for each card, at most 8.",
    )
    oversubscription: float = Field(1.0, ge=1, description="Rate into a leaf switch over the rate out of it.")
    jitter: float = Field(
        TRANSFER_JITTER, ge=0, le=1, description="Relative standard deviation of a transfer's time between nodes."
    )
    nvls: bool = Field(False, description="All-reduces in the switches of a node (NVLink SHARP).")
    sharp: bool = Field(False, description="All-reduces in the switches of the network (SHARP).")


class PowerTable(Table):
    """``[power]``: clocks and limits; without either the board's default limit acts."""

    clock_mhz: Any = Field(
        None, description="SM clock [MHz]: a number, a list by stage, or a table forward/backward/… of either."
    )
    power_limit_w: _Watts | list[_Watts] | None = Field(
        None, description="Power limit of each GPU [W]: a number, or a list by stage."
    )
    component_limits_w: dict[str, float] = Field(
        {}, description="Limits on parts of each GPU, by name: compute, hbm, io or link [W]."
    )


class SiteTable(Table):
    """``[site]``: what surrounds the GPUs, what it costs and how much power it may draw."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = Field("default", description="Catalogue name or path of a site; the keys below win over it.")
    currency: str | None = Field(None, min_length=1, description="Currency of all prices.")
    pue: float | None = Field(
        None, ge=1, le=10, description="Energy at the facility's meter over that of its computers."
    )
    electricity_price_per_kwh: float | None = Field(None, ge=0, description="Price of a kilowatt-hour.")
    carbon_intensity_kg_per_kwh: float | None = Field(None, ge=0, le=5, description="CO2 equivalent of it [kg/kWh].")
    hardware_price_per_gpu: float | None = Field(
        None, ge=0, description="A GPU with its share of node and network; default: the node type's price and network."
    )
    gpu_price_per_hour: _Price | dict[str, _Price] | None = Field(
        None,
        description="Rent of a GPU for an hour, with its share of node and network, in place of hardware_price_per_gpu;"
        " also a table of rents by the GPUs' names. Electricity is in it unless electricity_price_per_kwh is stated.",
    )
    embodied_kg_per_gpu: float | None = Field(None, ge=0, description="CO2 equivalent of making that [kg].")
    hardware_lifetime_years: float | None = Field(None, gt=0, description="Years until hardware is replaced.")
    hardware_utilisation: float | None = Field(
        None, gt=0, le=1, description="Share of that time in which it does paid work."
    )
    goodput: float = Field(
        1.0, gt=0, le=1, description="Share of a run's time in which training advances: not checkpoints or restarts."
    )
    node_mtbf_hours: float | None = Field(
        None, gt=0, description="Mean time between failures of a node, each of which ends the job [h]; default: never."
    )
    checkpoint_s: float = Field(
        30.0, gt=0, description="Time in which a checkpoint holds up training; they are as far apart as is best [s]."
    )
    restart_s: float = Field(600.0, ge=0, description="From a failure to training again from the last checkpoint [s].")
    node_power_limit_w: float | None = Field(None, gt=0, description="Most that a node may draw from its outlet [W].")
    nodes_per_rack: int | None = Field(None, gt=0, description="Nodes of the node type in one rack.")
    rack_power_limit_w: float | None = Field(None, gt=0, description="Most that a rack's nodes may draw [W].")
    power_limit_w: float | None = Field(
        None, gt=0, description="Most that the job may draw at the facility's meter [W]."
    )
