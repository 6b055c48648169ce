"""The rules by which parameters carry over from a calibrated GPU to another, and the technology figures that they use.

Every figure here is an estimate from public data sheets and published measurements; the standard deviations say how far
to trust it. The first matching rule applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Rule:
    """How the parameters ``name`` of ``table`` (shell patterns) carry over.

    ``scale`` maps a quantity to the exponent of its ratio; ``rel_sd`` is the rule's own relative standard deviation
    between two architectures of one vendor.
    """

    table: str
    name: str
    rel_sd: float
    reason: str
    scale: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far apart two GPUs are: what multiplies a rule's uncertainty, and what is added to the discrepancies."""

    words: str
    widening: float
    discrepancy: float


DISTANCES = {
    "architecture": Distance("same architecture", 0.4, 0.03),
    "vendor": Distance("other architecture of the same vendor", 1.0, 0.10),
    "other": Distance("other vendor", 1.5, 0.15),
}

#: Energy of one matrix-unit operation at the highest clock, relative to Hopper: sustained matrix products at the power
#: limit, board power less idle and memory.
TENSOR_ENERGY: dict[float | str | bool, float] = {
    "Volta": 3.8,
    "Ampere GA100": 1.75,
    "Ampere GA102": 2.8,
    "Ada": 1.4,
    "Hopper": 1.0,
    "Blackwell": 0.65,
    "Blackwell Ultra": 0.65,
    "CDNA2": 2.0,
    "CDNA3": 1.1,
    "CDNA4": 0.85,
}

#: Switching energy of like logic at its own highest voltage, by process node [nm], relative to 4 nm.
LOGIC_ENERGY: dict[float | str | bool, float] = {12: 2.2, 8: 1.7, 7: 1.5, 6: 1.4, 5: 1.05, 4: 1.0, 3: 0.8}

#: Energy of a byte to or from memory, relative to HBM3e.
MEMORY_ENERGY: dict[float | str | bool, float] = {
    "HBM2": 1.4,
    "HBM2e": 1.2,
    "HBM3": 1.05,
    "HBM3e": 1.0,
    "GDDR6": 1.9,
    "GDDR6X": 1.9,
}

#: Energy of a byte over a link between GPUs, relative to NVLink 4.
LINK_ENERGY: dict[float | str | bool, float] = {
    "NVLink2": 1.4,
    "NVLink3": 1.2,
    "NVLink3 bridge": 1.2,
    "NVLink4": 1.0,
    "NVLink4 bridge": 1.0,
    "NVLink5": 0.9,
    "PCIe4": 1.6,
    "PCIe5": 1.4,
    "xGMI3": 1.4,
    "xGMI4": 1.3,
}

#: Quantity to the device fact that selects it and its table.
TECHNOLOGY: dict[str, tuple[str, dict[float | str | bool, float]]] = {
    "tensor_energy": ("architecture", TENSOR_ENERGY),
    "logic_energy": ("process_node_nm", LOGIC_ENERGY),
    "memory_energy": ("memory_kind", MEMORY_ENERGY),
    "link_energy": ("link_kind", LINK_ENERGY),
}

RULES: tuple[Rule, ...] = (Rule("*", "*", 0.25, "taken over"),)
