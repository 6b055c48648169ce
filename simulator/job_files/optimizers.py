"""What jobs call the optimizers that a plan has beside PyTorch's AdamW."""

from __future__ import annotations

from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.settings_file import SettingsFile

#: Plans' names by those of Hugging Face's ``OptimizerNames``.
TRAINERS = {
    "adamw_8bit": "adamw-8bit",
    "adamw_bnb_8bit": "adamw-8bit",
    "paged_adamw_8bit": "adamw-8bit",
    "paged_adamw_32bit": "adamw-32bit",
    "paged_adamw": "adamw-32bit",
    "lion_8bit": "lion-8bit",
    "paged_lion_8bit": "lion-8bit",
    "lion_32bit": "lion-32bit",
    "paged_lion_32bit": "lion-32bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
#: Plans' names by classes.
CLASSES = {
    "bitsandbytes.optim.AdamW8bit": "adamw-8bit",
    "bitsandbytes.optim.PagedAdamW8bit": "adamw-8bit",
    "bitsandbytes.optim.PagedAdamW": "adamw-32bit",
    "bitsandbytes.optim.PagedAdamW32bit": "adamw-32bit",
    "bitsandbytes.optim.Lion8bit": "lion-8bit",
    "bitsandbytes.optim.PagedLion8bit": "lion-8bit",
    "torch.optim.SGD": "sgd",
}


def put_optimizer(config: SettingsFile, draft: Draft, key: str, name: str, known: dict[str, str]) -> bool:
    """Put one of these optimizers into the plan, and tell of paged states.

    Returns
    -------
    bool
        Whether it is one of these.
    """
    ours = known.get(name)
    if ours is None:
        return False
    draft.put("implementation.optimizer", _with_momentum(config, ours), *config.source(key))
    if "paged" in name.lower():
        draft.warn(
            f"{config.own(key)} {name}: moments are forecast in the GPU's memory; paged ones move to the host's, which "
            "takes time, where there is no room for them"
        )
    return True


def _with_momentum(config: SettingsFile, ours: str) -> str:
    """SGD keeps a moment where its options say so: torchtune's key, or the Trainer's ``optim_args``."""
    if ours != "sgd":
        return ours
    arguments = str(config.value("optim_args", str, "")).replace(" ", "")
    said = dict(pair.partition("=")[::2] for pair in arguments.split(",") if pair)
    momentum = config.value("optimizer.momentum", (int, float), 0.0) or said.get("momentum", "0")
    return "sgd-momentum" if str(momentum) not in ("0", "0.0") else ours
