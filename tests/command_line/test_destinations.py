"""Files that commands write: what is read, a folder, or one file twice is refused before anything is computed."""

import os

import pytest
from command import run

from joulecast.command_line.destinations import check_destinations
from joulecast.errors import InputError


@pytest.fixture
def plan(examples, tmp_path, monkeypatch):
    """A copy of an example in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.toml"
    path.write_text((examples / "llama-3.1-8b-4xh200.toml").read_text(encoding="utf-8"), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "plan.toml", "--report", "plan.toml"], "plan.toml [--report]: a report is an HTML page"),
        (["predict", "plan.toml", "--trace", "./plan.toml"], "plan.toml [--trace]: is what is read"),
        (["predict", "plan.toml", "--report", "a", "--trace", "a"], "a [--trace]: is that of --report too"),
        (["predict", "plan.toml", "--trace", "."], ". [--trace]: is a folder"),
        (["predict", "plan.toml", "--trace", "no/t.json"], "no [--trace]: no such folder"),
        (["predict", "plan.toml", "--trace", ".", "--trace-format", "hta"], ". [--trace]: is not empty"),
        (["compare", "plan.toml", "plan.toml", "--report", "plan.toml"], "a report is an HTML page"),
        (["sweep", "plan.toml", "--plan", "plan.toml"], "plan.toml [--plan]: is what is read"),
        (["sweep", "plan.toml", "--plan", "."], ". [--plan]: is a folder"),
        (["sweep", "plan.toml", "--out", "a.csv", "--report", "a.csv"], "a report is an HTML page"),
        (["front", "plan.toml", "--out", "."], ". [--out]: is a folder"),
        (["front", "plan.toml", "--out", "plan.toml"], "plan.toml [--out]: is what is read"),
        (["front", "plan.toml", "--out", ".", "--format", "zeus-pfo"], ". [--out]: is not empty"),
        (["calibrate", "--rows", "plan.toml", "--out", "plan.toml"], "plan.toml [--out]: is what is read"),
        (["calibrate", "--out", "."], ". [--out]: is a folder"),
        (["validate", "train", "--data", "plan.toml", "--report", "plan.toml"], "a report is an HTML page"),
    ],
)
def test_a_command_refuses_what_it_should_not_write(plan, capsys, arguments, says):
    before = plan.read_bytes()
    status, out, err = run(capsys, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert plan.read_bytes() == before
    assert list(plan.parent.iterdir()) == [plan]


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "plan.toml", "--report", "r.html"],
        ["sweep", "plan.toml", "--out", "r.csv"],
        ["calibrate", "--device", "sim:h200-sxm", "--out", "gpu.toml"],
        ["profile", "gemm:8192x8192x8192", "--device", "sim:h200-sxm", "--out", "."],
    ],
)
def test_a_folder_that_takes_no_files_is_told_before_the_work(plan, capsys, monkeypatch, arguments):
    """Minutes of measuring were lost otherwise."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    status, out, err = run(capsys, *arguments)
    option = arguments[-2]
    assert (status, out) == (2, "")
    assert f"[{option}]: cannot be written to. Choose a folder that is yours." in err.splitlines()[-1]
    assert list(plan.parent.iterdir()) == [plan]


def test_a_device_is_written_to_wherever_it_stands(plan):
    check_destinations({"--report": plan.parent / "/dev/null"}, [plan])


def test_a_link_to_what_is_read_is_what_is_read(plan):
    (plan.parent / "link.html").symlink_to(plan)
    (plan.parent / "hard.html").hardlink_to(plan)
    for name in ("link.html", "hard.html"):
        with pytest.raises(InputError, match="is what is read"):
            check_destinations({"--report": plan.parent / name}, [plan])


def test_a_device_may_be_named_twice(plan):
    null = plan.parent / "null"
    null.symlink_to(os.devnull)
    check_destinations({"--report": null, "--trace": null, "--out": None}, [plan, None])
