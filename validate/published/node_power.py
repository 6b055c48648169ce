"""Node power of published training runs, forecast from the same plans as their step times.

A run is forecast on the node type in which it ran: its GPUs by the simulator, all other parts by the node type. Where
no row of the published iterations has the run's configuration, a run within one node counts as limited by its GPUs'
power; others are left out and named. Nothing is fitted here: what was fitted to which runs stands with its source in
the node types, and these runs form the group ``fitted``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from joulecast.calibrate.published.plans import plan_row
from joulecast.calibrate.published.rows import PublishedRow
from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu, load_network, load_node
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.governor import settled_power_w
from joulecast.model.power.limits import group_limit_share
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.iteration.result import Iteration
from joulecast.simulator.iteration.site_model import half_widths, surroundings
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.site import Site
from joulecast.validate.published.node_power_files import NodePowerRow
from joulecast.validate.scoring.result import Prediction, ScoredRow
from joulecast.validate.scoring.summary import summarise


@dataclass(frozen=True)
class System:
    """A published system: the pattern of its name, its node type, and the workloads to which the node was fitted."""

    pattern: str
    node: str
    fitted: tuple[str, ...] = ()


#: Systems by name; the first match counts.
SYSTEMS = (
    System(r"SMC .*H100.*immersion", "hgx-h100-immersion", ("llama2_70b_lora",)),
    System(r"XE9680.*H100", "hgx-h100"),
    System(r"SR780a.*B200", "hgx-b200-water"),
)
#: Tensor-parallel size of MLPerf's Llama 2 70B LoRA within one node (configurations …x8x…xtp4pp1…).
LORA_TENSOR_PARALLEL = 4
#: How far the mean power of GPUs that are taken to be at their limit lies from it (estimate).
GPU_AT_LIMIT_REL_SD = 0.02
#: Runs within one node whose power is known to be that of GPUs at their limit.
POWER_LIMITED = ("llama2_70b_lora",)


@dataclass(frozen=True)
class NodeForecast:
    """Power of one node on one side of its supplies with its 90 % interval [W].

    Where a step is simulated, its time [s] and the ends of all nodes' energy [J].
    """

    power_w: float
    low_w: float
    high_w: float
    time_s: float | None = None
    energy_ends_j: tuple[float, float] | None = None


def node_power_rows(
    rows: Sequence[NodePowerRow], published: Sequence[PublishedRow], gpu: GpuDescription | None = None
) -> tuple[list[ScoredRow], list[tuple[str, str]]]:
    """Scored runs, and those that cannot be forecast with the reason.

    Parameters
    ----------
    rows
        Measured runs.
    published
        Iterations among which their configurations are looked up.
    gpu
        Description in place of the systems' own.
    """
    simulate = cache(lambda plan: forecast(plan, gpu, must_fit=False))  # both sides of the supplies share one
    known: dict[tuple[str, int, str, str], NodeForecast | str] = {}
    answers: list[tuple[NodePowerRow, NodeForecast]] = []
    skipped: list[tuple[str, str]] = []
    for row in rows:
        key = (row.system, row.gpus, row.workload, row.power_side)
        if key not in known:
            try:
                known[key] = node_forecast(row, published, simulate, gpu)
            except InputError as error:
                known[key] = str(error)
        answer = known[key]
        if isinstance(answer, str):
            skipped.append((row.name, answer))
        else:
            answers.append((row, answer))
    constant = trivial_constants_w([row for row, _ in answers])
    return [_scored(row, answer, constant) for row, answer in answers], skipped


def node_forecast(
    row: NodePowerRow,
    published: Sequence[PublishedRow],
    simulate: Callable[[Plan], Iteration] = forecast,
    gpu: GpuDescription | None = None,
) -> NodeForecast:
    """Power of one of the row's nodes.

    Parameters
    ----------
    row, published, gpu
        As :func:`node_power_rows` takes them.
    simulate
        Forecasts an iteration.

    Raises
    ------
    InputError
        Unknown system, or a configuration that nobody publishes.
    """
    system = system_of(row)
    chosen = configuration_of(row, published)
    if chosen is not None:
        plan = plan_row(chosen).plan
        return _simulated(row, simulate(replace(plan, cluster=replace(plan.cluster, node=system.node))))
    if row.nodes > 1 or row.workload not in POWER_LIMITED:
        raise InputError(
            f"no configuration of {row.workload} on {row.gpus} GPUs is known, nor do its GPUs stay at their limit",
            key="workload",
        )
    return _limited(row, system, gpu)


def system_of(row: NodePowerRow) -> System:
    """The row's system.

    Raises
    ------
    InputError
        No pattern matches.
    """
    for system in SYSTEMS:
        if re.search(system.pattern, row.system):
            return system
    raise InputError(f"no node type is known for {row.system!r}", key="system", remedy="Add it to SYSTEMS.")


def configuration_of(row: NodePowerRow, published: Sequence[PublishedRow]) -> PublishedRow | None:
    """The published iteration of the same round, submitter, model and number of GPUs, if there is one."""
    round_of = re.search(r"v\d+\.\d+", row.source)
    submitter = row.system.split()[0].lower()
    for one in published:
        same_model = re.sub(r"\W|_", "", one.model).lower() == re.sub(r"\W|_", "", row.workload).lower()
        same_round = round_of is not None and round_of[0] in one.source
        if same_model and same_round and one.num_gpus == row.gpus and submitter in one.source.lower():
            return one
    return None


def _simulated(row: NodePowerRow, iteration: Iteration) -> NodeForecast:
    site = iteration.site
    if site is None:
        raise InputError(f"no node type for {iteration.plan.cluster.gpu}", key="system")
    level = "node_dc" if row.power_side == "DC" else "node_ac"
    low, mean, high = (getattr(e, level) / row.nodes for e in (site.power_w_p05, site.power_w, site.power_w_p95))
    ends = getattr(site.energy_j_p05, level), getattr(site.energy_j_p95, level)
    return NodeForecast(mean, low, high, iteration.time_s, ends)


def _limited(row: NodePowerRow, system: System, gpu: GpuDescription | None) -> NodeForecast:
    """A node whose GPUs settle at their limit, in step by tensor parallelism."""
    description = gpu if gpu is not None else load_gpu(load_node(system.node).text("gpu"))
    physics = gpu_model(description)
    limit = physics.device["power_limit_w"]
    each = float(settled_power_w(limit, physics)) * group_limit_share(LORA_TENSOR_PARALLEL, physics)
    facts = load_node(system.node)
    model = surroundings(facts, load_network(facts.text("network")), limit, Site())
    node = model.node_power(each, 0.0)
    half = half_widths(model, node, GPU_AT_LIMIT_REL_SD)
    if row.power_side == "DC":
        return _within(node.dc_w, half.node_dc)
    return _within(float(model.ac_w(node.dc_w)), half.node_ac)


def _within(power_w: float, half: float) -> NodeForecast:
    return NodeForecast(power_w, power_w * float(np.exp(-half)), power_w * float(np.exp(half)))


def trivial_constants_w(rows: Sequence[NodePowerRow]) -> Mapping[str, float]:
    """The constant beside all GPUs at their limit that fits runs within one node best, by side of the supplies [W]."""
    rest: dict[str, list[float]] = {}
    for row in rows:
        if row.nodes == 1:
            rest.setdefault(row.power_side, []).append(row.measured_w - _limits_w(row))
    return {side: float(np.mean(values)) for side, values in rest.items()}


def _limits_w(row: NodePowerRow) -> float:
    limit = load_gpu(load_node(system_of(row).node).text("gpu")).number("power_limit_w")
    return row.gpus / row.nodes * limit


def _scored(row: NodePowerRow, answer: NodeForecast, constant: Mapping[str, float]) -> ScoredRow:
    system = system_of(row)
    trivial = _limits_w(row) + constant.get(row.power_side, 0.0)
    fitted = "node type fitted to these" if row.workload in system.fitted else "nothing fitted to these"
    time = answer.time_s
    low, high = answer.energy_ends_j or (None, None)
    return ScoredRow(
        Row(
            row.name,
            "node_power",
            {"system": row.system, "workload": row.workload, "gpus": row.gpus, "power_side": row.power_side},
            Measured(
                energy_j=row.energy_per_step_j if time is not None else None,
                power_w=row.measured_w * row.nodes,
            ),
            row.file,
            row.line,
        ),
        Prediction(
            time_s=time,
            power_w=answer.power_w * row.nodes,
            energy_j=None if time is None else answer.power_w * row.nodes * time,
            energy_j_p05=low,
            energy_j_p95=high,
            power_w_p05=answer.low_w * row.nodes,
            power_w_p95=answer.high_w * row.nodes,
        ),
        family=f"nodes: {row.system}, {row.workload}",
        groups=(f"nodes: {fitted}",),
        baseline=Prediction(power_w=trivial * row.nodes),
    )


def node_summary(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    """Figures of merit of nodes: of all, by system and workload, and by whether the node type was fitted to them."""
    found = summarise(rows) if rows else {}
    return {"nodes" if group == "all" else group: figures for group, figures in found.items()}


def node_table(rows: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """Mean power of a node by system, workload and side: measured, forecast and by the trivial rule [W]."""
    table: dict[tuple[str, ...], list[ScoredRow]] = {}
    for row in rows:
        c = row.row.configuration
        table.setdefault((c["system"], c["workload"], c["power_side"]), []).append(row)
    lines = []
    for (system, workload, side), same in table.items():
        nodes = max(1.0, same[0].row.configuration["gpus"] / 8)
        measured = float(np.mean([r.measured.power_w or np.nan for r in same])) / nodes
        line: dict[str, Any] = {"system": system, "workload": workload, "side": side, "rows": len(same)}
        line |= {"measured_w": measured}
        for name, given in (("forecast", same[0].prediction.power_w), ("trivial", same[0].baseline.power_w)):
            line[f"{name}_w"] = (given or np.nan) / nodes
            line[f"{name}_error_percent"] = round(100.0 * (line[f"{name}_w"] / measured - 1.0), 2)
        lines.append(line)
    return lines
