"""Forecasts of single kernels and short sequences of them, run back to back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.lowering import Lowering, lower
from joulecast.model.kernels.operators import Collective, Operator
from joulecast.model.power.component_power import check_limits, under_limits
from joulecast.model.power.governor import settle_clock_mhz, tensor_clock_mhz
from joulecast.model.power.kernel_power import at_clock, idle_power_w, wait_power_w
from joulecast.model.power.limits import group_limit_share, hold_at_peak
from joulecast.model.power.settled import Curves, settle
from joulecast.model.power.uncertain_power import margin, power_changes
from joulecast.model.uncertainty import (
    DIRECTIONS,
    NINETY_PERCENT,
    changes,
    composed_spreads,
    deviations,
    ends,
    spread_of,
)

Array = NDArray[np.float64]

#: Every so many steps of the clock the uncertainty is evaluated.
COARSE = 8
#: When a measurement begins after the start, and how long it takes, where nobody says: the board has settled [s].
LONG_S = 10.0


@dataclass(frozen=True)
class Work:
    """What one row repeats: operators in order with counts, and the share of time that the GPU is busy."""

    operators: tuple[Operator, ...]
    counts: tuple[float, ...] = ()
    busy_share: float = 1.0


@dataclass(frozen=True, eq=False)
class Mixes:
    """``n`` pieces of work made of the same ``m`` kernels, back to back.

    Attributes
    ----------
    operators
        The kernels.
    counts
        How often each runs in each piece, shape ``(m, n)``; every piece has some.
    clock_mhz
        Locked SM clock of each piece, shape ``(n,)``, kept as far as the power limit allows; ``None``: the board
        chooses [MHz].
    stretch
        Change of the logarithm of each piece's time, at every joint deviation of the parameters, by what no kernel
        alone tells, shape ``(directions, n)``; ``None`` for nothing [1].
    waiting
        Share of the time that the GPUs wait, shape ``(n,)``; ``None`` for none [1].
    in_step
        GPUs that wait for each other all the time, and so draw less than their limits.
    hosts
        Nodes of the job, whose cards differ.
    """

    operators: Sequence[Operator]
    counts: Array
    clock_mhz: Array | None = None
    stretch: Array | None = None
    waiting: Array | None = None
    in_step: int = 1
    hosts: int = 1


@dataclass(frozen=True)
class Forecast:
    """Forecast of ``n`` pieces of work; arrays of shape ``(n,)``.

    ``time_s`` and ``energy_j`` are of one repetition, ``clock_mhz`` the mean SM clock, ``components_j`` the energy by
    component, ``demand_w`` the power without the board's limit and ``held_w`` the one at which the limit holds. The
    ends of the 90 % intervals are ``None`` for a GPU that is being fitted.
    """

    time_s: Array
    energy_j: Array
    power_w: Array
    clock_mhz: Array
    components_j: dict[str, Array]
    demand_w: Array
    held_w: Array
    time_s_p05: Array | None = None
    time_s_p95: Array | None = None
    energy_j_p05: Array | None = None
    energy_j_p95: Array | None = None
    power_w_p05: Array | None = None
    power_w_p95: Array | None = None

    def spread(self, changes: Changes, forms: tuple[Array, Array, Array], window_s: Array | float) -> Forecast:
        """The same with 90 % intervals, of power averaged over ``window_s``.

        Beside what parameters change, ``forms`` has what kernels' forms get wrong of time, energy and demand, as
        relative standard deviations of shape ``(n,)``.
        """
        time_sd, energy_sd, demand_sd = (
            np.hypot(spread_of(of), form)
            for of, form in zip((changes.time, changes.energy, changes.demand), forms, strict=True)
        )
        (low_time, high_time), (low_energy, high_energy) = ends(self.time_s, time_sd), ends(self.energy_j, energy_sd)
        wide = NINETY_PERCENT * demand_sd
        beside = margin(self.power_w, self.demand_w, self.held_w, spread_of(changes.held), window_s)
        down, up = power_changes(wide, wide, beside, NINETY_PERCENT)
        return replace(
            self,
            time_s_p05=low_time,
            time_s_p95=high_time,
            energy_j_p05=low_energy,
            energy_j_p95=high_energy,
            power_w_p05=self.power_w * np.exp(-down),
            power_w_p95=self.power_w * np.exp(up),
        )


@dataclass(frozen=True, eq=False)
class Changes:
    """Relative changes of forecasts of ``n`` pieces of work by joint deviations of the parameters.

    Attributes
    ----------
    time, energy, demand, held
        Of time, energy, power without the board's limit, and the power at which the limit holds, shape
        ``(directions, n)``; see :func:`joulecast.model.uncertainty.changes` [1].
    power_w, demand_w, held_w
        What the forecasts say without a deviation, shape ``(n,)`` [W].
    """

    time: Array
    energy: Array
    demand: Array
    held: Array
    power_w: Array
    demand_w: Array
    held_w: Array

    def split(self, count: int) -> list[Changes]:
        """Those of as many equal groups of pieces."""
        parts = (np.split(getattr(self, one.name), count, axis=-1) for one in fields(self))
        return [Changes(*columns) for columns in zip(*parts, strict=True)]


@dataclass(frozen=True)
class _Load:
    """Pieces of work as arrays: ``m`` operators in ``e`` places of ``n`` pieces, and the conditions of their run."""

    operators: Sequence[Operator]
    kernel: NDArray[np.int64]  # which operator, shape (e,)
    counts: Array  # shape (e,)
    owner: NDArray[np.int64]  # shape (e,)
    busy_share: Array  # shape (n,)
    limit_w: float
    clock_mhz: Array | float | None = None
    settle_s: Array | float = LONG_S
    window_s: Array | float = LONG_S
    component_limits_w: Mapping[str, float] | None = None
    longer: Array | None = None  # factor on the pieces' times, during which nothing more is done, shape (n,)
    waiting: Array | None = None  # share of the pieces' times, shape (n,)
    in_step: int = 1


def predict_work(
    work: Sequence[Work],
    gpu: GpuModel,
    *,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    settle_s: Array | float = LONG_S,
    window_s: Array | float = LONG_S,
    component_limits_w: Mapping[str, float] | None = None,
) -> Forecast:
    """Time, energy, power and clock of work that repeats back to back.

    Parameters
    ----------
    work
        ``n`` pieces.
    clock_mhz
        Locked SM clock, kept as far as the power limit allows; by default the board chooses.
    power_limit_w
        Limit of the board; by default the card's own.
    settle_s, window_s
        When the measurement begins after the start, and how long it takes: a short one still sees the faster first
        phase, before the board's slow average meets the limit.
    component_limits_w
        Limits of parts of the package, by their names in :mod:`joulecast.model.power.component_power`.

    Raises
    ------
    InputError
        A part that the GPU does not have, or a limit below what it draws at rest.
    """
    limit = gpu.own_limit_w(power_limit_w)
    check_limits(component_limits_w or {}, gpu)
    load = _load(work, limit, settle_s, window_s)
    load = replace(load, clock_mhz=clock_mhz, component_limits_w=component_limits_w)
    costs = lower(load.operators, gpu)
    forecast = _evaluate(load, costs, gpu, gpu.clocks_mhz)
    if gpu.description is None:
        return forecast
    found = _changes(load, gpu, deviations(gpu.description))
    alone = at_clock(costs, forecast.clock_mhz[load.owner], gpu)
    amounts = alone.time_s * load.counts, alone.energy_j * load.counts
    forms = composed_spreads(amounts, load.owner, costs, gpu.description, len(work))
    return forecast.spread(found, forms, window_s)


def parameter_spread(
    work: Sequence[Work],
    gpu: GpuModel,
    clock_mhz: float | None = None,
    settle_s: Array | float = LONG_S,
    window_s: Array | float = LONG_S,
) -> tuple[Array, Array, Array]:
    """Relative standard deviation of time, energy and power without the limit from the parameters' covariance.

    Takes what :func:`predict_work` takes; each of shape ``(n,)``, zero for a GPU without a description.
    """
    if gpu.description is None:
        return np.zeros(len(work)), np.zeros(len(work)), np.zeros(len(work))
    load = replace(_load(work, gpu.own_limit_w(), settle_s, window_s), clock_mhz=clock_mhz)
    found = _changes(load, gpu, deviations(gpu.description))
    return spread_of(found.time), spread_of(found.energy), spread_of(found.demand)


def parameter_changes(
    mixes: Mixes,
    gpu: GpuModel,
    power_limit_w: float,
    directions: int = DIRECTIONS,
    component_limits_w: Mapping[str, float] | None = None,
) -> Changes:
    """Relative changes of forecasts by joint deviations of the parameters; zero for a GPU without a description."""
    of, count = np.nonzero(mixes.counts), mixes.counts.shape[1]
    if gpu.description is None:
        none, one = np.zeros((directions, count)), np.ones(count)
        return Changes(none, none, none, none, one, one, one)
    load = _Load(
        mixes.operators,
        of[0],
        mixes.counts[of],
        of[1],
        np.ones(count),
        power_limit_w,
        clock_mhz=mixes.clock_mhz,
        component_limits_w=component_limits_w,
        waiting=mixes.waiting,
        in_step=mixes.in_step,
    )
    return _changes(load, gpu, deviations(gpu.description, directions, mixes.hosts), mixes.stretch)


def _changes(
    load: _Load, gpu: GpuModel, deviated: Sequence[Mapping[str, float]], stretch: Array | None = None
) -> Changes:
    coarse, lowering = coarse_clocks(gpu.clocks_mhz), Lowering(load.operators, gpu.device)
    varied = [gpu.with_values(values) for values in deviated]
    loads = [load] * len(varied) if stretch is None else [replace(load, longer=np.exp(of)) for of in stretch]
    found = [
        _evaluate(each, lowering(one), one, coarse, with_parts=False)
        for each, one in zip((load, *loads), (gpu, *varied), strict=True)
    ]
    return changes_among(found)


def changes_among(found: Sequence[Forecast]) -> Changes:
    """Changes from the first of some forecasts to the others, which have deviated parameters."""
    base, *moved = found
    time, energy, demand, held = (
        changes(getattr(base, name), np.array([getattr(one, name) for one in moved]))
        for name in ("time_s", "energy_j", "demand_w", "held_w")
    )
    return Changes(time, energy, demand, held, base.power_w, base.demand_w, base.held_w)


class Timer:
    """Times of the same work again and again while a fit moves parameters, on a coarse grid of clocks.

    Parameters
    ----------
    work
        ``n`` pieces.
    lowering
        Lowers their operators; by default anew each time.
    settle_s, window_s
        As in :func:`predict_work`.
    """

    def __init__(
        self,
        work: Sequence[Work],
        lowering: Callable[[GpuModel], Costs] | None = None,
        *,
        settle_s: Array | float = LONG_S,
        window_s: Array | float = LONG_S,
    ) -> None:
        self._load = _load(work, 0.0, settle_s, window_s)
        self._lower: Callable[[GpuModel], Costs] = lowering or (lambda gpu: lower(self._load.operators, gpu))

    def __call__(self, gpu: GpuModel) -> Array:
        """Time of each piece on ``gpu``, shape ``(n,)`` [s]."""
        load = replace(self._load, limit_w=gpu.own_limit_w())
        return _evaluate(load, self._lower(gpu), gpu, coarse_clocks(gpu.clocks_mhz), with_parts=False).time_s


def coarse_clocks(clocks: Array) -> Array:
    """Every so many of the clocks, and the lowest and the highest."""
    places = np.arange((len(clocks) - 1) % COARSE, len(clocks), COARSE)
    return np.asarray(clocks[places if places[0] == 0 else np.append(0, places)])


def _load(work: Sequence[Work], limit_w: float, settle_s: Array | float, window_s: Array | float) -> _Load:
    operators = [o for piece in work for o in piece.operators]
    return _Load(
        operators,
        np.arange(len(operators)),
        np.array([c for piece in work for c in (piece.counts or (1,) * len(piece.operators))], dtype=np.float64),
        np.repeat(np.arange(len(work), dtype=np.int64), [len(piece.operators) for piece in work]),
        np.array([piece.busy_share for piece in work]),
        limit_w,
        settle_s=settle_s,
        window_s=window_s,
    )


def _evaluate(load: _Load, costs: Costs, gpu: GpuModel, clocks: Array, *, with_parts: bool = True) -> Forecast:
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
    found = settle(curves, clocks, limit_w, ceiling, gpu, load.settle_s, load.window_s, parts)
    power = found.energy_j / found.time_s
    columns = found.time_s, found.energy_j, power, found.clock_mhz, found.components_j
    return Forecast(*columns, found.demand_w, np.broadcast_to(found.held_w, power.shape))


def _sum(load: _Load, costs: Costs, clocks: Array, gpu: GpuModel, with_parts: bool) -> Curves:
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


def _launch_s(load: _Load, gpu: GpuModel) -> Array:
    """Time that the host needs to launch a piece of nothing but collectives, 0 for others, shape ``(n,)`` [s].

    Other kernels are launched well ahead of the GPU; a collective's launch is longer than a small one takes.
    """
    is_collective = np.array([isinstance(operator, Collective) for operator in load.operators], dtype=bool)
    count = len(load.busy_share)
    mixed = np.bincount(load.owner, ~is_collective[load.kernel], count) > 0
    launches = np.bincount(load.owner, is_collective[load.kernel] * load.counts, count)
    return np.where(mixed, 0.0, launches * gpu["collective.host_launch_s"])


def _tensor_use(load: _Load, costs: Costs) -> Array:
    count, kernel = len(load.busy_share), load.kernel
    cycles = np.bincount(load.owner, costs.core_cycles[kernel] * load.counts, count)
    used = np.bincount(load.owner, (costs.core_cycles * costs.tensor_use)[kernel] * load.counts, count)
    return np.asarray(used / np.maximum(cycles, 1e-9))
