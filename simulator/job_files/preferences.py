"""Training on preferences in Hugging Face's trainers and tools built on them, as ``workload.objective`` on pairs.

Settings are those of TRL's ``DPOConfig`` (1.16; ``trl dpo``, or a script of that name), LLaMA-Factory's ``stage: dpo``
(0.9), Axolotl's ``rl`` (0.19) and ms-swift's ``rlhf_type`` (3.11).
"""

from __future__ import annotations

from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.told import PREFERENCES
from joulecast.simulator.plan_file.pairs import ALONE, COMPARED, KIN

STAGE, AXOLOTL, SWIFT, PRECOMPUTED = "stage", "rl", "rlhf_type", "precompute_ref_log_probs"
#: Objectives by what tools, and the names of scripts, call them.
OBJECTIVES = {**{name: name for name in (*COMPARED, *ALONE)}, **KIN}
#: Settings of the loss, which change no kernel, and of the lengths of its texts, of which ``max_length`` is the most.
_PASSED = (
    *(
        "beta",
        "loss_type",
        "loss_weights",
        "label_smoothing",
        "ld_alpha",
        "f_divergence_type",
        "discopop_tau",
        "rl_beta",
    ),
    *("f_alpha_divergence_coef", "use_weighting", "pref_beta", "pref_loss", "pref_ftx", "dpo_label_smoothing"),
    *("simpo_gamma", "cpo_alpha", "rpo_alpha", "max_prompt_length", "max_completion_length", "truncation_mode"),
    *("disable_dropout", "precompute_ref_batch_size", "dpo_norm_loss", "orpo_alpha"),
    *("padding_free", "use_logits_to_keep", "dpo_use_logits_to_keep", "reference_free", "pref_bco_weight"),
)
#: Settings that training on texts has not.
_TELLING = ("beta", "max_prompt_length", "max_completion_length", "rpo_alpha", "cpo_alpha", "simpo_gamma", PRECOMPUTED)
#: Other models than the trained one that a job compares with.
_OTHERS = ("ref_model", "ref_model_name_or_path", "model_ref", "ref_model_path")
_MOVED = ("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha")


def objective_of(config: SettingsFile, started: str) -> tuple[str, str] | None:
    """The objective on pairs of a job and the setting that says so; ``None`` where it trains on texts.

    ``started``: what the job's command or script is called after.

    Raises
    ------
    InputError
        It is one that is not known.
    """
    found = {key: str(config.raw(key) or "").lower() for key in (STAGE, AXOLOTL, SWIFT)}
    config.asked |= {config.own(key) for key in found}
    stage = found[STAGE]
    if stage == "dpo":
        loss = str(config.value("pref_loss", str, "sigmoid"))
        return (loss if loss in ALONE else "dpo"), STAGE
    if stage not in ("", "sft", "pt"):
        raise config.error(PREFERENCES, STAGE, "Set it to sft to forecast training on texts, or to dpo.")
    for key in (AXOLOTL, SWIFT):
        if found[key] in OBJECTIVES:
            return OBJECTIVES[found[key]], key
        if found[key] not in ("", "false", "none"):
            raise config.error(PREFERENCES, key, f"Known are {', '.join(OBJECTIVES)}.")
    return (OBJECTIVES[started], started) if started in OBJECTIVES else None


def tell_pairs(config: SettingsFile, draft: Draft) -> None:
    """Tell of settings of a loss on pairs in a job that nothing says to have one, as in a YAML without its command."""
    found = [config.own(key) for key in _TELLING if config.given(key)]
    if found and not config.given(STAGE):
        config.asked |= set(found)
        draft.warn(
            f"{', '.join(found)}: settings of training on pairs, but nothing says that this job does, and texts are "
            "forecast; give the command, such as trl dpo --config FILE, or add --set workload.objective=dpo"
        )


def put_pairs(config: SettingsFile, draft: Draft, objective: tuple[str, str], *, adapted: bool, tiled: bool) -> None:
    """Put the loss, its reference model and how log-probabilities are made into the plan.

    Parameters
    ----------
    adapted
        Whether adapters are trained, without which the model is then its own reference.
    tiled
        Whether TRL's trainer of today makes the log-probabilities, in tiles of logits.
    """
    name, key = objective
    source = config.source(key) if config.given(key) else (f"trained by {key}", None)
    draft.put("workload.objective", name, *source)
    config.asked |= {config.own(key) for key in (*_PASSED, *_OTHERS, *_MOVED, PRECOMPUTED)}
    if name == "dpo":
        _reference(config, draft, adapted=adapted)
    tiled = tiled and name == "dpo"
    code = "TRL 1.16 makes logits in tiles" if tiled else "all logits in fp32"
    draft.put("implementation.log_probabilities", "chunked" if tiled else "whole", code)
    if tiled:
        draft.warn(
            "all tokens are forecast scored; where prompts are long add --set workload.completion_tokens=MEAN, of "
            "chosen and rejected texts"
        )
    elif not config.given(STAGE):
        draft.warn(
            "log-probabilities are forecast by a log-softmax of all logits in fp32, as LLaMA-Factory's; other code "
            "takes more or fewer passes over them"
        )
    if draft.value("workload.lora.dropout"):
        draft.put("workload.lora.dropout", 0.0, "trainers on pairs turn dropout off")


def _reference(config: SettingsFile, draft: Draft, *, adapted: bool) -> None:
    """What the model is compared with."""
    if config.on(PRECOMPUTED):
        draft.put("workload.reference", "precomputed", *config.source(PRECOMPUTED))
        return
    other = next((key for key in _OTHERS if config.raw(key)), None)
    if other is not None:
        draft.put("workload.reference", "copy", *config.source(other))
        draft.warn(f"{config.own(other)}: the reference model is forecast as large as the trained one")
    else:
        way = "adapters-off" if adapted else "copy"
        draft.put("workload.reference", way, "the model without adapters" if adapted else "a second model")
    if draft.value("workload.reference") == "copy" and config.given(STAGE):
        draft.warn("the reference model is forecast in the type of the parameters; LLaMA-Factory loads it narrow")
