"""Work under limits, clocks, windows and beside communication, and what clusters make of it, as it was last accepted.

``make forecasts`` accepts what is found now.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import accepted
import numpy as np
import pytest

import joulecast as jc
from joulecast.model.cluster import goodput, links, node_power, site_cost
from joulecast.model.cluster.fabric import ClusterLinks, fabric_of, within_domain
from joulecast.model.hardware.catalogue import (
    load_gpu,
    load_network,
    load_node,
    load_training,
    network_names,
    node_names,
)
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.power import component_power, contention, kernel_power, limits, memory_clock
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work
from joulecast.model.training import factors

FILE = "conditions"
CARDS = ("a100-sxm-80gb", "h200-sxm", "mi300x")
LAYER = (
    jc.Gemm(8192, 8192, 8192), jc.Attention(1, 32, 8, 4096, 128),
    jc.Streaming("rmsnorm", 1e8, 1e8, rows=8192, columns=4096), jc.Collective("all_reduce", 6.7e7, 4),
    jc.Gemm(1024, 512, 4096, "fp16", "zeros"), jc.Streaming("copy", 1e9, 1e9),
)  # fmt: skip
PIECES = [
    Work(LAYER, (2.0, 1.0, 3.0, 1.0, 4.0, 0.5)),
    Work(LAYER[:1], (3.0,)),
    Work(LAYER[:1], busy_share=0.4),
    Work(LAYER[1:3], busy_share=0.9),
    Work((jc.Collective("all_gather", 1e4, 2),) * 2, (1.0, 5.0)),
    Work(LAYER[4:5] * 2, (1.0, 3.0)),
]
CONDITIONS: dict[str, dict[str, Any]] = {
    "free": {},
    "short": {"settle_s": 0.05, "window_s": 0.6},
    "at once": {"settle_s": np.linspace(0.0, 0.3, len(PIECES)), "window_s": 0.02},
    "locked": {"clock_mhz": 1005.0},
    "limited": {"power_limit_w": 310.0},
    "parts": {"component_limits_w": {"compute": 230.0, "hbm": 60.0}},
    "resting": {"component_limits_w": {"compute": 130.0}, "clock_mhz": 1300.0},
}
LINKS = (
    ClusterLinks(8, None, None, 8.0, 5e10, 0.9, 7e-6, 1e-6, 256.0, 32.0),
    ClusterLinks(8, 4.5e11, 6.4e10, 4.0, 2.5e10, 0.8, 9e-6, 2e-6, 32.0, 16.0, 2.0, 0.1, nvls=True, sharp=True),
    ClusterLinks(6, 3e11, 3e11, 2.0, 5e10, 0.9, 7e-6, 1e-6, 12.0, 1.0, 1.5),
    ClusterLinks(72, 9e11, None, 72.0, 1e11, 0.9, 7e-6, 1e-6, 576.0, 64.0, nvls=True),
)


def numbers(*values: Any) -> list[float]:
    """Scalars and arrays as one list; what does not exist or is not finite is told by a large number."""
    flat = np.concatenate([np.ravel(np.asarray(v, dtype=np.float64)) for v in values])
    return [accepted.short(v) for v in np.nan_to_num(flat, nan=-1e99, posinf=1e99)]


def of_work(card: str, condition: str) -> dict[str, list[float]]:
    """Forecasts of several pieces of work with their intervals and components."""
    gpu = gpu_model(load_gpu(card))
    if condition == "parts" and card == "mi300x":
        options = {"component_limits_w": {"compute": 420.0, "io": 150.0, "hbm": 90.0}}
    else:
        options = CONDITIONS[condition]
    found = predict_work(PIECES, gpu, **options)
    columns = ("time_s", "energy_j", "clock_mhz", "time_s_p05", "time_s_p95", "energy_j_p05", "energy_j_p95")
    told = {name: numbers(getattr(found, name)) for name in columns}
    return {**told, **{f"components {name}": numbers(values) for name, values in found.components_j.items()}}


def of_power(card: str) -> dict[str, list[float]]:
    """Power at rest, waiting and by part; lags of groups; kernels beside communication; another memory clock."""
    gpu = gpu_model(load_gpu(card))
    clocks = gpu.clocks_mhz[:: len(gpu.clocks_mhz) // 6]
    found = {
        "idle": numbers(kernel_power.idle_power_w(clocks, gpu)),
        "wait": numbers(kernel_power.wait_power_w(clocks, gpu)),
        "rest by part": numbers(*component_power.rest_power_w(clocks, gpu).values()),
        "wait by part": numbers(*component_power.waiting_power_w(clocks, gpu).values()),
        "package": numbers(*component_power.package_of(gpu).shares.values()),
        "lag": numbers(
            *(limits.group_lag(clocks, *group, gpu, spread) for group in ((1, 64), (8, 8)) for spread in (0.0, 0.013))
        ),
        "limit share": numbers(*(limits.group_limit_share(members, gpu) for members in (1, 2, 8))),
        "sm loss": numbers(*(contention.sm_loss(ctas, gpu) for ctas in (0.0, 8.0, 24.0, 1e4))),
        "wave loss": numbers(*(contention.wave_loss(np.array([100.0, 1e3, 1e4]), c, gpu) for c in (0.0, 8.0, 1e3))),
    }
    return {**found, **_beside(gpu, clocks), **_memory_clock(gpu)}


def _beside(gpu: GpuModel, clocks: Any) -> dict[str, list[float]]:
    costs = lower(LAYER, gpu)
    time = np.stack([kernel_power.kernel_time_s(costs, clock, gpu) for clock in clocks], axis=1)
    kernels = contention.alone(costs, np.arange(len(LAYER)), time, clocks, 1e-6)
    found = {}
    for place in (0, 1, 2, 4, 5):
        drag = contention.compute_drag(kernels, place, 3, 24.0, gpu)
        other = contention.communication_drag(kernels, 3, place, gpu)
        found[f"beside {place}"] = numbers(drag, other, contention.memory_share(kernels, place, drag, 3, other))
    times = kernel_power.at_clock(costs, clocks[:, None], gpu)
    held = limits.hold_at_peak(times, clocks, 0.8 * gpu.device["power_limit_w"], gpu)
    found["held"] = numbers(held.time_s, held.energy_j, held.components_j["static"], held.components_j["clock"])
    slow, ceiling = component_power.limited_kernels(times, clocks, {"compute": 240.0, "hbm": 70.0}, gpu)
    found["parts"] = numbers(slow.time_s, slow.energy_j, ceiling)
    return found


def _memory_clock(gpu: GpuModel) -> dict[str, list[float]]:
    if not gpu.device.get("supports_memory_clock_states"):
        return {}
    slower = memory_clock.at_memory_clock(0.7 * gpu.device["memory_clock_mhz"], gpu)
    return {"memory clock": numbers(slower.device["memory_bandwidth_bytes_per_s"], slower["power.static_w"])}


def of_groups(place: int) -> dict[str, list[float]]:
    """What groups of ranks have of a cluster's links."""
    found = {}
    for members in (1, 2, 3, 8, 12, 64, 1024):
        for stride in (1, 2, 4, 8, 16):
            fabric = fabric_of(members, stride, LINKS[place])
            own = -1.0 if fabric.link_bytes_per_s is None else fabric.link_bytes_per_s
            rest = fabric.exit_bytes_per_s, fabric.step_latency_s, fabric.delay, fabric.nvls, fabric.sharp
            found[f"{members} {stride}"] = numbers(fabric.domains, own, fabric.efficiency, *rest)
    found["within"] = numbers(within_domain(3, LINKS[place]).link_bytes_per_s or -1.0)
    return found


