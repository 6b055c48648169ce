"""Kernels whose power others published, at the clocks and limits that they set."""

from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from addressed_rows import addressed_names

from joulecast.calibrate.fit.unclocked import forecast_rows
from joulecast.calibrate.rows.measured import read_rows
from joulecast.calibrate.rows.operators import operator_of
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.validate import run_suite
from joulecast.validate.adapters import block_operators

FOLDER = files("joulecast.validate").joinpath("recorded", "metered_kernels")


@pytest.fixture(scope="module")
def products():
    return [one for one in read_rows(str(FOLDER)) if one.op == "gemm"]


@pytest.fixture(scope="module")
def passes():
    return run_suite("blocks", str(FOLDER), gpu="h100-sxm").rows


def test_rows_are_forecast_at_what_was_set(products):
    forecast = forecast_rows([operator_of(one.configuration) for one in products], products, load_gpu("b300"))
    for one, clock, power in zip(products, forecast.clock_mhz, forecast.power_w, strict=True):
        assert clock <= one.configuration.get("clock_mhz", 2032.0) + 1e-6
        assert power <= one.configuration.get("power_limit_w", 1100.0)
    assert {one.configuration.get("power_limit_w") for one in products} == {None, 400, 600}


def test_each_row_is_forecast_as_if_it_were_alone(products):
    gpu = load_gpu("b300")
    some = [products[i] for i in (0, 1, 3, 10)] + [one for one in products if one.is_set][:3]
    together = forecast_rows([operator_of(one.configuration) for one in some], some, gpu)
    for place, one in enumerate(some):
        alone = forecast_rows([operator_of(one.configuration)], [one], gpu)
        assert together.time_s[place] == pytest.approx(alone.time_s[0])
        assert together.components_j["static"][place] == pytest.approx(alone.components_j["static"][0])


def test_power_of_products_at_a_locked_clock():
    rows = [one for one in run_suite("kernels", str(FOLDER), gpu="b300").rows if one.row.configuration.get("clock_mhz")]
    off = [one.prediction.power_w / one.measured.power_w - 1.0 for one in rows]
    assert len(off) == 3 and np.max(np.abs(off)) < 0.06


def test_no_limiter_but_power_holds_products_on_blackwell_ultra():
    rows = [one for one in run_suite("kernels", str(FOLDER), gpu="b300").rows if "bf16_ones_8192" in one.row.name]
    assert [one.prediction.sm_clock_mhz for one in rows] == [one.measured.sm_clock_mhz for one in rows] == [2032]


@pytest.mark.parametrize("limit", [600, 400])
def test_a_lower_limit_takes_the_time_that_it_took(limit):
    rows = {one.row.name: one for one in run_suite("kernels", str(FOLDER), gpu="b300").rows}
    low, high = rows[f"b300_fp8_8192x8192x8192_{limit}w"], rows["b300_fp8_8192x8192x8192"]
    forecast = low.prediction.time_s / high.prediction.time_s
    assert forecast == pytest.approx(low.measured.time_s / high.measured.time_s, rel=0.09)


def test_power_of_forward_passes_on_an_h100(passes):
    off = [one.prediction.power_w / one.measured.power_w - 1.0 for one in passes]
    assert len(off) == 14 and np.max(np.abs(off)) < 0.07 and np.mean(np.abs(off)) < 0.035


def test_energy_of_qwen2_on_an_h100_lies_inside_its_interval(passes):
    rows = [one for one in passes if one.row.configuration["model"] != "gpt2"]
    assert len(rows) == 11
    assert all(r.prediction.energy_j_p05 <= r.measured.energy_j <= r.prediction.energy_j_p95 for r in rows)


def test_powers_on_derived_cards_lie_inside_their_intervals(passes):
    products = [one for one in run_suite("kernels", str(FOLDER), gpu="b300").rows if one.measured.power_w]
    assert len(passes) == 14 and len(products) == 6
    for one in (*passes, *products):
        assert one.prediction.power_w_p05 <= one.measured.power_w <= one.prediction.power_w_p95
        assert one.prediction.power_w_p95 < 2.1 * one.prediction.power_w_p05


def test_a_pass_repeats_its_blocks(passes):
    row = passes[0].row
    one = replace(row, configuration={**row.configuration, "blocks": 1})
    assert [o.name for o in block_operators(one)] == [o.name for o in block_operators(row)]
    assert any("softmax" in operator.name for operator in block_operators(row))


def test_every_row_says_where_it_stands():
    assert len(addressed_names(FOLDER)) == 48
