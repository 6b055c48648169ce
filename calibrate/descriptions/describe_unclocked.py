"""A description of a card from published times: the derived one, with the parameters that they could be fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from joulecast.calibrate.descriptions.assemble import (
    IDENTIFIED,
    SPREAD_DIGITS,
    capped,
    joint_covariance,
    rounded,
    settled,
)
from joulecast.calibrate.descriptions.describe import RowsFit
from joulecast.calibrate.fit.form_errors import form_spread
from joulecast.calibrate.fit.solve import Solution
from joulecast.calibrate.fit.unclocked import Unclocked, fit_unclocked, forecast_rows, observed_forecast, usable
from joulecast.calibrate.rows.measured import Row
from joulecast.errors import InputError
from joulecast.model.hardware.derivation import merge
from joulecast.model.hardware.description import GpuDescription, Parameter, Table
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.families import FAMILIES
from joulecast.model.kernels.lowering import lower

#: Rows that were not fitted are this much further off than those that were [estimate from halves of published tables].
UNSEEN = 1.15


def fit_unclocked_rows(rows: Sequence[Row], base: GpuDescription, name: str = "", provenance: str = "") -> RowsFit:
    """Fit the derived description of a card to times without clocks.

    Parameters
    ----------
    rows
        Measured rows; those that are not one kernel with a time are left out and counted.
    base
        The card as it is derived; its uncertainties are the priors, and what no row asks about stays as it is.
    name, provenance
        Of the description; by default the base's, and how many rows were fitted.

    Raises
    ------
    InputError
        No usable row.
    """
    data = usable(rows)
    if not data.rows:
        raise InputError("no row of a kernel with a time to fit on", remedy="Give rows of single kernels.")
    before = {f"{table}.{key}": p.sd for table, of in base.tables.items() for key, p in of.parameters.items()}
    solutions = [capped(one, [before[name] for name in one.names]) for one in fit_unclocked(data, base)]
    words = provenance or f"times of {len(data.rows)} kernels without clocks"
    tables: dict[str, Any] = {table: _fitted(content, solutions, words) for table, content in base.tables.items()}
    fitted = replace(base, name=name or base.name, derivation="", **tables)
    kernel = replace(fitted.kernel, discrepancy={**fitted.kernel.discrepancy, **_discrepancy(data, fitted)})
    return RowsFit(replace(fitted, kernel=kernel), tuple(solutions), len(data.rows), len(rows) - len(data.rows))


def _fitted(table: Table, solutions: Sequence[Solution], words: str) -> Table:
    """A table with the parameters that the rows told something about, alone or together with others."""
    names, matrix = joint_covariance(table.name, solutions)
    told: dict[str, Parameter] = {}
    for solution in solutions:
        spread = np.sqrt(np.diag(solution.covariance))
        for index, full in enumerate(solution.names):
            owner, _, key = full.partition(".")
            share = float(solution.identified[index])
            if owner != table.name or (share < IDENTIFIED and key not in names):
                continue
            before = table.parameters[key]
            told[key] = Parameter(
                settled(float(solution.values[index]), before.sd),
                rounded(float(spread[index]), SPREAD_DIGITS),
                before.unit,
                f"{words}; they removed {100 * share:.0f} % of the variance of the derivation ({before.source})",
                "fitted" if share >= IDENTIFIED else before.status,
            )
    return merge(table, Table(words, told, names, matrix, table.discrepancy, table.name)) if told else table


def _discrepancy(data: Unclocked, fitted: GpuDescription) -> dict[str, dict[str, float]]:
    """What the form gets wrong by operator family on the fitted rows, widened for rows that were not."""
    gpu = gpu_model(fitted)
    times = observed_forecast(forecast_rows(data.works, data.rows, replace(gpu, description=None)), data.rows).time_s
    errors = np.log(times / data.time_s)
    families = lower([work.operators[-1] for work in data.works], gpu).family
    found = {}
    for index in np.unique(families):
        mine = errors[families == index]
        size = round(UNSEEN * form_spread(mine, np.zeros(len(mine))), 3)
        before = fitted.kernel.discrepancy.get(FAMILIES[index], {})
        found[FAMILIES[index]] = {"energy": size, **before, "time": size}
    return found
