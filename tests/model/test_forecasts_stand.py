"""Forecasts of many kernels, GPUs and plans stand as they were last accepted.

Nothing here says that they are right: suites that hold them against measurements do. This says that a change of a
formula or a constant moved no forecast by accident. Who moves one on purpose accepts the new ones with
``make forecasts`` and says by how much in a fragment of the changelog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import accepted
import pytest
from paths import EXAMPLES

import joulecast as jc
from joulecast.calibrate.fit.priors import power_priors
from joulecast.errors import InputError
from joulecast.model.forecasts import Forecast
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.operators import Operator
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work

HERE = Path(__file__).parent
FILE = "forecasts"
#: Relative difference that other processors' arithmetic makes, with a margin.
ALIKE = 1e-4

#: One card of each architecture.
GPUS = ("a100-sxm-80gb", "a40", "b200", "gb300", "h100-sxm", "h200-sxm", "mi210", "mi300x", "v100-sxm2-16gb")
BACKENDS = ("cudnn", "flash-attention-2", "flash-attention-3")
PATTERNS = [
    name.removeprefix("power.streaming_pj_per_byte.") for name in power_priors() if "streaming_pj_per_byte" in name
]
SHAPES = (
    (8192, 8192, 8192), (4096, 4096, 4096), (1024, 1024, 1024), (256, 512, 8192), (300, 5000, 7000), (16, 16384, 16384),
    (64, 4096, 4096), (8192, 5120, 640), (2048, 50304, 2048), (129, 8191, 1023), (16384, 1280, 8192), (1, 4096, 4096),
)  # fmt: skip
TILES = ((128, 256, 64, 8, 3, 1), (64, 64, 32, 4, 2, 1), (128, 128, 64, 8, 4, 4), (256, 64, 64, 4, 3, 2))
ROWS = ((1, 0, 4), (4, 0, 8), (16, 0, 16), (1, 256, 2), (2, 1024, 8))
SETTINGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "llama-3.1-8b-4xh200": (
        (),
        ("power.clock_mhz=1200",),
        ("power.power_limit_w=450",),
        ("schedule.name=gpipe", "schedule.recompute=full"),
        ("schedule.name=zb-h1", "workload.sequence_length=2048"),
        ("parallelism.tensor_model_parallel_size=1", "parallelism.pipeline_model_parallel_size=4"),
        ("parallelism.tensor_model_parallel_size=4", "parallelism.pipeline_model_parallel_size=1"),
        (
            "implementation.framework=megatron",
            "parallelism.context_parallel_size=2",
            "parallelism.pipeline_model_parallel_size=1",
        ),
        ("workload.model=qwen2.5-1.5b", "workload.micro_batch_size=2"),
    ),
    "llama-3.1-8b-4xh200-nanobatches": ((), ("overlap.nanobatches=1",)),
    "llama-3.1-8b-1xh200-lora": (
        (),
        ("schedule.recompute=none", "workload.lora.precision=bf16", "workload.lora.dropout=0.0"),
        ("workload.lora.base_precision=nf4", "workload.lora.double_quantisation=true"),
        ("workload.lora.base_precision=nf4", "workload.lora.prepared=true"),
        ("cluster.gpus=4", "parallelism.fsdp=true"),
    ),
    "llama-3.2-3b-4xh200-ddp": ((), ("overlap.grad_reduce=after",)),
    "llama-3.1-70b-8xh200": (
        (),
        ("implementation.framework=megatron", "workload.precision=fp8"),
        (
            "implementation.framework=megatron",
            "workload.precision=fp4",
            "workload.num_layers_at_end_in_bf16=4",
            "cluster.gpu=gb300",
        ),
    ),
    "llama-3.1-70b-64xh100-fsdp": ((), ("parallelism.fsdp_shard_size=32",)),
    "gpt3-175b-64xa100": ((), ("schedule.recompute=selective", "workload.micro_batch_size=2")),
    "gpt3-175b-512xh100": (
        (),
        ("network.nvls=true", "network.sharp=true"),
        ("network.rails=1", "network.oversubscription=2.0", "network.jitter=0.1"),
        ("parallelism.context_parallel_size=2", "parallelism.cp_comm_type=all_gather"),
        ("parallelism.context_parallel_size=2", "parallelism.cp_comm_type=a2a"),
        ("implementation.generation=megatron-core",),
    ),
    "deepseek-v3-1024xh100": ((), ("workload.moe_load_imbalance=1.4",), ("workload.mtp_num_layers=1",)),
    "deepseek-v3-2048xh800": (("workload.global_batch_size=4096",),),
}


def kernels() -> Iterator[tuple[str, Operator]]:
    """Kernels of every kind, with a name each."""
    for m, n, k in SHAPES:
        for dtype in ("bf16", "fp8"):
            yield f"gemm {m} {n} {k} {dtype}", jc.Gemm(m, n, k, dtype)
    for layout in ("nn", "nt"):
        yield f"gemm {layout}", jc.Gemm(4096, 8192, 2048, layout=layout)
    for dtype in ("fp16", "tf32", "fp32"):
        yield f"gemm {dtype}", jc.Gemm(4096, 4096, 4096, dtype)
    for data in ("zeros", "ones", "pow2", "sparse0.5"):
        yield f"gemm {data}", jc.Gemm(8192, 8192, 4096, data=data)
    yield "gemm batched", jc.Gemm(512, 512, 128, batch=64)
    yield "gemm accumulated", jc.Gemm(4096, 4096, 2048, "bf16", layout="nt", out_dtype="fp32", accumulate=True)
    for tile in TILES:
        yield f"gemm tile {tile}", jc.Gemm(4096, 4096, 4096, tile=jc.Tile(*tile))
    for backend in BACKENDS:
        for direction in ("forward", "backward"):
            for batch, heads, shared, length, width, causal in (
                (2, 32, 8, 4096, 128, True), (1, 16, 16, 16384, 64, True), (8, 12, 12, 512, 64, False),
            ):  # fmt: skip
                name = f"attention {backend} {direction} {batch} {heads} {length} {width}"
                yield name, jc.Attention(batch, heads, shared, length, width, causal, backend, direction)
    for direction in ("forward", "backward"):
        for rows, columns in ((64, 128), (128, 64), (32, 64)):
            tile = jc.Tile(rows, columns, 64, 4, 2)
            name = f"attention tile {direction} {rows} {columns}"
            yield name, jc.Attention(2, 16, 16, 4096, 128, True, "flash-attention-2", direction, tile=tile)
    for pattern in PATTERNS:
        for size in (1e6, 3e7, 1e9):
            yield (
                f"{pattern} {size:g}",
                jc.Streaming(pattern, size, size / 2, elements=size / 2, rows=4096, columns=4096),
            )
    for pattern in ("rmsnorm", "layernorm", "softmax", "reduce_min", "exp"):
        for rows, columns, warps in ROWS:
            work = jc.Streaming(pattern, 5e8, 5e8, elements=2.5e8, rows=61035, columns=4096)
            yield f"{pattern} tile {rows} {columns} {warps}", work.with_tile(jc.RowTile(rows, columns, warps))
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        for gpus in (2, 8) if kind != "send_recv" else (2,):
            for size in (1e6, 2.56e8):
                yield f"{kind} {gpus} {size:g}", jc.Collective(kind, size, gpus)
    yield "all_reduce of few blocks", jc.Collective("all_reduce", 1e8, 4, ctas=4)


def of_kernels(name: str) -> dict[str, list[float]]:
    """Time, energy and the bounds of both at the clock that the card takes, and time and energy at a low one."""
    gpu = gpu_model(load_gpu(name))
    there = [(key, kernel) for key, kernel in kernels() if _runs(kernel, gpu)]
    works = [Work((kernel,)) for _, kernel in there]
    free, slow = predict_work(works, gpu), predict_work(works, gpu, clock_mhz=0.6 * gpu.max_clock_mhz)
    columns = [*_columns(free), free.time_s_p95, free.energy_j_p95, *_columns(slow)]
    return {key: [accepted.short(float(c[i])) for c in columns] for i, (key, _) in enumerate(there)}


def _columns(found: Forecast) -> tuple[Any, Any]:
    return found.time_s, found.energy_j


def _runs(kernel: Operator, gpu: GpuModel) -> bool:
    from joulecast.model.kernels.lowering import lower

    try:
        lower([kernel], gpu)
    except InputError:
        return False
    return True


def of_plan(name: str, settings: Sequence[str]) -> list[float]:
    """Time, energy, greatest memory and power of a plan."""
    found = jc.predict(EXAMPLES / f"{name}.toml", settings).to_dict()
    memory = max(stage["memory_bytes"] for stage in found["stages"])
    return [accepted.short(v) for v in (found["time_s"], found["energy_j"], memory, found["power_w"])]


def forecasts() -> dict[str, Any]:
    """All that is accepted."""
    return {
        "kernels": {name: of_kernels(name) for name in GPUS},
        "plans": {f"{name} {' '.join(s)}".strip(): of_plan(name, s) for name, many in SETTINGS.items() for s in many},
    }


@pytest.fixture(scope="module")
def stands() -> dict[str, Any]:
    return accepted.read(FILE)


@pytest.mark.parametrize("name", GPUS)
def test_forecasts_of_kernels_stand(name: str, stands: dict[str, Any]) -> None:
    found, before = of_kernels(name), stands["kernels"][name]
    assert found.keys() == before.keys()
    moved = [key for key, values in found.items() if values != pytest.approx(before[key], rel=ALIKE)]
    assert not moved, f"{len(moved)} of {len(found)} have moved: {moved[:5]}"


@pytest.mark.parametrize(("name", "settings"), [(name, s) for name, many in SETTINGS.items() for s in many])
def test_forecasts_of_plans_stand(name: str, settings: tuple[str, ...], stands: dict[str, Any]) -> None:
    assert of_plan(name, settings) == pytest.approx(stands["plans"][f"{name} {' '.join(settings)}".strip()], rel=ALIKE)


if __name__ == "__main__":
    accepted.write(FILE, forecasts())
