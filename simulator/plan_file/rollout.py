"""``[workload.rollout]``: completions that are generated before they are learned from, and forwards that score them.

Methods that learn from a model's own completions (GRPO and its kin) generate a batch of them, take their
log-probabilities once by the model as it is (``old_log_probabilities``) and by a reference model, and then train on
each ``num_iterations`` times. An iteration here is one step of the optimizer, with its share of what comes once.
Source: Shao et al., GRPO, arXiv 2402.03300; ``trl/trainer/grpo_trainer.py`` of TRL 1.16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulecast.errors import NotYetError
from joulecast.model.memory.states import Stage, parameter_bytes
from joulecast.model.training.generation import (
    MOST_OVERHEAD_S,
    STEP_OVERHEAD_S,
    Generated,
    engine_of,
    key_value_bytes,
)

if TYPE_CHECKING:
    from joulecast.model.framework.implementation import Implementation
    from joulecast.simulator.plan_file.plan import Plan
    from joulecast.simulator.plan_file.schema_workload import WorkloadTable
    from joulecast.simulator.plan_file.source import Source

ROLLOUT, ITERATIONS = "workload.rollout", "workload.num_iterations"


@dataclass(frozen=True, slots=True)
class Rollout:
    """How completions are generated that are then learned from.

    Attributes
    ----------
    num_generations
        Completions of each prompt.
    generation_batch_size
        Completions that all GPUs generate at once.
    max_num_seqs
        Sequences that a GPU's engine serves at once, at most; ``None``: all of its.
    completion_tokens, longest_tokens
        Tokens of a completion in the mean, and of the longest.
    step_overhead_s
        Time of an engine's step in which the GPU waits for its host, ``None`` where the plan does not say it [s].
    wait_s
        Time for which the GPUs wait for completions that are generated elsewhere, ``None`` where they generate [s].
    enable_sleep_mode
        Whether engines give their memory back while the model is trained.
    """

    num_generations: int
    generation_batch_size: int
    max_num_seqs: int | None
    completion_tokens: int
    longest_tokens: int
    step_overhead_s: float | None
    wait_s: float | None
    enable_sleep_mode: bool = False


def read_rollout(table: WorkloadTable, source: Source) -> Rollout | None:
    """How completions are generated, ``None`` where that is not asked for.

    Raises
    ------
    InputError
        Lengths that do not go together.
    """
    asked = table.rollout
    if asked is None:
        return None
    tokens = table.completion_tokens
    if tokens is None or tokens >= table.sequence_length:
        raise source.error(
            "prompts are what completions leave of a sequence",
            "workload.completion_tokens",
            remedy=f"Give the mean tokens of completions, at most {table.sequence_length - 1}.",
        )
    if asked.longest_tokens is not None and asked.longest_tokens < tokens:
        remedy = f"Use at least {tokens}, or leave the key out."
        raise source.error(
            "the longest completion is shorter than the mean", f"{ROLLOUT}.longest_tokens", remedy=remedy
        )
    return Rollout(
        num_generations=asked.num_generations,
        generation_batch_size=asked.generation_batch_size or table.global_batch_size,
        max_num_seqs=asked.max_num_seqs,
        completion_tokens=tokens,
        longest_tokens=asked.longest_tokens or tokens,
        step_overhead_s=None if asked.step_overhead_us is None else 1e-6 * asked.step_overhead_us,
        wait_s=asked.wait_s,
        enable_sleep_mode=asked.enable_sleep_mode,
    )


def check_rollout(plan: Plan, source: Source) -> None:
    """What is generated is shared evenly, by engines that know the model."""
    w = plan.workload
    scorings = w.scored_forwards * plan.microbatches
    if scorings % w.num_iterations:
        raise source.error(
            f"forwards of {plan.microbatches} micro-batches are not shared evenly by {w.num_iterations} iterations",
            ITERATIONS,
            remedy="Use a divisor of the micro-batches of an iteration.",
        )
    if w.rollout is None:
        if w.num_iterations > 1 and not scorings:
            remedy = "Set workload.old_log_probabilities = true, as trainers do, or leave this key out."
            raise source.error("nothing scores or generates completions once for several", ITERATIONS, remedy=remedy)
        return
    if w.rollout.generation_batch_size % plan.dp:
        raise source.error(
            f"{w.rollout.generation_batch_size} completions are not shared evenly by {plan.dp} GPUs",
            f"{ROLLOUT}.generation_batch_size",
            remedy=f"Use a multiple of {plan.dp}.",
        )
    if w.rollout.generation_batch_size % w.rollout.num_generations:
        raise source.error(
            f"{w.rollout.generation_batch_size} completions are not {w.rollout.num_generations} of each prompt",
            f"{ROLLOUT}.num_generations",
            remedy="Use a divisor of the completions that are generated at once.",
        )
    model = w.model
    unknown = [
        (model.experts is not None, "experts"),
        (model.latent is not None, "latent attention"),
        (bool(model.mixers), "layers without attention"),
    ]
    for wrong, what in unknown:
        if wrong and w.rollout.wait_s is None:
            remedy = f"Measure how long it takes and set {ROLLOUT}.wait_s."
            raise source.error(
                f"generation by a model with {what} is not known", ROLLOUT, remedy=remedy, kind=NotYetError
            )


def scorings_of(plan: Plan) -> int:
    """Forwards of a micro-batch that an iteration runs beside no training, each of all models that score."""
    w = plan.workload
    return plan.microbatches // w.num_iterations if w.scored_forwards else 0


def generated_by(plan: Plan) -> Generated | None:
    """What each GPU's engine generates in an iteration; ``None`` where none does."""
    w, rollout = plan.workload, plan.workload.rollout
    if rollout is None or rollout.wait_s is not None:
        return None
    batch = rollout.generation_batch_size // plan.dp
    share = w.global_batch_size / rollout.generation_batch_size / w.num_iterations
    most = live_of(plan)
    steps = rollout.longest_tokens * math.ceil(batch / most)
    prompt = w.sequence_length - rollout.completion_tokens
    return Generated(
        prompts=math.ceil(batch * share / rollout.num_generations),
        prompt_tokens=prompt,
        live=max(1, round(most * rollout.completion_tokens / rollout.longest_tokens)),
        context=prompt + 0.5 * rollout.completion_tokens,
        steps=max(1, round(steps * share)),
        overhead_s=STEP_OVERHEAD_S if rollout.step_overhead_s is None else rollout.step_overhead_s,
    )


