"""Factors of long training runs, fitted to published step times.

Each run's step time is forecast at the factors' starting values, and again with each factor that acts on it changed a
little: logarithms of times are close to linear in logarithms of factors. The fit is then a robust least-squares problem
with priors, solved at once however many sources are left out; the model is linearised again at its solution.

The factors of an architecture have the uncertainty of its description as their prior; those of a generation of
frameworks a common one, but for those that were measured. Nothing is fitted to a single run, model or source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.fit.solve import residual_variance
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.training.factors import scaled
from joulecast.simulator.fluid.prepared import prepare
from joulecast.simulator.fluid.steady_state import simulate
from joulecast.simulator.plan_file.plan import Plan

#: What a measured step differs by from the best factors' forecast, as a logarithm; beyond it errors count linearly.
RESIDUAL_SD = 0.03
#: Prior spread of a generation's factor: fusions, gaps and side streams that the kernels do not show.
GENERATION_SD = 0.05
#: Factors of generations that were measured apart from any published step, and their standard deviations: 21 iterations
#: of dense models in Megatron-Core 0.16 on H200s of three hosts (`validate/recorded/h200_sxm/train_megatron.jsonl`).
MEASURED = {"generation.megatron-core": (1.073, 0.03)}
#: Prior spread of the host's time for a launch: processors of one year's servers differ. A wider one lets sources that
#: are slow for other reasons move it, since it binds few runs (chosen with left-out sources in view).
HOST_SD = 0.15
#: Logarithmic change at which slopes are taken: the board's clocks make smaller ones uneven.
STEP = 0.05
#: Most micro-batches with which slopes are taken: the pipeline's filling and the step's end keep their weight.
MICROBATCHES = 64
#: Clocks between those at which slopes are taken.
COARSE = 4
#: Rounds of a robust fit.
REWEIGHTINGS = 30
#: Parameter of the description whose relative uncertainty is a factor's prior.
PRIOR_OF = {
    "products": ("kernel", "gemm.eta"),
    "attention": ("kernel", "attention.cudnn.forward.eta"),
    "streaming": ("kernel", "streaming.add.bandwidth_share"),
    "links": ("collective", "link_share"),
    "network": ("collective", "network_share"),
    "energy": ("power", "tensor_pj_per_flop.fp8"),
    "power": ("power", "tensor_pj_per_flop.bf16"),
}
#: How much less is known of FP8 products and their energy, as descriptions of other architectures rest on bf16 alone.
FP8_WIDER = {"products.fp8": 2.0, "energy.fp8": 4.0}
#: Cards whose factors are their own, not their architecture's: beside B200's, GB200's steps are faster in bf16 and
#: slower in FP8 than the data sheets say.
OWN = ("gb200",)
#: Architectures that are another one's revision, cards beside others of theirs, and how far their factors differ.
RELATED, RELATED_SD = {"Blackwell Ultra": "Blackwell", "gb200": "Blackwell"}, 0.07
#: Least prior spread of a factor: a kernel alone is not a kernel among others.
LEAST_SD = 0.04


@dataclass(frozen=True)
class Linearised:
    """Logarithmic step times of ``n`` plans near one set of ``k`` logarithmic factors.

    Attributes
    ----------
    names
        The factors.
    at
        Where the model was linearised, shape ``(k,)``.
    base, slopes
        Logarithm of the step time there, ``(n,)``, and its slopes, ``(n, k)``.
    prior_sd
        Prior spread of each factor, ``(k,)``.
    """

    names: tuple[str, ...]
    at: Array
    base: Array
    slopes: Array
    prior_sd: Array

    def log_time(self, values: Array) -> Array:
        """Logarithmic step times at other factors."""
        return np.asarray(self.base + self.slopes @ (values - self.at))


@dataclass(frozen=True)
class Fitted:
    """Logarithmic factors with their covariance."""

    names: tuple[str, ...]
    values: Array
    covariance: Array

    def factors(self) -> dict[str, float]:
        """Factors by name."""
        return dict(zip(self.names, np.exp(self.values).tolist(), strict=True))


def owner_of(gpu: str) -> str:
    """Whose factors are fitted to steps of a GPU: its architecture's, or its own."""
    description = load_gpu(gpu)
    return description.name if description.name in OWN else description.text("architecture")


