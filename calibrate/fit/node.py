"""Fitting what surrounds the GPUs of a node to its measured power on both sides of its supplies.

Nodes are metered as a whole, so few constants can be told apart. Two are fitted, both in closed form: what the node
draws beside its GPUs and the parts that its description states (``other_power_w``), and the supplies' efficiency.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from joulecast.errors import DataError
from joulecast.model.cluster.node_power import SUPPLY_LOSSES, node_power_w
from joulecast.model.hardware.description import Facts


def other_power_w(dc_w: ArrayLike, gpu_power_w: float, gpu_limit_w: float, node: Facts, network: Facts) -> float:
    """Mean of what remains of a node's measured direct-current power [W].

    Parameters
    ----------
    dc_w
        Measured power of nodes behind their supplies while they train, shape ``(n,)`` [W].
    gpu_power_w
        Power of one of their GPUs meanwhile [W].
    gpu_limit_w
        Its default limit [W].
    node, network
        Facts of all other parts; the network is at rest.

    Raises
    ------
    DataError
        The parts alone draw more than was measured.
    """
    parts = node_power_w(node["gpus_per_node"] * gpu_power_w, gpu_limit_w, node, network)
    rest = float(np.asarray(dc_w, dtype=np.float64).mean()) - (parts.dc_w - parts.other_w)
    if rest <= 0:
        raise DataError(f"the stated parts of {node.name} draw {-rest:.0f} W more than the measured node")
    return rest


def design_efficiency(dc_w: ArrayLike, ac_w: ArrayLike, design_w: float) -> float:
    """Efficiency at training load of supplies whose output and input were measured.

    Inverts :func:`joulecast.model.cluster.node_power.supply_efficiency`, whose losses go with 1/η_design − 1.

    Parameters
    ----------
    dc_w, ac_w
        Output and input of the same runs, shape ``(n,)`` [W].
    design_w
        Output at training load [W].

    Raises
    ------
    DataError
        More output than input.
    """
    output, drawn = np.asarray(dc_w, dtype=np.float64), np.asarray(ac_w, dtype=np.float64)
    if np.any(output > drawn):
        raise DataError("supplies cannot deliver more than they draw", key="power_side")
    load = output / design_w
    constant, linear, square = SUPPLY_LOSSES
    lost = (drawn - output) / design_w / (constant + linear * load + square * load**2)
    return float(1.0 / (1.0 + lost.mean()))
