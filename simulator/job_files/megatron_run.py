"""What a Megatron job trains and what its framework runs: ``[workload]`` and ``[implementation]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from joulecast.model.framework.implementation import RecomputeModule
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.flags import Flags
from joulecast.simulator.job_files.megatron_optimizer import read_optimizer
from joulecast.simulator.plan_file.schema_implementation import GraphScope

SEQUENCE, MICRO, BATCH = "--seq-length", "--micro-batch-size", "--global-batch-size"
REPEATED = "--mtp-use-repeated-layer"
#: Attention that Transformer Engine chooses by architecture: cuDNN's from Hopper on, and on AMD's the vendor's own,
#: FlashAttention's before, and neither before Ampere.
CHOSEN = {"volta": "unfused", "turing": "unfused", "ampere": "flash-attn-2", "ada": "flash-attn-2"}
#: What ``--attention-backend`` asks for, by the names of a plan; ``auto`` leaves it to Transformer Engine.
_BACKENDS = {"flash": "flash-attn-2", "fused": "cudnn", "unfused": "unfused", "local": "unfused"}
_RECIPES = ("tensorwise", "delayed", "mxfp8", "blockwise", "custom")
_MODULES = get_args(RecomputeModule)


def read_workload(flags: Flags, draft: Draft) -> None:
    """Sequences, batches, precision and the length of the run."""
    length = SEQUENCE if flags.line(SEQUENCE) else "--encoder-seq-length"
    sequence = flags.needed(SEQUENCE, flags.whole(length))
    draft.put("workload.sequence_length", sequence, length, flags.line(length))
    micro = flags.needed(MICRO, flags.whole(MICRO))
    draft.put("workload.micro_batch_size", micro, MICRO, flags.line(MICRO))
    batch = flags.whole(BATCH)
    draft.put("workload.global_batch_size", batch, BATCH, flags.line(BATCH))
    _precision(flags, draft)
    _run(flags, draft, sequence, batch)
    predicts = "--num-mtp-predictor" if flags.on("--use-multi-token-prediction") else "--mtp-num-layers"
    modules = flags.whole(predicts, least=0)
    if modules:
        draft.put("workload.mtp_num_layers", modules, predicts, flags.line(predicts))
        if flags.on(REPEATED):
            draft.put("workload.mtp_use_repeated_layer", True, REPEATED, flags.line(REPEATED))


def _precision(flags: Flags, draft: Draft) -> None:
    half = [flag for flag in ("--bf16", "--fp16") if flags.on(flag)]
    if len(half) > 1:
        raise flags.error("contradicts --bf16", "--fp16", "Give one of them.")
    eight, four = flags.text("--fp8-format", ("e4m3", "hybrid")), flags.text("--fp4-format", ("e2m1",))
    recipe = flags.text("--fp8-recipe", _RECIPES) or "delayed"
    flags.text("--fp4-recipe", ("nvfp4",))
    kept = {name: flags.on(f"--{name}-param-gather") for name in ("fp8", "fp4")}
    if eight and four:
        raise flags.error("contradicts --fp8-format", "--fp4-format", "Give one of them.")
    if not (eight or four):
        flag = half[0] if half else "neither --bf16 nor --fp16"
        draft.put("workload.precision", flag.strip("-") if half else "fp32", flag, flags.line(flag))
        return
    narrow, flag = ("fp8", "--fp8-format") if eight else ("fp4", "--fp4-format")
    if half != ["--bf16"]:
        raise flags.error(f"{narrow} is known beside bf16, not beside {half or 'fp32'}", flag, "Add --bf16.")
    draft.put("workload.precision", narrow, flag, flags.line(flag))
    if eight:
        if recipe == "custom":
            raise flags.error("a recipe of one's own is not known", "--fp8-recipe", "Use the recipe that is nearest.")
        draft.put("workload.fp8_recipe", recipe, *_from(flags, "--fp8-recipe"))
    if kept[narrow]:
        flag = f"--{narrow}-param-gather"
        draft.put(f"workload.{narrow}_param_gather", True, flag, flags.line(flag))
    _layers_in_bf16(flags, draft)


def _layers_in_bf16(flags: Flags, draft: Draft) -> None:
    """First and last layers that a narrow type leaves alone."""
    ends = {end: flags.whole(f"--num-layers-at-{end}-in-bf16", 1, least=0) for end in ("start", "end")}
    if flags.on("--first-last-layers-bf16"):
        for end, count in ends.items():
            source, line = _from(flags, f"--num-layers-at-{end}-in-bf16")
            key = f"workload.num_layers_at_{end}_in_bf16"
            draft.put(key, count, source, line or flags.line("--first-last-layers-bf16"))


def _run(flags: Flags, draft: Draft, sequence: int, batch: int | None) -> None:
    samples, iterations = flags.whole("--train-samples"), flags.whole("--train-iters")
    if samples and iterations:
        raise flags.error("contradicts --train-samples", "--train-iters", "Give one of them.")
    if samples:
        draft.put("workload.training_tokens", float(samples * sequence), *_from(flags, "--train-samples"))
    elif iterations and batch:
        source = f"--train-iters of {BATCH} sequences"
        draft.put("workload.training_tokens", float(iterations * batch * sequence), source, flags.line("--train-iters"))


def read_implementation(
    flags: Flags, draft: Draft, environment: Mapping[str, str], architecture: str | None, *, experts: bool, latent: bool
) -> None:
    """Recomputation and kernels.

    Parameters
    ----------
    environment
        What the script exports.
    architecture
        Of the GPU, ``None`` where it is not known yet.
    experts, latent
        Whether the model has experts, and latent attention.
    """
    draft.put("implementation.framework", "megatron", "the training script")
    deepspeed = flags.on("--deepspeed")
    generation, source = ("deepspeed", "--deepspeed") if deepspeed else ("megatron-core", "Megatron-LM's own script")
    draft.put("implementation.generation", generation, source, flags.line("--deepspeed"))
    _recomputation(flags, draft)
    _stored_input(flags, draft)
    _attention(flags, draft, environment, architecture, latent=latent)
    _loss_and_gradients(flags, draft)
    if experts:
        _experts(flags, draft)
    _graphs(flags, draft)


def _recomputation(flags: Flags, draft: Draft) -> None:
    kind = flags.text("--recompute-granularity", ("full", "selective"))
    flag = "--recompute-granularity"
    olds = {"--recompute-activations": "selective", "--moe-layer-recompute": "selective"}
    olds |= dict.fromkeys(("--checkpoint-activations", "--deepspeed-activation-checkpointing"), "full")
    for old, old_kind in olds.items():
        if flags.on(old) and kind is None:
            kind, flag = old_kind, old
    if flags.text("--activations-checkpoint-method", ("uniform", "block")) and kind is None:
        kind, flag = "full", "--activations-checkpoint-method"
    modules, method = flags.texts("--recompute-modules"), flags.text("--recompute-method", ("uniform", "block"))
    count = flags.whole("--recompute-num-layers", least=0)
    if flags.on("--moe-layer-recompute"):
        modules = (*(modules or ()), "moe")
    if kind is None:
        return
    draft.put("schedule.recompute", kind, flag, flags.line(flag))
    if kind == "selective" and modules:
        for module in modules:
            if module not in _MODULES:
                raise flags.error(f"{module!r} is no part that is known", "--recompute-modules", f"Known: {_MODULES}.")
        draft.put("schedule.recompute_modules", list(dict.fromkeys(modules)), *_from(flags, "--recompute-modules"))
    layers, stages = flags.whole("--num-layers"), flags.whole("--pipeline-model-parallel-size", 1) or 1
    if method == "block" and layers is not None and (count or 0) * stages >= layers:
        return  # which are all layers
    if kind == "full" and method == "block" and count is not None:
        draft.warn(
            f"--recompute-method block: {count} layers of each stage are computed again; the forecast computes all "
            "again, so that time is too long and memory too small where a stage has more"
        )
    elif kind == "full" and (count or 1) > 1:
        draft.warn(
            f"--recompute-num-layers {count}: one layer in {count} is kept; the forecast keeps every layer's input"
        )


def _stored_input(flags: Flags, draft: Draft) -> None:
    """The activation's input in FP8, but where Megatron's checkpoint of the activation keeps it as it came."""
    flag = "--activation-func-fp8-input-store"
    if not flags.on(flag):
        return
    if "moe_act" in draft.value("schedule.recompute_modules", ()):
        draft.warn(
            f"{flag}: with moe_act among --recompute-modules Megatron keeps the experts' inputs in bf16 all the same"
        )
        return
    draft.put("implementation.activation_func_fp8_input_store", True, flag, flags.line(flag))


def _attention(
    flags: Flags, draft: Draft, environment: Mapping[str, str], architecture: str | None, *, latent: bool
) -> None:
    backend, source, line = _attention_backend(flags, environment)
    if flags.text("--transformer-impl") == "local":
        draft.warn("--transformer-impl local: but for attention, layers are forecast as Transformer Engine runs them")
    if backend is None:
        family = (architecture or "").lower().partition(" ")[0]
        backend = "cudnn" if latent else CHOSEN.get(family, "cudnn")
        source = f"what Transformer Engine chooses on {architecture or 'Hopper and later'}"
    draft.put("implementation.attention_backend", backend, source, line)
    _dropout(flags, draft, unfused=backend == "unfused")
    if flags.on("--deterministic-mode"):
        draft.warn(
            "--deterministic-mode: what deterministic kernels add is known of FlashAttention before Hopper alone; "
            "set implementation.deterministic = true where that runs"
        )
    if flags.on("--fp8-dot-product-attention") or flags.on("--fp8-dpa"):
        draft.put("implementation.attention_precision", "fp8", "--fp8-dot-product-attention")


def _attention_backend(flags: Flags, environment: Mapping[str, str]) -> tuple[str | None, str, int | None]:
    """The backend that flags or environment ask for, ``None`` where Transformer Engine chooses, and which said so."""
    asked = flags.text("--attention-backend", (*_BACKENDS, "auto")) or "auto"
    impl = flags.text("--transformer-impl", ("local", "transformer_engine", "inference_optimized"))
    flash = sum(flags.on(f"--use-flash-attn{version}") for version in ("", "-v1", "-v2", "-triton")) > 0
    source, line = _from(flags, "--attention-backend")
    if asked == "auto" and (impl == "local" or flags.on("--deepspeed")):
        asked, (source, line) = "flash" if flash else "local", _from(flags, "--transformer-impl")
    if asked == "auto" and environment.get("NVTE_FUSED_ATTN") == "0":
        asked, source, line = "flash", "NVTE_FUSED_ATTN=0", None
    if asked == "auto" and environment.get("NVTE_FLASH_ATTN") == "0":
        asked, source, line = "fused", "NVTE_FLASH_ATTN=0", None
    return _BACKENDS.get(asked), source, line


def _dropout(flags: Flags, draft: Draft, *, unfused: bool) -> None:
    dropout, hidden = flags.number("--attention-dropout", 0.1), flags.number("--hidden-dropout", 0.1)
    if unfused and dropout:
        draft.put("implementation.dropout", dropout, *_from(flags, "--attention-dropout"))
    elif dropout or hidden:
        draft.warn(
            f"dropout of {max(dropout or 0, hidden or 0):g} (--attention-dropout, --hidden-dropout; Megatron's default "
            "is 0.1) is not forecast with this attention: its masks take some memory, its kernels some per cent of time"
        )


def _loss_and_gradients(flags: Flags, draft: Draft) -> None:
    put, line = draft.put, flags.line
    fused = "--cross-entropy-loss-fusion"
    way = flags.text("--cross-entropy-fusion-impl", ("native", "te", "linear")) or "native"
    if flags.on(fused):
        put("implementation.fused_loss", True if way == "te" else "native", f"{fused} {way}", line(fused))
        if way == "linear":
            draft.warn("--cross-entropy-fusion-impl linear: the loss is forecast as Megatron's native fusion has it")
    average = "--ddp-average-in-collective"
    put("implementation.average_in_collective", flags.on(average), *_from(flags, average))
    for flag, narrow in (
        ("--grad-reduce-in-bf16", flags.on("--grad-reduce-in-bf16")),
        ("--main-grads-dtype", flags.text("--main-grads-dtype", ("fp32", "bf16")) == "bf16"),
    ):
        if narrow and flags.on("--bf16"):
            put("implementation.gradient_precision", "bf16", flag, line(flag))
    moments = [flags.text(flag) or "fp32" for flag in ("--exp-avg-dtype", "--exp-avg-sq-dtype")]
    if flags.on("--use-precision-aware-optimizer") and moments != ["fp32", "fp32"]:
        if moments == ["bf16", "bf16"] and flags.on("--bf16"):
            put("implementation.optimizer_precision", "bf16", "--exp-avg-dtype", line("--exp-avg-dtype"))
        else:
            draft.warn(
                f"moments in {moments[0]} and {moments[1]} (--exp-avg-dtype, --exp-avg-sq-dtype) are forecast in fp32"
            )
    read_optimizer(flags, draft)


def _experts(flags: Flags, draft: Draft) -> None:
    put, line = draft.put, flags.line
    dispatcher = "--moe-token-dispatcher-type"
    way = flags.text(dispatcher, ("allgather", "alltoall", "alltoall_seq", "flex")) or "allgather"
    if way == "allgather" and draft.value("parallelism.expert_model_parallel_size", 1) > 1:
        draft.warn(
            f"{dispatcher} allgather (Megatron's default) sends every token to every rank of the experts; the forecast "
            "sends each to its experts alone (alltoall), which is faster the more ranks there are"
        )
    put("implementation.moe_token_dispatcher_type", "flex" if way == "flex" else "alltoall", *_from(flags, dispatcher))
    _exchange(flags, draft, flex=way == "flex")
    put("implementation.moe_router_fusion", flags.on("--moe-router-fusion"), *_from(flags, "--moe-router-fusion"))
    router = flags.text("--moe-router-dtype", ("fp32", "fp64"))
    if router:
        put("implementation.moe_router_dtype", "fp32", "--moe-router-dtype", line("--moe-router-dtype"))
        if router == "fp64":
            draft.warn("--moe-router-dtype fp64: the router is forecast in fp32")
    if not flags.on("--moe-grouped-gemm"):
        draft.warn(
            "no --moe-grouped-gemm: Megatron then multiplies expert by expert; the forecast is of grouped products"
        )
    if not flags.on("--moe-permute-fusion"):
        draft.warn(
            "no --moe-permute-fusion: Megatron then sorts rows by PyTorch's operators, several times slower than the "
            "fused kernels that are forecast; together some per cent of the time"
        )
    capacity = flags.number("--moe-expert-capacity-factor")
    if capacity is not None and capacity > 0:
        put("workload.moe_expert_capacity_factor", capacity, *_from(flags, "--moe-expert-capacity-factor"))
    elif flags.on("--moe-router-force-load-balancing"):
        put("workload.moe_load_imbalance", 1.0, *_from(flags, "--moe-router-force-load-balancing"))


def _exchange(flags: Flags, draft: Draft, *, flex: bool) -> None:
    """Whose kernels exchange tokens, DeepEP's by Megatron's default, and on how many SMs."""
    flag, joint = "--moe-flex-dispatcher-backend", "--moe-flex-dispatcher-num-sms"
    backend = flags.text(flag, ("deepep", "hybridep", "ncclep")) or "deepep"
    asked = {name: flags.whole(name) for name in (joint, "--moe-deepep-num-sms", "--moe-hybridep-num-sms")}
    if not flex:
        return
    if backend == "ncclep":
        draft.warn(f"{flag} ncclep: NCCL's own exchange of tokens is taken to reach three quarters of its links' rate")
        return
    draft.put("implementation.moe_flex_dispatcher_backend", backend, *_from(flags, flag))
    name = joint if asked[joint] else f"--moe-{backend}-num-sms"
    if asked[name]:
        draft.put("implementation.moe_flex_dispatcher_num_sms", asked[name], name, flags.line(name))


def _graphs(flags: Flags, draft: Draft) -> None:
    ways = ("none", "local", "transformer_engine")
    way, flag = flags.text("--cuda-graph-impl", ways) or "none", "--cuda-graph-impl"
    for old in ("--enable-cuda-graph", "--external-cuda-graph"):
        if flags.on(old):
            way, flag = "local", old
    scopes = flags.texts("--cuda-graph-scope") or ("full",)
    if way == "none":
        return
    parts = [scope for scope in scopes if scope in get_args(GraphScope)]
    put = draft.put
    put("implementation.cuda_graphs", parts or True, f"{flag}, --cuda-graph-scope" if parts else flag, flags.line(flag))


def _from(flags: Flags, flag: str) -> tuple[str, int | None]:
    """A flag as the source of a value, or that Megatron's default is."""
    line = flags.line(flag)
    return (flag, line) if line else (f"Megatron's default without {flag}", None)
