"""Why forecasts of plans differ: their keys, their results, and ledgers of differences that add up exactly.

The first plan is the reference. All amounts are for the tokens of the reference's iteration: a plan with another global
batch is scaled to them. A ledger splits one quantity of the job into items whose sum it is, for every plan alike, so
the differences of the items sum to the difference of the quantity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.simulator.iteration import Iteration
    from joulecast.simulator.plan import Plan

#: Parts of a plan that follow from its other keys; they are left out where those differ.
DERIVED = {
    "workload.model": ("workload.model_name", "workload.layers"),
    "cluster.links": ("cluster.gpu", "cluster.gpus", "cluster.gpus_per_node", "cluster.node", "cluster.network"),
    "parallelism.stage_layers": (
        "workload.layers",
        "parallelism.pipeline_model_parallel_size",
        "parallelism.virtual_pipeline_model_parallel_size",
    ),
}
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


@dataclass(frozen=True, slots=True)
class Against:
    """One plan against the reference."""

    plan: str
    ledgers: tuple[LedgerDifference, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two or more plans.

    Attributes
    ----------
    names
        The plans, the reference first.
    keys
        Keys of the plans that differ, with their value in every plan.
    results
        Quantities with their value in every plan, ``None`` where it is not known.
    against
        Every other plan against the reference.
    notes
        What the reader must know to read the numbers.
    """

    names: tuple[str, ...]
    keys: Mapping[str, tuple[Any, ...]]
    results: Mapping[str, tuple[float | None, ...]]
    against: tuple[Against, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        return {
            "reference": self.names[0],
            "plans": list(self.names),
            "keys": {key: dict(zip(self.names, values, strict=True)) for key, values in self.keys.items()},
            "results": {key: dict(zip(self.names, values, strict=True)) for key, values in self.results.items()},
            "differences": self.rows(),
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Every item of every ledger on a line; the line ``total`` is the ledger's sum."""
        lines = []
        for one in self.against:
            for ledger in one.ledgers:
                head = {"plan": one.plan, "quantity": ledger.quantity, "split": ledger.split}
                total = Item("total", ledger.reference, ledger.other, 1.0 if ledger.differs else None)
                lines += [head | item.to_dict() for item in (*ledger.items, total)]
        return lines

    def to_frame(self) -> pd.DataFrame:
        """The lines of :meth:`rows`; needs pandas."""
        import pandas as pd

        return pd.DataFrame(self.rows())


def check_count(count: int) -> None:
    """Refuse fewer than two plans, before any is forecast."""
    if count < 2:
        raise InputError("a comparison takes two plans or more", key="PLANS", remedy="Add another plan.")


def names_of(files: Sequence[str | None]) -> tuple[str, ...]:
    """Names of plans: what their files are called, with as much of the path, and a number, as it takes to differ.

    >>> names_of(["a/x.toml", "a/y.toml"]), names_of(["a/x.toml", "b/x.toml"]), names_of([None, "x.toml", "x.toml"])
    (('x', 'y'), ('a/x.toml', 'b/x.toml'), ('plan 1', 'x.toml (2)', 'x.toml (3)'))
    """
    names = [f"plan {i}" if file is None else Path(file).stem for i, file in enumerate(files, 1)]
    if len(set(names)) < len(names):
        names = [f"plan {i}" if file is None else file for i, file in enumerate(files, 1)]
    return tuple(name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1))


def compare(iterations: Sequence[Iteration], names: Sequence[str]) -> Comparison:
    """Compare forecasts of plans with the first of them.

    Parameters
    ----------
    iterations
        Forecasts, two or more.
    names
        What to call them, as many, all different.

    Raises
    ------
    InputError
        Fewer than two forecasts, or names that are not one for each.
    """
    check_count(len(iterations))
    if len(set(names)) != len(iterations) or len(names) != len(iterations):
        raise InputError("every plan needs a name of its own", key="names")
    reference = iterations[0]
    ledgers = [_ledgers(i, reference.tokens / i.tokens) for i in iterations]
    against = tuple(
        Against(name, tuple(_difference(key, ledgers[0][key], own[key]) for key in ledgers[0] if key in own))
        for name, own in zip(names[1:], ledgers[1:], strict=True)
    )
    results = [_results(i, reference.tokens / i.tokens) for i in iterations]
    return Comparison(
        names=tuple(names),
        keys=differing_keys([i.plan for i in iterations]),
        results={key: tuple(one.get(key) for one in results) for key in dict.fromkeys(k for r in results for k in r)},
        against=against,
        notes=tuple(_notes(iterations)),
    )


def differing_keys(plans: Sequence[Plan]) -> dict[str, tuple[Any, ...]]:
    """Dotted keys whose values differ between plans, with the value in each; not what follows from other keys."""
    flat = [_flat(plan.to_dict()) for plan in plans]
    keys = dict.fromkeys(key for one in flat for key in one if key != "file")
    found = {}
    for key in keys:
        values = tuple(one.get(key) for one in flat)
        if any(value != values[0] for value in values):
            found[key] = values
    for part, sources in DERIVED.items():
        if any(source in found for source in sources):
            found = {key: values for key, values in found.items() if key != part and not key.startswith(part + ".")}
    return found


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _results(iteration: Iteration, scale: float) -> dict[str, float | None]:
    """What a plan's forecast says, for the tokens of the reference's iteration."""
    site = iteration.site
    found: dict[str, float | None] = {
        "time_s": iteration.time_s * scale,
        "time_s_p05": iteration.time_s_p05 * scale,
        "time_s_p95": iteration.time_s_p95 * scale,
        "energy_j": iteration.energy_j * scale,
        "energy_j_p05": iteration.energy_j_p05 * scale,
        "energy_j_p95": iteration.energy_j_p95 * scale,
        "power_w": iteration.power_w,
        "gpus": float(iteration.gpus),
        "clock_mhz": iteration.clock_mhz,
        "tokens_per_s": iteration.tokens_per_s,
        "memory_bytes": max(rank.memory_bytes for rank in iteration.ranks),
    }
    if site is not None:
        found |= {
            "facility_energy_j": site.energy_j.facility * scale,
            "facility_power_w": site.power_w.facility,
            "facility_peak_w": site.spread_w["job"].peak_w,
            "money": float(site.cost.money) * scale,
            "carbon_kg": float(site.cost.carbon_kg) * scale,
        }
    return found


def _ledgers(iteration: Iteration, scale: float) -> dict[tuple[str, str], dict[str, float]]:
    """Items of every quantity and split, for the tokens of the reference's iteration."""
    found = {
        ("time_s", "what a GPU does"): _time_s(iteration),
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
        found["money", "kind"] = {"electricity": float(cost.electricity), "hardware": float(cost.hardware)}
        found["carbon_kg", "kind"] = {"electricity": float(cost.operational_kg), "hardware": float(cost.embodied_kg)}
    return {key: {name: value * scale for name, value in items.items()} for key, items in found.items()}


def _time_s(iteration: Iteration) -> dict[str, float]:
    """Mean over GPUs of how an iteration's time passes; the sum is the iteration."""

    def mean(field: str) -> float:
        return float(sum(rank.gpus * getattr(rank, field) for rank in iteration.ranks)) / iteration.gpus

    compute, communication = mean("compute_s"), mean("exposed_communication_s")
    rest = iteration.time_s - compute - communication
    waiting = rest if abs(rest) > ROUNDING * iteration.time_s else 0.0
    return {"compute": compute, "exposed communication": communication, "waiting": waiting}


def _by_kind(energy_j: Mapping[str, float]) -> dict[str, float]:
    """Energy by kind of instruction, whatever its chunk and what runs beside it."""
    found: dict[str, float] = {}
    for name, value in energy_j.items():
        kind = _OF_ITS_KIND.sub("", name)
        found[kind] = found.get(kind, 0.0) + value
    return found


def _difference(key: tuple[str, str], reference: Mapping[str, float], other: Mapping[str, float]) -> LedgerDifference:
    whole = LedgerDifference(*key, sum(reference.values()), sum(other.values()), ())
    items = []
    for name in dict.fromkeys((*reference, *other)):
        a, b = reference.get(name, 0.0), other.get(name, 0.0)
        items.append(Item(name, a, b, (b - a) / whole.difference if whole.differs else None))
    return replace(whole, items=tuple(items))


def _notes(iterations: Sequence[Iteration]) -> list[str]:
    notes = []
    tokens = iterations[0].tokens
    if any(i.tokens != tokens for i in iterations):
        notes.append(f"time, energy, money and carbon are for {tokens} tokens, the reference's iteration")
    if len({i.plan.workload.model_name for i in iterations}) > 1:
        notes.append("the plans train different models: a token is not the same work")
    if any(i.site is None for i in iterations):
        notes.append("no node type is known for some plan: its facility, money and carbon are missing")
    currencies = sorted({i.site.currency for i in iterations if i.site is not None})
    if len(currencies) > 1:
        notes.append(f"money is in {' and '.join(currencies)}, as each plan has it: its difference means nothing")
    return notes
