"""What trains a model in verl: transformers' layers under FSDP, with adapters, by its actor and its supervised trainer.

Names and defaults are those of ``verl/trainer/config`` and ``verl/workers/engine/fsdp/transformer_impl.py`` (commit
01d4d766), and names that jobs of earlier versions have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from joulecast.errors import InputError
from joulecast.simulator.job_files.adapters import read_adapters
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.kept_gathered import keep_gathered
from joulecast.simulator.job_files.settings_file import Matching, SettingsFile
from joulecast.simulator.job_files.told import other_optimizer
from joulecast.simulator.job_files.trainer_kernels import put_attention, put_recomputation
from joulecast.simulator.job_files.trainer_liger import read_liger
from joulecast.simulator.job_files.verl_names import PASSED_OVER, REFUSED, TABLES, WARNED

_TYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "float32": "fp32", "fp32": "fp32"}
_STRATEGIES = ("fsdp", "fsdp2")
_CODE = "verl trains transformers' layers"


@dataclass(frozen=True, slots=True)
class Places:
    """Tables of an engine's settings.

    Attributes
    ----------
    model, fsdp, optimizer
        Of its model, of how that is split and of its optimizer.
    path
        What names the model.
    strategy
        The setting of the code that splits it.
    checkpoints
        Whether layers are computed again where nothing is said.
    waits
        Whether gradients wait for the last micro-batch to be reduced where nothing is said.
    """

    model: str
    fsdp: str
    optimizer: str
    path: str
    strategy: str
    checkpoints: bool = True
    waits: bool = True

    @property
    def names(self) -> dict[str, str]:
        """What it calls the settings of other readers."""
        return {
            "attn_implementation": f"{self.model}.override_config.attn_implementation",
            "gradient_checkpointing": f"{self.model}.enable_gradient_checkpointing",
            "lora_r": f"{self.model}.lora_rank",
            "lora_target_modules": f"{self.model}.target_modules",
            "use_liger": f"{self.model}.use_liger",
        }

    @property
    def defaults(self) -> dict[str, Any]:
        """Its own defaults of these."""
        names = self.names
        return {
            names["attn_implementation"]: "flash_attention_2",
            names["gradient_checkpointing"]: self.checkpoints,
            names["lora_target_modules"]: "all-linear",
        }


def refuse(config: SettingsFile, places: Places) -> None:
    """Refuse settings of which the forecast would be far off.

    Raises
    ------
    InputError
        There is one.
    """
    strategy = config.value(places.strategy, str, "fsdp")
    other = strategy if strategy not in _STRATEGIES else config.value("model_engine", str, "dp")
    key = places.strategy if strategy not in _STRATEGIES else "model_engine"
    if other not in ("dp", *_STRATEGIES):
        raise refused_engine(other, config, key)
    for key, what in REFUSED.items():
        if config.value(key, (bool, int), False) not in (False, 1) or config.raw(key) is True:
            raise config.error(what, key, "Leave it out to forecast the job without it.")


def refused_engine(name: str, config: SettingsFile, key: str) -> InputError:
    """An engine whose settings are not read."""
    remedy = "Use fsdp to forecast the job so; Megatron-LM's own command is read too."
    return config.error(f"{name} trains this model, and its settings are not read", key, remedy)


def put_engine(
    config: SettingsFile, draft: Draft, asked: Asked, architecture: str | None, places: Places, code: str
) -> None:
    """Put precision, sharding, adapters and kernels into the plan.

    Parameters
    ----------
    code
        How log-probabilities are made, as ``implementation.log_probabilities`` has it; empty for its default.
    """
    put = draft.put
    put("implementation.framework", "pytorch-eager", _CODE)
    put("implementation.modules", "transformers", _CODE)
    _precision(config, draft, places)
    put_attention(config, draft, architecture)
    if code:
        put("implementation.log_probabilities", code, "verl's log-probabilities, nearest to these")
    put("implementation.gradient_clipping", True, "verl clips gradients")
    put_recomputation(config, draft)
    _adapters(config, draft, places)
    if draft.value("cluster.gpus") != 1:
        _sharding(config, draft, places)
    read_liger(config, draft, asked, keeps_loss=True)
    _optimizer(config, draft, places)


def _precision(config: SettingsFile, draft: Draft, places: Places) -> None:
    """Types of products, parameters and gradients."""
    key = config.first((f"{places.fsdp}.mixed_precision.param_dtype", f"{places.fsdp}.dtype"))
    precision = _TYPES[config.word(key, _TYPES, "bfloat16")]
    draft.put("workload.precision", precision, *config.source(key if config.given(key) else f"{places.fsdp}.dtype"))
    kept, reduced = f"{places.fsdp}.model_dtype", f"{places.fsdp}.mixed_precision.reduce_dtype"
    wide = _TYPES[config.word(kept, _TYPES, "fp32")] == "fp32"
    added = _TYPES[config.word(reduced, _TYPES, "fp32")]
    if wide:
        draft.put("implementation.parameter_precision", "fp32", *config.source(kept))
        if added != "fp32":
            draft.put("implementation.gradient_precision", added, *config.source(reduced))
    elif added == "fp32" and draft.value("cluster.gpus") != 1:
        draft.warn(f"{kept}: gradients, which verl reduces in fp32, are forecast reduced in {precision}")


def _adapters(config: SettingsFile, draft: Draft, places: Places) -> None:
    """Adapters, where their rank is above 0; they are kept in fp32."""
    rank, loaded = f"{places.model}.lora_rank", f"{places.model}.lora_adapter_path"
    if config.whole(rank, 0, least=0):
        read_adapters(config, draft, None)
        if config.raw(f"{places.model}.exclude_modules"):
            draft.warn(f"{places.model}.exclude_modules: adapters are forecast beside all that the job targets")
    elif config.raw(loaded):
        raise config.error("an adapter is loaded whose rank is in its own file", loaded, f"Say it: {rank}=RANK.")
    config.know([config.names["lora_target_modules"], f"{places.model}.exclude_modules"])


def _sharding(config: SettingsFile, draft: Draft, places: Places) -> None:
    """FSDP, whose copies may be of some GPUs."""
    draft.put("parallelism.fsdp", True, "verl's FSDP")
    size, gpus = f"{places.fsdp}.fsdp_size", draft.value("cluster.gpus")
    ranks = config.value(size, int, -1)
    if 0 < ranks < (gpus or ranks + 1):
        draft.put("parallelism.fsdp_shard_size", ranks, *config.source(size))
    gathers = f"{places.fsdp}.reshard_after_forward"
    if config.value(gathers, bool, True) is False:
        keep_gathered(draft, f"{gathers} false", config.source(gathers))
    waits = f"{places.fsdp}.use_no_sync_for_gradient_accumulation"
    if config.value(waits, bool, places.waits):
        draft.put("parallelism.fsdp_sync_each_batch", False, *config.source(waits))
        if not config.given(waits):
            draft.warn(
                "gradients of accumulated micro-batches are forecast added up whole on each GPU and reduced once, as "
                "verl has it by default; versions that reduce each are --set parallelism.fsdp_sync_each_batch=true"
            )


def _optimizer(config: SettingsFile, draft: Draft, places: Places) -> None:
    key = f"{places.optimizer}.optimizer"
    name, kind = config.value(key, str, "AdamW"), f"{places.optimizer}.optimizer_impl"
    if name not in ("AdamW", "Adam") or config.value(kind, str, "torch.optim") != "torch.optim":
        raise config.error(other_optimizer(name), key, "Set it to AdamW of torch.optim to forecast that instead.")
    draft.warn("AdamW: the optimizer is forecast in fused kernels, not in PyTorch's foreach")


def tell_rest(config: SettingsFile, draft: Draft) -> None:
    """What is told, passed over or not regarded."""
    for key, what in WARNED.items():
        if config.raw(key) not in (None, False, 1) or config.raw(key) is True:
            draft.warn(f"{key}: {what}")
    config.know((*WARNED, "model_engine"))
    for settings in (config, config.over):
        if settings is not None:
            alone = replace(settings, asked=config.asked, names={}, over=None)
            alone.rest(draft, TABLES, Matching(PASSED_OVER))


def of_hydra(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a command with lists and quoted texts as Hydra takes them.

    >>> of_hydra({"model": {"target_modules": "[q_proj,'v_proj']", "path": "'a'"}})
    {'model': {'target_modules': ['q_proj', 'v_proj'], 'path': 'a'}}
    """
    return {key: of_hydra(value) if isinstance(value, Mapping) else _value(value) for key, value in tables.items()}


def _value(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value[:1] == "[" and value[-1:] == "]":
        return [part.strip().strip("'\"") for part in value[1:-1].split(",")]
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
