"""A forecast iteration beyond its GPUs: nodes, network switches and facility, money and carbon, and power limits.

A job pays for its share of the nodes in which it runs: where it takes half of a node's GPUs, half of the node. All
nodes draw their mean power for energy and cost; peaks are those of the nodes and racks with the most demanding stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import exp, log
from typing import TYPE_CHECKING, Any

from joulecast.extras import require
from joulecast.model.cluster.node_power import NodePower
from joulecast.model.cluster.site_cost import Cost, Prices, cost_of, cost_rel_sd
from joulecast.model.uncertainty import NINETY_PERCENT
from joulecast.simulator.fluid.power_over_time import Spread
from joulecast.simulator.iteration.site_model import Levels, SiteModel, half_widths
from joulecast.simulator.iteration.site_peaks import LimitCheck, limit_checks, power_spread, with_ends
from joulecast.simulator.plan_file.site import goodput_of

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.simulator.iteration.result import Iteration

#: What every result beyond the GPUs takes for granted.
SITE_ASSUMPTIONS = (
    "a job pays for its share of the nodes in which it runs, whose other GPUs work as its own do",
    "fans follow a node's mean power, supplies its power at every instant",
    "nodes stand in racks in the order of their ranks",
    "a run loses no time to checkpoints and failures but what site.goodput and site.node_mtbf_hours say",
)


@dataclass(frozen=True, slots=True)
class Run:
    """The whole training run: iterations until ``tokens`` tokens are trained, and time lost at the same power.

    Time and energy at the meter have the 90 % intervals of an iteration's; ``goodput`` is taken as stated.
    """

    tokens: float
    iterations: float
    time_s: float
    time_s_p05: float
    time_s_p95: float
    energy_j: float
    energy_j_p05: float
    energy_j_p95: float
    cost: Cost
    goodput: float

    @property
    def paid_iterations(self) -> float:
        """Iterations that the time and energy of the run would be enough for."""
        return self.iterations / self.goodput


#: What a forecast has at every level.
LEVELS = tuple(f"{name}{end}" for name in ("power_w", "energy_j") for end in ("", "_p05", "_p95"))
#: What ``--json`` prints of a run beside its cost.
RUN_KEYS = (
    "tokens",
    "iterations",
    *(f"{name}{end}" for name in ("time_s", "energy_j") for end in ("", "_p05", "_p95")),
)


@dataclass(frozen=True, slots=True)
class SiteForecast:
    """An iteration beyond its GPUs.

    Attributes
    ----------
    node, network, currency
        Names of the node type and the network, and the prices' currency.
    power_w, energy_j
        Mean power and energy of the job at every level.
    energy_j_p05, energy_j_p95, power_w_p05, power_w_p95
        90 % intervals at every level: the GPUs', the node's parts, the supplies' and the facility's.
    node_power
        Mean parts of one whole node [W].
    cost
        Of one iteration.
    money_half_widths, carbon_half_widths
        How far the logarithmic 90 % intervals of money and carbon reach below and above, of an iteration, a token and
        a run alike: energy, time, and what the plan leaves to the catalogue.
    gpu_price_per_hour
        Rent of a GPU that the plan states [currency/h]; ``None``: hardware is bought.
    tokens
        Tokens of one iteration.
    spread_w
        Power over time of a ``gpu``, a ``node`` at its outlet, a ``rack`` where one is stated, and the ``job`` at the
        facility's meter, the most demanding of each, in steps of ``step_s``.
    limits
        Limits of the plan's site, met or not.
    run
        The whole run, where the plan states ``workload.training_tokens``.
    """

    node: str
    network: str
    currency: str
    power_w: Levels
    energy_j: Levels
    energy_j_p05: Levels
    energy_j_p95: Levels
    power_w_p05: Levels
    power_w_p95: Levels
    node_power: NodePower
    cost: Cost
    money_half_widths: tuple[float, float]
    carbon_half_widths: tuple[float, float]
    gpu_price_per_hour: float | None
    tokens: int
    spread_w: Mapping[str, Spread]
    step_s: float
    limits: tuple[LimitCheck, ...]
    run: Run | None

    @property
    def energy_per_token_j(self) -> float:
        """Energy of a token at the facility's meter [J]."""
        return self.energy_j.facility / self.tokens

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        run = self.run
        return {
            "node": self.node,
            "network": self.network,
            "currency": self.currency,
            "gpu_price_per_hour": self.gpu_price_per_hour,
            **{name: asdict(getattr(self, name)) for name in LEVELS},
            "node_power_w": self.node_power.to_dict() | {"dc_w": self.node_power.dc_w},
            "iteration": self.cost_of(1.0),
            "token": {"energy_j": self.energy_per_token_j} | self.cost_of(1.0 / self.tokens),
            "run": run and {name: getattr(run, name) for name in RUN_KEYS} | self.cost_of(run.paid_iterations),
            "spread_w": {name: asdict(spread) for name, spread in self.spread_w.items()},
            "step_s": self.step_s,
            "limits": [asdict(check) | {"met": check.met} for check in self.limits],
            "assumptions": list(SITE_ASSUMPTIONS),
        }

    def cost_of(self, iterations: float) -> dict[str, float]:
        """Cost of so many iterations, with the intervals of money and carbon."""
        parts = ("money", "electricity", "hardware", "carbon_kg", "operational_kg", "embodied_kg")
        found = {name: float(getattr(self.cost, name)) * iterations for name in parts}
        for name, (below, above) in (("money", self.money_half_widths), ("carbon_kg", self.carbon_half_widths)):
            found |= {f"{name}_p05": found[name] * exp(-below), f"{name}_p95": found[name] * exp(above)}
        return found

    def to_frame(self) -> pd.DataFrame:
        """One line for each level; needs pandas."""
        require("pandas")
        import pandas as pd

        return pd.DataFrame({name: asdict(getattr(self, name)) for name in LEVELS}).rename_axis("level")


