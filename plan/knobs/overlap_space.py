"""Plans that differ in how communication overlaps computation: every combination of the knobs that a plan can have."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from joulecast.errors import InputError
from joulecast.model.hardware.description import GpuDescription
from joulecast.simulator.plan_file.checks import whole
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.overlap import read_windows
from joulecast.simulator.plan_file.parts import Overlap
from joulecast.simulator.plan_file.plan import Plan
from joulecast.simulator.plan_file.source import Source

#: Knobs of ``[overlap]`` to choose from, in the order in which choices name them.
KNOBS = ("nanobatches", "window", "launch", "comm_ctas", "comm_threads", "comm_engine", "comm_first")

Knobs = tuple[tuple[str, int | str], ...]


def overlap_variants(
    plan: Plan,
    choices: Mapping[str, Sequence[Any]],
    gpu: GpuDescription | None = None,
    source: Source | None = None,
) -> list[tuple[Knobs, Plan]]:
    """Every plan that differs from ``plan`` in knobs of overlap alone, with the values that it has of them.

    Parameters
    ----------
    choices
        Values of each knob to choose from, as they stand in a PLAN.toml; ``None`` of ``comm_ctas`` and
        ``comm_threads`` is the library's choice and not named among a plan's values.
    gpu
        By default the plan's own.
    source
        Named in errors.

    Returns
    -------
    Combinations that contradict themselves, such as a window without nano-batches, are left out.

    Raises
    ------
    InputError
        A value that no combination can have.
    """
    source = source or Source()
    gpu = gpu if gpu is not None else gpu_of(plan)
    names = [name for name in KNOBS if name in choices]
    found: list[tuple[Knobs, Plan]] = []
    used: set[tuple[str, int]] = set()
    refused: dict[tuple[str, int], InputError] = {}
    for numbers in itertools.product(*(range(len(choices[name])) for name in names)):
        places = list(zip(names, numbers, strict=True))
        values = _own({name: choices[name][i] for name, i in places}, choices)
        if values is None:
            continue
        try:
            variant = replace(plan, overlap=_with(plan, values, source))
            whole(variant, gpu, source, ())
        except InputError as error:
            for place in places:
                refused.setdefault(place, error)
            continue
        used.update(places)
        found.append((tuple((name, _word(v)) for name, v in values.items() if v is not None), variant))
    never = {place: error for place, error in refused.items() if place not in used}
    if never:  # the first knob's, as a window that cannot be follows from nano-batches that cannot
        raise never[min(never, key=lambda place: names.index(place[0]))]
    return found


def simplest_first(ways: Sequence[tuple[Knobs, Plan]], default_ctas: float) -> list[tuple[Knobs, Plan]]:
    """Plans by how little they ask for, those that ask for as much in the order that they have.

    First those with the fewest thread blocks of communication, of these those with the fewest nano-batches, then those
    that leave more of the other knobs as they are by default.

    Parameters
    ----------
    default_ctas
        Thread blocks that the library takes by itself.
    """
    return sorted(ways, key=lambda way: _asked(way[1].overlap, default_ctas))


def _asked(overlap: Overlap, default_ctas: float) -> tuple[float, int, int]:
    """Thread blocks, nano-batches, and how many other knobs are not as by default."""
    blocks, threads = overlap.comm_ctas, overlap.comm_threads
    stated = (
        blocks is not None, threads is not None, overlap.windows != (), overlap.launch != "asap",
        overlap.comm_engine != "sm", overlap.comm_first,
    )  # fmt: skip
    return default_ctas if blocks is None else blocks, overlap.nanobatches, sum(stated)


def _own(values: dict[str, Any], choices: Mapping[str, Sequence[Any]]) -> dict[str, Any] | None:
    """The values without a window that is about several nano-batches; ``None`` where another choice is the same."""
    several = max(choices.get("nanobatches", (1,))) > 1
    if not several or values["nanobatches"] > 1 or values.get("window", "all") == "all":
        return values
    windows = list(choices["window"])
    if "all" in windows or values["window"] != windows[0]:
        return None
    return {name: value for name, value in values.items() if name != "window"}


def _with(plan: Plan, values: Mapping[str, Any], source: Source) -> Overlap:
    """The plan's overlap with some knobs changed."""
    changes = dict(values)
    if "window" in changes:
        model, framework = plan.workload.model, plan.implementation.framework
        changes["windows"] = read_windows(changes.pop("window"), model, framework, source)
        own = plan.overlap.launch if plan.overlap.windows else "window"
        changes.setdefault("launch", own if changes["windows"] else "asap")
    return replace(plan.overlap, **changes)


def _word(value: Any) -> int | str:
    """A knob's value as exports have it."""
    if isinstance(value, Mapping):
        return " ".join(f"{half}:{_word(value[half])}" for half in sorted(value))
    if isinstance(value, list | tuple):
        return "-".join(str(v) for v in value)
    return value if isinstance(value, int) else str(value)
