"""Fits the tables of a GPU description to measured rows.

Kernel times are fitted first, at the clocks that were observed; then voltage and power, at observed clocks and times;
then the collectives; last the governor. A forecast reads none of these observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from joulecast.calibrate.fit.device_priors import DevicePriors
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.relower import Relowering
from joulecast.calibrate.fit.solve import Solution, solve
from joulecast.calibrate.rows.measured import Row
from joulecast.calibrate.rows.operators import operator_of
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Attention, Gemm, Operator, Streaming
from joulecast.model.power.kernel_power import CARD_FACTORS, idle_power_w, kernel_time_s, static_power_w
from joulecast.model.power.voltage import voltage_ratio

Array = NDArray[np.float64]

#: Windows at least this long count as settled.
SETTLED_WINDOW_S = 1.5
#: Relative noise of a row's time and power, settled and not [1].
TIME_NOISE, SHORT_TIME_NOISE = 0.015, 0.025
POWER_NOISE, SHORT_POWER_NOISE = 0.015, 0.04
#: What differs between cards of one kind: the dynamic energy of the chip and of the memory.
CARD_PARTS = ("core", "memory")
#: Relative noise of the power of a card at rest [1].
IDLE_NOISE = 0.01


@dataclass(frozen=True)
class FitRows:
    """Rows of single kernels as arrays; ``n`` rows over ``m`` operators."""

    rows: tuple[Row, ...]
    operators: tuple[Operator, ...]
    owner: NDArray[np.int64]  # shape (m,)
    counts: Array  # shape (m,)
    time_s: Array
    power_w: Array  # NaN where not measured
    clock_mhz: Array
    settled: NDArray[np.bool_]
    card: NDArray[np.int64]  # place in ``cards``
    cards: tuple[str, ...]  # labels, the first of them empty: the card that the description is of, if rows name others
    lowering: Relowering

    def select(self, mask: NDArray[np.bool_]) -> FitRows:
        """The rows where ``mask`` holds."""
        return collect([r for r, keep in zip(self.rows, mask, strict=True) if keep])


def collect(rows: Sequence[Row]) -> FitRows:
    """Rows of kernels that ran back to back with a measured time and clock; others are left out."""
    kept: list[Row] = []
    operators: list[Operator] = []
    owner: list[int] = []
    counts: list[float] = []
    for row in rows:
        work = operator_of(row.configuration)
        usable = work.operators and work.busy_fraction == 1.0
        if not usable or row.measured.time_s is None or row.measured.sm_clock_mhz is None or row.gpus > 1:
            continue
        operators += work.operators
        counts += work.counts
        owner += [len(kept)] * len(work.operators)
        kept.append(row)
    labels = [str(r.configuration.get("card") or "") for r in kept]
    cards = ("", *sorted(set(labels) - {""}))
    power = [np.nan if r.measured.power_w is None else r.measured.power_w for r in kept]
    return FitRows(
        tuple(kept),
        tuple(operators),
        np.array(owner, dtype=np.int64),
        np.array(counts, dtype=np.float64),
        np.array([r.measured.time_s for r in kept], dtype=np.float64),
        np.array(power, dtype=np.float64),
        np.array([r.measured.sm_clock_mhz for r in kept], dtype=np.float64),
        np.array([r.window_s >= SETTLED_WINDOW_S for r in kept], dtype=np.bool_),
        np.array([cards.index(label) for label in labels], dtype=np.int64),
        cards,
        Relowering(operators),
    )


def predicted_time_s(data: FitRows, gpu: GpuModel) -> Array:
    """Time of each row at its observed clock [s]."""
    costs = data.lowering(gpu)
    times = kernel_time_s(costs, data.clock_mhz[data.owner], gpu)
    return np.asarray(np.bincount(data.owner, times * data.counts, len(data.rows)), dtype=np.float64)


def time_residuals(data: FitRows, gpu: GpuModel) -> Array:
    """Logarithmic time errors in units of their noise."""
    noise = np.where(data.settled, TIME_NOISE, SHORT_TIME_NOISE)
    return np.log(predicted_time_s(data, gpu) / data.time_s) / noise


def fit_times(data: FitRows, gpu: GpuModel, priors: DevicePriors) -> tuple[GpuModel, list[Solution]]:
    """Fit the table ``kernel``, family by family: their parameters are disjoint but for L2's."""
    gpu = gpu.with_values(priors.starts())
    solutions: list[Solution] = []
    for family, names in _time_blocks(priors.time):
        block = data.select(np.array([family in _families(r) for r in data.rows], dtype=np.bool_))
        solution = _fit_block(block, gpu, priors.time, names)
        gpu = gpu.with_values(solution.as_dict())
        solutions.append(solution)
    return gpu, solutions


