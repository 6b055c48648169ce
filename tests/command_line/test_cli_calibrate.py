"""The command ``calibrate``: a simulated card from a file, replays, reports, and what bad input gets."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import command
import pytest
from command import status_of

from joulecast import extras
from joulecast.calibrate.descriptions.from_rows import ParameterReport
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_sensors import Faults
from joulecast.calibrate.measure.recording import FILE_NAME, read_recording
from joulecast.calibrate.sessions import groups, live, reference
from joulecast.calibrate.sessions.belief import Uncertainty
from joulecast.calibrate.sessions.candidates import Candidate
from joulecast.calibrate.sessions.design import Choice
from joulecast.calibrate.sessions.display import Display
from joulecast.calibrate.sessions.duration import seconds
from joulecast.calibrate.sessions.groups import group_command, group_sizes, measure_group
from joulecast.calibrate.sessions.report import IDENTIFIED, report_text
from joulecast.errors import InputError, MeasurementError
from joulecast.model.hardware.catalogue import load_gpu

RECORDING = "simulated-h200-sxm.recording"


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer training steps make choosing quicker."""
    monkeypatch.setattr(reference, "STEPS", reference.STEPS[:2])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a healthy card in ``card.json``."""
    monkeypatch.chdir(tmp_path)
    SimulatedCard("h200-sxm", {"power.tensor_pj_per_flop.bf16": 0.62}, file=Path("card.json"))
    return tmp_path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of sixteen seconds of the healthy card, not to be written to."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(reference, "STEPS", reference.STEPS[:2])
        SimulatedCard("h200-sxm", {"power.tensor_pj_per_flop.bf16": 0.62}, file=Path("card.json"))
        status_of("calibrate", "--device", "sim:card.json", "--budget", "16s", "--record", "rec")
    return folder / "rec"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    return command.run(capsys, "calibrate", *arguments)


def test_a_card_is_measured_described_continued_and_replayed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = ("--device", "sim:card.json")
    status, out, err = run(capsys, *card, "--budget", "16s", "--out", "gpu.toml", "--report-json", "report.json")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 100
    assert "[power]" in out
    assert "expected after" in err
    assert "the budget has ended" in err
    assert "reached" in err
    assert load_gpu("gpu.toml").name == "simulated-h200-sxm"
    report = json.loads(Path("report.json").read_text())
    assert report["recording"] == RECORDING
    assert report["session"]["reason"] == "budget"
    assert {"value", "sd", "lower", "upper", "free", "identified", "correlation"} <= set(report["parameters"][0])

    rows = report["rows"]
    status, out, err = run(capsys, *card, "--budget", "24s", "--out", "more.toml", "--json")
    started = json.loads((Path(RECORDING) / FILE_NAME).read_text().splitlines()[0])["started"]
    told = rf"going on with {RECORDING}: {rows} rows are there, begun (\S+); 0:1\d of the budget of 0:24 went into them"
    assert re.search(told, err)[1] == started
    assert f"to measure anew, give --record another folder, or move {RECORDING} away" in err
    assert json.loads(out)["rows"] > rows

    away = here / "away"
    away.mkdir()
    Path(RECORDING).rename(away / "moved")
    run(capsys, "--replay", "away/moved", "--out", "away/again.toml")
    assert (away / "again.toml").read_bytes() == Path("more.toml").read_bytes()
    both = ("--report-json", "mine.json", "--report", "mine.html")
    status, out, _ = run(capsys, "--replay", "away/moved", "--name", "mine", "--all", *both)
    assert status == 0
    assert "fixed" in out
    mine, page = json.loads(Path("mine.json").read_text()), Path("mine.html").read_text()
    assert "<title>Calibration: mine" in page
    known = [p["name"] for p in mine["parameters"] if p["free"] and (p["identified"] or 0.0) >= IDENTIFIED]
    assert f"{mine['rows']} measured rows identify {len(known)} of {len(mine['parameters'])} coefficients" in page
    assert all(f">{name}<" in page for name in known)

    rows = (here / "rows.jsonl").absolute()
    rows.write_text('{"name": "idle", "op": "idle", "power_w": 85.0, "sm_clock_mhz": 885.0, "target_window_s": 2.0}\n')
    status, out, err = run(capsys, "--replay", "away/moved", "--rows", str(rows), "--out", "both.toml", "--json")
    assert status == 0
    assert "and 1 measured before" in Path("both.toml").read_text()


def test_without_privilege_active_falls_back_to_passive_and_says_so(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SimulatedCard("h200-sxm", faults=Faults(privileged=False), file=Path("card.json"))
    status, _, err = run(capsys, "--device", "sim:card.json", "--active", "--yes", "--budget", "8s", "--record", "rec")
    assert status == 0
    assert "note [no-privilege]" in err
    assert "passive calibration: nothing on the card is changed" in err


def test_a_passive_recording_goes_on_actively_and_passively_again(
    here: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recorded, "rec")
    go_on = ("--device", "sim:card.json", "--record", "rec", "--out", "gpu.toml")
    status, _, err = run(capsys, *go_on, "--active", "--yes", "--budget", "50s")
    assert status == 0
    assert any(row.is_set for row in read_recording("rec").rows)
    assert ", active: " in Path("gpu.toml").read_text()
    reached = re.findall(r"before, time ±([0-9.]+) %, energy ±([0-9.]+) % reached", err)[0]
    _, _, err = run(capsys, *go_on, "--budget", "60s")
    known = re.findall(r"^forecasts of training kernels: time ±([0-9.]+) %, energy ±([0-9.]+) %;", err, re.MULTILINE)[0]
    # What was measured at set clocks counts as well: only the estimate that it is counted by has moved.
    assert [float(x) for x in known] == pytest.approx([float(x) for x in reached], rel=0.03)


def test_who_cannot_be_asked_does_not_agree(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "--device", "sim:card.json", "--active", "--budget", "8s")
    assert status == 0
    assert "lock its clock to 6 values from 594 to 1782 MHz" in err
    assert "give --yes" in err
    assert "passive calibration" in err
    assert json.loads(Path(RECORDING, "recording.jsonl").read_text().splitlines()[0])["how"]["mode"] == "passive"


def test_with_privilege_and_consent_the_settings_are_given_back(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "--device", "sim:card.json", "--active", "--yes", "--budget", "16s")
    assert status == 0
    assert "passive calibration" not in err
    card = json.loads(Path("card.json").read_text())
    assert card["locked_clock_mhz"] is None
    assert card["power_limit_w"] is None
    assert json.loads(Path(RECORDING, "recording.jsonl").read_text().splitlines()[0])["how"]["mode"] == "active"


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        (Faults(mig=True), "mig"),
        (Faults(neighbour_w=400.0), "busy"),
        (Faults(counter="backward"), "counter-backward"),
        (Faults(counter="still"), "counter-still"),
    ],
)
def test_an_unfit_card_is_a_named_error_with_a_remedy(
    here: Path, capsys: pytest.CaptureFixture[str], faults: Faults, code: str
) -> None:
    SimulatedCard("h200-sxm", faults=faults, file=Path("card.json"))
    status, _, err = run(capsys, "--device", "sim:card.json", "--out", "gpu.toml")
    assert status == 2
    assert f"error: [{code}]: " in err
    assert err.count(f"[{code}]") == 1, "said once"
    assert not Path(RECORDING).exists()


def test_of_a_card_that_is_lost_the_rows_are_kept_and_said_to_be(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SimulatedCard("h200-sxm", faults=Faults(dies_at_s=25.0), file=Path("card.json"))
    status, _, err = run(capsys, "--device", "sim:card.json", "--budget", "60s", "--out", "gpu.toml")
    assert status == 2 and not Path("gpu.toml").exists()
    assert f"what was measured is kept in {RECORDING}" in err
    status, _, err = run(capsys, "--replay", RECORDING, "--out", "gpu.toml")
    assert status == 0 and Path("gpu.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "sim:card.json", "--budget", "5x"), "'5x' is no duration. Write 90s, 5m or 1h30m."),
        (("--device", "sim:card.json", "--budget", "0"), "'0' is no duration. Write 90s, 5m or 1h30m."),
        (("--device", "sim:card.json", "--budget", "5"), "[--budget]: '5' has no unit. Write 5m for minutes, 5s for s"),
        (("--device", "sim:none.json"), "none.json: no such simulated card"),
        (("--device", "voodoo:1"), "unknown kind of card 'voodoo:1'"),
        (("--device", "sim:card.json", "--replay", "x"), "--device and --replay exclude each other"),
        (("--device", "sim:card.json", "--out", "none/gpu.toml"), "none [--out]: no such folder"),
        (("--device", "sim:card.json", "--report-json", "none/r.json"), "none [--report-json]: no such folder"),
        (("--device", "sim:card.json", "--gpus", "2"), "a simulated card stands alone"),
        (("--device", "sim:card.json", "--base", "h20-sxm"), "unknown GPU 'h20-sxm'"),
        (("--replay", "nowhere"), "nowhere: no recording here"),
        (("--active", "--out", "x.toml"), "[--active]: only a card can be measured so"),
        ((), "[--out]: calibrate needs a file to write"),
        (
            ("--out", "x.toml", "--budget", "5 parsecs"),
            "[--budget]: '5 parsecs' is no duration. Write 90s, 5m or 1h30m.",
        ),
    ],
)
def test_bad_input_gets_one_line_with_a_remedy(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")
    assert words in err
    assert not Path(RECORDING).exists()


def test_without_what_the_fit_needs_nothing_is_measured(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five minutes on a card, and only then the error, was what people got."""
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "tomlkit" else found(name))
    SimulatedCard("h200-sxm", file=Path("card.json"))
    status, out, err = run(capsys, "--device", "sim:card.json")
    assert (status, out) == (2, "")
    assert err == 'error: this needs tomlkit, which is not installed. Install it: pip install "joulecast[fit]".\n'
    assert [path.name for path in here.iterdir()] == ["card.json"]


