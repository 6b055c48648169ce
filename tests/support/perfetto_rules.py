"""What Perfetto's trace processor does with a JSON trace, as far as it counts faults.

The rules are those of its importer (``src/trace_processor/importers`` in github.com/google/perfetto): events are
sorted by time, in the order of the file where it is the same; a slice belongs to the last one that is still open on its
thread; the ends of an arrow belong to the innermost open slice. Where its table ``stats`` counts a fault, it has that
name here. Number 0 is kept for the idle process, and a thread's name is found by the thread's number alone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any


def faults(events: list[dict[str, Any]], whole: Any = int) -> Counter[str]:
    """Faults by name; ``whole`` makes whole nanoseconds: readers round, or leave out what is beyond."""
    found: Counter[str] = Counter()
    named_processes = {e["pid"] for e in events if e["name"] == "process_name"}
    named_threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    timed = [e for e in events if e["ph"] != "M"]
    for event in timed:
        found["number_0_is_kept"] += not (event["pid"] > 0 and event["tid"] > 0)
        found["process_without_name"] += event["pid"] not in named_processes
        found["thread_without_name"] += (event["pid"], event["tid"]) not in named_threads
        found["negative_time"] += event["ts"] < 0 or event.get("dur", 0) < 0
        found["unknown_phase"] += event["ph"] not in "XCsf"
    found["thread_number_used_twice"] += len(named_threads) - len({tid for _, tid in named_threads})
    ordered = sorted(((whole(e["ts"] * 1000.0), e) for e in timed), key=lambda pair: pair[0])
    found.update(_slices_and_arrows(ordered, whole))
    found.update(_counters(ordered))
    return +found


def _slices_and_arrows(ordered: list[tuple[int, dict[str, Any]]], whole: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    open_until: dict[tuple[int, int], list[int]] = defaultdict(list)
    sent: dict[Any, int] = {}
    for time, event in ordered:
        stack = open_until[event["pid"], event["tid"]]
        while event["ph"] != "C" and stack and stack[-1] <= time:
            stack.pop()
        if event["ph"] == "X":
            end = time + whole(event["dur"] * 1000.0)
            found["slice_drop_overlapping_complete_event"] += bool(stack) and end > stack[-1]
            stack.append(end)
        elif event["ph"] in "sf":
            found["flow_no_enclosing_slice"] += not stack
            if event["ph"] == "s":
                found["flow_duplicate_id"] += event["id"] in sent
                sent[event["id"]] = event["pid"]
            elif event["id"] not in sent:
                found["flow_end_without_start"] += 1
            else:
                found["flow_within_a_process"] += sent.pop(event["id"]) == event["pid"]
                found["flow_not_bound_to_its_slice"] += event.get("bp") != "e"
    return found + Counter({"flow_without_end": len(sent)})


def _counters(ordered: list[tuple[int, dict[str, Any]]]) -> Counter[str]:
    found: Counter[str] = Counter()
    last: dict[tuple[int, str], int] = {}
    for time, event in ordered:
        if event["ph"] == "C":
            for series, value in event["args"].items():
                track = event["pid"], f"{event['name']} {series}"
                found["counter_is_no_number"] += not (isinstance(value, int | float) and math.isfinite(value))
                found["counter_set_twice"] += last.get(track, -1) >= time
                last[track] = time
    return found
