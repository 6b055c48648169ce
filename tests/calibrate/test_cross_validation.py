"""Left-out rows: what they repeat, on which card they were measured, and what their misses say."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibrate.descriptions.assemble import assemble
from joulecast.calibrate.fit.cross_validation import held_out, held_out_misses
from joulecast.calibrate.rows.measured import recorded_folder, recorded_rows
from joulecast.calibrate.sessions.replay import read_folder
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.power.kernel_power import CARD_FACTORS
from joulecast.model.predict import parameter_spread, predict_work
from joulecast.model.repeated_work import Work


@pytest.fixture(scope="module")
def description():
    return load_gpu("h200-sxm-rows")


@pytest.fixture(scope="module")
def rows():
    return recorded_rows(files_=("kernels.jsonl", "cards.jsonl"))


@pytest.fixture(scope="module")
def products(rows):
    """One product of eight labelled cards."""
    return [row for row in rows if row.configuration.get("card") and row.op == "gemm"]


def test_rows_of_several_kernels_repeat_each_as_often_as_they_say(description):
    """Of no family, as their kernels are of several, but forecast as they ran."""
    recorded = read_folder(recorded_folder() / "h200_sxm_live").rows
    mixed = [row for row in recorded if row.op == "interleave" and row.configuration["nv"]]
    data = held_out(mixed, gpu_model(description))
    assert len(data.rows) > 3 and set(data.families) == {None}
    assert {work.counts for work in data.work} >= {(200.0, 100.0), (8.0, 400.0)}
    forecast = predict_work(data.work, gpu_model(description))
    assert forecast.time_s == pytest.approx(data.time_s, rel=0.15)
    assert held_out_misses(mixed, gpu_model(description)) == []


def test_rows_are_forecast_on_the_card_that_measured_them(products, description):
    own = [
        replace(row, configuration={**row.configuration, "card": card})
        for row, card in zip(products[:2], ("hungry", ""), strict=True)
    ]
    gpu = gpu_model(description)
    plain = held_out_misses(own, gpu)
    known = held_out_misses(own, gpu.with_values({"card.hungry.core": 1.1}))
    (unlabelled, labelled), (same, slower) = ([miss.time for _, miss in found] for found in (plain, known))
    assert same == unlabelled
    assert slower - labelled == pytest.approx(0.05, abs=0.01)  # at the power limit the clock gives way


def test_a_description_of_one_card_leaves_out_how_cards_differ(description):
    base = load_gpu("h200-sxm")
    kind, card = (assemble(base, "x", [], {}, "rows", of_one_card=one) for one in (False, True))
    factors = [name.partition(".")[2] for name in CARD_FACTORS]
    assert all(kind.power.parameters[name].sd > 0.03 for name in factors)
    assert all(card.power.parameters[name].sd == 0.0 for name in factors)
    assert all(table.power[name] == 1.0 for table in (kind, card) for name in factors)


def test_cards_of_a_kind_lie_within_its_intervals(products, description):
    """One product on eight cards of one host: the time at the power limit."""
    times = np.array([row.measured.time_s for row in products])
    work = held_out(
        [replace(row, configuration={**row.configuration, "card": "a"}) for row in products[:1]], gpu_model(description)
    ).work
    forecast = predict_work(work, gpu_model(description))
    assert np.all((forecast.time_s_p05 < times) & (times < forecast.time_s_p95))


@pytest.mark.parametrize(("clock_mhz", "expected"), [(None, 0.022), (1200.0, 0.033)])
def test_a_hungrier_chip_takes_time_at_the_limit_and_energy_below_it(description, clock_mhz, expected, products):
    """Of a product: at the power limit time and energy alike, at a low clock energy alone."""
    sure = {
        name: replace(
            table,
            parameters={
                key: p if f"{name}.{key}" == CARD_FACTORS[0] else replace(p, sd=0.0)
                for key, p in table.parameters.items()
            },
            covariance_names=(),
            covariance=np.zeros((0, 0)),
        )
        for name, table in description.tables.items()
    }
    gpu = gpu_model(replace(description, **sure))
    work = held_out([replace(products[0], configuration={**products[0].configuration, "card": ""})], gpu).work
    time, energy, _ = parameter_spread([Work(work[0].operators)], gpu, clock_mhz)
    assert energy[0] == pytest.approx(expected, rel=0.15)
    assert time[0] == pytest.approx(energy[0] if clock_mhz is None else 0.0, abs=0.002)
