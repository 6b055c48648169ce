"""``calibrate --kernels`` from end to end, with the rows of its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command import run
from paths import ROOT

PAGE = (ROOT / "docs/extend/kernel.md").read_text(encoding="utf-8")
OUT = ("--base", "h200-sxm", "--out", "mine.toml")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page."""
    monkeypatch.chdir(tmp_path)
    for title, text in re.findall(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```", PAGE, re.M | re.S):
        (tmp_path / title).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_answers_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "calibrate", "--kernels", "kernels.jsonl", *OUT)
    assert status == 0 and err == "read 3 rows; wrote mine.toml\n" and "streaming.reduce.bf16.of.loss" in out
    (shown,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S)
    _, out, _ = run(capsys, "predict", "plan.toml", "--set", "cluster.gpu=mine.toml")
    assert shown in out
    _, usual, _ = run(capsys, "predict", "plan.toml")
    assert not re.search("kernels .* of the library's|runs no kernel", usual)
    _, out, _ = run(capsys, "validate", "kernels", "--data", "kernels.jsonl", "--gpu", "mine.toml", "--json")
    for row in json.loads(out)["rows"]:
        assert row["predicted"]["time_s"] == pytest.approx(row["measured"]["time_s"], rel=0.005)


def test_the_answer_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "calibrate", "--kernels", "kernels.jsonl", *OUT, "--name", "ours", "--json")
    answer = json.loads(out)
    norm, loss = answer["kernels"]
    assert answer["out"] == "mine.toml" and 'name = "ours"' in Path("mine.toml").read_text(encoding="utf-8")
    assert (norm["kernel"], norm["work_from"]) == ("streaming.rmsnorm.bf16", 67108864)
    assert loss["energy_from"] is None and loss["time_from"] == loss["time_to"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--kernels", "kernels.jsonl", "--out", "x.toml"), "[--kernels]: own kernels are those of a card"),
        (("--kernels", "kernels.jsonl", "--base", "h200-sxm"), "[--out]: calibrate needs a file to write"),
        (("--kernels", "kernels.jsonl", "--rows", "kernels.jsonl", *OUT), "--kernels and --rows exclude each other"),
        (("--kernels", "kernels.jsonl", *OUT, "--report", "r.html"), "[--kernels]: only a fit is reported"),
        (("--kernels", "mine.toml", *OUT), "[--out]: is what is read"),
        (("--kernels", "none.jsonl", *OUT), "none.jsonl: no such file or folder"),
        (("--kernels", "bad.jsonl", *OUT), "bad.jsonl:2 [time_s]: -1 is not positive"),
        (("--kernels", "empty.jsonl", *OUT), "[--kernels]: no row of a kernel"),
    ],
)
def test_what_cannot_be_asked_gets_one_line(
    arguments: tuple[str, ...], says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.toml").touch()
    (here / "empty.jsonl").touch()
    (here / "bad.jsonl").write_text('\n{"op": "gemm", "M": 8, "N": 8, "K": 8, "time_s": -1}\n', encoding="utf-8")
    status, out, err = run(capsys, "calibrate", *arguments)
    assert (status, out) == (2, "") and says in err and len(err.splitlines()) == 1
