"""Many ways to run the same launches, scored at once: every combination of tiles at every clock.

For one order of launches, tiles and clocks only change how long each kernel takes. They are columns of the arrays with
which :mod:`joulecast.simulator.instructions.overlap` walks through both streams, so that one walk scores thousands of
combinations.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.model.framework.launches import Launch
from joulecast.model.framework.tiling import LINEAR, is_meant, tiled_operator
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Operator, RowTile, Tile
from joulecast.model.power.contention import Alone
from joulecast.model.power.kernel_power import idle_power_w
from joulecast.simulator.instructions.overlap import follow, is_overlapped
from joulecast.simulator.instructions.overlap_steady import contended_stack, in_columns_of, side_by_side
from joulecast.simulator.instructions.tables import Kernels, kernels_of

#: Tiles to choose from by the operator's name; ``None`` is the library's.
TileChoices = Mapping[str, Sequence[Tile | RowTile | None]]

#: Columns of a walk: few enough for the caches.
COLUMNS = 4096


@dataclass(frozen=True, eq=False)
class Scores:
    """Time and energy on one GPU of ``k`` combinations of tiles at ``c`` clocks, shape ``(k, c)`` [s], [J]."""

    time_s: Array
    energy_j: Array


class TiledKernels:
    """Kernels of launches with every tile that they may have, evaluated once at every clock.

    Parameters
    ----------
    programs
        Lists of launches, with the library's tiles.
    choices
        Tiles to choose from by operator, as the names of a plan's ``[implementation] tiles``.
    clocks
        Which of the GPU's clocks, ascending; what a kernel takes at one of them does not depend on the others.
    peak_w
        The board's instant limit [W].
    component_limits_w
        Limits of parts of the GPU, by name [W].
    """

    def __init__(
        self,
        programs: Sequence[Sequence[Launch]],
        choices: TileChoices,
        gpu: GpuModel,
        clocks: Int,
        peak_w: float | None = None,
        component_limits_w: Mapping[str, float] | None = None,
    ) -> None:
        self.gpu, self.names = gpu, tuple(choices)
        self._variants: dict[Operator, tuple[str, tuple[Operator, ...]]] = {}
        for operator in dict.fromkeys(launch.operator for launches in programs for launch in launches):
            name = governing_name(operator, self.names)
            tiles: Sequence[Tile | RowTile | None] = choices[name] if name else (None,)
            found = tuple(operator if tile is None else tiled_operator(operator, tile) for tile in tiles)
            self._variants[operator] = (name, found)
        every = dict.fromkeys(v for _, variants in self._variants.values() for v in variants)
        at_all = kernels_of([], gpu.clocks_mhz, gpu, peak_w, tuple(every), component_limits_w)
        self.kernels: Kernels = at_all.at(clocks)
        self._idle_w = idle_power_w(self.kernels.clocks_mhz, gpu)

    def governed(self, launches: Sequence[Launch]) -> tuple[str, ...]:
        """Names among the choices that mean a kernel of these launches."""
        meant = {self._variants[launch.operator][0] for launch in launches}
        return tuple(name for name in self.names if name in meant)

    def rows(self, launches: Sequence[Launch], combinations: Int) -> Int:
        """Kernel that each launch runs in each combination, shape ``(launches, k)``.

        ``combinations`` has the index of the choice for every name, shape ``(k, names)``.
        """
        place = {name: i for i, name in enumerate(self.names)}
        known: dict[int, Int] = {}
        for launch in launches:
            if id(launch) not in known:
                name, variants = self._variants[launch.operator]
                kernels = np.array([self.kernels.row[v] for v in variants], dtype=np.int64)
                chosen = combinations[:, place[name]] if name else np.zeros(len(combinations), dtype=np.int64)
                known[id(launch)] = kernels[chosen]
        return np.array([known[id(launch)] for launch in launches], dtype=np.int64)

    def runs(self, launches: Sequence[Launch], combination: Int) -> Array:
        """How often launches run each kernel in one combination of tiles, shape ``(kernels,)``."""
        repeat = np.array([launch.repeat for launch in launches], dtype=np.float64)
        return np.asarray(self._count(self.rows(launches, combination[None]), repeat)[0])

    def score(self, launches: Sequence[Launch], combinations: Int) -> Scores:
        """Time and energy of launches in every combination of tiles at every clock."""
        rows, clocks = self.rows(launches, combinations), len(self.kernels.clocks_mhz)
        size = max(1, COLUMNS // clocks)
        parts = [self._score(launches, rows[:, i : i + size]) for i in range(0, len(combinations), size)]
        return Scores(np.concatenate([p.time_s for p in parts]), np.concatenate([p.energy_j for p in parts]))

    def _score(self, launches: Sequence[Launch], rows: Int) -> Scores:
        times = self.kernels.times
        repeat = np.array([launch.repeat for launch in launches], dtype=np.float64)
        serial = self._sum(times.time_s, rows, repeat)
        energy = self._sum(times.energy_j, rows, repeat)
        if not is_overlapped(launches):
            return Scores(serial, energy)
        shape = serial.shape
        alone = self._alone(rows)
        duration = follow(launches, contended_stack(launches, alone, self.gpu))[0].reshape(shape)
        # What both streams' kernels draw without doing anything flows once.
        return Scores(duration, energy + (duration - serial) * self._idle_w)

    def stretches(
        self, launches: Sequence[Launch], combination: Int, deviations: Sequence[Mapping[str, float]]
    ) -> Array:
        """Change of the logarithm of the launches' time at each deviation of what slows kernels beside each other.

        Returns
        -------
        ndarray
            Shape ``(k, c)`` for ``k`` deviations; zero where nothing runs beside anything.
        """
        copies, clocks = 1 + len(deviations), len(self.kernels.clocks_mhz)
        if not is_overlapped(launches):
            return np.zeros((len(deviations), clocks))
        alone = side_by_side([self._alone(self.rows(launches, combination[None]))] * copies)
        taken = contended_stack(launches, alone, in_columns_of(self.gpu, deviations, clocks))
        length = np.log(follow(launches, taken)[0]).reshape(copies, clocks)
        return np.asarray(length[1:] - length[0])

    def _sum(self, values: Array, rows: Int, repeat: Array) -> Array:
        """Sum over launches of a kernel's values of shape ``(c, kernels)``, as ``(k, c)``."""
        return np.asarray(self._count(rows, repeat) @ values.T)

    def _count(self, rows: Int, repeat: Array) -> Array:
        """How often each kernel runs in each combination, shape ``(k, kernels)``."""
        count = np.zeros((rows.shape[1], len(self.kernels.operators)))
        for row, times in zip(rows, repeat, strict=True):
            count[np.arange(len(row)), row] += times
        return count

    def _alone(self, rows: Int) -> Alone:
        """Kernels at every pair of combination and clock, shape ``(launches, k·c)``."""
        distinct, back = np.unique(rows, axis=0, return_inverse=True)
        one = self.kernels.alone(distinct.ravel().tolist())
        columns = (getattr(one, field.name).reshape(len(distinct), -1) for field in fields(Alone))
        return Alone(*(values[back.ravel()] for values in columns))


def governing_name(operator: Operator, names: Sequence[str]) -> str:
    """The name whose tile an operator has: the longest that means it; empty without any."""
    meant = [name for name in names if is_meant(operator, name, None)]
    return max(meant, key=lambda name: (name != LINEAR, len(name)), default="")


def every_combination(choices: TileChoices, names: Sequence[str]) -> Int:
    """Indices of all combinations of the choices for ``names``; 0 for the others, shape ``(k, len(choices))``."""
    ranges = [range(len(choices[name]) if name in names else 1) for name in choices]
    found = list(itertools.product(*ranges))
    return np.array(found, dtype=np.int64).reshape(len(found), len(choices))
