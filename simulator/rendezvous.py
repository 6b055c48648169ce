"""Waits that torch.distributed.pipelining adds to an interleaved schedule.

``ScheduleInterleaved1F1B`` gives every action a time slot. After the action of a slot a rank exchanges what it and its
neighbours produced in that slot, and waits for all of it before its next action: a transfer delays its receiver's next
action even where the data are needed later, and its sender until the receiver has come to the same slot.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joulecast.simulator.fluid import FluidProgram
from joulecast.simulator.schedules import OPTIMIZER, Schedule


def time_slots(schedule: Schedule, rank: int) -> list[int]:
    """Slot of each instruction of a rank, without the tail.

    Warm-up starts after ``rank`` empty slots; the first backward comes ``v·p + 2(p − 1 − rank)`` slots after the start;
    in the cool-down an empty slot stands before every backward.
    """
    order = [i for i in schedule.ranks[rank] if i.kind != OPTIMIZER]
    stages, chunks = schedule.pipeline_size, schedule.virtual_stages_per_rank
    total = schedule.microbatches * chunks
    per_round = schedule.microbatches // max(1, schedule.microbatches // stages)
    warm_up = min((chunks - 1) * per_round + 2 * (stages - 1 - rank), total)
    slots = list(range(rank, rank + warm_up))
    first_backward = chunks * stages + 2 * (stages - 1 - rank)
    now = max(first_backward, rank + warm_up)
    for index in range(warm_up, len(order)):
        steady = index < warm_up + 2 * (total - warm_up)
        now += 0 if steady else 1
        slots.append(now)
        now += 1
    return slots


def with_time_slots(program: FluidProgram, schedule: Schedule, delay_s: float) -> FluidProgram:
    """The program with the waits of exchanges slot by slot; other schedules are left as they are."""
    if schedule.name != "interleaved-1f1b" or schedule.pipeline_size == 1:
        return program
    slots = [time_slots(schedule, rank) for rank in range(schedule.pipeline_size)]
    offsets = schedule.offsets
    source, target = [], []
    edges = schedule.edges
    for s, sr, tr in zip(edges.source.tolist(), edges.source_rank.tolist(), edges.target_rank.tolist(), strict=True):
        if sr == tr:
            continue
        slot = slots[sr][s - offsets[sr]]
        for waiter, partner in ((tr, sr), (sr, tr)):
            after = _first_after(slots[waiter], slot)
            done = _last_until(slots[partner], slot)
            if done >= 0:
                source.append(offsets[partner] + done)
                target.append(offsets[waiter] + after)
    return replace(
        program,
        source=np.concatenate([program.source, np.array(source, dtype=np.int64)]),
        target=np.concatenate([program.target, np.array(target, dtype=np.int64)]),
        delay_s=np.concatenate([program.delay_s, np.full(len(source), delay_s)]),
    )


def _first_after(slots: list[int], slot: int) -> int:
    """Index of the first instruction after a slot; the tail's where there is none."""
    return int(np.searchsorted(slots, slot, side="right"))


def _last_until(slots: list[int], slot: int) -> int:
    """Index of the last instruction up to a slot, −1 without any."""
    return int(np.searchsorted(slots, slot, side="right")) - 1
