"""Highest powers of nodes, racks and a job, how sure they are, and the site's limits that they must keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp

import numpy as np

from joulecast.arrays import Array
from joulecast.model.cluster.node_power import NodePower
from joulecast.simulator.fluid.power_over_time import PowerOverTime, Spread, groups_of_stages, spread_of
from joulecast.simulator.iteration.site_model import Levels, SiteModel
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.site import LIMITS, Site, stated_limits


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """A power limit of the site, and the highest power that is forecast against it, with its 90 % interval [W]."""

    key: str
    limit_w: float
    peak_w: float
    peak_w_p05: float | None = None
    peak_w_p95: float | None = None

    @property
    def met(self) -> bool:
        """Whether the power stays below the limit."""
        return self.peak_w <= self.limit_w

    def __str__(self) -> str:
        word = "is met" if self.met else "is exceeded"
        ends = "" if self.peak_w_p05 is None else f" (5-95 %: {self.peak_w_p05:.0f} to {self.peak_w_p95:.0f})"
        return f"{self.key} = {self.limit_w:g} W {word}: the peak is {self.peak_w:.0f} W{ends}"


def power_spread(
    over_time: PowerOverTime, plan: Plan, model: SiteModel, node: NodePower, switches_w: float
) -> dict[str, Spread]:
    """Power over time of the most demanding GPU, node and rack, and of the job, whose switches draw ``switches_w``."""
    per_stage, rest = plan.tp * plan.replicas, node.dc_w - node.gpu_w
    size = min(model.gpus_per_node, plan.cluster.gpus_per_node)
    whole = model.gpus_per_node / size  # a node that the job shares is one whose other GPUs do the same

    def outlet(gpus: int) -> list[Array]:
        """Power at the outlet of groups of nodes with so many GPUs of the job, ``(steps, groups)``, and its means."""
        groups = groups_of_stages(plan.pp, per_stage, gpus)
        nodes = groups.sum(axis=1) / size
        mean_dc = (of.group_w(groups) / nodes * whole + rest for of in (over_time, over_time.mean))
        return [np.asarray(model.ac_w(one) * nodes) for one in mean_dc]

    found = {"gpu": spread_of(over_time.power_w, over_time.mean.power_w), "node": spread_of(*outlet(size))}
    if plan.site.nodes_per_rack is not None:
        found["rack"] = spread_of(*outlet(size * plan.site.nodes_per_rack))
    found["job"] = spread_of(*(model.pue * (job / whole + switches_w) for job in outlet(plan.cluster.gpus)))
    return found


def with_ends(spread: dict[str, Spread], low: Levels, high: Levels) -> dict[str, Spread]:
    """Peaks with their intervals, from half of the logarithmic ones at every level."""
    levels = {"gpu": "gpu", "node": "node_ac", "rack": "node_ac", "job": "facility"}
    return {
        name: replace(
            one,
            peak_w_p05=one.peak_w * exp(-getattr(low, levels[name])),
            peak_w_p95=one.peak_w * exp(getattr(high, levels[name])),
        )
        for name, one in spread.items()
    }


def checks_of_power(
    over_time: PowerOverTime, plan: Plan, model: SiteModel, gpu_power_w: float
) -> tuple[LimitCheck, ...]:
    """The site's limits beside the peaks of a power over time, without the rest of a forecast.

    Cards of the network are taken to work all the time where there is one.

    Parameters
    ----------
    gpu_power_w
        Mean power of a GPU [W].
    """
    gpus = plan.cluster.gpus
    node = model.node_power(gpu_power_w, 1.0 if gpus > model.gpus_per_node else 0.0)
    return limit_checks(plan.site, power_spread(over_time, plan, model, node, model.switches_w(gpus)))


def limit_checks(site: Site, spread: Mapping[str, Spread]) -> tuple[LimitCheck, ...]:
    """The site's limits beside the peaks."""
    of = dict(zip(LIMITS, ("node", "rack", "job"), strict=True))
    peaks = {key: spread[of[key]] for key in stated_limits(site)}
    return tuple(
        LimitCheck(f"site.{key}", getattr(site, key), peak.peak_w, peak.peak_w_p05, peak.peak_w_p95)
        for key, peak in peaks.items()
    )
