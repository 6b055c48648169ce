"""What a job of NeMo AutoModel trains, and how it is split."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from math import prod

from joulecast.model.architecture.hf import load_model
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.automodel_kernels import PACKED, put_kernels
from joulecast.simulator.job_files.cluster import data_parallel_ranks
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.kept_gathered import keep_gathered
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.told import packed, unpacked
from joulecast.simulator.plan_file.lora import ALL, module_names

_TYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "float32": "fp32", "fp32": "fp32"}
_LENGTHS = tuple(f"dataset.{name}" for name in ("seq_length", "seq_len", "max_length", "sequence_length", "block_size"))
_LOCAL = "step_scheduler.local_batch_size"
_GLOBAL, _STEPS = "step_scheduler.global_batch_size", "step_scheduler.max_steps"
_IN_FP32 = "distributed.grad_reduce_in_fp32"
_SPLITS = {"tp_size": "tensor_model_parallel_size", "pp_size": "pipeline_model_parallel_size"}
_SPLITS |= {"cp_size": "context_parallel_size", "ep_size": "expert_model_parallel_size"}
#: Datasets whose samples are as long as they may be.
_FULL = re.compile(r"(?i)mock|nanogpt|megatron")


def read_run(config: SettingsFile, draft: Draft, asked: Asked, architecture: str | None) -> None:
    """Put ``[workload]``, ``[parallelism]``, ``[schedule]`` and ``[implementation]`` into the plan.

    Raises
    ------
    InputError
        A value that cannot be, or of which a forecast would be far off.
    """
    config.names = {
        "attn_implementation": "model.attn_implementation",
        "use_liger_kernel": "model.use_liger_kernel",
    }
    strategy = _strategy(config)
    sizes = _sizes(config, draft)
    _length(config, draft)
    replicas = _batch(config, draft, sizes)
    sharded = strategy != "ddp" and draft.value("cluster.gpus") != 1 and (replicas or 2) * sizes["cp_size"] > 1
    _precision(config, draft, strategy, sharded=sharded)
    _sharding(config, draft, sizes, replicas, sharded=sharded)
    _stages(config, draft, sizes["pp_size"])
    _adapters(config, draft)
    put_kernels(
        config, draft, asked, architecture, context=sizes["cp_size"] > 1, split=sizes["tp_size"] * sizes["pp_size"] > 1
    )


def _strategy(config: SettingsFile) -> str:
    """How it is split over data-parallel ranks, by its present name."""
    former = str(config.raw("distributed._target_") or config.raw("distributed_config._target_") or "fsdp2").lower()
    usual = next((name for name, part in (("ddp", "ddp"), ("megatron_fsdp", "megatron")) if part in former), "fsdp2")
    known = ("fsdp2", "ddp", "megatron_fsdp", "megatron-fsdp", "mfsdp")
    found = config.word("distributed.strategy", known, usual)
    return "megatron_fsdp" if found.startswith("m") else found


def _sizes(config: SettingsFile, draft: Draft) -> dict[str, int]:
    """Degrees of tensor, pipeline, context and expert parallelism."""
    sizes = {}
    for name, ours in _SPLITS.items():
        key = f"distributed.{name}"
        sizes[name] = config.whole(key, 1) or 1
        if sizes[name] > 1:
            draft.put(f"parallelism.{ours}", sizes[name], *config.source(key))
    key = "distributed.sequence_parallel"
    key = key if config.given(key) else "distributed_config.sequence_parallel"
    if config.on(key) and sizes["tp_size"] > 1:
        draft.put("parallelism.sequence_parallel", True, *config.source(key))
    if sizes["cp_size"] > 1:
        draft.put("parallelism.cp_comm_type", "all_gather", "PyTorch's context_parallel")
    if config.on("distributed.enable_async_tensor_parallel"):
        draft.put("overlap.tp_comm", True, *config.source("distributed.enable_async_tensor_parallel"))
    config.know(("distributed.sequence_parallel", "distributed_config.sequence_parallel", "distributed.dp_size"))
    return sizes


def _length(config: SettingsFile, draft: Draft) -> None:
    """Tokens of a sequence: a pack's, or the most of a sample."""
    packs = config.whole(PACKED, 0, least=0)
    key = PACKED if packs else config.first(_LENGTHS)
    length = config.whole(key)
    if length is None:
        draft.missing["workload.sequence_length"] = "tokens of a sample, which the job leaves to its data"
        return
    draft.put("workload.sequence_length", length, *config.source(key))
    filled = _FULL.search(str(config.raw("dataset._target_"))) or config.raw("dataset.padding") == "max_length"
    if packs:
        draft.warn(packed(PACKED))
    elif not filled:
        draft.warn(unpacked(key, length))


