"""Tables of a PLAN.toml as the parts of a plan, with defaults filled in and paths resolved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulecast.model.hashing import shared
from joulecast.model.kernels.operators import DTYPE_BYTES
from joulecast.simulator.plan_file import names, precisions, stages
from joulecast.simulator.plan_file.documents import read_documents
from joulecast.simulator.plan_file.experts import read_load
from joulecast.simulator.plan_file.images import read_images
from joulecast.simulator.plan_file.layers import windows_matter
from joulecast.simulator.plan_file.liger import swapped_kernels
from joulecast.simulator.plan_file.lora import read_lora
from joulecast.simulator.plan_file.muon import read_muon
from joulecast.simulator.plan_file.narrow import narrow_of, wide_layers
from joulecast.simulator.plan_file.network import read_links
from joulecast.simulator.plan_file.overlap import read_windows
from joulecast.simulator.plan_file.pairs import log_probabilities_of, read_objective
from joulecast.simulator.plan_file.parts import Cluster, Implementation, Overlap, Parallelism, Power, Workload
from joulecast.simulator.plan_file.prediction import prediction_modules
from joulecast.simulator.plan_file.schema import PlanFile
from joulecast.simulator.plan_file.schema_implementation import ImplementationTable
from joulecast.simulator.plan_file.source import Source
from joulecast.simulator.plan_file.tiles import read_tiles
from joulecast.simulator.schedules import chunks_of_schedule, copies_of_model

if TYPE_CHECKING:
    from joulecast.model.architecture.model_config import ModelConfig
    from joulecast.model.hardware.description import GpuDescription

#: Bucket of an overlapped gradient reduction that PyTorch's DDP takes by default [MiB].
DDP_BUCKET_MB = 25.0
#: The same of Megatron: 40 million gradients, or a million for each replica if that is more.
MEGATRON_BUCKET, MEGATRON_BUCKET_PER_REPLICA = 40e6, 1e6
#: Instructions whose clock may be set on its own.
CLOCKED_INSTRUCTIONS = ("forward", "backward", "weight_gradient", "optimizer")


def read_workload(parsed: PlanFile, gpu: GpuDescription, source: Source) -> Workload:
    """What is trained: the model as it is run, and how much of it at a time."""
    table = parsed.workload
    model, run = names.resolve_model(table, source), parsed.implementation
    if run.rotary is not None:
        model = replace(model, rotary=run.rotary, rotary_pattern=())
    if run.tie_embeddings is not None:
        model = replace(model, tied_embeddings=run.tie_embeddings)
    if not windows_matter(model.sliding_window, table.sequence_length, run.modules):
        model = replace(model, sliding_window=0, window_pattern=())
    wide = wide_layers(parsed, model.layers, source)
    modules = prediction_modules(parsed, source)
    model = replace(model, mtp_layers=modules, mtp_repeated=table.mtp_use_repeated_layer, wide_pattern=wide)
    images = read_images(parsed, model, source)
    sees = images is not None
    model = replace(model, vision=model.vision if sees else None, text_part=model.text_part and not sees)
    return Workload(
        model=shared(model),
        model_name=table.model if isinstance(table.model, str) else "inline",
        layers=model.layers,
        sequence_length=table.sequence_length,
        micro_batch_size=table.micro_batch_size,
        global_batch_size=table.global_batch_size,
        precision=table.precision,
        narrow=narrow_of(parsed, gpu, source),
        expert_load=read_load(parsed, model.experts, source),
        experts_filled=parsed.workload.moe_expert_capacity_factor is not None,
        training_tokens=table.training_tokens,
        mtp_num_layers=model.mtp_layers,
        mtp_use_repeated_layer=model.mtp_repeated,
        lora=read_lora(parsed, model, source),
        images=images,
        **read_objective(parsed, source),
        **read_documents(table, source),
    )


def read_cluster(parsed: PlanFile, gpu: GpuDescription, source: Source) -> Cluster:
    """Where it is trained, with the links that join its GPUs."""
    table = parsed.cluster
    node = None if table.node is None else names.resolve_path(table.node, source, "cluster.node")
    links = read_links(parsed, gpu, node, source)
    network = parsed.network.name
    return Cluster(
        gpu=names.resolve_path(table.gpu, source, "cluster.gpu"),
        gpus=table.gpus,
        gpus_per_node=links.domain_gpus,
        node=node,
        links=links,
        network=None if network is None else names.resolve_path(network, source, "network.name"),
        node_clock_spread=table.node_clock_spread,
    )


def read_parallelism(parsed: PlanFile, model: ModelConfig, source: Source) -> Parallelism:
    """How the model is split."""
    table = parsed.parallelism
    data = stages.data_parallel_size(parsed, source)
    schedule = stages.schedule_name(parsed, source)
    virtual = chunks_of_schedule(schedule, table.virtual_pipeline_model_parallel_size) // copies_of_model(schedule)
    tensor = table.tensor_model_parallel_size if model.experts else 1
    read = {
        "virtual_pipeline_model_parallel_size": virtual,
        "data_parallel_size": data,
        "stage_layers": stages.stage_layers(table, virtual, model.layers, source),
        "expert_tensor_parallel_size": table.expert_tensor_parallel_size or tensor,
        "fsdp_shard_size": table.fsdp_shard_size or data * table.context_parallel_size,
    }
    return Parallelism(**table.said_of(Parallelism) | read)


def read_overlap(parsed: PlanFile, model: ModelConfig, split: Parallelism, source: Source) -> Overlap:
    """What communication runs beside, and in which pieces."""
    table = parsed.overlap
    bucket = table.grad_bucket_mb
    megatron = parsed.implementation.framework == "megatron"
    if bucket is None and table.grad_reduce == "overlapped":
        bucket = _megatron_bucket_mb(parsed, split) if megatron else DDP_BUCKET_MB
    elif bucket is None:  # after the last backward: PyTorch user code per parameter, Megatron one flat buffer
        bucket = math.inf if megatron else 0.0
    windows = read_windows(table.window, model, parsed.implementation.framework, source)
    launch = table.launch or ("window" if windows else "asap")
    read = {"windows": windows, "launch": launch, "grad_bucket_bytes": bucket * 2.0**20}
    return Overlap(**table.said_of(Overlap) | read)


def _megatron_bucket_mb(parsed: PlanFile, split: Parallelism) -> float:
    replicas = split.data_parallel_size * split.context_parallel_size
    elements = max(MEGATRON_BUCKET, MEGATRON_BUCKET_PER_REPLICA * replicas)
    return elements * DTYPE_BYTES[parsed.implementation.gradient_precision or "fp32"] / 2**20


def _drops_gradients(parsed: PlanFile) -> bool:
    """Whether PyTorch's gradients are dropped after the step: by default but in the loop that was measured first."""
    run = parsed.implementation
    if run.zero_grad_set_to_none is not None:
        return run.zero_grad_set_to_none
    return run.framework != "megatron" and (parsed.parallelism.fsdp or run.modules != "joint")


