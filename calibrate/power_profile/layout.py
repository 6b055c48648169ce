"""Which unknown power each moment of a series belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.calibrate.power_profile.protocol import Run

#: Label of time that no unknown describes, such as runs that are not golden.
OUTSIDE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The unknown powers of a profile, each constant over one bin.

    The bins stand in this order: ``run``, ``cycle``, ``rest``.

    Attributes
    ----------
    run_edges
        Shape (r + 1,): positions in the run [kernels since its start]; what happens once per run.
    cycle_edges
        Shape (c + 1,) or empty: positions in a pass [kernels since the pass began]; every pass after
        ``run_edges[-1]`` is taken to be like every other. Empty where ``run_edges`` covers the whole run.
    rest_edges_s
        Shape (q,): times since the end of a run; the last bin has no end.
    kernels
        Kernels of a pass.
    """

    run_edges: Array
    cycle_edges: Array
    rest_edges_s: Array
    kernels: int

    @property
    def run_bins(self) -> slice:
        """Of the unknowns, those of the run."""
        return slice(0, len(self.run_edges) - 1)

    @property
    def cycle_bins(self) -> slice:
        """Of the unknowns, those of a pass."""
        start = len(self.run_edges) - 1
        return slice(start, start + max(len(self.cycle_edges) - 1, 0))

    @property
    def rest_bins(self) -> slice:
        """Of the unknowns, those after a run; the last is the resting card."""
        start = self.cycle_bins.stop
        return slice(start, start + len(self.rest_edges_s))

    @property
    def size(self) -> int:
        """Number of unknowns."""
        return int(self.rest_bins.stop)

    def groups(self) -> tuple[slice, ...]:
        """Stretches of unknowns that follow each other in time without a jump between them."""
        return tuple(s for s in (self.run_bins, self.cycle_bins, self.rest_bins) if s.stop > s.start)

    def segments(self, runs: Sequence[Run], keep: Bool) -> tuple[Array, Int]:
        """Cut the time of a series into pieces that each belong to one unknown.

        Parameters
        ----------
        runs
            In their order.
        keep
            Shape (runs,): runs whose pieces count; those of the others are labelled :data:`OUTSIDE`.

        Returns
        -------
        tuple
            Shape (n + 1,) edges in GPU time and (n,) labels; time before the first edge and after the last is rest.
        """
        edges: list[Array] = []
        labels: list[Int] = []
        for index, run in enumerate(runs):
            until = runs[index + 1].times_s[0] if index + 1 < len(runs) else np.inf
            piece, label = self._run_segments(run)
            rest = run.times_s[-1] + self.rest_edges_s
            inside = rest < until
            edges.extend([piece, rest[inside]])
            labels.extend(
                [label if keep[index] else np.full(len(label), OUTSIDE), self.rest_bins.start + np.flatnonzero(inside)]
            )
        # The last piece of rest ends where time ends; before the first run the card rests.
        return np.concatenate([[-np.inf], *edges, [np.inf]]), np.concatenate([[self.size - 1], *labels]).astype(
            np.int64
        )

    def _run_segments(self, run: Run) -> tuple[Array, Int]:
        """Starts and labels of the pieces of one run."""
        total = run.steps[-1]
        start = self.run_edges[:-1]
        label = np.arange(len(start))
        once = start < total
        starts, names = [start[once]], [label[once]]
        if len(self.cycle_edges):
            begins = np.arange(self.run_edges[-1], total - 1e-9, self.kernels)
            cycle = begins[:, None] + self.cycle_edges[None, :-1]
            names.append(np.tile(self.cycle_bins.start + np.arange(cycle.shape[1]), len(begins)))
            starts.append(cycle.ravel())
        return run.time_at(np.concatenate(starts)), np.concatenate(names)


def even_edges(start: float, stop: float, width: float) -> Array:
    """Edges of equal bins, at least one, none wider than asked for.

    >>> even_edges(0.0, 1.0, 0.4)
    array([0.        , 0.33333333, 0.66666667, 1.        ])
    """
    return np.linspace(start, stop, max(int(np.ceil((stop - start) / width - 1e-9)), 1) + 1)


#: The first bin of the time after a run is this part of the shortest rest: power falls within milliseconds.
PART_OF_REST = 48


def rest_edges(rest_s: float) -> Array:
    """Bins of the time after a run, each twice as long as the one before, until the card is taken to rest.

    >>> rest_edges(0.048).tolist()
    [0.0, 0.001, 0.003, 0.007, 0.015, 0.031, 0.063]
    """
    edges, width = [0.0], rest_s / PART_OF_REST
    while edges[-1] < rest_s:
        edges.append(round(edges[-1] + width, 12))
        width *= 2
    return np.array(edges)
