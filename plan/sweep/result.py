"""What a sweep found, and its rows in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError
from joulecast.extras import data_frame, require
from joulecast.plan.sweep.rows import Row

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
#: What a sweep takes for granted, beside what every forecast does.
NOTES = (
    "every legal plan that fits memory was forecast in closed form, none was left out",
    "a heuristic chose which plans were simulated: those best in closed form, and those in doubt that may be better",
)


@dataclass(frozen=True, eq=False)
class SweepResult:
    """Plans of a space.

    Attributes
    ----------
    minimise
        Objectives.
    keys
        Dotted keys of the space's axes.
    rows
        Every plan that fits memory, by number; simulated where ``source`` says so, in closed form elsewhere.
    best
        Plans that keep to the constraints: the best first, or with several objectives the front by the first of them.
    offered, legal, fitting, within, simulated
        How many combinations the space has, and how many of them are legal, fit memory, keep to the constraints (as far
        as known) and were simulated.
    refused
        What is wrong with the first combination that is not legal and has no missing value; empty if there is none.
    missing
        Values that the space states and no plan that fits memory has, with the reason.
    beyond
        How many of the plans that fit memory each constraint leaves out.
    by_mean
        Constraints on peaks to which plans in closed form, of which the mean is known, are only taken to keep.
    untried
        How many plans in closed form may be better than the best and keep to the constraints, but were not simulated.
    of_each_cluster
        Where the space offers several GPUs or numbers of them: the plan of each that is best by the first objective.
    without
        Clusters of which no plan was found that fits memory and keeps to the constraints.
    assumed
        What is assumed of power limits below the default, and where one vendor's framework is named on another's GPUs,
        or none is named.
    """

    minimise: tuple[str, ...]
    keys: tuple[str, ...]
    rows: tuple[Row, ...] = field(repr=False)
    best: tuple[Row, ...] = field(repr=False)
    offered: int
    legal: int
    fitting: int
    within: int
    simulated: int
    refused: str = ""
    missing: tuple[str, ...] = ()
    beyond: Mapping[str, int] = field(default_factory=dict)
    by_mean: tuple[str, ...] = ()
    untried: int = 0
    of_each_cluster: tuple[Row, ...] = field(default=(), repr=False)
    without: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Combinations at each step."""
        return {
            "offered": self.offered,
            "legal": self.legal,
            "fit memory": self.fitting,
            "keep to constraints": self.within,
            "simulated": self.simulated,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it: the best plans, not every row."""
        return {
            "minimise": list(self.minimise),
            "counts": self.counts,
            "beyond": dict(self.beyond),
            "best": list(self.best),
            "best_of_each_cluster": list(self.of_each_cluster),
            "notes": [*NOTES[: 2 if self.simulated else 1], *self._further_notes()],
        }

    def _further_notes(self) -> list[str]:
        untried = f"of {self.untried} plans that may be better none was simulated; a higher objective.top tries more"
        none = f"no plan was found that fits memory and keeps to the constraints on {', '.join(self.without)}"
        limits = " and ".join(self.by_mean)
        mean = f"plans not simulated are counted by their mean power: of peaks, fewer may keep to {limits}"
        refused = f"combinations that no plan can have are left out, such as {self.refused}"
        said = ((mean, self.by_mean), (none, self.without), (untried, self.untried))
        notes = [note for note, holds in said if holds]
        return [*notes, *self._of_iterations(), *self.missing, *([refused] if self.refused else []), *self.assumed]

    def _of_iterations(self) -> list[str]:
        """Constraints on an iteration that leave nothing out, where the whole run could be meant."""
        of = [key.removeprefix("max_") for key, count in self.beyond.items() if not count]
        return [
            f"max_{what} bounds one iteration, and leaves out no plan; max_run_{what} bounds the whole run"
            for what in of
            if f"run_{what}" in self.rows[0]
        ]

    def to_frame(self) -> pd.DataFrame:
        """One line for each row; needs pandas."""
        return data_frame(self.rows)


def check_output(out: Path | None, *, resume: bool) -> None:
    """Refuse a file that could not be written before anything is computed."""
    if out is None:
        if resume:
            raise InputError("there is no file to resume", key="--resume", remedy="Give --out FILE as before.")
        return
    if out.suffix not in SUFFIXES:
        raise InputError(f"{out.name!r} names no known form", key="--out", remedy=f"End it in {', '.join(SUFFIXES)}.")
    if out.is_dir():
        raise InputError("is a folder", file=str(out), remedy="Name a file.")
    if not out.parent.is_dir():
        raise InputError("no such folder", file=str(out.parent), remedy="Make it first.")
    if out.suffix == ".parquet":
        require("pyarrow")
