"""The exact time-cost curve of a graph of instructions, by parametric flow.

Every instruction takes a time between its fastest and its slowest and costs a convex, piecewise linear function of it.
The least cost of an iteration that takes time ``T`` is then a convex, piecewise linear function of ``T``, and its slope
is a flow: the dual of the linear programme is a network in which an instruction's arc has the length of a corner of its
hull while it carries a flow between the slopes on both sides of that corner. From the slowest time on, the flow is
increased along arcs of zero reduced cost as far as it goes (its value is the slope of the curve from there), then the
potentials (the times at which instructions begin and end) move by the distances in the residual network, until a path
of fastest instructions carries any flow. All numbers are whole: the result is exact for the rounded input.

References: Fulkerson, Management Science 7 (1961) 167; Kelley, Operations Research 9 (1961) 296; Phillips and
Dessouky, Management Science 24 (1977) 393; Dinitz's blocking flows and Dijkstra's distances inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.plan.exact.dag import InstructionDag
from joulecast.plan.knobs.options import TIME_QUANTUM_S, OptionSet, integer_slopes, quanta

if TYPE_CHECKING:
    from joulecast.plan.exact.parametric_flow_kernels import Network


#: Breakpoints of one call of the inner loop.
_CHUNK = 512
#: Memory for the spans of instructions; of a larger curve only every second, fourth, … breakpoint's are kept [bytes].
_SPAN_BYTES = 256e6


@dataclass(frozen=True, eq=False)
class TimeCostCurve:
    """Breakpoints of the least cost as a function of the iteration's time, from the slowest to the fastest.

    Attributes
    ----------
    time
        Shape ``(b,)``, falling strictly [time quanta].
    slope_w
        Cost saved for each second more, from each breakpoint to the next, faster one, shape ``(b - 1,)`` [W].
    cost_j
        Least cost, shape ``(b,)`` [J].
    kept
        Indices of the breakpoints whose spans are kept, the first and the last among them, shape ``(k,)``: all of them
        unless the graph is very large.
    start, end
        When every instruction may begin and must have ended there, shape ``(k, n)`` [time quanta].
    """

    time: Int
    slope_w: Array
    cost_j: Array
    kept: Int
    start: Int
    end: Int

    @property
    def time_s(self) -> Array:
        """Times of the breakpoints [s]."""
        return np.asarray(self.time * TIME_QUANTUM_S, dtype=np.float64)


def time_cost_curve(dag: InstructionDag, sets: Sequence[OptionSet], kind: Int) -> TimeCostCurve:
    """The whole curve.

    Parameters
    ----------
    dag
        Instructions and who waits for whom.
    sets
        Options of each kind of instruction.
    kind
        Index into ``sets`` for every instruction, shape ``(n,)``.
    """
    from joulecast.plan.exact.parametric_flow_kernels import State, sweep

    n = dag.instructions
    hulls, quantum_w = integer_slopes(sets, np.bincount(kind, minlength=len(sets)).tolist())
    net, weight = _network(dag, sets, hulls, kind)
    potential = _earliest(dag, net)
    state = State(weight, potential, np.zeros(len(weight) // 2, dtype=np.int64), net.slowest.copy())
    store = np.int32 if potential[-1] < 2**31 else np.int64
    times, totals = [], []
    spans = _Spans(2 * n + 2)
    total = 0
    while total >= 0:
        t, f = np.empty(_CHUNK, dtype=np.int64), np.empty(_CHUNK, dtype=np.int64)
        p = np.empty((_CHUNK, 2 * n + 2), dtype=store)
        count, total = sweep(net, state, total, t, f, p)
        times.append(t[:count])
        totals.append(f[:count])
        spans.add(p[:count], last=total < 0)
    time = np.concatenate(times)
    slope_w = np.asarray(np.concatenate(totals)[:-1] * quantum_w, dtype=np.float64)
    least = sum(float(sets[k].cost_j[hulls[k][0][0]]) for k in kind.tolist())
    cost = least + np.concatenate([[0.0], np.cumsum(slope_w * -np.diff(time) * TIME_QUANTUM_S)])
    kept, at_time = spans.joined()
    return TimeCostCurve(time, slope_w, cost, kept, at_time[:, 0 : 2 * n : 2], at_time[:, 1 : 2 * n : 2])


class _Spans:
    """Potentials of breakpoints, thinned to every second one whenever they take too much memory."""

    def __init__(self, nodes: int) -> None:
        self._most = max(int(_SPAN_BYTES / (8 * nodes)), 2)
        self._stride, self._count = 1, 0
        self._rows: list[tuple[Int, Int]] = []

    def add(self, rows: Int, *, last: bool) -> None:
        """The next breakpoints' potentials; of the ``last`` ones the final row is kept in any case."""
        index = np.arange(self._count, self._count + len(rows))
        self._count += len(rows)
        keep = index % self._stride == 0
        keep[-1] |= last
        self._rows.append((index[keep], rows[keep] if not keep.all() else rows))
        while sum(len(i) for i, _ in self._rows) > self._most and self._stride < self._count:
            self._stride *= 2
            final = self._count - 1 if last else -1
            chosen = [(i % self._stride == 0) | (i == final) for i, _ in self._rows]
            self._rows = [(i[c], r[c]) for (i, r), c in zip(self._rows, chosen, strict=True)]

    def joined(self) -> tuple[Int, Int]:
        """Indices of the breakpoints kept, and their potentials."""
        return np.concatenate([i for i, _ in self._rows]), np.concatenate([r for _, r in self._rows])


