"""Waits that torch.distributed.pipelining adds to an interleaved schedule.

The runtime makes one list of compute, sends and receives for every rank. Directly after an action that produces data it
lists the send, and at the same time puts the matching receive at the end of the receiver's list so far. On the GPU all
transfers of a rank run one after the other on one stream, each after the compute that is listed before it on both
sides. A transfer therefore also waits for whatever its receiver did before and for earlier transfers of both ranks,
even where its data are ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from joulecast.simulator.fluid.program import FluidProgram
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.schedules import FORWARD, ONCE, Instruction, Schedule

#: A rank's latest instruction that something waits for, with the delay after its end: rank to (position, transfers).
Front = Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Transfer:
    """One transfer and everything that it waits for; ``consumer`` is flat."""

    consumer: int
    front: Front


def transfers_wait_on_sms(plan: Plan) -> bool:
    """Whether kernels of pending transfers hold SMs beside compute.

    The interleaved runtime posts receives long before their data exist, and NCCL's kernels poll on the SMs meanwhile;
    the other schedules wait for their exchanges between instructions.
    """
    interleaved = plan.schedule.name == "interleaved-1f1b" and plan.pp > 1
    return interleaved and plan.implementation.framework == "pytorch-eager"


def with_transfers_in_order(program: FluidProgram, schedule: Schedule, delay_s: float) -> FluidProgram:
    """The program with the waits of transfers in the order of the lists."""
    source, target, delay = [], [], []
    for transfer in listed_transfers(schedule):
        for rank, (position, hops) in transfer.front.items():
            source.append(schedule.offsets[rank] + position)
            target.append(transfer.consumer)
            delay.append(hops * delay_s)
    return replace(program, source=np.array(source), target=np.array(target), delay_s=np.array(delay))


def listed_transfers(schedule: Schedule) -> list[Transfer]:
    """Transfers in the order in which the runtime lists them."""
    ranks = schedule.pipeline_size
    slots = [_with_pauses(schedule, rank) for rank in range(ranks)]
    place = [{i: n for n, i in enumerate(order)} for order in schedule.ranks]
    next_slot, listed = [0] * ranks, [-1] * ranks
    ready: set[tuple[int, Instruction]] = set()
    stream: list[Front] = [{} for _ in range(ranks)]
    found: list[Transfer] = []
    while any(next_slot[r] < len(slots[r]) for r in range(ranks)):
        for rank in range(ranks):
            if next_slot[rank] == len(slots[rank]):
                continue
            action = slots[rank][next_slot[rank]]
            if action is not None and not _may_run(schedule, rank, action, ready):
                continue
            next_slot[rank] += 1
            if action is None:
                continue
            listed[rank] = place[rank][action]
            to = _receiver(schedule, rank, action)
            if to is None:
                continue
            other, consumer = to
            front = _after_transfer(_join(stream[rank], stream[other], {rank: (listed[rank], 0)}, listed, other))
            stream[rank] = stream[other] = front
            ready.add((other, consumer))
            found.append(Transfer(schedule.offsets[other] + place[other][consumer], front))
    return found


def _with_pauses(schedule: Schedule, rank: int) -> list[Instruction | None]:
    """A rank's actions with the empty slots by which the schedule keeps ranks aligned.

    Warm-up starts after ``rank`` empty slots, the first backward comes ``v·p + 2(p − 1 − rank)`` slots after the start,
    and an empty slot stands before every backward of the cool-down.
    """
    order = [i for i in schedule.ranks[rank] if i.kind not in ONCE]
    stages, total = schedule.pipeline_size, schedule.microbatches * schedule.chunks
    per_round = schedule.microbatches // max(1, schedule.microbatches // stages)
    warm_up = min((schedule.chunks - 1) * per_round + 2 * (stages - 1 - rank), total)
    steady = warm_up + 2 * (total - warm_up)
    gap = schedule.chunks * stages + 2 * (stages - 1 - rank) - (warm_up + rank)
    out: list[Instruction | None] = [None] * rank + list(order[:warm_up]) + [None] * max(gap, 0)
    out += order[warm_up:steady]
    for action in order[steady:]:
        out += [None, action]
    return out


def _receiver(schedule: Schedule, rank: int, action: Instruction) -> tuple[int, Instruction] | None:
    """Rank and instruction that an action's output goes to on another rank."""
    stage = schedule.virtual_stage(rank, action.chunk) + (1 if action.kind == FORWARD else -1)
    if not 0 <= stage < schedule.virtual_stages:
        return None
    return stage % schedule.pipeline_size, replace(action, chunk=stage // schedule.pipeline_size)


def _may_run(schedule: Schedule, rank: int, action: Instruction, ready: set[tuple[int, Instruction]]) -> bool:
    stage = schedule.virtual_stage(rank, action.chunk)
    first = 0 if action.kind == FORWARD else schedule.virtual_stages - 1
    return stage == first or (rank, action) in ready


def _join(a: Front, b: Front, own: Front, listed: list[int], other: int) -> dict[int, tuple[int, int]]:
    """Latest of what two streams, the sender's compute and the receiver's last listed compute wait for."""
    fronts = [a, b, own]
    if listed[other] >= 0:
        fronts.append({other: (listed[other], 0)})
    joined: dict[int, tuple[int, int]] = {}
    for front in fronts:
        for rank, entry in front.items():
            joined[rank] = max(joined.get(rank, entry), entry)
    return joined


def _after_transfer(front: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    return {rank: (position, hops + 1) for rank, (position, hops) in front.items()}
