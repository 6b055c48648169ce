"""What launches are called and add up to."""

from __future__ import annotations

from collections.abc import Iterable

from joulecast.model.framework.launches import Launch
from joulecast.model.kernels.operators import Gemm


def flops(launches: Iterable[Launch], name: str = "", kind: type = Gemm) -> float:
    """Floating-point operations of a kind of operators whose names begin so."""
    operators = [launch.operator for launch in launches if isinstance(launch.operator, kind)]
    return sum(o.flops for o in operators if o.name.startswith(name))


def names(launches: Iterable[Launch]) -> list[str]:
    """Names of what is launched, in its order."""
    return [launch.operator.name for launch in launches]
