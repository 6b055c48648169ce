"""Power over the time of an iteration: of a GPU, and of groups of GPUs that run in step.

Ranks of an iteration run in step: when all pipeline stages compute at once, their power adds up, and a supply must hold
the sum. Powers are means over steps of at most ten milliseconds, about what a supply's capacitors and a node's power
sensor average over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Int

if TYPE_CHECKING:
    from joulecast.simulator.fluid.simulation import FluidResult
    from joulecast.simulator.fluid.steady_state import SteadyState


#: Step where it can be chosen [s], and the least and the most steps.
STEP_S, LEAST_STEPS, MOST_STEPS = 10e-3, 60, 20_000


@dataclass(frozen=True, eq=False)
class PowerOverTime:
    """Power of one GPU of each pipeline stage over the iterations that count.

    Attributes
    ----------
    step_s
        Length of a step [s].
    power_w
        Mean power in each step, shape ``(steps, stages)`` [W].
    iteration_w
        Mean power of the iterations where steps do not fill them, shape ``(stages,)`` [W].
    """

    step_s: float
    power_w: Array
    iteration_w: Array | None = None

    @property
    def mean(self) -> PowerOverTime:
        """The mean power of the iterations, as one step."""
        mean = self.power_w.mean(axis=0) if self.iteration_w is None else self.iteration_w
        return PowerOverTime(self.step_s * len(self.power_w), mean[None, :])

    def group_w(self, gpus_of_stage: Int) -> Array:
        """Power of groups of GPUs in step, shape ``(steps, groups)`` [W].

        ``gpus_of_stage`` counts the GPUs of every stage in each group, shape ``(groups, stages)``.
        """
        return np.asarray(self.power_w @ gpus_of_stage.T)


def power_of_iterations(steady: SteadyState) -> PowerOverTime:
    """Power over the iterations that count."""
    prepared, result = steady.prepared, steady.result
    if not prepared.locked:
        mean = steady.energy_j() / steady.step_time_s
        return replace(power_by_ticks(result, steady.warm_up), iteration_w=mean)
    clocks = result.clock_index[0]
    waits, instants, beyond = prepared.wait_power_w[clocks].tolist(), [], []
    for rank, (table, run, clock) in enumerate(zip(prepared.tables, prepared.program.ranks, clocks, strict=True)):
        order, start, end = list(run.order), result.start_s[rank], result.end_s[rank]
        # In what an instruction takes beyond its duration the rank waits.
        each = table.energy_j[order, clock] - table.duration_s[order, clock] * waits[rank]
        instants.append((start.ravel(), end.ravel()))
        beyond.append(np.tile(each, len(start)))
    ends = result.iteration_end_s.max(axis=1)
    return power_of_instructions(float(ends[steady.warm_up - 1]), float(ends[-1]), instants, beyond, waits)


def power_by_ticks(result: FluidResult, first: int) -> PowerOverTime:
    """Ticks of the governor that lie within the iterations from number ``first`` on."""
    ends, tick = result.iteration_end_s.max(axis=1), result.tick_s
    begin = int(np.ceil(ends[first - 1] / tick - 1e-9)) if first else 0
    finish = max(int(np.floor(ends[-1] / tick + 1e-9)), begin + 1)
    return PowerOverTime(tick, result.power_w[begin:finish])


def power_of_instructions(
    begin_s: float,
    finish_s: float,
    instants_s: Sequence[tuple[Array, Array]],
    beyond_j: Sequence[Array],
    wait_power_w: Sequence[float],
) -> PowerOverTime:
    """Power from one instant to another, where each instruction draws the same from its start to its end.

    Parameters
    ----------
    instants_s
        Per rank the starts and the ends of its instructions in their order, shapes ``(instructions,)`` [s].
    beyond_j
        Per rank the energy of each of them beyond that of waiting as long, shape ``(instructions,)`` [J].
    wait_power_w
        Per rank, while it waits [W].
    """
    steps = min(max(round((finish_s - begin_s) / STEP_S), LEAST_STEPS), MOST_STEPS)
    edges = np.linspace(begin_s, finish_s, steps + 1)
    power = np.zeros((steps, len(beyond_j)))
    for rank, ((start, end), beyond, wait) in enumerate(zip(instants_s, beyond_j, wait_power_w, strict=True)):
        spent = beyond.cumsum()
        instants = np.stack([start, end], axis=1).ravel()
        above = np.stack([np.append(0.0, spent[:-1]), spent], axis=1).ravel()
        power[:, rank] = np.diff(np.interp(edges, instants, above)) / np.diff(edges) + wait
    return PowerOverTime((finish_s - begin_s) / steps, power)


def groups_of_stages(stages: int, gpus_per_stage: int, group: int) -> Int:
    """Distinct groups of ``group`` neighbouring GPUs: how many GPUs of each stage they hold, shape ``(n, stages)``.

    GPUs are numbered as Megatron does it: tensor-parallel ranks next to each other, then data-parallel replicas, then
    pipeline stages. The last group may be smaller.

    >>> groups_of_stages(2, 6, 4).tolist()
    [[0, 4], [2, 2], [4, 0]]
    """
    total = stages * gpus_per_stage
    begin = np.arange(0, total, group)[:, None]
    end = np.minimum(begin + group, total)
    stage = np.arange(stages)[None, :] * gpus_per_stage
    held = np.minimum(end, stage + gpus_per_stage) - np.maximum(begin, stage)
    return np.array(sorted(set(map(tuple, np.maximum(held, 0).tolist()))))


@dataclass(frozen=True, slots=True)
class Spread:
    """Power of one thing over time [W]: mean, percentiles and the highest step.

    ``peak_w_p05`` to ``peak_w_p95`` is the 90 % interval of the highest step; ``None`` where nothing is said of it.
    """

    mean_w: float
    p50_w: float
    p95_w: float
    p99_w: float
    peak_w: float
    peak_w_p05: float | None = None
    peak_w_p95: float | None = None


def spread_of(power_w: Array, mean_w: Array) -> Spread:
    """Spread of the group with the highest peak.

    ``power_w`` has shape ``(steps, groups)``, their means ``mean_w`` ``(1, groups)`` [W].
    """
    highest = int(power_w.max(axis=0).argmax())
    ordered = np.sort(power_w[:, highest])
    last = len(ordered) - 1
    # As np.percentile, which would import numpy.ma: it costs more than all the rest.
    p50, p95, p99 = np.interp([0.5 * last, 0.95 * last, 0.99 * last], np.arange(last + 1), ordered).tolist()
    return Spread(float(mean_w[0, highest]), p50, p95, p99, float(ordered[-1]))
