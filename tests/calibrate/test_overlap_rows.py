"""Rows of overlapped work: what they launch, and what their forecasts must obey."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from joulecast.calibrate.descriptions.describe import refit_contention
from joulecast.calibrate.fit.contention import fit_contention
from joulecast.calibrate.fit.device_priors import priors_for
from joulecast.calibrate.rows.measured import parse_rows, recorded_rows
from joulecast.calibrate.rows.overlap import launches_of
from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.simulator.instructions.repeated import Conditions, predict_repeated
from joulecast.validate.choices.overlap import predict_overlap

RECORDED = Path(str(files("joulecast.validate").joinpath("recorded", "h200_sxm", "overlap.jsonl")))

LAYER = {
    "op": "overlap", "model": "llama8b", "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "tp": 2, "B": 4,
    "S": 4096, "direction": "fwd", "gpus": 2, "dtype": "bf16", "part": "attn", "mode": "overlap", "scope": "all",
    "ctas": 16,
}  # fmt: skip


def forecast(in_step: int = 2, clock_mhz: float | None = None, **changes: object):
    conditions = Conditions(in_step, clock_mhz=clock_mhz)
    return predict_repeated([launches_of({**LAYER, **changes})], gpu_model(load_gpu("h200-sxm-rows")), conditions)


def test_large_groups_reach_the_limit_at_work_that_repeats():
    """As recorded: four GPUs in step draw 694 W each, two 692 W; the more wait for each other the longer it takes."""
    pair, four, eight = (forecast(n, part="mlp") for n in (2, 4, 8))
    assert four.power_w[0] == pytest.approx(pair.power_w[0], rel=1e-3)
    assert eight.power_w[0] == pytest.approx(pair.power_w[0], rel=1e-3)
    assert pair.time_s[0] < four.time_s[0] < eight.time_s[0]


@pytest.mark.parametrize("gpus", [2, 4])
def test_recorded_layers_at_the_limit_draw_what_is_forecast(gpus):
    read = parse_rows(RECORDED.read_text(encoding="utf-8"), RECORDED.name)
    rows = [row for row in read if row.gpus == gpus and row.measured.sm_clock_mhz < 1900]
    said = [answer.power_w for answer in predict_overlap(load_gpu("h200-sxm"), rows)]
    assert len(rows) > 10
    assert np.mean(np.array(said) / [row.measured.power_w for row in rows]) == pytest.approx(1.0, abs=0.01)


def test_the_reduction_stands_where_the_scope_says():
    at = {
        scope: [launch.stream for launch in launches_of({**LAYER, "scope": scope})].index("communication")
        for scope in ("all", "after_qkv")
    }
    assert at == {"all": 0, "after_qkv": 2}


def test_nanobatches_do_the_work_of_a_whole_layer():
    def totals(mode: str) -> tuple[float, float]:
        launches = launches_of({**LAYER, "part": "layer", "mode": mode})
        flops = sum(getattr(launch.operator, "flops", 0.0) for launch in launches)
        communicated = sum(launch.operator.bytes for launch in launches if launch.stream == "communication")
        return flops, communicated

    assert totals("nanobatch") == pytest.approx(totals("sequential"))
    alone = launches_of({**LAYER, "part": "layer", "mode": "sequential"})
    assert [launch.waits for launch in alone if launch.stream == "communication"] == [True, True]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"mode": "sideways"}, "mode"),
        ({"scope": "after_lunch"}, "scope"),
        ({"part": "mlp", "scope": "after_qkv"}, "scope"),
        ({"part": "head"}, "part"),
        ({"hidden": None}, "hidden"),
        ({"direction": "bwd"}, "direction"),
        ({"mode": "nanobatch", "part": "layer", "B": 3}, "B"),
        ({"op": "gemm_allgather", "M": 8, "N": 8, "K": 8, "bytes": 8, "mode": "maybe"}, "mode"),
    ],
)
def test_what_is_wrong_is_named(changes, key):
    with pytest.raises(InputError) as error:
        launches_of({**LAYER, **changes})
    assert error.value.key == key


def test_overlap_takes_longer_than_either_stream_and_less_than_both():
    alone = forecast(1, 1500.0, mode="compute").time_s[0]
    both = forecast(1, 1500.0, mode="sequential").time_s[0]
    assert alone < forecast(1, 1500.0).time_s[0] < both


def test_a_late_reduction_of_few_blocks_hides_less():
    early, late = (forecast(scope=scope, ctas=4).time_s[0] for scope in ("all", "after_qkv"))
    assert late > 1.2 * early


def test_a_lower_limit_is_slower_and_draws_what_it_may():
    program, gpu = [launches_of(LAYER)], gpu_model(load_gpu("h200-sxm-rows"))
    free, held = (predict_repeated(program, gpu, Conditions(2, power_limit_w=limit)) for limit in (700.0, 450.0))
    assert held.time_s[0] > free.time_s[0]
    assert held.power_w[0] == pytest.approx(450.0 * gpu["governor.settled_share"], rel=0.01)


def test_the_energy_by_component_adds_up():
    found = forecast()
    assert sum(part[0] for part in found.components_j.values()) == pytest.approx(found.energy_j[0], rel=1e-9)
    assert found.time_s_p05[0] < found.time_s[0] < found.time_s_p95[0]


@pytest.mark.parametrize("window", [{}, {"settle_s": 0.2, "target_window_s": 0.6}])
def test_contention_that_made_the_rows_is_recovered(window):
    """Short windows are fitted to where there are no others, as they were on the way to their settled clocks."""
    base = load_gpu("h200-sxm-rows")
    true = {"contention.compute_slowdown": 1.6, "contention.cta_slowdown": 1.3, "contention.cta_slowdown_memory": 2.2}
    truth = replace(gpu_model(base), description=None).with_values(true)
    rows = []
    for recorded in recorded_rows(files_=("overlap_parts.jsonl",)):
        row = replace(recorded, configuration={**recorded.configuration, **window})
        under = Conditions(row.gpus, settle_s=row.settle_s, window_s=row.window_s)
        time_s = float(predict_repeated([launches_of(row.configuration)], truth, under).time_s[0])
        rows.append(replace(row, measured=replace(row.measured, time_s=time_s)))
    fitted, solution = fit_contention(rows, gpu_model(base), priors_for(base.device).contention)
    assert solution is not None
    spread = dict(zip(solution.names, np.sqrt(np.diag(solution.covariance)), strict=True))
    for name, value in true.items():
        assert abs(fitted[name] - value) < max(2 * spread[name], 0.02 * value), name


def test_without_overlapped_rows_there_is_nothing_to_fit():
    with pytest.raises(InputError, match="overlapped"):
        refit_contention(recorded_rows(files_=("cards.jsonl",)), load_gpu("h200-sxm-rows"))
