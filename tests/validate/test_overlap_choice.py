"""What it costs to choose overlap by forecast, held against always making the same choice."""

import numpy as np
import pytest
from paths import ROOT, SHARED_DATA

from joulecast.calibrate.rows.measured import Measured, Row
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.validate import run_suite
from joulecast.validate.choices.overlap_choice import _problem, overlap_choices
from joulecast.validate.scoring.regret import forecast, measured, problems, regret
from joulecast.validate.scoring.result import Prediction, ScoredRow

SHORT = SHARED_DATA / "h200_sxm" / "overlap.jsonl"
RECORDED = ROOT / "validate" / "recorded" / "h200_sxm"


def option(said, took, mode="overlap", scope="all", ctas=8, **changes):
    configuration = {"op": "overlap", "part": "attn", "gpus": 2, "mode": mode, "scope": scope, "ctas": ctas, **changes}
    row = Row("", "overlap", configuration, Measured(time_s=took, energy_j=None))
    return ScoredRow(row, Prediction(time_s=said, energy_j=said), "overlap")


def lines(*options):
    return {line["chosen by"]: line for line in overlap_choices(load_gpu("h200-sxm-rows"), options)}


def test_the_choice_pays_what_was_measured():
    found = lines(option(1.0, 1.1, ctas=8), option(1.05, 1.0, ctas=16), option(2.0, 2.0, "sequential", None, None))
    assert found["forecast"]["mean_regret_percent"] == pytest.approx(10.0)
    assert found["always 16 blocks"]["worst_regret_percent"] == 0.0
    assert found["best constant of time: 16 blocks"]["mean_regret_percent"] == 0.0


def test_work_without_communication_is_no_choice():
    """Computing without the all-reduce would be the fastest of all."""
    found = lines(option(0.1, 0.1, "compute", None, None), option(1.0, 1.0, ctas=8), option(1.1, 1.1, ctas=16))
    assert found["forecast"]["worst_regret_percent"] == 0.0


def test_of_equal_forecasts_overlap_is_taken():
    found = lines(option(1.0, 1.2, "sequential", None, None), option(1.0, 1.0, ctas=8))
    assert found["forecast"]["worst_regret_percent"] == 0.0


def test_a_tenth_of_a_percent_does_not_tell_a_later_launch_from_an_early_one():
    early = option(1.0, 1.0, ctas=8)
    assert lines(early, option(0.9995, 1.3, scope="after_qkv", ctas=8))["forecast"]["worst_regret_percent"] == 0.0
    later = lines(early, option(0.998, 1.3, scope="after_qkv", ctas=8))["forecast"]
    assert later["worst_regret_percent"] == pytest.approx(30.0)


def test_problems_do_not_mix():
    rows = [option(1.0, 1.0, ctas=8), option(1.2, 1.2, ctas=16)]
    rows += [option(0.5, 0.5, ctas=8, part="mlp"), option(0.4, 0.4, ctas=16, part="mlp")]
    found = lines(*rows, option(0.1, 0.1, part="layer"))
    assert found["forecast"]["problems"] == 2
    assert found["forecast"]["worst_regret_percent"] == 0.0
    assert found["always 16 blocks"]["mean_regret_percent"] == pytest.approx(10.0)


def test_a_constant_takes_the_nearest_blocks_measured():
    found = lines(option(1.0, 1.0, ctas=20), option(1.5, 1.5, ctas=4), option(1.4, 1.4, "sequential", None, None))
    assert found["best constant of time: 20 blocks"]["worst_regret_percent"] == 0.0
    more = lines(
        option(1.0, 1.0, ctas=20),
        option(1.5, 1.5, ctas=4),
        option(1.0, 1.0, ctas=16, B=2),
        option(2.0, 2.0, ctas=4, B=2),
    )
    assert more["always 16 blocks"]["worst_regret_percent"] == 0.0


def test_recorded_layers_are_chosen_well():
    """Within 1 % of the best on average and 3 % at worst; in time at most half as far off as the best constant."""
    found = run_suite("overlap", RECORDED / "overlap.jsonl").details["choices"]
    time = {line["chosen by"].partition(":")[0]: line for line in found if line["quantity"] == "time"}
    ours, constant = time["forecast"], time["best constant of time"]
    assert ours["problems"] >= 10
    assert ours["mean_regret_percent"] <= min(1.0, constant["mean_regret_percent"] / 2)
    assert ours["worst_regret_percent"] <= 3.0
    energy = {line["chosen by"]: line for line in found if line["quantity"] == "energy"}["forecast"]
    assert energy["mean_regret_percent"] <= 1.0 and energy["worst_regret_percent"] <= 3.0


def test_parts_of_layers_in_long_windows_are_chosen_well():
    """Ways that are forecast to take the same are told apart by what forecasts leave out."""
    found = run_suite("overlap", ROOT / "calibrate" / "recorded" / "h200_sxm" / "overlap_parts.jsonl")
    ours = [line for line in found.details["choices"] if line["chosen by"] == "forecast"]
    assert [line["quantity"] for line in ours] == ["time", "energy"]
    assert all(line["worst_regret_percent"] <= 0.5 for line in ours), ours


@pytest.mark.skipif(not SHORT.exists(), reason=f"no {SHORT}")
def test_short_windows_are_chosen_well_and_their_scatter_costs_a_forecaster_without_error_as_much():
    """Rows drawn anew about the forecasts with the scatter that they show about them: at most that is the readings'."""
    rows = run_suite("overlap", SHORT).rows
    of_parts = [options for options in problems(rows, _problem) if options[0].row.configuration.get("part")]
    random = np.random.default_rng(7)
    chosen = [line for line in overlap_choices(load_gpu("h200-sxm"), rows) if line["chosen by"] == "forecast"]
    assert [line["quantity"] for line in chosen] == ["time", "energy"]
    assert all(line["mean_regret_percent"] <= 1.0 and line["worst_regret_percent"] <= 3.0 for line in chosen), chosen
    for quantity, scatter, middle in (("time_s", 0.03, 0.015), ("energy_j", 0.04, 0.02)):
        held = [[r for r in options if (r.row.configuration.get("ctas") or 24) > 2] for options in of_parts]
        said = [forecast(options, quantity) for options in held]
        off = [np.log(measured(options, quantity) / own) for options, own in zip(held, said, strict=True)]
        spread = float(np.concatenate([one - np.nanmean(one) for one in off]).std(ddof=len(off)))
        drawn = [
            max(regret(own, own * np.exp(spread * random.standard_normal(len(own)))) for own in said)
            for _ in range(1000)
        ]
        low, median, high = np.percentile(drawn, [5.0, 50.0, 95.0])
        print(f"{quantity}: rows scatter by {spread:.1%}, worst regret {low:.1%} to {high:.1%}, median {median:.1%}")
        assert spread < scatter and median > middle and high > 0.03
