"""Power over the time of an iteration: of a GPU, and of groups of GPUs that run in step.

Ranks of an iteration run in step: when all pipeline stages compute at once, their power adds up, and a supply must hold
the sum. Powers are means over steps of at most ten milliseconds, about what a supply's capacitors and a node's power
sensor average over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from joulecast.simulator.fluid import FluidResult

Float = NDArray[np.float64]
Int = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PowerOverTime:
    """Power of one GPU of each pipeline stage over the iterations that count.

    Attributes
    ----------
    step_s
        Length of a step [s].
    power_w
        Mean power in each step, shape ``(steps, stages)`` [W].
    """

    step_s: float
    power_w: Float

    def group_w(self, gpus_of_stage: Int) -> Float:
        """Power of groups of GPUs in step, shape ``(steps, groups)`` [W].

        ``gpus_of_stage`` counts the GPUs of every stage in each group, shape ``(groups, stages)``.
        """
        return np.asarray(self.power_w @ gpus_of_stage.T)


def power_over_time(result: FluidResult, first: int) -> PowerOverTime:
    """Steps that lie within the iterations from number ``first`` on."""
    ends, tick = result.iteration_end_s.max(axis=1), result.tick_s
    begin = int(np.ceil(ends[first - 1] / tick - 1e-9)) if first else 0
    finish = max(int(np.floor(ends[-1] / tick + 1e-9)), begin + 1)
    return PowerOverTime(tick, result.power_w[begin:finish])


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
    return np.unique(np.maximum(held, 0), axis=0)


@dataclass(frozen=True, slots=True)
class Spread:
    """Power of one thing over time [W]: mean, percentiles and the highest step."""

    mean_w: float
    p50_w: float
    p95_w: float
    p99_w: float
    peak_w: float


def spread_of(power_w: Float) -> Spread:
    """Spread of the group with the highest peak; ``power_w`` has shape ``(steps, groups)`` [W]."""
    highest = power_w[:, int(power_w.max(axis=0).argmax())]
    p50, p95, p99 = np.percentile(highest, (50.0, 95.0, 99.0)).tolist()
    return Spread(float(highest.mean()), p50, p95, p99, float(highest.max()))