def _batch(config: SettingsFile, draft: Draft, sizes: dict[str, int]) -> int | None:
    """Put batches and the length of the run.

    Returns
    -------
    int | None
        Data-parallel ranks; ``None`` where the number of GPUs is missing.
    """
    local, batch = config.whole(_LOCAL, 1) or 1, config.whole(_GLOBAL, 32) or 32
    micro = config.first(("distributed.pipeline.pp_microbatch_size", "autopipeline.pp_microbatch_size"))
    key, samples = (_LOCAL, local) if sizes["pp_size"] == 1 else (micro, config.whole(micro, 1))
    draft.put("workload.micro_batch_size", samples, *config.source(key))
    draft.put("workload.global_batch_size", batch, *config.source(_GLOBAL))
    steps, length = config.whole(_STEPS), draft.value("workload.sequence_length")
    if steps and length:
        draft.put("workload.training_tokens", float(steps * batch * length), *config.source(_STEPS))
    product = prod(sizes[name] for name in ("tp_size", "pp_size", "cp_size"))
    replicas = data_parallel_ranks(config, draft, product, "distributed", "sizes")
    if replicas is None:
        return None
    if batch % (local * replicas):
        what = f"{batch} samples are not split into {local} on each of {replicas} data-parallel ranks"
        raise config.error(what, _GLOBAL, f"Use a multiple of {local * replicas}, or another number of GPUs (--gpus).")
    if sizes["pp_size"] > 1 and batch > local * replicas:
        draft.warn(
            f"{_GLOBAL}: AutoModel fills and drains the pipeline anew for each accumulated local batch; the forecast "
            "runs all micro-batches of an iteration in one go, which is shorter"
        )
    return replicas


def _precision(config: SettingsFile, draft: Draft, strategy: str, *, sharded: bool) -> None:
    """Types of products, of parameters as they are loaded, and of gradients as they are reduced."""
    put, kept = draft.put, config.first(("model.torch_dtype", "model.dtype", "model.config.torch_dtype"))
    loaded, key = _type(config, kept, "bf16"), kept
    computed = loaded
    if sharded and strategy == "fsdp2":
        key = "distributed.mp_policy.param_dtype"
        computed = _type(config, key, "bf16")
    elif config.given("distributed.autocast_dtype"):
        key = "distributed.autocast_dtype"
        computed = _type(config, key, loaded)
    put("workload.precision", computed, *config.source(key))
    if loaded == "fp32" != computed:
        put("implementation.parameter_precision", "fp32", *config.source(kept))
    if not config.given(kept):
        draft.warn(f"no {kept}: parameters are taken to be in bf16, as most are stored")
    reduces = "distributed.mp_policy.reduce_dtype"
    reduced = _type(config, reduces, "fp32" if strategy == "fsdp2" or config.on(_IN_FP32) else computed)
    config.know((reduces, _IN_FP32, "distributed.autocast_dtype", "distributed.mp_policy.param_dtype"))
    if sharded and loaded == "fp32" != reduced and computed != "fp32":
        put("implementation.gradient_precision", reduced, *config.source(reduces))
    elif sharded and loaded != "fp32" == reduced and config.raw("peft") is None:
        draft.warn(
            f"{reduces}: gradients, which AutoModel adds up and reduces in fp32, are forecast in {computed}: it takes "
            "more time, and where they are added up whole as much more memory as all weights"
        )


def _type(config: SettingsFile, key: str, usual: str) -> str:
    found = str(config.value(key, str, usual)).removeprefix("torch.")
    if found != "auto" and found not in _TYPES:
        raise config.error(f"{found!r} is no type that is known", key, "Use bfloat16, float16 or float32.")
    return _TYPES.get(found, "bf16")


