"""Rows of a sweep: plans that fit memory, forecast in closed form, and the best of them simulated in full."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from os.path import isdir, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.cluster.site_cost import cost_of
from joulecast.model.forecasts import INTERVAL
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.memory.footprint import MemoryFootprint
from joulecast.plan.sweep.legal import Combinations, combinations
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.space import Space, digest
from joulecast.simulator.closed_form.forecast import AT_ONCE, ClosedForm, Shared, closed_form, neighbours_key
from joulecast.simulator.closed_form.shape import shape_of
from joulecast.simulator.closed_form.trust import doubt
from joulecast.simulator.instructions.footprints import footprints_of
from joulecast.simulator.iteration.site_model import SiteModel, site_model
from joulecast.simulator.plan_file.names import FILES, place, resolve_path
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.site import goodput_of

if TYPE_CHECKING:
    from joulecast.simulator.iteration.result import Iteration

#: Most rows that are evaluated together where they are kept in a file: a killed process loses as many.
TOGETHER = 16
#: Combinations of each process up to which rows are evaluated alone then. One alone takes as long as ten together, so
#: that a row of more combinations is in company: what this adds to a process stays within a few seconds up to some
#: 40,000 of them.
ALONE = 2700
#: How a row was made.
CLOSED_FORM, SIMULATED = "closed-form", "simulated"
#: Values of one combination by dotted key.
Values = Mapping[str, Any]
#: One row: the plan's number, its values, and its figures.
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of some combinations before they are forecast.

    Attributes
    ----------
    combinations
        Which.
    illegal
        How many no plan can have.
    plans
        Those that fit a GPU's memory, each of which gets a row; all others do not fit.
    """

    combinations: range
    illegal: int
    plans: tuple[int, ...]


class Fitting(NamedTuple):
    """A plan that fits memory: its number and values, what its fullest GPU holds, and a GPU's memory [bytes]."""

    number: int
    values: Values
    plan: Plan
    fullest: MemoryFootprint
    memory_bytes: float


