"""What must agree between the keys of a plan; every violation is one readable error with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.errors import InputError, NotYetError
from joulecast.model.framework.narrow import NARROW
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.component_power import check_limits
from joulecast.simulator.plan_file.attention import check_attention
from joulecast.simulator.plan_file.compiled import check_compiled, check_eager_fp8, check_no_compile
from joulecast.simulator.plan_file.context import check_context
from joulecast.simulator.plan_file.deterministic import check_deterministic
from joulecast.simulator.plan_file.documents import check_documents
from joulecast.simulator.plan_file.experts import check_experts
from joulecast.simulator.plan_file.layers import check_layers
from joulecast.simulator.plan_file.liger import check_liger
from joulecast.simulator.plan_file.lora import check_lora
from joulecast.simulator.plan_file.loss_and_optimizer import check_loss_and_optimizer
from joulecast.simulator.plan_file.modules import check_modules, check_no_modules
from joulecast.simulator.plan_file.muon import check_muon
from joulecast.simulator.plan_file.names import place
from joulecast.simulator.plan_file.overlap import check_overlap
from joulecast.simulator.plan_file.pairs import check_pairs
from joulecast.simulator.plan_file.recomputation import check_recomputation
from joulecast.simulator.plan_file.replicas import check_replicas
from joulecast.simulator.plan_file.schedule_names import schedule_alias, unknown_schedule
from joulecast.simulator.plan_file.schema import PlanFile
from joulecast.simulator.plan_file.schema_parallelism import ParallelismTable
from joulecast.simulator.plan_file.site import goodput_of
from joulecast.simulator.plan_file.source import Source
from joulecast.simulator.plan_file.stored import check_stored
from joulecast.simulator.plan_file.tiles import check_tiles
from joulecast.simulator.plan_file.training_loop import check_training_loop
from joulecast.simulator.schedules import BOTH_ENDS, TWO_WAY, fewest_microbatches, schedule_names

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.parts import Power
    from joulecast.simulator.plan_file.plan import Plan

TP, PP = "parallelism.tensor_model_parallel_size", "parallelism.pipeline_model_parallel_size"
VP = "parallelism.virtual_pipeline_model_parallel_size"
#: Most micro-batches of one iteration: a simulation holds every one of them on every stage.
MOST_MICROBATCHES = 100_000
#: Least share of a run's time in which training advances: below, it practically never ends.
LEAST_GOODPUT = 0.001


def reserved(parsed: PlanFile, source: Source) -> None:
    """Options that are understood but not implemented."""
    run = parsed.implementation
    mixed, sharded = run.framework == "megatron", parsed.parallelism.fsdp
    users_modules = run.modules != "joint"
    narrow, kept = compute_dtype(parsed), kept_dtype(parsed)
    neutral = {
        "implementation.parameter_precision": run.parameter_precision in (None, narrow)
        or (run.parameter_precision == "fp32" and (sharded or users_modules) and not mixed),
        "implementation.zero_grad_set_to_none": not mixed or run.zero_grad_set_to_none is None,
        "implementation.gradient_clipping": run.gradient_clipping in (None, True, mixed),
        "implementation.gradient_precision": run.gradient_precision in (None, kept, (mixed or sharded) and narrow),
        "implementation.optimizer_precision": run.optimizer_precision in (None, moments_dtype(parsed))
        or (mixed and run.optimizer_precision == narrow == "bf16"),
        "implementation.main_parameters": run.main_parameters in (None, mixed) or not mixed,
    }
    for key, is_neutral in neutral.items():
        if not is_neutral:
            autocast = key == "implementation.parameter_precision" and run.parameter_precision == "fp32" and not mixed
            remedy = (
                'Set implementation.modules = "transformers" or "torchtitan", or fsdp.' if autocast else "Remove it."
            )
            raise source.error("this option is reserved and not yet implemented", key, remedy=remedy, kind=NotYetError)


def compute_dtype(parsed: PlanFile) -> str:
    """Type of weights and of all that is not multiplied in FP8 or FP4."""
    return "bf16" if parsed.workload.precision in NARROW else parsed.workload.precision


def parameter_dtype(parsed: PlanFile) -> str:
    """Type in which the framework keeps the weights that it computes with."""
    return parsed.implementation.parameter_precision or compute_dtype(parsed)


def kept_dtype(parsed: PlanFile) -> str:
    """Type in which the framework keeps gradients and moments by default: PyTorch that of what is trained."""
    if parsed.implementation.framework == "megatron":
        return "fp32"
    return parameter_dtype(parsed) if parsed.workload.lora is None else parsed.workload.lora.precision


def moments_dtype(parsed: PlanFile) -> str:
    """Type in which the framework keeps the optimizer's moments by default: that of the weights that it steps."""
    return "fp32" if parsed.implementation.main_parameters else kept_dtype(parsed)


