"""Power of an MI300X's compute dies, I/O dies and memory, alone and beside each other: published findings, forecast.

Published (CompPow, A Case for Component-level GPU Power Management, 2026): products that stress I/O dies and memory
leave less power to the compute dies, and the clock falls; an all-gather needs little of them, so that a limit on their
clock saves 10.1 % of energy for 1.4 % of time, better than a power limit; beside a product it takes power from them,
and moving that back is worth about 5 %.

Nothing is fitted to these figures: the MI300X's description is derived from the H200's and data sheets, how many blocks
its collectives take is in RCCL's source, how much they hold products back is ConCCL's figure (arXiv 2412.14335), the
shares of its parts are estimates (joulecast.model.power.component_power). With an H200's 24 blocks and nothing held
back, as these examples once were, a clock limit saved 5.8 % and moved power was worth 12.5 %.
Run: python examples/published/components_mi300x.py
"""

from dataclasses import replace

import numpy as np
from findings import Finding, Findings, agreeing, print_findings, rests_on, varied

from joulecast.command_line.output import print_table
from joulecast.model.forecasts import Forecast
from joulecast.model.framework.launches import Launch
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Collective, Gemm, Operator, Streaming
from joulecast.model.power.component_power import by_part, package_of
from joulecast.model.power.kernel_power import at_clock
from joulecast.model.power.limits import skip_cycles
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work
from joulecast.simulator.instructions.repeated import Conditions, predict_repeated

GPUS = 8
GATHER = Collective("all_gather", 2e9, GPUS)
PRODUCT = Gemm(18432, 8192, 16384)
#: Alike but for where their operands come from, and with more and more bytes for each operation.
PRODUCTS = {
    "2K from cache": Gemm(2048, 2048, 2048),
    "2K from memory": Gemm(2048, 2048, 2048, footprint_bytes=np.inf),
    "18K x 8K x 16K": PRODUCT,
    "8K x 8K x 10K": Gemm(8192, 8192, 10240),
    "8K x 8K x 512": Gemm(8192, 8192, 512),
    "8K x 8K x 128": Gemm(8192, 8192, 128),
}
OTHERS: dict[str, Operator] = {
    "GEMV 8K": Streaming("gemv", 2.0 * 8192 * 8192, 4.0 * 8192),
    "all-gather 64 KB": replace(GATHER, bytes=65536.0),
    "all-gather 2 GB": GATHER,
}
#: Time for which the clock is limited [%], and what was saved at that [%].
PUBLISHED_SLOWER, PUBLISHED_SAVED = 1.36, 10.13
MOVED_W = (10.0, 25.0, 50.0)
#: Parameters that are varied by 20 %.
VARIED = (
    "collective.bytes_per_cta_cycle",
    "collective.link_share",
    "collective.default_ctas",
    "contention.cta_slowdown",
    "contention.interference",
    "kernel.overlap_exponent",
    "power.clock_w",
    "power.collective_w",
    "power.hbm_toggle_pj_per_byte",
    "power.link_pj_per_byte",
    "power.sm_w",
    "power.static_w",
    "power.tensor_pj_per_flop.bf16",
    "voltage.floor_ratio",
    "voltage.slope",
)


def alone(operator: Operator, gpu: GpuModel, **how: float) -> Forecast:
    """One operator that repeats."""
    return predict_work([Work((operator,))], replace(gpu, description=None), **how)


def beside(gpu: GpuModel, limit_w: float | None = None) -> Forecast:
    """The product, the all-gather, and both beside each other, by GPUs in step.

    Each goes on while the other does: the all-gather need not wait for a product that fills the GPU before it begins.
    """
    programs = [
        [Launch(PRODUCT)],
        [Launch(GATHER, "communication", waits=True)],
        [Launch(GATHER, "communication", prompt=True), Launch(PRODUCT)],
    ]
    return predict_repeated(programs, replace(gpu, description=None), Conditions(GPUS, power_limit_w=limit_w))


def part_powers(found: Forecast, gpu: GpuModel, row: int = 0) -> dict[str, float]:
    """Power by part [W]."""
    return {part: float(value[row] / found.time_s[row]) for part, value in by_part(found.components_j, gpu).items()}


def line(name: str, found: Forecast, gpu: GpuModel, row: int = 0) -> dict[str, object]:
    """A line of a table."""
    parts = {f"{part} [W]": power for part, power in part_powers(found, gpu, row).items()}
    figures = {"time [ms]": 1e3 * found.time_s[row], "clock [MHz]": found.clock_mhz[row], **parts}
    return {"": name, **figures, "board [W]": found.power_w[row]}


