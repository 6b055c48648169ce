"""``validate fronts``: time against energy of pipelines whose every instruction has its clock, forecast from the plan.

Nothing is fitted, and nothing measured is read. The source composed its fronts from measured forward and backward
passes of each stage: instructions follow one another as in 1F1B without transfers, and a stage that waits draws 85 W.
Forecast instructions are composed in the same way, so that the figures are those of the instructions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.calibrate.studies.pipeline_plans import PipelineJob, make_job
from joulecast.errors import InputError
from joulecast.model.architecture.hf import load_model
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.uncertainty import FEW_DIRECTIONS, deviations
from joulecast.simulator.fluid.prepared import Prepared, prepare
from joulecast.simulator.iteration.plan_interval import conditions_of
from joulecast.simulator.iteration.stretch import stretches
from joulecast.simulator.iteration.uncertainty import Intervals, KernelAmounts, intervals
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict
from joulecast.validate.published.fronts_files import METHODS, FrontRow, read_fronts
from joulecast.validate.scoring.baselines import transformer_flops
from joulecast.validate.scoring.metrics import geometric_mean
from joulecast.validate.scoring.result import Prediction, ScoredRow, SuiteResult
from joulecast.validate.scoring.summary import summarise

#: Card of the source, and the power at which it has one wait for another stage [W].
GPU, WAIT_POWER_W = "a100-sxm-40gb", 85.0
#: What all of the source's plans have in common.
STAGES, STAGE_LAYERS, MICROBATCHES = 2, [15, 13], 8
PROTOCOL = (
    "nothing fitted; trivial rule: one rate per clock and one energy per operation for all rows; of plans relative to "
    "the fastest of their front: time as 1/clock, energy as its square"
)


@dataclass(frozen=True, eq=False)
class _Forecast:
    """Forecasts of the ``n`` plans of a front; the first is the one that the others are compared with."""

    time_s: Array
    energy_j: Array
    ends: Intervals
    clock_mhz: Array


def run_fronts(data: str | Path, gpu: str | None = None) -> SuiteResult:
    """Forecast all plans of a table.

    Parameters
    ----------
    data
        As :func:`~joulecast.validate.published.fronts_files.read_fronts` reads it.
    gpu
        Catalogue name or path of a description in place of the source's card.

    Raises
    ------
    DataError
        A missing file or a broken line.
    """
    fronts: dict[tuple[Any, ...], list[FrontRow]] = {}
    for row in read_fronts(data):
        fronts.setdefault(row.front, []).append(row)
    scored: list[ScoredRow] = []
    relative: list[ScoredRow] = []
    skipped: list[tuple[str, str]] = []
    for rows in fronts.values():
        rows = sorted(rows, key=_mean_clock, reverse=True)
        try:
            found = _forecast(rows, gpu)
        except InputError as error:
            skipped.extend((_name(row), error.message) for row in rows)
            continue
        scored.extend(_levels(rows, found))
        relative.extend(_ratios(rows, found))
    scored = _beside_one_rate(scored)
    summary = summarise(scored)
    return SuiteResult(
        suite="fronts",
        gpu=gpu or GPU,
        rows=tuple(scored),
        summary=summary | {name: figures for name, figures in summarise(relative).items() if name != "all"},
        skipped=tuple(skipped),
        protocol=PROTOCOL,
    )


def _mean_clock(row: FrontRow) -> float:
    """Of a plan's instructions [MHz]: the highest of a front is that of its fastest plan."""
    return float(np.mean([clock for stage in row.clocks_mhz for clock in stage]))


