"""PLAN.toml: everything that software decides about a training iteration, as one frozen, checked object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from joulecast.errors import InputError
from joulecast.model.fp8 import Fp8
from joulecast.model.limits import NODE_CLOCK_SPREAD
from joulecast.model.nanobatches import Window
from joulecast.model.operators import DTYPE_BYTES
from joulecast.model.tiling import Tiles
from joulecast.simulator import plan_checks
from joulecast.simulator.plan_experts import read_load
from joulecast.simulator.plan_network import read_links
from joulecast.simulator.plan_overlap import read_windows
from joulecast.simulator.plan_schema import TABLES, PlanFile
from joulecast.simulator.plan_site import Site, read_site
from joulecast.simulator.plan_source import Source, apply_overrides, explain, read_toml
from joulecast.simulator.plan_tiles import read_tiles

if TYPE_CHECKING:
    from joulecast.model.description import GpuDescription
    from joulecast.model.fabric import ClusterLinks
    from joulecast.model.hf import ModelConfig

#: Bucket of an overlapped gradient reduction that PyTorch's DDP takes by default [MiB].
DDP_BUCKET_MB = 25.0
#: The same of Megatron: 40 million gradients, or a million for each replica if that is more.
MEGATRON_BUCKET, MEGATRON_BUCKET_PER_REPLICA = 40e6, 1e6
#: Tables and keys in which plans of one :class:`PlanFrame` may differ.
FRAME_FREE = ("parallelism", "schedule", "power", "workload.micro_batch_size")
#: Instructions whose clock may be set on its own.
CLOCKED_INSTRUCTIONS = ("forward", "backward", "weight_gradient", "optimizer")


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained.

    Attributes
    ----------
    model
        The model as it is run: shortened to ``layers``, with the plan's rotary and tied embeddings.
    model_name
        Its name or path in the plan, ``"inline"`` for a table of sizes.
    fp8
        How linear layers run in FP8, ``None`` unless ``precision`` is ``fp8``.
    expert_load
        Rows of the busiest rank's experts over the mean, or the capacity factor.
    training_tokens
        Tokens of the whole run, ``None`` where nobody asks for its cost.
    """

    model: ModelConfig
    model_name: str
    layers: int
    sequence_length: int
    micro_batch_size: int
    global_batch_size: int
    precision: str
    fp8: Fp8 | None = None
    expert_load: float = 1.0
    training_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where it is trained.

    Attributes
    ----------
    gpu
        A catalogue name or a path, resolved against the plan's folder.
    gpus_per_node
        GPUs joined by the fast links.
    node
        Node type that the plan names.
    links
        What joins the GPUs.
    network
        Network between nodes that the plan names; ``None`` is the node type's.
    node_clock_spread
        Relative standard deviation of clocks at the power limit between nodes.
    """

    gpu: str
    gpus: int
    gpus_per_node: int
    node: str | None
    links: ClusterLinks
    network: str | None = None
    node_clock_spread: float = NODE_CLOCK_SPREAD

    @property
    def nodes(self) -> int:
        """Nodes in use."""
        return math.ceil(self.gpus / self.gpus_per_node)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How the model is split.

    Attributes
    ----------
    stage_layers
        Blocks of every virtual stage in the model's order.
    distributed_optimizer
        Optimizer states split over the data-parallel ranks.
    fsdp, fsdp_shard_size
        Parameters split as well, over this many of them.
    """

    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int
    data_parallel_size: int
    sequence_parallel: bool
    stage_layers: tuple[int, ...]
    context_parallel_size: int = 1
    cp_comm_type: str = "p2p"
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    distributed_optimizer: bool = False
    fsdp: bool = False
    fsdp_shard_size: int = 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of micro-batches: ``gpipe 1f1b interleaved-1f1b zb-h1``, or ``none`` (one stage, a loop)."""

    name: str
    recompute: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """Communication beside computation.

    Attributes
    ----------
    nanobatches, windows, launch
        As :class:`joulecast.model.nanobatches.Nanobatches` has them.
    comm_ctas, comm_threads
        Thread blocks of a collective and their threads; ``None`` is the library's choice.
    tp_comm
        Sequence-parallel gathering and scattering in steps beside the products.
    ep_comm
        Communication of experts beside another micro-batch's computation.
    grad_reduce, param_gather
        ``after`` or ``overlapped``.
    grad_bucket_bytes
        0 is one collective per parameter, inf a single one.
    fsdp_prefetch
        FSDP's communication runs beside computation.
    """

    nanobatches: int
    windows: tuple[Window, ...]
    launch: str
    comm_ctas: int | None
    comm_threads: int | None
    grad_reduce: str
    grad_bucket_bytes: float
    tp_comm: bool = False
    ep_comm: bool = False
    param_gather: str = "after"
    fsdp_prefetch: bool = True


@dataclass(frozen=True, slots=True)
class Implementation:
    """What the framework really runs, with the framework's defaults filled in."""

    framework: str
    attention_backend: str
    rotary: bool
    tie_embeddings: bool
    shard_head: bool
    optimizer: str
    gradient_precision: str
    optimizer_precision: str
    main_parameters: bool
    moe_token_dispatcher_type: str = "alltoall"
    recompute_modules: tuple[str, ...] = ("core_attn",)
    fused_loss: bool = False
    tiles: Tiles = ()
    generation: str = ""
    cuda_graphs: bool = False


