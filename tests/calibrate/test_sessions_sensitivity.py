"""Slopes: those of rows are the fit's own, those of forecasts are what forecasting again gives."""

from __future__ import annotations

import numpy as np
import pytest

from joulecast.calibrate.fit.device_priors import DevicePriors
from joulecast.calibrate.fit.power import power_at_observed_clock_w
from joulecast.calibrate.fit.tables import collect, predicted_time_s
from joulecast.calibrate.rows.measured import parse_rows
from joulecast.calibrate.sessions.candidates import Candidate, Reference, usable
from joulecast.calibrate.sessions.information import free_parameters, linearise
from joulecast.calibrate.sessions.sensitivity import sensitivity
from joulecast.model.hardware.gpu_model import GpuModel
from joulecast.model.kernels.operators import Attention, Gemm, Streaming
from joulecast.model.predict import predict_work
from joulecast.model.repeated_work import Work

ROWS = [
    '{"op": "gemm", "M": 8192, "N": 8192, "K": 8192, "dtype": "bf16", "data": "randn", "name": "g"}',
    '{"op": "gemm", "M": 4096, "N": 4096, "K": 4096, "dtype": "fp8", "data": "randn", "name": "f", "card": "other"}',
    '{"op": "copy", "bytes": 1e9, "dtype": "bf16", "name": "c"}',
    '{"op": "flash_attn", "dtype": "bf16", "B": 4, "Hq": 32, "Hkv": 8, "S": 4096, "D": 64, "causal": true, '
    '"backend": "CUDNN_ATTENTION", "direction": "fwd", "name": "a"}',
    '{"op": "interleave", "n8": 2, "nv": 40, "n2": 10, "name": "i"}',
]


def candidates() -> list[Candidate]:
    """One for each row."""
    return [Candidate(r.name, r.configuration, r.op, 4.0) for r in parse_rows("\n".join(ROWS), "rows")]


def measured(gpu: GpuModel, clock_mhz: float) -> list[str]:
    """The rows as they would be measured at a clock."""
    found = []
    for text, candidate in zip(ROWS, candidates(), strict=True):
        work = candidate.work
        piece = sensitivity([Work(work.operators, work.counts)], np.array([clock_mhz]), gpu, {})
        time, power = float(piece.time_s[0]), float(piece.power_w[0])
        found.append(f'{text[:-1]}, "time_s": {time}, "power_w": {power}, "sm_clock_mhz": {clock_mhz}}}')
    return found


def test_slopes_at_a_clock_are_those_of_the_fit(gpu: GpuModel, priors: DevicePriors) -> None:
    rows = collect(parse_rows("\n".join(measured(gpu, 1500.0)), "rows"))
    works = [Work(c.work.operators, c.work.counts) for c in candidates()]
    free = free_parameters(priors)
    found = sensitivity(works, np.full(len(ROWS), 1500.0), gpu, free)
    for place, (name, prior) in enumerate(free.items()):
        moved = gpu.with_values({name: gpu[name] + 0.01 * prior.sd})
        time = np.log(predicted_time_s(rows, moved) / predicted_time_s(rows, gpu)) / 0.01
        assert found.time[:, place] == pytest.approx(time, abs=1e-9), name
        if name in priors.power and name != "kernel.gemm.reread_share":
            power = np.log(power_at_observed_clock_w(rows, moved) / power_at_observed_clock_w(rows, gpu)) / 0.01
            assert found.energy[:, place] == pytest.approx(power, abs=0.004), name


