"""The answer to a plan: one training iteration's time, power and energy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import arguments_for_options
from joulecast.extras import data_frame
from joulecast.model.hardware.description import GpuDescription
from joulecast.simulator.fluid.power_over_time import PowerOverTime
from joulecast.simulator.plan_file.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.simulator.iteration.site import SiteForecast
    from joulecast.simulator.traces.kernel_timeline import KernelTimeline

#: Name of the plain form of an iteration, with its version.
FORM = "joulecast-iteration-1"
#: What the plain form has of an iteration by the same name, in its order.
PLAIN = (
    *("gpus", "time_s", "time_s_p05", "time_s_p95", "energy_j", "energy_j_p05", "energy_j_p95"),
    *("power_w_p05", "power_w_p95", "power_w", "clock_mhz", "tokens", "tokens_per_s", "energy_per_token_j"),
    *("model_flops_per_s", "mfu", "energy_by_component_j", "energy_by_instruction_j", "time_by_instruction_s"),
)


@dataclass(frozen=True)
class RankForecast:
    """One pipeline stage's GPUs, all alike.

    Attributes
    ----------
    gpus
        How many GPUs do the same.
    power_w, clock_mhz
        Mean power and median SM clock of one of them.
    energy_j
        Of one of them, over one iteration.
    compute_s, exposed_communication_s, waiting_s
        How its time passes; together the iteration.
    group_waiting_s
        What of the exposed communication is waiting, within collectives, for the slowest of the GPUs that go in step.
    overlapped_communication_s
        Communication beside compute.
    memory_bytes
        Peak memory allocated by the framework.
    memory_reserved_bytes
        With what PyTorch's allocator keeps beside it: what ``torch.cuda.max_memory_reserved`` reports.
    memory_by_part_bytes
        Its parts, as :class:`joulecast.model.memory.footprint.MemoryFootprint` has them, and what lies outside.
    memory_margin_bytes
        What the GPU has beyond all of them.
    energy_by_component_j, energy_by_instruction_j
        Two ways to split ``energy_j``.
    time_by_instruction_s
        The same split of the iteration's time, communication and waiting within an instruction being part of it.
    power_by_part_w
        Mean power of the package's parts: compute dies, memory, and I/O dies or link; together ``power_w``.
    """

    stage: int
    gpus: int
    power_w: float
    clock_mhz: float
    energy_j: float
    compute_s: float
    exposed_communication_s: float
    group_waiting_s: float
    overlapped_communication_s: float
    waiting_s: float
    memory_bytes: float
    memory_reserved_bytes: float
    memory_by_part_bytes: dict[str, float]
    memory_margin_bytes: float
    energy_by_component_j: dict[str, float]
    energy_by_instruction_j: dict[str, float]
    time_by_instruction_s: dict[str, float]
    power_by_part_w: dict[str, float]


@dataclass(frozen=True)
class Iteration:
    """Forecast of one iteration of a training loop in steady state.

    Attributes
    ----------
    time_s, energy_j, power_w
        Time of an iteration, and energy and mean power of all GPUs together.
    clock_mhz
        Mean over GPUs of the median SM clock.
    time_s_p05, time_s_p95, energy_j_p05, energy_j_p95, power_w_p05, power_w_p95
        90 % interval: uncertainty of the parameters and of the model's form.
    tokens
        Tokens trained in the iteration.
    ranks
        One entry for each pipeline stage.
    plan
        The plan that this is a forecast of.
    power_over_time
        Power of one GPU of each stage, step by step.
    peak_ends
        Factors at 5 % and 95 % on the highest of these.
    assumptions
        What the forecast takes for granted.
    description
        The GPU that it was forecast for.
    """

    time_s: float
    energy_j: float
    power_w: float
    clock_mhz: float
    time_s_p05: float
    time_s_p95: float
    energy_j_p05: float
    energy_j_p95: float
    power_w_p05: float
    power_w_p95: float
    tokens: int
    ranks: tuple[RankForecast, ...] = field(repr=False, hash=False)
    plan: Plan = field(repr=False)
    power_over_time: PowerOverTime = field(repr=False, compare=False)
    peak_ends: tuple[float, float] = field(default=(1.0, 1.0), repr=False)
    assumptions: tuple[str, ...] = field(default=(), repr=False)
    description: GpuDescription | None = field(default=None, repr=False, compare=False)

    @property
    def gpus(self) -> int:
        """GPUs of the plan."""
        return self.plan.cluster.gpus

    @property
    def tokens_per_s(self) -> float:
        """Training throughput of all GPUs."""
        return self.tokens / self.time_s

    @property
    def energy_per_token_j(self) -> float:
        """Energy of all GPUs for one token."""
        return self.energy_j / self.tokens

    @property
    def model_flops_per_s(self) -> float:
        """Floating-point operations of the model, not of the plan, that a GPU gets done in a second."""
        from joulecast.model.architecture.model_flops import image_flops, training_flops
        from joulecast.simulator.plan_file.lora import adapter_weights

        w = self.plan.workload
        documents = None if w.packed is None else w.packed.documents
        flops = training_flops(
            w.model,
            w.sequence_length,
            self.tokens,
            adapter_weights(self.plan),
            documents,
            scored=w.scored_share,
            further_forwards=w.further_forwards,
        )
        if w.teacher is not None:
            flops += training_flops(w.teacher, w.sequence_length, self.tokens, scored=w.scored_share) / 3.0
        if w.images is not None and w.model.vision is not None:
            flops += image_flops(w.model.vision, w.images, self.tokens / w.sequence_length)
        return flops / self.time_s / self.gpus

    @property
    def mfu(self) -> float | None:
        """Share of the data sheet's dense rate in the plan's precision that these are; ``None`` without such a rate."""
        from joulecast.model.hardware.catalogue import load_gpu

        device = (self.description or load_gpu(self.plan.cluster.gpu)).device
        peak = device.get(f"published_tensor_flops_per_s.{self.plan.workload.precision}")
        return None if peak is None else self.model_flops_per_s / peak.number

    @property
    def energy_by_component_j(self) -> dict[str, float]:
        """Energy of all GPUs by component."""
        return _total(self.ranks, "energy_by_component_j")

    @property
    def energy_by_instruction_j(self) -> dict[str, float]:
        """Energy of all GPUs by kind of instruction."""
        return _total(self.ranks, "energy_by_instruction_j")

    @property
    def time_by_instruction_s(self) -> dict[str, float]:
        """Time of the mean GPU by kind of instruction; its waiting for other stages is the pipeline's bubble."""
        return {name: value / self.gpus for name, value in _total(self.ranks, "time_by_instruction_s").items()}

    @cached_property
    def site(self) -> SiteForecast | None:
        """Nodes, facility, money, carbon and power limits; ``None`` where no node type is known for the GPU."""
        from joulecast.model.hardware.catalogue import load_gpu
        from joulecast.simulator.iteration.site import site_forecast
        from joulecast.simulator.iteration.site_model import site_model

        model = site_model(self.plan, self.description or load_gpu(self.plan.cluster.gpu))
        return None if model is None else site_forecast(self, model)

    def timeline(self) -> KernelTimeline:
        """Every kernel of one GPU of each stage, simulated with the clocks that the governor chose."""
        from joulecast.simulator.traces.kernel_timeline import kernel_timeline

        return kernel_timeline(self.plan, self.description)

    @arguments_for_options({"--trace": "path", "--trace-format": "form"})
    def write_trace(self, path: str | os.PathLike[str], form: str = "perfetto") -> Path:
        """Write kernels, power, clocks and memory for https://ui.perfetto.dev, or a folder for analysis (``hta``)."""
        from joulecast.simulator.traces.iteration_trace import write_iteration_trace

        return write_iteration_trace(path, self.plan, self.description, form)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        return {
            "form": FORM,
            "model": self.plan.workload.model_name,
            "gpu": self.plan.cluster.gpu,
            **{name: getattr(self, name) for name in PLAIN},
            "stages": [_stage(rank) for rank in self.ranks],
            "site": self.site and self.site.to_dict(),
            "assumptions": list(self.assumptions),
        }

    def to_frame(self) -> pd.DataFrame:
        """One line for each pipeline stage; needs pandas."""
        return data_frame([flat_line(_stage(rank)) for rank in self.ranks])


def flat_line(stage: Mapping[str, Any]) -> dict[str, Any]:
    """A stage of :meth:`Iteration.to_dict` in one line, with a column for each component and part of the memory."""
    line = {name: value for name, value in stage.items() if not isinstance(value, Mapping)}
    line |= {f"{name}_j": value for name, value in stage["energy_by_component_j"].items()}
    line |= {f"{name}_power_w": value for name, value in stage["power_by_part_w"].items()}
    return line | {f"memory_{name}_bytes": value for name, value in stage["memory_by_part_bytes"].items()}


def _stage(rank: RankForecast) -> dict[str, Any]:
    return {name: getattr(rank, name) for name in RankForecast.__dataclass_fields__}


def _total(ranks: tuple[RankForecast, ...], field: str) -> dict[str, float]:
    total: dict[str, float] = {}
    for rank in ranks:
        for name, value in getattr(rank, field).items():
            total[name] = total.get(name, 0.0) + value * rank.gpus
    return total