@dataclass(frozen=True, slots=True)
class Power:
    """Clocks and limits.

    Attributes
    ----------
    clocks_mhz
        Pairs (instruction, clock of each pipeline stage [MHz]); empty: the governor decides alone. The instruction
        ``""`` stands for all that have no pair of their own.
    power_limit_w
        Limit of each GPU [W]; ``None``: the board's default.
    """

    clocks_mhz: tuple[tuple[str, tuple[float, ...]], ...] = ()
    power_limit_w: float | None = None

    def clock_mhz(self, stage: int = 0, instruction: str = "") -> float | None:
        """Clock set for an instruction of a pipeline stage, or ``None`` where none is set."""
        table = dict(self.clocks_mhz)
        clocks = table.get(instruction, table.get(""))
        return clocks[stage] if clocks else None


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

    def stage_models(self, stage: int) -> tuple[tuple[ModelConfig, int], ...]:
        """Layers of a virtual stage as pairs of their model and number: without experts first, then with them."""
        layers, model = self.parallelism.stage_layers, self.workload.model
        before = sum(layers[:stage])
        dense = min(max(model.dense_layers - before, 0), layers[stage])
        return ((model.dense, dense), (model, layers[stage] - dense))

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
        """Tokens of one iteration."""
        return self.workload.global_batch_size * self.workload.sequence_length

    def stages_of_rank(self, rank: int) -> tuple[int, ...]:
        """Virtual stages on a pipeline rank: v = rank + pp·i holds the v-th share of the layers."""
        return tuple(range(rank, self.pp * self.vp, self.pp))

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


class PlanFrame:
    """Plans that differ in how they split model, batch and time, and in power, alone; all else is read once.

    Parameters
    ----------
    parsed
        Tables of one such plan.
    source
        Named in errors.
    gpu
        Description to check against in place of the tables' own.
    """

    def __init__(self, parsed: PlanFile, source: Source, gpu: GpuDescription | None = None) -> None:
        plan_checks.reserved(parsed, source)
        self._source = source
        self._gpu = gpu or plan_checks.named_gpu(parsed, source)
        self._workload = _workload(parsed, self._gpu, source)
        self.cluster = _cluster(parsed, self._gpu, source)
        self._implementation = _implementation(parsed, self._workload.model, source)
        self._site = read_site(parsed.site, source)

    @property
    def model(self) -> ModelConfig:
        """The model as it is run."""
        return self._workload.model

    def plan(self, parsed: PlanFile) -> Plan:
        """The plan of tables that differ from the frame's in ``FRAME_FREE`` keys alone, checked as a whole."""
        source, workload = self._source, self._workload
        if parsed.workload.micro_batch_size != workload.micro_batch_size:
            workload = replace(workload, micro_batch_size=parsed.workload.micro_batch_size)
        parallelism = _parallelism(parsed, workload.model, source)
        plan = Plan(
            workload=workload,
            cluster=self.cluster,
            parallelism=parallelism,
            schedule=Schedule(plan_checks.schedule_name(parsed, source), parsed.schedule.recompute),
            overlap=_overlap(parsed, workload.model, parallelism, source),
            implementation=self._implementation,
            power=_power(parsed, source),
            site=self._site,
            file=source.file,
        )
        plan_checks.whole(plan, self._gpu, source)
        return plan


def _workload(parsed: PlanFile, gpu: GpuDescription, source: Source) -> Workload:
    table = parsed.workload
    model, run = plan_checks.resolve_model(table, source), parsed.implementation
    if run.rotary is not None:
        model = replace(model, rotary=run.rotary)
    if run.tie_embeddings is not None:
        model = replace(model, tied_embeddings=run.tie_embeddings)
    return Workload(
        model=model,
        model_name=table.model if isinstance(table.model, str) else "inline",
        layers=model.layers,
        sequence_length=table.sequence_length,
        micro_batch_size=table.micro_batch_size,
        global_batch_size=table.global_batch_size,
        precision=table.precision,
        fp8=plan_checks.fp8_of(parsed, gpu, source),
        expert_load=read_load(parsed, model.experts, source),
        training_tokens=table.training_tokens,
    )


def _cluster(parsed: PlanFile, gpu: GpuDescription, source: Source) -> Cluster:
    table = parsed.cluster
    node = None if table.node is None else plan_checks.resolve_path(table.node, ".toml", source)
    links = read_links(parsed, gpu, node, source)
    network = parsed.network.name
    return Cluster(
        gpu=plan_checks.resolve_path(table.gpu, ".toml", source),
        gpus=table.gpus,
        gpus_per_node=links.domain_gpus,
        node=node,
        links=links,
        network=None if network is None else plan_checks.resolve_path(network, ".toml", source),
        node_clock_spread=table.node_clock_spread,
    )


