"""Measured rows as a fit reads them, and the fit of kernel times.

Kernel times are fitted first, at the clocks that were observed; then voltage and power, at observed clocks and times
(:mod:`joulecast.calibrate.fit.power`); then the collectives; last the governor. A forecast reads none of these
observations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.arrays import Array, Bool, Int
from joulecast.calibrate.fit.device_priors import DevicePriors
from joulecast.calibrate.fit.priors import Prior
from joulecast.calibrate.fit.relower import Relowering
from joulecast.calibrate.fit.solve import Solution, solve
from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.calibrate.rows.operators import operator_of
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Attention, Gemm, Operator, Streaming
from joulecast.model.kernels.remembered import with_values
from joulecast.model.power.governor import TENSOR_CLOCK_SHARE
from joulecast.model.power.kernel_power import kernel_time_s

#: Windows at least this long count as settled.
SETTLED_WINDOW_S = 1.5
#: Relative noise of a row's time and power, settled and not [1].
TIME_NOISE, SHORT_TIME_NOISE = 0.015, 0.025
POWER_NOISE, SHORT_POWER_NOISE = 0.015, 0.04
#: Relative noise of the power of a card at rest [1].
IDLE_NOISE = 0.01
#: A driver that reports so much of what was counted in such products reports the slowed clock, as an H100's does.
_SLOWED = 0.97
#: A window in which the temperature changed by so much found the card still warming or cooling [K].
UNSTEADY_K = 1.0


@dataclass(frozen=True)
class FitRows:
    """Rows of single kernels as arrays; ``n`` rows over ``m`` operators."""

    rows: tuple[Row, ...]
    operators: tuple[Operator, ...]
    owner: Int  # shape (m,)
    counts: Array  # shape (m,)
    time_s: Array
    power_w: Array  # NaN where not measured
    clock_mhz: Array
    temperature_c: Array  # NaN where it was steady, or is not known
    settled: Bool
    card: Int  # place in ``cards``
    cards: tuple[str, ...]  # labels, the first of them empty: the card that the description is of, if rows name others
    lowering: Relowering

    def select(self, mask: Bool) -> FitRows:
        """The rows where ``mask`` holds."""
        return collect([r for r, keep in zip(self.rows, mask, strict=True) if keep])


def collect(rows: Sequence[Row]) -> FitRows:
    """Rows of kernels that ran back to back with a measured time and clock, that of the board; others are left out."""
    kept: list[Row] = []
    operators: list[Operator] = []
    owner: list[int] = []
    counts: list[float] = []
    for row in rows:
        work = operator_of(row.configuration)
        usable = work.operators and work.busy_share == 1.0
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
        np.array([unsteady_c(r.measured) for r in kept], dtype=np.float64),
        np.array([r.window_s >= SETTLED_WINDOW_S for r in kept], dtype=np.bool_),
        np.array([cards.index(label) for label in labels], dtype=np.int64),
        cards,
        Relowering(operators),
    )


def at_board_clocks(rows: Sequence[Row]) -> list[Row]:
    """All rows of a fit with the clock that the board had set (:func:`board_clock_mhz`) for the reported one.

    What the rows together tell of the card's driver is found here, once: parts of them, as a fit takes them, need not
    have a product whose clock was counted. Rows that come from here are left as they are.
    """
    slowed = reports_slowed(rows)
    clocks = (board_clock_mhz(row, slowed=slowed) for row in rows)
    return [
        replace(row, measured=replace(row.measured, sm_clock_mhz=clock))
        for row, clock in zip(rows, clocks, strict=True)
    ]


def board_clock_mhz(row: Row, *, slowed: bool = False) -> float | None:
    """Clock that the board had set: the reported one, unless that is the one to which products were slowed [MHz].

    Times are forecast from the clock that is set, at which a kernel's voltage is, and all kernels beside it.

    Parameters
    ----------
    row
        A measured row.
    slowed
        Whether the card's driver reports slowed clocks (:func:`reports_slowed`), for products whose clock was not
        counted.
    """
    reported, counted = row.measured.sm_clock_mhz, row.measured.counted_clock_mhz
    if not _on_tensor_cores(row) or reported is None:
        return reported
    if counted is None:
        return reported / TENSOR_CLOCK_SHARE if slowed else reported
    return reported if counted < _SLOWED * reported else counted / TENSOR_CLOCK_SHARE


def reports_slowed(rows: Sequence[Row]) -> bool:
    """Whether most counted products of a kind of card ran at the clock that its driver reported.

    Of rows in which none was counted nothing is known, and reports are taken to be of the clock that is set.
    """
    clocks = [(r.measured.sm_clock_mhz, r.measured.counted_clock_mhz) for r in rows if _on_tensor_cores(r)]
    equal = [counted >= _SLOWED * reported for reported, counted in clocks if reported and counted]
    return 2 * sum(equal) > len(equal)


def _on_tensor_cores(row: Row) -> bool:
    return row.op == "gemm" and row.configuration.get("dtype") != "fp32"


def unsteady_c(measured: Measured) -> float:
    """Temperature of a card that was not as warm as its work makes it in the end; NaN of one that was [°C].

    After heavier work a slow heat sink leaves a card 10 K too warm, and 4 W of leakage too high.
    """
    steady = abs(measured.temperature_change_k or 0.0) < UNSTEADY_K
    return math.nan if steady or measured.temperature_c is None else measured.temperature_c


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
        return time_residuals(block, with_values(gpu, values))

    return solve(residuals, priors, names)


def _families(row: Row) -> set[str]:
    return {family_of(o) for o in operator_of(row.configuration).operators}


def is_tiled(row: Row) -> bool:
    """Whether a row's kernels have explicit tiles."""
    return any(family.startswith("tile") for family in _families(row))


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
