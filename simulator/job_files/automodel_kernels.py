"""What PyTorch runs of a job of NeMo AutoModel: ``[schedule]`` and ``[implementation]``."""

from __future__ import annotations

from joulecast.model.architecture.hf import load_model
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.automodel_names import OWN_CODE
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.optimizers import CLASSES, put_optimizer
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.told import other_optimizer
from joulecast.simulator.job_files.trainer_kernels import put_attention
from joulecast.simulator.job_files.trainer_liger import read_liger

PACKED = "packed_sequence.packed_sequence_size"
_CODE = "AutoModel trains transformers' layers"
_CHECKPOINTS = ("distributed.activation_checkpointing", "parallelizer.activation_checkpointing")
_ADAM = ("torch.optim.Adam", "torch.optim.AdamW")
_BACKEND, _IMPLEMENTATION = "model.backend.attn", "attn_implementation"


def put_kernels(
    config: SettingsFile, draft: Draft, asked: Asked, architecture: str | None, *, context: bool, split: bool
) -> None:
    """Put attention, recomputation, FP8, modules, loss and optimizer into the plan.

    Parameters
    ----------
    architecture
        Of the GPU, on which PyTorch's choice of kernels hangs; ``None`` where it is not known.
    context, split
        Whether sequences, and layers or their products, are split over GPUs.

    Raises
    ------
    InputError
        A value that cannot be, or of which a forecast would be far off.
    """
    put, compiles = draft.put, config.first(("compile.enabled", "distributed.enable_compile"))
    model = draft.value("workload.model")
    experts = model is not None and load_model(model).experts is not None
    own = model is not None and OWN_CODE.fullmatch(model) is not None and not config.on("model.force_hf")
    put("implementation.framework", "pytorch-eager", _CODE)
    if config.on(compiles):
        put("implementation.compile", True, *config.source(compiles))
    flash = _attention(config, draft, architecture, context=context)
    _float8(config, draft)
    _recomputation(config, draft, own=own, experts=experts)
    nearest = _nearest(draft, experts=experts, context=context)
    put("implementation.modules", nearest, _CODE if nearest == "transformers" else "the nearest to AutoModel's layers")
    if experts:
        put("implementation.moe_permute_fusion", False, _CODE)
        put("implementation.moe_row_operator", "scatter_add", _CODE)
        draft.warn("layers of experts are forecast in PyTorch's operators, not in AutoModel's or DeepEP's own kernels")
    elif nearest != "transformers":
        draft.warn("layers are forecast as torchtitan's, in which what splits, compiles or narrows them is known")
    put("implementation.gradient_clipping", True, "AutoModel clips gradients")
    _loss(config, draft, whole=not split and nearest == "transformers")
    liger = not (own or experts or split or context or draft.value("implementation.compile"))
    _installed(config, draft, asked, flash=flash, liger=liger)
    _optimizer(config, draft)


def _attention(config: SettingsFile, draft: Draft, architecture: str | None, *, context: bool) -> bool:
    """Put the kernels of attention into the plan; whether they are others where flash-attn is installed."""
    put, key = draft.put, "implementation.attention_backend"
    if config.value(_BACKEND, str) == "te":
        put(key, "cudnn", *config.source(_BACKEND))
        return False
    if context:  # whatever the model asks for
        put(key, "flash-attention-2", "what PyTorch's context_parallel runs in AutoModel")
        config.know([_IMPLEMENTATION])
        return False
    if config.raw(PACKED) and not config.given(_IMPLEMENTATION):
        put(key, "flash-attn-2", "what AutoModel packs sequences for")
        return False
    put_attention(config, draft, architecture)
    return not config.given(_IMPLEMENTATION)


def _nearest(draft: Draft, *, experts: bool, context: bool) -> str:
    """The modules that are nearest to a job's among those in which its parallelism and precision are known."""
    compiled = draft.value("implementation.compile") and draft.value("implementation.attention_backend") != "cudnn"
    if experts:
        return "joint"
    fp8, selective = draft.value("workload.precision") == "fp8", draft.value("schedule.recompute") == "operators"
    return "torchtitan" if selective or context or compiled or fp8 else "transformers"


