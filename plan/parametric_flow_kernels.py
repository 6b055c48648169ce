"""Inner loop of the parametric flow; see :mod:`joulecast.plan.parametric_flow` for what it computes.

Residual arcs leave the nodes in the order of ``first``: those of node ``u`` are at positions ``first[u]`` to
``first[u + 1]``. Each has a ``head``, an ``arc`` (twice the number of the arc, plus one where it runs against it) and a
``weight``: minus the arc's length, or its length where it runs against it, or ``FAR`` where it cannot carry anything.
Its reduced cost is ``potential[head] - potential[tail] + weight``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joulecast.plan.compiled import compiled

Int = NDArray[np.int64]

FAR = 1 << 62


@compiled
def push(key: Int, node: Int, size: int, new_key: int, new_node: int) -> int:
    """Add an entry to a binary heap; returns its size."""
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
def pop(key: Int, node: Int, size: int) -> int:
    """Move the smallest entry of a heap behind its end; returns its size."""
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
def search(
    source: int,
    sink: int,
    first: Int,
    head: Int,
    weight: Int,
    potential: Int,
    distance: Int,
    parent: Int,
    queue: Int,
    key: Int,
    node: Int,
) -> int:
    """Distances from the source by reduced cost, as far as the sink's, which is returned.

    Nodes at the distance reached so far wait in a queue, first come first served, so that paths have few arcs; farther
    ones in a heap. ``parent`` is the position of the residual arc by which a node was reached. Nodes farther than the
    sink are left with a distance of at least the sink's.
    """
    distance[:] = FAR
    distance[source] = 0
    queue[0] = source
    begin, end, size, here = 0, 1, 0, 0
    while True:
        if begin == end:
            if size == 0:
                return FAR
            size = pop(key, node, size)
            if key[size] > distance[node[size]]:
                continue
            here = key[size]
            begin, end = 0, 1
            queue[0] = node[size]
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
                    size = push(key, node, size, reach, v)


@compiled
def augment(
    source: int,
    sink: int,
    n: int,
    head: Int,
    tail: Int,
    arc: Int,
    position: Int,
    weight: Int,
    parent: Int,
    hull_first: Int,
    hull_last: Int,
    hull_time: Int,
    hull_flow: Int,
    flow: Int,
    corner: Int,
) -> int:
    """Send as much as fits along the path of ``parent``; returns it, or -1 where nothing limits it.

    Arcs below ``n`` are instructions: their flow lies between those of ``corner`` and the next one, and a flow at a
    corner counts as the beginning of that corner's range.
    """
    room = FAR
    v = sink
    while v != source:
        i = parent[v]
        a = arc[i] >> 1
        if arc[i] & 1:
            if a < n and flow[a] == hull_flow[corner[a]]:
                room = min(room, flow[a] - hull_flow[corner[a] - 1])
            elif a < n:
                room = min(room, flow[a] - hull_flow[corner[a]])
            else:
                room = min(room, flow[a])
        elif a < n and corner[a] < hull_last[a]:
            room = min(room, hull_flow[corner[a] + 1] - flow[a])
        v = tail[i]
    if room == FAR:
        return -1
    v = sink
    while v != source:
        i = parent[v]
        a = arc[i] >> 1
        flow[a] += -room if arc[i] & 1 else room
        v = tail[i]
        if a >= n:
            weight[position[2 * a + 1]] = weight[position[2 * a]] * -1 if flow[a] > 0 else FAR
            continue
        c = corner[a]
        while c < hull_last[a] and flow[a] >= hull_flow[c + 1]:
            c += 1
        while flow[a] < hull_flow[c]:
            c -= 1
        corner[a] = c
        weight[position[2 * a]] = -hull_time[c]
        if flow[a] > hull_flow[c]:
            weight[position[2 * a + 1]] = hull_time[c]
        else:
            weight[position[2 * a + 1]] = hull_time[c - 1] if c > hull_first[a] else FAR
    return room


@compiled
def sweep(
    n: int,
    first: Int,
    head: Int,
    tail: Int,
    arc: Int,
    position: Int,
    hull_first: Int,
    hull_last: Int,
    hull_time: Int,
    hull_flow: Int,
    weight: Int,
    potential: Int,
    flow: Int,
    corner: Int,
    total: int,
    times: Int,
    totals: Int,
    potentials: Int,
) -> tuple[int, int]:
    """Breakpoints until the arrays are full or the fastest time is reached.

    ``weight``, ``potential``, ``flow`` and ``corner`` are the state, left as the next call needs them; ``total`` is the
    flow so far.

    Returns
    -------
    count, total
        Breakpoints written, and the flow so far; -1 where the last one has the fastest time.
    """
    source, sink, nodes = 2 * n, 2 * n + 1, len(potential)
    distance, parent = np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
    queue = np.zeros(nodes, dtype=np.int64)
    key, node = np.zeros(len(head) + 1, dtype=np.int64), np.zeros(len(head) + 1, dtype=np.int64)
    count = 0
    while True:
        step = search(source, sink, first, head, weight, potential, distance, parent, queue, key, node)
        if step > 0:
            if count == len(times):
                return count, total
            times[count], totals[count], potentials[count] = potential[sink], total, potential
            count += 1
            for v in range(nodes):
                potential[v] -= min(distance[v], step)
        added = augment(
            source, sink, n, head, tail, arc, position, weight, parent, hull_first, hull_last, hull_time, hull_flow,
            flow, corner,
        )  # fmt: skip
        if added < 0:
            if count == len(times):
                # Written by the next call: without room for it, the search finds the same path again.
                return count, total
            times[count], totals[count], potentials[count] = potential[sink], total, potential
            return count + 1, -1
        total += added
