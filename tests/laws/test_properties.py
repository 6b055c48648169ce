"""Laws that hold for any plan and any kernel: conservation, monotony, independence of order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_tables import merged

import joulecast as jc
from joulecast.errors import DoesNotFitError, InputError
from joulecast.model.architecture.hf import model_names
from joulecast.model.hardware.catalogue import gpu_names, load_gpu
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.kernels.gemm import GemmShapes, gemm_work
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Operator, Streaming
from joulecast.model.kernels.product_tiles import MORE_WAVES
from joulecast.model.power.kernel_power import at_clock
from joulecast.simulator.instructions.kernel_segments import RESOURCES
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict
from joulecast.simulator.traces.kernel_timeline import kernel_timeline

GPU_NAME = "h200-sxm-rows"
GPU: GpuModel = gpu_model(load_gpu(GPU_NAME))
CLOCKS = GPU.clocks_mhz.tolist()
#: The same examples on every run; plans are simulated, so there are few.
few = settings(derandomize=True, deadline=None, max_examples=15, database=None)
many = settings(derandomize=True, deadline=None, max_examples=60, database=None)

TILE = 256
clocks = st.sampled_from(CLOCKS)
tiles = st.integers(1, 48)


def tables(
    layers: int = 4,
    microbatches: int = 4,
    split: tuple[int, int, int] = (1, 2, 1),
    schedule: str = "1f1b",
    virtual: int = 1,
    **other: dict[str, Any],
) -> dict[str, Any]:
    tp, pp, dp = split
    whole: dict[str, Any] = {
        "workload": {
            "model": "llama-3.2-1b",
            "layers": layers,
            "sequence_length": 1024,
            "micro_batch_size": 1,
            "global_batch_size": microbatches * dp,
        },
        "cluster": {"gpu": GPU_NAME, "gpus": tp * pp * dp},
        "parallelism": {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "virtual_pipeline_model_parallel_size": virtual,
        },
        "schedule": {"name": schedule},
    }
    return merged(whole, other)


@st.composite
def plan_tables(draw: st.DrawFn) -> dict[str, Any]:
    schedule = draw(st.sampled_from(["1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "none"]))
    tp, dp = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)]))
    pp = 1 if schedule == "none" else draw(st.sampled_from([2, 4]))
    framework = draw(st.sampled_from(["pytorch-eager", "megatron"]))
    return tables(
        layers=8,
        microbatches=pp * draw(st.integers(1, 3)),
        split=(tp, pp, dp),
        schedule=schedule,
        virtual=2 if schedule == "interleaved-1f1b" else 1,
        parallelism={"sequence_parallel": draw(st.booleans())},
        workload={"sequence_length": 512 * draw(st.integers(1, 4)), "micro_batch_size": 1},
        overlap={
            "grad_reduce": draw(st.sampled_from(["after", "overlapped"])),
            "comm_ctas": draw(st.sampled_from([4, 16])),
        },
        implementation={"framework": framework, "tie_embeddings": draw(st.booleans())},
    ) | {"power": draw(st.sampled_from([{}, {"power_limit_w": 400.0}, {"clock_mhz": 1200}, {"clock_mhz": 1980}]))}


@few
@given(plan_tables())
def test_energy_is_the_integral_of_power_on_every_gpu(plan: dict[str, Any]) -> None:
    built = plan_from_dict(plan)
    for timeline in kernel_timeline(built).timelines:
        ledger = sum(timeline.energy_by_component_j().values())
        profile = timeline.profile()
        integral = math.fsum((np.diff(profile.time_ns) * profile.power_w).tolist()) * 1e-9
        assert integral == pytest.approx(ledger, rel=1e-9)
        assert np.all(profile.power_w > 0)
    whole = forecast(built)
    for rank in whole.ranks:
        assert sum(rank.energy_by_component_j.values()) == pytest.approx(rank.energy_j, rel=1e-9)
        assert sum(rank.energy_by_instruction_j.values()) == pytest.approx(rank.energy_j, rel=1e-9)
        assert rank.power_w * whole.time_s == pytest.approx(rank.energy_j, rel=1e-9)
        parts_s = rank.compute_s + rank.exposed_communication_s + rank.waiting_s
        assert sum(rank.time_by_instruction_s.values()) == pytest.approx(parts_s, rel=1e-9)
    assert whole.energy_j == pytest.approx(sum(r.energy_j * r.gpus for r in whole.ranks), rel=1e-9)


@few
@given(plan_tables())
def test_no_resource_is_used_above_all_of_it(plan: dict[str, Any]) -> None:
    result = kernel_timeline(plan_from_dict(plan))
    assert len(RESOURCES) == result.shares.shape[1]
    for timeline in result.timelines:
        _, change = timeline.changes(result.shares[timeline.name])
        used = np.cumsum(change, axis=0)
        assert np.all(used <= 1 + 1e-9)
        assert np.all(used.max(axis=0)[:3] > 0.1)
        for stream in (0, 1):
            at = timeline.stream == stream
            assert np.all(timeline.start_ns[at][1:] >= timeline.end_ns[at][:-1])


def cost(operator: Operator, clock: float) -> tuple[float, float]:
    times = at_clock(lower([operator], GPU), clock, GPU)
    return float(times.time_s[0]), float(times.energy_j[0])


def not_less(more: tuple[float, float], less: tuple[float, float]) -> None:
    assert more[0] >= less[0] * (1 - 1e-12), "faster"
    assert more[1] >= less[1] * (1 - 1e-12), "cheaper"


@many
@given(tiles, tiles, tiles, st.sampled_from("mnk"), st.integers(1, 8), st.sampled_from(["bf16", "fp16"]), clocks)
def test_a_larger_aligned_product_is_never_faster_or_cheaper_of_equal_tiles(
    m: int, n: int, k: int, which: str, by: int, dtype: str, clock: float
) -> None:
    """A larger product may get another tile, or a split of K, and then use the SMs better; else never."""
    size = {"m": TILE * m, "n": TILE * n, "k": TILE * k}
    larger = size | {which: size[which] + TILE * by}
    (more_s, more_j), (less_s, less_j) = (cost(Gemm(**s, dtype=dtype), clock) for s in (larger, size))
    (tile, splits), (other_tile, other_splits) = chosen(larger, dtype), chosen(size, dtype)
    alike = (tile, splits) == (other_tile, other_splits)
    assert more_s >= less_s / (1.0 if alike else MORE_WAVES) * (1 - 1e-12), "faster"
    if alike:
        assert more_j >= less_j * (1 - 1e-12), "cheaper"


def chosen(size: dict[str, int], dtype: str) -> tuple[tuple[int, ...], int]:
    """Tile and splits of K that the model expects a library to take."""
    sizes = {name: np.array([float(value)]) for name, value in size.items()}
    work = gemm_work(GemmShapes(**sizes, batch=np.ones(1), footprint_bytes=np.full(1, np.nan)), dtype, "nt", GPU)
    return tuple(int(x) for x in work.tile[0]), int(work.splits[0])


@many
@given(
    tiles,
    st.integers(1, 8),
    st.sampled_from(["cudnn", "flash-attention-2"]),
    st.sampled_from(["forward", "backward"]),
    clocks,
)
def test_longer_attention_is_never_faster_or_cheaper(
    length: int, by: int, backend: str, direction: str, clock: float
) -> None:
    def attention(sequence: int) -> Attention:
        return Attention(1, 16, 8, sequence, 128, backend=backend, direction=direction)

    not_less(cost(attention(TILE * (length + by)), clock), cost(attention(TILE * length), clock))


@many
@given(
    st.floats(1e3, 1e10), st.floats(1.0, 10.0), st.sampled_from(["copy", "add", "rmsnorm", "softmax", "adamw"]), clocks
)
def test_more_bytes_are_never_faster_or_cheaper(size: float, by: float, pattern: str, clock: float) -> None:
    def stream(bytes_: float) -> Streaming:
        return Streaming(pattern, bytes_, bytes_, footprint_bytes=math.inf)

    not_less(cost(stream(size * by), clock), cost(stream(size), clock))


@many
@given(
    st.floats(1e3, 1e10), st.floats(1.0, 10.0), st.sampled_from(["all_reduce", "all_gather"]), st.integers(2, 8), clocks
)
def test_a_larger_collective_is_never_faster_or_cheaper(
    size: float, by: float, kind: str, gpus: int, clock: float
) -> None:
    not_less(cost(Collective(kind, size * by, gpus), clock), cost(Collective(kind, size, gpus), clock))


operators = st.one_of(
    st.builds(
        lambda m, n, k: Gemm(64 * m, 64 * n, 64 * k), st.integers(1, 128), st.integers(1, 128), st.integers(1, 128)
    ),
    st.builds(
        lambda s, b: Attention(1, 16, 4, 128 * s, 128, backend=b),
        st.integers(1, 64),
        st.sampled_from(["cudnn", "flash-attention-2"]),
    ),
    st.builds(lambda b: Streaming("copy", b, b), st.floats(1e3, 1e10)),
    st.builds(lambda b, g: Collective("all_reduce", b, g), st.floats(1e3, 1e10), st.integers(2, 8)),
)


@many
@given(operators, clocks, clocks)
def test_a_lower_clock_is_never_faster_without_a_limit(operator: Operator, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert cost(operator, low)[0] >= cost(operator, high)[0]


@many
@given(operators, st.integers(200, 700), st.integers(200, 700))
def test_a_lower_limit_is_never_faster_for_a_kernel(operator: Operator, one: int, other: int) -> None:
    low, high = sorted((one, other))
    gpu = jc.gpu(GPU_NAME)
    slow, fast = (gpu.predict(operator, power_limit_w=float(limit)) for limit in (low, high))
    assert slow.time_s >= fast.time_s * (1 - 1e-12)
    assert slow.clock_mhz <= fast.clock_mhz * (1 + 1e-12)


def at(plan: dict[str, Any], clock: int) -> tuple[float, float]:
    whole = forecast(plan_from_dict(plan | {"power": {"clock_mhz": clock}}))
    return whole.time_s, whole.energy_j


SPLITS = st.sampled_from([(1, 1, 1), (1, 2, 1), (2, 2, 1), (1, 2, 2), (1, 1, 4)])


@few
@given(SPLITS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.sampled_from(["1f1b", "gpipe", "zb-h1"]))
def test_more_layers_or_micro_batches_are_never_faster_or_cheaper(
    split: tuple[int, int, int], layers: int, more: int, microbatches: int, schedule: str
) -> None:
    stages = split[1]
    base = at(tables(stages * layers, microbatches, split, schedule), 1200)
    not_less(at(tables(stages * (layers + more), microbatches, split, schedule), 1200), base)
    not_less(at(tables(stages * layers, microbatches + more, split, schedule), 1200), base)


@few
@given(SPLITS, st.sampled_from([(300, 400), (350, 500), (400, 700), (500, 600), (600, 700), (690, 700)]))
def test_a_lower_power_limit_is_never_faster(split: tuple[int, int, int], limits: tuple[int, int]) -> None:
    """To 0.1 %: the governor's clock moves in steps, and an average over some seconds sees where they fall."""
    low, high = (
        forecast(plan_from_dict(tables(8, 4, split, power={"power_limit_w": float(w)}))).time_s for w in limits
    )
    assert low >= high * (1 - 1e-3)


