"""What a job of Hugging Face's trainers runs of transformers: ``[implementation]`` and ``[schedule]``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from joulecast.errors import nearest
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.optimizers import TRAINERS, put_optimizer
from joulecast.simulator.job_files.pytorch_attention import pytorch_attention
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.told import other_optimizer

#: Attention by the words of ``attn_implementation``, and LLaMA-Factory's ``flash_attn``.
_BACKENDS = {
    "flash_attention_2": "flash-attn-2",
    "kernels-community/flash-attn2": "flash-attn-2",
    "fa2": "flash-attn-2",
    "flash_attn": "flash-attn-2",
    "flash_attention_3": "flash-attention-3",
    "kernels-community/vllm-flash-attn3": "flash-attention-3",
    "flex_attention": "flex",
    "eager": "unfused",
    "disabled": "unfused",
    True: "flash-attn-2",
}
#: Words for PyTorch's own, whose kernels are its choice.
_PYTORCH = ("sdpa", "auto", False)
#: Switches of scripts for the first of them, and where accelerate has its compiler.
_FLASH = ("use_flash_attention_2", "use_flash_attn", "flash_attention")
_DYNAMO = ("dynamo_config.dynamo_backend", "dynamo_backend")
#: Workers that read data, and beside which others of their settings Axolotl leaves their number alone.
_WORKERS, _BESIDE_WORKERS = "dataloader_num_workers", ("dataloader_pin_memory", "dataloader_prefetch_factor")
#: Models whose own configuration has dropout, in residual stream, embedding and attention, and how much.
WITH_DROPOUT, DROPOUT = "gpt2", 0.1
#: Kinds of AdamW by PyTorch and torchao, in fewer bits.
_OF_ADAMW = re.compile(r"adamw(_torch)?(_(4|8)bit)?")
#: How alike a name must be to one of these to be taken for a slip; other optimizers' names are less so.
MISSPELT = 0.9
_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_hf")


def read_kernels(
    config: SettingsFile, accelerate: Sequence[SettingsFile], draft: Draft, architecture: str | None
) -> None:
    """Put attention, recomputation, compilation and the optimizer into the plan.

    Parameters
    ----------
    architecture
        Of the GPU, on which PyTorch's choice of kernels hangs; ``None`` where it is not known.

    Raises
    ------
    InputError
        An optimizer of which the forecast would be far off, or activations that are kept elsewhere.
    """
    put, code = draft.put, "Hugging Face's code"
    put("implementation.framework", "pytorch-eager", code)
    put("implementation.modules", "transformers", code)
    put("implementation.training_loop", "trainer", "Hugging Face's Trainer")
    _put_workers(config, draft)
    for file, key in ((config, "torch_compile"), *((file, file.first(_DYNAMO)) for file in accelerate)):
        if str(file.value(key, (bool, str), False)).lower() in ("true", "auto", "inductor"):
            put("implementation.compile", True, *file.source(key))
    put_attention(config, draft, architecture)
    clipped = config.value("max_grad_norm", (int, float), 1.0) > 0
    put("implementation.gradient_clipping", clipped, *config.source("max_grad_norm"))
    put_recomputation(config, draft)
    _optimizer(config, draft)


def put_dropout(config: SettingsFile, draft: Draft) -> None:
    """Put the dropout into the plan that GPT-2's own configuration has, unless the job changes it."""
    name, overrides = str(draft.value("workload.model", "")), str(config.raw("config_overrides") or "")
    if not name.startswith(WITH_DROPOUT) or "_pdrop" in overrides:
        return
    known = draft.value("implementation.attention_backend") == "cudnn" and not draft.value("implementation.compile")
    if known and not draft.value("workload.document_tokens"):
        draft.put("implementation.dropout", DROPOUT, f"the configuration of {name} has resid_pdrop = {DROPOUT}")
    else:
        draft.warn(f"{name} has dropout ({DROPOUT} in its configuration), which is not known of such kernels: without")


