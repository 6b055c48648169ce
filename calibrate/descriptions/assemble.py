"""From fitted parameters to a GPU description with provenance, covariance and discrepancy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.fit.device_priors import priors_for
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.solve import Solution
from joulecast.model.hardware.description import TABLES, GpuDescription, Parameter, Table
from joulecast.model.power.kernel_power import CARD_FACTORS

#: Significant digits of values and of uncertainties in a description.
DIGITS, SPREAD_DIGITS = 5, 3
#: A parameter counts as fitted when the data removed this share of its prior variance.
IDENTIFIED = 0.1
#: Parameters with a correlation of at least this size to another one are kept together; the others are nearly
#: independent of each other. Correlations are kept to so many digits.
JOINT_CORRELATION, CORRELATION_DIGITS = 0.2, 4


def rounded(value: float, digits: int) -> float:
    """``value`` to a number of significant digits."""
    return float(f"{value:.{digits}g}")


def settled(value: float, spread: float) -> float:
    """``value`` to :data:`DIGITS`, without those far below ``spread``, in which two searches end differently."""
    if spread > 0:
        step = 10.0 ** (np.floor(np.log10(spread)) - DIGITS)
        value = float(np.round(value / step)) * step
    return rounded(value, DIGITS) + 0.0


def assemble(
    base: GpuDescription,
    name: str,
    solutions: Sequence[Solution],
    discrepancy: Mapping[str, Mapping[str, Mapping[str, float]]],
    provenance: str,
    *,
    of_one_card: bool = False,
) -> GpuDescription:
    """A description of ``base``'s device with the fitted tables.

    Parameters
    ----------
    solutions
        Of the stages; a later one wins where a parameter is in several.
    discrepancy
        Table to family to relative standard deviation of time and energy.
    of_one_card
        Whether the description is of the card that was measured, and of no other of its kind.
    """
    expected = priors_for(base.device)
    priors = expected.all
    parameters: dict[str, Parameter] = {n: _fixed(p) for n, p in expected.fixed.items()}
    if of_one_card:
        parameters |= {n: Parameter(1.0, 0.0, "", "the card itself was measured", "measured") for n in CARD_FACTORS}
    solutions = [capped(one, [priors[name].sd for name in one.names]) for one in solutions]
    for solution in solutions:
        spread = np.sqrt(np.diag(solution.covariance))
        joint = set(_entangled(solution))
        for index, key in enumerate(solution.names):
            identified = float(solution.identified[index])
            own = float(spread[index]) if identified >= IDENTIFIED or index in joint else priors[key].sd
            parameters[key] = _fitted(priors[key], solution.values[index], own, identified)
    for key, prior in priors.items():  # tables that no row was asked about are still needed by forecasts
        parameters.setdefault(key, _fitted(prior, prior.start, prior.sd, 0.0))
    tables: dict[str, Table] = {}
    for table in TABLES:
        mine = {k.removeprefix(f"{table}."): p for k, p in sorted(parameters.items()) if k.startswith(f"{table}.")}
        names, matrix = joint_covariance(table, solutions)
        tables[table] = Table(
            provenance=provenance,
            parameters=mine,
            covariance_names=names,
            covariance=matrix,
            discrepancy={f: dict(of) for f, of in discrepancy.get(table, {}).items()},
            name=table,
        )
    return GpuDescription(name, base.device, **tables, derivation="")


def _fixed(prior: Prior) -> Parameter:
    return Parameter(prior.start, rounded(prior.sd, SPREAD_DIGITS), prior.unit, prior.source, "estimate")


def _fitted(prior: Prior, value: float, spread: float, identified: float) -> Parameter:
    source, status = f"fit; the rows removed {100 * identified:.0f} % of the prior variance", "fitted"
    if identified < IDENTIFIED:
        source, status = f"prior: {prior.source}", "assumed"
    return Parameter(settled(value, prior.sd), rounded(spread, SPREAD_DIGITS), prior.unit, source, status)


def capped(solution: Solution, before: Sequence[float]) -> Solution:
    """A solution whose uncertainty, widened by how badly its form fits, is nowhere wider than ``before`` the fit."""
    spread, most = np.sqrt(np.diag(solution.covariance)), np.array(before)
    wider = spread > most * (1.0 - 1e-9)
    factor = np.divide(most, spread, out=np.ones_like(spread), where=wider)
    covariance = solution.covariance * np.outer(factor, factor)
    # To the last bit what it was before, where machines' algebra differs: a digit in a description hangs on it.
    covariance[wider, wider] = most[wider] ** 2
    return replace(solution, covariance=covariance)


def _entangled(solution: Solution) -> list[int]:
    """Places of the parameters that a fit could not tell apart from others."""
    spread = np.sqrt(np.diag(solution.covariance))
    spread[spread == 0] = 1.0
    correlation = np.abs(solution.covariance / np.outer(spread, spread))
    return np.flatnonzero((correlation >= JOINT_CORRELATION).sum(axis=1) > 1).tolist()


def _home(solution: Solution) -> str:
    """The table that keeps a solution's covariance: that of most of its parameters."""
    tables = [name.partition(".")[0] for name in solution.names]
    return max(TABLES, key=tables.count)


def joint_covariance(table: str, solutions: Sequence[Solution]) -> tuple[tuple[str, ...], Array]:
    """Covariance of the parameters that belong together; those of other tables keep their full names."""
    entries = {s.names[i]: (s, i) for s in solutions if _home(s) == table for i in _entangled(s)}
    names = tuple(sorted(entries))
    matrix = np.zeros((len(names), len(names)))
    for a, first in enumerate(names):
        for b, second in enumerate(names):
            (solution, i), (other, j) = entries[first], entries[second]
            if solution is other:
                matrix[a, b] = solution.covariance[i, j]
    return tuple(n.removeprefix(f"{table}.") for n in names), _round_covariance(matrix)


def _round_covariance(matrix: Array) -> Array:
    """Rounded correlations times rounded spreads, pulled to the diagonal where rounding would leave them indefinite."""
    if not len(matrix):
        return matrix
    spread = np.sqrt(np.diag(matrix))
    correlation = matrix / np.outer(spread, spread)
    reach = len(matrix) ** 0.5 * 10.0**-CORRELATION_DIGITS  # so far may rounding move an eigenvalue
    if float(np.linalg.eigvalsh(correlation)[0]) < reach:
        correlation *= 1.0 - reach
    correlation = np.round(correlation, CORRELATION_DIGITS)
    np.fill_diagonal(correlation, 1.0)
    short = [rounded(float(s), SPREAD_DIGITS) for s in spread]
    scaled = correlation * np.outer(short, short)
    return np.asarray(np.vectorize(lambda v: rounded(float(v), 6), otypes=[np.float64])(scaled))
