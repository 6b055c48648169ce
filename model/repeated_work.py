"""Kernels that repeat back to back, at the clock at which the board settles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.forecasts import Forecast
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.operators import Collective, Operator
from joulecast.model.power.component_power import under_limits
from joulecast.model.power.governor import settle_clock_mhz, tensor_clock_mhz
from joulecast.model.power.kernel_power import at_clock, idle_power_w, wait_power_w
from joulecast.model.power.limits import group_limit_share, hold_at_peak
from joulecast.model.power.settled import Curves, Settled, settle

#: When a measurement begins after the start, and how long it takes, where nobody says: the board has settled [s].
LONG_S = 10.0


@dataclass(frozen=True)
class Work:
    """What one row repeats: operators in order with counts, and the share of time that the GPU is busy."""

    operators: tuple[Operator, ...]
    counts: tuple[float, ...] = ()
    busy_share: float = 1.0


@dataclass(frozen=True)
class Load:
    """Pieces of work as arrays: ``m`` operators in ``e`` places of ``n`` pieces, and the conditions of their run."""

    operators: Sequence[Operator]
    kernel: Int  # which operator, shape (e,)
    counts: Array  # shape (e,)
    owner: Int  # shape (e,)
    busy_share: Array  # shape (n,)
    limit_w: float
    clock_mhz: Array | float | None = None
    settle_s: Array | float = LONG_S
    window_s: Array | float = LONG_S
    component_limits_w: Mapping[str, float] | None = None
    longer: Array | None = None  # factor on the pieces' times, during which nothing more is done, shape (n,)
    waiting: Array | None = None  # share of the pieces' times, shape (n,)
    in_step: int = 1


def load_of(work: Sequence[Work], limit_w: float, settle_s: Array | float, window_s: Array | float) -> Load:
    """Pieces of work as arrays."""
    operators = [o for piece in work for o in piece.operators]
    return Load(
        operators,
        np.arange(len(operators)),
        np.array([c for piece in work for c in (piece.counts or (1,) * len(piece.operators))], dtype=np.float64),
        np.repeat(np.arange(len(work), dtype=np.int64), [len(piece.operators) for piece in work]),
        np.array([piece.busy_share for piece in work]),
        limit_w,
        settle_s=settle_s,
        window_s=window_s,
    )


def evaluate(load: Load, costs: Costs, gpu: GpuModel, clocks: Array, *, with_parts: bool = True) -> Forecast:
    """Work at its clock, found on a grid of clocks; its energy by component only where that is asked for."""
    ceiling = tensor_clock_mhz(_tensor_use(load, costs) * load.busy_share, gpu)
    if load.clock_mhz is not None:
        ceiling = np.minimum(ceiling, load.clock_mhz)
    curves = _sum(load, costs, clocks, gpu, with_parts or bool(load.component_limits_w))
    parts: Array | float = np.inf
    if load.component_limits_w:
        curves, parts = under_limits(curves, clocks, load.component_limits_w, gpu)
    limit_w = load.limit_w * group_limit_share(load.in_step, gpu)
    if load.waiting is not None:
        # At work the board answers its fast limit; its average, waits included, meets the slow one.
        burst = limit_w * gpu["governor.burst_share"]
        ceiling = settle_clock_mhz(clocks, curves.energy_j / curves.time_s, burst, ceiling)
        curves = _with_waits(curves, load.waiting, clocks, gpu)
    return forecast_of(settle(curves, clocks, limit_w, ceiling, gpu, load.settle_s, load.window_s, parts))


def forecast_of(found: Settled) -> Forecast:
    """What follows from the clock at which work settles."""
    power = found.energy_j / found.time_s
    columns = found.time_s, found.energy_j, power, found.clock_mhz, found.components_j
    return Forecast(*columns, found.demand_w, np.broadcast_to(found.held_w, power.shape))


def _sum(load: Load, costs: Costs, clocks: Array, gpu: GpuModel, with_parts: bool) -> Curves:
    times = at_clock(costs, clocks[:, None], gpu)
    if not with_parts:
        nothing = np.zeros_like(clocks[:, None])
        times = replace(times, components_j={"static": nothing, "clock": nothing})
    times = hold_at_peak(times, clocks, load.limit_w * gpu["governor.peak_share"], gpu)
    clocks = clocks[:, None]
    busy = load.busy_share
    members = np.zeros((len(load.operators), len(busy)))
    members[load.kernel, load.owner] = load.counts
    time, energy = times.time_s @ members, times.energy_j @ members
    if load.longer is not None:
        time, energy = time * load.longer, energy + (load.longer - 1.0) * time * idle_power_w(clocks, gpu)
    parts = {c: np.broadcast_to(v, times.time_s.shape) @ members for c, v in times.components_j.items()}
    launches = _launch_s(load, gpu)
    if np.all(busy == 1.0) and not launches.any():
        return Curves(time, energy, parts)
    whole = np.where(busy > 0, np.maximum(time, launches) / np.where(busy > 0, busy, 1.0), 1.0)
    idle = (whole - time) * idle_power_w(clocks, gpu)
    return Curves(whole, energy + idle, {**parts, "static": parts["static"] + idle})


def _with_waits(curves: Curves, share: Array, clocks: Array, gpu: GpuModel) -> Curves:
    """Work between which a GPU waits for others for this share of the time, shape ``(n,)``."""
    waits = curves.time_s * share / (1.0 - share)
    energy = curves.energy_j + waits * wait_power_w(clocks, gpu)[:, None]
    return replace(curves, time_s=curves.time_s + waits, energy_j=energy)


def _launch_s(load: Load, gpu: GpuModel) -> Array:
    """Time that the host needs to launch a piece of nothing but collectives, 0 for others, shape ``(n,)`` [s].

    Other kernels are launched well ahead of the GPU; a collective's launch is longer than a small one takes.
    """
    is_collective = np.array([isinstance(operator, Collective) for operator in load.operators], dtype=bool)
    count = len(load.busy_share)
    mixed = np.bincount(load.owner, ~is_collective[load.kernel], count) > 0
    launches = np.bincount(load.owner, is_collective[load.kernel] * load.counts, count)
    return np.where(mixed, 0.0, launches * gpu["collective.host_launch_s"])


def _tensor_use(load: Load, costs: Costs) -> Array:
    count, kernel = len(load.busy_share), load.kernel
    cycles = np.bincount(load.owner, costs.core_cycles[kernel] * load.counts, count)
    used = np.bincount(load.owner, (costs.core_cycles * costs.tensor_use)[kernel] * load.counts, count)
    return np.asarray(used / np.maximum(cycles, 1e-9))