def clock_limit(gpu: GpuModel) -> dict[str, float]:
    """What a lower clock of the compute dies saves of the all-gather's energy: for the published time, and at best."""
    clocks = gpu.clocks_mhz[gpu.clocks_mhz >= 0.4 * gpu.max_clock_mhz]
    found = at_clock(lower([GATHER], gpu), clocks[:, None], gpu)
    slower = 100.0 * (found.time_s[:, 0] / found.time_s[-1, 0] - 1.0)
    saved = 100.0 * (1.0 - found.energy_j[:, 0] / found.energy_j[-1, 0])
    at, most = int(np.abs(slower - PUBLISHED_SLOWER).argmin()), int(saved.argmax())
    return {
        "clock [MHz]": float(clocks[at]),
        "slower [%]": float(slower[at]),
        "saved [%]": float(saved[at]),
        "power [W]": float(found.power_w[at, 0]),
        "most saved [%]": float(saved[most]),
        "slower then [%]": float(slower[most]),
    }


def power_limits(gpu: GpuModel, limit_w: float) -> dict[str, dict[str, float]]:
    """What a limit of the whole board does to the all-gather and to the product, for the same power of the former.

    Ours lowers the compute clock only. One that knows no parts holds all of them back, which is the other extreme.
    """
    full = gpu.max_clock_mhz * np.ones(1)
    lines = {}
    for name, operator in (("all-gather", GATHER), ("product", PRODUCT)):
        free = alone(operator, gpu)
        by_clock = alone(operator, gpu, power_limit_w=limit_w / gpu["governor.settled_share"])
        top = at_clock(lower([operator], gpu), full[:, None], gpu)
        held = skip_cycles(top, full, limit_w, gpu)
        lines[f"{name}, compute clock"] = _change(by_clock.time_s[0], by_clock.energy_j[0], free)
        lines[f"{name}, all parts"] = _change(held.time_s[0, 0], held.energy_j[0, 0], free)
    return lines


def _change(time_s: float, energy_j: float, free: Forecast) -> dict[str, float]:
    slower, saved = time_s / free.time_s[0] - 1.0, 1.0 - energy_j / free.energy_j[0]
    return {"slower [%]": 100.0 * float(slower), "saved [%]": 100.0 * float(saved)}


def added_w(gpu: GpuModel) -> float:
    """What the all-gather adds to the I/O dies' power beside the product [W]."""
    found = beside(gpu)
    return part_powers(found, gpu, 2)["io"] - part_powers(found, gpu, 0)["io"]


def all_moved_back(gpu: GpuModel) -> dict[str, float]:
    """The line of :func:`moved_back` that moves all that the all-gather adds."""
    added = added_w(gpu)
    return next(line for line in moved_back(gpu) if line["moved [W]"] == added)


def moved_back(gpu: GpuModel) -> list[dict[str, float]]:
    """How much faster product and all-gather run when I/O dies and memory leave watts of the limit to the compute dies.

    The board holds the compute dies at what the others leave: power that these give up is as a limit higher by it.
    Among the lines, by power moved, is what the all-gather adds (:func:`added_w`), and 20 % less and more of it: that
    rests on an estimated share of the link's energy.
    """
    found, added = beside(gpu), added_w(gpu)
    lines = []
    for power in sorted((*MOVED_W, 0.8 * added, added, 1.2 * added)):
        more = beside(gpu, gpu.device["power_limit_w"] + power)
        gained = part_powers(more, gpu, 2)["compute"] - part_powers(found, gpu, 2)["compute"]
        faster = 100.0 * float(found.time_s[2] / more.time_s[2] - 1.0)
        lines.append({"moved [W]": power, "compute dies [W]": gained, "faster [%]": faster})
    return lines


def stress_finding(gpu: GpuModel) -> Finding:
    """The same product from memory instead of the cache: less power for the compute dies, a lower clock."""
    near, far = (alone(PRODUCTS[name], gpu) for name in ("2K from cache", "2K from memory"))
    power = part_powers(far, gpu)["compute"] - part_powers(near, gpu)["compute"]
    clock = float(far.clock_mhz[0] - near.clock_mhz[0])
    return f"2K from memory instead of cache: {power:+.0f} W, {clock:+.0f} MHz", power < 0 and clock < 0


def limit_finding(gpu: GpuModel) -> Finding:
    """A clock limit saves about a tenth of the all-gather's energy for about a hundredth of time."""
    found = clock_limit(gpu)
    said = f"{found['saved [%]']:.1f} % for {found['slower [%]']:.1f} %, {found['most saved [%]']:.1f} % at most"
    return said, 8.0 < found["saved [%]"] < 12.0