def _network(
    dag: InstructionDag, sets: Sequence[OptionSet], hulls: list[tuple[Int, Int]], kind: Int
) -> tuple[Network, Int]:
    """Arcs of instructions, then of precedences, of beginnings and of ends; and the weights of their residual arcs."""
    from joulecast.plan.exact.parametric_flow_kernels import FAR, Network

    n = dag.instructions
    k = np.arange(n)
    begins = np.flatnonzero(np.bincount(dag.target, minlength=n) == 0)
    ends = np.flatnonzero(np.bincount(dag.source, minlength=n) == 0)
    tail = np.concatenate([2 * k, 2 * dag.source + 1, np.full(len(begins), 2 * n), 2 * ends + 1])
    head = np.concatenate([2 * k + 1, 2 * dag.target, 2 * begins, np.full(len(ends), 2 * n + 1)])
    offset = np.cumsum([0, *(len(corners) for corners, _ in hulls)])
    time = np.concatenate([sets[i].quanta[corners] for i, (corners, _) in enumerate(hulls)])
    flow = np.concatenate([np.append(0, slopes) for _, slopes in hulls])
    length = np.zeros(len(tail), dtype=np.int64)
    length[:n] = time[offset[:-1]][kind]
    length[n : n + len(dag.source)] = quanta(dag.latency_s)
    from_node, to_node = np.stack([tail, head], 1).ravel(), np.stack([head, tail], 1).ravel()
    weight = np.stack([-length, np.full(len(tail), FAR)], 1).ravel()
    arc = np.argsort(from_node, kind="stable")
    position = np.empty(len(arc), dtype=np.int64)
    position[arc] = np.arange(len(arc))
    first = np.searchsorted(from_node[arc], np.arange(2 * n + 3))
    ranges = offset[:-1][kind], offset[1:][kind] - 1
    return Network(first, to_node[arc], from_node[arc], arc, position, *ranges, time, flow), weight[arc]


def _earliest(dag: InstructionDag, net: Network) -> Int:
    """Earliest time of every node where all instructions take their slowest time; the last two are source and sink."""
    slowest: Int = net.hull_time[net.slowest]
    start = np.array(dag.starts(slowest.tolist(), quanta(dag.latency_s).tolist()), dtype=np.int64)
    end = start + slowest
    return np.append(np.stack([start, end], 1).ravel(), [0, end.max()])
