"""Loops that users metered, forecast from the plans that their rows carry."""

import json
import re

import pytest
from command import run, status_of
from metered_rows import AT_ONCE, PLAN, metered
from row_files import write_json

import joulecast as jc
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.meter.metered_row import joined
from joulecast.errors import DataError
from joulecast.validate import run_suite

ON_FOUR = {"workload": {**PLAN["workload"], "global_batch_size": 16}, "cluster": {"gpu": "h200-sxm", "gpus": 4}}
TOML = """
[workload]
model = "llama-3.2-1b"
sequence_length = 2048
micro_batch_size = 4
global_batch_size = 8
[cluster]
gpu = "h200-sxm"
gpus = 1
"""


def of_ranks(*ranks, **fields):
    return [
        metered(
            ON_FOUR, rank=r, world_size=4, time_s=0.2 + 0.001 * r, power_w=600.0 + r, sm_clock_mhz=1500.0 + r, **fields
        )
        for r in ranks
    ]


def written(tmp_path, *rows, name="measured.jsonl"):
    return write_json(tmp_path / name, *rows)


def test_a_loop_is_forecast_from_its_plan_alone(tmp_path):
    forecast = jc.predict(PLAN)
    right = metered(time_s=forecast.time_s, power_w=forecast.power_w, energy_j=forecast.energy_j)
    result = run_suite("plans", written(tmp_path, metered(), right))
    assert [row.prediction.time_s for row in result.rows] == [forecast.time_s] * 2
    assert result.rows[1].prediction.energy_j_p95 == forecast.energy_j_p95
    error = 100 * (1 - forecast.time_s / 0.15)
    assert result.summary["all"]["time_error_percent"] == pytest.approx(abs(error) / 2, abs=1e-3)
    assert result.summary["all"]["energy_inside_percent"] in (50.0, 100.0)
    assert result.gpu == "h200-sxm" and result.skipped == ()
    rule = result.rows[0].baseline
    assert rule.time_s == pytest.approx(forecast.model_flops_per_s * forecast.time_s / 662e12)
    assert rule.power_w == 690.0


def test_peak_memory_is_scored_of_the_fullest_gpu(tmp_path):
    forecast = jc.predict(PLAN).ranks[0].memory_bytes
    result = run_suite("plans", written(tmp_path, metered(peak_mem_bytes=round(forecast / 1.1))))
    assert result.summary["all"]["memory_error_percent"] == pytest.approx(10.0, abs=1e-3)
    ranks = [{**row, "peak_mem_bytes": 10**9 * (1 + row["rank"])} for row in of_ranks(0, 1, 2, 3)]
    assert run_suite("plans", written(tmp_path, *ranks)).rows[0].measured.peak_mem_bytes == 4e9


def test_what_was_measured_does_not_move_the_forecast(tmp_path):
    one = run_suite("plans", written(tmp_path, metered())).rows[0].prediction
    measured = {"time_s": 9.0, "power_w": 1.0, "energy_j": 9.0, "sm_clock_mhz": 345.0, "gpu_temp_c": 90.0}
    other = run_suite("plans", written(tmp_path, metered(**measured, peak_mem_bytes=1))).rows[0].prediction
    assert one == other


def test_a_plan_may_be_of_any_card_and_another_description_may_be_asked_for(tmp_path):
    plan = {**PLAN, "cluster": {"gpu": "h100-sxm", "gpus": 1}}
    file = written(tmp_path, metered(plan))
    result = run_suite("plans", file)
    assert result.gpu == "h100-sxm"
    assert result.rows[0].prediction.time_s == jc.predict(plan).time_s
    assert result.rows[0].baseline.time_s == pytest.approx(0.15)  # one row, one constant
    assert run_suite("plans", file, gpu="h200-sxm").rows[0].prediction.time_s == jc.predict(PLAN).time_s


def test_paths_of_a_plan_start_in_its_folder(tmp_path, monkeypatch):
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "intermediate_size": 8192,
        "vocab_size": 32000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    plan = {**PLAN, "workload": {**PLAN["workload"], "model": "./config.json"}}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = run_suite("plans", written(tmp_path, metered(plan, plan_file=str(tmp_path / "plan.toml"))))
    assert len(result.rows) == 1
    skipped = run_suite("plans", written(tmp_path, metered(plan, plan_file="/gone/plan.toml"))).skipped
    assert "config.json" in skipped[0][1]


def test_rows_of_ranks_are_joined_whatever_their_order_and_files(tmp_path):
    first = {"gpu_temp_c": 40.0}
    later = {"gpu_temp_c": 50.0, "measured_begin_unix_s": 200.0, "measured_end_unix_s": 210.0}
    rows = [*of_ranks(2, 0, **first), *of_ranks(1, 3, **later)]
    written(tmp_path, *rows, name="node0.jsonl")
    written(tmp_path, *of_ranks(3, 1, **first), *of_ranks(0, 2, **later), name="node1.jsonl")
    result = run_suite("plans", tmp_path)
    assert len(result.rows) == 2 and result.skipped == ()
    assert [row.measured.temperature_c for row in result.rows] == [40.0, 50.0]
    for row in result.rows:
        assert row.measured.time_s == 0.203  # the slowest
        assert row.measured.power_w == 600.0 + 601.0 + 602.0 + 603.0
        assert row.measured.energy_j == pytest.approx(row.measured.power_w * 0.203)
        assert row.measured.sm_clock_mhz == 1501.5
        assert row.row.gpus == 4
    assert result.rows[0].prediction.power_w == jc.predict(ON_FOUR).power_w


