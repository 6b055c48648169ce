"""Prediction of several tokens in a plan: how many modules are trained, and what a forecast says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulecast.simulator.plan_file.source import Source

if TYPE_CHECKING:
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.schema import PlanFile

KEY = "workload.mtp_num_layers"


def prediction_modules(parsed: PlanFile, source: Source) -> int:
    """Modules that predict a further token each; without the key none, as in published performance recipes.

    Megatron-Bridge's performance summary (25.11) has DeepSeek-V3 on GB200 and GB300 at 249.7 GFLOP a token, which is
    the model without a module for a further token; on B200 at 260.4, which is the model with one.

    Raises
    ------
    InputError
        Modules where they are not known, or more than a sequence has further tokens.
    """
    count = parsed.workload.mtp_num_layers
    if not count:
        return 0
    if parsed.implementation.framework != "megatron":
        raise source.error(
            "prediction of further tokens is known as Megatron trains it",
            KEY,
            remedy='Set implementation.framework = "megatron", or this to 0.',
        )
    most = parsed.workload.sequence_length - 1
    if count > most:
        raise source.error(
            f"no token of a sequence of {most + 1} has {count} behind it", KEY, remedy=f"Use at most {most}."
        )
    return count


def prediction_assumptions(plan: Plan) -> tuple[str, ...]:
    """That modules which the model's file knows are left out."""
    model = plan.workload.model
    if model.mtp_layers or not model.nextn_layers:
        return ()
    return (f"only the next token is predicted; {KEY} = {model.nextn_layers} trains what the model's file knows",)
