"""Fits a whole GPU description: kernels, power, collectives, governor, and how far the forms themselves are off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.descriptions.assemble import assemble
from joulecast.calibrate.fit.collectives import fit_collectives
from joulecast.calibrate.fit.contention import fit_contention
from joulecast.calibrate.fit.cross_validation import discrepancies
from joulecast.calibrate.fit.device_priors import DevicePriors, priors_for
from joulecast.calibrate.fit.power import at_rest, bursts, fit_power
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.solve import Solution
from joulecast.calibrate.fit.tables import FitRows, at_board_clocks, collect, fit_times
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.unread import Unread, unread
from joulecast.errors import InputError
from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.lowering import lower

#: Files of the shipped rows that a fit reads.
FIT_FILES = (
    "cards.jsonl",
    "collectives.jsonl",
    "collectives8.jsonl",
    "idle.jsonl",
    "kernels.jsonl",
    "kernels_clock.jsonl",
    "kernels_steady.jsonl",
    "kernels_training.jsonl",
    "overlap_parts.jsonl",
    "pulses.jsonl",
)
#: Least spread of a mean, as a share of what it is without any row.
LEAST_SPREAD = 0.1
#: Kinds of rows that only ever validate.
VALIDATION_OPS = ("block", "decode", "train_step", "train_iter")


@dataclass(frozen=True)
class Fitted:
    """Values of all parameters, and the solutions of the stages that gave them."""

    model: GpuModel
    solutions: tuple[Solution, ...]


def fit_model(rows: Sequence[Row], base: GpuDescription, *, overlapped: bool = True) -> Fitted:
    """Fit every table on rows; what no row identifies stays at its prior.

    Without ``overlapped`` the table ``contention`` does too: forecasts of what runs alone do not read it.
    """
    rows = at_board_clocks(rows)
    data = collect(rows)
    if not data.rows:
        raise InputError("no row of a kernel with time and clock to fit on", remedy="Give rows of single kernels.")
    priors = priors_for(base.device)
    gpu = GpuModel(base.name, gpu_model(base).device, priors.starts())
    gpu, times = fit_times(data, gpu, priors)
    gpu, power = fit_power(data, bursts(rows), at_rest(rows), gpu, priors.power)
    gpu, collectives = fit_collectives(rows, gpu, priors.collective)
    governor = fit_governor(data, gpu, priors)
    gpu = gpu.with_values(governor.as_dict())
    gpu, contention = fit_contention(rows if overlapped else (), gpu, priors.contention)
    found = [*times, *power, governor, *(s for s in (collectives, contention) if s is not None)]
    return Fitted(gpu, tuple(found))


def fit_governor(data: FitRows, gpu: GpuModel, priors: DevicePriors) -> Solution:
    """Share of the limit at which long windows settle, and the clock of the limit on tensor throughput."""
    limit = gpu.device["power_limit_w"]
    raw = [r.measured.raw for r in data.rows]
    capped = np.array([float(r.get("power_cap_fraction") or 0.0) > 0.95 for r in raw])
    own = data.settled & np.array([not r.is_set for r in data.rows], dtype=np.bool_)
    at_limit = own & capped & (data.power_w > 0.96 * limit)
    names = ("governor.settled_share", "governor.tensor_clock_mhz")
    expected = [priors.governor[name] for name in names]
    share, spread = _mean(data.power_w[at_limit] / limit, expected[0])
    use = _tensor_use(data, gpu)
    held = own & capped & (data.power_w < 0.9 * limit) & (use > 0.5)
    clock, clock_spread = _mean(data.clock_mhz[held] * use[held], expected[1])
    known = np.array([float(at_limit.any()), float(held.any())])
    return Solution(names, np.array([share, clock]), np.diag([spread**2, clock_spread**2]), known)


def _mean(values: Array, prior: Prior) -> tuple[float, float]:
    """Mean and standard deviation; a few equal readings do not make either certain."""
    if not len(values):
        return prior.start, prior.sd
    spread = float(np.std(values)) if len(values) > 1 else prior.sd
    return float(np.mean(values)), max(spread, LEAST_SPREAD * prior.sd)


def _tensor_use(data: FitRows, gpu: GpuModel) -> Array:
    costs = lower(data.operators, gpu)
    return np.asarray(np.bincount(data.owner, costs.tensor_use, len(data.rows)))


def refit_contention(rows: Sequence[Row], base: GpuDescription) -> GpuDescription:
    """The same description with its table ``contention`` fitted to rows of overlapped work.

    Raises
    ------
    InputError
        No row of overlapped work.
    """
    _, solution = fit_contention(rows, gpu_model(base), priors_for(base.device).contention)
    if solution is None:
        raise InputError(
            "no row of overlapped work to fit on", remedy="Give rows with something beside something else."
        )
    fitted = assemble(base, base.name, [solution], {}, "fitted to given rows of overlapped work")
    return replace(base, contention=fitted.contention)


@dataclass(frozen=True, eq=False)
class RowsFit:
    """A description with the solutions behind it.

    Attributes
    ----------
    description
        The GPU with its fitted tables.
    solutions
        Of the stages of the fit.
    rows, left_out
        Rows that were fitted to, and rows left out because they only ever validate.
    unread
        Rows that the fit cannot read, and why.
    """

    description: GpuDescription
    solutions: tuple[Solution, ...]
    rows: int
    left_out: int
    unread: tuple[Unread, ...] = ()


def fit_all(
    rows: Sequence[Row],
    base: GpuDescription,
    *,
    name: str | None = None,
    provenance: str = "fitted from given rows",
    cross_validate: bool = True,
    of_one_card: bool = True,
) -> RowsFit:
    """Fit a description of ``base``'s device to measured rows of kernels and collectives.

    Parameters
    ----------
    rows
        Measured rows; those of blocks and iterations are left out and counted, so that they stay independent.
    base
        Gives the device's data-sheet facts, and the discrepancies where ``cross_validate`` is false.
    name
        Of the description; by default ``base``'s.
    provenance
        Of its tables: which rows, when.
    cross_validate
        Refit without each fifth of the rows to learn how far forecasts are off; five times the work.
    of_one_card
        Whether the description is for the card of the unlabelled rows; else for any of its kind, whose cards differ.

    Raises
    ------
    InputError
        No usable row.
    """
    kept = [r for r in rows if r.op not in VALIDATION_OPS]
    fitted = fit_model(kept, base)
    if cross_validate:
        discrepancy = discrepancies(kept, lambda training: _described(training, base))
    else:
        discrepancy = {t: dict(getattr(base, t).discrepancy) for t in ("kernel", "collective")}
    own = of_one_card and not all(r.configuration.get("card") for r in kept)
    description = assemble(base, name or base.name, fitted.solutions, discrepancy, provenance, of_one_card=own)
    lost = unread(kept)
    return RowsFit(description, fitted.solutions, len(kept) - len(lost), len(rows) - len(kept), lost)


def _described(rows: Sequence[Row], base: GpuDescription) -> GpuModel:
    """A fit with its covariance, and with the factors of the single cards that it met."""
    fitted = fit_model(rows, base, overlapped=False)
    described = gpu_model(assemble(base, base.name, fitted.solutions, {}, "fold", of_one_card=True))
    return described.with_values({n: v for n, v in fitted.model.parameters.items() if n.startswith("card.")})