def plan_of(row: FrontRow, gpu: str | None) -> Plan:
    """The plan of a front, as the source's configurations and code have it; clocks are the row's own."""
    sizes = dict(row.sizes)
    split: dict[str, object] = {key: sizes[key] for key in ("context_parallel_size", "tensor_model_parallel_size")}
    if sizes["context_parallel_size"] > 1:
        split["cp_comm_type"] = "all_gather"
    return plan_from_dict(
        {
            "workload": {
                "model": row.model,
                "sequence_length": sizes["sequence_length"],
                "micro_batch_size": sizes["micro_batch_size"],
                "global_batch_size": MICROBATCHES * sizes["micro_batch_size"],
            },
            "cluster": {"gpu": gpu or GPU, "gpus": 16, "gpus_per_node": 8},
            "parallelism": {**split, "pipeline_model_parallel_size": STAGES, "stage_layers": STAGE_LAYERS},
            "schedule": {"recompute": "full"},
            "overlap": {"nanobatches": METHODS[row.method]},
            "implementation": {
                "framework": "megatron",
                "generation": "megatron-core",
                "fused_loss": True,
                "tie_embeddings": False,
                # Lightning's trainer.deterministic is on, for which Transformer Engine leaves cuDNN on A100s.
                "deterministic": True,
                "attention_backend": "flash-attn-2",
            },
        }
    )


def _forecast(rows: Sequence[FrontRow], gpu: str | None) -> _Forecast:
    plan = plan_of(rows[0], gpu)
    description = gpu_of(plan)
    prepared = prepare(plan, gpu_model(description), governed=False)
    clocks = [row.clocks_mhz for row in rows]
    job = make_job(rows[0].workload, prepared.gpu, WAIT_POWER_W, 1, rows[0].orders, clocks)
    if job.schedule.microbatches != MICROBATCHES or any(row.orders != rows[0].orders for row in rows):
        raise InputError(f"plans of {rows[0].workload} differ in the order of their instructions")
    columns = np.abs(prepared.clocks_mhz - job.clocks_mhz[:, None]).argmin(axis=1)
    time, energy = (
        np.stack([getattr(table, name)[:2][:, columns] for table in prepared.tables])
        for name in ("duration_s", "energy_j")
    )
    executed = job.share * MICROBATCHES  # of each plan, stage, direction and clock
    whole = job.simulate(time[None])[0]
    busy = np.einsum("nsdc,sdc->n", executed, energy - WAIT_POWER_W * time)
    energy_j = busy + STAGES * WAIT_POWER_W * whole
    amounts = _amounts(prepared, executed, time, columns, description)
    ends = intervals(replace(amounts, power_w=energy_j / whole / STAGES), conditions_of(prepared, description))
    return _Forecast(whole, energy_j, ends, _busy_clock(job, executed, time))


def _busy_clock(job: PipelineJob, executed: Array, time: Array) -> Array:
    """Harmonic mean clock of each plan over the time that its instructions take, for rules of 1/clock [MHz]."""
    spent = executed * time
    return np.asarray(spent.sum(axis=(1, 2, 3)) / (spent / job.clocks_mhz).sum(axis=(1, 2, 3)))


def _amounts(
    prepared: Prepared, executed: Array, time: Array, columns: Int, description: GpuDescription
) -> KernelAmounts:
    """What the plans spend in each kernel."""
    kernels = prepared.kernels[0]
    counts = np.stack([table.counts[:2] for table in prepared.tables])
    runs = np.einsum("nsdc,sdm->nm", executed, counts)
    time_s, energy_j = (
        np.einsum("nsdc,sdm,cm->nm", executed, counts, values[columns])
        for values in (kernels.times.time_s, kernels.times.energy_j)
    )
    varied = deviations(description, FEW_DIRECTIONS)
    longer = np.stack([stretches(prepared, rank, columns, varied)[:, :2] for rank in range(STAGES)], axis=1)
    taken = executed * time
    mean = taken.sum(axis=(1, 2)) @ prepared.clocks_mhz[columns] / taken.sum(axis=(1, 2, 3))
    stretch = np.einsum("nsdc,ksdc->kn", taken, longer) / taken.sum(axis=(1, 2, 3))
    return KernelAmounts(kernels.operators, kernels.costs, runs, time_s, energy_j, mean, stretch)


