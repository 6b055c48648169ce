"""Descriptions from files of measured rows, and what the rows say about each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.calibrate.descriptions.describe import FIT_FILES, RowsFit, fit_all
from joulecast.calibrate.descriptions.describe_unclocked import fit_unclocked_rows
from joulecast.calibrate.fit.device_priors import priors_for
from joulecast.calibrate.fit.unclocked import is_unclocked
from joulecast.calibrate.rows.measured import Row, of_card, read_rows, recorded_rows
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu, read_gpu
from joulecast.model.hardware.description import GpuDescription, Table

#: The shipped description that is fitted from the shipped rows, and whose data-sheet facts it has.
SHIPPED_NAME, SHIPPED_BASE = "h200-sxm-rows", "h200-sxm"
SHIPPED_PROVENANCE = (
    "Fit of kernels and collectives recorded on H200 SXM (driver 580.159, CUDA 13.0, torch 2.11, NCCL 2.28), 2026-11; "
    "calibrate/recorded/h200_sxm"
)
#: Correlations from this size on are worth knowing: the rows tell the two parameters apart only poorly.
STRONG_CORRELATION = 0.8


@dataclass(frozen=True, slots=True)
class ParameterReport:
    """What a fit says about one parameter.

    Attributes
    ----------
    table, name, unit, status
        As in the description.
    value, sd
        Estimate and standard error.
    lower, upper
        Bounds of the search; ``None`` where there are none.
    free
        Whether rows were asked about it; the others are fixed.
    identified
        Share of the prior variance that the rows removed; ``None`` for what no row was asked about.
    correlated_with, correlation
        The parameter of the same table with which the estimate is entangled most, if strongly; else empty and ``None``.
    """

    table: str
    name: str
    value: float
    sd: float
    unit: str
    status: str
    lower: float | None
    upper: float | None
    free: bool
    identified: float | None
    correlated_with: str = ""
    correlation: float | None = None


def fit_rows(
    rows: Sequence[str | Path] = (), *, base: str | Path = SHIPPED_BASE, name: str = "", cross_validate: bool = True
) -> RowsFit:
    """Fit a GPU description to files of measured rows.

    Parameters
    ----------
    rows
        JSON-lines files or folders of them, or published tables, of which the rows of ``base``'s product count; without
        any, the recorded rows that the package ships.
    base
        Catalogue name or file of the GPU whose data-sheet facts the description takes over.
    name
        Of the description; by default of the base, and of the shipped description for the shipped rows.
    cross_validate
        Also learn how far forecasts are off; without it there are no discrepancies.

    Raises
    ------
    DataError
        A broken line of a file, or a missing file.
    InputError
        No usable row, or an unusable base.
    """
    if rows:
        measured = _of_base(read_rows([Path(row) for row in rows]), base)
        provenance = f"fitted from {', '.join(Path(row).name for row in rows)}"
        if is_unclocked(measured):
            return fit_unclocked_rows(measured, load_gpu(base), name, provenance)
    else:
        measured, provenance = recorded_rows(files_=FIT_FILES), SHIPPED_PROVENANCE
        name = name or SHIPPED_NAME
    facts = facts_of(base)
    try:
        return fit_all(
            measured,
            facts,
            name=name or None,
            provenance=provenance,
            cross_validate=cross_validate,
            of_one_card=bool(rows),
        )
    except InputError as error:
        if error.file is not None or not rows:
            raise
        files = ", ".join(map(str, rows))
        raise InputError(error.message, file=files, key=error.key, remedy=error.remedy) from None


def _of_base(rows: Sequence[Row], base: str | Path) -> list[Row]:
    """The rows that the base's product measured."""
    device = read_gpu(base).device
    mine = of_card(rows, device)
    if rows and not mine:
        labels = sorted({str(row.configuration.get("card_label", "another card")) for row in rows})
        wrong = f"none of {len(rows)} rows was measured on {device['product'].value}, but on {', '.join(labels)}"
        raise InputError(wrong, key="--gpu", remedy="Name the card that measured them.")
    return mine


def facts_of(base: str | Path) -> GpuDescription:
    """The data-sheet facts of a GPU with empty tables: nothing of an older fit may reach a new one."""
    parsed = read_gpu(base)
    empty = Table("", {})
    return GpuDescription(parsed.name, parsed.device, empty, empty, empty, empty, empty, empty, empty)


def parameter_reports(fit: RowsFit) -> list[ParameterReport]:
    """Every parameter of the fitted tables, table by table."""
    identified = {
        key: float(share)
        for solution in fit.solutions
        for key, share in zip(solution.names, solution.identified, strict=True)
    }
    priors = priors_for(fit.description.device).all
    found = []
    for table, content in fit.description.tables.items():
        partners = _partners(content)
        for key, parameter in content.parameters.items():
            share = identified.get(f"{table}.{key}")
            partner, correlation = partners.get(key, ("", None))
            prior = priors.get(f"{table}.{key}")
            found.append(
                ParameterReport(
                    table,
                    key,
                    parameter.number,
                    parameter.sd,
                    parameter.unit,
                    parameter.status,
                    None if prior is None else prior.lower,
                    None if prior is None else prior.upper,
                    share is not None,
                    None if share is None else round(share, 3),
                    partner,
                    correlation,
                )
            )
    return found


def _partners(table: Table) -> dict[str, tuple[str, float]]:
    """The strongest correlation of each jointly fitted parameter, where it is strong."""
    if len(table.covariance_names) < 2:
        return {}
    spread = np.sqrt(np.diag(table.covariance))
    correlation = table.covariance / np.outer(spread, spread)
    np.fill_diagonal(correlation, 0.0)
    found = {}
    for index, name in enumerate(table.covariance_names):
        other = int(np.argmax(np.abs(correlation[index])))
        value = float(correlation[index, other])
        if abs(value) >= STRONG_CORRELATION:
            found[name] = (table.covariance_names[other], round(value, 2))
    return found


def report_dict(fit: RowsFit) -> dict[str, Any]:
    """Parameters, discrepancies and counts of rows as plain data."""
    tables = fit.description.tables
    return {
        "name": fit.description.name,
        "rows": fit.rows,
        "left_out": fit.left_out,
        "unread": [asdict(row) for row in fit.unread],
        "parameters": [asdict(report) for report in parameter_reports(fit)],
        "discrepancy": {name: dict(table.discrepancy) for name, table in tables.items() if table.discrepancy},
    }