def test_a_foreign_and_a_torn_recording(here: Path, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(recorded, "rec")
    file = Path("rec/recording.jsonl")
    whole = file.read_text()
    SimulatedCard("a100-sxm-80gb", file=Path("other.json"))
    status, _, err = run(capsys, "--device", "sim:other.json", "--record", "rec")
    assert status == 2
    assert "another folder with --record: rows of two cards or of two versions do not belong together" in err
    assert file.read_text() == whole
    file.write_text(whole[: whole.rindex('{"record": "end"') - 40])
    status, _, err = run(capsys, "--replay", "rec", "--out", "gpu.toml")
    assert status == 0
    assert "the last line was cut off" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_says_that_the_rows_are_kept(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, default)  # a shell may have told tests in the background to ignore it

    def interrupted(self: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(live.Session, "run", interrupted)
    try:
        status, _, err = run(capsys, "--device", "sim:card.json", "--out", "gpu.toml")
    finally:
        signal.signal(number, before)
    assert status == 128 + number
    kept = f"interrupted: what was measured is kept in {RECORDING}: the same command goes on, or fit it with --replay"
    assert kept in err
    assert not Path("gpu.toml").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_recording_goes_on_with_the_facts_that_it_was_begun_with(
    here: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recorded, "rec")
    whole, go_on = Path("rec/recording.jsonl").read_text(), ("--device", "sim:card.json", "--record", "rec")
    status, _, err = run(capsys, *go_on, "--budget", "24s", "--base", "a40")
    assert status == 2
    assert "[--base]: a40 has other data-sheet facts than those of h200-sxm, with which rec was begun. " in err
    assert "fit again with --replay rec --base a40." in err
    assert Path("rec/recording.jsonl").read_text() == whole
    assert run(capsys, *go_on, "--budget", "16s", "--base", "h200-sxm")[0] == 0


def test_a_base_from_a_file_stays_with_the_recording(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from joulecast.model.hardware import catalogue

    text = Path(catalogue.__file__).parents[1].joinpath("catalogue_data", "gpus", "h200-sxm.toml").read_text()
    Path("facts.toml").write_text(text)
    run(capsys, "--device", "sim:card.json", "--budget", "8s", "--base", "facts.toml", "--out", "gpu.toml")
    Path("facts.toml").unlink()
    status, _, _ = run(capsys, "--replay", RECORDING, "--out", "again.toml")
    assert status == 0
    assert Path("again.toml").read_bytes() == Path("gpu.toml").read_bytes()


def test_a_recording_that_ended_with_its_first_line_gets_its_base_again(
    here: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from joulecast.model.hardware import catalogue

    text = Path(catalogue.__file__).parents[1].joinpath("catalogue_data", "gpus", "h200-sxm.toml").read_text()
    Path("facts.toml").write_text(text)
    first = recorded.joinpath("recording.jsonl").read_text().splitlines()[0]
    Path("rec").mkdir()
    Path("rec/recording.jsonl").write_text(first.replace('"base": "h200-sxm"', '"base": "base.toml"') + "\n")
    arguments = ("--device", "sim:card.json", "--budget", "8s", "--base", "facts.toml", "--record", "rec")
    status, _, err = run(capsys, *arguments, "--out", "gpu.toml")
    assert status == 0, err
    assert Path("rec/base.toml").read_text() == text


def test_a_full_disk_keeps_what_was_measured_and_says_how_to_go_on(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = os.write, []

    def full(file: int, data: bytes) -> int:
        if bytes(data[:15]) == b'{"record": "row' and len(written) == 2:
            write(file, data[:40])
            raise OSError(errno.ENOSPC, "No space left on device")
        written.extend([1] if bytes(data[:15]) == b'{"record": "row' else [])
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    status, _, err = run(capsys, "--device", "sim:card.json", "--budget", "40s", "--out", "gpu.toml")
    assert status == 2 and not Path("gpu.toml").exists()
    assert f"what was measured is kept in {RECORDING}" in err
    assert "cannot be written: No space left on device. Choose a folder that is yours and has room." in err
    monkeypatch.undo()
    monkeypatch.chdir(here)
    status, out, err = run(capsys, "--replay", RECORDING, "--json")
    assert (status, json.loads(out)["rows"]) == (0, 2)
    assert "warning" not in err, "no line was left half-written"


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def choice(order: tuple[Candidate, ...] = ()) -> Choice:
    """Something to show."""
    return Choice(order, 4.0 * len(order), Uncertainty(0.2, 0.3), Uncertainty(0.05, 0.06))


def test_a_terminal_gets_a_bar_that_vanishes_and_a_pipe_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = (Candidate("one", {}, "x", 4.0),)
    terminal, said = Terminal(), []
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Display(100.0, said.append) as display:
        display.planned(choice(candidates), 75.0)
        display.started("gemm_bf16", 75.0)
        display._progress.refresh()  # type: ignore[union-attr]
    shown = terminal.getvalue()
    assert said == []
    assert "1:15 left" in shown
    assert "gemm_bf16" in shown
    assert "±20.0/30.0 %" in shown
    assert "\x1b[2K" in shown[-20:]  # the line is erased
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with Display(100.0, said.append) as display:
        display.planned(choice(candidates), 75.0)
        display.started("gemm_bf16", 75.0)
    assert said == [
        "forecasts of training kernels: time ±20.0 %, energy ±30.0 %; expected after 1 microbenchmarks in 0:04: "
        "time ±5.0 %, energy ±6.0 %"
    ]


@pytest.mark.parametrize("text", ["", "m", "0s", "-5m", "5m3h", "1m30", "five"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InputError, match="is no duration"):
        seconds(text)


def report(name: str, **changes: object) -> ParameterReport:
    """A coefficient of a table."""
    values = {
        "table": "kernel",
        "name": name,
        "value": 0.5,
        "sd": 0.01,
        "unit": "",
        "status": "fitted",
        "lower": 0.0,
        "upper": 1.0,
        "free": True,
        "identified": 0.99,
    }
    return ParameterReport(**{**values, **changes})  # type: ignore[arg-type]


def test_a_report_hides_what_is_not_identified_and_names_what_hangs_together() -> None:
    entangled = {"correlated_with": "b", "correlation": -0.93}
    reports = [
        report("a", **entangled),
        report("b", value=1.0, correlated_with="a", correlation=-0.93),
        report("weak", identified=0.02),
        report("given", free=False, identified=None, lower=None, upper=None),
        report("x" * 70),
    ]
    short, full = report_text(reports), report_text(reports, everything=True)
    assert "[kernel] 3 of 5 identified; 2 others hidden (--all shows them)" in short
    assert "weak" not in short
    assert "weak" in full
    line = next(line for line in short.splitlines() if line.startswith(" b "))
    assert line.split() == ["b", "1*", "0.01", "99", "%", "0", "..", "1"]
    assert "fixed" in next(line for line in full.splitlines() if line.startswith(" given"))
    assert short.count("-0.93 between a") == 1
    assert max(map(len, full.splitlines())) <= 100


def test_groups_of_gpus_start_one_process_each() -> None:
    assert group_sizes("4,2", 8) == [2, 4]
    for text, words in (("x", "no list"), ("1", "at least two"), ("16", "there are 8 GPUs here, not 16")):
        with pytest.raises(InputError, match=words):
            group_sizes(text, 8)
    command = group_command(4, Path("rec"), 60.0)
    assert command[command.index("--nproc-per-node") + 1] == "4"
    assert command[command.index("--record") + 1] == str(Path("rec/gpus-4"))
    assert command[command.index("--budget") + 1] == "60"
    assert command[command.index("--starter") + 1] == str(os.getpid())


def test_a_group_that_fails_says_its_last_words() -> None:
    measure_group([sys.executable, "-c", "pass"], 1.0)
    code = "import sys; print('RuntimeError: no NCCL', file=sys.stderr); print('bye', file=sys.stderr); sys.exit(1)"
    with pytest.raises(MeasurementError, match="RuntimeError: no NCCL"):
        measure_group([sys.executable, "-c", code], 1.0)


@pytest.mark.parametrize("ending", ["hangs", "SIGTERM", "SIGINT"])
def test_no_process_of_a_group_outlives_it(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher alone would leave processes that hold the GPUs: it is asked to end them, as torchrun does."""
    member, killer = tmp_path / "member", "" if ending == "hangs" else f"os.kill({os.getpid()}, signal.{ending})"
    code = (
        "import os, pathlib, signal, subprocess, sys\n"
        "one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: (one.kill(), sys.exit(1)))\n"
        f"pathlib.Path({str(member)!r}).write_text(str(one.pid))\n"
        f"try:\n    {killer}\n    one.wait()\nfinally:\n    one.wait()\n"
    )
    monkeypatch.setattr(groups, "GRACE_S", 3.0 if ending == "hangs" else 60.0)
    with pytest.raises((MeasurementError, SystemExit, KeyboardInterrupt)), live.unwinding():
        measure_group([sys.executable, "-c", code], 0.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(member.read_text()), 0)


@pytest.mark.parametrize("killed", ["launcher", "starter"])
def test_a_member_of_a_group_ends_with_who_started_it(killed: str) -> None:
    """Nobody else ends it where these are killed: it would hold its GPU."""
    member = "import sys, time; from joulecast.calibrate.microbenchmarks.distributed import end_with\n"
    member += "end_with(int(sys.argv[1])); print(__import__('os').getpid(), flush=True); time.sleep(60)"
    launcher = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as starter:
        arguments = [sys.executable, "-c", launcher, member, str(starter.pid)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as group:
            assert group.stdout is not None
            os.kill(int(group.stdout.readline()), 0)
            begin = time.monotonic()
            (group if killed == "launcher" else starter).kill()
            (group if killed == "launcher" else starter).wait()
            assert group.stdout.read() == "" and time.monotonic() - begin < 30.0  # it ends when the member does
        starter.kill()


def test_recordings_of_groups_are_replayed_with_the_single_card(
    here: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recorded, "rec")
    first, *_ = Path("rec/recording.jsonl").read_text().splitlines()
    rows = [
        {"record": "row", "name": f"all_reduce_{size}", "op": "all_reduce", "gpus": 2, "bytes": size, "dtype": "bf16"}
        | {"time_s": size / 3e11, "power_w_per_gpu": [250.0, 251.0], "sm_clock_mhz_per_gpu": [1980.0, 1980.0]}
        for size in (2**26, 2**28)
    ]
    Path("rec/gpus-2").mkdir()
    Path("rec/gpus-2/recording.jsonl").write_text("\n".join([first, *map(json.dumps, rows)]) + "\n")
    status, out, _ = run(capsys, "--replay", "rec")
    assert status == 0
    assert "collective.link_share" not in out
    assert any(line.startswith(" link_share") for line in out.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--replay", "rec", "--out", "rec/recording.jsonl"],
        ["--replay", "rec/recording.jsonl", "--report-json", "rec/recording.jsonl"],
        ["--rows", "rec", "--out", "rec/recording.jsonl"],
        ["--device", "sim:card.json", "--record", "rec", "--out", "rec/recording.jsonl"],
        ["--device", "sim:card.json", "--out", "card.json"],
    ],
)
def test_what_is_read_is_not_written_over(
    here: Path, recorded: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recorded, here / "rec")
    before = (here / "rec" / "recording.jsonl").read_bytes()
    status, _, err = run(capsys, *arguments)
    assert status == 2 and "is what is read" in err
    assert (here / "rec" / "recording.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--replay", "rec", "--budget", "2m"], "[--budget]: only a card can be measured so"),
        (["--rows", "rec/recording.jsonl", "--alone", "--out", "x.toml"], "[--alone]: rows alone learn from no other"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    here: Path, recorded: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recorded, here / "rec")
    status, _, err = run(capsys, *arguments)
    assert status == 2 and told in err


def test_rows_that_cannot_be_read_are_told(here: Path, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(recorded, here / "rec")
    file = here / "rec" / "recording.jsonl"
    head, first, *others = file.read_text().splitlines()
    row = json.loads(first)
    odd = [{"op": "gem"}, {"dtype": "bf17"}, {"dtype": "bf17"}, {"time_s": None}, {"sm_clock_mhz": None}]
    added = [json.dumps(row | change | {"name": f"odd{place}"}) for place, change in enumerate(odd)]
    file.write_text("\n".join([head, first, *added, *others]) + "\n")
    status, out, err = run(capsys, "--replay", "rec", "--json")
    assert status == 0
    assert "warning: 1 row is not read: unknown op 'gem' (odd0, rec/recording.jsonl:3)" in err
    assert "warning: 2 rows are not read: unknown data type 'bf17' (odd1, the first of them, rec/recording" in err
    assert "no time_s (odd3" in err and "no sm_clock_mhz (odd4" in err
    report = json.loads(out)
    assert [row["name"] for row in report["unread"]] == ["odd0", "odd1", "odd2", "odd3", "odd4"]
    assert report["rows"] == len([line for line in others if '"record": "row"' in line]) + 1


def test_a_row_without_a_clock_is_no_row_at_zero(
    here: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recorded, here / "rec")
    file = here / "rec" / "recording.jsonl"
    head, first, *others = file.read_text().splitlines()
    file.write_text("\n".join([head, json.dumps(json.loads(first) | {"sm_clock_mhz": 0}), *others]) + "\n")
    status, _, err = run(capsys, "--replay", "rec")
    assert status == 2
    assert "recording.jsonl:2 [sm_clock_mhz]: 0 is not positive. Write what was measured, or null." in err


def test_facts_of_another_kind_of_card_are_warned_of(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "warning: the card calls itself Simulated h200-sxm, but data-sheet facts of mi300x were asked for"
    _, _, err = run(capsys, "--device", "sim:card.json", "--budget", "8s", "--base", "mi300x", "--record", "other")
    assert told in err
    _, _, err = run(
        capsys, "--device", "sim:card.json", "--budget", "8s", "--base", "h200-sxm-rows", "--record", "same"
    )
    assert "calls itself" not in err


def test_help_calls_more_rows_files(capsys):
    assert run(capsys, "calibrate", "--help")[1].startswith("Usage: joulecast calibrate [OPTIONS] [FILE]...")
