"""How well a live calibration forecasts other rows after its first 12, 20, 45, 100 microbenchmarks.

    python benchmarks/learning_curve.py RECORDING_FOLDER [--rows ROWS.jsonl] [--others] [COUNT ...]

The rows of a recording stand in the order in which they were chosen, so that every beginning of it is the calibration
that a smaller budget would have made. It is fitted alone, or with --others beside the shipped recordings of other cards
of its kind, and scored on rows of another card, or without --rows on what the same card measured afterwards.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from joulecast.threads import use_one_thread

use_one_thread()

from joulecast.calibrate.choose.base import base_of_card  # noqa: E402
from joulecast.calibrate.choose.others import recorded_others, shipped_recordings  # noqa: E402
from joulecast.calibrate.choose.replay import read_folder, recorded_base  # noqa: E402
from joulecast.calibrate.descriptions.describe import fit_all  # noqa: E402
from joulecast.calibrate.measure.recording import FILE_NAME, Card  # noqa: E402
from joulecast.command_line.output import print_table  # noqa: E402
from joulecast.validate import run_suite  # noqa: E402
from joulecast.validate.adapters import predict_kernels  # noqa: E402

COUNTS = (12, 20, 45, 100)


def beside_others(card: Card) -> Card:
    """The card as if it had been recorded beside those of its kind that are shipped."""
    return replace(card, how={**card.how, "others": shipped_recordings(card.facts.name)})


def later_rows(folder: Path, done: int, into: Path) -> Path:
    """A file of what a recording measured after so many rows."""
    lines = (folder / FILE_NAME).read_text(encoding="utf-8").splitlines()
    measured = [line for line in lines if line.startswith('{"record": "row"')]
    file = into / FILE_NAME
    file.write_text("\n".join([lines[0], *measured[done:]]) + "\n", encoding="utf-8")
    return file


def main(folder: Path, rows: str | None, others: bool, counts: list[int]) -> None:
    """Print a line for each count of rows, and for all of them."""
    recorded = read_folder(folder)
    base = base_of_card(recorded_base(recorded.card, folder), recorded.card.facts)
    beside = recorded_others(beside_others(recorded.card)) if others else ()
    lines = []
    for count in [c for c in counts if c < len(recorded.rows)] + ([len(recorded.rows)] if rows else []):
        own = recorded.rows[:count]
        described = fit_all([*own, *beside], base, cross_validate=False).description
        with tempfile.TemporaryDirectory() as scratch:
            data = rows or str(later_rows(folder, count, Path(scratch)))
            scored = run_suite("kernels", data, predict=lambda _, mine, gpu=described: predict_kernels(gpu, mine))
        found = scored.summary["all"]
        spent = sum(float(row.measured.raw.get("measured_spent_s") or 0.0) for row in own)
        lines.append(
            {
                "microbenchmarks": count,
                "measured [s]": round(spent),
                "scored": int(found["rows"]),
                "time error [%]": found["time_error_percent"],
                "energy error [%]": found["energy_error_percent"],
                "worst time [%]": found["time_worst_percent"],
                "worst energy [%]": found["energy_worst_percent"],
            }
        )
    print_table(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows")
    parser.add_argument("--others", action="store_true")
    parser.add_argument("counts", type=int, nargs="*")
    given = parser.parse_intermixed_args()
    main(given.folder, given.rows, given.others, given.counts or list(COUNTS))
