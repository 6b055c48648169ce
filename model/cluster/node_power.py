"""Power of everything around the GPUs of a node, from the GPUs' boards to the facility's meter.

A node's supplies deliver direct current to GPUs, processors, switch chips, network cards, fans and the rest:

    P_DC = P_GPU + P_CPU + P_switch + P_NIC + P_fan + P_other,    P_AC = P_DC/η(P_DC),    P_site = PUE·(P_AC + P_net)

where P_net is the training network's switches. Every function takes watts and facts of the catalogue's node types and
networks (:func:`joulecast.model.hardware.catalogue.load_node`, :func:`joulecast.model.hardware.catalogue.load_network`)
and broadcasts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array
from joulecast.errors import InputError
from joulecast.model.hardware.description import Facts

#: Lowest speed of a fan as a share of its speed at training load: a usual floor of server firmware (estimate).
FAN_FLOOR = 0.4
#: A supply's losses at training load: without load, in proportion to it, and with its square. They follow the minima
#: of 80 PLUS Titanium at 230 V (90, 94, 96 and 94 % at 10, 20, 50 and 100 % of the rated power) for supplies that run
#: at half their rated power while the node trains.
SUPPLY_LOSSES = (0.48, 0.21, 0.31)
#: Efficiency of a network switch's supplies (estimate: 80 PLUS Platinum at part load).
SWITCH_SUPPLY_EFFICIENCY = 0.93
#: Ports of a switch where a network does not state them.
SWITCH_PORTS = 64


@dataclass(frozen=True, slots=True)
class NodePower:
    """Direct-current power of one node's parts [W], scalars or arrays of one shape.

    Attributes
    ----------
    gpu_w, cpu_w, switch_w, nic_w, fan_w, other_w
        GPUs' boards; processors and their memory; switch chips between the GPUs; network cards with their optics;
        fans; storage, board and management.
    """

    gpu_w: float
    cpu_w: float
    switch_w: float
    nic_w: float
    fan_w: float
    other_w: float

    @property
    def dc_w(self) -> float:
        """What the supplies deliver [W]."""
        return self.gpu_w + self.cpu_w + self.switch_w + self.nic_w + self.fan_w + self.other_w

    def to_dict(self) -> dict[str, float]:
        """Every part by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def cpu_power_w(activity: float, node: Facts) -> float:
    """Processors and their memory between idle (0) and feeding GPUs that train (1) [W].

    Raises
    ------
    InputError
        An activity outside 0 to 1.
    """
    idle, training = node.get("cpu_idle_power_w", 0.0), node.get("cpu_training_power_w", 0.0)
    return idle + (training - idle) * float(_activity(activity))


def nic_power_w(activity: ArrayLike, node: Facts, network: Facts) -> Array:
    """A node's network cards with their optical modules [W]; ``activity`` is the mean rate over the line rate."""
    idle, full = network["nic_idle_power_w"], network["nic_power_w"]
    card = idle + (full - idle) * _activity(activity) + network["transceiver_power_w"]
    return np.asarray(node["nics_per_node"] * card)


def fan_power_w(heat_w: ArrayLike, design_heat_w: float, design_power_w: float) -> Array:
    """Fans that carry away ``heat_w`` at a steady rise of the air's temperature [W].

    Air flow follows the heat, and by the affinity laws power follows the cube of the flow,
    P = P_design·max(FAN_FLOOR, heat/heat_design)³. Beyond the design's heat the flow stays and the air gets warmer.

    Parameters
    ----------
    heat_w
        Power of all other parts, any shape [W].
    design_heat_w, design_power_w
        Heat and fan power at training load [W].
    """
    flow = np.clip(np.asarray(heat_w, dtype=np.float64) / design_heat_w, FAN_FLOOR, 1.0)
    return np.asarray(design_power_w * flow**3)


def supply_efficiency(dc_w: ArrayLike, design_w: float, design_efficiency: float) -> Array:
    """Output over input of power supplies, any shape.

    With x = P/P_design and losses L = P_design·(1/η_design − 1)·(k0 + k1·x + k2·x²), k from :data:`SUPPLY_LOSSES`,
    η = P/(P + L): low at light load, highest about half of the rated power.

    Raises
    ------
    InputError
        ``design_efficiency`` outside 0 to 1.
    """
    if not 0.0 < design_efficiency <= 1.0:
        raise InputError(f"an efficiency lies between 0 and 1, not at {design_efficiency:g}", key="supply_efficiency")
    load = np.asarray(dc_w, dtype=np.float64) / design_w
    constant, linear, square = SUPPLY_LOSSES
    losses = (1.0 / design_efficiency - 1.0) * (constant + linear * load + square * load**2)
    return np.asarray(load / (load + losses))


