"""Fits the tables ``power`` and ``voltage`` to measured rows, at the clocks and times that were observed.

Leakage grows with a card's temperature. Of a row with a steady temperature the model knows it: what the row's power
makes of the air's temperature. Of a row whose temperature changed while it was measured the observed one is taken. The
air's temperature, the same for all rows, follows from the mean of the observed ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.solve import Solution, solve
from joulecast.calibrate.fit.tables import (
    IDLE_NOISE,
    POWER_NOISE,
    SHORT_POWER_NOISE,
    FitRows,
    collect,
    is_tiled,
    unsteady_c,
)
from joulecast.calibrate.rows.measured import Row
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.remembered import with_values
from joulecast.model.power.kernel_power import (
    CARD_FACTORS,
    clock_tree_power_w,
    kernel_time_s,
    static_power_at_w,
    static_power_w,
)
from joulecast.model.power.voltage import voltage_ratio

#: What differs between cards of one kind: the dynamic energy of the chip and of the memory.
CARD_PARTS = ("core", "memory")
#: How closely the mean of named cards' factors is 1 where no row is of the described card itself.
MEAN_CARD_NOISE = 0.002
#: How well the mean temperature of a card's rows tells that of its air: a window is too short for it to settle [K].
AIR_NOISE_K = 2.0


def power_at_observed_clock_w(data: FitRows, gpu: GpuModel) -> Array:
    """Power of each row at its observed clock and time, and temperature where that was not steady [W]."""
    costs = data.lowering(gpu)
    clock = data.clock_mhz
    times = kernel_time_s(costs, clock[data.owner], gpu)
    count = len(data.rows)
    u2 = voltage_ratio(clock, gpu) ** 2

    def total(column: Array) -> Array:
        return np.asarray(np.bincount(data.owner, column * data.counts, count) / data.time_s)

    activity = total(costs.activity * (times - costs.fixed_s))
    core = (gpu["power.clock_w"] + gpu["power.sm_w"] * activity) * clock / gpu.max_clock_mhz
    core = core + total(costs.tensor_j + costs.vector_j + costs.onchip_j)
    factors = np.array([list(card_factors(card, gpu).values()) for card in data.cards])
    core_factor, memory_factor = factors[data.card].T
    rest: Array = core * u2 * core_factor + total(costs.hbm_j) * memory_factor + total(costs.link_j)
    return rest + _static_w(rest, data.temperature_c, gpu)


def _static_w(rest_w: Array, temperature_c: Array, gpu: GpuModel) -> Array:
    """Static and leakage power at a temperature, and at the steady one where that is NaN [W]."""
    told = static_power_at_w(temperature_c, gpu)
    return np.where(np.isfinite(temperature_c), told, static_power_w(rest_w, gpu))


@dataclass(frozen=True)
class Rest:
    """A card that runs nothing: its clock [MHz], power [W] and unsteady temperature [°C], shape ``(n,)`` each."""

    clock_mhz: Array
    power_w: Array
    temperature_c: Array

    def expected_w(self, gpu: GpuModel) -> Array:
        """Power at the observed clock, and temperature where that was not steady [W]."""
        clocked = clock_tree_power_w(self.clock_mhz, gpu)
        return np.asarray(clocked + _static_w(clocked, self.temperature_c, gpu))


def at_rest(rows: Sequence[Row]) -> Rest:
    """The rows of an idle card."""
    idle = [r.measured for r in rows if r.op == "idle" and r.measured.power_w and r.measured.sm_clock_mhz]
    columns = [(m.sm_clock_mhz, m.power_w, unsteady_c(m)) for m in idle]
    return Rest(*np.array(columns, dtype=np.float64).reshape(-1, 3).T)


@dataclass(frozen=True)
class Air:
    """Mean temperature [°C] and power [W] of a card's rows: together they tell how warm its air is."""

    temperature_c: float
    power_w: float

    def error(self, gpu: GpuModel) -> float:
        """How far the temperature of a card of this mean power is off, in units of its noise."""
        steady = gpu["power.inlet_c"] + gpu["power.thermal_resistance_k_per_w"] * self.power_w
        return (steady - self.temperature_c) / AIR_NOISE_K


def _air(data: FitRows) -> Air | None:
    """Of the described card's rows that tell how the temperature changed, or of all if none is its own."""
    told = [
        (row.measured.temperature_c, row.measured.power_w, not row.configuration.get("card"))
        for row in data.rows
        if row.measured.temperature_change_k is not None
    ]
    whole = [(heat, power, own) for heat, power, own in told if heat is not None and power is not None]
    chosen = [one for one in whole if one[-1]] or whole
    return Air(*np.mean(chosen, axis=0)[:2].tolist()) if chosen else None


