"""Rows of a sweep: plans that fit memory, forecast in closed form, and the best of them simulated in full."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, UnknownNameError
from joulecast.model.catalogue import load_gpu
from joulecast.model.site_cost import cost_of
from joulecast.plan.sweep.legal import Combinations, combinations
from joulecast.plan.sweep.plans import Plans
from joulecast.plan.sweep.space import Space, digest
from joulecast.simulator.closed_form import Shared, closed_form
from joulecast.simulator.closed_form_layout import shape_of
from joulecast.simulator.closed_form_trust import doubt
from joulecast.simulator.footprints import footprint_of
from joulecast.simulator.forecast import forecast
from joulecast.simulator.iteration import Iteration
from joulecast.simulator.plan import Plan
from joulecast.simulator.plan_names import place, resolve_path
from joulecast.simulator.plan_site import goodput_of
from joulecast.simulator.site_model import SiteModel, site_model

#: Rows that are evaluated together: few enough that a killed process loses hundredths of a second.
TOGETHER = 128
#: How a row was made.
CLOSED_FORM, SIMULATED = "closed-form", "simulated"
#: Columns of an iteration's forecast that only a simulation has.
INTERVALS = ("time_s_p05", "time_s_p95", "energy_j_p05", "energy_j_p95")
#: Values of one combination by dotted key.
Values = Mapping[str, Any]
#: One row: the plan's number, its values, and its figures.
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """What became of some combinations.

    Attributes
    ----------
    numbers
        Which: they follow each other, unless only the missing rows of a batch were asked for.
    rows
        One for each plan that fits.
    illegal, unfit
        Combinations that no plan can have, and plans that do not fit a GPU's memory.
    least_bytes
        Least memory that one of the latter needs; infinite without any [bytes].
    """

    numbers: Sequence[int]
    rows: tuple[Row, ...]
    illegal: int
    unfit: int
    least_bytes: float


class Forecaster:
    """Forecasts plans of one space; what they share is kept from call to call."""

    def __init__(self, space: Space) -> None:
        self.plans = Plans(space)
        self._space = space
        self._shared = Shared()
        self._sites: dict[object, SiteModel | None] = {}

    @cached_property
    def found(self) -> Combinations:
        """Combinations that may be legal; every process finds the same."""
        return combinations(self._space, self.plans)

    def batches(self, numbers: Sequence[int]) -> Iterator[Batch]:
        """Forecast some combinations in closed form; as many as have :data:`TOGETHER` rows at a time."""
        fitting: list[tuple[int, Values, Plan, float]] = []
        values: Values
        begun, illegal, unfit, least = 0, 0, 0, math.inf
        for seen, number in enumerate(numbers, start=1):
            values = self.found.of(number)
            try:
                plan = self.plans.plan(values)
            except InputError:
                illegal += 1
            else:
                needed = needed_bytes(plan)
                if needed > load_gpu(plan.cluster.gpu).number("memory_bytes"):
                    unfit += 1
                    least = min(least, needed)
                else:
                    fitting.append((number, values, plan, needed))
            if len(fitting) == TOGETHER or seen == len(numbers):
                yield Batch(numbers[begun:seen], self._rows(fitting), illegal, unfit, least)
                fitting, begun, illegal, unfit, least = [], seen, 0, 0, math.inf

    def _rows(self, fitting: Sequence[tuple[int, Values, Plan, float]]) -> tuple[Row, ...]:
        """Rows of plans that fit: number, values, plan and the memory that it needs."""
        made = closed_form([plan for _, _, plan, _ in fitting], shared=self._shared)
        rows = []
        for i, (number, values, plan, needed) in enumerate(fitting):
            time, energy = float(made.time_s[i]), float(made.energy_j[i])
            figures = {
                "time_s": time,
                "energy_j": energy,
                "clock_mhz": float(made.clock_mhz[i]),
                "waiting_share": float(made.waiting_share[i]),
            }
            row = _row(number, values, plan, CLOSED_FORM, needed, figures)
            rows.append(row | self._site_figures(plan, time, energy, float(made.communication_share[i])))
        return tuple(rows)

    def simulate(self, number: int) -> Row:
        """Forecast one combination as ``joulecast predict`` does."""
        values = self.found.of(number)
        plan = self.plans.plan(values)
        iteration = forecast(plan)
        waiting = sum(r.gpus * r.waiting_s for r in iteration.ranks) / (iteration.gpus * iteration.time_s)
        figures = {name: getattr(iteration, name) for name in ("time_s", "energy_j", "clock_mhz")}
        intervals = {name: getattr(iteration, name) for name in INTERVALS}
        row = _row(number, values, plan, SIMULATED, needed_bytes(plan), figures | {"waiting_share": waiting})
        return row | intervals | _simulated_site(plan, iteration)

    def _site_figures(self, plan: Plan, time_s: float, energy_j: float, communication_share: float) -> Row:
        key = (plan.cluster.gpu, plan.cluster.node, plan.cluster.network, plan.site)
        if key not in self._sites:
            self._sites[key] = site_model(plan, load_gpu(plan.cluster.gpu))
        site, gpus = self._sites[key], plan.cluster.gpus
        if site is None:
            return {}
        activity = communication_share if gpus > site.gpus_per_node else 0.0
        facility_j = float(site.facility_power_w(energy_j / time_s / gpus, gpus, activity)) * time_s
        cost = cost_of(facility_j, time_s, gpus, site.prices)
        node = (facility_j / time_s / site.pue - site.switches_w(gpus)) * site.gpus_per_node / gpus
        powers = {"node_power_w": node}
        if plan.site.nodes_per_rack is not None:
            powers["rack_power_w"] = node * plan.site.nodes_per_rack
        return (
            _beyond_gpus(plan, time_s, facility_j, (float(cost.money), site.currency), float(cost.carbon_kg)) | powers
        )


_FORECASTERS: dict[object, Forecaster] = {}
#: Keys that may name a file beside the GPU's, and its ending.
_FILES = {"workload.model": ".json", "cluster.node": ".toml", "network.name": ".toml", "site.name": ".toml"}


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
        path = resolve_path(name, ".toml", space.source)
        try:
            found[path] = digest(json.dumps(load_gpu(path).to_dict()).encode())
        except UnknownNameError as error:
            raise place(error, space.source, "cluster.gpu") from None
    for key, suffix in _FILES.items():
        for name in space.values(key):
            if isinstance(name, str):
                path = resolve_path(name, suffix, space.source)
                file = Path(path, "config.json") if Path(path).is_dir() else Path(path)
                found |= {str(file): digest(file.read_bytes())} if file.is_file() else {}
    return replace(space, files=tuple(found.items()))


def evaluate(space: Space, numbers: Sequence[int]) -> Iterator[Batch]:
    """:meth:`Forecaster.batches`, for other processes."""
    return forecaster_of(space).batches(numbers)


def simulate(space: Space, number: int) -> Row:
    """:meth:`Forecaster.simulate`, for other processes."""
    return forecaster_of(space).simulate(number)


def needed_bytes(plan: Plan) -> float:
    """Most memory that a GPU of the plan needs [bytes].

    Of ranks that hold the same, the first keeps the most micro-batches in flight.
    """
    return max(footprint_of(plan, kind.rank).total_bytes for kind in shape_of(plan).kinds)


def _row(number: int, values: Values, plan: Plan, source: str, needed: float, figures: Mapping[str, float]) -> Row:
    capacity = load_gpu(plan.cluster.gpu).number("memory_bytes")
    return {
        "plan": number,
        "source": source,
        "doubt": doubt(plan) if source == CLOSED_FORM else "",
        **values,
        "gpus": plan.cluster.gpus,
        "data_parallel_size": plan.dp,
        "tokens": plan.tokens,
        **figures,
        "power_w": figures["energy_j"] / figures["time_s"],
        "tokens_per_s": plan.tokens / figures["time_s"],
        "memory_bytes": needed,
        "memory_margin": 1.0 - needed / capacity,
    }


def _simulated_site(plan: Plan, iteration: Iteration) -> Row:
    site = iteration.site
    if site is None:
        return {}
    cost, facility_j = site.cost, site.energy_j.facility
    peaks = {f"peak_{name}_power_w": spread.peak_w for name, spread in site.spread_w.items()}
    money = float(cost.money), site.currency
    return _beyond_gpus(plan, iteration.time_s, facility_j, money, float(cost.carbon_kg)) | peaks


def _beyond_gpus(plan: Plan, time_s: float, facility_j: float, price: tuple[float, str], carbon_kg: float) -> Row:
    """Figures at the facility's meter, of an iteration and of the whole run; a price is an amount and its currency."""
    money, currency = price
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
