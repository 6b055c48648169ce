"""Fits what the rows of collectives do not say of their networks: a few rates, from a part of the rows.

Of every system the rate of one GPU across nodes, of those with several GPUs a node also the rate of a whole node, and
of all together the share of the host's PCIe lanes that pairs without a bridge between them reach. All else comes from
the GPUs' descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.studies.network_rows import SYSTEMS, NetworkRow
from joulecast.model.cluster.collectives import REFERENCE_EFFICIENCY, REFERENCE_STEP_S
from joulecast.model.cluster.fabric import Fabric
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective
from joulecast.model.power.kernel_power import kernel_time_s

#: Where the fit starts: 100 Gbit/s a GPU, twice as much a node, three quarters of the lanes.
START = {"gpu": 12.5e9, "node": 25e9, "host_share": 0.75}
#: Relative misfit beyond which a row counts less: medians of one run jump by a factor when the library changes course.
ROBUST = 0.2


@dataclass(frozen=True, slots=True)
class NetworkConstants:
    """Fitted constants: names are ``gpu.SYSTEM``, ``node.SYSTEM`` [B/s] and ``host_share`` [1]."""

    values: Mapping[str, float]

    def fabric(self, row: NetworkRow, host_bytes_per_s: float) -> Fabric | None:
        """What joins the GPUs of a row; ``None`` is their own links."""
        if row.joined_by == "links":
            return None
        if row.joined_by == "host":
            exit_rate, domains = (
                self.values["host_share"] * host_bytes_per_s,
                row.gpus // SYSTEMS[row.system].domain_gpus,
            )
        else:
            whole = self.values.get(f"node.{row.system}", np.inf)
            exit_rate, domains = min(row.per_node * self.values[f"gpu.{row.system}"], whole), row.nodes
        return Fabric(
            domains,
            exit_bytes_per_s=exit_rate,
            efficiency=REFERENCE_EFFICIENCY,
            step_latency_s=REFERENCE_STEP_S,
        )


def network_times(rows: Sequence[NetworkRow], constants: NetworkConstants) -> Array:
    """Forecast of every row at its GPU's highest clock, shape ``(n,)`` [s]."""
    out = np.zeros(len(rows))
    for system, kind in SYSTEMS.items():
        gpu = gpu_model(load_gpu(kind.gpu))
        places = [i for i, row in enumerate(rows) if row.system == system]
        if places:
            out[places] = _times([rows[i] for i in places], gpu, constants)
    return out


def _times(rows: Sequence[NetworkRow], gpu: GpuModel, constants: NetworkConstants) -> Array:
    host = gpu.device["host_link_bandwidth_bytes_per_s"]
    operators = []
    for row in rows:
        fabric = constants.fabric(row, host)
        chosen = "auto" if fabric is not None and row.kind == "all_reduce" else "ring"
        operators.append(Collective(row.kind, row.bytes, row.gpus, fabric=fabric, algorithm=chosen))
    return np.asarray(kernel_time_s(lower(operators, gpu), gpu.max_clock_mhz, gpu), dtype=np.float64).reshape(-1)


def fit_network(rows: Sequence[NetworkRow]) -> NetworkConstants:
    """Constants that fit the rows best, in logarithms and robustly."""
    from scipy.optimize import least_squares

    names = _names(rows)
    start = np.array([START[name.partition(".")[0]] for name in names])
    if not names:
        return NetworkConstants({})
    measured = np.log([row.time_s for row in rows])

    def constants(x: Array) -> NetworkConstants:
        return NetworkConstants(dict(zip(names, start * np.exp(x), strict=True)))

    def misfit(x: Array) -> Array:
        return np.asarray(np.log(network_times(rows, constants(x))) - measured)

    found = least_squares(misfit, np.zeros(len(names)), loss="soft_l1", f_scale=ROBUST, diff_step=1e-3)
    return constants(found.x)


def _names(rows: Sequence[NetworkRow]) -> list[str]:
    names = {f"gpu.{row.system}" for row in rows if row.joined_by == "network"}
    names |= {f"node.{row.system}" for row in rows if row.joined_by == "network" and row.per_node > 1}
    if any(row.joined_by == "host" for row in rows):
        names.add("host_share")
    return sorted(names)


def one_bandwidth(rows: Sequence[NetworkRow]) -> dict[tuple[str, str, str], float]:
    """The trivial rule: one bus bandwidth of each system, collective and kind of link [B/s], median over the rows."""
    rates: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        rates.setdefault((row.system, row.kind, row.joined_by), []).append(bus_bytes(row) / row.time_s)
    return {key: float(np.median(values)) for key, values in rates.items()}


def bus_bytes(row: NetworkRow) -> float:
    """Bytes through one GPU of a ring."""
    return row.bytes * (2.0 * (row.gpus - 1) / row.gpus if row.kind == "all_reduce" else 1.0)