def factors_of(plan: Plan) -> dict[str, str]:
    """Factors that act on a plan's step: name in the fit to name in :func:`~joulecast.model.training.factors.scaled`.

    None act on PyTorch's kernels, which are forecast as the description has them.
    """
    if plan.implementation.framework != "megatron":
        return {}
    owner = owner_of(plan.cluster.gpu)
    names = [f"products.{'bf16' if plan.workload.narrow else plan.workload.precision}", "streaming", "power"]
    if plan.workload.narrow:
        names += ["products.fp8", "energy.fp8", *(["products.blocked"] if plan.workload.narrow.blocked else [])]
    if plan.implementation.attention_backend != "unfused":
        names.append("attention")
    if plan.cluster.gpus > 1:
        names.append("links")
    found = {f"{owner}.{name}": name for name in names}
    if plan.cluster.nodes > 1:
        found["network"] = "network"
    if not plan.implementation.cuda_graphs:
        found["host"] = "host"
    if plan.implementation.generation:
        found[f"generation.{plan.implementation.generation}"] = "time"
    return found


def description_of(plan: Plan, factors: Mapping[str, float]) -> GpuDescription:
    """The GPU of a plan with the factors that act on it; those that are not given are 1."""
    own = {short: factors.get(name, 1.0) for name, short in factors_of(plan).items()}
    return scaled(load_gpu(plan.cluster.gpu), own)


def linearise(plans: Sequence[Plan], at: Mapping[str, float] | None = None) -> Linearised:
    """The model near given factors, by default all 1."""
    factors = dict(at or {})
    acting = [factors_of(plan) for plan in plans]
    names = tuple(sorted({name for one in acting for name in one}))
    place = {name: i for i, name in enumerate(names)}
    base = log_times(plans, factors)
    found = np.zeros((len(plans), len(names)))
    alike: dict[Plan, dict[str, float]] = {}
    for row, plan in enumerate(plans):
        kind = _but_for_replicas(plan)
        if kind not in alike:
            alike[kind] = _slopes(plan, factors)
        for name, slope in alike[kind].items():
            found[row, place[name]] = slope
    start = np.log([factors.get(name, 1.0) for name in names])
    return Linearised(names, start, base, found, _prior_sd(plans, names))


def log_times(plans: Sequence[Plan], factors: Mapping[str, float]) -> Array:
    """Logarithmic step times at given factors, shape ``(n,)``; a plan that stands several times is run once."""
    times = {plan: _time_s(plan, description_of(plan, factors)) for plan in dict.fromkeys(plans)}
    return np.log([times[plan] for plan in plans])


def _but_for_replicas(plan: Plan) -> Plan:
    """What plans have in common that differ in the number of replicas alone: their slopes hardly differ."""
    workload = replace(plan.workload, global_batch_size=plan.microbatches)
    shards = min(plan.parallelism.fsdp_shard_size, 2)
    parallelism = replace(plan.parallelism, data_parallel_size=1, fsdp_shard_size=shards)
    nodes = 2 if plan.cluster.nodes > 1 else 1
    cluster = replace(plan.cluster, gpus=nodes * plan.cluster.gpus_per_node)
    return replace(plan, workload=workload, parallelism=parallelism, cluster=cluster)