def schedule_name(parsed: PlanFile, source: Source) -> str:
    """Our name of the schedule; it must exist, and go with the plan's stages."""
    name = schedule_alias(parsed.schedule.name)
    if name not in schedule_names():
        raise place(unknown_schedule(parsed.schedule.name), source, "schedule.name")
    stages, virtual = (
        parsed.parallelism.pipeline_model_parallel_size,
        parsed.parallelism.virtual_pipeline_model_parallel_size,
    )
    if name == "none" and stages > 1:
        raise source.error(
            f"schedule 'none' is a loop on one stage, but there are {stages} pipeline stages",
            "schedule.name",
            remedy=f"Choose one of {', '.join(n for n in schedule_names() if n != 'none')}.",
        )
    if virtual > 1 and stages == 1:
        raise source.error("virtual stages need more than one pipeline stage", VP, remedy="Set it to 1.")
    if name in BOTH_ENDS:
        _both_ends(name, stages, virtual, source)
        return name
    if virtual > 1 and name != "interleaved-1f1b":
        raise source.error(
            f"schedule {name!r} has one stage per rank, not {virtual}",
            VP,
            remedy="Set schedule.name = 'interleaved-1f1b', or this key to 1.",
        )
    if name == "interleaved-1f1b" and virtual == 1 and stages > 1:
        raise source.error(
            "schedule 'interleaved-1f1b' needs virtual stages", "schedule.name", remedy=f"Set {VP} to 2 or more."
        )
    return name


def _both_ends(name: str, stages: int, virtual: int, source: Source) -> None:
    """What a pipeline whose first rank holds the first and the last stage must have."""
    if stages == 1:
        raise source.error(
            f"schedule {name!r} is of a pipeline, but there is one stage",
            "schedule.name",
            remedy=f"Set {PP} to 2 or more, or choose 1f1b.",
        )
    if name in TWO_WAY:
        if virtual != 1:
            raise source.error(
                f"schedule {name!r} has one stage of each copy of the model per rank, not {virtual}",
                VP,
                remedy="Set it to 1, or leave it out.",
            )
        if stages % 2:
            raise source.error(
                f"schedule {name!r} runs halves of the ranks in mirror image, not {stages} ranks",
                PP,
                remedy=f"Use {stages - 1} or {stages + 1}.",
            )
    elif virtual not in (1, 2):
        raise source.error(
            f"schedule {name!r} has two stages per rank, not {virtual}", VP, remedy="Set it to 2, or leave it out."
        )


def data_parallel_size(parsed: PlanFile, source: Source) -> int:
    """Data-parallel size: the GPUs left after tensor, context and pipeline parallelism."""
    gpus, split = parsed.cluster.gpus, parsed.parallelism
    context = split.context_parallel_size
    product = split.tensor_model_parallel_size * split.pipeline_model_parallel_size * context
    named = f"tensor {split.tensor_model_parallel_size} x pipeline {split.pipeline_model_parallel_size}"
    named += f" x context {context}" if context > 1 else ""
    if gpus % product:
        raise source.error(
            f"{gpus} GPUs cannot be split into {named} = {product}",
            "cluster.gpus",
            remedy=f"Use a multiple of {product} GPUs, or other sizes in [parallelism].",
        )
    data = gpus // product
    if split.data_parallel_size not in (None, data):
        raise source.error(
            f"data-parallel size is {data} ({gpus} GPUs / {product}), not {split.data_parallel_size}",
            "parallelism.data_parallel_size",
            remedy="Leave the key out, or make the sizes multiply to the number of GPUs.",
        )
    return data


