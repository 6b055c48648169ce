"""Speed of scoring overlap, tiles and clocks of one layer together: processor time of one core.

Run with ``pytest benchmarks/bench_layer_options.py``. Lowering of the kernels is included.
"""

from __future__ import annotations

import time

import numpy as np

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.operators import RowTile, Tile
from joulecast.model.training.nanobatches import layers_forward
from joulecast.plan.knobs.overlap_space import overlap_variants
from joulecast.plan.knobs.pareto import pareto
from joulecast.simulator.instructions.layer_options import TileChoices, TiledKernels, every_combination
from joulecast.simulator.plan_file.implementation import implementation_of, nanobatches_of
from joulecast.simulator.plan_file.plan import plan_from_dict

CONFIGURATIONS, SCORED_S = 100_000, 5.0
PLAN = {
    "workload": {"model": "llama-3.1-8b", "sequence_length": 4096, "micro_batch_size": 4, "global_batch_size": 8},
    "cluster": {"gpu": "h200-sxm", "gpus": 2},
    "parallelism": {"tensor_model_parallel_size": 2},
    "schedule": {"name": "none"},
}
KNOBS = {
    "nanobatches": [1, 2],
    "window": ["all", ["qkv", "output"], ["attention", "output"], ["up", "down"]],
    "launch": ["asap", "window"],
    "comm_ctas": [None, 4, 8, 16, 32],
}
TILES: TileChoices = {
    "qkv": [None, Tile(128, 256), Tile(128, 128, 64, 8, 4), Tile(256, 128)],
    "output": [None, Tile(128, 256), Tile(128, 128, 64, 8, 4)],
    "up": [None, Tile(128, 256), Tile(256, 128)],
    "attention.forward": [None, Tile(128, 64, warps=8), Tile(64, 64, warps=4)],
    "norm1": [None, RowTile(4, warps=8)],
}


def test_layer_configurations() -> None:
    begin = time.process_time()
    plan, gpu = plan_from_dict(PLAN), gpu_model(load_gpu("h200-sxm"))
    ways = [way for _, way in overlap_variants(plan, KNOBS)]
    w = plan.workload
    programs = [
        layers_forward(w.model, implementation_of(p), w.micro_batch_size, w.sequence_length, 1, nanobatches_of(p))
        for p in ways
    ]
    clocks = np.arange(len(gpu.clocks_mhz))[::-8][::-1]
    kernels = TiledKernels(programs, TILES, gpu, clocks)
    combinations = every_combination(TILES, tuple(TILES))
    scores = [kernels.score(launches, combinations) for launches in programs]
    time_s, energy_j = (np.concatenate([getattr(s, name) for s in scores]) for name in ("time_s", "energy_j"))
    best = [len(pareto(time_s[:, c], energy_j[:, c])) for c in range(len(clocks))]
    took = time.process_time() - begin
    per = took * CONFIGURATIONS / time_s.size
    print(f"\n{time_s.size} configurations in {took:.2f} s, {CONFIGURATIONS} in {per:.2f} s (at most {SCORED_S:g} s)")
    print(f"{min(best)} to {max(best)} of them unbeaten at a clock")
    assert time_s.size >= CONFIGURATIONS
    assert per <= SCORED_S