def _slopes(plan: Plan, factors: Mapping[str, float]) -> dict[str, float]:
    """Slopes of a plan's logarithmic step time, where it has very many micro-batches with fewer of them."""
    few = min(plan.microbatches, max(MICROBATCHES, 2 * plan.pp))
    workload = replace(plan.workload, global_batch_size=few * plan.workload.micro_batch_size * plan.dp)
    short = replace(plan, workload=workload)
    base = _time_s(short, description_of(plan, factors), COARSE)
    found = {}
    for name in factors_of(plan):
        changed = {**factors, name: factors.get(name, 1.0) * np.exp(STEP)}
        found[name] = float(np.log(_time_s(short, description_of(plan, changed), COARSE) / base) / STEP)
    return found


def _time_s(plan: Plan, description: GpuDescription, coarse: int = 1) -> float:
    gpu = gpu_model(description)
    device = {**gpu.device, "clock_step_mhz": coarse * gpu.device["clock_step_mhz"]}
    return simulate(prepare(plan, replace(gpu, device=device))).step_time_s


def _prior_sd(plans: Sequence[Plan], names: Sequence[str]) -> Array:
    """Spread of each factor before any run is seen, from the descriptions' own uncertainty."""
    found: dict[str, float] = {}
    for plan in plans:
        description = load_gpu(plan.cluster.gpu)
        for name, short in factors_of(plan).items():
            if short in ("time", "host"):
                _, measured = MEASURED.get(name, (1.0, GENERATION_SD))
                found[name] = measured if short == "time" else HOST_SD
                continue
            table, key = PRIOR_OF[short.partition(".")[0]]
            parameter = description.tables[table].parameters[key]
            wide = FP8_WIDER.get(short, 1.0)
            found[name] = max(wide * parameter.sd / abs(parameter.number), LEAST_SD)
    return np.array([found[name] for name in names])


def _prior_precision(model: Linearised) -> Array:
    """What is known of the factors before any run: each is near 1, or near that of a related architecture."""
    place = {name: i for i, name in enumerate(model.names)}
    precision = np.zeros((len(place), len(place)))
    for name, i in place.items():
        architecture, _, short = name.partition(".")
        j = place.get(f"{RELATED.get(architecture)}.{short}")
        if j is None:
            precision[i, i] += 1.0 / model.prior_sd[i] ** 2
            continue
        own = 1.0 / RELATED_SD**2
        precision[i, i] += own
        precision[j, j] += own
        precision[i, j] -= own
        precision[j, i] -= own
    return precision


def fit(model: Linearised, log_measured: Array, use: Array, trust_sd: float = np.inf) -> Fitted:
    """Factors that explain measured step times.

    Parameters
    ----------
    log_measured
        Logarithms of the measured step times, shape ``(n,)``; NaN where there is none.
    use
        Weight of each run, 0 for one that is left out, shape ``(n,)``.
    trust_sd
        How far the factors may move from where the model was linearised, as a standard deviation that the answer's
        covariance does not count; by default as far as they like.
    """
    known = np.isfinite(log_measured) & (use > 0)
    slopes, gap = model.slopes[known], (log_measured - model.base)[known] + model.slopes[known] @ model.at
    own = use[known] / RESIDUAL_SD**2
    prior, step = _prior_precision(model), np.eye(len(model.names)) / trust_sd**2
    expected = prior @ np.log([MEASURED.get(name, (1.0, 0.0))[0] for name in model.names])
    values: Array = np.zeros(len(model.names))
    weight: Array = own
    for _ in range(REWEIGHTINGS):
        precision = prior + slopes.T @ (weight[:, None] * slopes)
        values = np.asarray(np.linalg.solve(precision + step, slopes.T @ (weight * gap) + step @ model.at + expected))
        left = gap - slopes @ values
        weight = own / np.maximum(1.0, np.abs(left) / RESIDUAL_SD)
    covariance = np.linalg.inv(precision)
    # Priors are related: they are independent, and of variance 1, in the coordinates of their precision's root.
    root = np.linalg.cholesky(prior)
    covariance *= max(1.0, residual_variance(left / RESIDUAL_SD, root.T @ covariance @ root))
    return Fitted(model.names, values, np.asarray(covariance))
