"""The figures that we publish, against the measured rows beside the repository.

One table holds the bounds [%]. Where a goal is reached the bound is the goal; the kernels that are scored by a
description fitted to them have bounds of their own, as a fit must not get worse unnoticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from joulecast.validate import run_suite
from joulecast.validate.scoring.result import SuiteResult


@dataclass(frozen=True)
class Figures:
    """Bounds of one run of a suite: group of rows, then figure of the summary without ``_percent``."""

    suite: str
    file: str
    bounds: Mapping[str, Mapping[str, float]]
    folds: int | None = None

    @property
    def name(self) -> str:
        return f"{self.suite}-{self.file}" + (f"-{self.folds}-folds" if self.folds else "")


PUBLISHED = (
    Figures(
        "kernels",
        "kernels_steady.jsonl",
        {
            "all": {"time_error": 1.5, "energy_error": 2.0, "clock_error": 2.0},
            "gemm": {"time_error": 1.5, "energy_error": 2.0},
            "attention": {"time_error": 2.0, "energy_error": 2.5},
            "streaming": {"time_error": 1.5, "energy_error": 3.0},
        },
    ),
    Figures(
        "kernels",
        "kernels.jsonl",
        {
            "all": {"time_error": 3.5, "energy_error": 3.5},
            "gemm": {"time_error": 2.5, "energy_error": 2.5},
            "tile": {"time_error": 5.0, "energy_error": 5.0},
        },
    ),
    Figures(
        "kernels",
        "kernels_steady.jsonl",
        {
            "all": {"time_error": 3.0, "energy_error": 3.0, "clock_error": 2.1},
            "gemm": {"time_error": 2.0, "energy_error": 2.5},
            "attention": {"time_error": 3.5, "energy_error": 3.0},
        },
        folds=5,
    ),
    Figures("kernels", "kernels.jsonl", {"all": {"time_error": 5.0, "energy_error": 5.0}}, folds=5),
    *(
        Figures(
            "collectives",
            "collectives.jsonl",
            {
                ">= 16 MB": {"time_error": 4.0, "power_error": 5.0},
                "< 16 MB": {"time_error": 12.0},
            },
            folds=folds,
        )
        for folds in (None, 2)
    ),
    Figures(
        "blocks",
        "blocks.jsonl",
        {"all": {"time_error": 3.0, "energy_error": 3.0, "time_worst": 6.0, "energy_worst": 6.0}},
    ),
    Figures(
        "train",
        "train_iterations.jsonl",
        {"all": {"time_error": 3.0, "energy_error": 3.0, "time_worst": 6.0, "energy_worst": 6.0}},
    ),
    Figures("overlap", "overlap.jsonl", {"all": {"time_error": 3.0, "energy_error": 4.0}}),
)
#: Least and largest share of rows within their 90 % interval [%], and the largest half-width as a multiple of the mean
#: absolute error; the goal of the width is 2.5, missed where a few kinds of kernels err far more than the others.
INSIDE = (80.0, 98.5)
WIDTH = 2.5
WIDER = {
    ("kernels_steady.jsonl", "gemm"): 2.9,
    ("kernels_steady.jsonl", "attention"): 2.7,
    ("kernels.jsonl", "attention"): 3.0,
    ("kernels.jsonl", "streaming"): 2.6,
    ("collectives.jsonl", "collective"): 2.6,
}
#: A family with fewer rows says little about its intervals.
LEAST_ROWS = 20
#: Of fewer rows than these one more may lie outside: 23 of 29 streaming kernels' energies in short windows lie inside.
FEW_ROWS = 30
#: Blocks and iterations are few; of all of them so many lie within their intervals at least [%].
COMPOSED_INSIDE = 80.0
#: A run that fits takes minutes.
FITS = [pytest.mark.slow, pytest.mark.long]

CASES = [pytest.param(f, id=f.name, marks=FITS if f.folds else []) for f in PUBLISHED]


@lru_cache(maxsize=8)
def scored(path: Path, suite: str, folds: int | None) -> SuiteResult:
    return run_suite(suite, path, gpu="h200-sxm-rows", folds=folds)


@pytest.mark.parametrize("figures", CASES)
def test_published_figures(figures, data):
    """One test for each run, as parallel workers would otherwise each fit again."""
    result = scored(data / "h200_sxm" / figures.file, figures.suite, figures.folds)
    check_every_row_is_predicted(result)
    check_errors(result, figures)
    check_trivial_rules_are_beaten(result)
    if figures.folds:
        check_intervals(result, figures)
    if figures.suite in ("blocks", "train"):
        assert result.summary["all"]["time_inside_percent"] >= COMPOSED_INSIDE
        assert result.summary["all"]["energy_inside_percent"] >= COMPOSED_INSIDE


def check_every_row_is_predicted(result: SuiteResult) -> None:
    assert not result.skipped
    assert all(row.prediction.time_s or row.measured.time_s is None for row in result.rows)


def check_errors(result: SuiteResult, figures: Figures) -> None:
    found = {(g, f): result.summary[g][f"{f}_percent"] for g, bounds in figures.bounds.items() for f in bounds}
    beyond = {key: value for key, value in found.items() if value > figures.bounds[key[0]][key[1]]}
    assert not beyond


def check_trivial_rules_are_beaten(result: SuiteResult) -> None:
    families = {row.family for row in result.rows} | {"all"}
    words = ("time", "energy")
    if result.suite == "overlap":  # the rule is made of forecasts: where nothing overlaps, and in energy, it is as good
        families, words = families - {"compute", "sequential"}, ("time",)
    for family in families & result.summary.keys():
        group = result.summary[family]
        for word in words:
            if group[f"{word}_error_percent"] is not None:
                assert group[f"{word}_error_percent"] < group[f"{word}_baseline_percent"], (family, word)


def check_intervals(result: SuiteResult, figures: Figures) -> None:
    """90 % intervals hold 80 to 98 % of the rows of a family and are not much wider than its errors.

    Those of power hold what they say in any case: in long windows at the limit they hold all rows.
    """
    assert result.summary["all"]["power_inside_percent"] >= INSIDE[0]
    for family in {row.family for row in result.rows} - {"sequence"}:
        group = result.summary[family]
        if group["rows"] < LEAST_ROWS:
            continue
        width = WIDER.get((figures.file, family), WIDTH)
        for word in ("time", "energy"):
            inside, half = group[f"{word}_inside_percent"], group[f"{word}_half_width_percent"]
            one = 100.0 / group["rows"] if group["rows"] < FEW_ROWS else 0.0
            assert INSIDE[0] - one <= inside <= INSIDE[1], (family, word)
            assert half <= width * group[f"{word}_error_percent"], (family, word)
