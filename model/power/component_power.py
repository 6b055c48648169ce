"""Power by part of the package (compute dies, I/O dies, memory, link), and limits on single parts.

The ledger's components are shared among the parts of a package, each by fixed shares that add up to one. Only the
compute dies follow the SM clock; the other parts draw by the bytes that pass, so that they follow it through the
work's rate. A limit on a part is therefore met as one on the board is: the clock falls until the part's power meets it.
Where even the lowest clock is too much the board holds the work back and rests meanwhile,

    t' = t + (E_part − P_limit·t) / (P_limit − P_rest)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from joulecast.arrays import Array
from joulecast.errors import InputError, UnknownNameError
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.power.governor import settle_clock_mhz
from joulecast.model.power.kernel_power import (
    COMPONENTS,
    KernelTimes,
    clock_tree_power_w,
    idle_power_w,
    static_power_w,
    wait_power_w,
)
from joulecast.model.power.settled import Curves


@dataclass(frozen=True)
class Package:
    """How the ledger's components are shared among the parts of a package.

    Attributes
    ----------
    parts
        Names of the parts.
    shares
        By ledger component, the share of each part; those that are not named go to ``compute``.
    source
        Where the shares come from.
    """

    parts: tuple[str, ...]
    shares: Mapping[str, tuple[float, ...]]
    source: str


#: Share of HBM's energy that is spent in the stacks: 3.9 pJ/bit (O'Connor et al., MICRO 2017) of the 7 to 8 pJ/bit that
#: boards draw more for it. The rest is spent in controllers and PHYs on the die next to them [estimate, +-0.15].
STACKS = 0.5
#: Compute dies and L2 over I/O dies with the memory-side cache, controllers, fabric and links. Static power: 3.5 W for
#: each of eight stacks, the rest halved (920 mm2 of 5 nm over 1,480 mm2 of 6 nm; Smith et al., ISSCC 2024). A byte that
#: is sent is read and another one written, each through L2 and the memory: twice 40 pJ of some 540 on the compute dies,
#: twice half of 63 pJ in the stacks. [estimates, +-0.15]
CHIPLETS = Package(
    ("compute", "io", "hbm"),
    {"static": (0.4, 0.4, 0.2), "hbm": (0.0, 1.0 - STACKS, STACKS), "link": (0.15, 0.75, 0.1)},
    "estimate from public energies per bit and die areas, +-0.15",
)
#: One die (or two alike) with controllers and L2, memory beside it, and what sending costs. Static power: the memory's
#: share is what refresh and PHYs of idle stacks draw. [estimates, +-0.15]
ONE_DIE = Package(
    ("compute", "hbm", "link"),
    {"static": (0.8, 0.2, 0.0), "hbm": (1.0 - STACKS, STACKS, 0.0), "link": (0.0, 0.0, 1.0)},
    "estimate from public energies per bit, +-0.15",
)


#: How far above what a part draws at rest its limit must lie [W].
ABOVE_REST_W = 1.0


def package_of(gpu: GpuModel) -> Package:
    """The package of a GPU: I/O dies are those that hold a memory-side cache."""
    return CHIPLETS if gpu.device.get("last_level_cache_bytes", 0.0) > 0 else ONE_DIE


def by_part(components: Mapping[str, ArrayLike], gpu: GpuModel) -> dict[str, Array]:
    """Power or energy by part from that by ledger component.

    Parameters
    ----------
    components
        By name of :data:`joulecast.model.power.kernel_power.COMPONENTS`, arrays of one shape [W] or [J].

    Returns
    -------
    dict
        By name of the package's parts, of that shape and unit; their sum is the sum of the components.
    """
    package = package_of(gpu)
    alone = (1.0, *(0.0,) * (len(package.parts) - 1))
    shape = np.broadcast_shapes(*(np.shape(value) for value in components.values()))
    found = {part: np.zeros(shape) for part in package.parts}
    for component, value in components.items():
        for part, share in zip(package.parts, package.shares.get(component, alone), strict=True):
            if share:
                found[part] = found[part] + share * np.asarray(value, dtype=np.float64)
    return found


def rest_power_w(clock_mhz: ArrayLike, gpu: GpuModel) -> dict[str, Array]:
    """Power of each part of a GPU that runs nothing, at a clock of shape ``()`` or ``(c,)`` [W]."""
    return by_part(dict(zip(COMPONENTS, rest_components_w(clock_mhz, gpu).T, strict=True)), gpu)


def rest_components_w(clock_mhz: ArrayLike, gpu: GpuModel) -> Array:
    """Power of a GPU that runs nothing by ledger component, shape ``(…, components)`` in their order [W]."""
    clock = clock_tree_power_w(clock_mhz, gpu)
    power = np.zeros((*np.shape(clock), len(COMPONENTS)))
    power[..., COMPONENTS.index("static")] = static_power_w(clock, gpu)
    power[..., COMPONENTS.index("clock")] = clock
    return power


def waiting_components_w(clock_mhz: ArrayLike, gpu: GpuModel) -> Array:
    """Power of a GPU that polls for others, by ledger component, shape ``(…, components)`` in their order [W]."""
    power = rest_components_w(clock_mhz, gpu)
    power[..., COMPONENTS.index("sm")] += wait_power_w(clock_mhz, gpu) - idle_power_w(clock_mhz, gpu)
    return power


def waiting_power_w(clock_mhz: ArrayLike, gpu: GpuModel) -> dict[str, Array]:
    """Power of each part of a GPU that polls for others, at a clock of shape ``()`` or ``(c,)`` [W]."""
    drawn = np.moveaxis(waiting_components_w(clock_mhz, gpu), -1, 0)
    return by_part(dict(zip(COMPONENTS, drawn, strict=True)), gpu)


def check_limits(component_limits_w: Mapping[str, float], gpu: GpuModel, *, waits: bool = False) -> None:
    """See that limits name parts of this GPU and leave them what they draw at rest, or where it ``waits`` for others.

    Raises
    ------
    UnknownNameError
        No such part; the message has those that the GPU has.
    InputError
        A limit that is not a watt above what the part draws then; the message has the lowest whole one.
    """
    parts = package_of(gpu).parts
    lowest_mhz = gpu.device["min_clock_mhz"]
    rest = waiting_power_w(lowest_mhz, gpu) if waits else rest_power_w(lowest_mhz, gpu)
    when = "while it waits" if waits else "at rest"
    for part, limit in component_limits_w.items():
        if part not in parts:
            raise UnknownNameError(f"part of {gpu.name}", part, parts, key="component_limits_w")
        lowest = float(rest[part]) + ABOVE_REST_W
        if not limit >= lowest:
            raise InputError(
                f"{limit:g} W is too little for {part}, which draws {float(rest[part]):.1f} W {when} on {gpu.name} and "
                f"needs {ABOVE_REST_W:g} W more to work",
                key=f"component_limits_w.{part}",
                remedy=f"The lowest whole limit is {np.ceil(lowest):g}.",
            )


def under_limits(
    curves: Curves, clocks_mhz: Array, component_limits_w: Mapping[str, float], gpu: GpuModel
) -> tuple[Curves, Array]:
    """Work whose parts are limited, and the highest clock at which every limit is met.

    Parameters
    ----------
    curves
        ``n`` pieces of work on a grid of clocks.
    clocks_mhz
        The grid, ascending, shape ``(c,)``.
    component_limits_w
        By part, as :func:`check_limits` lets them pass [W].

    Returns
    -------
    curves, ceiling_mhz
        The curves, held back at the lowest clock where a limit demands it; and a clock for each piece, shape ``(n,)``.
    """
    for part, limit in component_limits_w.items():
        curves = _held_back(curves, part, limit, clocks_mhz[0], gpu)
    ceiling = np.full(curves.time_s.shape[1], clocks_mhz[-1])
    for part, energy in by_part(curves.components_j, gpu).items():
        if part in component_limits_w:
            ceiling = settle_clock_mhz(clocks_mhz, energy / curves.time_s, component_limits_w[part], ceiling)
    return curves, ceiling


def limited_kernels(
    times: KernelTimes, clocks_mhz: Array, component_limits_w: Mapping[str, float], gpu: GpuModel
) -> tuple[KernelTimes, Array]:
    """Kernels whose parts are limited, and the clock at which each really runs, of shape ``(clocks, kernels)``."""
    shape = times.time_s.shape
    parts = {c: np.array(np.broadcast_to(v, shape)) for c, v in times.components_j.items()}
    curves, ceiling = under_limits(Curves(times.time_s, times.energy_j, parts), clocks_mhz, component_limits_w, gpu)
    at_ceiling, free = curves.at(clocks_mhz, ceiling), clocks_mhz[:, None] <= ceiling
    held = KernelTimes(
        np.where(free, curves.time_s, at_ceiling.time_s),
        np.where(free, curves.energy_j, at_ceiling.energy_j),
        {c: np.where(free, v, at_ceiling.components_j[c]) for c, v in curves.components_j.items()},
    )
    return held, np.minimum(clocks_mhz[:, None], ceiling)


def _held_back(curves: Curves, part: str, limit_w: float, lowest_mhz: float, gpu: GpuModel) -> Curves:
    """The lowest clock's row with rests between the work, so that a part's mean power meets its limit."""
    energy = by_part({c: v[0] for c, v in curves.components_j.items()}, gpu)[part]
    rest = float(rest_power_w(lowest_mhz, gpu)[part])
    extra = np.maximum(energy - limit_w * curves.time_s[0], 0.0) / max(limit_w - rest, ABOVE_REST_W)
    drawn = dict(zip(COMPONENTS, rest_components_w(lowest_mhz, gpu).tolist(), strict=True))

    def longer(values: Array, power_w: float) -> Array:
        return np.concatenate([values[:1] + power_w * extra, values[1:]])

    parts = {c: longer(v, drawn[c]) for c, v in curves.components_j.items()}
    return replace(
        curves,
        time_s=longer(curves.time_s, 1.0),
        energy_j=longer(curves.energy_j, sum(drawn.values())),
        components_j=parts,
    )
