"""``joulecast profile`` from end to end on a simulated card."""

import json

import command
import pytest
from row_files import csv_rows

from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_sensors import Faults
from joulecast.cli import main

pytest.importorskip("scipy")


def run(capsys, *arguments):
    return command.run(capsys, "profile", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("profile") / "out"


@pytest.fixture(scope="module")
def answer(folder):
    """The JSON of one profile, taken once."""
    import contextlib
    import io

    out = io.StringIO()
    arguments = ["gemm:8192x8192x8192:bf16", "--device", "sim:h200-sxm", "--runs", "80", "--outliers", "--json"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main(["profile", *arguments, "--out", str(folder)])
    return json.loads(out.getvalue())


def test_the_simulated_card_is_profiled(answer):
    assert answer["kernels"] == ["gemm_bf16_8192x8192x8192_randn"]
    assert answer["runs"] == 80
    assert answer["golden_runs"] > 40
    assert 1.2e-3 < answer["execution_s"] < 2.0e-3
    assert answer["energy_j"] == pytest.approx(answer["ssp"]["power_w"] * answer["execution_s"])


def test_its_sensor_is_found_as_it_was_made(answer):
    sensor = next(sensor for sensor in answer["sensors"] if sensor["name"] == "power")
    assert sensor["period_s"] == pytest.approx(0.1, rel=1e-3)
    assert sensor["window_s"] == pytest.approx(0.025, abs=5e-4)
    # A sample carries the middle of its call of 2 ms.
    assert sensor["lag_s"] == pytest.approx(1e-3, abs=5e-4)


def test_its_clock_is_found_as_it_was_made(answer):
    assert answer["clock"]["drift"] == pytest.approx(23e-6, abs=1e-6)
    assert answer["clock"]["standard_error_s"] < 1e-6


def test_the_overshoot_before_the_governor_acts_is_seen(answer):
    assert answer["sse"]["power_w"] > 1.15 * answer["ssp"]["power_w"]
    assert answer["curves"]["run"]["resolution_s"] < 22e-3


def test_what_the_sensor_cannot_tell_is_said(answer):
    assert any("inside an execution" in line for line in answer["unresolved"])
    assert not answer["sse"]["resolved"]


def test_data_is_written_as_csv(answer, folder):
    rows = csv_rows(folder / "profile.csv")
    assert {row["curve"] for row in rows} == {"run"}
    duration = sum(float(row["width_s"]) for row in rows)
    assert duration == pytest.approx(answer["curves"]["run"]["duration_s"])
    mean = sum(float(row["width_s"]) * float(row["power_w"]) for row in rows) / duration
    assert answer["ssp"]["power_w"] < mean < answer["sse"]["power_w"]
    points = csv_rows(folder / "points.csv")
    assert len(points) > 80
    assert {point["golden"] for point in points} <= {"true", "false"}


def test_the_plot_is_a_png(answer, folder):
    pytest.importorskip("matplotlib")
    assert (folder / "profile.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert answer["files"]["plot"] == str(folder / "profile.png")


def test_kernels_in_turn_on_standard_output(capsys):
    kernels = ["gemm:16384x16384x8192:bf16:zeros", "copy_512MB"]
    status, out, err = run(capsys, *kernels, "--device", "sim:h200-sxm", "--runs", "30")
    assert status == 0
    for words in ("power at steady time", "energy per execution", "golden runs", "clocks tied to", "resolution of the"):
        assert words in out
    assert "share of copy_512MB" in out
    assert "not resolved: power of copy_512MB apart from its neighbours" in out
    assert "30 runs" in err


@pytest.mark.parametrize(
    ("faults", "code"),
    [(Faults(mig=True), "mig"), (Faults(neighbour_w=400.0), "busy"), (Faults(inlet_offset_c=60.0), "throttled")],
)
def test_an_unfit_card_is_a_named_error(tmp_path, capsys, faults, code):
    SimulatedCard("h200-sxm", faults=faults, file=tmp_path / "card.json")
    status, out, err = run(capsys, "gemm:8192x8192x8192", "--device", f"sim:{tmp_path / 'card.json'}")
    assert (status, out) == (2, "")
    assert err.count(f"[{code}]") == 1 and f"error: [{code}]: " in err


def test_a_sensor_that_stands_still_is_told_and_done_without(tmp_path, capsys):
    SimulatedCard("h200-sxm", faults=Faults(counter="still"), file=tmp_path / "card.json")
    words = ("gemm:8192x8192x8192", "--device", f"sim:{tmp_path / 'card.json'}", "--runs", "20", "--json")
    status, out, err = run(capsys, *words)
    assert status == 0
    assert "warning [counter-still]: " in err
    assert "energy" not in [sensor["name"] for sensor in json.loads(out)["sensors"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gemm:8192x8192"], "needs 3 sizes"),
        (["gemm:8192x0x8192"], "sizes above 0"),
        (["copy_513MB"], "copy_512MB"),
        (["gemm:8192x8192x8192", "--device", "sim:/nowhere/card.json"], "/nowhere/card.json"),
        (["gemm:8192x8192x8192", "--device", "replay:/nowhere"], "runs no kernels"),
        (["gemm:256x256x256", "--device", "sim:h200-sxm"], "too short"),
        (["gemm:8192x8192x8192", "--device", "sim:h200-sxm", "--out", "/dev/null/x"], "is yours and has room."),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert message in lines[0]


def test_a_card_that_is_not_there_leaves_no_folder(tmp_path, capsys):
    status, _, err = run(
        capsys, "gemm:8192x8192x8192", "--device", f"sim:{tmp_path / 'card.json'}", "--out", str(tmp_path / "x")
    )
    assert status == 2 and "no such simulated card. Write" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gemm:999999x999999x99999"], "gemm:999999x999999x99999 takes 2.4e+03 GB, and Simulated h200-sxm has 151"),
        (["gemm:64x64x64:bf16:foo"], "unknown input data 'foo'. Use randn, zeros"),
        (["gemm:64x64x64", "--seed", "-1"], "--seed"),
    ],
)
def test_what_cannot_be_profiled_is_told_at_once(arguments, told, capsys):
    status, _, err = run(capsys, *arguments, "--device", "sim:h200-sxm")
    assert status == 2 and told in err
