"""What a torchtitan job trains, how it is split and what PyTorch runs of it."""

from __future__ import annotations

import re

from joulecast.files import is_whole
from joulecast.model.architecture.model_config import ModelConfig
from joulecast.simulator.job_files.cluster import data_parallel_ranks
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.kept_gathered import keep_gathered
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.told import OFFLOADED, other_optimizer, packed

#: The source of what a plan has to say and a job cannot choose.
FRAMEWORK = "torchtitan's code"
#: Kernels of flavors whose attention keeps documents apart, by what their names end in.
APART = {"flex": "flex", "varlen": "flash-attention-2"}
_APART = re.compile(rf"_({'|'.join(APART)})(_attn)?$")


def read_run(config: SettingsFile, draft: Draft, architecture: str | None, model: ModelConfig) -> None:
    """Put ``[workload]``, ``[parallelism]``, ``[schedule]``, ``[overlap]`` and ``[implementation]`` into the plan.

    Parameters
    ----------
    architecture
        Of the GPU, ``None`` where it is not known yet.
    model
        The job's.

    Raises
    ------
    InputError
        A value that cannot be, or of which a forecast would be far off.
    """
    tensor, stages, context = (
        config.whole(f"parallelism.{name}_parallel_degree", 1) or 1 for name in ("tensor", "pipeline", "context")
    )
    for key, name, size in (
        ("tensor_model_parallel_size", "tensor", tensor),
        ("pipeline_model_parallel_size", "pipeline", stages),
        ("context_parallel_size", "context", context),
    ):
        if size > 1:
            draft.put(f"parallelism.{key}", size, *config.source(f"parallelism.{name}_parallel_degree"))
    if tensor > 1:
        draft.put("parallelism.sequence_parallel", True, "torchtitan's tensor parallelism")
    _stages(config, draft, stages, model.layers)
    replicas = _replicas(config, draft, tensor * stages * context)
    _batch(config, draft, stages, replicas)
    sharded = _sharding(config, draft, context, replicas)
    if sharded:
        _gathered(config, draft)
    _precision(config, draft, off=not sharded and tensor * stages > 1)
    _context(config, draft, context)
    _experts(config, draft)
    _recomputation(config, draft, experts=model.experts is not None)
    _kernels(config, draft, architecture, experts=model.experts is not None)


def _replicas(config: SettingsFile, draft: Draft, product: int) -> int | None:
    """Data-parallel ranks; ``None`` where the number of GPUs is missing."""
    replicas = data_parallel_ranks(config, draft, product, "parallelism", "degrees")
    if replicas is None:
        return None
    copies = config.whole("parallelism.data_parallel_replicate_degree", 1) or 1
    shard = config.value("parallelism.data_parallel_shard_degree", int, -1)
    if replicas % copies or (shard != -1 and shard * copies != replicas):
        what = f"{replicas} data-parallel ranks are not {copies} copies of {shard if shard != -1 else 'whole'} shards"
        raise config.error(what, "parallelism.data_parallel_replicate_degree", "Correct the degrees, or --gpus.")
    return replicas


def _batch(config: SettingsFile, draft: Draft, stages: int, replicas: int | None) -> None:
    put = draft.put
    length = config.whole("training.seq_len", 2048) or 2048
    put("workload.sequence_length", length, *config.source("training.seq_len"))
    key = "training.local_batch_size" if not config.given("training.batch_size") else "training.batch_size"
    local = config.whole(key, 8) or 8
    micro_key = "parallelism.pipeline_parallel_microbatch_size"
    micro = config.whole(micro_key, 1) or 1
    whole = config.value("training.global_batch_size", int, -1)
    if stages > 1:
        put("workload.micro_batch_size", micro, *config.source(micro_key))
    else:
        put("workload.micro_batch_size", local, *config.source(key))
    if stages > 1 and replicas and whole > local * replicas:
        draft.warn(
            "training.global_batch_size: torchtitan fills and drains the pipeline anew for each accumulated local "
            "batch; the forecast runs all micro-batches of an iteration in one go, which is shorter"
        )
    if whole > 0:
        put("workload.global_batch_size", whole, *config.source("training.global_batch_size"))
    elif replicas is None:
        draft.missing["workload.global_batch_size"] = f"{local} on each data-parallel rank ({key})"
    else:
        put(
            "workload.global_batch_size", local * replicas, f"{key} on {replicas} data-parallel ranks", config.line(key)
        )
    steps = config.whole("training.steps", 10000)
    batch = draft.value("workload.global_batch_size")
    if steps and batch and config.given("training.steps"):
        put("workload.training_tokens", float(steps * batch * length), *config.source("training.steps"))
    if config.value("training.enable_cpu_offload", bool, False):
        raise config.error(OFFLOADED, "training.enable_cpu_offload", "Set it to false to forecast the job without it.")


