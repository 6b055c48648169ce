"""Inner loop of the parametric flow; see :mod:`joulecast.plan.exact.parametric_flow` for what it computes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joulecast.arrays import Int
from joulecast.plan.exact.compiled import compiled, copy_into

FAR = 1 << 62


class Network(NamedTuple):
    """A network of instructions and precedences with its residual arcs; the last two nodes are source and sink.

    Residual arcs leave the nodes in the order of ``first``: those of node ``u`` are at positions ``first[u]`` to
    ``first[u + 1]``, and ``position`` finds them by ``arc``: twice the number of the arc, plus one where it runs
    against it. Arcs 0, 1, … are the instructions, as many as ``fastest`` has entries. ``fastest`` and ``slowest`` are
    the ends of an instruction's part of ``hull_time`` and ``hull_flow``, which runs from slow to fast: the length of a
    corner holds for flows from its own to that of the next corner.
    """

    first: Int
    head: Int
    tail: Int
    arc: Int
    position: Int
    slowest: Int
    fastest: Int
    hull_time: Int
    hull_flow: Int


class State(NamedTuple):
    """What moves along the curve.

    ``weight`` of a residual arc is minus the arc's length, or its length where it runs against it, or ``FAR`` where it
    cannot carry anything; its reduced cost is ``potential[head] - potential[tail] + weight``. The flow of an
    instruction lies between those of ``corner`` and the next one; a flow at a corner counts as the beginning of that
    corner's range.
    """

    weight: Int
    potential: Int
    flow: Int
    corner: Int


class Tree(NamedTuple):
    """Distances from the source, the residual arcs by which nodes were reached, a queue and a heap of nodes."""

    distance: Int
    parent: Int
    queue: Int
    key: Int
    node: Int


@compiled
def push(tree: Tree, size: int, new_key: int, new_node: int) -> int:
    """Add an entry to the heap; returns its size."""
    key, node = tree.key, tree.node
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if key[parent] <= new_key:
            break
        key[i], node[i] = key[parent], node[parent]
        i = parent
    key[i], node[i] = new_key, new_node
    return size + 1


@compiled
def pop(tree: Tree, size: int) -> int:
    """Move the smallest entry of the heap behind its end; returns its size."""
    key, node = tree.key, tree.node
    size -= 1
    top_key, top_node, last_key, last_node = key[0], node[0], key[size], node[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and key[child + 1] < key[child]:
            child += 1
        if key[child] >= last_key:
            break
        key[i], node[i] = key[child], node[child]
        i = child
    key[i], node[i] = last_key, last_node
    key[size], node[size] = top_key, top_node
    return size


@compiled
def search(net: Network, state: State, tree: Tree) -> int:
    """Distances from the source by reduced cost, as far as the sink's, which is returned.

    Nodes at the distance reached so far wait in a queue, first come first served, so that paths have few arcs; farther
    ones in a heap. Nodes farther than the sink are left with a distance of at least the sink's.
    """
    first, head, weight, potential = net.first, net.head, state.weight, state.potential
    distance, parent, queue = tree.distance, tree.parent, tree.queue
    source, sink = len(potential) - 2, len(potential) - 1
    distance[:] = FAR
    distance[source] = 0
    queue[0] = source
    begin, end, size, here = 0, 1, 0, 0
    while True:
        if begin == end:
            size = pop(tree, size)
            if tree.key[size] > distance[tree.node[size]]:
                continue
            here = tree.key[size]
            begin, end = 0, 1
            queue[0] = tree.node[size]
        u = queue[begin]
        begin += 1
        if u == sink:
            return here
        base = here - potential[u]
        for i in range(first[u], first[u + 1]):
            if weight[i] == FAR:
                continue
            v = head[i]
            reach = base + potential[v] + weight[i]
            if reach < distance[v]:
                distance[v] = reach
                parent[v] = i
                if reach == here:
                    queue[end] = v
                    end += 1
                else:
                    size = push(tree, size, reach, v)


@compiled
def room_on_path(net: Network, state: State, tree: Tree) -> int:
    """How much fits along the path found, ``FAR`` where nothing limits it."""
    flow, corner, hull_flow, n = state.flow, state.corner, net.hull_flow, len(net.fastest)
    room = FAR
    v = len(state.potential) - 1
    while v != len(state.potential) - 2:
        i = tree.parent[v]
        a = net.arc[i] >> 1
        if net.arc[i] & 1:
            if a < n:
                c = corner[a]
                room = min(room, flow[a] - (hull_flow[c] if flow[a] > hull_flow[c] else hull_flow[c - 1]))
            else:
                room = min(room, flow[a])
        elif a < n and corner[a] < net.fastest[a]:
            room = min(room, hull_flow[corner[a] + 1] - flow[a])
        v = net.tail[i]
    return room


@compiled
def augment(net: Network, state: State, tree: Tree, room: int) -> None:
    """Send ``room`` along the path found, and set the weights of its residual arcs."""
    flow, corner, weight, n = state.flow, state.corner, state.weight, len(net.fastest)
    v = len(state.potential) - 1
    while v != len(state.potential) - 2:
        i = tree.parent[v]
        a = net.arc[i] >> 1
        flow[a] += -room if net.arc[i] & 1 else room
        along, against = net.position[2 * a], net.position[2 * a + 1]
        if a >= n:
            weight[against] = -weight[along] if flow[a] > 0 else FAR
        else:
            c = corner[a]
            while c < net.fastest[a] and flow[a] >= net.hull_flow[c + 1]:
                c += 1
            while flow[a] < net.hull_flow[c]:
                c -= 1
            corner[a] = c
            weight[along] = -net.hull_time[c]
            if flow[a] > net.hull_flow[c]:
                weight[against] = net.hull_time[c]
            else:
                weight[against] = net.hull_time[c - 1] if c > net.slowest[a] else FAR
        v = net.tail[i]


@compiled
def sweep(net: Network, state: State, total: int, times: Int, totals: Int, potentials: Int) -> tuple[int, int]:
    """Breakpoints until the arrays are full or the fastest time is reached.

    ``state`` is left as the next call needs it; ``total`` is the flow so far.

    Returns
    -------
    count, total
        Breakpoints written, and the flow so far; -1 where the last one has the fastest time.
    """
    potential = state.potential
    nodes, entries = len(potential), len(net.head) + 1
    tree = Tree(
        np.zeros(nodes, dtype=np.int64),
        np.zeros(nodes, dtype=np.int64),
        np.zeros(nodes, dtype=np.int64),
        np.zeros(entries, dtype=np.int64),
        np.zeros(entries, dtype=np.int64),
    )
    count = 0
    while True:
        step = search(net, state, tree)
        room = room_on_path(net, state, tree)
        if step > 0:
            if count == len(times):
                return count, total
            times[count], totals[count] = potential[-1], total
            copy_into(potentials[count], potential)
            count += 1
            for v in range(nodes):
                potential[v] -= min(tree.distance[v], step)
        if room == FAR:
            if count == len(times):  # the next call finds the same path again
                return count, total
            times[count], totals[count] = potential[-1], total
            copy_into(potentials[count], potential)
            return count + 1, -1
        augment(net, state, tree, room)
        total += room
