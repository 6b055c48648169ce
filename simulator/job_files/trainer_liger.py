"""Liger's kernels as jobs of Hugging Face's trainers switch them on.

transformers, TRL, LLaMA-Factory and ms-swift have one switch, which swaps what Liger swaps by default but for what
``liger_kernel_config`` says; Axolotl's plugin swaps what has a switch of its own that is on.
"""

from __future__ import annotations

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


def read_liger(config: SettingsFile, draft: Draft, asked: Asked) -> None:
    """Put the kernels into the plan; where they are not known, tell what the forecast is of."""
    on = config.first(SWITCHES)
    plugin = [f"liger_{name}" for name in _EACH if config.on(f"liger_{name}")]
    table = config.value(TABLE, dict) or {}
    config.asked.update((PLUGIN, *_NO_EFFECT))
    key = on if config.on(on) else next(iter(plugin), "")
    if not key:
        return
    if "workload.model" not in draft.settings:
        tiled = draft.value("implementation.log_probabilities")
        draft.put(KEY, ["rms_norm", "rope", "swiglu"] if tiled else True, *config.source(key))
        return
    model = draft.model(asked)
    default = swapped_kernels(True, model)
    if key == on:
        given = {str(name): bool(value) for name, value in table.items()}
        chosen = [name for name in {*default, *given} if given.get(name, name in default)]
    else:
        gate = GATES.get(model.activation, "swiglu")
        names = (name.removeprefix("liger_") for name in plugin)
        chosen = [gate if name in ("glu_activation", "swiglu") else name for name in names]
    losses = () if draft.value("implementation.log_probabilities") else LOSSES  # of tiles, or of pairs, stays
    kernels: list[LigerKernel] = [name for name in (*GATES.values(), "rms_norm", "rope", *losses) if name in chosen]
    unknown = unknown_in(tuple(kernels), model)
    if draft.value("implementation.compile"):
        unknown = "in a compiled model"
    if unknown:
        draft.warn(
            f"{config.own(key)}: Liger's kernels are not known {unknown}; norms, rotary embedding, MLP and loss are "
            "forecast in transformers' own, with which the iteration is longer"
            + ("" if draft.value("implementation.log_probabilities") == "chunked" else ", and the logits take memory")
        )
    elif kernels:
        draft.put(KEY, True if set(kernels) == set(default) else sorted(kernels), *config.source(key))