def design_power_w(gpu_power_w: float, node: Facts, network: Facts) -> NodePower:
    """Parts of a node at training load, its GPUs at ``gpu_power_w`` each [W]: the reference of fans and supplies."""
    return NodePower(
        gpu_w=node["gpus_per_node"] * gpu_power_w,
        cpu_w=cpu_power_w(1.0, node),
        switch_w=node.get("switch_power_w", 0.0),
        nic_w=float(nic_power_w(1.0, node, network)),
        fan_w=node.get("fan_power_w", 0.0),
        other_w=node["other_power_w"],
    )


def node_power_w(
    gpu_power_w: float,
    gpu_limit_w: float,
    node: Facts,
    network: Facts,
    *,
    cpu_activity: float = 1.0,
    nic_activity: float = 0.0,
) -> NodePower:
    """Parts of one whole node whose GPUs together draw ``gpu_power_w`` on average.

    Parameters
    ----------
    gpu_power_w
        Sum of the node's GPUs [W].
    gpu_limit_w
        Default power limit of one GPU [W]; fans and supplies are laid out for it.
    node, network
        Facts from the catalogue.
    cpu_activity, nic_activity
        0 at rest, 1 while training and at line rate.

    Raises
    ------
    InputError
        An activity outside 0 to 1.
    """
    design = design_power_w(gpu_limit_w, node, network)
    cpu, nic = cpu_power_w(cpu_activity, node), float(nic_power_w(nic_activity, node, network))
    heat = gpu_power_w + cpu + nic + design.switch_w + design.other_w
    fan = float(fan_power_w(heat, design.dc_w - design.fan_w, design.fan_w))
    return NodePower(gpu_power_w, cpu, design.switch_w, nic, fan, design.other_w)


def node_dc_w(
    gpu_power_w: ArrayLike, gpu_limit_w: float, node: Facts, network: Facts, *, nic_activity: ArrayLike
) -> Array:
    """Sum of the parts of :func:`node_power_w` for many powers and activities at once, which broadcast [W]."""
    design = design_power_w(gpu_limit_w, node, network)
    rest = design.cpu_w + nic_power_w(nic_activity, node, network) + design.switch_w + design.other_w
    heat = np.asarray(gpu_power_w, dtype=np.float64) + rest
    return np.asarray(heat + fan_power_w(heat, design.dc_w - design.fan_w, design.fan_w))


def node_ac_w(dc_w: ArrayLike, gpu_limit_w: float, node: Facts, network: Facts) -> Array:
    """Input power of a node's supplies that deliver ``dc_w``, any shape [W]."""
    design = design_power_w(gpu_limit_w, node, network).dc_w
    return np.asarray(np.asarray(dc_w) / supply_efficiency(dc_w, design, node["supply_efficiency"]))


def switch_tiers(cards: int, ports: int) -> int:
    """Tiers of a non-blocking fat tree of switches with ``ports`` ports for ``cards`` network cards.

    One switch serves ``ports`` cards; t tiers serve 2·(ports/2)^t (Al-Fares et al., SIGCOMM 2008).

    >>> switch_tiers(8, 64), switch_tiers(512, 64), switch_tiers(16384, 64)
    (1, 2, 3)
    """
    return max(1, math.ceil(math.log(max(cards, 2) / 2.0) / math.log(ports / 2.0) - 1e-9))


def network_switch_power_w(cards: int, network: Facts) -> float:
    """Input power of the switches between ``cards`` network cards, their optics included [W].

    A fat tree of t tiers has 2t − 1 switch ports for each card. One card needs no switch.
    """
    if cards < 2:
        return 0.0
    ports = cards * (2 * switch_tiers(cards, int(network.get("switch_ports", SWITCH_PORTS))) - 1)
    port = network["switch_port_power_w"] + network["transceiver_power_w"]
    return ports * port / SWITCH_SUPPLY_EFFICIENCY


def _activity(value: ArrayLike) -> Array:
    share = np.asarray(value, dtype=np.float64)
    wrong = share[~((share >= 0.0) & (share <= 1.0))]
    if wrong.size:
        raise InputError(f"activity is a share, not {wrong[0]:g}", key="activity", remedy="Use 0 to 1.")
    return share
