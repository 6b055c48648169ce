"""Training on preferences and rewards in Hugging Face's trainers and tools built on them, as ``workload.objective``.

Settings are those of TRL's ``DPOConfig``, ``KTOConfig``, ``RewardConfig`` and ``DistillationConfig`` (1.16; ``trl dpo``
or a script of that name), LLaMA-Factory's ``stage: dpo``, ``kto`` and ``rm`` (0.9), Axolotl's ``rl`` and
``reward_model`` (0.19) and ms-swift's ``rlhf_type`` (3.11). Those of completions are in
:mod:`joulecast.simulator.job_files.completions`.
"""

from __future__ import annotations

from joulecast.simulator.job_files.completions import put_completions
from joulecast.simulator.job_files.draft import Draft
from joulecast.simulator.job_files.hub_names import hub_model
from joulecast.simulator.job_files.settings_file import SettingsFile
from joulecast.simulator.job_files.told import PREFERENCES, words
from joulecast.simulator.plan_file.pairs import ALONE, COMPARED, DISTILLATION, GRPO, KIN, REWARD

STAGE, AXOLOTL, SWIFT, PRECOMPUTED = "stage", "rl", "rlhf_type", "precompute_ref_log_probs"
_REWARDING = "reward_model"
#: Objectives by what tools, and the names of scripts, call them.
OBJECTIVES = {**{name: name for name in (*COMPARED, *ALONE, REWARD, GRPO, DISTILLATION)}, **KIN, "rm": REWARD}
#: Those that TRL's trainers of today make of logits in tiles.
_TILED = ("dpo", "kto", GRPO)
#: What stages of LLaMA-Factory train.
_STAGES = {"dpo": "dpo", "kto": "kto", "rm": REWARD}
_TEACHERS = ("teacher_model_name_or_path", "teacher_model")
#: Settings of the loss, which change no kernel, and of the lengths of its texts, of which ``max_length`` is the most.
_PASSED = words(
    """
    beta loss_type loss_weights label_smoothing ld_alpha f_divergence_type discopop_tau rl_beta
    f_alpha_divergence_coef use_weighting pref_beta pref_loss pref_ftx dpo_label_smoothing simpo_gamma cpo_alpha
    rpo_alpha max_prompt_length max_completion_length truncation_mode disable_dropout precompute_ref_batch_size
    dpo_norm_loss orpo_alpha padding_free use_logits_to_keep dpo_use_logits_to_keep reference_free pref_bco_weight
    desirable_weight undesirable_weight kto_chosen_weight kto_rejected_weight center_rewards_coefficient
    rl_adapter_ref_model kto_desirable_weight kto_undesirable_weight teacher_model_init_kwargs
    """
)
#: Settings that training on texts has not.
PAIRS = ("beta", "max_prompt_length", "max_completion_length", "rpo_alpha", "cpo_alpha", "simpo_gamma", PRECOMPUTED)
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
    config.know(found)
    stage = found[STAGE]
    if stage in _STAGES:
        loss = str(config.value("pref_loss", str, "sigmoid"))
        return (loss if loss in ALONE and stage == "dpo" else _STAGES[stage]), STAGE
    if stage not in ("", "sft", "pt"):
        raise config.error(
            PREFERENCES, STAGE, f"Set it to sft to forecast training on texts, or to {', '.join(_STAGES)}."
        )
    if config.value(_REWARDING, (bool, str)) is True:
        return REWARD, _REWARDING
    for key in (AXOLOTL, SWIFT):
        if found[key] in OBJECTIVES:
            return OBJECTIVES[found[key]], key
        if found[key] not in ("", "false", "none"):
            raise config.error(PREFERENCES, key, f"Known are {', '.join(OBJECTIVES)}.")
    return (OBJECTIVES[started], started) if started in OBJECTIVES else None


def tell_pairs(config: SettingsFile, draft: Draft) -> None:
    """Tell of settings of a loss on pairs in a job that nothing says to have one, as in a YAML without its command."""
    found = [config.own(key) for key in PAIRS if config.given(key)]
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
    config.know((*_PASSED, *_OTHERS, *_MOVED, PRECOMPUTED))
    if name in COMPARED:
        _reference(config, draft, adapted=adapted)
    if name == GRPO:
        put_completions(config, draft, key, adapted=adapted)
    if draft.value("workload.lora.dropout"):
        draft.put("workload.lora.dropout", 0.0, "trainers on pairs turn dropout off")
    if name == DISTILLATION:
        _teacher(config, draft)
    elif name == REWARD:
        _values(config, draft)
    else:
        _log_probabilities(config, draft, name, tiled=name == GRPO or (tiled and name in _TILED))
    if name == GRPO and not tiled:
        draft.warn("log-probabilities are forecast of logits in tiles, as TRL 1.16 makes them; other code keeps logits")


def _log_probabilities(config: SettingsFile, draft: Draft, name: str, *, tiled: bool) -> None:
    """How they are made, and which are."""
    code = "TRL 1.16 makes logits in tiles" if tiled else "all logits in fp32"
    draft.put("implementation.log_probabilities", "chunked" if tiled else "whole", code)
    if name == "kto" and config.value("loss_type", (str, list)) == "apo_zero_unpaired":
        draft.warn("loss_type: forwards of mismatched completions are forecast, which apo_zero_unpaired does not take")
    if tiled and name != GRPO:
        of = "chosen and rejected texts" if name == "dpo" else "completions"
        draft.warn(
            f"all tokens are forecast scored; where prompts are long add --set workload.completion_tokens=MEAN, of {of}"
        )
    elif not tiled and not config.given(STAGE):
        draft.warn(
            "log-probabilities are forecast by a log-softmax of all logits in fp32, as LLaMA-Factory's; other code "
            "takes more or fewer passes over them"
        )


def _values(config: SettingsFile, draft: Draft) -> None:
    """What a tool's reward model makes beside its values."""
    if config.given(STAGE):
        draft.warn("LLaMA-Factory's reward models make all logits beside their values; that is not forecast")


def _teacher(config: SettingsFile, draft: Draft) -> None:
    """The model that is learned from."""
    key = config.first(_TEACHERS)
    named = config.value(key, str)
    known = None if named is None else hub_model(named)
    if known is None:
        draft.missing["workload.teacher"] = "the teacher, a name of `joulecast models` or the path of a config.json"
    draft.put("workload.teacher", known, *config.source(key))
    draft.warn(
        "completions are taken to be there: their generation is not forecast without [workload.rollout], of --set "
        "workload.completion_tokens=MEAN and workload.rollout.num_generations=1"
    )


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


def put_narrow_reference(config: SettingsFile, draft: Draft, stage: int, *, mixed: bool) -> None:
    """Put the type of a second model into the plan where the tool keeps it narrower than the trained one.

    Beside ZeRO's stages 0 to 2 the trained one's is narrow too. At stage 3 (``stage``) the plan's parameters are the
    fp32 copy, which DeepSpeed makes of what has an optimizer alone (``prepare_deepspeed`` of TRL's models).
    """
    second = draft.value("workload.reference") == "copy" or draft.value("workload.objective") == DISTILLATION
    if not (second and mixed) or draft.value("workload.lora.rank") or draft.value("implementation.main_parameters"):
        return
    key, precision = "implementation.reference_precision", draft.value("workload.precision")
    if stage == 3:
        draft.put(key, precision, "DeepSpeed keeps what it does not train as it multiplies")
    elif config.given(STAGE):
        draft.put(key, precision, "LLaMA-Factory loads the reference as it multiplies")
