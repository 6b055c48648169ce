"""What is expected of a card before it is measured: priors, carried over to its hardware by the rules of derivation.

The priors themselves are weak. Of a card with the reference card's SMs more is known: what was fitted to that one, as
sure as it was fitted there and as the rules are that carry it over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from joulecast.calibrate.fit.priors import COLLECTIVE, CONTENTION, FIXED, GOVERNOR, Prior, power_priors, time_priors
from joulecast.model.hardware.catalogue import read_gpu
from joulecast.model.hardware.derivation import distance_of, rule_for, scale_factor
from joulecast.model.hardware.derivation_rules import DISTANCES
from joulecast.model.hardware.description import Parameter
from joulecast.model.hardware.description_file import ParsedDescription

#: The card around whose kind the priors were written.
REFERENCE = "h200-sxm"


@dataclass(frozen=True)
class DevicePriors:
    """Priors of one card by the tables that they belong to; each maps full names to priors.

    Attributes
    ----------
    time
        The table ``kernel``.
    power
        The tables ``power`` and ``voltage``.
    collective
        The table ``collective``, and of ``power`` what communication costs.
    contention
        The table ``contention``.
    governor, fixed
        What is estimated from means, and what no row of kernels or collectives identifies.
    """

    time: Mapping[str, Prior]
    power: Mapping[str, Prior]
    collective: Mapping[str, Prior]
    contention: Mapping[str, Prior]
    governor: Mapping[str, Prior]
    fixed: Mapping[str, Prior]

    @cached_property
    def all(self) -> dict[str, Prior]:
        """Every prior."""
        return {**self.time, **self.power, **self.collective, **self.contention, **self.governor, **self.fixed}

    def starts(self) -> dict[str, float]:
        """Expected values of all parameters."""
        return {name: prior.start for name, prior in self.all.items()}


def priors_for(device: Mapping[str, Parameter]) -> DevicePriors:
    """Priors of a card with these facts.

    On the reference card they are those of :mod:`joulecast.calibrate.fit.priors`; elsewhere start and bounds are scaled
    by the rule of :mod:`joulecast.model.hardware.derivation_rules` that would derive the parameter, and the rule's own
    uncertainty widens the spread. On a card of the same architecture and matrix units the reference card's fitted
    values are carried over in place of the priors' starts.

    Raises
    ------
    InputError
        A fact that a rule needs is missing or unknown.
    """
    known = read_gpu(REFERENCE)
    reference = known.device
    same = device["product"].value == reference["product"].value
    kin = distance_of(device, reference) == DISTANCES["architecture"]

    def carried(priors: Mapping[str, Prior]) -> Mapping[str, Prior]:
        if same:
            return priors
        if kin:
            priors = {name: _learnt(name, prior, known) for name, prior in priors.items()}
        return {name: _carried(name, prior, device, reference) for name, prior in priors.items()}

    return DevicePriors(
        carried(time_priors()),
        carried(power_priors()),
        carried(COLLECTIVE),
        carried(CONTENTION),
        carried(GOVERNOR),
        carried(FIXED),
    )


def _learnt(name: str, prior: Prior, known: ParsedDescription) -> Prior:
    """The prior of a parameter that was fitted to another card: its value there, and how sure that is."""
    table, _, own = name.partition(".")
    parameter = known.tables[table].parameters[own]
    if parameter.status != "fitted":
        return prior
    start = min(max(parameter.number, prior.lower), prior.upper)
    return replace(
        prior, start=start, rel_sd=parameter.sd / (abs(start) or 1.0), source=f"fitted to rows of {known.name}"
    )


def _carried(name: str, prior: Prior, device: Mapping[str, Parameter], reference: Mapping[str, Parameter]) -> Prior:
    table, _, own = name.partition(".")
    rule = rule_for(table, own)
    factor = scale_factor(rule, device, reference)
    start = min(prior.start * factor, rule.maximum)
    reached = start / prior.start if prior.start else factor  # less than the factor where the rule's maximum ends it
    widening = rule.rel_sd * distance_of(device, reference).widening
    return replace(
        prior,
        start=start,
        lower=min(prior.lower * reached, start),
        upper=max(min(prior.upper * factor, rule.maximum), start),
        rel_sd=float(np.hypot(prior.rel_sd, widening if prior.start else 0.0)),
    )
