"""Collectives within and between nodes against measured medians of four systems.

The network of these systems is not known: a few rates are fitted to every second size, and the other sizes are scored.
Small messages go by other protocols and through fewer adapters, so that they have rates of their own.
Within a node nothing is fitted here; the descriptions of the A100 and the H100 name what they took from the same half.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.calibrate.studies.network_fit import (
    NetworkConstants,
    bus_bytes,
    fit_network,
    network_times,
    one_bandwidth,
)
from joulecast.calibrate.studies.network_rows import SYSTEMS, NetworkRow, every_second_size, read_network_rows
from joulecast.errors import DataError, InputError
from joulecast.validate.scoring.result import Prediction, ScoredRow, SuiteResult
from joulecast.validate.scoring.summary import summarise

#: From this size on transfers are bound by links, not by latencies [B].
LARGE_BYTES = 16 * 2**20
LARGE, SMALL = ">= 16 MB", "< 16 MB"
WHERE = {"links": "within a node", "host": "over the host", "network": "between nodes"}


def run_network(data: str | Path, gpu: str | None = None) -> SuiteResult:
    """Score the sizes that nothing was fitted to.

    Raises
    ------
    DataError
        The table cannot be read, or is too short to fit and score.
    InputError
        A GPU is named: the rows name theirs.
    """
    if gpu is not None:
        raise InputError("suite 'network' takes the GPUs that its rows name", key="--gpu", remedy="Leave it out.")
    rows = read_network_rows(data)
    fitted, others = every_second_size(rows)
    if not others:
        raise DataError("every series has one size only", file=str(data), remedy="Give series of two sizes or more.")
    training, scored = [rows[i] for i in fitted], [rows[i] for i in others]
    constants, rule = _fit_by_size(training), one_bandwidth(training)
    times = {size: network_times(scored, known).tolist() for size, known in constants.items()}
    own = [times[_size(row)][i] for i, row in enumerate(scored)]
    return SuiteResult(
        suite="network",
        gpu=", ".join(sorted({SYSTEMS[row.system].gpu for row in scored})),
        rows=(found := tuple(_scored_rows(scored, own, rule, str(data)))),
        summary=summarise(found),
        protocol="rates of networks fitted to every second size, of large and of small messages, scored on the others; "
        "trivial rule: one bus bandwidth of each system, kind and place",
        details={"constants": {size: dict(known.values) for size, known in constants.items()}},
    )


def _size(row: NetworkRow) -> str:
    return LARGE if row.bytes >= LARGE_BYTES else SMALL


def _fit_by_size(rows: Sequence[NetworkRow]) -> dict[str, NetworkConstants]:
    """Constants of large and of small messages; those that rows of one kind do not tell are of all rows."""
    of_all = fit_network(rows).values
    return {
        size: NetworkConstants({**of_all, **fit_network([row for row in rows if _size(row) == size]).values})
        for size in (LARGE, SMALL)
    }


def _scored_rows(
    rows: Sequence[NetworkRow], times_s: Sequence[float], rule: dict[tuple[str, str, str], float], file: str
) -> list[ScoredRow]:
    found = []
    for row, time in zip(rows, times_s, strict=True):
        size = _size(row)
        configuration = {"system": row.system, "gpus": row.gpus, "bytes": row.bytes, "gpus_per_node": row.per_node}
        found.append(
            ScoredRow(
                Row(row.name, row.kind, configuration, Measured(time_s=row.time_s), file, row.line),
                Prediction(time_s=time),
                family=WHERE[row.joined_by],
                groups=(f"{WHERE[row.joined_by]}, {size}", size, f"{row.system}, {size}"),
                baseline=Prediction(time_s=bus_bytes(row) / rule[row.system, row.kind, row.joined_by]),
            )
        )
    return found