def _fit_block(block: FitRows, gpu: GpuModel, priors: Mapping[str, Prior], names: Sequence[str]) -> Solution:
    def residuals(values: Mapping[str, float]) -> Array:
        if not block.rows:
            return np.zeros(0)
        return time_residuals(block, gpu.with_values(values))

    return solve(residuals, priors, names)


def _families(row: Row) -> set[str]:
    return {family_of(o) for o in operator_of(row.configuration).operators}


def family_of(operator: Operator) -> str:
    """The block of time parameters that an operator reads."""
    if isinstance(operator, Gemm):
        return "gemm" if operator.tile is None else "tile_gemm"
    if isinstance(operator, Attention):
        return f"attention.{operator.backend}.{operator.direction}"
    if isinstance(operator, Streaming):
        if operator.pattern.startswith("tile_"):
            return operator.pattern
        wide = f"{operator.pattern}_{operator.dtype}"
        return f"streaming.{wide if wide in _WIDE else operator.pattern}"
    return "collective"


_WIDE = ("adamw_fp32",)


def _time_blocks(priors: Mapping[str, Prior]) -> list[tuple[str, list[str]]]:
    blocks: dict[str, list[str]] = {}
    for name in priors:
        key = name.removeprefix("kernel.")
        family = key.rpartition(".")[0]
        if key == "overlap_exponent" or key.startswith(("gemm", "attention.fixed")):
            family = "gemm" if not key.startswith("attention") else "attention.cudnn.forward"
        if key.startswith("l2."):
            family = "streaming.copy"
        blocks.setdefault(family, []).append(name)
    # Composite rows hold several patterns: fit those measured alone first.
    return sorted(blocks.items(), key=lambda item: _COMPOSITE_LAST.get(item[0], 0))


_COMPOSITE_LAST = {
    "streaming.gamma_backward": 1,
    "streaming.log_softmax_backward": 1,
    "streaming.log_softmax": 1,
    "streaming.embedding_backward": 1,
    "streaming.embedding_sort": 2,
    "streaming.embedding_segments": 2,
    "streaming.nll_loss": 2,
    "streaming.nll_loss_backward": 2,
}


def power_at_observed_clock_w(data: FitRows, gpu: GpuModel) -> Array:
    """Power of each row at its observed clock and time [W]."""
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
    return rest + static_power_w(rest, gpu)


@dataclass(frozen=True)
class Rest:
    """A card that runs nothing: its power [W] at its clock [MHz], shape ``(n,)`` each."""

    clock_mhz: Array
    power_w: Array


def at_rest(rows: Sequence[Row]) -> Rest:
    """The rows of an idle card."""
    idle = [r.measured for r in rows if r.op == "idle" and r.measured.power_w and r.measured.sm_clock_mhz]
    return Rest(np.array([m.sm_clock_mhz for m in idle]), np.array([m.power_w for m in idle]))


def fit_power(
    data: FitRows, pulses: FitRows, rest: Rest, gpu: GpuModel, priors: Mapping[str, Prior]
) -> tuple[GpuModel, list[Solution]]:
    """Fit the tables ``power`` and ``voltage`` of a GPU whose kernel times are fitted.

    Kernels with explicit tiles have energies of their own, fitted last: their short windows shall not move the others.
    """
    gpu = gpu.with_values({name: p.start for name, p in priors.items()})
    block = collect([*data.select(np.isfinite(data.power_w)).rows, *pulses.rows])
    priors = {**priors, **card_priors(block.cards)}
    tiled = np.array([_is_tiled(r) for r in block.rows], dtype=np.bool_)
    solutions = []
    for chosen, names in (
        (block.select(~tiled), [n for n in priors if not n.startswith("power.tile_")]),
        (block.select(tiled), [n for n in priors if n.startswith("power.tile_")]),
    ):
        solution = _fit_power_block(chosen, rest, gpu, priors, names)
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


def _is_tiled(row: Row) -> bool:
    return any(family.startswith("tile") for family in _families(row))


def _fit_power_block(
    block: FitRows, rest: Rest, gpu: GpuModel, priors: Mapping[str, Prior], names: Sequence[str]
) -> Solution:
    noise = np.where(block.settled, POWER_NOISE, SHORT_POWER_NOISE)

    def residuals(values: Mapping[str, float]) -> Array:
        changed = gpu.with_values(values)
        resting = np.log(idle_power_w(rest.clock_mhz, changed) / rest.power_w) / IDLE_NOISE
        if not block.rows:
            return np.asarray(resting)
        running = np.log(power_at_observed_clock_w(block, changed) / block.power_w) / noise
        return np.concatenate([running, resting])

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
