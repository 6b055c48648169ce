"""How well a live calibration forecasts other rows after its first 12, 20, 45, 100 microbenchmarks.

    python benchmarks/learning_curve.py RECORDING_FOLDER [--rows ROWS.jsonl] [--others] [--again] [COUNT ...]

The rows of a recording stand in the order in which they were chosen, so that every beginning of it is the calibration
that a smaller budget would have made. Of a recording that was made in another order, or by an older choice, --again
chooses among its rows as a session would today. The rows are fitted alone, or with --others beside the shipped
recordings of other cards of its kind, and scored on rows of another card, or without --rows on the same card's others.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from joulecast.threads import use_one_thread

use_one_thread()

from joulecast.calibrate.descriptions.describe import fit_all  # noqa: E402
from joulecast.calibrate.fit.device_priors import priors_for  # noqa: E402
from joulecast.calibrate.measure.recording import FILE_NAME, Card  # noqa: E402
from joulecast.calibrate.microbenchmarks.catalogue import single_gpu  # noqa: E402
from joulecast.calibrate.rows.measured import Row  # noqa: E402
from joulecast.calibrate.sessions.base import base_of_card  # noqa: E402
from joulecast.calibrate.sessions.candidates import Candidate, usable  # noqa: E402
from joulecast.calibrate.sessions.design import Design  # noqa: E402
from joulecast.calibrate.sessions.other_cards import learnt, recorded_others, shipped_recordings  # noqa: E402
from joulecast.calibrate.sessions.replay import Recorded, read_folder, recorded_base  # noqa: E402
from joulecast.calibrate.sessions.session import BATCH, SPENT  # noqa: E402
from joulecast.calibrate.sessions.update import estimate  # noqa: E402
from joulecast.command_line.output import print_table  # noqa: E402
from joulecast.model.hardware.description import GpuDescription  # noqa: E402
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model  # noqa: E402
from joulecast.validate import run_suite  # noqa: E402
from joulecast.validate.adapters import predict_kernels  # noqa: E402

COUNTS = (12, 20, 45, 100)


def beside_others(card: Card) -> Card:
    """The card as if it had been recorded beside those of its kind that are shipped."""
    return replace(card, how={**card.how, "others": shipped_recordings(card.facts.name)})


def chosen_again(recorded: Recorded, base: GpuDescription, others: Sequence[Row], count: int) -> list[Row]:
    """So many rows of a recording as a session would choose them, then the others in their order."""
    rows = {row.name: row for row in recorded.rows}
    priors = priors_for(base.device)
    gpu, known = GpuModel(base.name, gpu_model(base).device, priors.starts()), None
    if others:
        gpu, known = learnt(others, gpu, priors)
    benchmarks = [one for one in single_gpu(recorded.card.facts) if one.name in rows]
    costs = {name: float(row.measured.raw[SPENT]) for name, row in rows.items()}
    candidates, _ = usable([Candidate(b.name, b.row, b.stratum, costs[b.name]) for b in benchmarks], gpu)
    order: list[str] = []
    while len(order) < count:
        gpu = estimate([*others, *(rows[name] for name in order)], gpu, priors)
        design = Design(candidates, gpu, priors, done=order, known=known)
        found = design.choose(count=min(max(BATCH, len(order) // 4), count - len(order))).order
        if not found:
            break
        order += [one.name for one in found]
    return [rows[name] for name in (*order, *(name for name in rows if name not in order))]


def other_rows(folder: Path, own: Sequence[Row], into: Path) -> Path:
    """A file of what a recording measured beside these rows."""
    lines = (folder / FILE_NAME).read_text(encoding="utf-8").splitlines()
    names = {row.name for row in own}
    measured = [line for line in lines if line.startswith('{"record": "row"') and json.loads(line)["name"] not in names]
    file = into / FILE_NAME
    file.write_text("\n".join([lines[0], *measured]) + "\n", encoding="utf-8")
    return file


def main(folder: Path, rows: str | None, others: bool, again: bool, counts: list[int]) -> None:
    """Print a line for each count of rows, and for all of them."""
    recorded = read_folder(folder)
    base = base_of_card(recorded_base(recorded.card, folder), recorded.card.facts)
    beside = recorded_others(beside_others(recorded.card)) if others else ()
    counts = [count for count in counts if count < len(recorded.rows)]
    ordered = chosen_again(recorded, base, beside, max(counts, default=0)) if again else recorded.rows
    lines = []
    for count in counts + ([len(recorded.rows)] if rows else []):
        own = ordered[:count]
        described = fit_all([*own, *beside], base, cross_validate=False).description
        with tempfile.TemporaryDirectory() as scratch:
            data = rows or str(other_rows(folder, own, Path(scratch)))
            scored = run_suite("kernels", data, predict=lambda _, mine, gpu=described: predict_kernels(gpu, mine))
        found = scored.summary["all"]
        spent = sum(float(row.measured.raw.get(SPENT) or 0.0) for row in own)
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
    parser.add_argument("--again", action="store_true")
    parser.add_argument("counts", type=int, nargs="*")
    given = parser.parse_intermixed_args()
    main(given.folder, given.rows, given.others, given.again, given.counts or list(COUNTS))