def of_nodes() -> dict[str, list[float]]:
    """Power of node types and networks at some loads, links of clusters of them, failures and costs."""
    found = {}
    for name in node_names():
        paired = network_names()[crc32(name.encode()) % len(network_names())]  # not by place: a new node moves no other
        node, network = load_node(name), load_network(paired)
        gpus = node["gpus_per_node"]
        parts = [
            node_power.node_power_w(gpus * watt, 700.0, node, network, cpu_activity=cpu, nic_activity=nic).to_dict()
            for watt, cpu, nic in ((100.0, 0.0, 0.2), (650.0, 1.0, 1.0), (400.0, 0.5, 0.0))
        ]
        direct = node_power.node_dc_w(np.array([1e3, 5e3]), 700.0, node, network, nic_activity=0.3)
        found[f"node {name}"] = numbers(
            *(list(one.values()) for one in parts), direct, node_power.node_ac_w(direct, 700.0, node, network)
        )
        for gpus in (1, 4, 12, 64):
            for gpu, choice in (
                ("h200-sxm", links.LinkChoices()),
                ("b200", links.LinkChoices(4, None, 2, 1e10, 0.7, 0.0, 2, 1.5, nvls=True)),
            ):
                one = links.cluster_links(load_gpu(gpu), name, gpus, choice)
                told = [getattr(one, f) for f in one.__dataclass_fields__]
                found[f"links {name} {gpus} {gpu}"] = numbers(*(np.nan if v is None else float(v) for v in told))
    for name in network_names():
        found[f"network {name}"] = numbers(
            *(node_power.network_switch_power_w(cards, load_network(name)) for cards in (1, 2, 64, 65, 5000))
        )
    found["goodput"] = numbers(
        *(goodput.goodput(n, 3e7, c, r) for n in (1, 100, 5000) for c, r in ((60.0, 600.0), (4e3, 60.0), (9e7, 1.0)))
    )
    prices = site_cost.Prices(0.12, 0.35, 4e4, 300.0, 5.0, 0.7)
    cost = site_cost.cost_of(3e9, 4e3, 128, prices)
    spread = site_cost.cost_rel_sd(cost, site_cost.PriceSpread(0.1, 0.2, 0.3, 0.4, 0.5), 0.05, 0.03)
    found["cost"] = numbers(cost.electricity, cost.hardware, cost.money, cost.carbon_kg, cost.embodied_kg, *spread)
    return found


