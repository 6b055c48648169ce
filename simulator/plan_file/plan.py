"""PLAN.toml: everything that software decides about a training iteration, as one frozen, checked object.

A file is read in two steps, so that a sweep need not read what thousands of its plans share again and again:
:class:`PlanFrame` reads what does not depend on how a plan is split, :class:`PlanSplit` the split, and what remains is
filled in last. A single plan goes through the same steps.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from joulecast.model.hardware.catalogue import catalogue_name
from joulecast.simulator.plan_file import checks, names, precisions, stages
from joulecast.simulator.plan_file.features import given, is_switched, with_features
from joulecast.simulator.plan_file.parts import Cluster, Implementation, Overlap, Parallelism, Power, Schedule, Workload
from joulecast.simulator.plan_file.recomputation import unused_keys, with_defaults
from joulecast.simulator.plan_file.schema import TABLES, PlanFile
from joulecast.simulator.plan_file.site import Site, read_site
from joulecast.simulator.plan_file.source import Source, apply_overrides, explain, read_toml
from joulecast.simulator.plan_file.tables import (
    read_cluster,
    read_implementation,
    read_overlap,
    read_parallelism,
    read_power,
    read_workload,
)
from joulecast.simulator.plan_file.tiles import left_to_library
from joulecast.simulator.schedules import copies_of_model, stage_of_chunk

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig
    from joulecast.model.framework.implementation import Recompute
    from joulecast.model.hardware.description import GpuDescription

#: Tables and keys in which plans of one :class:`PlanFrame` may differ.
FRAME_FREE = ("parallelism", "schedule.name", "schedule.recompute", "power", "workload.micro_batch_size")
#: Of these the one that they share: types of weights, and whether gradients are dropped, follow from it.
FRAME_OWN = "parallelism.fsdp"
#: Keys in which plans of one :class:`PlanSplit` may differ.
SPLIT_FREE = ("workload.micro_batch_size", "schedule.recompute")


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan, checked; ``file`` is where it came from."""

    workload: Workload
    cluster: Cluster
    parallelism: Parallelism
    schedule: Schedule
    overlap: Overlap
    implementation: Implementation
    power: Power
    site: Site
    file: str | None = None

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.parallelism.tensor_model_parallel_size

    @property
    def pp(self) -> int:
        """Pipeline ranks."""
        return self.parallelism.pipeline_model_parallel_size

    @property
    def vp(self) -> int:
        """Virtual stages on each pipeline rank."""
        return self.parallelism.virtual_pipeline_model_parallel_size

    @property
    def chunks(self) -> int:
        """Model chunks on each pipeline rank: the virtual stages of every copy of the model."""
        return self.vp * self.copies

    @property
    def copies(self) -> int:
        """Copies of the model on the ranks of one pipeline, which sum their gradients as replicas do."""
        return copies_of_model(self.schedule.name)

    @property
    def dp(self) -> int:
        """Data-parallel size."""
        return self.parallelism.data_parallel_size

    @property
    def cp(self) -> int:
        """Context-parallel size."""
        return self.parallelism.context_parallel_size

    @property
    def replicas(self) -> int:
        """GPUs with the same parameters, which sum their gradients: data- and context-parallel ranks."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> int:
        """GPUs with the same experts, which sum their gradients."""
        split = self.parallelism
        sharing = split.expert_model_parallel_size * split.expert_tensor_parallel_size
        return self.tp * self.replicas // sharing

    @property
    def summing(self) -> int:
        """GPUs that sum their gradients of the same parameters: replicas, of every copy on a pipeline's ranks."""
        return self.replicas * self.copies

    @property
    def experts_summing(self) -> int:
        """GPUs that sum their gradients of the same experts."""
        return self.expert_replicas * self.copies

    def stage_models(self, stage: int) -> tuple[tuple[ModelConfig, int], ...]:
        """Layers of a virtual stage as pairs of their model and number, in order; kinds may take turns."""
        layers = self.parallelism.stage_layers
        return self.workload.model.runs(sum(layers[:stage]), layers[stage])

    def other_layers(self, stage: int) -> tuple[int, ...]:
        """Layers of a virtual stage that are of each of the model's kinds but the usual one."""
        if self.workload.model.alike:
            return ()
        layers = self.parallelism.stage_layers
        return self.workload.model.others(sum(layers[:stage]), layers[stage])

    @property
    def microbatches(self) -> int:
        """Micro-batches of one iteration on each data-parallel rank."""
        return self.workload.global_batch_size // (self.workload.micro_batch_size * self.dp)

    @property
    def sequence_parallel(self) -> bool:
        """Whether norms and residuals are really split: it takes more than one tensor-parallel rank."""
        return self.parallelism.sequence_parallel and self.tp > 1

    @property
    def tokens(self) -> int:
        """Tokens of one iteration, of both sequences of pairs."""
        w = self.workload
        return w.global_batch_size * w.sequences_of_sample * w.sequence_length

    def stages_of_rank(self, rank: int) -> tuple[int, ...]:
        """Virtual stages on a pipeline rank, by chunk: the v-th holds the v-th share of the layers."""
        return tuple(stage_of_chunk(self.schedule.name, self.pp, rank, chunk) for chunk in range(self.chunks))

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionary of everything, for reports and results."""
        return asdict(self)


def load_plan(path: str | Path, overrides: Sequence[str] = ()) -> Plan:
    """Read and check a PLAN.toml.

    Parameters
    ----------
    path
        The file.
    overrides
        Settings of the form ``table.key=value`` that win over the file.

    Raises
    ------
    InputError
        One readable message with file, line, key and remedy (also :class:`UnknownNameError`, :class:`NotYetError`).
    """
    tables, source = read_toml(path, overrides)
    return _build(tables, source)


def plan_from_dict(
    tables: Mapping[str, Any],
    file: str | None = None,
    overrides: Sequence[str] = (),
    gpu: GpuDescription | None = None,
) -> Plan:
    """Check tables as they would stand in a PLAN.toml.

    Parameters
    ----------
    tables, overrides
        As :func:`load_plan` reads them.
    file
        Is named in errors.
    gpu
        The GPU that ``cluster.gpu`` names, where that name is of neither the catalogue nor a file.

    Raises
    ------
    InputError
        As :func:`load_plan` does.
    """
    merged, keys = apply_overrides(tables, overrides)
    return _build(merged, Source(file, "", keys), gpu)


def _build(tables: Mapping[str, Any], source: Source, gpu: GpuDescription | None = None) -> Plan:
    try:
        parsed = PlanFile.model_validate(dict(tables))
    except ValidationError as error:
        raise explain(error, source, TABLES) from None
    return PlanFrame(parsed, source, gpu).plan(parsed)


def is_free(key: str) -> bool:
    """Whether plans of one :class:`PlanFrame` may differ in a key."""
    return key != FRAME_OWN and (key in FRAME_FREE or key.partition(".")[0] in FRAME_FREE)


class PlanFrame:
    """Reads once what plans share that differ in keys alone that :func:`is_free` names: their split, and their power.

    Parameters
    ----------
    parsed
        Tables of one such plan.
    source
        Named in errors.
    gpu
        Description to check against in place of the tables' own.
    varied
        Keys in which the plans of a space differ, of this frame and others.
    """

    def __init__(
        self, parsed: PlanFile, source: Source, gpu: GpuDescription | None = None, varied: Container[str] = ()
    ) -> None:
        precisions.check_types(parsed, source)
        self._source, self._varied, self._features = source, varied, given(parsed, FRAME_FREE)
        self._gpu = gpu or names.named_gpu(parsed, source)
        parsed = self._without_what_others_have(parsed)
        self._workload = read_workload(parsed, self._gpu, source)
        self._workloads = {self._workload.micro_batch_size: self._workload}
        self.cluster = read_cluster(parsed, self._gpu, source)
        self._implementation = read_implementation(parsed, self._workload.model, source)
        self._implementations: dict[str, Implementation] = {}
        self._library = left_to_library(parsed.implementation.tiles)
        self._site = read_site(parsed.site, catalogue_name(parsed.cluster.gpu), source)

    def _without_what_others_have(self, parsed: PlanFile) -> PlanFile:
        """The tables without keys of features that a space varies and that these plans have off, however split."""
        switched = [f for f in self._features if is_switched(f, self._varied)]
        features = [f for f in switched if f.switch.partition(".")[0] not in FRAME_FREE]
        if not features:
            return parsed
        model = names.resolve_model(parsed.workload, self._source)
        return with_features(parsed, model, self._source, features, self._varied)

    @property
    def model(self) -> ModelConfig:
        """The model as it is run."""
        return self._workload.model

    def plan(self, parsed: PlanFile) -> Plan:
        """The plan of tables that differ from the frame's in free keys alone, checked as a whole."""
        return self.split(parsed).plan(parsed.workload.micro_batch_size, parsed.schedule.recompute)

    def split(self, parsed: PlanFile) -> PlanSplit:
        """Plans that differ from such tables in ``SPLIT_FREE`` keys alone."""
        model, source = self.model, self._source
        parsed = with_features(parsed, model, source, self._features, self._varied)
        parallelism = read_parallelism(parsed, model, source)
        unchecked = Plan(
            workload=self._workload,
            cluster=self.cluster,
            parallelism=parallelism,
            schedule=Schedule(stages.schedule_name(parsed, source), parsed.schedule.recompute),
            overlap=read_overlap(parsed, model, parallelism, source),
            implementation=self._implementation,
            power=read_power(parsed, source),
            site=self._site,
            file=source.file,
        )
        return PlanSplit(unchecked, self)

    def workload(self, micro_batch_size: int) -> Workload:
        """What is trained, so many sequences at a time."""
        if micro_batch_size not in self._workloads:
            self._workloads[micro_batch_size] = replace(self._workload, micro_batch_size=micro_batch_size)
        return self._workloads[micro_batch_size]

    def implementation(self, recompute: Recompute) -> Implementation:
        """How a plan of this recomputation is run, without what a space states for others."""
        if recompute not in self._implementations:
            self._implementations[recompute] = with_defaults(self._implementation, unused_keys(recompute, self._varied))
        return self._implementations[recompute]

    def check(self, plan: Plan) -> None:
        """Refuse one of the frame's plans that cannot be."""
        checks.whole(plan, self._gpu, self._source, self._library)


class PlanSplit:
    """Plans of a frame that differ in ``SPLIT_FREE`` keys alone: micro-batch size and recomputation."""

    def __init__(self, unchecked: Plan, frame: PlanFrame) -> None:
        self._unchecked, self._frame = unchecked, frame

    def plan(self, micro_batch_size: int, recompute: Recompute) -> Plan:
        """The plan with these two, checked as a whole."""
        of = self._unchecked
        plan = Plan(
            self._frame.workload(micro_batch_size),
            of.cluster,
            of.parallelism,
            Schedule(of.schedule.name, recompute),
            of.overlap,
            self._frame.implementation(recompute),
            of.power,
            of.site,
            of.file,
        )
        self._frame.check(plan)
        return plan