def _parallelism(parsed: PlanFile, model: ModelConfig, source: Source) -> Parallelism:
    table = parsed.parallelism
    data = plan_checks.data_parallel_size(parsed, source)
    return Parallelism(
        tensor_model_parallel_size=table.tensor_model_parallel_size,
        pipeline_model_parallel_size=table.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=table.virtual_pipeline_model_parallel_size,
        data_parallel_size=data,
        sequence_parallel=table.sequence_parallel,
        stage_layers=plan_checks.stage_layers(table, model.layers, source),
        context_parallel_size=table.context_parallel_size,
        cp_comm_type=table.cp_comm_type,
        expert_model_parallel_size=table.expert_model_parallel_size,
        expert_tensor_parallel_size=table.expert_tensor_parallel_size
        or (table.tensor_model_parallel_size if model.experts else 1),
        distributed_optimizer=table.distributed_optimizer,
        fsdp=table.fsdp,
        fsdp_shard_size=table.fsdp_shard_size or data * table.context_parallel_size,
    )


def _overlap(parsed: PlanFile, model: ModelConfig, split: Parallelism, source: Source) -> Overlap:
    table = parsed.overlap
    bucket = table.grad_bucket_mb
    megatron = parsed.implementation.framework == "megatron"
    if bucket is None and table.grad_reduce == "overlapped":
        bucket = _megatron_bucket_mb(parsed, split) if megatron else DDP_BUCKET_MB
    elif bucket is None:  # after the last backward: PyTorch user code per parameter, Megatron one flat buffer
        bucket = math.inf if megatron else 0.0
    windows = read_windows(table.window, model, parsed.implementation.framework, source)
    return Overlap(
        nanobatches=table.nanobatches,
        windows=windows,
        launch=table.launch or ("window" if windows else "asap"),
        comm_ctas=table.comm_ctas,
        comm_threads=table.comm_threads,
        grad_reduce=table.grad_reduce,
        grad_bucket_bytes=bucket * 2.0**20,
        tp_comm=table.tp_comm,
        ep_comm=table.ep_comm,
        param_gather=table.param_gather,
        fsdp_prefetch=table.fsdp_prefetch,
    )


def _megatron_bucket_mb(parsed: PlanFile, split: Parallelism) -> float:
    replicas = split.data_parallel_size * split.context_parallel_size
    elements = max(MEGATRON_BUCKET, MEGATRON_BUCKET_PER_REPLICA * replicas)
    return elements * DTYPE_BYTES[parsed.implementation.gradient_precision or "fp32"] / 2**20


def _implementation(parsed: PlanFile, model: ModelConfig, source: Source) -> Implementation:
    table = parsed.implementation
    mixed = table.framework == "megatron"
    default = "fp32" if mixed else parsed.workload.precision
    return Implementation(
        framework=table.framework,
        attention_backend=table.attention_backend,
        rotary=model.rotary,
        tie_embeddings=model.tied_embeddings,
        shard_head=table.shard_head,
        fused_loss=table.fused_loss,
        generation=table.generation or "",
        cuda_graphs=table.cuda_graphs,
        optimizer=table.optimizer,
        gradient_precision=table.gradient_precision or default,
        optimizer_precision=table.optimizer_precision or default,
        main_parameters=mixed if table.main_parameters is None else table.main_parameters,
        moe_token_dispatcher_type=table.moe_token_dispatcher_type,
        recompute_modules=tuple(parsed.schedule.recompute_modules or ("core_attn",)),
        tiles=read_tiles(table.tiles, source),
    )


def _power(parsed: PlanFile, source: Source) -> Power:
    value, stages = parsed.power.clock_mhz, parsed.parallelism.pipeline_model_parallel_size
    key = "power.clock_mhz"
    if value is None:
        return Power((), parsed.power.power_limit_w)
    if not isinstance(value, Mapping):
        return Power((("", _stage_clocks(value, stages, key, source)),), parsed.power.power_limit_w)
    pairs = []
    for name in sorted(value):
        if name not in CLOCKED_INSTRUCTIONS:
            known = ", ".join(CLOCKED_INSTRUCTIONS)
            raise source.error("unknown instruction", f"{key}.{name}", remedy=f"Known: {known}.")
        pairs.append((name, _stage_clocks(value[name], stages, f"{key}.{name}", source)))
    return Power(tuple(pairs), parsed.power.power_limit_w)


def _stage_clocks(value: Any, stages: int, key: str, source: Source) -> tuple[float, ...]:
    """One clock for each pipeline stage from a number or a list."""
    values = value if isinstance(value, list | tuple) else [value] * stages
    if any(isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v) for v in values):
        raise source.error(
            f"{value!r} is not a clock", key, remedy="Write a number of MHz, or a list with one per stage."
        )
    if len(values) != stages:
        raise source.error(
            f"{len(values)} clocks for {stages} pipeline stages", key, remedy="Give one number, or one for each stage."
        )
    return tuple(float(v) for v in values)


__all__ = [
    "Cluster",
    "Implementation",
    "InputError",
    "Overlap",
    "Parallelism",
    "Plan",
    "Power",
    "Schedule",
    "Workload",
    "load_plan",
    "plan_from_dict",
]