def _recomputation(config: SettingsFile, draft: Draft, *, own: bool, experts: bool) -> None:
    """Put layers that are computed again into the plan, or operators that are chosen of them as torchtitan does."""
    key = config.first(_CHECKPOINTS)
    mode = config.value(key, (bool, str), False)
    if mode is False:
        return
    if mode not in (True, "full", "selective"):
        raise config.error(f"{mode!r} is no way to compute layers again", key, 'Use true, "full" or "selective".')
    if mode == "selective" and not experts:
        draft.put("schedule.recompute", "operators", *config.source(key))
        return
    draft.put("schedule.recompute", "full", *config.source(key))
    if mode == "selective":
        draft.put("schedule.recompute_interval", 2, *config.source(key))
        draft.warn(f"{key} selective keeps every other product; the forecast computes every other layer again instead")
    elif own:
        draft.warn(
            f"{key}: AutoModel's own layers also keep what goes into attention, MLP and norms: it takes more memory"
        )
    elif not experts:
        draft.put("schedule.recompute_stops_early", False, "AutoModel checkpoints transformers' layers reentrantly")


def _float8(config: SettingsFile, draft: Draft) -> None:
    """Linear layers in FP8 by torchao."""
    recipe = config.word("fp8.recipe_name", ("tensorwise", "rowwise", "rowwise_with_gw_hp"), "tensorwise")
    gathers = config.on("fp8.enable_fsdp_float8_all_gather")
    if not config.on("fp8.enabled"):
        return
    draft.put("workload.precision", "fp8", *config.source("fp8.enabled"))
    name = "rowwise" if recipe.startswith("rowwise") else recipe
    draft.put("workload.fp8_recipe", name, *config.source("fp8.recipe_name"))
    if recipe == "rowwise_with_gw_hp":
        draft.warn("rowwise_with_gw_hp: weight gradients are forecast in FP8, which are in bf16")
    if gathers and name == "tensorwise" and draft.value("parallelism.fsdp"):
        draft.put("workload.fp8_param_gather", True, *config.source("fp8.enable_fsdp_float8_all_gather"))


def _loss(config: SettingsFile, draft: Draft, *, whole: bool) -> None:
    """The loss: of all logits in fp32, or in tiles that are not kept."""
    key = "loss_fn._target_"
    name = str(config.value(key, str, "MaskedCrossEntropy")).rpartition(".")[2]
    if name == "MaskedCrossEntropy":
        return
    if name == "FusedLinearCrossEntropy" and whole and not draft.value("implementation.compile"):
        draft.put("implementation.log_probabilities", "chunked", *config.source(key))
    else:
        draft.warn(f"{key} {name}: the loss is forecast of all logits at once, in fp32")


def _installed(config: SettingsFile, draft: Draft, asked: Asked, *, flash: bool, liger: bool) -> None:
    """Put Liger's kernels into the plan where the job says so; tell what AutoModel takes where it is installed.

    ``flash``, ``liger``: whether flash-attn and Liger's kernels would then run.
    """
    if liger and config.on("use_liger_kernel"):
        read_liger(config, draft, asked, keeps_loss=True)
    adds = ["flash-attn (--set implementation.attention_backend=flash-attn-2)"] if flash else []
    if liger and not config.given("use_liger_kernel"):
        adds.append('liger-kernel (--set \'implementation.liger_kernel=["rms_norm", "rope", "swiglu"]\')')
    config.know(["use_liger_kernel"])
    if adds:
        draft.warn(f"forecast without what AutoModel takes where it is installed: {', '.join(adds)}")


def _optimizer(config: SettingsFile, draft: Draft) -> None:
    key = "optimizer._target_"
    name = config.value(key, str, "torch.optim.AdamW")
    if name in _ADAM:
        if not config.on("optimizer.fused"):
            draft.warn("optimizer.fused is not true: it is forecast in fused kernels, not in PyTorch's foreach")
    elif not put_optimizer(config, draft, key, name, CLASSES):
        raise config.error(other_optimizer(name), key, "Set it to torch.optim.AdamW to forecast that instead.")