class Forecaster:
    """Forecasts plans of one space; what they share is kept from call to call."""

    def __init__(self, space: Space) -> None:
        self.plans = Plans(space)
        self._space = space
        self._shared = Shared()
        self._sites: dict[object, SiteModel | None] = {}
        # Memory of a GPU, whose file is read once [bytes].
        self._memory_of = cache(lambda gpu: load_gpu(gpu).number("memory_bytes"))

    @cached_property
    def combinations(self) -> Combinations:
        """Combinations that may be legal; every process finds the same."""
        return combinations(self._space, self.plans)

    def forecast(self, numbers: Sequence[int], together: int = AT_ONCE) -> Iterator[Checked | Row]:
        """Forecast some combinations in closed form, so many at a time: each row as soon as it is known.

        What became of a range comes before its rows; if only the missing rows of one are asked for, it is known.
        """
        illegal, fitting = self._checked(numbers)
        if isinstance(numbers, range):
            yield Checked(numbers, illegal, tuple(one.number for one in fitting))
        for begin in range(0, len(fitting), AT_ONCE):
            block = sorted(fitting[begin : begin + AT_ONCE], key=lambda one: neighbours_key(one.plan))
            self._shared.prepare([one.plan for one in block])
            for start in range(0, len(block), together):
                yield from self._rows(block[start : start + together])

    def _checked(self, numbers: Iterable[int]) -> tuple[int, list[Fitting]]:
        """How many combinations no plan can have, and the plans that fit."""
        illegal, fitting = 0, []
        for number in numbers:
            values = self.combinations.of(number)
            try:
                plan = self.plans.plan(values)
            except InputError:
                illegal += 1
                continue
            memory = self._memory_of(plan.cluster.gpu)
            fullest = fullest_of(plan, memory)
            if fullest.total_bytes <= memory:
                fitting.append(Fitting(number, values, plan, fullest, memory))
        return illegal, fitting

    def _rows(self, fitting: Sequence[Fitting]) -> tuple[Row, ...]:
        """Rows of plans that fit."""
        plans = [one.plan for one in fitting]
        made = closed_form(plans, shared=self._shared)
        names = ("time_s", "energy_j", "clock_mhz", "waiting_share")
        columns = zip(*(getattr(made, name).tolist() for name in names), strict=True)
        return tuple(
            _row(one, CLOSED_FORM, dict(zip(names, figures, strict=True))) | beyond
            for one, figures, beyond in zip(fitting, columns, self._site_figures(plans, made), strict=True)
        )

    def nearest_to_fit(self) -> tuple[Plan, float]:
        """Where no plan fits, the one whose fullest GPU lacks the least, and the memory of its GPU [bytes]."""

        def legal() -> Iterator[Plan]:
            for number in range(len(self.combinations)):
                with suppress(InputError):
                    yield self.plans.plan(self.combinations.of(number))

        plan = min(legal(), key=lambda plan: fullest_of(plan).total_bytes - self._memory_of(plan.cluster.gpu))
        return plan, self._memory_of(plan.cluster.gpu)

    def simulate(self, number: int) -> Row:
        """Forecast one combination as ``joulecast predict`` does."""
        from joulecast.simulator.iteration.forecast import forecast  # sweeps in closed form alone do without

        values = self.combinations.of(number)
        plan = self.plans.plan(values)
        iteration = forecast(plan)
        waiting = sum(r.gpus * r.waiting_s for r in iteration.ranks) / (iteration.gpus * iteration.time_s)
        figures = {name: getattr(iteration, name) for name in ("time_s", "energy_j", "clock_mhz")}
        intervals = {name: getattr(iteration, name) for name in INTERVAL}  # which only a simulation has
        one = Fitting(number, values, plan, fullest_of(plan), self._memory_of(plan.cluster.gpu))
        row = _row(one, SIMULATED, figures | {"waiting_share": waiting})
        return row | intervals | _simulated_site(plan, iteration)

    def _site_figures(self, plans: Sequence[Plan], made: ClosedForm) -> list[Row]:
        """Figures at the node's outlet and the facility's meter, where the node type is known."""
        found: list[Row] = [{} for _ in plans]
        groups: dict[tuple[object, ...], list[int]] = {}
        for i, plan in enumerate(plans):
            cluster = plan.cluster
            groups.setdefault((cluster.gpu, cluster.node, cluster.network, plan.site, cluster.gpus), []).append(i)
        for key, own in groups.items():
            if key not in self._sites:
                self._sites[key] = site_model(plans[own[0]], load_gpu(plans[own[0]].cluster.gpu))
            site, gpus = self._sites[key], plans[own[0]].cluster.gpus
            if site is None:
                continue
            time = made.time_s[own]
            activity = made.communication_share[own] if gpus > site.gpus_per_node else 0.0
            facility_j = site.facility_power_w(made.energy_j[own] / time / gpus, gpus, activity) * time
            cost = cost_of(facility_j, time, gpus, site.prices)
            node = (facility_j / time / site.pue - site.switches_w(gpus)) * site.gpus_per_node / gpus
            figures = (time, facility_j, cost.money, cost.carbon_kg, node)
            for i, *of_plan, node_w in zip(own, *(values.tolist() for values in figures), strict=True):
                found[i] = _beyond_gpus(plans[i], site.currency, *of_plan) | {"node_power_w": node_w}
                if (nodes := plans[i].site.nodes_per_rack) is not None:  # of which a small job fills some
                    own_nodes = gpus / min(site.gpus_per_node, plans[i].cluster.gpus_per_node)
                    found[i]["rack_power_w"] = node_w * min(nodes, own_nodes)
        return found


_FORECASTERS: dict[object, Forecaster] = {}


def forecaster_of(space: Space) -> Forecaster:
    """The forecaster of a space in this process."""
    name = space.fingerprint(), space.files
    if name not in _FORECASTERS:
        _FORECASTERS.clear()
        _FORECASTERS[name] = Forecaster(space)
    return _FORECASTERS[name]