@few
@given(SPLITS, clocks, clocks)
def test_a_lower_locked_clock_is_never_faster(split: tuple[int, int, int], one: float, other: float) -> None:
    low, high = sorted((one, other))
    times = [
        forecast(plan_from_dict(tables(4, 2, split, power={"clock_mhz": clock, "power_limit_w": 700.0}))).time_s
        for clock in (low, high)
    ]
    assert times[0] >= times[1] * (1 - 1e-3)


@few
@given(plan_tables(), st.randoms(use_true_random=False))
def test_the_order_of_dictionaries_does_not_matter(plan: dict[str, Any], rng: Any) -> None:
    def shuffled(table: dict[str, Any]) -> dict[str, Any]:
        keys = list(table)
        rng.shuffle(keys)
        return {key: shuffled(table[key]) if isinstance(table[key], dict) else table[key] for key in keys}

    assert forecast(plan_from_dict(shuffled(plan))).to_dict() == forecast(plan_from_dict(plan)).to_dict()


def fitting(model: str) -> Plan | None:
    """The first of some splits over eight GPUs that suits a model and fits."""
    for tp, pp in ((1, 1), (8, 1), (4, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4)):
        workload = {"model": model, "layers": 2, "sequence_length": 1024, "global_batch_size": 8}
        split = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp}
        whole = {"workload": workload, "cluster": {"gpu": GPU_NAME, "gpus": 8}, "parallelism": split}
        try:
            plan = plan_from_dict(whole)
            forecast(plan)
        except (InputError, DoesNotFitError):
            continue
        return plan
    return None


