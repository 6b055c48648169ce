"""Parameters of a GPU that nobody has calibrated, from its nearest calibrated relative, by stated rules.

A derived parameter is ``value · Π (own quantity / relative's quantity)^exponent``: quantities are data-sheet facts or
the figures of :mod:`joulecast.model.hardware.technology`. Its status is ``derived``, its source names the rule, and its
standard deviation is the relative's one, scaled, with the rule's own uncertainty added in quadrature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from joulecast.arrays import Array
from joulecast.errors import InputError
from joulecast.model.hardware.derivation_rules import DISTANCES, RULES, Distance, Rule
from joulecast.model.hardware.derivation_supplement import supplemented
from joulecast.model.hardware.description import TABLES, GpuDescription, Parameter, Table
from joulecast.model.hardware.description_file import ParsedDescription
from joulecast.model.hardware.estimated_forms import ESTIMATED_FORMS
from joulecast.model.hardware.technology import TECHNOLOGY


def complete(parsed: ParsedDescription, relative: GpuDescription | None) -> GpuDescription:
    """A full description from what a file states and, for the rest, from its relative.

    A parameter that the file states wins over the derived one.
    """
    if relative is None:
        return GpuDescription(parsed.name, parsed.device, **parsed.tables, derivation=parsed.derived)
    if parsed.method == "copy":
        derived: Mapping[str, Table] = relative.tables
        words = f"fitted tables of {relative.name}, unchanged"
    else:
        distance = distance_of(parsed.device, relative.device)
        derived = {
            name: supplemented(derive_table(table, parsed.device, relative, distance), distance, parsed.device)
            for name, table in relative.tables.items()
        }
        words = f"fitted tables of {relative.name}, scaled by rules ({distance.words})"
    tables = {name: merge(derived[name], parsed.tables.get(name)) for name in TABLES}
    return GpuDescription(parsed.name, parsed.device, **tables, derivation=words)


def derive_table(table: Table, device: Mapping[str, Parameter], relative: GpuDescription, distance: Distance) -> Table:
    """One of the relative's tables as it is expected on another device."""
    parameters, factors, added = {}, {}, {}
    for name, parameter in table.parameters.items():
        rule = rule_for(table.name, name)
        if isinstance(parameter.value, str | bool):
            parameters[name] = replace(parameter, status="derived", source=f"as on {relative.name}")
            continue
        factor = scale_factor(rule, device, relative.device)
        value = min(float(parameter.value) * factor, rule.maximum)
        widening = rule.rel_sd * distance.widening * abs(value)
        source = f"{relative.name} x {factor:.4g}: {rule.reason}"
        if value == rule.maximum:
            source += f", at most {rule.maximum:g}"
        sd = float(np.hypot(parameter.sd * factor, widening))
        parameters[name] = Parameter(value, sd, parameter.unit, source, "derived")
        factors[name], added[name] = factor, widening
    names = tuple(name for name in table.covariance_names if name in factors)
    covariance = _scaled_covariance(table, names, factors, added)
    known = {**(ESTIMATED_FORMS if table.name == "kernel" else {}), **table.discrepancy}
    discrepancy = {
        family: {quantity: float(np.hypot(size, distance.added(family, quantity))) for quantity, size in of.items()}
        for family, of in known.items()
    }
    provenance = f"derived from {relative.name} by rules ({distance.words}); there: {table.provenance}"
    return Table(provenance, parameters, names, covariance, discrepancy, table.name)


def rule_for(table: str, name: str) -> Rule:
    """The first rule whose patterns match; the last rule matches everything."""
    return next(rule for rule in RULES if fnmatchcase(table, rule.table) and fnmatchcase(name, rule.name))


def scale_factor(rule: Rule, device: Mapping[str, Parameter], relative: Mapping[str, Parameter]) -> float:
    """Π (own quantity / relative's quantity)^exponent [1]."""
    factor = 1.0
    for quantity, exponent in rule.scale.items():
        factor *= (_quantity(quantity, device) / _quantity(quantity, relative)) ** exponent
    return factor


def _quantity(name: str, device: Mapping[str, Parameter]) -> float:
    if name in TECHNOLOGY:
        fact, table = TECHNOLOGY[name]
        key = device[fact].value
        if key not in table:
            known = ", ".join(str(k) for k in table)
            remedy = f"Known: {known}. Or state the parameters in the file instead of deriving them."
            raise InputError(f"no {name} is known for {fact} {key!r}", key=f"device.{fact}", remedy=remedy)
        return table[key]
    if name == "tensor_width":
        widths = (device.get(f"tensor_flops_per_sm_per_cycle.{dtype}") for dtype in ("bf16", "fp16"))
        width = next((width for width in widths if width is not None), None)
        if width is None:
            key, remedy = "device.tensor_flops_per_sm_per_cycle.bf16", "State it, or that of fp16."
            raise InputError("the width of the matrix units is not stated", key=key, remedy=remedy)
        return width.number
    return device[name].number


def distance_of(device: Mapping[str, Parameter], relative: Mapping[str, Parameter]) -> Distance:
    """How far apart two devices are by their facts.

    SMs whose matrix units are slower or faster are not those of one architecture, whatever the name: their units share
    power, caches and clocks in other proportions.
    """
    if device["architecture"].value == relative["architecture"].value:
        alike = _quantity("tensor_width", device) == _quantity("tensor_width", relative)
        return DISTANCES["architecture" if alike else "units"]
    return DISTANCES["vendor" if device["vendor"].value == relative["vendor"].value else "other"]


def _scaled_covariance(
    table: Table, names: tuple[str, ...], factors: Mapping[str, float], added: Mapping[str, float]
) -> Array:
    if not names:
        return np.zeros((0, 0))
    rows = [table.covariance_names.index(name) for name in names]
    scale = np.array([factors[name] for name in names])
    inherited = table.covariance[np.ix_(rows, rows)] * np.outer(scale, scale)
    widened: Array = inherited + np.diag([added[name] ** 2 for name in names])
    return widened


def merge(derived: Table, stated: Table | None) -> Table:
    """The derived table with what the file states in place of it."""
    if stated is None:
        return derived
    kept = [name for name in derived.covariance_names if name not in stated.parameters]
    rows = [derived.covariance_names.index(name) for name in kept]
    size = len(kept)
    covariance = np.zeros((size + len(stated.covariance_names),) * 2)
    covariance[:size, :size] = derived.covariance[np.ix_(rows, rows)] if kept else 0.0
    covariance[size:, size:] = stated.covariance
    return Table(
        f"{stated.provenance}; the rest {derived.provenance}",
        {**derived.parameters, **stated.parameters},
        (*kept, *stated.covariance_names),
        covariance,
        {**derived.discrepancy, **stated.discrepancy},
        derived.name,
    )