def stage_layers(table: ParallelismTable, virtual: int, layers: int, source: Source) -> tuple[int, ...]:
    """Blocks of each virtual stage, ``virtual`` of them a rank: evenly, as evenly as may be, or as given."""
    count = table.pipeline_model_parallel_size * virtual
    key = "parallelism.stage_layers"
    stages = VP if table.virtual_pipeline_model_parallel_size > 1 else PP
    if table.stage_layers is not None:
        for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
            if getattr(table, name):
                raise source.error(
                    "the stages' layers are given", f"parallelism.{name}", remedy=f"Leave it out, or {key}."
                )
        if table.stage_layers == "balanced":
            if count > layers:
                raise source.error(
                    f"{layers} layers are fewer than {count} stages", stages, remedy=f"Use at most {layers} stages."
                )
            return balanced_layers(layers, count)
        given = tuple(table.stage_layers)
        if len(given) != count or sum(given) != layers or min(given) < 0:
            least = min(given, default=0)
            fewest = f"a stage of {least} layers" if least < 0 else f"{sum(given)} layers"
            raise source.error(
                f"{list(given)} has {len(given)} stages and {fewest}, "
                f"the plan {count} stages and the model {layers} layers",
                key,
                remedy=f"Give {count} numbers, none below 0, that add up to {layers}.",
            )
        return given
    first, last = table.account_for_embedding_in_pipeline_split, table.account_for_loss_in_pipeline_split
    blocks = layers + first + last
    if blocks % count or blocks // count < first + last * (count == 1):
        counted = f" with embedding or head, {blocks} blocks," if first or last else ""
        raise source.error(
            f"{layers} layers{counted} cannot be split evenly over {count} stages",
            stages,
            remedy=f'Use a number of stages that divides {blocks}, or {key} = "balanced" or a list.',
        )
    shares = [blocks // count] * count
    shares[0] -= first
    shares[-1] -= last
    return tuple(shares)


def balanced_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, as evenly as may be; the first and the last stages, which have more to do, have fewer.

    >>> balanced_layers(61, 16)
    (3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3)
    """
    base, more = divmod(layers, stages)
    first = (stages - more) // 2
    return tuple(base + (first <= stage < first + more) for stage in range(stages))


def whole(plan: Plan, gpu: GpuDescription, source: Source) -> None:
    """Checks that need the whole plan: shapes, batch, nodes and the GPU's clocks and limits."""
    _precision(plan, gpu, source)
    _shapes(plan, source)
    _megatron_only(plan, source)
    check_context(plan, source)
    check_attention(plan, gpu, source)
    check_layers(plan, source)
    check_documents(plan, source)
    check_experts(plan, source)
    check_stored(plan, source)
    check_lora(plan, source)
    check_pairs(plan, source)
    _batch(plan, source)
    _run(plan, source)
    _nodes(plan, source)
    check_overlap(plan, gpu, source)
    check_replicas(plan, source)
    check_tiles(plan, gpu, source)
    _power(plan, gpu, source)


def _precision(plan: Plan, gpu: GpuDescription, source: Source) -> None:
    try:
        gpu_model(gpu).flops_per_cycle("bf16" if plan.workload.narrow else plan.workload.precision)
    except InputError as error:
        raise place(error, source, "workload.precision") from None


def _megatron_only(plan: Plan, source: Source) -> None:
    """Kernels that only Megatron has."""
    run = plan.implementation
    check_recomputation(plan, source)
    check_deterministic(plan, source)
    check_loss_and_optimizer(plan, source)
    check_muon(plan, source)
    check_training_loop(plan, source)
    check_liger(plan, source)
    if run.framework == "megatron":
        _narrow_states(plan, source)
        check_no_compile(plan, source)
        check_no_modules(plan, source)
        return
    check_eager_fp8(plan, source)
    check_compiled(plan, source)
    check_modules(plan, source)
    remedy = 'Set implementation.framework = "megatron", or leave the key out.'
    if run.attention_backend == "unfused" and run.modules != "transformers":
        what = "attention in separate kernels is known as Megatron-LM ran it and as transformers writes it"
        raise source.error(what, "implementation.attention_backend", remedy=remedy)
    if run.moe_router_dtype:
        raise source.error(
            "a router of another type is known in megatron", "implementation.moe_router_dtype", remedy=remedy
        )
    if not run.moe_router_fusion:
        raise source.error(
            "routers are Megatron's with or without fusion", "implementation.moe_router_fusion", remedy=remedy
        )
    if run.moe_flex_dispatcher_backend == "hybridep":
        what = "HybridEP's exchange is known in megatron"
        raise source.error(what, "implementation.moe_flex_dispatcher_backend", remedy=remedy)
    if run.average_in_collective:
        what = "collectives that average gradients are known in megatron"
        raise source.error(what, "implementation.average_in_collective", remedy=remedy)
    if run.graph_scopes:
        raise source.error("graphs of parts of a layer are Megatron's", "implementation.cuda_graphs", remedy=remedy)
    if run.generation:
        raise source.error("these are generations of Megatron", "implementation.generation", remedy=remedy)


def _narrow_states(plan: Plan, source: Source) -> None:
    """Megatron's optimizer of narrow states is the distributed one."""
    split = plan.parallelism
    if plan.implementation.optimizer_precision == "fp32" or split.distributed_optimizer or split.fsdp:
        return
    raise source.error(
        "Megatron keeps moments in bf16 in its distributed optimizer alone",
        "implementation.optimizer_precision",
        remedy="Set parallelism.distributed_optimizer = true, or leave the key out.",
    )


def _shapes(plan: Plan, source: Source) -> None:
    model, tp = plan.workload.model, plan.tp
    parts: dict[str, int] = {}
    if model.attends:
        parts["attention heads"] = model.heads
        # Fewer key-value heads than ranks are replicated.
        parts["key-value heads"] = tp if tp % model.kv_heads == 0 else model.kv_heads
    if model.state_space is not None:
        parts["heads of a state space"] = model.state_space.heads
        parts["groups of such heads"] = model.state_space.groups
    if model.dense_layers:
        parts["MLP columns"] = model.ffn
    if model.experts is not None:
        parts["columns of shared experts"] = model.experts.shared_ffn
    for what, size in parts.items():
        if size % tp:
            fitting = [str(d) for d in range(1, size + 1) if size % d == 0 and d <= 64]
            raise source.error(
                f"{size} {what} cannot be split over {tp} tensor-parallel ranks",
                TP,
                remedy=f"Use one of {', '.join(fitting)}.",
            )
    if plan.sequence_parallel and plan.workload.sequence_length % tp:
        raise source.error(
            f"a sequence of {plan.workload.sequence_length} cannot be split over {tp} ranks",
            "workload.sequence_length",
            remedy=f"Use a multiple of {tp}, or sequence_parallel = false.",
        )


def _batch(plan: Plan, source: Source) -> None:
    batch, micro, dp = plan.workload.global_batch_size, plan.workload.micro_batch_size, plan.dp
    if batch % (micro * dp):
        raise source.error(
            f"a global batch of {batch} cannot be split into micro-batches of {micro} on {dp} data-parallel ranks",
            "workload.global_batch_size",
            remedy=f"Use a multiple of {micro * dp}.",
        )
    if plan.microbatches > MOST_MICROBATCHES:
        raise source.error(
            f"{plan.microbatches} micro-batches in one iteration, more than are simulated",
            "workload.global_batch_size",
            remedy=f"Use at most {MOST_MICROBATCHES}: a smaller batch, larger micro-batches or more GPUs.",
        )
    least = fewest_microbatches(plan.schedule.name, plan.pp)
    if plan.microbatches < least:
        raise source.error(
            f"{plan.microbatches} micro-batches, where {plan.schedule.name!r} needs {least}, two for each rank",
            "workload.global_batch_size",
            remedy=f"Use {least * micro * dp} or more, or choose zb-v.",
        )
    if plan.schedule.name in TWO_WAY and plan.microbatches % 2:
        one = micro * dp
        raise source.error(
            f"{plan.microbatches} micro-batches, of which half enter {plan.schedule.name!r} at either end",
            "workload.global_batch_size",
            remedy=f"Use {(plan.microbatches - 1) * one} or {(plan.microbatches + 1) * one}.",
        )
    rounds = max(1, plan.microbatches // plan.pp)
    if plan.schedule.name == "interleaved-1f1b" and plan.microbatches % rounds:
        raise source.error(
            f"interleaving needs equal rounds, but {plan.microbatches} micro-batches do not fill {rounds}",
            "workload.global_batch_size",
            remedy=f"Use a multiple of {micro * dp * plan.pp}.",
        )


def _run(plan: Plan, source: Source) -> None:
    """A run is one iteration at least, and ends."""
    tokens = plan.workload.training_tokens
    if tokens is None:
        return
    if tokens < plan.tokens:
        raise source.error(
            f"{tokens:g} tokens of the whole run are fewer than the {plan.tokens} of one iteration",
            "workload.training_tokens",
            remedy="Write all of them, 15e12 for 15 trillion.",
        )
    if (share := goodput_of(plan)) < LEAST_GOODPUT:
        raise source.error(
            f"failures of {plan.cluster.nodes} nodes, and checkpoints, leave {share:.1g} of the time for training",
            "site.node_mtbf_hours" if plan.site.node_mtbf_hours is not None else "site.goodput",
            remedy="Raise it, or lower site.checkpoint_s and site.restart_s; a node usually fails once in years.",
        )


def _nodes(plan: Plan, source: Source) -> None:
    gpus, per_node = plan.cluster.gpus, plan.cluster.gpus_per_node
    if gpus % per_node:
        raise source.error(
            f"{gpus} GPUs do not fill nodes of {per_node}",
            "cluster.gpus",
            remedy=f"Use a multiple of {per_node}, or another cluster.gpus_per_node.",
        )


def _power(plan: Plan, gpu: GpuDescription, source: Source) -> None:
    power = plan.power
    if power.clocks_mhz:
        _clocks(power, gpu, source)
    if power.component_limits_w:
        try:
            check_limits(dict(power.component_limits_w), gpu_model(gpu), waits=True)
        except InputError as error:
            raise place(error, source, f"power.{error.key}") from None
    limits = power.power_limit_w
    for limit in limits if isinstance(limits, tuple) else (limits,):
        if limit is None:
            continue
        low, high = gpu.number("min_power_limit_w"), gpu.number("max_power_limit_w")
        if not low <= limit <= high:
            raise source.error(
                f"{limit:g} W is not a power limit of {gpu.name}",
                "power.power_limit_w",
                remedy=f"Use {low:g} to {high:g} W.",
            )


def _clocks(power: Power, gpu: GpuDescription, source: Source) -> None:
    low, high = gpu.number("min_clock_mhz"), gpu.number("max_clock_mhz")
    step = gpu.number("clock_step_mhz")
    for name, clocks in power.clocks_mhz:
        key = f"power.clock_mhz.{name}" if name else "power.clock_mhz"
        for clock in clocks:
            off = (high - clock) / step
            if low <= clock <= high and abs(off - round(off)) < 1e-6:
                continue
            nearby = min(high, max(low, high - round(off) * step))
            raise source.error(
                f"{clock:g} MHz is not a clock of {gpu.name}",
                key,
                remedy=f"It has {low:g} to {high:g} MHz in steps of {step:g}; the nearest is {nearby:g}.",
            )
