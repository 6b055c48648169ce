"""Jobs of DeepSpeed's own configuration beside a Hugging Face model: its JSON, as a plan.

Names and defaults are those of DeepSpeed's page on its configuration (deepspeed.ai/docs/config-json, version 0.16).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joulecast.errors import InputError
from joulecast.files import parse_json
from joulecast.model.architecture.hf import load_model
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.cluster import put_cluster
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.hub_names import put_named_model
from joulecast.simulator.job_files.launcher import Launch
from joulecast.simulator.job_files.pytorch_attention import pytorch_attention
from joulecast.simulator.job_files.settings_file import SettingsFile, dotted
from joulecast.simulator.job_files.told import OFFLOADED, SPLIT, other_optimizer

MICRO, BATCH, STEPS = "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"
ZERO, STAGE = "zero_optimization", "zero_optimization.stage"
#: Gradients that are reduced at once, and how many where it is not stated.
_BUCKET, BUCKET = "reduce_bucket_size", 5e8
#: The type that gradients are reduced in; where it is not stated, that of the products (``engine.py``).
_REDUCED = "communication_data_type"
#: Keys by which a JSON is seen to be DeepSpeed's.
_TELLING = (MICRO, BATCH, STEPS, ZERO)
#: Keys and tables without effect on time, energy and memory of an iteration.
PASSED = (
    *("scheduler", "steps_per_print", "wall_clock_breakdown", "dump_state", "tensorboard", "wandb", "csv_monitor"),
    *("flops_profiler", "comms_logger", "prescale_gradients", "gradient_predivide_factor", "aio", "elasticity"),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "memory_breakdown", "checkpoint"),
    *("autotuning", "sparse_gradients", "nebula", "monitor_config", "seed"),
)
#: The same of tables that are read.
_PASSED_KEYS = dotted(
    {
        ZERO: "contiguous_gradients allgather_partitions allgather_bucket_size reduce_scatter sub_group_size "
        "stage3_max_live_parameters stage3_max_reuse_distance stage3_prefetch_bucket_size "
        "stage3_param_persistence_threshold stage3_model_persistence_threshold "
        "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save round_robin_gradients "
        "ignore_unused_parameters elastic_checkpoint load_from_fp32_weights legacy_stage1 "
        "use_multi_rank_bucket_allreduce",
        "fp16": "loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis min_loss_scale "
        "auto_cast",
        "bf16": "immediate_grad_update check_grad_overflow",
        "optimizer": "params legacy_fusion",
        "amp": "opt_level",
    }
)
#: How parts are offloaded that are: off without a device.
_OFFLOADING = "pin_memory buffer_count ratio nvme_path fast_init buffer_size max_in_cpu pipeline_read pipeline_write"
_PARTS = {
    "zero_quantized_weights": "parameters are forecast gathered in bf16",
    "zero_quantized_gradients": "gradients are forecast reduced as they are",
    "zero_hpz_partition_size": "parameters are forecast gathered from all ranks, not from those of a node",
}


def deepspeed_draft(text: str, asked: Asked, file: str) -> Draft:
    """A DeepSpeed job as a plan in the making.

    Raises
    ------
    InputError
        The file cannot be used, or is of a job of which a forecast would be far off.
    """
    tables = parse_json(text, file)
    if not isinstance(tables, Mapping) or not any(key in tables for key in _TELLING):
        what = "this JSON is no job that is known"
        if isinstance(tables, Mapping) and "model_type" in tables:
            what = "this is a model's configuration, not a job's"
        raise InputError(what, file=file, remedy="Give a configuration of DeepSpeed, and its model with --model.")
    config, draft = SettingsFile(file, text, without_auto(tables)), Draft(file)
    put_named_model(draft, asked, None, ("", None))
    draft.missing["workload.sequence_length"] = "tokens of a sample, which the training script says"
    architecture = put_cluster(draft, asked, Launch())
    _precision(config, draft)
    _batch(config, draft)
    read_zero(config, draft)
    _run(config, draft, architecture)
    draft.warn(
        "whether activations are computed again is the script's to say (gradient_checkpointing): add --set "
        "schedule.recompute=full if they are"
    )
    return draft


def read_zero(config: SettingsFile, draft: Draft) -> int:
    """Put what a whole configuration splits into the plan; batches and precision are another's to say.

    Returns
    -------
    int
        ZeRO's stage.

    Raises
    ------
    InputError
        A value that cannot be, or of which a forecast would be far off.
    """
    stage = put_zero(config, draft)
    _refuse(config)
    config.asked |= {MICRO, BATCH, STEPS, "gradient_clipping", "bf16", "bf16.enabled", "fp16", "fp16.enabled"}
    config.rest(draft, PASSED, _PASSED_KEYS)
    return stage


def put_zero(config: SettingsFile, draft: Draft) -> int:
    """Put what ZeRO splits into the plan, and return its stage."""
    stage, precision = _sharding(config, draft), draft.value("workload.precision")
    if precision == "fp32":
        return stage
    if stage < 3:
        draft.put("implementation.main_parameters", True, "DeepSpeed's fp32 copy of the parameters")
        _accumulated(config, draft, stage)
        return stage
    if draft.value("workload.lora.rank"):
        draft.put("implementation.parameter_precision", precision, "DeepSpeed keeps what is frozen as it multiplies")
    else:
        draft.put("implementation.parameter_precision", "fp32", "DeepSpeed's fp32 copy of the parameters")
    if config.value(_REDUCED, str) != "fp32":
        draft.put("implementation.gradient_precision", precision, "DeepSpeed reduces as it multiplies")
    return stage


def without_auto(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables without keys that the training script fills in (``auto``), but for those that its model decides."""
    return {
        key: without_auto(value) if isinstance(value, Mapping) else value
        for key, value in tables.items()
        if value != "auto" or key == _BUCKET
    }