def _precision(config: SettingsFile, draft: Draft, *, off: bool) -> None:
    """Put the type of products and of parameters.

    Parameters
    ----------
    off
        Whether tensor or pipeline parallelism goes without FSDP: torchtitan then mixes no precision, and multiplies
        parameters as they are (``maybe_enable_amp`` of ``torchtitan/distributed/utils.py``).
    """
    narrow = config.word("training.mixed_precision_param", ("bfloat16", "float32"), "bfloat16")
    config.word("training.mixed_precision_reduce", ("float32",), "float32")
    dtype = config.word("training.dtype", ("float32", "bfloat16"), "float32")
    source, line = config.source("training.mixed_precision_param")
    if off and narrow != dtype:
        narrow, source, line = dtype, "torchtitan mixes no precision without FSDP, but in plain DDP", None
    draft.put("workload.precision", "bf16" if narrow == "bfloat16" else "fp32", source, line)
    if narrow == "bfloat16" and dtype == "float32":
        draft.put("implementation.parameter_precision", "fp32", "torchtitan keeps parameters in fp32")


def _sharding(config: SettingsFile, draft: Draft, context: int, replicas: int | None) -> bool:
    """FSDP over shards and context-parallel ranks, copies of it (HSDP), or plain data parallelism; whether FSDP."""
    copies = config.whole("parallelism.data_parallel_replicate_degree", 1) or 1
    key = "parallelism.data_parallel_shard_degree"
    shard = config.value(key, int, -1)
    if shard == -1 and replicas is not None:
        shard = replicas // copies
    if shard == 1 and context == 1:
        if copies > 1:
            draft.put("overlap.grad_reduce", "overlapped", "torchtitan's DDP reduces beside the backward")
        return False
    draft.put("parallelism.fsdp", True, *config.source(key))
    if copies > 1:
        replicate = "parallelism.data_parallel_replicate_degree"
        if shard == -1:
            draft.missing["parallelism.fsdp_shard_size"] = f"the ranks of one of {copies} copies ({replicate})"
        else:
            draft.put("parallelism.fsdp_shard_size", shard * context, *config.source(replicate))
    return True


def _gathered(config: SettingsFile, draft: Draft) -> None:
    """Whether parameters stay gathered between forward and backward, as they do in pipelines by default."""
    key = "parallelism.fsdp_reshard_after_forward"
    kept = config.word(key, ("default", "always", "never"), "default")
    stages = draft.value("parallelism.pipeline_model_parallel_size", 1)
    if kept == "never" or (kept == "default" and stages > 1):
        keep_gathered(draft, key, config.source(key))


