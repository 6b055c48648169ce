"""How far forecasts are off on rows that their fit has not seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.calibrate.fit.collectives import collective_rows, mean_power_w
from joulecast.calibrate.fit.form_errors import likeliest_scale, likely_form_spread
from joulecast.calibrate.fit.power import card_factors
from joulecast.calibrate.fit.tables import collect
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import group_key
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.families import FAMILIES, families_of
from joulecast.model.kernels.operators import Attention, Gemm, Operator, Streaming
from joulecast.model.predict import parameter_spread, predict_work
from joulecast.model.repeated_work import Work

#: Parts into which rows are dealt.
FOLDS = 5
#: Share of the level at which a board holds its power above which a measured power is taken to be held: 99 % of the
#: rows whose forecast demand is 15 % or more above that level are.
HELD_FROM = 0.95

#: Table, then operator family, then quantity to relative standard deviation.
Discrepancies = dict[str, dict[str, dict[str, float]]]


@dataclass(frozen=True)
class HeldOut:
    """Rows of kernels and collectives as forecasts need them; ``n`` rows.

    Attributes
    ----------
    rows, work, families
        The rows, what each repeats, and its operator family; none where its kernels are of several.
    time_s, power_w
        Measured, mean over GPUs; NaN where not measured.
    """

    rows: tuple[Row, ...]
    work: tuple[Work, ...]
    families: tuple[str | None, ...]
    time_s: Array
    power_w: Array


def held_out(rows: Sequence[Row], gpu: GpuModel) -> HeldOut:
    """Rows with a measured time and their operators.

    Rows that ran beside a companion, or whose clock or limit was set, are left out: the card did not decide on their
    clock. So are repeats of one kernel on many cards, which would count its error many times.
    """
    data = collect([r for r in rows if not (r.configuration.get("companion") or r.is_set or _is_repeat(r))])
    kept, times, powers = list(data.rows), data.time_s.tolist(), data.power_w.tolist()
    owned: list[list[tuple[Operator, float]]] = [[] for _ in kept]
    for operator, count, owner in zip(data.operators, data.counts.tolist(), data.owner, strict=True):
        owned[owner].append((operator, count))
    for row, operator in collective_rows(rows):
        kept.append(row)
        owned.append([(operator, 1.0)])
        times.append(float(row.measured.time_s or np.nan))
        powers.append(mean_power_w(row))
    work = tuple(Work(tuple(o for o, _ in own), tuple(c for _, c in own)) for own in owned)
    return HeldOut(
        tuple(kept),
        work,
        tuple(_family(one, gpu) for one in work),
        np.array(times),
        np.array(powers),
    )


def _family(work: Work, gpu: GpuModel) -> str | None:
    of = {int(family) for family in families_of(work.operators, gpu.device)}
    return FAMILIES[of.pop()] if len(of) == 1 else None


def _without_tiles(operator: Operator) -> Operator:
    """The kernel without its tiles and values."""
    if isinstance(operator, Gemm):
        return replace(operator, tile=None, data="")
    if isinstance(operator, Attention):
        return replace(operator, tile=None)
    if isinstance(operator, Streaming):
        return replace(operator, tile_rows=0, tile_columns=0, warps=0, data="")
    return operator


def _is_repeat(row: Row) -> bool:
    return str(row.configuration.get("card", "")).startswith("others-")


@dataclass(frozen=True, slots=True)
class Miss:
    """How far a forecast of a held-out row is off, relative, and how far its parameters' uncertainty lets it be.

    ``kernel`` is what ran, whatever its tiles and values: these share what the form gets wrong. ``energy`` and
    ``power`` are NaN where they were not measured. ``power`` is that of the kernel without the board's limit; where the
    limit held it in the measurement, which ``power_held`` says by 1, it is the most that it may be off upwards.
    """

    kernel: tuple[Operator, ...]
    time: float
    energy: float
    power: float
    time_spread: float
    energy_spread: float
    power_spread: float
    power_held: float


def discrepancies(rows: Sequence[Row], fit: Callable[[Sequence[Row]], GpuModel]) -> Discrepancies:
    """What the form gets wrong by operator family, cross-validated, as relative standard deviations.

    Parameters
    ----------
    rows
        Measured rows.
    fit
        From rows to a GPU with its description, whose covariance tells the parameters' part.

    Returns
    -------
    dict
        Beside the parameters' part, what :func:`likely_form_spread` finds for each family; empty of one kernel alone.
    """
    misses: dict[str, list[Miss]] = {}
    keys = [repr(group_key(row.configuration)) for row in rows]
    fold_of = {key: i % FOLDS for i, key in enumerate(sorted(set(keys)))}
    for fold in range(FOLDS):
        others = [row for row, key in zip(rows, keys, strict=True) if fold_of[key] != fold]
        if not collect(others).rows:  # no kernel to learn from
            continue
        gpu = fit(others)
        held = [row for row, key in zip(rows, keys, strict=True) if fold_of[key] == fold]
        for family, miss in held_out_misses(held, gpu):
            misses.setdefault(family, []).append(miss)
    return {
        table: _of_families({f: of for f, of in misses.items() if f.startswith("collective") == its_own})
        for table, its_own in (("kernel", False), ("collective", True))
    }


def estimated_forms(rows: Sequence[Row], gpu: GpuModel, families: Collection[str]) -> dict[str, dict[str, float]]:
    """What the form of families gets wrong whose rows no description is fitted to, as :func:`discrepancies` has it.

    Parameters
    ----------
    rows
        Measured rows; those of other families are left aside.
    gpu
        What forecasts them, with its description.
    """
    misses: dict[str, list[Miss]] = {}
    for family, miss in held_out_misses(rows, gpu):
        if family in families:
            misses.setdefault(family, []).append(miss)
    return _of_families(misses)


def _of_families(misses: Mapping[str, Sequence[Miss]]) -> dict[str, dict[str, float]]:
    """Spreads of families, in the order of their names, each taken to resemble the others."""
    every = [miss for _, of in sorted(misses.items()) for miss in of]
    return {family: _spreads(of, every) for family, of in sorted(misses.items())}


def _spreads(misses: Sequence[Miss], every: Sequence[Miss]) -> dict[str, float]:
    """Of a family among ``every`` miss of its table."""
    found = {}
    for quantity in ("time", "energy", "power"):
        usual = likeliest_scale(*_errors(every, quantity))
        found[quantity] = likely_form_spread(*_errors(misses, quantity), usual)
    return found


def _errors(misses: Sequence[Miss], quantity: str) -> tuple[Array, Array, Int, Bool]:
    """Errors that were measured, their spreads, which kernel each is of, and of which only a bound is known."""
    known = [miss for miss in misses if np.isfinite(getattr(miss, quantity))]
    kernels: dict[tuple[Operator, ...], int] = {}
    kernel = np.array([kernels.setdefault(miss.kernel, len(kernels)) for miss in known], dtype=np.int64)
    errors, spreads = (np.array([getattr(miss, q) for miss in known]) for q in (quantity, f"{quantity}_spread"))
    bound = np.array([quantity == "power" and miss.power_held > 0 for miss in known], dtype=bool)
    return errors, spreads, kernel, bound


def held_out_misses(rows: Sequence[Row], gpu: GpuModel) -> list[tuple[str, Miss]]:
    """Family and miss of every row of a kernel or collective, its clock not given.

    Each is forecast for the card that measured it, as far as the fit knows that: how far cards differ is told apart.
    """
    data = held_out(rows, gpu)
    cards: dict[str, list[int]] = {}
    for place, (row, family) in enumerate(zip(data.rows, data.families, strict=True)):
        if family is not None:
            cards.setdefault(str(row.configuration.get("card") or ""), []).append(place)
    found: list[tuple[str, Miss]] = []
    for card, places in sorted(cards.items()):
        found += _misses_of_card(data, places, gpu.with_values(card_factors(card, gpu)))
    return found


def _misses_of_card(data: HeldOut, places: Sequence[int], gpu: GpuModel) -> list[tuple[str, Miss]]:
    work = [data.work[i] for i in places]
    settle = np.array([data.rows[i].settle_s for i in places])
    window = np.array([data.rows[i].window_s for i in places])
    forecast = predict_work(work, gpu, settle_s=settle, window_s=window)
    spreads = parameter_spread(work, gpu, settle_s=settle, window_s=window)
    time, power = data.time_s[places], data.power_w[places]
    held = power > HELD_FROM * forecast.held_w
    off = (
        np.log(forecast.time_s / time),
        np.log(forecast.energy_j / (power * time)),
        np.log(forecast.demand_w / power),
    )
    columns = np.stack([*off, *spreads, held], axis=1).tolist()
    return [
        (str(data.families[i]), Miss(tuple(map(_without_tiles, data.work[i].operators)), *row))
        for i, row in zip(places, columns, strict=True)
    ]