def test_power_is_not_known_while_a_rank_is_missing(tmp_path):
    row = run_suite("plans", written(tmp_path, *of_ranks(0, 2))).rows[0]
    assert row.measured.time_s == 0.202
    assert row.measured.power_w is None and row.measured.energy_j is None
    assert row.measured.raw["power_w_per_gpu"] == [600.0, None, 602.0, None]
    alone = run_suite("plans", written(tmp_path, metered(ON_FOUR))).rows[0]
    assert alone.measured.time_s == 0.15 and alone.measured.power_w is None


def test_ranks_with_several_gpus_each():
    rows = [
        metered(ON_FOUR, rank=r, world_size=2, gpus=2, power_w_per_gpu=[500.0 + r, 510.0 + r], time_s=0.2)
        for r in (1, 0)
    ]
    for row in rows:
        del row["power_w"]
    (one,) = joined(rows)
    assert one["power_w_per_gpu"] == [500.0, 510.0, 501.0, 511.0]
    assert one["energy_j"] == pytest.approx(0.2 * sum(one["power_w_per_gpu"]))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (metered(measured_partial=True), "ended before a window closed"),
        (metered(gpus=4), "ran on 4 GPUs, its plan has 1"),
        (metered({**PLAN, "cluster": {"gpu": "h900", "gpus": 1}}), "unknown GPU 'h900'"),
        (metered({**PLAN, "wrokload": {}}), "wrokload"),
    ],
)
def test_a_row_that_cannot_be_scored_says_why_and_the_others_are(tmp_path, row, reason):
    result = run_suite("plans", written(tmp_path, row, metered(name="good")))
    assert [scored.row.name for scored in result.rows] == ["good"]
    assert result.skipped[0][0] == "plan" and reason in result.skipped[0][1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": None}, r"measured.jsonl:1 \[form\]: not a row of a metered loop: its form is None"),
        ({"form": "joulecast-metered-2"}, "its form is 'joulecast-metered-2', not 'joulecast-metered-1'"),
        ({"plan": "plan.toml"}, r":1 \[plan\]: 'plan.toml' is no plan of a metered loop"),
        ({"world_size": 0}, "0 is no world_size"),
        ({"rank": -1}, "-1 is no rank"),
        ({"gpus": True}, r"gpus\]"),
        ({"time_s": "fast"}, r"time_s\]"),
        ({"plan_gpus": 10**12}, "plan_gpus"),
        ({"world_size": 10**6, "gpus": 10**6}, "world_size"),
        ({"measured_energy_sd": "little"}, "'little' is no measured_energy_sd"),
    ],
)
def test_a_foreign_row_gets_one_readable_message(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        run_suite("plans", written(tmp_path, {**metered(), **change}))


def test_a_time_next_to_nothing_has_no_error(tmp_path):
    row = metered(time_s=1e-320, energy_j=None)  # with its energy it would be refused
    assert run_suite("plans", written(tmp_path, row)).summary["all"]["time_error_percent"] is None


def test_a_file_that_was_cut_off_is_told_with_its_line(tmp_path, capsys):
    file = written(tmp_path, metered(), metered())
    file.write_text(file.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    assert status_of("validate", "plans", "--data", str(file)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "measured.jsonl:2: not a JSON object" in error
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="there are no rows"):
        run_suite("plans", tmp_path / "empty.jsonl")


def test_the_command_prints_the_usual_report_and_writes_the_page(tmp_path, capsys):
    file = written(tmp_path, metered(peak_mem_bytes=2.5e10), metered(name="other", measured_partial=True))
    status, out, _ = run(capsys, "validate", "plans", "--data", str(file), "--report", str(tmp_path / "report.html"))
    assert status == 0 and "forecast time [s]" in out and "skipped: other (the loop ended" in out
    assert re.search(r"memory \[GB\].*\n.* 25  +29.09 ", out)
    assert "plans on h200-sxm: each row by the plan that it carries" in out
    assert "Forecast against measured" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_what_a_meter_writes_is_read(tmp_path, monkeypatch):
    file = tmp_path / "measured.jsonl"
    plan = {**ON_FOUR, "cluster": {"gpu": "h200-sxm", "gpus": 2}}
    plan["workload"] = {**ON_FOUR["workload"], "global_batch_size": 8}
    (tmp_path / "plan.toml").write_text(TOML, encoding="utf-8")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        card = SimulatedCard()
        card.begin({"op": "gemm", "M": 8192, "N": 8192, "K": 8192, "dtype": "bf16"})
        with jc.meter(tmp_path / "plan.toml", ["cluster.gpus=2"], devices=[card], windows=1) as meter:
            while not meter.done:
                card.sleep(0.2)
                meter.step()
        monkeypatch.setattr(meter, "_measured", {**meter._measured, **AT_ONCE})  # virtual time takes none
        meter.write(file)
    result = run_suite("plans", file)
    assert len(result.rows) == 1 and result.skipped == ()
    assert result.rows[0].row.name == "plan" and result.rows[0].measured.time_s == pytest.approx(0.2)
    assert result.rows[0].measured.power_w == pytest.approx(2 * 693, rel=0.02)
    assert result.rows[0].prediction.time_s == jc.predict(plan).time_s


def test_other_suites_pass_over_metered_rows_in_a_folder(tmp_path):
    written(tmp_path, metered())
    (tmp_path / "rows.jsonl").write_text(json.dumps({"name": "odd", "op": "train_iter"}) + "\n", encoding="utf-8")
    result = run_suite("train", tmp_path)
    assert [name for name, _ in result.skipped] == ["odd"]