def with_files(space: Space) -> Space:
    """The space with what tells the files that it names, and what GPUs are derived from, from earlier ones."""
    found = {}
    for name in space.values("cluster.gpu"):
        path = resolve_path(name, space.source, "cluster.gpu")
        try:
            found[path] = digest(json.dumps(load_gpu(path).to_dict()).encode())
        except UnknownNameError as error:
            raise place(error, space.source, "cluster.gpu") from None
    for key in (key for key in FILES if key != "cluster.gpu"):
        for name in space.values(key):
            if isinstance(name, str):
                path = resolve_path(name, space.source, key)
                file = Path(path, "config.json") if isdir(path) else Path(path)
                found |= {str(file): digest(file.read_bytes())} if isfile(file) else {}
    return replace(space, files=tuple(found.items()))


def evaluate(space: Space, numbers: Sequence[int], together: int) -> Iterator[Checked | Row]:
    """:meth:`Forecaster.forecast`, for other processes."""
    return forecaster_of(space).forecast(numbers, together)


def rows_together(combinations: int, *, kept: bool, processes: int = 1) -> int:
    """How many rows of a sweep are evaluated together: where nothing is kept, as many as is fastest."""
    return min(1 + combinations // (ALONE * processes), TOGETHER) if kept else AT_ONCE


def simulate(space: Space, number: int) -> Iterator[Row]:
    """:meth:`Forecaster.simulate`, for other processes."""
    yield forecaster_of(space).simulate(number)


def fullest_of(plan: Plan, enough_bytes: float = math.inf) -> MemoryFootprint:
    """What the plan's fullest GPU holds, or the first that needs more than is ``enough_bytes``.

    Of ranks that hold the same, the first keeps the most micro-batches in flight.
    """
    ranks = [kind.rank for kind in shape_of(plan).kinds]
    found = []
    for held in footprints_of(plan, ranks):
        found.append(held)
        if held.total_bytes > enough_bytes:
            break
    return max(found, key=lambda held: held.total_bytes)


def _row(one: Fitting, source: str, figures: Mapping[str, float]) -> Row:
    plan = one.plan
    return {
        "plan": one.number,
        "source": source,
        "doubt": doubt(plan) if source == CLOSED_FORM else "",
        **one.values,
        "gpus": plan.cluster.gpus,
        "data_parallel_size": plan.dp,
        "tokens": plan.tokens,
        **figures,
        "power_w": figures["energy_j"] / figures["time_s"],
        "tokens_per_s": plan.tokens / figures["time_s"],
        "memory_bytes": one.fullest.allocated_bytes,
        "memory_margin": 1.0 - one.fullest.total_bytes / one.memory_bytes,
    }


def _simulated_site(plan: Plan, iteration: Iteration) -> Row:
    site = iteration.site
    if site is None:
        return {}
    cost, facility_j = site.cost, site.energy_j.facility
    peaks = {f"peak_{name}_power_w": spread.peak_w for name, spread in site.spread_w.items()}
    figures = iteration.time_s, facility_j, float(cost.money), float(cost.carbon_kg)
    return _beyond_gpus(plan, site.currency, *figures) | peaks


def _beyond_gpus(plan: Plan, currency: str, time_s: float, facility_j: float, money: float, carbon_kg: float) -> Row:
    """Figures at the facility's meter, of an iteration and of the whole run."""
    found: Row = {
        "facility_energy_j": facility_j,
        "facility_power_w": facility_j / time_s,
        "money": money,
        "currency": currency,
        "carbon_kg": carbon_kg,
    }
    tokens = plan.workload.training_tokens
    if tokens is not None:
        run = {"time_s": time_s, "energy_j": facility_j, "money": money, "carbon_kg": carbon_kg}
        iterations = tokens / plan.tokens / goodput_of(plan)
        found |= {f"run_{name}": value * iterations for name, value in run.items()}
    return found