def _precision(config: SettingsFile, draft: Draft) -> None:
    halves = [name for name in ("bf16", "fp16") if config.value(f"{name}.enabled", bool, False)]
    if len(halves) > 1:
        raise config.error("bf16 and fp16 are both enabled", "fp16.enabled", "Set one of them to false.")
    if halves:
        draft.put("workload.precision", halves[0], *config.source(f"{halves[0]}.enabled"))
    elif config.given("bf16") or config.given("fp16"):
        draft.missing["workload.precision"] = "bf16, fp16 or fp32, which the training script says"
    else:
        draft.put("workload.precision", "fp32", "neither bf16 nor fp16")


def _batch(config: SettingsFile, draft: Draft) -> None:
    """Of micro-batch, accumulated steps and batch, two say the third."""
    micro, steps, batch = (config.whole(key) for key in (MICRO, STEPS, BATCH))
    gpus = draft.value("cluster.gpus")
    key, line = MICRO, config.line(MICRO)
    if micro is None and batch and gpus:
        if batch % (gpus * (steps or 1)):
            what = f"a batch of {batch} cannot be split over {gpus} GPUs in {steps or 1} steps"
            raise config.error(what, BATCH, f"Use a multiple of {gpus * (steps or 1)}, or other --gpus.")
        micro, key, line = batch // (gpus * (steps or 1)), f"{BATCH} on {gpus} GPUs", config.line(BATCH)
    if micro is None:
        draft.missing["workload.micro_batch_size"] = "samples of a micro-batch, which the training script says"
    draft.put("workload.micro_batch_size", micro, key, line)
    if batch:
        draft.put("workload.global_batch_size", batch, *config.source(BATCH))
    elif micro and gpus:
        source = f"{MICRO}, {STEPS} and {gpus} GPUs"
        draft.put("workload.global_batch_size", micro * (steps or 1) * gpus, source, config.line(MICRO))
    else:
        draft.missing["workload.global_batch_size"] = "micro-batch times accumulated steps times GPUs"


