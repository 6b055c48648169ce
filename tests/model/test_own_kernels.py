"""Kernels of a user's own in place of a library's: times and energies at every clock, and which kernels are meant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.description import GpuDescription, Parameter
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Collective, Gemm, Operator, Streaming
from joulecast.model.kernels.own_kernels import kind_of, own_kind, own_kinds
from joulecast.model.power.kernel_power import at_clock
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work

H200 = load_gpu("h200-sxm")
MIB = 2.0**20


def norm(rows: int, name: str = "norm1") -> Streaming:
    size = 8192.0 * rows
    return Streaming("rmsnorm", size, size, rows=rows, columns=4096, name=name)


def with_own(sd: float = 0.0, **factors: dict[float, float]) -> GpuDescription:
    """An H200 with factors by work of kinds and quantities, such as ``gemm.bf16.tn.time``."""
    own = {"own.kinds": Parameter(float(sum(key.endswith(".time") for key in factors)))}
    for key, of in factors.items():
        own |= {f"own.{key}.rows": Parameter(float(len(of))), f"own.{key}.all": Parameter(1.0, sd)}
        for i, (work, factor) in enumerate(of.items(), start=1):
            own |= {f"own.{key}.{i}.work": Parameter(work), f"own.{key}.{i}.factor": Parameter(factor)}
    return replace(H200, kernel=replace(H200.kernel, parameters={**H200.kernel.parameters, **own}))


NORM = "streaming.rmsnorm.bf16"
KERNELS: list[Operator] = [
    norm(4096),
    Gemm(4096, 4096, 1024, layout="nt"),
    Attention(1, 32, 8, 4096, 128),
    Streaming("add", 64 * MIB, 32 * MIB, footprint_bytes=float("inf")),
]


@pytest.mark.parametrize("operator", KERNELS, ids=kind_of)
def test_time_and_energy_above_idle_are_scaled_at_every_clock(operator: Operator) -> None:
    kind, gpu = kind_of(operator), gpu_model(H200)
    own = gpu_model(with_own(**{f"{kind}.time": {1e6: 0.7}, f"{kind}.energy": {1e6: 1.3}}))
    clocks = gpu.clocks_mhz[:, None]
    before, after = (at_clock(lower([operator, Gemm(64, 64, 64)], of), clocks, of) for of in (gpu, own))
    assert after.time_s[:, 0] == pytest.approx(0.7 * before.time_s[:, 0], rel=1e-12)
    idle = ("static", "clock")
    dynamic = [sum(v[:, 0] for k, v in of.components_j.items() if k not in idle) for of in (before, after)]
    assert dynamic[1] == pytest.approx(1.3 * dynamic[0], rel=1e-12)
    assert np.array_equal(after.energy_j[:, 1], before.energy_j[:, 1])  # another layout is another kind


def test_without_a_measured_energy_the_work_takes_what_it_took() -> None:
    gpu, own = gpu_model(H200), gpu_model(with_own(**{f"{NORM}.time": {1e6: 0.5}}))
    before, after = (at_clock(lower([norm(4096)], of), 1980.0, of) for of in (gpu, own))
    for part, factor in {"hbm": 1.0, "onchip": 1.0, "vector": 1.0, "sm": 0.5, "clock": 0.5}.items():
        assert after.components_j[part] == pytest.approx(factor * before.components_j[part]), part


@pytest.mark.parametrize("factor", [1.5, 0.97, 0.5])
def test_a_faster_product_uses_more_of_the_matrix_units_and_never_more_than_all(factor: float) -> None:
    own = gpu_model(with_own(**{"gemm.bf16.tn.time": {1e9: factor}}))
    one, other = (lower([Gemm(8192, 8192, 8192)], gpu) for gpu in (gpu_model(H200), own))
    assert 0.8 < one.tensor_use < 0.97 and other.core_cycles == factor * one.core_cycles
    assert other.tensor_use == pytest.approx(min(one.tensor_use / factor, 1.0))


@pytest.mark.parametrize(("rows", "factor"), [(256, 0.5), (1024, 0.5), (4096, 1.0), (16384, 2.0), (65536, 2.0)])
def test_factors_are_log_linear_between_amounts_of_work_and_held_beyond(rows: int, factor: float) -> None:
    own = gpu_model(with_own(**{f"{NORM}.time": {16 * MIB: 0.5, 256 * MIB: 2.0}}))
    one, other = (at_clock(lower([norm(rows)], gpu), 1500.0, gpu).time_s for gpu in (gpu_model(H200), own))
    assert other == pytest.approx(factor * one)


def test_the_longest_name_that_a_kernels_begins_with_counts() -> None:
    kinds = [NORM, f"{NORM}.of.n", f"{NORM}.of.norm"]
    own = own_kinds(gpu_model(with_own(**{f"{kind}.time": {1e6: 1.0} for kind in kinds})))
    names = {"norm1.forward": f"{NORM}.of.norm", "n1": f"{NORM}.of.n", "layer.norm": NORM}
    assert {name: own_kind(norm(8, name), own) for name in names} == names
    assert own == kinds and own_kinds(gpu_model(H200)) == []
    assert own_kind(replace(norm(8), dtype="fp32"), own) == "" == own_kind(norm(8), ["gemm.bf16.tn"])
    assert kind_of(Collective("all_reduce", 1e6, 4)) == "" == own_kind(Collective("all_reduce", 1e6, 4), own)
    assert kind_of(Gemm(8, 8, 8, batch=2, grouped=True)) == "gemm.bf16.tn.grouped"


def test_the_interval_widens_by_how_rows_scatter() -> None:
    sure, unsure = (with_own(sd, **{f"{NORM}.time": {1e6: 0.7}, f"{NORM}.energy": {1e6: 0.7}}) for sd in (0.0, 0.3))
    narrow, wide = (predict_work([Work((norm(4096),))], gpu_model(of)) for of in (sure, unsure))
    assert narrow.time_s == wide.time_s and narrow.energy_j == wide.energy_j
    spreads = [np.log(of.time_s_p95 / of.time_s) / 1.645 for of in (narrow, wide)]
    assert np.sqrt(spreads[1] ** 2 - spreads[0] ** 2) == pytest.approx(0.3, rel=0.12)
    assert wide.energy_j_p95 > 1.1 * narrow.energy_j_p95