@pytest.mark.parametrize("hungry", [False, True], ids=["below the limit", "at the limit"])
def test_slopes_of_forecasts_are_what_forecasting_again_gives(
    gpu: GpuModel, priors: DevicePriors, hungry: bool
) -> None:
    # Products and attention that the power limit holds back, not the limit on tensor throughput; or nothing does.
    energies = ("power.tensor_pj_per_flop.bf16", "power.attention_pj_per_flop.cudnn.forward")
    rest = {"power.hbm_base_pj_per_byte": 80.0} if hungry else {"power.gemm_pj_per_l2_byte": 8.0, "power.sm_w": 20.0}
    gpu = gpu.with_values({**dict.fromkeys(energies, 1.1 if hungry else 0.55), **rest})
    kernels = [
        Gemm(8192, 8192, 8192),
        Attention(4, 32, 8, 4096, 128, backend="cudnn"),
        Streaming("copy", 5e8, 5e8, elements=2.5e8),
    ]
    settled_w = gpu.device["power_limit_w"] * gpu["governor.settled_share"]
    power = predict_work([Work((k,)) for k in kernels], gpu).power_w
    assert (power > 0.999 * settled_w).tolist() == [hungry] * 3
    free = free_parameters(priors)
    reference = [Reference(k) for k in kernels] + [Reference(k, 0.6) for k in kernels]
    _, slopes = linearise(candidates(), reference, gpu, priors)
    names = list(free)
    for name in (
        "power.tensor_pj_per_flop.bf16",
        "power.attention_pj_per_flop.cudnn.forward",
        "power.hbm_base_pj_per_byte",
        "kernel.gemm.eta",
        "kernel.streaming.copy.bandwidth_share",
        "voltage.slope",
        "governor.settled_share",
        "governor.tensor_clock_mhz",
    ):
        step = 0.02 * free[name].sd
        for clock, limit, part in ((None, None, slice(0, 3)), (0.6 * gpu.max_clock_mhz, 1e5, slice(3, 6))):
            up, down = (
                predict_work(
                    [Work((k,)) for k in kernels],
                    gpu.with_values({name: gpu[name] + s}),
                    clock_mhz=clock,
                    power_limit_w=limit,
                )
                for s in (step, -step)
            )
            time = np.log(up.time_s / down.time_s) / 0.04
            energy = np.log(up.energy_j / down.energy_j) / 0.04
            column = slopes[:, names.index(name)]
            assert column[:6][part] == pytest.approx(time, abs=0.01), (name, clock)
            assert column[6:][part] == pytest.approx(energy, abs=0.01), (name, clock)


def test_what_a_candidate_does_not_show_tells_nothing(gpu: GpuModel, priors: DevicePriors) -> None:
    rows = (
        '{"op": "idle", "name": "rest"}',
        '{"op": "duty", "duty": 0.4, "name": "duty"}',
        ROWS[2][:-1] + ', "companion": "randn", "name": "beside"}',
        ROWS[0][:-1] + ', "clock_mhz": 1200, "name": "locked"}',
        ROWS[0],
    )
    found = [Candidate(r.name, r.configuration, r.op, 4.0) for r in parse_rows("\n".join(rows), "rows")]
    shown, _ = linearise(found, [Reference(Gemm(4096, 4096, 4096))], gpu, priors)
    time, power, limit = shown.variance.reshape(3, 5)
    assert np.isinf(time).tolist() == [True, True, False, False, False]
    assert np.isinf(power).tolist() == [False, True, True, False, False]
    assert np.isinf(limit).tolist() == [True, True, True, True, False]
    assert power[3] < power[4]  # a locked clock is known
    assert shown.group[3] == shown.group[4]  # the same kernel errs the same at each clock


def test_unusable_candidates_say_why(gpu: GpuModel) -> None:
    rows = [*ROWS[:1], '{"op": "gemm", "M": 64, "N": 65, "K": 67, "dtype": "bf16", "name": "odd"}', '{"op": "what"}']
    rows.append('{"op": "duty", "duty": 0.5, "name": "duty"}')
    found = [Candidate(r.name, r.configuration, r.op, 4.0) for r in parse_rows("\n".join(rows), "rows")]
    kept, dropped = usable(found, gpu)
    assert [c.name for c in kept] == ["g", "odd"]
    assert [name for name, _ in dropped] == ["rows:3", "duty"]
    assert "unknown op 'what'" in dropped[0][1]
