"""Measured rows that no fit reads, and why: a misspelt operator would else be lost without a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import operator_of
from joulecast.calibrate.rows.overlap import OVERLAP_OPS


@dataclass(frozen=True, slots=True)
class Unread:
    """A row that tells a fit nothing.

    Attributes
    ----------
    name, file, line
        Of the row.
    reason
        What it lacks.
    """

    name: str
    file: str
    line: int
    reason: str


def unread(rows: Sequence[Row]) -> tuple[Unread, ...]:
    """The rows that say nothing which a fit of kernels, power and collectives could use."""
    found = ((row, _reason(row)) for row in rows)
    return tuple(Unread(row.name, row.file, row.line, reason) for row, reason in found if reason)


def _reason(row: Row) -> str:
    """Why a row is not read; empty if it is."""
    if row.op in OVERLAP_OPS:
        return "" if row.measured.time_s is not None else "no time_s"
    work = operator_of(row.configuration)
    if work.reason or not work.operators:
        return work.reason
    if work.busy_share < 1.0:  # bursts and pauses tell of power, if of anything
        return ""
    if row.measured.time_s is None:
        return "no time_s"
    return "no sm_clock_mhz" if row.gpus == 1 and row.measured.sm_clock_mhz is None else ""


def unread_lines(rows: Sequence[Unread]) -> list[str]:
    """A line for each reason: how many rows, and where the first of them stands."""
    groups: dict[str, list[Unread]] = {}
    for row in rows:
        groups.setdefault(row.reason, []).append(row)
    return [
        f"{len(group)} row{'s are' if len(group) > 1 else ' is'} not read: {reason} ({group[0].name}"
        f"{', the first of them' if len(group) > 1 else ''}, {group[0].file}:{group[0].line})"
        for reason, group in groups.items()
    ]
