"""Power of network cards and switch ports, idle and at work.

A card's power rises from idle to its full-rate value with the bytes that it moves; its optical module and its share of
the switch draw theirs whether or not traffic flows:

    P = P_idle + (P_full − P_idle)·rate/line + P_optics + P_port

The links between the GPUs of a node are part of the boards: at rest they belong to the static power of the GPU's
description, at work to its ``power.link_pj_per_byte``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulecast.errors import InputError
from joulecast.model.description import Facts


def network_power_w(bytes_per_s: ArrayLike, network: Facts, *, optical: bool = True) -> NDArray[np.float64]:
    """Power of one network card with its optical module and switch port [W].

    Parameters
    ----------
    bytes_per_s
        Mean rate in one direction, any shape [B/s].
    network
        From :func:`joulecast.model.catalogue.load_network`.
    optical
        Whether the port has an optical module; short copper cables have none.

    Raises
    ------
    InputError
        A rate below 0 or above the line rate.
    """
    rate = np.asarray(bytes_per_s, dtype=np.float64)
    line = network["nic_bandwidth_bytes_per_s"]
    if np.any((rate < 0) | (rate > line)):
        raise InputError(f"a card of {network.name} moves 0 to {line:g} B/s", key="bytes_per_s")
    idle, full = network["nic_idle_power_w"], network["nic_power_w"]
    always = network["switch_port_power_w"] + (network["transceiver_power_w"] if optical else 0.0)
    return np.asarray(idle + (full - idle) * rate / line + always)
