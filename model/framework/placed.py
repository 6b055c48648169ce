"""Collectives and launches over the links of their groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from joulecast.model.cluster.fabric import Fabric
from joulecast.model.framework.launches import Launch, each_once
from joulecast.model.kernels.operators import Collective


def placed(operator: Collective, fabric: Fabric) -> Collective:
    """A communication over the links of its group, with the library's choice of algorithm where there is one."""
    if fabric == Fabric():
        return operator
    choice = operator.kind == "all_reduce" and (fabric.domains > 1 or fabric.nvls)
    return replace(operator, fabric=fabric, algorithm="auto" if choice else operator.algorithm)


def placed_launches(launches: Iterable[Launch], fabric: Fabric) -> tuple[Launch, ...]:
    """The same launches, with all communications that have no links of their own over those of a group."""

    def moved(launch: Launch) -> Launch:
        operator = launch.operator
        if not isinstance(operator, Collective) or operator.fabric is not None:
            return launch
        return replace(launch, operator=placed(operator, fabric))

    return tuple(launches) if fabric == Fabric() else each_once(launches, moved)