def fit_power(
    data: FitRows, pulses: FitRows, rest: Rest, gpu: GpuModel, priors: Mapping[str, Prior]
) -> tuple[GpuModel, list[Solution]]:
    """Fit the tables ``power`` and ``voltage`` of a GPU whose kernel times are fitted.

    Kernels with explicit tiles have energies of their own, fitted last: their short windows shall not move the others.
    """
    gpu = gpu.with_values({name: p.start for name, p in priors.items()})
    air = _air(data)
    block = collect([*data.select(np.isfinite(data.power_w)).rows, *pulses.rows])
    priors = {**priors, **card_priors(block.cards)}
    averaged = block.cards[1:] if block.card.all() else ()
    tiled = np.array([is_tiled(r) for r in block.rows], dtype=np.bool_)
    solutions = []
    for chosen, names in (
        (block.select(~tiled), [n for n in priors if not n.startswith("power.tile_")]),
        (block.select(tiled), [n for n in priors if n.startswith("power.tile_")]),
    ):
        solution = _fit_power_block(chosen, rest, air, averaged, gpu, priors, names)
        gpu = gpu.with_values(solution.as_dict())
        solutions.append(without_cards(solution))
    return gpu, solutions


def card_factors(card: str, gpu: GpuModel) -> dict[str, float]:
    """The energy of a labelled card over the description's, by parameter; 1 for one that the fit has not met."""
    values = [gpu.get(f"card.{card}.{part}", 1.0) for part in CARD_PARTS]
    return dict(zip(CARD_FACTORS, values, strict=True))


def card_priors(cards: Sequence[str]) -> dict[str, Prior]:
    """How much more or less energy each named card may need; the card without a name is the measure."""
    spread = dict(zip(CARD_PARTS, (0.02, 0.06), strict=True))
    return {f"card.{card}.{part}": Prior(1.0, 0.7, 1.3, spread[part]) for card in cards if card for part in CARD_PARTS}


def without_cards(solution: Solution) -> Solution:
    """What a solution says of the kind of card; that of single cards stays behind."""
    kept = [i for i, name in enumerate(solution.names) if not name.startswith("card.")]
    return Solution(
        tuple(solution.names[i] for i in kept),
        solution.values[kept],
        solution.covariance[np.ix_(kept, kept)],
        solution.identified[kept],
    )


def _off_mean(cards: Sequence[str], gpu: GpuModel) -> Array:
    """How far the mean of cards is from the described card, in units of its noise; shape ``(2,)``, ``(0,)`` of none.

    Without it the factors of two or three cards take up what the description itself should say of them all.
    """
    if not cards:
        return np.empty(0)
    factors = [list(card_factors(card, gpu).values()) for card in cards]
    return np.asarray((np.mean(factors, axis=0) - 1.0) / MEAN_CARD_NOISE)


def _fit_power_block(
    block: FitRows,
    rest: Rest,
    air: Air | None,
    averaged: Sequence[str],
    gpu: GpuModel,
    priors: Mapping[str, Prior],
    names: Sequence[str],
) -> Solution:
    """Fit ``names`` to rows, and to cards at rest; ``averaged`` cards' mean is the described one."""
    noise = np.where(block.settled, POWER_NOISE, SHORT_POWER_NOISE)

    def residuals(values: Mapping[str, float]) -> Array:
        changed = with_values(gpu, values)
        resting = np.log(rest.expected_w(changed) / rest.power_w) / IDLE_NOISE
        if not block.rows:
            return np.asarray(resting)
        running = np.log(power_at_observed_clock_w(block, changed) / block.power_w) / noise
        warm = [] if air is None else [air.error(changed)]
        return np.concatenate([running, resting, warm, _off_mean(averaged, changed)])

    return solve(residuals, priors, names)


def bursts(rows: Sequence[Row]) -> FitRows:
    """Short bursts at the highest clock between pauses, as rows of their busy part: they identify the voltage.

    In a burst the requested clock and with it the voltage stay at the top while the power limit's loops are too slow to
    act, so the same kernel is seen far above the limit.
    """
    found = []
    for row in rows:
        raw = row.measured.raw
        if row.op == "pulse" and "measured_busy_power_w" in raw:
            measured = replace(row.measured, power_w=float(raw["measured_busy_power_w"]))
            configuration = {**row.configuration, "op": "gemm"}
            found.append(replace(row, op="gemm", configuration=configuration, measured=measured))
    return collect(found)
