"""How well a live calibration forecasts other rows after its first 12, 20, 45, 100 microbenchmarks.

    python benchmarks/learning_curve.py RECORDING_FOLDER ROWS.jsonl [COUNT …]

The rows of a recording stand in the order in which they were chosen, so that every beginning of it is the calibration
that a smaller budget would have made. They are fitted without and scored on the rows of the other file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from joulecast.threads import use_one_thread

use_one_thread()

from joulecast.calibrate.choose.base import base_of_card  # noqa: E402
from joulecast.calibrate.choose.replay import read_folder, recorded_base  # noqa: E402
from joulecast.calibrate.describe import fit_all  # noqa: E402
from joulecast.output import print_table  # noqa: E402
from joulecast.validate import run_suite  # noqa: E402
from joulecast.validate.adapters import predict_kernels  # noqa: E402

COUNTS = (12, 20, 45, 100)


def main(folder: Path, data: str, counts: tuple[int, ...]) -> None:
    """Print a line for each count of rows, and for all of them."""
    recorded = read_folder(folder)
    base = base_of_card(recorded_base(recorded.card, folder), recorded.card.facts)
    lines = []
    for count in [c for c in counts if c < len(recorded.rows)] + [len(recorded.rows)]:
        rows = recorded.rows[:count]
        described = fit_all(rows, base, cross_validate=False).description
        scored = run_suite("kernels", data, predict=lambda _, mine, gpu=described: predict_kernels(gpu, mine))
        found = scored.summary["all"]
        spent = sum(float(row.measured.raw.get("measured_spent_s") or 0.0) for row in rows)
        lines.append(
            {
                "microbenchmarks": count,
                "measured [s]": round(spent),
                "time error [%]": found["time_error_percent"],
                "energy error [%]": found["energy_error_percent"],
                "worst time [%]": found["time_worst_percent"],
                "worst energy [%]": found["energy_worst_percent"],
            }
        )
    print_table(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], tuple(int(word) for word in sys.argv[3:]) or COUNTS)
