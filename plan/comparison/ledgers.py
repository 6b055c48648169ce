"""Ledgers of a forecast, and how two of them differ: items that sum to a quantity, and shares that sum to one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulecast.simulator.iteration.result import Iteration

#: Relative size of what is left by rounding alone.
ROUNDING = 1e-12
#: What tells one instruction from another of its kind.
_OF_ITS_KIND = re.compile(r" (chunk \d+|with gradient reduction)")


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a ledger: what the reference and the other plan spend on it, and its share of the difference.

    ``share`` is ``None`` where the two plans do not differ in the ledger's sum.
    """

    name: str
    reference: float
    other: float
    share: float | None

    @property
    def difference(self) -> float:
        """What the other plan spends more."""
        return self.other - self.reference

    def to_dict(self) -> dict[str, Any]:
        """The item's part of a line."""
        return {
            "item": self.name,
            "reference": self.reference,
            "other": self.other,
            "difference": self.difference,
            "share": self.share,
        }


@dataclass(frozen=True, slots=True)
class LedgerDifference:
    """One quantity of two plans, split into items.

    Attributes
    ----------
    quantity
        ``time_s``, ``energy_j``, ``facility_energy_j``, ``money`` or ``carbon_kg``.
    split
        By what it is split.
    """

    quantity: str
    split: str
    reference: float
    other: float
    items: tuple[Item, ...]

    @property
    def difference(self) -> float:
        """What the other plan takes more."""
        return self.other - self.reference

    @property
    def differs(self) -> bool:
        """Whether there is a difference beyond rounding, of which items can have shares."""
        return abs(self.difference) > ROUNDING * max(abs(self.reference), abs(self.other))


def ledgers_of(iteration: Iteration, scale: float) -> dict[tuple[str, str], dict[str, float]]:
    """Items of every quantity and split, for the tokens of the reference's iteration."""
    found = {
        ("time_s", "what a GPU does"): time_by_part_s(iteration),
        ("energy_j", "component"): dict(iteration.energy_by_component_j),
        ("energy_j", "instruction"): _by_kind(iteration.energy_by_instruction_j),
    }
    site = iteration.site
    if site is not None:
        node, power = site.node_power, site.power_w
        nodes = power.node_dc / node.dc_w
        parts = {name.removesuffix("_w"): value * nodes for name, value in node.to_dict().items()}
        parts |= {"supplies": power.node_ac - power.node_dc, "network switches": power.network}
        parts["cooling and distribution"] = power.facility - power.node_ac - power.network
        found["facility_energy_j", "part"] = {name: value * iteration.time_s for name, value in parts.items()}
        cost = site.cost
        paid = "hardware" if site.gpu_price_per_hour is None else "rent"
        found["money", "kind"] = {"electricity": float(cost.electricity), paid: float(cost.hardware)}
        found["carbon_kg", "kind"] = {"electricity": float(cost.operational_kg), "hardware": float(cost.embodied_kg)}
    return {key: {name: value * scale for name, value in items.items()} for key, items in found.items()}


def time_by_part_s(iteration: Iteration) -> dict[str, float]:
    """Mean over GPUs of how an iteration's time passes; the sum is the iteration."""

    def mean(field: str) -> float:
        return float(sum(rank.gpus * getattr(rank, field) for rank in iteration.ranks)) / iteration.gpus

    compute, exposed, lagging = (mean(f) for f in ("compute_s", "exposed_communication_s", "group_waiting_s"))
    rest = iteration.time_s - compute - exposed
    waiting = rest if abs(rest) > ROUNDING * iteration.time_s else 0.0
    parts = {"compute": compute, "exposed communication": exposed - lagging, "waiting for the slowest": lagging}
    return parts | {"waiting": waiting}


def _by_kind(energy_j: Mapping[str, float]) -> dict[str, float]:
    """Energy by kind of instruction, whatever its chunk and what runs beside it."""
    found: dict[str, float] = {}
    for name, value in energy_j.items():
        kind = _OF_ITS_KIND.sub("", name)
        found[kind] = found.get(kind, 0.0) + value
    return found


def difference_of(key: tuple[str, str], reference: Mapping[str, float], other: Mapping[str, float]) -> LedgerDifference:
    """Two ledgers of one quantity and split against each other, with every item that either has."""
    whole = LedgerDifference(*key, sum(reference.values()), sum(other.values()), ())
    items = []
    for name in dict.fromkeys((*reference, *other)):
        a, b = reference.get(name, 0.0), other.get(name, 0.0)
        items.append(Item(name, a, b, (b - a) / whole.difference if whole.differs else None))
    return replace(whole, items=tuple(items))
