"""Plans whose forecast in closed form is further off the simulation than others: named, so that they are simulated.

Found with ``benchmarks/closed_form_errors.py``, which draws plans of every kind at random.
"""

from __future__ import annotations

from joulecast.simulator.instructions.replicas import reduces_among_launches
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import BOTH_ENDS, PAIRS, SHIPPED

#: How far the closed form is off in time, of other plans and of those that :func:`doubt` names [1]: all but a few.
USUAL_ERROR, DOUBTFUL_ERROR = 0.04, 0.08
#: Micro-batches up to which a pipeline's ranks wait longer than they work.
FEW = 3
#: Micro-batches for each rank of a zero bubble from which on what fills and drains it hardly counts. There a rank runs
#: its first forward and its last backward, behind long waits, above the clock of all else.
FILLED = 3
#: Layers of an interleaved rank's longest chunk over those of the shortest, above which chunks are uneven.
UNEVEN = 1.5


#: Power limit over the board's own below which boards run near their lowest clock, where waits and bursts count most.
TIGHT = 0.405


def has_uneven_chunks(plan: Plan) -> bool:
    """Whether an interleaved pipeline has short chunks, such as those of the embedding or the output head alone."""
    layers = plan.parallelism.stage_layers
    return plan.schedule.name == "interleaved-1f1b" and max(layers) > UNEVEN * min(layers)


def doubt(plan: Plan) -> str:
    """Why the closed form of a plan is not trusted; empty where it is."""
    if why := _doubted_limit(plan):
        return why
    if plan.pp == 1:
        return ""
    if plan.schedule.name not in SHIPPED:
        return "a schedule from outside: two rounds of micro-batches stand for all"
    if plan.microbatches <= FEW:
        return f"{plan.microbatches} micro-batches: clocks follow long waits"
    if plan.schedule.name == "zb-h1" and plan.microbatches < FILLED * plan.pp:
        return f"{plan.microbatches} micro-batches hardly fill {plan.pp} ranks: clocks follow what waits"
    if plan.schedule.name in BOTH_ENDS and plan.microbatches < 2 * plan.pp - 1:
        return f"{plan.microbatches} micro-batches do not fill {plan.pp} ranks with two ways: clocks follow long waits"
    if plan.schedule.name in PAIRS and plan.overlap.ep_comm:
        return "pairs of a forward and a backward draw more than either alone: one clock stands for both"
    if plan.schedule.name in PAIRS and reduces_among_launches(plan):
        return "gradients of one chunk are reduced before the last backwards of the other, for which others wait"
    if has_uneven_chunks(plan):
        layers = plan.parallelism.stage_layers
        return f"stages of {min(layers)} to {max(layers)} layers: clocks follow the waits between them"
    return ""


def _doubted_limit(plan: Plan) -> str:
    """Limits under which averages of power do not tell the clock."""
    if plan.power.power_limit_w is None:
        return ""
    limit, board = plan.power.power_limit_w, gpu_of(plan).number("power_limit_w")
    least = min(limit) if isinstance(limit, tuple) else limit
    if least < TIGHT * board:
        return f"{least:g} of {board:g} W: boards run near their lowest clock"
    few = plan.pp == 1 and plan.microbatches <= FEW and plan.overlap.grad_reduce == "overlapped" and plan.replicas > 1
    if few and least < board:
        return f"gradients are reduced beside one of {plan.microbatches} backwards, under a limit of {least:g} W"
    return ""
