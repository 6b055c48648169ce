"""Recordings: written line by line, continued after a kill, read on any machine, and never taken for something else."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime

import pytest
from command import status_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from row_files import write_json

from joulecast.calibrate.descriptions.from_rows import fit_rows
from joulecast.calibrate.devices.protocol import CardFacts
from joulecast.calibrate.measure.recorder import Recorder
from joulecast.calibrate.measure.recording import Card, Failed, read_recording, rounded, software_versions
from joulecast.calibrate.rows.measured import RecordingWarning, read_rows, recorded_rows
from joulecast.errors import DataError, InputError

FACTS = {
    "locator": "nvml:0",
    "name": "NVIDIA H200",
    "vendor": "nvidia",
    "driver": "580.159",
    "power_limit_w": 700.0,
    "default_power_limit_w": 700.0,
    "power_limit_range_w": (200.0, 700.0),
    "max_sm_clock_mhz": 1980.0,
    "max_memory_clock_mhz": 3201.0,
    "sm_clocks_mhz": (345.0, 360.0, 1980.0),
    "sms": 132,
    "memory_bytes": 150_000_000_000,
    "components": ("hbm",),
}
VERSIONS = {"joulecast": "0.1.0", "torch": "2.11.0"}
CARD = Card(CardFacts(**FACTS), VERSIONS, "2026-11-21T00:00:00+00:00", {"mode": "passive"})
GEMM = {"name": "gemm", "op": "gemm", "M": 64, "N": 128, "K": 256, "flops": 1234567891234.0, "settle_s": 1.0}
MEASURED = {"time_s": 1.23456789e-5, "power_w": 690.123456789, "energy_j": 0.00852, "measured_counter_steps": 26}


def card(**changes):
    return Card(CardFacts(**{**FACTS, **changes}), VERSIONS, CARD.started, CARD.how)


def write(folder, names=("a", "b", "c")):
    with Recorder(folder, CARD) as recorder:
        for name in names:
            recorder.append_row({**GEMM, **MEASURED, "name": name})
        recorder.append_failure(Failed("d", "not-runnable", "fp8 is missing"))
        recorder.end(spent_s=12.3)
    return folder / "recording.jsonl"


def test_what_is_written_is_read(tmp_path):
    path = write(tmp_path / "new" / "folder")
    found = read_recording(path.parent)
    assert found.card == CARD
    assert [row.name for row in found.rows] == ["a", "b", "c"] == sorted(found.done)
    assert found.failures == [Failed("d", "not-runnable", "fp8 is missing")]
    assert found.complete and not found.warnings
    assert read_recording(path) == found
    first = found.rows[0]
    assert first.configuration == {**GEMM, "name": "a"}  # exact, however many digits
    assert (first.measured.time_s, first.measured.power_w) == (1.234568e-5, 690.1235)
    assert (first.file, first.line) == (str(path), 2)


def test_rows_are_read_wherever_rows_are_read(tmp_path):
    path = write(tmp_path)
    rows = read_recording(tmp_path).rows
    assert read_rows(path) == read_rows(tmp_path) == rows
    (tmp_path / "more.jsonl").write_text(json.dumps({**GEMM, "name": "plain"}) + "\n", encoding="utf-8")
    assert [row.name for row in read_rows(tmp_path)] == ["plain", "a", "b", "c"]


def test_what_an_editor_puts_before_and_behind_lines_is_passed_over(tmp_path):
    path = write(tmp_path)
    before = read_recording(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_recording(path) == before
    assert read_rows(path) == before.rows


def test_appended_rows_come_back_as_they_will_be_read(tmp_path):
    with Recorder(tmp_path, CARD) as recorder:
        now = [recorder.append_row({**GEMM, **MEASURED, "name": name}) for name in "ab"]
        assert recorder.recording.rows == now
    assert read_recording(tmp_path).rows == now


def test_recorded_rows_survive_a_recording(tmp_path):
    rows = recorded_rows(files_=["kernels_training.jsonl"])
    with Recorder(tmp_path, CARD) as recorder:
        for row in rows:
            recorder.append_row({**row.configuration, **row.measured.raw})
    for before, after in zip(rows, read_rows(tmp_path), strict=True):
        assert (after.name, after.configuration) == (before.name, before.configuration)
        assert after.measured.raw == rounded(before.measured.raw)


def test_a_recording_is_continued(tmp_path):
    path = write(tmp_path)
    before = path.read_bytes()
    with Recorder(tmp_path, card(may_set_clocks=True)) as recorder:
        assert recorder.resumed
        assert recorder.recording.done == {"a", "b", "c"}
        recorder.append_row({**GEMM, **MEASURED, "name": "e"})
    assert path.read_bytes().startswith(before)
    found = read_recording(tmp_path)
    assert [row.name for row in found.rows] == ["a", "b", "c", "e"]
    assert len(found.failures) == 1
    assert not found.complete


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"name": "NVIDIA H100"}, "name"), ({"power_limit_w": 500.0}, "power_limit_w"), ({"driver": "1"}, "driver")],
)
def test_another_card_is_refused(tmp_path, changes, key):
    path = write(tmp_path)
    before = path.read_bytes()
    with pytest.raises(DataError, match="Choose another folder") as caught:
        Recorder(tmp_path, card(**changes))
    assert (caught.value.file, caught.value.line, caught.value.key) == (str(path), 1, key)
    assert path.read_bytes() == before


def test_other_software_is_refused(tmp_path):
    write(tmp_path)
    with pytest.raises(DataError, match=r"torch '2\.11\.0', but here it is '2\.12\.0'"):
        Recorder(tmp_path, Card(CARD.facts, {**VERSIONS, "torch": "2.12.0"}))


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "empty"),
        (json.dumps({**GEMM, "time_s": 1.0}) + "\n", 1, "not a recording"),
        ('{"record": "row", "name": "a"}\n', 1, "not a recording"),
        ('{"record": "card", "schema": "joulecast-recording/2"}\n', 1, "joulecast-recording/2"),
        ('{"record": "card", "schema": "joulecast-recording/1"}\n', 1, "[Ff]ield required"),
        ("no JSON\n", 1, "not a JSON object"),
    ],
)
def test_foreign_files_are_refused(tmp_path, text, line, what):
    path = tmp_path / "recording.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=what) as caught:
        read_recording(tmp_path)
    assert (caught.value.file, caught.value.line) == (str(path), line)
    assert len(str(caught.value)) > len(f"{path}:1: {caught.value.message}.")  # a remedy follows
    if text:
        with pytest.raises(DataError):
            Recorder(tmp_path, CARD)
    assert path.read_text(encoding="utf-8") == text


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="no recording here"):
        read_recording(tmp_path)
    with pytest.raises(DataError, match="no recording here"):
        read_recording(tmp_path / "missing")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"record": "row", "name": "b", "time_s"', "not a JSON object"),
        ('{"record": "row", "op": "gemm"}', "without a name"),
        ('{"record": "row", "name": "b", "time_s": "long"}', "not a number"),
        ('{"record": "row", "name": "b", "time_s": NaN}', "NaN"),
        ('{"record": "failure", "name": "b"}', "[Ff]ield required"),
        ('{"record": "poem"}', "'poem' is not one of"),
        ('{"op": "gemm"}', "None is not one of"),
    ],
)
def test_a_broken_line_in_the_middle_is_named(tmp_path, line, what):
    path = write(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:2], line + "\n", *lines[3:]]), encoding="utf-8")
    with pytest.raises(DataError, match=what) as caught:
        read_recording(tmp_path)
    assert (caught.value.file, caught.value.line) == (str(path), 3)
    with pytest.raises(DataError, match=r"recording\.jsonl:3"):
        Recorder(tmp_path, CARD)


def test_two_recordings_in_one_file_are_refused(tmp_path):
    path = write(tmp_path)
    path.write_text(path.read_text(encoding="utf-8") * 2, encoding="utf-8")
    with pytest.raises(DataError, match="second card") as caught:
        read_rows(tmp_path)
    assert caught.value.line == 7


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write(tmp_path_factory.mktemp("whole")).read_bytes()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.0, 1.0))
def test_cut_anywhere_it_stays_readable_and_goes_on(whole, tmp_path, share):
    cut = whole[: round(share * len(whole))]
    path = tmp_path / "recording.jsonl"
    path.write_bytes(cut)
    kept = [json.loads(line) for line in cut.split(b"\n")[1:] if line.endswith(b"}")]
    names = [line["name"] for line in kept if line["record"] == "row"]
    torn = not cut.endswith((b"\n", b"}"))
    if len(cut) < whole.index(b"\n"):  # not even the first line
        with pytest.raises(DataError) as caught:
            read_recording(tmp_path)
        assert (caught.value.file, caught.value.line) == (str(path), 1)
    else:
        found = read_recording(tmp_path)
        assert [row.name for row in found.rows] == names
        assert len(found.failures) == sum(line["record"] == "failure" for line in kept)
        assert bool(found.warnings) == torn
        assert found.complete == (len(cut) >= len(whole) - 1)
    with Recorder(tmp_path, CARD) as recorder:
        assert [row.name for row in recorder.recording.rows] == names
        recorder.append_row({**GEMM, **MEASURED, "name": "next"})
    found = read_recording(tmp_path)
    assert [row.name for row in found.rows] == [*names, "next"]
    assert not found.warnings
    assert [row.line for row in found.rows][-1] == len(path.read_bytes().splitlines())
    path.unlink()


def test_a_torn_line_is_told(tmp_path):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(RecordingWarning, match=r"recording\.jsonl:6: the last line was cut off"):
        assert len(read_rows(path)) == 3
    assert "cut off" in read_recording(path).warnings[0]


WRITER = f"""
import sys
from joulecast.calibrate.devices.protocol import CardFacts
from joulecast.calibrate.descriptions.from_rows import fit_rows
from joulecast.calibrate.measure.recorder import Recorder
from joulecast.calibrate.measure.recording import Card
with Recorder(sys.argv[1], Card(CardFacts(**{FACTS!r}), {VERSIONS!r})) as recorder:
    for number in range(10**6):
        recorder.append_row({{"name": f"row {{number}}", "op": "gemm", "time_s": 1.0}})
        print(number, flush=True)
