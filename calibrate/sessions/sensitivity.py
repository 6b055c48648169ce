"""How time and energy of work depend on each parameter, at the clock at which a card is expected to run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.relower import Relowering
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.remembered import Recorder
from joulecast.model.power.kernel_power import at_clock, idle_power_w
from joulecast.model.repeated_work import Work

#: Step of a numerical slope in prior standard deviations: wide enough to look across the kinks of tile choices.
STEP = 0.01
#: Relative step of the clock.
CLOCK_STEP = 1e-3


@dataclass(frozen=True)
class Sensitivity:
    """Slopes of ``n`` pieces of work along ``p`` parameters, each in units of its prior standard deviation.

    Attributes
    ----------
    names
        The parameters.
    time, energy
        Slopes of the logarithms of time and energy of one repetition at a fixed clock, shape ``(n, p)``.
    time_by_clock, energy_by_clock
        Slopes of the same along the logarithm of the clock, shape ``(n,)``.
    flowing_share
        Share of the energy that flows whatever the time (static and clock tree), shape ``(n,)``.
    memory_share, core_share
        Shares of the energy that the memory draws, and that the chip does beyond the static part, shape ``(n,)``.
    time_s, power_w
        What is expected at the clock, shape ``(n,)``.
    """

    names: tuple[str, ...]
    time: Array
    energy: Array
    time_by_clock: Array
    energy_by_clock: Array
    flowing_share: Array
    memory_share: Array
    core_share: Array
    time_s: Array
    power_w: Array

    def take(self, rows: slice) -> Sensitivity:
        """Some of the pieces."""
        arrays = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "names"}
        return replace(self, **arrays)

    @property
    def power_by_clock(self) -> Array:
        """Slope of the logarithm of power along that of the clock, shape ``(n,)``."""
        return self.energy_by_clock - self.time_by_clock


@dataclass(frozen=True)
class _Pieces:
    """Work as arrays: ``m`` operators of ``n`` pieces."""

    owner: Int
    counts: Array
    busy_share: Array
    lowering: Relowering

    def totals(self, gpu: GpuModel, clock_mhz: Array) -> tuple[Array, Array, Array, Array, Array]:
        """Time, energy, and its parts that flow whatever the time, that the memory and that the chip draw, of each."""
        count = len(self.busy_share)
        times = at_clock(self.lowering(gpu), clock_mhz[self.owner], gpu)

        def total(column: Array) -> Array:
            return np.asarray(np.bincount(self.owner, column * self.counts, count))

        busy, spent = total(times.time_s), total(times.energy_j)
        flowing = total(times.components_j["static"] + times.components_j["clock"])
        outside = sum(times.components_j[name] for name in ("static", "hbm", "link"))
        runs = busy > 0
        whole = np.where(runs, busy / np.where(runs, self.busy_share, 1.0), 1.0)
        resting = (whole - busy) * idle_power_w(clock_mhz, gpu)
        core = spent - total(np.asarray(outside))
        return whole, spent + resting, flowing + resting, total(times.components_j["hbm"]), core


def sensitivity(
    work: Sequence[Work],
    clock_mhz: Array,
    gpu: GpuModel,
    priors: Mapping[str, Prior],
) -> Sensitivity:
    """Slopes of time and energy of work along every parameter, by differences.

    Parameters
    ----------
    work
        ``n`` pieces; one without operators is a card at rest for a second.
    clock_mhz
        At which each runs, shape ``(n,)``.
    gpu
        Where the slopes are taken: the priors, or a fit so far.
    priors
        Of ``p`` parameters; their standard deviations are the slopes' units.
    """
    pieces = _Pieces(
        np.repeat(np.arange(len(work), dtype=np.int64), [len(piece.operators) for piece in work]),
        np.array([c for piece in work for c in (piece.counts or (1.0,) * len(piece.operators))], dtype=np.float64),
        np.array([piece.busy_share for piece in work], dtype=np.float64),
        Relowering([operator for piece in work for operator in piece.operators]),
    )
    recorder = Recorder(gpu.parameters)
    here = pieces.totals(replace(gpu, parameters=recorder), clock_mhz)
    slopes = np.zeros((2, len(work), len(priors)))
    for place, (name, prior) in enumerate(priors.items()):
        if name not in recorder.read:
            continue
        moved = gpu.with_values({name: gpu[name] + STEP * prior.sd})
        slopes[..., place] = _slope(pieces.totals(moved, clock_mhz), here, STEP)
    by_clock = _slope(pieces.totals(gpu, clock_mhz * (1.0 + CLOCK_STEP)), here, CLOCK_STEP)
    time_s, energy_j, *parts_j = here
    flowing, memory, core = (part / energy_j for part in parts_j)
    return Sensitivity(
        tuple(priors), slopes[0], slopes[1], by_clock[0], by_clock[1], flowing, memory, core, time_s, energy_j / time_s
    )


def _slope(there: tuple[Array, ...], here: tuple[Array, ...], step: float) -> Array:
    """Slopes of the logarithms of time and energy, shape ``(2, n)``."""
    return np.array([np.log(there[i] / here[i]) / step for i in (0, 1)])