#: Generations whose recipes let collectives average gradients (``average_in_collective``).
AVERAGING = ("nemo-2024", "megatron-bridge-2025")


def _averages(table: ImplementationTable) -> bool:
    """Whether the collective divides gradients by the number of replicas: as the generation's recipes set it."""
    if table.average_in_collective is not None:
        return table.average_in_collective
    return table.framework == "megatron" and table.generation in AVERAGING


def read_implementation(parsed: PlanFile, model: ModelConfig, source: Source) -> Implementation:
    """What the framework really runs, with the framework's defaults."""
    table = parsed.implementation
    mixed = table.framework == "megatron"
    default = precisions.kept_dtype(parsed)
    read = {
        "rotary": model.rotary,
        "tie_embeddings": model.tied_embeddings,
        "fused_loss": table.fused_loss is True,
        "native_loss": table.fused_loss == "native",
        "log_probabilities": log_probabilities_of(parsed),
        "cuda_graphs": table.cuda_graphs is True,
        "graph_scopes": tuple(table.cuda_graphs) if isinstance(table.cuda_graphs, list) else (),
        "liger_kernel": swapped_kernels(table.liger_kernel, model),
        "muon": read_muon(table, source),
        "parameter_precision": precisions.parameter_dtype(parsed),
        "gradient_precision": table.gradient_precision or default,
        "optimizer_precision": table.optimizer_precision or precisions.moments_dtype(parsed),
        "main_parameters": mixed if table.main_parameters is None else table.main_parameters,
        "gradient_clipping": mixed if table.gradient_clipping is None else table.gradient_clipping,
        "zero_grad_set_to_none": _drops_gradients(parsed),
        "average_in_collective": _averages(table),
        "recompute_modules": tuple(parsed.schedule.recompute_modules or ("core_attn",)),
        "tiles": read_tiles(table.tiles, source),
    }
    return Implementation(**table.said_of(Implementation) | parsed.schedule.said_of(Implementation) | read)


def read_power(parsed: PlanFile, source: Source) -> Power:
    """Clocks and limits."""
    value, stages = parsed.power.clock_mhz, parsed.parallelism.pipeline_model_parallel_size
    key = "power.clock_mhz"
    limit = _limit(parsed.power.power_limit_w, stages, source)
    limits = limit, tuple(sorted(parsed.power.component_limits_w.items()))
    if value is None:
        return Power((), *limits)
    if not isinstance(value, Mapping):
        return Power((("", _stage_clocks(value, stages, key, source)),), *limits)
    pairs = []
    for name in sorted(value):
        if name not in CLOCKED_INSTRUCTIONS:
            known = ", ".join(CLOCKED_INSTRUCTIONS)
            raise source.error("unknown instruction", f"{key}.{name}", remedy=f"Known: {known}.")
        pairs.append((name, _stage_clocks(value[name], stages, f"{key}.{name}", source)))
    return Power(tuple(pairs), *limits)


def _limit(value: float | list[float] | None, stages: int, source: Source) -> float | tuple[float, ...] | None:
    """One limit, or one for each pipeline stage where they differ."""
    if not isinstance(value, list):
        return value
    if len(value) != stages:
        raise source.error(
            f"{len(value)} limits for {stages} pipeline stages",
            "power.power_limit_w",
            remedy="Give one number, or one for each stage.",
        )
    return tuple(value) if len(set(value)) > 1 else value[0]


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