def better_finding(gpu: GpuModel) -> Finding:
    """A clock limit is better than a power limit that holds all parts back, or that products must keep as well."""
    clock = clock_limit(gpu)
    found = power_limits(gpu, clock["power [W]"])
    gather, product = found["all-gather, all parts"], found["product, compute clock"]
    said = (
        f"power limit of {clock['power [W]']:.0f} W: {gather['slower [%]']:+.0f} % time and "
        f"{gather['saved [%]']:.1f} % saved if all parts are held back, else products {product['slower [%]']:+.0f} %"
    )
    worse = gather["slower [%]"] > clock["slower [%]"] and gather["saved [%]"] < clock["saved [%]"]
    return said, worse and product["slower [%]"] > clock["slower [%]"]


def beside_finding(gpu: GpuModel) -> Finding:
    """Beside the all-gather the I/O dies draw more and the compute dies less than the product alone."""
    found = beside(gpu)
    before, after = part_powers(found, gpu, 0), part_powers(found, gpu, 2)
    change = {part: after[part] - before[part] for part in ("compute", "io")}
    return ", ".join(f"{part} {power:+.0f} W" for part, power in change.items()), change["compute"] < 0 < change["io"]


def moved_finding(gpu: GpuModel) -> Finding:
    """Moving back what the all-gather adds makes both faster by about 5 %."""
    line = all_moved_back(gpu)
    return f"{line['moved [W]']:.0f} W back: {line['faster [%]']:.1f} % faster", 2.5 < line["faster [%]"] < 7.5


FINDINGS: Findings = {
    "stress": ("products that stress I/O and memory: less compute power, lower clock", stress_finding),
    "clock limit": ("all-gather: 10.1 % energy saved for 1.4 % time", limit_finding),
    "power limit": ("a limit on the compute clock is better than on power", better_finding),
    "beside": ("product beside all-gather: I/O power rises, compute power falls", beside_finding),
    "moved back": ("power moved from I/O to compute: about 5 % faster", moved_finding),
}


def main() -> None:
    """The findings, the powers behind them, and what 20 % of each parameter changes."""
    gpu = gpu_model(load_gpu("mi300x"))
    print_findings(FINDINGS, gpu, "MI300X")
    print()
    print_table([line(n, alone(o, gpu), gpu) for n, o in (PRODUCTS | OTHERS).items()], title="by operator, one GPU")
    names = ("product", "all-gather", "beside each other")
    print()
    print_table([line(n, beside(gpu), gpu, i) for i, n in enumerate(names)], title="eight GPUs in step")
    found = clock_limit(gpu)
    limited = {"the compute dies' clock": {k: found[k] for k in ("slower [%]", "saved [%]")}}
    limited |= {f"board, {name}": values for name, values in power_limits(gpu, found["power [W]"]).items()}
    print()
    title = (
        f"limits for {found['power [W]']:.0f} W of the all-gather; published {PUBLISHED_SLOWER} and {PUBLISHED_SAVED}"
    )
    print_table([{"limit on": name, **values} for name, values in limited.items()], title=title)
    print()
    print_table(
        moved_back(gpu),
        title=f"power moved to the compute dies, product beside all-gather, which adds {added_w(gpu):.1f} W",
    )
    print()
    print_table(_varied(gpu), title="each parameter varied by 20 %")
    print(f"\nThe shares of parts: {package_of(gpu).source}.")
    print(
        "They decide how power is told apart, and how much there is to be moved, but no time or energy otherwise.\n"
        "Where we differ: a lower clock saves an eighth more of the all-gather than was published for the same time.\n"
        "That rests on what a block copies in a cycle, which nobody published: with what fills the links as NCCL does\n"
        "(4.3 B) it is 4 %, with what a block copies on an H200 (13.9 B) 16 %. Our governor knows no other knob than\n"
        "the compute clock: for an all-gather on its own a power limit is as good as a clock limit, and worse only\n"
        "where products must keep it as well. Products of fewer operations a byte get less power for\n"
        "the compute dies, as published, but run at higher clocks: their matrix units are less busy. Moving all power\n"
        "back that the I/O dies gained is worth what was published because products beside the all-gather wait for\n"
        "more than power, as ConCCL's figure says: without that (interference of 1) it would be worth 11 %."
    )


def _varied(gpu: GpuModel) -> list[dict[str, object]]:
    lines = []
    for key in VARIED:
        found: dict[str, object] = {"parameter": key, "value": gpu[key]}
        for factor, changed in varied(gpu, key, gpu[key]):
            found[f"saved at x{factor} [%]"] = clock_limit(changed)["saved [%]"]
            found[f"faster at x{factor} [%]"] = all_moved_back(changed)["faster [%]"]
            found[f"agree at x{factor}"] = f"{len(agreeing(FINDINGS, changed))} of {len(FINDINGS)}"
        lines.append({**found, "rests on": rests_on(gpu, key)})
    return lines


if __name__ == "__main__":
    main()
