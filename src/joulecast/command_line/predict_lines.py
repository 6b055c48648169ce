"""Stages of a forecast as lines of tables, for the command line and for reports."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulecast.simulator.plan_file.parts import Workload

#: Chunks of a pipeline rank above which a table sums their instructions.
FEW_CHUNKS = 4


def model_name(workload: Workload) -> str:
    """The model as a plan names it; of one that no catalogue has, with its size, by which a reader knows it again."""
    name = workload.model_name
    if name != "inline" and not name.endswith(".json") and "/" not in name:
        return name
    return f"{name} ({workload.model.parameters / 1e9:.4g} billion parameters)"


def of_all_chunks(split: Mapping[str, float]) -> dict[str, float]:
    """Energy or time by instruction, summed over the chunks of a rank where these are many.

    >>> of_all_chunks({"forward": 1.0, "optimizer": 2.0})
    {'forward': 1.0, 'optimizer': 2.0}
    >>> of_all_chunks({f"forward chunk {i}": 1.0 for i in range(8)})
    {'forward, 8 chunks': 8.0}
    """
    counts = Counter(name.partition(" chunk ")[0] for name in split if " chunk " in name)
    summed: dict[str, float] = {}
    for name, value in split.items():
        kind = name.partition(" chunk ")[0]
        name = f"{kind}, {counts[kind]} chunks" if counts[kind] > FEW_CHUNKS else name
        summed[name] = summed.get(name, 0.0) + value
    return summed


def stage_line(stage: Mapping[str, Any]) -> dict[str, Any]:
    """What one GPU of a stage of :meth:`~joulecast.Iteration.to_dict` does, and what it costs."""
    return {
        "stage": stage["stage"],
        "GPUs": stage["gpus"],
        "power [W]": stage["power_w"],
        "clock [MHz]": stage["clock_mhz"],
        "energy [J]": stage["energy_j"],
        "compute [s]": stage["compute_s"],
        "communication [s]": stage["exposed_communication_s"] - stage["group_waiting_s"],
        "for the slowest [s]": stage["group_waiting_s"],
        "overlapped [s]": stage["overlapped_communication_s"],
        "waiting [s]": stage["waiting_s"],
        "allocated [GB]": stage["memory_bytes"] / 1e9,
    }


def memory_line(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of the peak of its memory and the margin beyond them; the total with what PyTorch keeps reserved [GB]."""
    parts = {name: value / 1e9 for name, value in stage["memory_by_part_bytes"].items() if value}
    whole = {"total": sum(parts.values()), "margin": stage["memory_margin_bytes"] / 1e9}
    cached = stage["memory_reserved_bytes"] - stage["memory_bytes"]
    if cached > 0:
        whole["with reserved"] = whole["total"] + cached / 1e9
    return {"stage": stage["stage"]} | parts | whole