def site_forecast(iteration: Iteration, model: SiteModel) -> SiteForecast:
    """Nodes, facility, money, carbon and power limits of a forecast iteration."""
    plan = iteration.plan
    activity = _nic_activity(iteration, model)
    node = model.node_power(iteration.power_w / plan.cluster.gpus, activity)
    nodes = plan.cluster.gpus / model.gpus_per_node
    switches = model.switches_w(plan.cluster.gpus)
    ac = float(model.ac_w(node.dc_w)) * nodes
    power = Levels(iteration.power_w, node.dc_w * nodes, ac, switches, model.pue * (ac + switches))
    energy = power.times(iteration.time_s)
    network_share = switches / (ac + switches)
    of_time, of_energy, of_power = (_rel_sds(iteration, name) for name in ("time_s", "energy_j", "power_w"))
    below, above = (half_widths(model, node, *sds, network_share) for sds in zip(of_energy, of_time, strict=True))
    low, high = (half_widths(model, node, sd, 0.0, network_share) for sd in of_power)
    of_peaks = [
        half_widths(model, node, abs(log(end)) / NINETY_PERCENT, 0.0, network_share) for end in iteration.peak_ends
    ]
    cost = cost_of(energy.facility, iteration.time_s, plan.cluster.gpus, model.prices)
    money, carbon = _cost_half_widths(cost, model, (below.facility, above.facility), of_time)
    spread = with_ends(power_spread(iteration.power_over_time, plan, model, node, switches), *of_peaks)
    return SiteForecast(
        node=model.node.name,
        network=model.network.name,
        currency=model.currency,
        power_w=power,
        energy_j=energy,
        energy_j_p05=energy.changed(below, -1.0),
        energy_j_p95=energy.changed(above, 1.0),
        power_w_p05=power.changed(low, -1.0),
        power_w_p95=power.changed(high, 1.0),
        node_power=node,
        cost=cost,
        money_half_widths=money,
        carbon_half_widths=carbon,
        gpu_price_per_hour=plan.site.gpu_price_per_hour,
        tokens=iteration.tokens,
        spread_w=spread,
        step_s=iteration.power_over_time.step_s,
        limits=limit_checks(plan.site, spread),
        run=_run(iteration, energy.facility, (below.facility, above.facility), model.prices),
    )


def _cost_half_widths(
    cost: Cost, model: SiteModel, of_energy: tuple[float, float], of_time: tuple[float, float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Half-widths below and above of money and of carbon, from those of energy and the deviations of time."""
    of_cost = [
        cost_rel_sd(cost, model.price_spread, half / NINETY_PERCENT, sd)
        for half, sd in zip(of_energy, of_time, strict=True)
    ]
    (less, lighter), (more, heavier) = of_cost
    return (NINETY_PERCENT * less, NINETY_PERCENT * more), (NINETY_PERCENT * lighter, NINETY_PERCENT * heavier)


def _rel_sds(iteration: Iteration, name: str) -> tuple[float, float]:
    """Relative standard deviations below and above one of the iteration's quantities; its interval may be lopsided."""
    value, low, high = (float(getattr(iteration, f"{name}{end}")) for end in ("", "_p05", "_p95"))
    return log(value / low) / NINETY_PERCENT, log(high / value) / NINETY_PERCENT


def _nic_activity(iteration: Iteration, model: SiteModel) -> float:
    """Share of the iteration in which GPUs communicate at all, an upper bound of the cards' mean load."""
    if iteration.gpus <= model.gpus_per_node:
        return 0.0
    communicating = sum(r.gpus * (r.exposed_communication_s + r.overlapped_communication_s) for r in iteration.ranks)
    return min(1.0, communicating / (iteration.gpus * iteration.time_s))


def _run(iteration: Iteration, energy_j: float, half_widths: tuple[float, float], prices: Prices) -> Run | None:
    tokens = iteration.plan.workload.training_tokens
    if tokens is None:
        return None
    count, goodput = tokens / iteration.tokens, goodput_of(iteration.plan)
    paid = count / goodput
    time, energy = iteration.time_s * paid, energy_j * paid
    return Run(
        tokens,
        count,
        time,
        iteration.time_s_p05 * paid,
        iteration.time_s_p95 * paid,
        energy,
        energy * exp(-half_widths[0]),
        energy * exp(half_widths[1]),
        cost_of(energy, time, iteration.gpus, prices),
        goodput,
    )
