"""Time and power of what runs on a simulated board, at every clock: from the true numbers of the card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective, Operator
from joulecast.model.power.kernel_power import at_clock, clock_tree_power_w
from joulecast.model.power.limits import hold_at_peak

#: Energy of a kernel by what an MI300 reports apart: compute dies, I/O dies, memory stacks.
COMPONENT_GROUPS = {
    "xcd": ("clock", "sm", "tensor", "vector", "onchip"),
    "aid": ("link",),
    "hbm": ("hbm",),
}


@dataclass(frozen=True, slots=True)
class WorkTable:
    """One repetition of a piece of work at each clock of the card, lists of length ``c``.

    Attributes
    ----------
    time_s
        Time of a repetition [s].
    dynamic_w
        Power beside static power and leakage [W].
    groups_w
        The same by :data:`COMPONENT_GROUPS`, in their order [W].
    tensor_use
        Share of the dense tensor rate that it uses at any clock, for the second limiter.
    skipping
        Whether the instant limit slows it.
    """

    time_s: list[float]
    dynamic_w: list[float]
    groups_w: list[tuple[float, ...]]
    tensor_use: float
    skipping: list[bool]


class SimulatedWork:
    """Operators that repeat in turn on one GPU; no operators is idling.

    Parameters
    ----------
    operators, counts
        As :class:`joulecast.model.repeated_work.Work` has them.
    gpu
        The true numbers of the card.

    Raises
    ------
    InputError
        An operator that the GPU's description does not know.
    """

    def __init__(self, operators: Sequence[Operator], counts: Sequence[float], gpu: GpuModel) -> None:
        self.operators, self.counts = tuple(operators), tuple(counts) or (1.0,) * len(operators)
        self._gpu = gpu
        self._tables: dict[float, WorkTable] = {}
        self._costs = lower(self.operators, gpu) if self.operators else None

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return self._costs is None

    def table(self, limit_w: float) -> WorkTable:
        """Time and power at every clock under a power limit."""
        if limit_w not in self._tables:
            self._tables[limit_w] = self._idle() if self._costs is None else self._busy(self._costs, limit_w)
        return self._tables[limit_w]

    def _idle(self) -> WorkTable:
        tree = clock_tree_power_w(self._gpu.clocks_mhz, self._gpu).tolist()
        count = len(tree)
        return WorkTable([1.0] * count, tree, [(w, 0.0, 0.0) for w in tree], 0.0, [False] * count)

    def _busy(self, costs: Costs, limit_w: float) -> WorkTable:
        gpu = self._gpu
        clocks, counts = gpu.clocks_mhz, np.array(self.counts, dtype=np.float64)
        plain = at_clock(costs, clocks[:, None], gpu)
        times = hold_at_peak(plain, clocks, limit_w * gpu["governor.peak_share"], gpu)
        time = times.time_s @ counts
        groups = [
            sum(np.broadcast_to(times.components_j[c], times.time_s.shape) @ counts for c in names)
            for names in COMPONENT_GROUPS.values()
        ]
        collectives = sum(c for o, c in zip(self.operators, self.counts, strict=True) if isinstance(o, Collective))
        only_collectives = all(isinstance(o, Collective) for o in self.operators)
        whole = np.maximum(time, collectives * gpu["collective.host_launch_s"] if only_collectives else 0.0)
        groups[0] = groups[0] + (whole - time) * clock_tree_power_w(clocks, gpu)
        cycles = costs.core_cycles * counts
        use = float((cycles * costs.tensor_use).sum() / max(float(cycles.sum()), 1e-9))
        power = np.array([np.asarray(g) / whole for g in groups])
        longest = np.max(times.time_s / plain.time_s, axis=1)
        return WorkTable(
            whole.tolist(),
            power.sum(axis=0).tolist(),
            [tuple(row) for row in power.T.tolist()],
            use,
            [ratio > 1.0 + 1e-9 for ratio in longest.tolist()],
        )
