"""Export of timelines as a trace for Perfetto or Chrome: one track per stream, counters per GPU, arrows between ranks.

The format is the JSON of the Trace Event Format: ``M`` metadata, ``X`` complete events, ``C`` counters, ``s`` and ``f``
the two ends of an arrow; times in microseconds. Processes and threads are numbered from 1, each number once: Perfetto
keeps 0 for an idle processor, and looks for a thread's name by the thread's number alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from gzip import GzipFile
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.files import write_whole
from joulecast.simulator.events.timeline import Timeline

STREAM_NAMES = ("compute", "communication")

Event = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Arrow:
    """A transfer between two ranks, drawn from the interval that ends to the one that begins."""

    name: str
    source_rank: int
    source_ns: int
    target_rank: int
    target_ns: int


@dataclass(frozen=True, eq=False)
class Counter:
    """A quantity of one rank over time, as steps.

    Attributes
    ----------
    name
        Title of the track, with the unit in brackets: viewers show the counter's name and the series' behind it.
    rank
        Whose it is.
    time_s, value
        Start of each step and the value from there on, shape ``(n,)`` [s].
    """

    name: str
    rank: int
    time_s: Array
    value: Array


def trace_events(
    timelines: Sequence[Timeline],
    *,
    counters: Sequence[Counter],
    arrows: Sequence[Arrow],
    labels: Mapping[int, str] | None,
    operators: Mapping[int, Sequence[str]] | None,
) -> Iterator[Event]:
    """Events of a trace.

    Parameters
    ----------
    timelines
        One per rank, or several of the same rank (kernels and instructions).
    counters
        Further quantities over time, e.g. the clock; the power of every rank is always there.
    arrows
        Transfers between ranks.
    labels
        Names of ranks; ``GPU 0`` and so on otherwise.
    operators
        Of some of the timelines, by their places: what each of their names is, empty where nothing is to be said.
    """
    named: set[tuple[int, int]] = set()
    counted = {(c.name, c.rank) for c in counters}
    for place, timeline in enumerate(timelines):
        yield from _names(timeline, named, labels or {})
        yield from _intervals(timeline, (operators or {}).get(place, ()))
        if ("power [W]", timeline.rank) not in counted:
            counted.add(("power [W]", timeline.rank))
            profile = timeline.profile()
            power = np.concatenate([profile.power_w, [0.0]])
            time_s = np.asarray(profile.time_ns * 1e-9, dtype=np.float64)
            yield from _counter(Counter("power [W]", timeline.rank, time_s, power))
    for counter in counters:
        yield from _counter(counter)
    for i, arrow in enumerate(arrows):
        common = {"name": arrow.name, "cat": "transfer", "id": i}
        sent, received = _us(np.array([arrow.source_ns, arrow.target_ns]))
        yield {"ph": "s", **_place(arrow.source_rank), "ts": sent, **common}
        yield {"ph": "f", "bp": "e", **_place(arrow.target_rank), "ts": received, **common}


def write_trace(
    path: str | os.PathLike[str],
    timelines: Sequence[Timeline],
    *,
    counters: Sequence[Counter] = (),
    arrows: Sequence[Arrow] = (),
    labels: Mapping[int, str] | None = None,
    operators: Mapping[int, Sequence[str]] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a trace for https://ui.perfetto.dev, whole or not at all; compressed if its name ends in ``.gz``.

    Raises
    ------
    InputError
        Where the file cannot be written.
    """
    target = Path(path)
    encode = json.JSONEncoder(allow_nan=False).encode

    def write(draft: Path) -> None:
        with (
            draft.open("wb") as raw,
            GzipFile("", "wb", fileobj=raw, mtime=0) if target.suffix == ".gz" else raw as data,
            TextIOWrapper(data, encoding="utf-8", newline="\n") as file,
        ):
            file.write('{"displayTimeUnit": "ms", "otherData": ')
            file.write(json.dumps(dict(metadata or {}), sort_keys=True))
            file.write(', "traceEvents": [\n')
            events = trace_events(timelines, counters=counters, arrows=arrows, labels=labels, operators=operators)
            for i, event in enumerate(events):
                file.write(",\n" if i else "")
                file.write(encode(event))
            file.write("\n]}\n")

    write_whole(target, write)
    return target


def _place(rank: int, stream: int = 0) -> dict[str, int]:
    """Numbers of a rank's process and of a stream's thread in it."""
    process = 1 + len(STREAM_NAMES) * rank
    return {"pid": process, "tid": process + stream}


def _names(timeline: Timeline, named: set[tuple[int, int]], labels: Mapping[int, str]) -> Iterator[Event]:
    rank = timeline.rank
    if (rank, -1) not in named:
        named.add((rank, -1))
        label = labels.get(rank, f"GPU {rank}")
        yield {"ph": "M", "name": "process_name", **_place(rank), "args": {"name": label}}
        yield {"ph": "M", "name": "process_sort_index", **_place(rank), "args": {"sort_index": rank}}
    for stream in np.unique(timeline.stream).tolist():
        if (rank, stream) not in named:
            named.add((rank, stream))
            place = _place(rank, stream)
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": STREAM_NAMES[stream]}}
            yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": stream}}


def _intervals(timeline: Timeline, operators: Sequence[str]) -> Iterator[Event]:
    power = timeline.power_w.sum(axis=1)
    places = [_place(timeline.rank, stream) for stream in range(len(STREAM_NAMES))]
    rows = zip(
        _us(timeline.start_ns),
        _us(timeline.end_ns - timeline.start_ns),
        timeline.stream.tolist(),
        timeline.name.tolist(),
        timeline.instruction.tolist(),
        power.tolist(),
        strict=True,
    )
    said: list[dict[str, Any]] = [{"operator": text} if text else {} for text in operators]
    said = said or [{}] * len(timeline.names)
    for start, duration, stream, name, instruction, watts in rows:
        of_instruction = {"instruction": timeline.instruction_names[instruction]}
        yield {
            "ph": "X",
            "name": timeline.names[name],
            "cat": STREAM_NAMES[stream],
            **places[stream],
            "ts": start,
            "dur": duration,
            "args": of_instruction | {"power_above_idle_w": round(watts, 3)} | said[name],
        }


def _us(time_ns: Int) -> list[float]:
    """Microseconds that are the same whole nanoseconds to a reader that rounds and to one that truncates.

    A nanosecond less, and a kernel would reach beyond its instruction: Perfetto drops what does not nest.
    """
    time_us = time_ns / 1e3
    short = (time_us * 1e3).astype(np.int64) < time_ns
    time_us[short] = np.nextafter(time_us[short], np.inf)
    found: list[float] = time_us.tolist()
    return found


def _counter(counter: Counter) -> Iterator[Event]:
    """Steps of a counter: where several begin in one nanosecond the last, and only those at which the value changes."""
    value, time_ns = np.asarray(counter.value, dtype=np.float64), np.rint(counter.time_s * 1e9).astype(np.int64)
    last = np.append(time_ns[1:] != time_ns[:-1], True)[: len(value)]
    value, time_ns = value[last], time_ns[last]
    changed = np.append(True, value[1:] != value[:-1])[: len(value)]
    name, _, unit = counter.name.partition(" [")
    series = f"[{unit}" if unit else "value"
    for time, level in zip(_us(time_ns[changed]), value[changed].tolist(), strict=True):
        yield {"ph": "C", "name": name, **_place(counter.rank), "ts": time, "args": {series: level}}