@pytest.mark.parametrize("model", model_names())
def test_forecasts_are_positive_and_finite(model: str) -> None:
    plan = fitting(model)
    if plan is None:
        pytest.skip("does not fit eight GPUs")
    whole = forecast(plan)
    numbers = [whole.time_s, whole.energy_j, whole.power_w, whole.clock_mhz, whole.tokens_per_s]
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    assert whole.time_s_p05 < whole.time_s < whole.time_s_p95
    assert whole.energy_j_p05 < whole.energy_j < whole.energy_j_p95
    for rank in whole.ranks:
        parts = (rank.compute_s, rank.exposed_communication_s, rank.waiting_s)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(whole.time_s, rel=1e-6)
        assert min(rank.energy_by_component_j.values()) >= 0


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_gives_a_forecast(name: str) -> None:
    plan = tables(cluster={"gpu": name}, workload={"precision": "fp16"})
    whole = forecast(plan_from_dict(plan))
    assert 0 < whole.time_s < math.inf
    assert 0 < whole.energy_j < math.inf
    limit = load_gpu(name).number("power_limit_w")
    assert all(rank.power_w < 1.05 * limit for rank in whole.ranks)


@pytest.mark.parametrize("name", gpu_names())
def test_no_component_of_a_kernels_energy_is_below_zero(name: str) -> None:
    """Not even of patterns that spend less on chip than a copy of their bytes."""
    gpu = gpu_model(load_gpu(name))
    key = "power.streaming_pj_per_byte."
    patterns = [parameter.removeprefix(key) for parameter in gpu.parameters if parameter.startswith(key)]
    kernels = [Streaming(pattern, size, size) for pattern in patterns for size in (1e4, 1e7, 1e9)]
    found = at_clock(lower(kernels, gpu), gpu.clocks_mhz[:, None], gpu)
    assert min(float(np.min(part)) for part in found.components_j.values()) >= 0.0
    assert sum(found.components_j.values()) == pytest.approx(found.energy_j)
