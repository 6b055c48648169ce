"""What a comparison of plans says in sentences: how far each quantity is off, and which items carry the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulecast.plan.comparison.ledgers import Item, LedgerDifference
    from joulecast.simulator.iteration.result import Iteration

#: Ledgers that sentences are made of: quantity, split, its noun, its unit.
SENTENCES = (
    ("time_s", "what a GPU does", "time", "s"),
    ("energy_j", "component", "energy of the GPUs", "J"),
    ("facility_energy_j", "part", "energy at the meter", "J"),
    ("money", "kind", "money", ""),
    ("carbon_kg", "kind", "carbon", "kg"),
)
#: Components by the words that people use.
WORDS = {"sm": "SM activity", "tensor": "tensor cores", "vector": "vector units", "onchip": "on-chip memory"}
WORDS |= {"hbm": "HBM", "clock": "clock tree", "link": "links", "static": "static power"}
WORDS |= {"gpu": "GPUs", "cpu": "CPUs", "nic": "network cards", "fan": "fans", "switch": "switches within nodes"}
#: Items named in a sentence at most, and the least share of the sum of all changes that one needs to be named.
MOST_ITEMS, LEAST_SHARE = 3, 0.1


def reasons(
    ledgers: Mapping[tuple[str, str], LedgerDifference], reference: Iteration, other: Iteration
) -> tuple[str, ...]:
    """Sentences on one plan against the reference; a quantity that does not differ has none."""
    found = []
    for quantity, split, noun, unit in SENTENCES:
        ledger = ledgers.get((quantity, split))
        if ledger is None or not ledger.differs or not ledger.reference:
            continue
        change = 100.0 * ledger.difference / ledger.reference
        if quantity == "money" and reference.site is not None:
            unit = reference.site.currency
        found.append(f"{abs(change):.3g} % {'more' if change > 0 else 'less'} {noun}: {_items(ledger.items, unit)}")
    clocks = round(reference.clock_mhz), round(other.clock_mhz)
    if clocks[0] != clocks[1]:
        found.append(f"SM clock {clocks[1]} instead of {clocks[0]} MHz")
    if reference.gpus != other.gpus:
        found.append(f"{other.gpus} instead of {reference.gpus} GPUs")
    return tuple(found)


def _items(items: Sequence[Item], unit: str) -> str:
    """The items that change most, largest first."""
    moved = sum(abs(item.difference) for item in items)
    ranked = sorted(items, key=lambda item: -abs(item.difference))
    named = [item for item in ranked if abs(item.difference) >= LEAST_SHARE * moved][:MOST_ITEMS]
    return ", ".join(f"{WORDS.get(i.name, i.name)} {_signed(i.difference)} {unit}".strip() for i in named)


def _signed(difference: float) -> str:
    text = f"{difference:+.3g}"
    return f"{float(text):+.0f}" if "e+" in text else text