def _sharding(
    config: SettingsFile, draft: Draft, sizes: dict[str, int], replicas: int | None, *, sharded: bool
) -> None:
    """FSDP, in copies where they are asked for; else plain data parallelism."""
    copied, gathers = "distributed.dp_replicate_size", "distributed.reshard_after_forward"
    waits, zero = "distributed.defer_fsdp_grad_sync", "distributed.zero_dp_strategy"
    copies, keeps = config.whole(copied, 1) or 1, config.value(gathers, bool)
    deferred, stage = config.value(waits, bool, True), config.value(zero, (int, str), 3)
    if not sharded:
        if draft.value("cluster.gpus") != 1 and (replicas or 2) > 1:
            draft.put("overlap.grad_reduce", "overlapped", "PyTorch's DDP reduces beside the backward")
        return
    if str(stage) not in ("3", "optim_grads_params"):
        raise config.error("Megatron-FSDP is known with all that it shards", zero, "Set it to 3 to forecast that.")
    draft.put("parallelism.fsdp", True, "AutoModel's FSDP")
    if _strategy(config) == "megatron_fsdp":
        draft.warn("distributed.strategy megatron_fsdp: sharding is forecast as PyTorch's FSDP")
    if copies > 1 and replicas:
        draft.put("parallelism.fsdp_shard_size", replicas // copies * sizes["cp_size"], *config.source(copied))
    elif copies > 1:
        draft.missing["parallelism.fsdp_shard_size"] = f"the ranks of one of {copies} copies ({copied})"
    if keeps is False or (keeps is None and sizes["pp_size"] > 1):
        keep_gathered(draft, gathers, config.source(gathers))
    if deferred and sizes["pp_size"] == 1:
        draft.put("parallelism.fsdp_sync_each_batch", False, *config.source(waits))


def _stages(config: SettingsFile, draft: Draft, stages: int) -> None:
    """Layers of pipeline stages as AutoModel shares them out, and their schedule."""
    named, each = (
        config.first((f"distributed.pipeline.{name}", f"autopipeline.{name}"))
        for name in ("pp_schedule", "layers_per_stage")
    )
    schedule, layers_each = config.value(named, str, "1f1b"), config.whole(each)
    if stages == 1 or draft.value("workload.model") is None:
        return
    draft.put("schedule.name", schedule, *config.source(named))
    layers = load_model(draft.value("workload.model")).layers
    looped = schedule.lower() not in ("1f1b", "gpipe")
    count = -(-layers // layers_each) if layers_each else stages * (2 if looped else 1)
    if count % stages:
        what = f"{layers} layers in stages of {layers_each} are {count} stages, which {stages} ranks cannot share"
        raise config.error(what, each, "Use another number of layers.")
    if count > stages:
        draft.put("parallelism.virtual_pipeline_model_parallel_size", count // stages, *config.source(each))
    if layers % count:
        shares = [layers // count + (place < layers % count) for place in range(count)]
        draft.put("parallelism.stage_layers", shares, "as AutoModel shares layers out")


def _adapters(config: SettingsFile, draft: Draft) -> None:
    """Adapters, which are of the model's own type unless ``lora_dtype`` says otherwise."""
    if config.raw("peft") is None:
        return
    put, every, named = draft.put, "peft.match_all_linear", "peft.target_modules"
    put("workload.lora.rank", config.whole("peft.dim", 8), *config.source("peft.dim"))
    found = config.value(named, (list, str), [])
    patterns = [found] if isinstance(found, str) else [str(one) for one in found]
    model = draft.value("workload.model")
    names = [] if model is None else list(module_names(load_model(model)))
    parts = [pattern.rpartition(".")[2] for pattern in patterns]
    chosen = [name for name in names if any(fnmatch(name, part) for part in parts)] or parts
    whole = config.on(every) or set(chosen) == set(names)
    put("workload.lora.target_modules", ALL if whole else chosen, *config.source(every if config.on(every) else named))
    dropout = float(config.value("peft.dropout", (int, float), 0.0))
    put("workload.lora.dropout", dropout, *config.source("peft.dropout"))
    own = draft.value("implementation.parameter_precision") or draft.value("workload.precision")
    put("workload.lora.precision", _type(config, "peft.lora_dtype", own), *config.source("peft.lora_dtype"))
    if config.on("quantization.load_in_4bit"):
        put("workload.lora.base_precision", "nf4", *config.source("quantization.load_in_4bit"))
        double = "quantization.bnb_4bit_use_double_quant"
        put("workload.lora.double_quantisation", config.on(double) or None, *config.source(double))
    config.know(["quantization.bnb_4bit_quant_type", "quantization.bnb_4bit_use_double_quant"])
