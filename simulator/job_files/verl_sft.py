"""Supervised finetuning by verl: ``verl.trainer.fsdp_sft_trainer``, and ``sft_trainer`` on its engines."""

from __future__ import annotations

from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.cluster import put_cluster
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.hub_names import name_at, put_named_model
from joulecast.simulator.job_files.launcher import Launch
from joulecast.simulator.job_files.micro_batches import put_micro_batch
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.told import unpacked
from joulecast.simulator.job_files.verl_engine import Places, put_engine, refuse, tell_rest

_FIRST = Places(
    "model", "model.fsdp_config", "optim", "model.partial_pretrain", "model.strategy", checkpoints=False, waits=False
)
_OF_ENGINES = Places("model", "engine", "optim", "model.path", "engine.strategy")
_BATCH, _LENGTH, _MICRO = "data.train_batch_size", "data.max_length", "data.micro_batch_size_per_gpu"
_DYNAMIC, _MOST = "data.use_dynamic_bsz", "data.max_token_len_per_gpu"


def sft_draft(config: SettingsFile, launch: Launch, asked: Asked, file: str, *, engines: bool) -> Draft:
    """A job as a plan in the making.

    ``engines``: of ``sft_trainer``, whose names and defaults are others.

    Raises
    ------
    InputError
        A setting that cannot be, or of which a forecast would be far off.
    """
    places, draft = _OF_ENGINES if engines else _FIRST, Draft(file)
    config.names, config.defaults = places.names, places.defaults
    refuse(config, places)
    put_named_model(draft, asked, name_at(config, places.path), config.source(places.path))
    architecture = put_cluster(draft, asked, launch)
    length = config.whole(_LENGTH, 1024) or 1024
    draft.put("workload.sequence_length", length, *config.source(_LENGTH))
    put_engine(config, draft, asked, architecture, places, "")
    _samples(config, draft, engines=engines)
    if engines or config.on("use_remove_padding"):  # else samples are padded to it
        draft.warn(unpacked(_LENGTH, length))
    steps, batch = config.whole("trainer.total_training_steps"), draft.value("workload.global_batch_size")
    if steps and batch:
        draft.put(
            "workload.training_tokens", float(steps * batch * length), *config.source("trainer.total_training_steps")
        )
    config.know(["data.pad_mode", "use_remove_padding", "model.use_remove_padding", "model.use_fused_kernels"])
    tell_rest(config, draft)
    return draft


def _samples(config: SettingsFile, draft: Draft, *, engines: bool) -> None:
    batch, gpus = config.whole(_BATCH, 256) or 256, draft.value("cluster.gpus")
    draft.put("workload.global_batch_size", batch, *config.source(_BATCH))
    if gpus is None:
        draft.put("workload.micro_batch_size", config.whole(_MICRO, 4), *config.source(_MICRO))
        return
    if batch % gpus:
        raise config.error(f"{batch} samples are not split over {gpus} GPUs", _BATCH, f"Use a multiple of {gpus}.")
    if not config.given(_MICRO):
        config.defaults = {**config.defaults, _MICRO: 4}
    put_micro_batch(config, draft, (_MICRO,), (_DYNAMIC, engines), (_MOST, 8192), batch // gpus)
