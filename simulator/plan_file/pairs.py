"""Losses on pairs of sequences, one chosen and one rejected: DPO, and its kin that need no reference model.

What they are made of, log-probabilities, next tokens' loss may be too, of logits in tiles.

A sample is such a pair. Both sequences go through the model in one forward, twice as many as there are samples, and so
they do through the model that DPO compares with, which has no backward: a second one, or the same without its adapters.
Sources: Rafailov et al., DPO, arXiv 2305.18290; Hong et al., ORPO, 2403.07691; Meng et al., SimPO, 2405.14734;
``trl/trainer/dpo_trainer.py`` of TRL 1.16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulecast.errors import NotYetError, UnknownNameError
from joulecast.model.transformer.log_probabilities import CHUNKED, WHOLE
from joulecast.simulator.plan_file.names import place
from joulecast.simulator.plan_file.parts import NEXT_TOKEN

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.schema import PlanFile
    from joulecast.simulator.plan_file.source import Source

OBJECTIVE, REFERENCE, COMPLETION = (f"workload.{key}" for key in ("objective", "reference", "completion_tokens"))
LOG_PROBABILITIES = "implementation.log_probabilities"
#: Objectives on pairs, that compare with a reference model and that do not, and all that are known.
COMPARED, ALONE = ("dpo",), ("orpo", "simpo")
KNOWN = (NEXT_TOKEN, *COMPARED, *ALONE)
#: Losses that differ from these in arithmetic alone.
KIN = {"ipo": "dpo", "cpo": "simpo"}
#: Objectives that are no such form, and why.
_GENERATES = "generates its own texts, which is not forecast"
UNKNOWN = {
    **dict.fromkeys(("ppo", "grpo", "rloo", "online-dpo", "gkd"), _GENERATES),
    "kto": "compares single sequences, and takes a second forward of mismatched ones",
    "reward": "trains a head of one value, which is not known",
    "distillation": "takes all of a second model's logits, which is not known",
}


def read_objective(parsed: PlanFile, source: Source) -> dict[str, Any]:
    """The loss, and what it compares with, as fields of the workload.

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
    own = "copy" if table.lora is None else "adapters-off"
    return {
        "objective": name,
        "reference": (table.reference or own) if name in COMPARED else None,
        "completion_tokens": None if has_all_logits(parsed) else table.completion_tokens,
    }


def has_all_logits(parsed: PlanFile) -> bool:
    """Whether all positions have their logits at once: by default those of next tokens, not those of pairs."""
    by_default = WHOLE if parsed.workload.objective == NEXT_TOKEN else CHUNKED
    return (parsed.implementation.log_probabilities or by_default) == WHOLE


def log_probabilities_of(parsed: PlanFile) -> str:
    """How log-probabilities are made, empty for the cross-entropy of next tokens of whole logits, its default."""
    if not has_all_logits(parsed):
        return CHUNKED
    return "" if parsed.workload.objective == NEXT_TOKEN else WHOLE


def check_pairs(plan: Plan, source: Source) -> None:
    """Pairs, and logits in tiles, are known in transformers' modules, whole on each GPU or sharded."""
    w, run = plan.workload, plan.implementation
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
    what, key = ("logits in tiles", LOG_PROBABILITIES) if texts else ("pairs", OBJECTIVE)
    for wrong, where, remedy in unknown:
        if wrong:
            raise source.error(f"{what} {where} are not known", key, remedy=f"{remedy}.", kind=NotYetError)


def pair_assumptions(plan: Plan) -> tuple[str, ...]:
    """What a sample and a token are, and what runs beside the model that is trained."""
    w = plan.workload
    if w.objective == NEXT_TOKEN:
        return ()
    said = [
        f"a sample is a pair of sequences of {w.sequence_length} tokens, chosen and rejected, without padding; tokens "
        "are those of both"
    ]
    if w.runs_reference:
        which = "a second model" if w.reference == "copy" else "the model without its adapters"
        said.append(f"each forward includes that of the reference, {which}, which has no backward")
    elif w.reference == "precomputed":
        said.append("the reference's log-probabilities were computed before; the time that took is not forecast")
    return tuple(said)
