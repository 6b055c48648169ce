"""How finely a profile is cut: as fine as the guidance asks for, or as a slow sensor may carry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.power_profile.guidance import Guidance
from joulecast.calibrate.power_profile.layout import Layout, even_edges, rest_edges
from joulecast.calibrate.power_profile.steady import SteadyPower

#: What shall be told apart behind a sensor that averages is this part of its window, and is cut into so many bins.
PART_OF_WINDOW, BINS_PER_PART = 5, 5
#: More bins than these are not needed, and cost time.
MOST_BINS = 400
MOST_PASS_BINS = 200
#: Parts of an execution, and of each part of a run, where only means are wanted.
PARTS = 16
#: A pass that is shorter than so many times the wanted resolution is not looked into.
FEWEST_PARTS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How a profile will be cut.

    Attributes
    ----------
    pass_s
        Duration of a pass.
    spacing_s, wanted_s
        Narrowest bin, and wanted resolution.
    folded
        Whether the passes of steady power are laid over each other, and the first pass of steady time is cut as finely;
        otherwise the sensor cannot look into a pass and the run is cut evenly.
    sse, ssp, passes
        First pass of steady time, passes until steady power, passes of the run.
    rest_s
        Shortest rest between runs.
    """

    pass_s: float
    spacing_s: float
    wanted_s: float
    folded: bool
    sse: int
    ssp: int
    passes: int
    rest_s: float


def wanted_resolution(guidance: Guidance, window_s: float) -> float:
    """What shall be told apart behind a sensor that averages over ``window_s`` [s]."""
    return max(guidance.spacing_s, window_s / PART_OF_WINDOW)


def looks_inside(pass_s: float, wanted_s: float) -> bool:
    """Whether a pass is long enough to be resolved."""
    return pass_s >= FEWEST_PARTS * wanted_s


def plan_bins(
    pass_s: float,
    guidance: Guidance,
    window_s: float,
    wanted_s: float,
    sse: int,
    steady: SteadyPower | None,
    passes: int,
    rest_s: float,
) -> Plan:
    """Choose the bins for a sensor that averages over ``window_s``.

    Without a steady power in the run, ``None``, the second half of the run stands for it.
    """
    spacing = max(guidance.spacing_s, window_s / PART_OF_WINDOW / BINS_PER_PART, pass_s / MOST_PASS_BINS)
    folded = looks_inside(pass_s, wanted_s)
    ssp = max(passes // 2 if steady is None else steady.passes, sse + 1)
    return Plan(pass_s, spacing, wanted_s, folded, sse, ssp, passes, rest_s)


def layout_of(plan: Plan, kernel_s: Array) -> Layout:
    """The layout of a plan, for kernels of these durations."""
    kernels = len(kernel_s)
    # Passes before the first steady one take longer; bins counted in kernels stretch with them.
    rest = rest_edges(plan.rest_s)
    if not plan.folded:
        width = max(plan.spacing_s, plan.pass_s * plan.passes / MOST_BINS)
        edges = even_edges(0.0, plan.passes * kernels, width / plan.pass_s * kernels)
        return Layout(edges, np.array([]), rest, kernels)
    fine = pass_edges(kernel_s, plan.spacing_s)
    coarse = pass_edges(kernel_s, max(plan.spacing_s, plan.pass_s * plan.ssp / (MOST_BINS / 2)))
    pieces = [(fine if index == plan.sse else coarse)[:-1] + index * kernels for index in range(plan.ssp)]
    return Layout(np.append(np.concatenate(pieces), plan.ssp * kernels), fine, rest, kernels)


def later_part(first: int, passes: int, kernel_s: Array, wanted_s: float, rest_s: float) -> tuple[Layout, Array]:
    """Few bins for the mean power of the passes from ``first`` on, and the time of each bin in them [s].

    Where the sensor looks into executions, those passes are laid over each other, so that it does not matter which part
    of them was read. Otherwise both parts are cut so finely that the window's edges see the power that they should.
    """
    kernels, pass_s = len(kernel_s), float(np.sum(kernel_s))
    rest = rest_edges(rest_s)
    if looks_inside(pass_s, wanted_s):
        layout = Layout(np.array([0.0, first]) * kernels, pass_edges(kernel_s, pass_s / PARTS), rest, kernels)
        weights = np.zeros(layout.size)
        weights[layout.cycle_bins] = np.diff(_time_at(layout.cycle_edges, kernel_s))
        return layout, weights
    width = max(wanted_s / 2, passes * pass_s / (2 * PARTS)) / pass_s
    before = even_edges(0.0, first, width)[:-1]
    layout = Layout(np.append(before, even_edges(first, passes, width)) * kernels, np.array([]), rest, kernels)
    weights = np.zeros(layout.size)
    weights[len(before) : layout.run_bins.stop] = np.diff(_time_at(layout.run_edges, kernel_s))[len(before) :]
    return layout, weights


def _time_at(place: Array, kernel_s: Array) -> Array:
    """Time at places counted in kernels, of passes of kernels that take so long [s]."""
    passes, kernels = np.divmod(place, len(kernel_s))
    ends = np.concatenate([[0.0], np.cumsum(kernel_s)])
    return np.asarray(passes * ends[-1] + np.interp(kernels, np.arange(len(ends)), ends), dtype=np.float64)


def pass_edges(kernel_s: Array, width_s: float) -> Array:
    """Edges inside one pass [kernels], even in time inside each kernel and with an edge between kernels."""
    pieces = [even_edges(index, index + 1.0, width_s / kernel)[:-1] for index, kernel in enumerate(kernel_s)]
    return np.append(np.concatenate(pieces), float(len(kernel_s)))
