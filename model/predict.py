"""Forecasts of single kernels and short sequences of them, run back to back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.model.forecasts import Changes, Forecast, changes_among
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.lowering import Lowering, lower
from joulecast.model.kernels.operators import Operator
from joulecast.model.power.component_power import check_limits
from joulecast.model.power.kernel_power import at_clock
from joulecast.model.repeated_work import LONG_S, Load, Work, evaluate, load_of
from joulecast.model.uncertainty import DIRECTIONS, composed_spreads, deviations, spread_of

#: Every so many steps of the clock the uncertainty is evaluated.
COARSE = 8


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
    load = load_of(work, limit, settle_s, window_s)
    load = replace(load, clock_mhz=clock_mhz, component_limits_w=component_limits_w)
    costs = lower(load.operators, gpu)
    forecast = evaluate(load, costs, gpu, gpu.clocks_mhz)
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
    load = replace(load_of(work, gpu.own_limit_w(), settle_s, window_s), clock_mhz=clock_mhz)
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
    load = Load(
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
    load: Load, gpu: GpuModel, deviated: Sequence[Mapping[str, float]], stretch: Array | None = None
) -> Changes:
    coarse, lowering = coarse_clocks(gpu.clocks_mhz), Lowering(load.operators, gpu.device)
    varied = [gpu.with_values(values) for values in deviated]
    loads = [load] * len(varied) if stretch is None else [replace(load, longer=np.exp(of)) for of in stretch]
    found = [
        evaluate(each, lowering(one), one, coarse, with_parts=False)
        for each, one in zip((load, *loads), (gpu, *varied), strict=True)
    ]
    return changes_among(found)


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
        self._load = load_of(work, 0.0, settle_s, window_s)
        self._lower: Callable[[GpuModel], Costs] = lowering or (lambda gpu: lower(self._load.operators, gpu))

    def __call__(self, gpu: GpuModel) -> Array:
        """Time of each piece on ``gpu``, shape ``(n,)`` [s]."""
        load = replace(self._load, limit_w=gpu.own_limit_w())
        return evaluate(load, self._lower(gpu), gpu, coarse_clocks(gpu.clocks_mhz), with_parts=False).time_s


def coarse_clocks(clocks: Array) -> Array:
    """Every so many of the clocks, and the lowest and the highest."""
    places = np.arange((len(clocks) - 1) % COARSE, len(clocks), COARSE)
    return np.asarray(clocks[places if places[0] == 0 else np.append(0, places)])
