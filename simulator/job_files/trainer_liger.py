"""Liger's kernels as jobs of Hugging Face's trainers switch them on.

transformers, TRL, LLaMA-Factory and ms-swift have one switch, which swaps what Liger swaps by default but for what
``liger_kernel_config`` says; Axolotl's plugin swaps what has a switch of its own that is on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from joulecast.model.architecture.model_config import ModelConfig
from joulecast.model.framework.implementation import LigerKernel
from joulecast.simulator.job_files.asked import Asked
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.plan_file.liger import GATES, KEY, LOSSES, swapped_kernels, unknown_in

#: The switch, by the names that tools have for it, and the table beside it.
SWITCHES, TABLE = ("use_liger_kernel", "use_liger", "enable_liger_kernel"), "liger_kernel_config"
#: What Axolotl's plugin is known by here.
PLUGIN = "liger_plugin"
#: Axolotl's switches; its older name of the gate's, and norms that no model has which sees text alone.
_EACH = ("rope", "rms_norm", "glu_activation", "swiglu", *LOSSES)
_NO_EFFECT = ("liger_layer_norm", "liger_use_token_scaling")


def read_liger(config: SettingsFile, draft: Draft, asked: Asked, *, keeps_loss: bool = False) -> None:
    """Put the kernels into the plan; where they are not known, tell what the forecast is of.

    ``keeps_loss``: the tool makes its loss of logits itself.
    """
    on = config.first(SWITCHES)
    plugin = [f"liger_{name}" for name in _EACH if config.on(f"liger_{name}")]
    table = config.value(TABLE, dict) or {}
    config.asked.update((PLUGIN, *_NO_EFFECT))
    key = on if config.on(on) else next(iter(plugin), "")
    if not key:
        return
    tiled = keeps_loss or bool(draft.value("implementation.log_probabilities"))  # whose loss stays the tool's
    swapped: bool | list[LigerKernel] = ["rms_norm", "rope", "swiglu"] if tiled else True
    unknown = "in a compiled model" if draft.value("implementation.compile") else ""
    if not unknown and "workload.model" in draft.settings:
        model = draft.model(asked)
        default = swapped_kernels(True, model)
        chosen = _of_table(table, default) if key == on else _of_plugin(plugin, model)
        swapped = sorted(chosen - set(LOSSES) if tiled else chosen)
        unknown = unknown_in(tuple(swapped), model)
        swapped = True if set(swapped) == set(default) else swapped
    if unknown:
        logits = "" if draft.value("implementation.log_probabilities") == "chunked" else ", and the logits take memory"
        draft.warn(
            f"{config.own(key)}: Liger's kernels are not known {unknown}; norms, rotary embedding, MLP and loss are "
            f"forecast in transformers' own, with which the iteration is longer{logits}"
        )
    elif swapped:
        draft.put(KEY, swapped, *config.source(key))


def _of_table(table: Mapping[str, Any], default: Sequence[LigerKernel]) -> set[LigerKernel]:
    """Those of the one switch: what is swapped by default, but for what the table says."""
    return {name for name in get_args(LigerKernel) if table.get(name, name in default)}


def _of_plugin(switches: Sequence[str], model: ModelConfig) -> set[LigerKernel]:
    """Those that have a switch of their own, in whose names every gate is the model's."""
    gate = GATES.get(model.activation, "swiglu")
    named = {name.removeprefix("liger_") for name in switches}
    gated: set[LigerKernel] = {gate} if named & {"glu_activation", "swiglu"} else set()
    return gated | {name for name in get_args(LigerKernel) if name in named and name not in GATES.values()}
