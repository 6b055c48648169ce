"""A description with a user's own kernels, from rows of them: see :mod:`joulecast.model.kernels.own_kernels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.descriptions.assemble import DIGITS, rounded
from joulecast.calibrate.fit.unclocked import forecast_rows
from joulecast.calibrate.rows.measured import Row, of_card
from joulecast.calibrate.rows.operators import KernelWork, operator_of
from joulecast.calibrate.rows.timing import observed_time_s
from joulecast.errors import DataError, InputError, counted
from joulecast.model.hardware.description import GpuDescription, Parameter
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.own_kernels import KINDS, OWN, QUANTITIES, interpolated, kind_of, knots, own_kinds, work_of
from joulecast.model.power.kernel_power import at_clock, clock_tree_power_w, static_power_w

#: A factor on time or energy beyond this, or below one over it, is a mistake: another unit, shape or card.
MOST = 30.0
#: Standard deviation of a single row's factor, of whose scatter nothing is known, over the factor's logarithm
#: [estimate].
ALONE = 0.5


def with_own_kernels(rows: Sequence[Row], base: GpuDescription, name: str = "") -> GpuDescription:
    """The base with kernels of a user's own.

    Parameters
    ----------
    rows
        Each of a kernel on one GPU, or of one that runs in place of several.
    base
        The card that measured them. Of own kernels that it has those of the rows' kinds are replaced.
    name
        Of the description; by default the base's, by which the factors of long training runs go.

    Raises
    ------
    InputError
        No row, or one that cannot be used, by file, line and key.
    """
    if not rows:
        raise InputError("no row of a kernel", key="--kernels", remedy="Give rows of kernels that were measured.")
    works = [_work(row, base) for row in rows]
    kinds = [_kinds(row, work) for row, work in zip(rows, works, strict=True)]
    plain = replace(_without(base, kinds), name=name or base.name)
    factors = _factors(rows, works, replace(gpu_model(plain), description=None))
    _refuse_absurd(rows, factors)
    return _described(plain, kinds, rows, factors)


def own_kernel_lines(description: GpuDescription) -> list[dict[str, Any]]:
    """A line for each kind of own kernels: its range of work, and its factors there with how far rows scatter."""
    gpu, lines = gpu_model(description), []
    for kind in own_kinds(gpu):
        work = knots(kind, "time", gpu)[0]
        line: dict[str, Any] = {"kernel": kind, "work_from": float(work[0]), "work_to": float(work[-1])}
        for quantity in QUANTITIES:
            factors = knots(kind, quantity, gpu)[1]
            low, high = (float(factors.min()), float(factors.max())) if len(factors) else (None, None)
            spread = description.kernel.parameters[f"{OWN}{kind}.{quantity}.all"].sd if len(factors) else None
            line |= {f"{quantity}_from": low, f"{quantity}_to": high, f"{quantity}_sd": spread}
        lines.append(line)
    return lines


def _work(row: Row, base: GpuDescription) -> KernelWork:
    """What a row ran, where it can be a user's own kernel on this card."""
    work, has, product = operator_of(row.configuration), row.configuration.get, base.text("product")
    card, several = has("gpu", product), ", ".join(operator.name for operator in work.operators)
    foreign = card not in (base.name, product) or not of_card([row], base.device)
    fields = "What rows state is in docs/extend/kernel.md."
    problems = (
        (foreign, f"measured on {has('card_label', card)}, not on {product}", "gpu", "Name its card as --base."),
        (bool(work.reason), work.reason, work.wrong_key or "op", fields),
        (row.gpus != 1, "a kernel of several GPUs", "gpus", "Give rows of kernels on one."),
        (not all(map(kind_of, work.operators)), "not a kernel of one GPU", "op", fields),
        (work.busy_share != 1.0, "the kernel pauses", "op", "Give rows of kernels back to back."),
        (len(work.operators) > 1 and not has("of"), f"one in place of several ({several})", "of", "Say of what: loss."),
        (not row.measured.time_s, "nothing was timed", "time_s", "Write the time of one run in seconds."),
    )
    for wrong, problem, key, remedy in problems:
        if wrong:
            raise DataError(problem, file=row.file, line=row.line, key=key, remedy=remedy)
    try:
        lower(work.operators, gpu_model(base))
    except InputError as error:
        key = "pattern" if has("pattern") else "op"
        raise DataError(error.message, file=row.file, line=row.line, key=key, remedy=error.remedy) from None
    return work


def _kinds(row: Row, work: KernelWork) -> dict[str, float]:
    """The kinds of a row's kernels, and how much work of each it did."""
    part = row.configuration.get("of")
    return {kind_of(one) + (f".of.{part}" if part else ""): work_of(one) for one in work.operators}


def _without(base: GpuDescription, kinds: Sequence[Mapping[str, float]]) -> GpuDescription:
    """The base without its own kernels of these kinds."""
    gone = tuple(f"{OWN}{kind}.{quantity}." for of in kinds for kind in of for quantity in QUANTITIES)
    kept = {name: p for name, p in base.kernel.parameters.items() if not name.startswith(gone)}
    return replace(base, kernel=replace(base.kernel, parameters=kept))