def _stages(config: SettingsFile, draft: Draft, stages: int, layers: int) -> None:
    """Layers of pipeline stages as torchtitan shares them out, and their schedule."""
    name = config.value("parallelism.pipeline_parallel_schedule", str, "1F1B")
    each = config.whole("parallelism.pipeline_parallel_layers_per_stage")
    ends = [
        config.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1, least=0) for end in ("first", "last")
    ]
    points = config.value("parallelism.pipeline_parallel_split_points", (list, str), [])
    if stages == 1:
        draft.put("schedule.name", "none", "no pipeline stages")
        return
    draft.put("schedule.name", name, *config.source("parallelism.pipeline_parallel_schedule"))
    if points or config.given("parallelism.module_fqns_per_model_part"):
        key = "pipeline_parallel_split_points" if points else "module_fqns_per_model_part"
        config.value("parallelism.module_fqns_per_model_part", list)
        draft.warn(f"parallelism.{key}: layers are forecast on the stages as torchtitan shares them out by itself")
    looped = name.lower() not in ("1f1b", "gpipe")
    first, last = ends[0] or 0, ends[1] or 0
    blocks = layers + first + last
    count = -(-blocks // each) if each else stages * (2 if looped else 1)
    if count % stages:
        what = f"{blocks} layers in stages of {each} are {count} stages, which {stages} ranks cannot share"
        raise config.error(what, "parallelism.pipeline_parallel_layers_per_stage", "Use another number of layers.")
    if count > stages:
        key = "parallelism.virtual_pipeline_model_parallel_size"
        draft.put(key, count // stages, *config.source("parallelism.pipeline_parallel_layers_per_stage"))
    shares = [blocks // count + (place < blocks % count) for place in range(count)]
    shares[0] -= first
    shares[-1] -= last
    if len(set(shares)) > 1:
        draft.put("parallelism.stage_layers", shares, "as torchtitan shares layers out", config.line("parallelism"))


def _context(config: SettingsFile, draft: Draft, context: int) -> None:
    key = "parallelism.context_parallel_rotate_method"
    way = config.word(key, ("allgather", "alltoall"), "allgather")
    if context > 1:
        draft.put("parallelism.cp_comm_type", "all_gather" if way == "allgather" else "p2p", *config.source(key))


def _experts(config: SettingsFile, draft: Draft) -> None:
    key = "parallelism.expert_parallel_degree"
    size = config.whole(key, 1) or 1
    if size > 1:
        draft.put("parallelism.expert_model_parallel_size", size, *config.source(key))
    key = "parallelism.expert_tensor_parallel_degree"
    if config.given(key):
        draft.put("parallelism.expert_tensor_parallel_size", config.whole(key), *config.source(key))


def _recomputation(config: SettingsFile, draft: Draft, *, experts: bool) -> None:
    key, option = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
    mode = config.word(key, ("none", "selective", "full", "memory_budget"), "selective")
    which = config.value(option, str, "2")
    if mode == "none":
        return
    if mode == "memory_budget":
        draft.warn(f'{key} = "memory_budget": what the compiler computes again is not known, nothing is forecast again')
        return
    if mode == "selective" and which == "op" and not experts:
        draft.put("schedule.recompute", "operators", *config.source(option))
        return
    draft.put("schedule.recompute", "full", *config.source(key))
    if mode == "full":
        return
    if which == "op":
        draft.put("schedule.recompute_interval", 2, *config.source(option))
        draft.warn(f'{option} = "op" keeps every other product; the forecast computes every other layer again instead')
    elif is_whole(which) and int(which) > 0:
        draft.put("schedule.recompute_interval", int(which), *config.source(option))
    else:
        raise config.error(f"{which!r} is neither a number of layers nor 'op'", option, 'Write "2", say, or "op".')


def of_flavor(flavor: str) -> tuple[str, str]:
    """The model of a flavor, and how its attention keeps documents apart: a name in :data:`APART`, or empty.

    >>> of_flavor("8B_flex_attn"), of_flavor("70B")
    (('8B', 'flex'), ('70B', ''))
    """
    found = _APART.search(flavor)
    return (flavor[: found.start()], found[1]) if found else (flavor, "")


def _kernels(config: SettingsFile, draft: Draft, architecture: str | None, *, experts: bool) -> None:
    put = draft.put
    put("implementation.framework", "pytorch-eager", FRAMEWORK)
    blackwell = architecture is not None and architecture.lower().startswith("blackwell")
    wide = draft.value("workload.precision") == "fp32"
    backend = "cudnn" if blackwell or wide else "flash-attention-2"
    _, apart = of_flavor(config.value("model.flavor", str, ""))
    if apart:
        put("implementation.attention_backend", APART[apart], *config.source("model.flavor"))
        draft.warn(packed("model.flavor"))
    else:
        why = "what PyTorch takes fp32 in" if wide else "what torchtitan asks PyTorch for first"
        put("implementation.attention_backend", backend, why)
    clipped = config.value("training.max_norm", (int, float), 1.0) > 0
    put("implementation.gradient_clipping", clipped, *config.source("training.max_norm"))
    _float8(config, draft)
    put("implementation.modules", "joint" if experts else "torchtitan", FRAMEWORK)
    if experts:
        draft.warn("layers of experts are forecast with one product for queries, keys and values, one for gate and up")
        put("implementation.moe_permute_fusion", False, FRAMEWORK)
        put("implementation.moe_row_operator", "scatter_add", FRAMEWORK)
    for key in ("compile.enable", "training.compile"):
        if config.value(key, bool, False) and _compiles_model(config, draft):
            put("implementation.compile", True, *config.source(key))
    key = "parallelism.enable_async_tensor_parallel"
    if config.value(key, bool, False):
        put("overlap.tp_comm", True, *config.source(key))
    for key in ("parallelism.disable_loss_parallel", "parallelism.enable_compiled_autograd"):
        if config.value(key, bool, False):
            draft.warn(f"{key}: the forecast takes no account of it")
    _optimizer(config, draft)
    for key in ("fault_tolerance.enable", "liger_kernel.enable_fused_linear_cross_entropy"):
        if config.value(key, bool, False):
            draft.warn(f"{key}: the forecast is of the job without it")


def _compiles_model(config: SettingsFile, draft: Draft) -> bool:
    """Whether what is compiled has the model in it, and not the loss alone."""
    key = "compile.components"
    components = config.value(key, (list, str), ["model", "loss"])
    if "model" in (components.split(",") if isinstance(components, str) else components):
        return True
    if components:
        draft.warn(f"{key}: the loss alone is compiled; it is forecast as it is not")
    return False


def _float8(config: SettingsFile, draft: Draft) -> None:
    """Linear layers in FP8, where a converter makes them so."""
    converters = config.value("model.converters", (list, str), [])
    names = converters.split(",") if isinstance(converters, str) else [str(name) for name in converters]
    chosen = [name.strip() for name in names if name.strip()]
    known = ("float8", "quantize.linear.float8", "quantize.dense.float8")
    for name in chosen:
        if name not in known:
            what = f"the converter {name!r} is not known: its products would be forecast in bf16"
            raise config.error(what, "model.converters", "Leave it out to forecast the job without it.")
    tables = ("float8", "quantize.linear.float8", "quantize.dense.float8")
    recipes = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
    for table in tables:
        recipe = config.word(f"{table}.recipe_name", recipes, "tensorwise")
        config.value(f"{table}.emulate", bool, False)
        gathered = config.value(f"{table}.enable_fsdp_float8_all_gather", bool, False)
        for name in ("filter_fqns", "precompute_float8_dynamic_scale_for_fsdp", "force_recompute_fp8_weight_in_bwd"):
            config.asked.add(f"{table}.{name}")
        if not chosen or not (config.given(table) or table == "float8"):
            continue
        draft.put("workload.precision", "fp8", *config.source("model.converters"))
        name = "rowwise" if recipe.startswith("rowwise") else recipe
        draft.put("workload.fp8_recipe", name, *config.source(f"{table}.recipe_name"))
        if recipe == "rowwise_with_gw_hp":
            draft.warn("rowwise_with_gw_hp: weight gradients are forecast in FP8, which are in bf16")
        if gathered and draft.value("parallelism.fsdp") and name == "tensorwise":
            draft.put("workload.fp8_param_gather", True, *config.source(f"{table}.enable_fsdp_float8_all_gather"))


def _optimizer(config: SettingsFile, draft: Draft) -> None:
    name = config.value("optimizer.name", str, "AdamW")
    if name not in ("Adam", "AdamW"):
        raise config.error(other_optimizer(name), "optimizer.name", 'Set it to "AdamW" to forecast that instead.')
    key = "optimizer.implementation"
    fused = config.value("optimizer.fused", bool, True)
    way = config.word(key, ("for-loop", "foreach", "fused"), "fused" if fused else "for-loop")
    if way == "for-loop":
        draft.put("implementation.optimizer", "adamw-for-loop", *config.source(key))
    elif way == "foreach":
        draft.warn(f'{key} = "foreach": the optimizer is forecast in fused kernels')
    if config.value("optimizer.early_step_in_backward", bool, False):
        draft.warn("optimizer.early_step_in_backward: the step is forecast behind the backward")
