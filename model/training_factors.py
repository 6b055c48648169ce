"""How kernels fare in long training runs on clusters, beside the same kernels run back to back on one card.

A description's kernels are measured alone, or derived from those of a relative. Published training runs say how far
off they are on each architecture: factors on the rate of products by data type, of attention, of kernels that stream,
of the links and of the network, and on the energy of what switches; and one factor on the time of all kernels for each
generation of frameworks, which run more or fewer of them and leave gaps.

Factors multiply what the description has; 1 is the description as it is. They are fitted by
:mod:`joulecast.calibrate.training_fit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from joulecast.model.description import GpuDescription, Parameter, Table

#: Parameters that each factor multiplies: table and patterns of their names. Products have one factor for each type.
FACTORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "products": ("kernel", ("gemm.efficiency.{dtype}",)),
    "attention": ("kernel", ("attention.*.eta",)),
    "streaming": ("kernel", ("streaming.*.bandwidth_share", "streaming.*.bytes_per_sm_cycle")),
    "links": ("collective", ("link_share", "bytes_per_cta_cycle")),
    "network": ("collective", ("network_share",)),
    "power": ("power", ("*pj_per_flop*", "sm_w", "clock_w", "*pj_per_l2_byte", "streaming_pj_per_byte.*")),
}
#: Parameter by which the time of every kernel is multiplied.
TIME = "time_factor"


def scaled(description: GpuDescription, factors: Mapping[str, float]) -> GpuDescription:
    """The description with factors applied.

    Parameters
    ----------
    factors
        By name: those of :data:`FACTORS`, products as ``products.<dtype>``; ``time`` for all kernels.
    """
    tables = description.tables
    for name, factor in factors.items():
        if name == "time":
            tables["kernel"] = _with(tables["kernel"], TIME, factor)
            continue
        kind, _, dtype = name.partition(".")
        table, patterns = FACTORS[kind]
        if dtype and f"gemm.efficiency.{dtype}" not in tables[table]:
            tables[table] = _with(tables[table], f"gemm.efficiency.{dtype}", 1.0)
        tables[table] = _multiplied(tables[table], [p.format(dtype=dtype) for p in patterns], factor)
    return GpuDescription(description.name, description.device, **tables, derivation=description.derivation)


def _with(table: Table, name: str, value: float) -> Table:
    parameter = Parameter(value, 0.0, "", "no factor is known", "assumed")
    return replace(table, parameters={**table.parameters, name: parameter})


def _multiplied(table: Table, patterns: list[str], factor: float) -> Table:
    """The table with all parameters of these names times a factor, their uncertainty and covariance with them."""
    names = [n for n, p in table.parameters.items() if not isinstance(p.value, str) and _fits(n, patterns)]
    changed = {
        n: replace(p, value=p.number * factor, sd=p.sd * factor) for n, p in table.parameters.items() if n in names
    }
    covariance = table.covariance.copy()
    rows = [i for i, name in enumerate(table.covariance_names) if name in names]
    covariance[rows, :] *= factor
    covariance[:, rows] *= factor
    return replace(table, parameters={**table.parameters, **changed}, covariance=covariance)


def _fits(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
