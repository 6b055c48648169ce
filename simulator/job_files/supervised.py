"""Supervised finetuning by TRL's ``SFTTrainer``, which since 1.15 makes logits in tiles and keeps none of them.

Its ``loss_type`` (``nll``, ``chunked_nll``, ``dft``) changes nothing of that, nor do Liger's kernels. Smoothed labels
need all logits (``trl/trainer/sft_trainer.py`` of TRL 1.16).
"""

from __future__ import annotations

import re

from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.named_files import named_path, named_text
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.shell import Command

KEY, COMPLETION = "implementation.log_probabilities", "workload.completion_tokens"
#: What a script of TRL's trainer has in its text, and else in its name.
_TRAINER, _NAME = "SFTTrainer", "sft"
_LOSS, _SMOOTHED, _OF_COMPLETIONS = "loss_type", "label_smoothing_factor", "completion_only_loss"
_ALL = f"--set {KEY}=whole"


def runs_sft_trainer(command: Command, place: int, file: str) -> bool:
    """Whether a command's script, at ``place`` of its words, trains with TRL's: it says so, or is called after it."""
    name = command.words[place].text
    path = named_path(name, file) if name.endswith(".py") else None
    if path is not None:
        return _TRAINER in named_text(path, "Python")
    return _NAME in re.split(r"[\W_]", name.rpartition("/")[2].lower())


def put_tiles(config: SettingsFile, draft: Draft, *, script: bool) -> None:
    """Put logits in tiles into the plan, and tell what is taken of a job that does not say it.

    Parameters
    ----------
    script
        Whether the trainer is known by a script alone, in place of TRL's own command.
    """
    config.know([_LOSS])
    if why := _needs_all(config, draft):
        draft.warn(f"all logits are forecast, in fp32: {why}")
        return
    draft.put(KEY, "chunked", "TRL 1.15 and later make logits in tiles")
    if script:
        draft.warn(
            "the script is taken to run SFTTrainer of TRL 1.15 or later, which keeps no logits, with bf16 and "
            "gradient_checkpointing on unless the job says otherwise, as its SFTConfig has them; for other code add "
            f"{_ALL}"
        )
    if config.value(_OF_COMPLETIONS, (bool, str)) is not False:
        draft.warn(
            "all tokens are forecast scored; where the loss is of completions or of an assistant's words alone add "
            f"--set {COMPLETION}=MEAN"
        )


def _needs_all(config: SettingsFile, draft: Draft) -> str:
    """Why all logits are forecast, empty where they are made in tiles."""
    smoothed = config.value(_SMOOTHED, (int, float), 0.0)
    if smoothed and config.value(_LOSS, str, "nll") != "dft":
        return f"{_SMOOTHED} makes TRL take them, and one more forward for its metrics, which is not forecast"
    return "tiles of them are not known in compiled modules" if draft.value("implementation.compile") else ""