def _factors(rows: Sequence[Row], works: Sequence[KernelWork], gpu: GpuModel) -> dict[str, Array]:
    """Factors of each row on its forecast time and dynamic energy, ``nan`` where none is known.

    The forecast is that at the measured clock; without one that at the clock which it finds itself, where a kernel that
    the limit holds is taken to draw the power that is forecast.
    """
    told = [(row.measured.time_s, _power_w(row), row.measured.sm_clock_mhz) for row in rows]
    measured_s, power, clock_mhz = np.array(told, dtype=np.float64).T
    settled, free = forecast_rows(works, rows, gpu), np.isnan(clock_mhz)
    clock_mhz = np.where(free, settled.clock_mhz, clock_mhz)
    power = np.where(np.isnan(power) & free & (settled.demand_w > settled.held_w), settled.power_w, power)
    owner = np.repeat(np.arange(len(works)), [len(work.operators) for work in works])
    counts = np.concatenate([np.array(work.counts or (1.0,) * len(work.operators)) for work in works])
    alone = at_clock(lower([o for work in works for o in work.operators], gpu), clock_mhz[owner], gpu)
    dynamic = alone.energy_j - alone.components_j["static"] - alone.components_j["clock"]
    forecast_s, forecast_j = (np.bincount(owner, counts * one) for one in (alone.time_s, dynamic))
    rest = static_power_w(0.0, gpu)  # of the rest of the power leakage takes a fixed share
    without_leakage = (power - rest) / (1.0 + static_power_w(1.0, gpu) - rest)
    spent_j = (without_leakage - clock_tree_power_w(clock_mhz, gpu)) * measured_s
    read_s = observed_time_s(rows, np.where(free, settled.time_s, forecast_s))
    return {"time": measured_s / read_s, "energy": spent_j / forecast_j}


def _power_w(row: Row) -> float | None:
    of = row.measured
    return of.power_w if of.energy_j is None or not of.time_s else of.energy_j / of.time_s


def _refuse_absurd(rows: Sequence[Row], factors: Mapping[str, Array]) -> None:
    words = {"time": ("time_s", "time"), "energy": ("energy_j", "energy above that of an idle GPU")}
    for quantity, (key, what) in words.items():
        for row, factor in zip(rows, factors[quantity], strict=True):
            if not (np.isnan(factor) or 1.0 / MOST <= factor <= MOST):
                wrong = f"the {what} is {factor:.3g} times the forecast one"
                remedy = "Give that of one run, in seconds and joules, of this shape on this card."
                raise DataError(wrong, file=row.file, line=row.line, key=key, remedy=remedy)


def _described(
    plain: GpuDescription, kinds: Sequence[Mapping[str, float]], rows: Sequence[Row], factors: Mapping[str, Array]
) -> GpuDescription:
    """The description with what the rows say of their kinds."""
    files = np.array([Path(row.file).name for row in rows])
    own = dict(plain.kernel.parameters)
    for kind in dict.fromkeys(kind for of in kinds for kind in of):
        work = np.array([of.get(kind, np.nan) for of in kinds])
        for quantity in QUANTITIES:
            known = ~np.isnan(work) & ~np.isnan(factors[quantity])
            if known.any():
                told = f"{counted(int(known.sum()), 'row')} of {', '.join(dict.fromkeys(files[known]))}"
                own |= _parameters(f"{OWN}{kind}.{quantity}", work[known], factors[quantity][known], told)
    own[KINDS] = Parameter(float(sum(name.endswith(".time.rows") for name in own)), 0.0, "", "counted", "measured")
    return replace(plain, kernel=replace(plain.kernel, parameters=own))


def _parameters(key: str, work: Array, factors: Array, source: str) -> dict[str, Parameter]:
    at, means = _means(work, factors)
    unit, spread = "B" if key.startswith(f"{OWN}streaming") else "FLOP", round(_scatter(work, factors), 4)
    made = {
        f"{key}.rows": Parameter(float(len(at)), 0.0, "", source, "measured"),
        f"{key}.all": Parameter(1.0, spread, "", f"{source}, which scatter so", "measured"),
    }
    for place, (one, factor) in enumerate(zip(at, means, strict=True), start=1):
        made[f"{key}.{place}.work"] = Parameter(float(one), 0.0, unit, source, "measured")
        made[f"{key}.{place}.factor"] = Parameter(rounded(float(factor), DIGITS), 0.0, "", source, "measured")
    return made


def _means(work: Array, factors: Array) -> tuple[Array, Array]:
    """Amounts of work, each once and ascending, and the geometric means of the factors there."""
    at, place = np.unique(work, return_inverse=True)
    return at, np.exp(np.bincount(place, np.log(factors)) / np.bincount(place))


def _scatter(work: Array, factors: Array) -> float:
    """How far rows lie from what all the others tell, root mean square of logarithms; of one row see :data:`ALONE`."""
    if len(work) < 2:
        return ALONE * float(np.abs(np.log(factors)).sum())
    others = (np.arange(len(work)) != i for i in range(len(work)))
    told = [interpolated(at, *_means(work[of], factors[of])) for at, of in zip(work, others, strict=True)]
    return float(np.sqrt(np.mean(np.log(factors / told) ** 2)))
