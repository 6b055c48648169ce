"""Losses that are no cross-entropy of next tokens: on pairs of sequences, on single ones, and from a teacher.

What most are made of, log-probabilities, next tokens' loss may be too, of logits in tiles.

Of a pair of sequences, one chosen and one rejected (DPO and its kin, reward models), both go through the model in one
forward, twice as many as there are samples, and so they do through the model that DPO compares with, which has no
backward: a second one, or the same without its adapters. KTO's samples are single sequences, and those of methods that
learn from a model's own completions (:mod:`joulecast.simulator.plan_file.rollout`).

Sources: Rafailov et al., DPO, arXiv 2305.18290; Hong et al., ORPO, 2403.07691; Meng et al., SimPO, 2405.14734;
Ethayarajh et al., KTO, 2402.01306; Shao et al., GRPO, 2402.03300; ``dpo_trainer.py``, ``kto_trainer.py``,
``reward_trainer.py``, ``grpo_trainer.py`` and ``distillation_trainer.py`` of TRL 1.16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulecast.errors import NotYetError, UnknownNameError
from joulecast.model.transformer.log_probabilities import CHUNKED, DIVERGENCE, VALUE, WHOLE
from joulecast.simulator.plan_file.names import place, resolve_teacher
from joulecast.simulator.plan_file.parts import NEXT_TOKEN, PAIRED
from joulecast.simulator.plan_file.rollout import read_rollout, rollout_assumptions

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.schema import PlanFile
    from joulecast.simulator.plan_file.source import Source

OBJECTIVE, REFERENCE, COMPLETION = (f"workload.{key}" for key in ("objective", "reference", "completion_tokens"))
LOG_PROBABILITIES, TEACHER = "implementation.log_probabilities", "workload.teacher"
#: Objectives that compare with a reference model, and those of pairs that do not.
COMPARED, ALONE = ("dpo", "kto"), ("orpo", "simpo")
#: Objectives that have a head of one value, that learn from a model's own completions and from a teacher.
REWARD, GRPO, DISTILLATION = "reward", "grpo", "distillation"
KNOWN = (NEXT_TOKEN, *COMPARED, *ALONE, REWARD, GRPO, DISTILLATION)
#: Objectives whose completions may be generated as part of an iteration.
GENERATES = (GRPO, DISTILLATION)
#: What else than log-probabilities objectives make behind the last norm.
OTHERWISE = {REWARD: VALUE, DISTILLATION: DIVERGENCE}
#: Objectives that score tokens, and those that do by log-probabilities.
SCORED = tuple(name for name in KNOWN if name != REWARD)
LOGARITHMIC = tuple(name for name in KNOWN if name not in OTHERWISE)
#: Losses that differ from these in arithmetic alone.
KIN = {"ipo": "dpo", "cpo": "simpo", "rloo": GRPO, "dapo": GRPO, "gspo": GRPO}
#: Objectives that are no such form, and why.
UNKNOWN = {
    "ppo": "trains a model of values beside its policy, which is not known",
    "online-dpo": "generates pairs and has them judged, which is not known",
    "gkd": f"takes all logits of model and teacher, which is not known; those in tiles are {DISTILLATION}'s",
}


def read_objective(parsed: PlanFile, source: Source) -> dict[str, Any]:
    """The loss, and what it compares with, as fields of the workload; keys of other objectives are left out.

    Raises
    ------
    InputError
        An objective that is not known, or more tokens scored than there are.
    """
    table, name = parsed.workload, parsed.workload.objective
    if name in UNKNOWN:
        remedy = f"Choose one of {', '.join(KNOWN)}."
        raise source.error(f"{name} {UNKNOWN[name]}", OBJECTIVE, remedy=remedy, kind=NotYetError)
    if name in KIN:
        raise source.error(f"{name} runs the kernels of {KIN[name]}", OBJECTIVE, remedy=f'Set it to "{KIN[name]}".')
    if name not in KNOWN:
        raise place(UnknownNameError("objective", name, KNOWN), source, OBJECTIVE)
    if table.completion_tokens is not None and table.completion_tokens > table.sequence_length:
        raise source.error(
            f"a sequence of {table.sequence_length} tokens has no {table.completion_tokens}",
            COMPLETION,
            remedy=f"Use at most {table.sequence_length}.",
        )
    if name == DISTILLATION and table.teacher is None:
        remedy = "Name a model of the catalogue, or the path of a config.json."
        raise source.error("a distillation learns from a teacher", TEACHER, remedy=remedy)
    found: dict[str, Any] = {"objective": name}
    if name in COMPARED:
        found["reference"] = table.reference or ("copy" if table.lora is None else "adapters-off")
    if name in SCORED and not has_all_logits(parsed):
        found["completion_tokens"] = table.completion_tokens
    if name == GRPO:
        if table.reference == "precomputed":
            remedy = 'Use "copy" or "adapters-off", or leave it out where beta is 0.'
            raise source.error("completions that are generated cannot be read before", REFERENCE, remedy=remedy)
        found |= {key: getattr(table, key) for key in ("reference", "num_iterations", "old_log_probabilities")}
    if name in GENERATES:
        found["rollout"] = read_rollout(table, source)
    if name == DISTILLATION and table.teacher is not None:
        found["teacher"] = resolve_teacher(table.teacher, source)
    return found


def has_second_model(parsed: PlanFile) -> bool:
    """Whether the loss compares with another model than the trained one: a copy as its reference, or a teacher."""
    table = parsed.workload
    if table.objective == DISTILLATION:
        return True
    unsaid = "copy" if table.objective in COMPARED and table.lora is None else None
    return (table.reference or unsaid) == "copy"


def has_all_logits(parsed: PlanFile) -> bool:
    """Whether all positions have their logits at once: by default those of next tokens, not those of pairs."""
    by_default = WHOLE if parsed.workload.objective == NEXT_TOKEN else CHUNKED
    return (parsed.implementation.log_probabilities or by_default) == WHOLE


def log_probabilities_of(parsed: PlanFile) -> str:
    """How log-probabilities are made, empty for the cross-entropy of next tokens of whole logits, its default."""
    if parsed.workload.objective in OTHERWISE:
        return OTHERWISE[parsed.workload.objective]
    if not has_all_logits(parsed):
        return CHUNKED
    return "" if parsed.workload.objective == NEXT_TOKEN else WHOLE


def check_pairs(plan: Plan, source: Source) -> None:
    """Other losses, and logits in tiles, are known in transformers' modules, whole on each GPU or sharded."""
    w, run = plan.workload, plan.implementation
    if w.teacher is not None and w.teacher.vocab != w.model.vocab:
        remedy = "Use one of the same vocabulary."
        raise source.error(
            f"the teacher has {w.teacher.vocab} words, the model {w.model.vocab}", TEACHER, remedy=remedy
        )
    texts = w.objective == NEXT_TOKEN
    if texts and not run.log_probabilities:
        return
    if w.reference == "adapters-off" and w.lora is None:
        remedy = 'Add [workload.lora], or use "copy".'
        raise source.error("the model has no adapters that could be off", REFERENCE, remedy=remedy)
    one = "split the batch alone"
    unknown = [
        (run.framework != "pytorch-eager", "in Megatron", 'Set implementation.framework = "pytorch-eager"'),
        (run.modules != "transformers", f"in {run.modules} modules", 'Set implementation.modules = "transformers"'),
        (plan.tp > 1 or plan.cp > 1 or plan.pp > 1, "of a model split over GPUs", f"Set the sizes to 1 and {one}"),
        (run.compile, "in compiled modules", "Set implementation.compile = false"),
        (run.loss_metrics > 0, "with metrics of cross-entropy", "Leave implementation.loss_metrics out"),
    ]
    if not texts:
        unknown += [
            (w.document_tokens is not None, "in packed sequences", "Leave workload.document_tokens out"),
            (w.lora is not None and w.lora.prepared, "beside a prepared model", "Leave workload.lora.prepared out"),
            (run.dropout > 0, "with dropout, which trainers turn off", "Leave implementation.dropout out"),
        ]
    what, key = ("logits in tiles", LOG_PROBABILITIES) if texts else (f"losses as {w.objective}'s", OBJECTIVE)
    source.refuse(unknown, key, what=f"{what} {{}} are not known", kind=NotYetError)


