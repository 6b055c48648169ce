"""What one rank of a pipeline holds of a model, and how many micro-batches are under way in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.errors import UnknownNameError


def in_flight(schedule: str, stage: int, stages: int, micro_batches: int, virtual_stages: int = 1) -> int:
    """Most forwards of a rank (micro-batches, times chunks if interleaved) whose backward is still to come.

    Parameters
    ----------
    schedule
        ``none gpipe 1f1b interleaved-1f1b zb-h1``.
    stage, stages
        Pipeline rank and their number.
    """
    if stages == 1 and virtual_stages == 1:
        return 1
    total = micro_batches * virtual_stages
    if schedule == "none":
        return 1
    if schedule == "gpipe":
        return total
    if schedule == "1f1b":
        return min(total, stages - stage)
    if schedule == "zb-h1":
        return min(total, stages)
    if schedule == "interleaved-1f1b":
        group = micro_batches // max(1, micro_batches // stages)
        return min(total, 2 * (stages - stage - 1) + (virtual_stages - 1) * group + 1)
    raise UnknownNameError(
        "schedule", schedule, ("none", "gpipe", "1f1b", "interleaved-1f1b", "zb-h1"), key="schedule.name"
    )


@dataclass(frozen=True, slots=True)
class PipelineRank:
    """What one rank of a pipeline holds, and what is under way in it.

    Attributes
    ----------
    layers
        Number of layers of each chunk (virtual stage) that the rank holds: one entry unless interleaved.
    others
        How many layers of each chunk are of each of the model's kinds but the last; ``None``: none.
    stage, stages
        Pipeline rank and their number; the first holds the embedding, the last norm and head.
    micro_batches
        Of an iteration.
    schedule
        As :func:`in_flight` knows it.
    forwards
        Most forwards whose backward is still to come; by default what ``schedule`` gives.
    of_chunks
        How many of these are of each chunk, where they are known apart: at the moment when the rank holds the most.
        The last chunk is the one with the final norm and the head, if any is.
    ends
        Whether the rank holds the embedding, and the final norm with the head, where its place does not say so.
    """

    layers: Sequence[int]
    others: Sequence[tuple[int, ...]] | None = None
    stage: int = 0
    stages: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    forwards: int | None = None
    of_chunks: tuple[int, ...] | None = None
    ends: tuple[bool, bool] | None = None

    @property
    def chunks(self) -> int:
        """Virtual stages."""
        return len(self.layers)

    @property
    def first(self) -> bool:
        """Whether the rank holds the embedding."""
        return self.stage == 0 if self.ends is None else self.ends[0]

    @property
    def last(self) -> bool:
        """Whether the rank holds the final norm and the head."""
        return self.stage == self.stages - 1 if self.ends is None else self.ends[1]

    @property
    def pipelined(self) -> bool:
        """Whether the rank sends and receives."""
        return self.stages > 1 or self.chunks > 1

    @property
    def under_way(self) -> int:
        """Most forwards whose backward is still to come."""
        if self.of_chunks is not None:
            return sum(self.of_chunks)
        if self.forwards is not None:
            return self.forwards
        return in_flight(self.schedule, self.stage, self.stages, self.micro_batches, self.chunks)
