"""Plans whose forecast in closed form is further off the simulation than others: named, so that they are simulated.

Found with ``benchmarks/closed_form_errors.py``, which draws plans of every kind at random.
"""

from __future__ import annotations

from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import SHIPPED

#: How far the closed form is off in time at most, of other plans and of those that :func:`doubt` names [1].
USUAL_ERROR, DOUBTFUL_ERROR = 0.04, 0.06
#: Micro-batches up to which a pipeline's ranks wait longer than they work.
FEW = 3


def doubt(plan: Plan) -> str:
    """Why the closed form of a plan is not trusted; empty where it is."""
    if plan.pp == 1:
        return ""
    if plan.schedule.name not in SHIPPED:
        return "a schedule from outside: two rounds of micro-batches stand for all"
    if plan.microbatches <= FEW:
        return f"{plan.microbatches} micro-batches: clocks follow long waits"
    return ""
