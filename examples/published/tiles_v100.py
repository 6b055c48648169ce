"""Tiles of five operators at every clock on a V100: published findings, forecast.

Published (Wu et al., Compilation-Guided Energy Optimization in Large Model Training; V100-SXM2-16GB): the energy-best
tile of the matrix product [1024, 4096, 4096] is larger than the time-best one, and the best tile does not change with
the clock; schedules of ReduceMin [524288, 1024] of equal time differ in energy by their use of shared memory;
FlashAttention wants smaller tiles at lower clocks; RMSNorm's default tile becomes compute-bound at low clocks, while
another stays memory-bound.

Nothing is fitted to them: the V100's description is derived from the H200's and data sheets, the tiles' constants are
those of Triton on an H200. Run: python examples/published/tiles_v100.py
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from findings import Findings, agreeing, print_findings, rests_on, varied

from joulecast.command_line.output import print_table
from joulecast.errors import InputError
from joulecast.model.framework.tile_limits import check_tile
from joulecast.model.framework.tiling import tile_word
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.costs import Costs
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Gemm, Operator, RowTile, Streaming, Tile
from joulecast.model.kernels.tile_estimates import ESTIMATES
from joulecast.model.power.kernel_power import at_clock

CLOCK_STEP = 8
#: Tiles count as alike within this share of the fastest one's time.
ALIKE = 0.02
#: Tiles that slow by less do not feel the clock.
INSENSITIVE_PERCENT = 1.0
#: Parameters that are varied by 20 %.
VARIED = (
    "kernel.tile_gemm.load_slope",
    "kernel.tile_rmsnorm.block_cycles",
    "kernel.tile_rows.barrier_cycles_per_warp",
    "kernel.tile_rows.cycles_per_value",
    "kernel.tile_attention.cycles_per_score",
    "kernel.tile_attention.cycles_per_scaled_value",
    "power.tile_pj_per_flop",
    "power.tile_pj_per_l2_byte",
    "power.tile_shared_pj_per_byte",
    "power.static_w",
    "power.sm_w",
    "voltage.slope",
)


@dataclass(frozen=True)
class Tiled:
    """One operator with its tiles: time and energy at every clock, shape ``(tiles, clocks)``."""

    words: list[str]
    clocks_mhz: np.ndarray
    time_s: np.ndarray
    energy_j: np.ndarray

    def best(self, of: str) -> list[str]:
        """The best tile at every clock, lowest first."""
        return [self.words[i] for i in np.argmin(getattr(self, of), axis=0)]


def scored(operators: Sequence[tuple[str, Operator]], gpu: GpuModel) -> Tiled:
    """Those tiles that fit the GPU, at every clock."""
    fit = [(word, operator) for word, operator in operators if _fits(operator, gpu)]
    clocks = gpu.clocks_mhz[gpu.clocks_mhz >= 600.0][::CLOCK_STEP]
    found = at_clock(lower([operator for _, operator in fit], gpu), clocks[:, None], gpu)
    return Tiled([word for word, _ in fit], clocks, found.time_s.T, found.energy_j.T)


def _fits(operator: Operator, gpu: GpuModel) -> bool:
    try:
        check_tile(operator, gpu)
    except InputError:
        return False
    return True


def products() -> list[tuple[str, Operator]]:
    """Matrix product [1024, 4096, 4096]."""
    sides = [(m, n) for m in (32, 64, 128, 256) for n in (32, 64, 128, 256)]
    tiles = [Tile(m, n, 32, warps, 3) for m, n in sides for warps in (4, 8)]
    return [(tile_word(t), Gemm(1024, 4096, 4096, dtype="fp16", tile=t)) for t in tiles]


def attention() -> list[tuple[str, Operator]]:
    """FlashAttention forward, 32 heads of 64, 4,096 positions."""
    tiles = [Tile(m, n, warps=warps, stages=2) for m in (64, 128) for n in (32, 64, 128) for warps in (4, 8)]
    return [(tile_word(t), Attention(2, 32, 32, 4096, 64, dtype="fp16", tile=t)) for t in tiles]


def row_tiles(pattern: str, rows: int, columns: int, tiles: Sequence[RowTile]) -> list[tuple[str, Operator]]:
    """A row-wise kernel of fp32 values with each of the tiles."""
    read = 4.0 * rows * columns
    written = 4.0 * rows if pattern == "reduce_min" else read
    kernel = Streaming(pattern, read, written, read / 4.0, dtype="fp32", rows=rows, columns=columns)
    return [(tile_word(t), kernel.with_tile(t)) for t in tiles]


def larger_finding(gpu: GpuModel) -> tuple[str, bool]:
    """The energy-best product tile is larger than the time-best."""
    found = scored(products(), gpu)
    fast, cheap = found.best("time_s")[-1], found.best("energy_j")[-1]
    return f"fastest {fast}, most economical {cheap}", _area(cheap) > _area(fast)


def constant_finding(gpu: GpuModel) -> tuple[str, bool]:
    """The best product tile does not change with the clock."""
    found = scored(products(), gpu)
    fast, cheap = set(found.best("time_s")), set(found.best("energy_j"))
    return f"{len(fast)} fastest and {len(cheap)} most economical over all clocks", len(fast) == len(cheap) == 1


def reduction_finding(gpu: GpuModel) -> tuple[str, bool]:
    """Equal time, more energy through shared memory."""
    pair = [RowTile(4, 0, 4), RowTile(4, 0, 4, staged=True)]
    found = scored(row_tiles("reduce_min", 524288, 1024, pair), gpu)
    time, energy = (values[1, -1] / values[0, -1] - 1.0 for values in (found.time_s, found.energy_j))
    return f"through shared memory {100 * time:+.1f} % time, {100 * energy:+.1f} % energy", abs(time) < 0.01 < energy


def attention_finding(gpu: GpuModel) -> tuple[str, bool]:
    """Smaller tiles at lower clocks."""
    fast = scored(attention(), gpu).best("time_s")
    return f"fastest {fast[-1]} at the highest clock, {fast[0]} at the lowest", _area(fast[0]) < _area(fast[-1])


@dataclass(frozen=True)
class Norms:
    """RMS norm with several tiles: their words, time at the highest clock, and the clock below which the SMs bind."""

    words: list[str]
    costs: Costs
    time_s: np.ndarray
    bound_mhz: np.ndarray

    def slower(self, clock_mhz: float, gpu: GpuModel) -> np.ndarray:
        """Time at a clock over that at the highest, less 1."""
        return at_clock(self.costs, clock_mhz, gpu).time_s / self.time_s - 1.0


def norms(gpu: GpuModel) -> Norms:
    """RMS norm of 65,536 rows of 4,096."""
    tiles = [RowTile(rows, 0, warps) for rows in (1, 2, 4, 8) for warps in (1, 2, 4, 8, 16, 32)]
    fit = [(word, norm) for word, norm in row_tiles("rmsnorm", 65536, 4096, tiles) if _fits(norm, gpu)]
    costs = lower([norm for _, norm in fit], gpu)
    time = at_clock(costs, gpu.max_clock_mhz, gpu).time_s
    return Norms([word for word, _ in fit], costs, time, costs.core_cycles / costs.memory_s / 1e6)


def norm_finding(gpu: GpuModel) -> tuple[str, bool]:
    """Of tiles alike at the highest clock one becomes compute-bound, where another has hardly slowed."""
    found = norms(gpu)
    alike = np.flatnonzero(found.time_s < (1.0 + ALIKE) * found.time_s.min())
    first, last = alike[np.argmax(found.bound_mhz[alike])], alike[np.argmin(found.bound_mhz[alike])]
    clock = float(found.bound_mhz[first])
    slower = 100.0 * found.slower(clock, gpu)
    said = (
        f"{found.words[first]} below {clock:.0f} MHz, {slower[first]:.0f} % slower there; "
        f"{found.words[last]} below {found.bound_mhz[last]:.0f} MHz, {slower[last]:.1f} % slower at {clock:.0f}"
    )
    within = gpu.clocks_mhz[0] <= clock < gpu.max_clock_mhz
    return said, bool(within and slower[last] < INSENSITIVE_PERCENT)


def norm_lines(gpu: GpuModel) -> list[dict[str, float | str]]:
    """A line for each tile of one row: where its SMs begin to bind, and how it slows."""
    found = norms(gpu)
    slower = {clock: found.slower(clock, gpu) for clock in (795.0, 600.0, 510.0, 405.0)}
    return [
        {"tile": word, "compute-bound below [MHz]": float(round(found.bound_mhz[i]))}
        | {f"slower at {clock:.0f} MHz [%]": round(100.0 * float(at[i]), 1) for clock, at in slower.items()}
        for i, word in enumerate(found.words)
        if word.startswith("1x")
    ]


FINDINGS: Findings = {
    "larger product tile": ("the energy-best is larger than the time-best", larger_finding),
    "same product tile": ("the best does not change with the clock", constant_finding),
    "ReduceMin": ("schedules of equal time differ in energy by shared memory", reduction_finding),
    "FlashAttention": ("smaller tiles at lower clocks", attention_finding),
    "RMSNorm": ("a tile becomes compute-bound at low clocks, another does not", norm_finding),
}


def _area(word: str) -> int:
    m, n = word.split("w")[0].split("x")[:2]
    return int(m) * int(n)


def main() -> None:
    """Each finding beside the forecast, then with every parameter varied."""
    gpu = gpu_model(load_gpu("v100-sxm2-16gb"))
    print_findings(FINDINGS, gpu, "V100-SXM2-16GB")
    lines = []
    for key in VARIED:
        known = key in gpu.parameters
        value = gpu[key] if known else ESTIMATES[key].number
        line = {"parameter": key, "value": value, "rests on": rests_on(gpu, key) if known else ESTIMATES[key].source}
        for factor, changed in varied(gpu, key, value):
            line[f"agree at x{factor}"] = ", ".join(agreeing(FINDINGS, changed)) or "none"
        lines.append(line)
    print()
    print_table(lines, title="findings that the forecast agrees with, each parameter varied by 20 %")
    print()
    print_table(norm_lines(gpu), title="RMSNorm, tiles of one row")
    print(
        "\nWhere we differ: attention's tiles slow alike, as all their times are cycles of the SMs. Size, tiles\n"
        "and clocks of the published RMSNorm are not said; here a tile that becomes compute-bound does so at a third\n"
        "of the highest clock. All latency of a block counts as cycles; the memory's share does not grow at low\n"
        "clocks, so this one is rather too high."
    )


if __name__ == "__main__":
    main()
