"""From a recording to a description: the same bytes everywhere, as name and provenance come from the recording."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joulecast.calibrate.descriptions.describe import RowsFit, fit_all
from joulecast.calibrate.measure.recording import FILE_NAME, Card, Recording, read_recording
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.sessions.base import base_name, base_of_card
from joulecast.calibrate.sessions.other_cards import labelled, recorded_others
from joulecast.errors import DataError

#: Data-sheet facts that a recording keeps where they came from a file.
BASE_FILE = "base.toml"
#: Rows from which on the fit also learns from left-out rows how far forecasts are off.
CROSS_VALIDATED_ROWS = 40


@dataclass(frozen=True, slots=True)
class Recorded:
    """A folder of recordings of one card, and of groups of cards with it.

    Attributes
    ----------
    card
        Of the first recording.
    cards
        How many single cards were recorded.
    rows
        Of all recordings.
    failures
        How many microbenchmarks gave no row.
    warnings
        What is wrong with the files, although they are usable.
    """

    card: Card
    cards: int
    rows: tuple[Row, ...]
    failures: int
    warnings: tuple[str, ...]


def read_folder(folder: Path) -> Recorded:
    """A recording, and those in the folders below it: of groups (``gpus-2``) and of several cards (``card-0``).

    Raises
    ------
    DataError
        No recording, or a broken one.
    """
    groups, cards = ([f.parent for f in sorted(folder.glob(f"{word}-*/{FILE_NAME}"))] for word in ("gpus", "card"))
    files = [*cards, *groups]
    if (folder / FILE_NAME).is_file() or not files:
        files.insert(0, folder)
    recordings: Sequence[Recording] = [read_recording(file) for file in files]
    rows = tuple(
        labelled(row, file.name) if file in cards else row
        for file, recording in zip(files, recordings, strict=True)
        for row in recording.rows
    )
    if not rows:
        remedy = f"Go on with it: calibrate with --device and --record {folder}, and a longer --budget."
        raise DataError("a recording without rows", file=str(folder), remedy=remedy)
    return Recorded(
        recordings[0].card,
        max(len(cards), 1),
        rows,
        sum(len(recording.failures) for recording in recordings),
        tuple(warning for recording in recordings for warning in recording.warnings),
    )


def fit_folder(
    folder: Path,
    *,
    base: str | None = None,
    name: str | None = None,
    rows: Sequence[Row] = (),
    alone: bool = False,
) -> RowsFit:
    """Fit a description to a folder of recordings, and to other rows beside it.

    Parameters
    ----------
    folder
        As :func:`read_folder` takes it.
    base
        Catalogue name or file of the card's data-sheet facts; by default what the recording names.
    name
        Of the description; by default after the card.
    rows
        Measured otherwise. The description is of the card that they name no label for; with recordings of several
        cards, of what their cards have in common, and it says how far cards differ.
    alone
        Leave out the shipped recordings of other cards beside which this one was made.

    Raises
    ------
    DataError
        No recording, or a broken one.
    InputError
        The card's kind is unknown, or nothing can be fitted.
    """
    recorded = read_folder(folder)
    facts = recorded.card.facts
    others = () if alone else recorded_others(recorded.card)
    everything = [*rows, *recorded.rows, *others]
    aside = f", and {len(rows)} measured before" if rows else ""
    aside += f", and {len(others)} of other cards of its kind" if others else ""
    return fit_all(
        everything,
        base_of_card(base or recorded_base(recorded.card, folder), facts),
        name=name or slug(facts.name),
        provenance=provenance(recorded) + aside,
        cross_validate=len(everything) >= CROSS_VALIDATED_ROWS,
        of_one_card=recorded.cards == 1,
    )


def recorded_base(card: Card, folder: Path) -> str:
    """Where a recorded card's data-sheet facts are: a name in the catalogue, or a file of the recording."""
    word = str(card.how.get("base") or "")
    if word == BASE_FILE:
        return str(folder / BASE_FILE)
    return word or base_name(card.facts)


def provenance(recorded: Recorded) -> str:
    """What was measured, where and when, for the tables of a description."""
    card = recorded.card
    software = ", ".join(f"{name} {version}" for name, version in sorted(card.versions.items()))
    begun = str(card.how.get("mode") or "passive")
    mode = "active" if any(row.is_set for row in recorded.rows) else begun  # a passive one may have gone on actively
    day = card.started.partition("T")[0]
    return (
        f"calibrated on {card.facts.name} (driver {card.facts.driver}; {software}), {day}, {mode}: "
        f"{len(recorded.rows)} microbenchmarks"
    )


def slug(text: str) -> str:
    """A name for a description.

    >>> slug("NVIDIA H100 80GB HBM3")
    'nvidia-h100-80gb-hbm3'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.casefold()).strip("-")
