"""What launches are called and add up to."""

from __future__ import annotations

from collections.abc import Iterable

from joulecast.model.framework.launches import Launch
from joulecast.model.kernels.operators import Gemm
from joulecast.simulator.instructions.host import launches_of
from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.plan import Plan


def flops(launches: Iterable[Launch], name: str = "", kind: type = Gemm) -> float:
    """Floating-point operations of a kind of operators whose names begin so."""
    operators = [launch.operator for launch in launches if isinstance(launch.operator, kind)]
    return sum(o.flops for o in operators if o.name.startswith(name))


def names(launches: Iterable[Launch]) -> list[str]:
    """Names of what is launched, in its order."""
    return [launch.operator.name for launch in launches]


def costs(plan: Plan) -> tuple[float, float]:
    """What an iteration of one stage costs the host, in launches, and its kernels."""
    (rank,) = plan_program(plan).ranks
    kernels = sum(launch.repeat / launch.share for i in rank.order for launch in rank.types[i])
    return float(launches_of(plan, rank.types)[list(rank.order)].sum()), kernels