def _put_workers(config: SettingsFile, draft: Draft) -> None:
    """Put workers that read data into the plan: Axolotl's are as many as processes (``default_dataloader_opts``)."""
    key, source = f"implementation.{_WORKERS}", config.source(_WORKERS)
    workers, gpus = config.value(_WORKERS, int, 0), draft.value("cluster.gpus", 1)
    own = config.own("model_name_or_path") == "base_model" and not any(map(config.given, (_WORKERS, *_BESIDE_WORKERS)))
    draft.put(key, *((gpus, "Axolotl's, as many as processes", None) if own else (workers, *source)))


def put_attention(config: SettingsFile, draft: Draft, architecture: str | None) -> None:
    """Put the kernels of attention into the plan."""
    switch = next((key for key in _FLASH if config.on(key)), None)
    key = switch or config.first(("attn_implementation", "flash_attn"))
    asked = "flash_attention_2" if switch else config.value(key, (str, bool), "sdpa")
    backend, (source, line) = _BACKENDS.get(asked), config.source(key)
    if backend is None and asked in _PYTORCH and draft.value("implementation.compile"):
        backend, source, line = "cudnn", "what compiled layers of transformers run", None
    elif backend is None:
        if asked not in _PYTORCH:
            draft.warn(f"{config.own(key)} {asked}: attention is forecast in the kernels that PyTorch chooses")
        backend, chosen = pytorch_attention(architecture, "transformers")
        source = source if config.given(key) else chosen
    draft.put("implementation.attention_backend", backend, source, line)


def put_recomputation(config: SettingsFile, draft: Draft) -> None:
    """Put layers that are computed again into the plan."""
    key = config.first(("gradient_checkpointing", "activation_checkpointing", "use_gradient_checkpointing"))
    on = config.value(key, (bool, str), False)
    if on is False or config.on("disable_gradient_checkpointing"):
        return
    if isinstance(on, str):
        raise config.error(f"{on!r} keeps activations elsewhere, which is not forecast", key, "Set it to true.")
    draft.put("schedule.recompute", "full", *config.source(key))
    key = config.first(("gradient_checkpointing_kwargs.use_reentrant", "use_reentrant"))
    if config.on(key):
        draft.put("schedule.recompute_stops_early", False, *config.source(key))


def _optimizer(config: SettingsFile, draft: Draft) -> None:
    if _muon(config, draft):
        return
    name = config.value("optim", str, "adamw_torch_fused")
    if put_optimizer(config, draft, "optim", name, TRAINERS):
        return
    if draft.value("workload.lora.rank") and _OF_ADAMW.fullmatch(name):
        draft.warn(
            f"{config.own('optim')} {name}: adapters, which are few, are forecast stepped by PyTorch's fused AdamW"
        )
        return
    if name not in _OPTIMIZERS:
        if near := nearest(name, [*TRAINERS, *_OPTIMIZERS], 1, alike=MISSPELT):
            raise config.error(f"no optimizer {name!r} is known", "optim", f"Did you mean {near[0]!r}?")
        raise config.error(other_optimizer(name), "optim", "Set it to adamw_torch_fused to forecast that instead.")
    if name == "adamw_hf":
        draft.put("implementation.optimizer", "adamw-for-loop", *config.source("optim"))
    elif name == "adamw_torch":
        draft.warn(
            f"{config.own('optim')} adamw_torch: the optimizer is forecast in fused kernels, not in PyTorch's foreach"
        )


def _muon(config: SettingsFile, draft: Draft) -> bool:
    """Put a trainer's own copy of Muon into the plan; Hugging Face's Trainer has none.

    Copies in LLaMA-Factory 0.9 (``use_muon``) and Axolotl 0.19 (``optimizer: muon``) step matrices by the operations of
    ``torch.optim.Muon``, one by one.

    Returns
    -------
    bool
        Whether the job trains with it.
    """
    axolotls = config.own("optim") == "optimizer" and config.value("optim", str, "") == "muon"
    if not (axolotls or config.on("use_muon")):
        return False
    key = "optim" if axolotls else "use_muon"
    draft.put("implementation.optimizer", "muon", *config.source(key))
    draft.warn(
        f"{config.own(key)}: the trainer's own copy of Muon is forecast as torch.optim.Muon, with PyTorch's fused "
        "AdamW for embedding and head, which it steps by a dozen operations each"
    )
    return True
