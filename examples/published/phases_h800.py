"""DeepSeek-V3's training step by phase of DualPipe on 2,048 H800: published, forecast.

Published (Insights into DeepSeek-V3, arXiv 2505.09343, table 4, its network of many planes; the other differs by
0.05 s at most): a step of 19.926 s, of which forwards alone, forwards beside backwards, backwards of inputs alone,
backwards of weights alone, waiting and optimizer took the times below, together 19.90 s. Of which rank is not said.

The same phases of a forecast are the times of its instructions. A backward that is not split counts as one of inputs;
its weights' share cannot be told from what is published. The first stages are shown beside the mean of all.

Nothing is fitted to these figures. The second forecast is on `h800-cutlass-fp8.toml`, whose products are as fast as
those of the time. Run: python examples/published/phases_h800.py
"""

from collections.abc import Mapping
from pathlib import Path

import joulecast as jc
from joulecast.command_line.output import print_table
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Gemm
from joulecast.model.power.kernel_power import at_clock

HERE = Path(__file__).resolve().parent
PLAN = HERE.parent / "deepseek-v3-2048xh800.toml"
#: A description of the H800 with the products of the time.
OF_THE_TIME = HERE / "h800-cutlass-fp8.toml"
#: Seconds of a step by phase, as published.
PUBLISHED_S = {"1F": 1.13, "1F1B": 13.95, "1B": 1.99, "1W": 0.48, "bubble": 2.06, "optimizer": 0.29}
PUBLISHED_STEP_S = 19.926
#: Phase of each kind of instruction.
PHASES = {
    "forward": "1F",
    "forward_backward": "1F1B",
    "backward": "1B",
    "backward_input": "1B",
    "backward_weight": "1W",
    "waiting": "bubble",
    "optimizer": "optimizer",
}
#: DeepGEMM's products on an H800: batch, sizes, its rate [TFLOP/s] and how many times as long the product of DeepSeek's
#: own CUTLASS kernels took. Forward: its first README; gradients of weights: its pull request 95.
Published = tuple[int, int, int, int, float, float]
FORWARD: tuple[Published, ...] = (
    (4, 8192, 4096, 7168, 1297, 1.2),
    (4, 8192, 7168, 2048, 1099, 1.2),
    (1, 4096, 7168, 16384, 1358, 1.2),
    (1, 4096, 24576, 1536, 990, 1.0),
    (1, 4096, 32768, 512, 590, 1.0),
    (1, 4096, 2112, 7168, 1058, 1.1),
    (1, 4096, 4096, 7168, 1304, 1.1),
    (1, 4096, 7168, 2048, 1025, 1.1),
)
WEIGHTS: tuple[Published, ...] = (
    (4, 7168, 4096, 8192, 1044, 1.2),
    (4, 2048, 7168, 8192, 1033, 1.2),
    (1, 16384, 7168, 4096, 994, 1.2),
    (1, 1536, 24576, 4096, 986, 1.2),
    (1, 512, 32768, 4096, 878, 1.2),
    (1, 7168, 2112, 4096, 920, 1.2),
    (1, 7168, 4096, 4096, 942, 1.2),
    (1, 2048, 7168, 4096, 920, 1.2),
)


def phases(seconds: Mapping[str, float]) -> dict[str, float]:
    """Times by instruction as times by phase [s]."""
    found = dict.fromkeys(PUBLISHED_S, 0.0)
    for name, value in seconds.items():
        found[PHASES[name.partition(" ")[0]]] += value
    return found


def products_s(published: tuple[Published, ...], gpu: GpuModel) -> tuple[float, float, float]:
    """Time of a layer's products [s]: forecast, of DeepGEMM, and of what DeepSeek had before it."""
    gradient = published is WEIGHTS
    how = {"layout": "nt", "out_dtype": "fp32", "accumulate": True} if gradient else {"out_dtype": "bf16"}
    products = [
        Gemm(m, n, k, "fp8", batch=b, separate=b > 1, block_scaled=True, row_scaled=gradient, **how)
        for b, m, n, k, *_ in published
    ]
    forecast = at_clock(lower(products, gpu), gpu.max_clock_mhz, gpu).time_s
    known = [(p.flops / (1e12 * rate), longer) for p, (*_, rate, longer) in zip(products, published, strict=True)]
    return float(forecast.sum()), sum(t for t, _ in known), sum(t * longer for t, longer in known)


def main() -> None:
    """Phases of the published step beside forecasts, and the products of one layer."""
    plain, of_the_time = jc.predict(PLAN), jc.predict(PLAN, [f"cluster.gpu={OF_THE_TIME}"])
    columns = {
        "published": {**PUBLISHED_S, "step": PUBLISHED_STEP_S},
        "forecast, mean GPU": {**phases(plain.time_by_instruction_s), "step": plain.time_s},
        "stage 0": phases(plain.ranks[0].time_by_instruction_s),
        "stage 1": phases(plain.ranks[1].time_by_instruction_s),
        "stage 7": phases(plain.ranks[7].time_by_instruction_s),
        "mean GPU, products of the time": {**phases(of_the_time.time_by_instruction_s), "step": of_the_time.time_s},
    }
    print_table(
        [
            {"phase [s]": phase, **{title: of.get(phase, plain.time_s) for title, of in columns.items()}}
            for phase in (*PUBLISHED_S, "step")
        ]
    )
    print()
    gpu = gpu_model(load_gpu("h800-sxm"))
    lines = []
    for name, published in (("forward", FORWARD), ("gradients of weights", WEIGHTS)):
        ours, deepgemm, before = (1e3 * value for value in products_s(published, gpu))
        lines.append(
            {"products of a layer [ms]": name, "forecast": ours, "DeepGEMM": deepgemm, "before": before}
            | {"before / forecast": before / ours}
        )
    print_table(lines)


if __name__ == "__main__":
    main()