"""


def test_a_killed_process_loses_nothing_that_it_has_told(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    told = 20 + len(process.stdout.read().splitlines())
    process.stdout.close()
    process.wait()
    with Recorder(tmp_path, CARD) as recorder:
        names = [row.name for row in recorder.recording.rows]
        assert len(names) in (told, told + 1)
        assert names == [f"row {number}" for number in range(len(names))]


def test_only_one_process_records_into_a_folder(tmp_path):
    with Recorder(tmp_path, CARD), pytest.raises(InputError, match="another process"):
        Recorder(tmp_path, CARD)
    Recorder(tmp_path, CARD).close()


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    with Recorder(tmp_path, CARD) as recorder:
        recorder.append_row({**GEMM, "name": "a", "time_s": 1.0})
        before, real = recorder.path.read_bytes(), os.write

        def full(file, data):
            if len(data) > 10:
                return real(file, data[:10])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(InputError, match="No space left"):
            recorder.append_row({**GEMM, "name": "b", "time_s": 1.0})
        monkeypatch.undo()
        assert recorder.path.read_bytes() == before
        recorder.append_row({**GEMM, "name": "b", "time_s": 1.0})
    assert [row.name for row in read_recording(tmp_path).rows] == ["a", "b"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be written"):
        Recorder(tmp_path / "file", CARD)


def test_unusable_rows_are_not_written(tmp_path):
    with Recorder(tmp_path, CARD) as recorder:
        before = recorder.path.read_bytes()
        with pytest.raises(DataError, match="needs a name"):
            recorder.append_row({"op": "gemm"})
        with pytest.raises(DataError, match="not positive"):
            recorder.append_row({**GEMM, "energy_j": -1.0})
        assert recorder.path.read_bytes() == before


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_is_stable(value):
    once = rounded(value)
    assert once is None or rounded(once) == once == json.loads(json.dumps(once))
    if once is not None and 1e-300 < abs(value) < 1e300:
        assert once == pytest.approx(value, rel=5.1e-7)


def test_versions_name_the_package():
    assert software_versions(with_torch=False).keys() == {"joulecast"}


def test_the_start_is_noted(tmp_path):
    with Recorder(tmp_path, Card(CARD.facts)) as recorder:
        started = datetime.fromisoformat(recorder.recording.card.started)
    assert abs(started.timestamp() - time.time()) < 60


def test_a_recording_fits_and_validates_like_the_rows_in_it(tmp_path, capsys):
    rows = recorded_rows(files_=["kernels_steady.jsonl"])[:6]
    plain = tmp_path / "plain.jsonl"
    with Recorder(tmp_path / "recording", CARD) as recorder:
        for row in rows:
            recorder.append_row({**row.configuration, **row.measured.raw})
            recorder.append_failure(Failed(f"beside {row.name}", "not-runnable"))
    write_json(plain, *({**row.configuration, **rounded(row.measured.raw)} for row in rows))
    recorded, same = (
        fit_rows([path], name="mine", cross_validate=False).description.to_dict()
        for path in (tmp_path / "recording", plain)
    )
    for description in (recorded, same):
        for table in description.values():
            if isinstance(table, dict):
                table.pop("provenance", None)
    assert recorded == same
    assert status_of("validate", "kernels", "--data", str(tmp_path / "recording" / "recording.jsonl"), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(rows)