def pair_assumptions(plan: Plan) -> tuple[str, ...]:
    """What a sample and a token are, and what runs beside the model that is trained."""
    w = plan.workload
    if w.objective == NEXT_TOKEN:
        return ()
    if w.objective in PAIRED:
        said = [
            f"a sample is a pair of sequences of {w.sequence_length} tokens, chosen and rejected, without padding; "
            "tokens are those of both"
        ]
    else:
        said = [f"a sample is a sequence of {w.sequence_length} tokens, prompt and completion, without padding"]
    which = "a second model" if w.reference == "copy" else "the model without its adapters"
    if w.objective == "kto":
        said.append("each forward includes the model's own of mismatched completions, which has no backward")
    if w.teacher is not None:
        said.append("each forward includes that of the teacher, which has no backward")
    elif w.objective == GRPO and w.scored_forwards:
        once = f", once for {w.num_iterations} iterations" if w.num_iterations > 1 else ""
        own = ["the model itself"] * w.old_log_probabilities + [f"the reference, {which}"] * w.runs_reference
        said.append(f"completions are scored before by {' and '.join(own)}{once}")
    elif w.runs_reference:
        twice = "two" if w.objective == "kto" else "that"
        said.append(f"each forward includes {twice} of the reference, {which}, which has no backward")
    elif w.reference == "precomputed":
        said.append("the reference's log-probabilities were computed before; the time that took is not forecast")
    return (*said, *rollout_assumptions(plan))