def _name(row: FrontRow) -> str:
    return f"{row.workload}, {row.method}, plan {row.plan}"


def _row(row: FrontRow, measured: Measured) -> Row:
    configuration = {"model": row.model, **dict(row.sizes), "method": row.method, "plan": row.plan}
    return Row(_name(row), "front_plan", configuration, measured, row.file, row.line)


def _levels(rows: Sequence[FrontRow], found: _Forecast) -> list[ScoredRow]:
    """Time, energy and mean power of plans."""
    power = found.ends.power
    return [
        ScoredRow(
            _row(row, Measured(time_s=row.time_s, energy_j=row.energy_j, power_w=row.energy_j / row.time_s)),
            _prediction(
                found.time_s[i], found.energy_j[i], found.ends.time[:, i], found.ends.energy[:, i], power[:, i]
            ),
            row.method,
            ("fastest plan of each front",) if i == 0 else (),
            # What the trivial rule scales with, until all rows are known.
            baseline=Prediction(sm_clock_mhz=float(found.clock_mhz[i])),
        )
        for i, row in enumerate(rows)
    ]


def _ratios(rows: Sequence[FrontRow], found: _Forecast) -> list[ScoredRow]:
    """Ratios of time and energy to those of the front's fastest plan."""
    clock = found.clock_mhz / found.clock_mhz[0]
    return [
        ScoredRow(
            _row(row, Measured(time_s=row.time_s / rows[0].time_s, energy_j=row.energy_j / rows[0].energy_j)),
            _prediction(
                found.time_s[i] / found.time_s[0],
                found.energy_j[i] / found.energy_j[0],
                found.ends.time_ratio[:, i],
                found.ends.energy_ratio[:, i],
            ),
            f"{row.method}, relative to the fastest",
            baseline=Prediction(time_s=float(1.0 / clock[i]), energy_j=float(clock[i] ** 2)),
        )
        for i, row in enumerate(rows)
        if i > 0
    ]


def _prediction(
    time: float, energy: float, time_ends: Array, energy_ends: Array, power_ends: Array | None = None
) -> Prediction:
    """One plan, or its ratio to another, of whose power nothing is said."""
    low, high = (None, None) if power_ends is None else (float(energy / time * end) for end in power_ends)
    return Prediction(
        time_s=float(time),
        energy_j=float(energy),
        power_w=float(energy / time),
        time_s_p05=float(time * time_ends[0]),
        time_s_p95=float(time * time_ends[1]),
        energy_j_p05=float(energy * energy_ends[0]),
        energy_j_p95=float(energy * energy_ends[1]),
        power_w_p05=low,
        power_w_p95=high,
    )


def _beside_one_rate(rows: Sequence[ScoredRow]) -> list[ScoredRow]:
    """Beside each plan what one rate per clock, and one energy per operation, of all of them say."""
    work = np.array([_flops(row.row.configuration) for row in rows])
    per_clock = work / [row.baseline.sm_clock_mhz or math.nan for row in rows]
    time, energy = (np.array([getattr(row.measured, name) for row in rows]) for name in ("time_s", "energy_j"))
    one_time, one_energy = geometric_mean(time / per_clock), geometric_mean(energy / work)
    if one_time is None or one_energy is None:
        return list(rows)
    rules = zip((one_time * per_clock).tolist(), (one_energy * work).tolist(), strict=True)
    return [replace(row, baseline=Prediction(time_s=t, energy_j=e)) for row, (t, e) in zip(rows, rules, strict=True)]


def _flops(configuration: Mapping[str, Any]) -> float:
    """Operations of a plan's iteration."""
    model = load_model(configuration["model"])
    sizes = {"S": configuration["sequence_length"], "B": MICROBATCHES * configuration["micro_batch_size"]}
    shape = {name: getattr(model, name) for name in ("hidden", "heads", "kv_heads", "ffn", "layers", "vocab")}
    return transformer_flops({**sizes, **shape, "recompute": "full"})