def _sharding(config: SettingsFile, draft: Draft) -> int:
    """What ZeRO splits: its stage."""
    key = STAGE
    stage = config.whole(key, 0, least=0) or 0
    if stage > 3:
        raise config.error(f"ZeRO has no stage {stage}", key, "Use 0 to 3.")
    for part in ("offload_optimizer", "offload_param"):
        device = config.value(f"{ZERO}.{part}.device", str, "none")
        config.asked |= dotted({f"{ZERO}.{part}": _OFFLOADING})
        if device != "none":
            raise config.error(OFFLOADED, f"{ZERO}.{part}.device", 'Set it to "none" to forecast the job without it.')
    if config.value(f"{ZERO}.cpu_offload", bool, False):
        raise config.error(OFFLOADED, f"{ZERO}.cpu_offload", "Set it to false to forecast the job without it.")
    beside = config.value(f"{ZERO}.overlap_comm", bool, stage == 3)
    config.asked.add(f"{ZERO}.{_BUCKET}")
    if stage == 3:
        draft.put("parallelism.fsdp", True, *config.source(key))
        if not beside:
            draft.put("overlap.fsdp_prefetch", False, *config.source(f"{ZERO}.overlap_comm"))
    else:
        if stage:
            draft.put("parallelism.distributed_optimizer", True, *config.source(key))
        if stage == 2:
            draft.warn(f"{key} 2: gradients are forecast whole on every rank, as at stage 1")
        if beside and stage:  # without ZeRO gradients are reduced behind the last backward
            draft.put("overlap.grad_reduce", "overlapped", *config.source(f"{ZERO}.overlap_comm"))
            _bucket(config, draft)
    for name, words in _PARTS.items():
        if config.value(f"{ZERO}.{name}", (bool, int), False) not in (False, 1) or config.raw(f"{ZERO}.{name}") is True:
            draft.warn(f"{ZERO}.{name}: {words}")
    reduced, precision = config.value(_REDUCED, str), draft.value("workload.precision")
    if reduced and reduced != precision and not (stage == 3 and reduced == "fp32"):
        draft.warn(f"{_REDUCED} {reduced}: gradients are forecast reduced in {precision}")
    return stage


def _bucket(config: SettingsFile, draft: Draft) -> None:
    """How much is reduced at once; what is left to Hugging Face's trainer is the square of the model's width."""
    key, model = f"{ZERO}.{_BUCKET}", draft.value("workload.model")
    source, line = config.source(key)
    if config.raw(key) == "auto":
        if not isinstance(model, str):
            return
        elements, source = float(load_model(model).hidden) ** 2, f"{source} auto: hidden_size squared"
    else:
        elements = config.value(key, (int, float), BUCKET)
    width = 4 if draft.value("workload.precision") == "fp32" else 2
    draft.put("overlap.grad_bucket_mb", width * elements / 2**20, source, line)


def _run(config: SettingsFile, draft: Draft, architecture: str | None) -> None:
    put = draft.put
    code = "Hugging Face's code"
    put("implementation.framework", "pytorch-eager", code)
    put("implementation.modules", "transformers", code)
    put("implementation.attention_backend", *pytorch_attention(architecture, "transformers"))
    clipped = config.value("gradient_clipping", (int, float), 0.0) > 0
    put("implementation.gradient_clipping", clipped, *config.source("gradient_clipping"))


def _refuse(config: SettingsFile) -> None:
    """What a forecast would be far off of."""
    optimizer = config.value("optimizer.type", str, "AdamW")
    if optimizer.lower() not in ("adam", "adamw", "fusedadam"):
        raise config.error(other_optimizer(optimizer), "optimizer.type", 'Set it to "AdamW" to forecast that instead.')
    if config.value("amp.enabled", bool, False):
        what = "mixed precision by apex is not known: the forecast would be in fp32"
        raise config.error(what, "amp.enabled", "Use the table bf16 or fp16 in its place.")
    for key in ("sequence_parallel_size", "tensor_parallel.autotp_size"):
        size = config.whole(key, 1)
        if size and size > 1:
            raise config.error(SPLIT, key, "Set it to 1 to forecast the job without it.")
    for name in config.value("activation_checkpointing", dict, {}):
        key = f"activation_checkpointing.{name}"
        if config.value(key, (bool, int), False) is True and name == "cpu_checkpointing":
            raise config.error(OFFLOADED, key, "Set it to false to forecast the job without it.")


def _accumulated(config: SettingsFile, draft: Draft, stage: int) -> None:
    """Tell of gradients that stages 0 to 2 add up in fp32 (``get_data_types`` of its engine)."""
    key = "data_types.grad_accum_dtype"
    asked = config.value(key, str)
    unsaid = asked is None and stage == 0 and draft.value("workload.precision") == "bf16"
    if unsaid or asked in ("fp32", "float32"):
        source = "bf16 without ZeRO" if unsaid else key
        draft.warn(f"{source}: DeepSpeed adds gradients up in fp32, 4 bytes a parameter that the forecast leaves out")