def of_training(card: str) -> dict[str, list[float]]:
    """Parameters that published runs' factors move."""
    found = {}
    for generation in ("", "nemo-2024", "megatron-core"):
        one = factors.trained(load_gpu(card), generation, load_training())
        names = [
            n for n in one.kernel.parameters if n.startswith(("training", "time", "host", "gemm.eff", "attention"))
        ]
        values = [one.kernel.parameters[n].number for n in names] + [one.kernel.parameters[n].sd for n in names]
        found[f"{generation} kernel"] = numbers(*values)
        found[f"{generation} power"] = numbers(*(p.number for p in one.power.parameters.values()))
        found[f"{generation} spread"] = numbers(np.diag(one.power.covariance), np.diag(one.kernel.covariance))
    return found


ROWS: dict[str, Any] = {
    **{f"work {card} {c}": (of_work, card, c) for card in CARDS for c in CONDITIONS},
    **{f"power {card}": (of_power, card) for card in CARDS},
    **{f"groups {place}": (of_groups, place) for place in range(len(LINKS))},
    **{f"training {card}": (of_training, card) for card in ("h100-sxm", "b200", "mi300x", "a40")},
    "nodes": (of_nodes,),
}


@pytest.fixture(scope="module")
def stands() -> dict[str, Any]:
    return accepted.read(FILE)


@pytest.mark.parametrize("name", ROWS)
def test_conditions_stand(name: str, stands: dict[str, Any]) -> None:
    of, *arguments = ROWS[name]
    found, before = of(*arguments), stands[name]
    assert found.keys() == before.keys()
    assert not [key for key, values in found.items() if values != pytest.approx(before[key], rel=1e-4, abs=1e-15)]


if __name__ == "__main__":
    accepted.write(FILE, {name: of(*arguments) for name, (of, *arguments) in ROWS.items()})
