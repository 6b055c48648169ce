"""Why forecasts of plans differ: their keys, their results, and ledgers of differences that add up exactly.

The first plan is the reference. All amounts are for the tokens of the reference's iteration: a plan with another global
batch is scaled to them. A ledger splits one quantity of the job into items whose sum it is, for every plan alike, so
the differences of the items sum to the difference of the quantity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError, counted
from joulecast.extras import data_frame
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.plan.comparison.ledgers import Item, LedgerDifference, difference_of, ledgers_of
from joulecast.plan.comparison.plan_keys import as_written, joined
from joulecast.plan.comparison.reasons import reasons
from joulecast.plan.comparison.unsaid import OF_MODEL, UNSAID
from joulecast.simulator.plan_file.power import limit_assumptions
from joulecast.simulator.plan_file.replicas import SHARD_SIZE

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.model.hardware.description import GpuDescription
    from joulecast.simulator.iteration.result import Iteration
    from joulecast.simulator.iteration.site import SiteForecast
    from joulecast.simulator.plan_file.plan import Plan

#: Parts of a plan that follow from its other keys: left out where those differ, but for what files say of them.
DERIVED = {
    "workload.model": (
        "workload.model_name",
        "workload.layers",
        "workload.mtp_num_layers",
        "workload.mtp_use_repeated_layer",
    ),
    "workload.model.rotary": ("implementation.rotary",),
    "workload.model.tied_embeddings": ("implementation.tie_embeddings",),
    "workload.teacher": ("workload.teacher.name",),
    "workload.packed": ("workload.document_tokens", "workload.document_packing", "workload.sequence_length"),
    "workload.narrow.one_layout": ("cluster.gpu", "workload.precision", "workload.narrow.recipe"),
    "implementation.muon": ("implementation.optimizer",),
    "cluster.links": ("cluster.gpu", "cluster.gpus", "cluster.gpus_per_node", "cluster.node", "cluster.network"),
    "parallelism.stage_layers": (
        "workload.layers",
        "parallelism.pipeline_model_parallel_size",
        "parallelism.virtual_pipeline_model_parallel_size",
    ),
    "cluster.links.rails": ("cluster.links.nics_per_domain",),
    **dict.fromkeys(OF_MODEL, ("workload.model_name",)),
}


@dataclass(frozen=True, slots=True)
class Against:
    """One plan against the reference; ``reasons`` say in words what its ledgers say in numbers."""

    plan: str
    ledgers: tuple[LedgerDifference, ...]
    reasons: tuple[str, ...] = ()


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
    currency
        Of the money; empty where plans have none or several.
    descriptions
        The GPUs of the plans, each once.
    """

    names: tuple[str, ...]
    keys: Mapping[str, tuple[Any, ...]]
    results: Mapping[str, tuple[float | None, ...]]
    against: tuple[Against, ...]
    notes: tuple[str, ...]
    currency: str = ""
    descriptions: tuple[GpuDescription, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        """A line for each plan."""
        times, energies = self.results["time_s"], self.results["energy_j"]
        lines = [
            f"{name}: {time:.4g} s, {energy:.4g} J"
            for name, time, energy in zip(self.names, times, energies, strict=True)
        ]
        return "\n  ".join([f"Comparison({counted(len(self.keys), 'different key')})", *lines])

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        return {
            "reference": self.names[0],
            "plans": list(self.names),
            "currency": self.currency,
            "keys": {key: dict(zip(self.names, values, strict=True)) for key, values in self.keys.items()},
            "results": {key: dict(zip(self.names, values, strict=True)) for key, values in self.results.items()},
            "reasons": {one.plan: list(one.reasons) for one in self.against},
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
        return data_frame(self.rows())


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
    ledgers = [ledgers_of(i, reference.tokens / i.tokens) for i in iterations]
    against = []
    for name, own, other in zip(names[1:], ledgers[1:], iterations[1:], strict=True):
        differences = {key: difference_of(key, ledgers[0][key], own[key]) for key in ledgers[0] if key in own}
        against.append(Against(name, tuple(differences.values()), reasons(differences, reference, other)))
    results = [_results(i, reference.tokens / i.tokens) for i in iterations]
    currencies = _currencies(iterations)
    described = {i.plan.cluster.gpu: i.description for i in iterations if i.description is not None}
    return Comparison(
        names=tuple(names),
        keys=differing_keys([i.plan for i in iterations], [i.description for i in iterations]),
        results={key: tuple(one.get(key) for one in results) for key in dict.fromkeys(k for r in results for k in r)},
        against=tuple(against),
        notes=(*_notes(iterations), *_not_sure(iterations, names)),
        currency=currencies[0] if len(currencies) == 1 else "",
        descriptions=tuple(described.values()),
    )


def differing_keys(plans: Sequence[Plan], gpus: Sequence[GpuDescription | None] = ()) -> dict[str, tuple[Any, ...]]:
    """Keys of the plans' files whose values differ, with the value in each; not what follows from other keys.

    Parameters
    ----------
    gpus
        The plans' GPUs where they are known; others are read from the catalogue or their files.
    """
    flat = [joined(_flat(plan.to_dict())) for plan in plans]
    keys = dict.fromkeys(key for one in flat for key in one if key != "file")
    found = {}
    for key in keys:
        values = tuple(one.get(key) for one in flat)
        if any(value != values[0] for value in values):
            found[key] = values
    if not any(plan.parallelism.fsdp for plan in plans):
        found.pop(SHARD_SIZE, None)
    for part, sources in DERIVED.items():
        if any(source in found for source in sources):
            own = [k for k in found if k not in sources and (k == part or k.startswith(part + "."))]
            said = _said(own, part, plans, gpus or [None] * len(plans))
            found = {k: v for k, v in found.items() if k not in own or k in said}
    return as_written(found)


def _said(keys: Sequence[str], part: str, plans: Sequence[Plan], gpus: Sequence[GpuDescription | None]) -> set[str]:
    """Keys of a part in which some plan is not what the rest of its file makes of it."""
    if part not in UNSAID or not keys:
        return set()
    found: set[str] = set()
    for plan, gpu in zip(plans, gpus, strict=True):
        usual = UNSAID[part](plan, gpu or load_gpu(plan.cluster.gpu))
        one, other = (joined(_flat(of.to_dict())) for of in (plan, usual))
        found |= {key for key in keys if one.get(key) != other.get(key)}
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
    scales = {"time_s": scale, "energy_j": scale, "power_w": 1.0}
    found: dict[str, float | None] = {
        **{n + e: getattr(iteration, n + e) * by for n, by in scales.items() for e in ("", "_p05", "_p95")},
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
        found |= _of_run(site)
    return found


def _of_run(site: SiteForecast) -> dict[str, float | None]:
    """The whole run of a plan that states ``workload.training_tokens``, under the names that rows of a sweep have."""
    if site.run is None:
        return {}
    cost = site.cost_of(site.run.paid_iterations)
    whole: dict[str, float | None] = {"run_time_s": site.run.time_s, "run_energy_j": site.run.energy_j}
    return whole | {f"run_{name}": cost[name] for name in ("money", "carbon_kg")}


def _currencies(iterations: Sequence[Iteration]) -> list[str]:
    return sorted({i.site.currency for i in iterations if i.site is not None})


def _notes(iterations: Sequence[Iteration]) -> list[str]:
    notes = []
    tokens = iterations[0].tokens
    if any(i.tokens != tokens for i in iterations):
        notes.append(f"time, energy, money and carbon are for {tokens} tokens, the reference's iteration")
    trained = [i.plan.workload for i in iterations]
    if len({(w.model_name, w.model.layers, w.model.layer_parameters()) for w in trained}) > 1:
        notes.append("the plans train different models: a token is not the same work")
    if any(i.site is None for i in iterations):
        notes.append("no node type is known for some plan: its facility, money and carbon are missing")
    currencies = _currencies(iterations)
    if len(currencies) > 1:
        notes.append(f"money is in {' and '.join(currencies)}, as each plan has it: its difference means nothing")
    limits = ((i.description, map(i.plan.power.limit_w, range(i.plan.pp))) for i in iterations)
    below = (note for gpu, of_stages in limits if gpu is not None for note in limit_assumptions(gpu, of_stages))
    return [*notes, *dict.fromkeys(below)]


def _not_sure(iterations: Sequence[Iteration], names: Sequence[str]) -> Iterator[str]:
    """Whose intervals reach the reference's, of plans on other GPUs: on the same GPU most errors are common to both."""
    base = iterations[0]
    for name, other in zip(names[1:], iterations[1:], strict=True):
        if other.plan.cluster.gpu == base.plan.cluster.gpu:
            continue
        scale = base.tokens / other.tokens
        ends = {
            "time": (base.time_s_p05, base.time_s_p95, other.time_s_p05 * scale, other.time_s_p95 * scale),
            "energy": (base.energy_j_p05, base.energy_j_p95, other.energy_j_p05 * scale, other.energy_j_p95 * scale),
        }
        reach = [word for word, (low, high, from_, to) in ends.items() if from_ <= high and low <= to]
        if reach:
            what = f"the 90 % intervals of {name} and {names[0]} overlap in {' and '.join(reach)}"
            yield f"{what}, and their GPUs differ: which needs less is not sure"