def live_of(plan: Plan) -> int:
    """The most sequences that a GPU's engine serves at once."""
    rollout = plan.workload.rollout
    if rollout is None:
        return 0
    batch = rollout.generation_batch_size // plan.dp
    return min(batch, rollout.max_num_seqs or batch)


def engine_bytes(plan: Plan, run: Implementation) -> float:
    """Weights of an engine beside the training's, and the keys and values of its live sequences."""
    if generated_by(plan) is None or (rollout := plan.workload.rollout) is None:
        return 0.0
    w, engine = plan.workload, engine_of(run)
    others = () if w.model.alike else w.model.others(0, w.model.layers)
    weights = sum(held.weights for held in parameter_bytes(Stage(w.model, engine, w.model.layers, True, True, others)))
    longest = w.sequence_length - rollout.completion_tokens + rollout.longest_tokens
    return weights + key_value_bytes(w.model, engine, float(live_of(plan) * longest))


def rollout_assumptions(plan: Plan) -> tuple[str, ...]:
    """Who generates completions, and what an engine's host adds to its steps."""
    w, work = plan.workload, generated_by(plan)
    if w.objective != "grpo" and w.rollout is None:
        return ()
    if w.rollout is None:
        return (
            "completions are there: their generation is not forecast without [workload.rollout], nor their rewards",
        )
    if work is None:
        return (f"the GPUs wait {w.rollout.wait_s:g} s for completions that are generated elsewhere",)
    said = [
        f"an engine on each GPU, with weights of its own, generates {work.live} completions at once in {work.steps} "
        f"steps, and prompts are read once for {w.rollout.num_generations} of them; rewards are not forecast"
    ]
    if w.rollout.step_overhead_s is None:
        more = work.steps * (MOST_OVERHEAD_S - STEP_OVERHEAD_S)
        said.append(
            f"each step waits {1e3 * STEP_OVERHEAD_S:g} ms for the engine's host; with {1e3 * MOST_OVERHEAD_S:g} ms, "
            f"as slow ones take, the iteration takes {more:.3g} s longer, with none "
            f"{work.steps * STEP_OVERHEAD_S:.3g} s less; {ROLLOUT}.step_overhead_us states yours"
        )
    return tuple(said)
