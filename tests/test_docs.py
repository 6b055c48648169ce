"""The pages that show how to extend Joulecast are followed to the letter, in an empty folder."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTEND = sorted((ROOT / "docs" / "extend").glob("*.md"))
_spec = importlib.util.spec_from_file_location("make_figures", ROOT / "docs" / "make_figures.py")
figures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(figures)
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize("page", EXTEND, ids=lambda page: page.stem)
def test_following_a_page_works(page: Path, tmp_path: Path) -> None:
    scripts: list[str] = []
    for language, title, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if title:
            (tmp_path / title).write_text(text, encoding="utf-8")
        elif language == "python":
            scripts.append(text)  # the blocks of a page go on from each other
            run([sys.executable, "-c", "\n".join(scripts)], tmp_path)
        elif language == "console":
            for line in text.splitlines():
                if line.startswith("$ joulecast "):
                    run([sys.executable, "-m", *shlex.split(line[2:])], tmp_path)


#: A file that a reader would have, and where another command of the page writes one.
NAMED = {"profile.csv": "zeus/profile.csv"}
GUIDES = ["start.md", *(pytest.param(f"guides/{name}.md", marks=pytest.mark.long) for name in ("planner", "scheduler"))]


@pytest.mark.parametrize("page", GUIDES)
def test_commands_of_a_guide_run(page: str, tmp_path: Path) -> None:
    """Those that write files come first, wherever they stand on the page. The operator's need a card."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    text = "".join(block for language, _, block in blocks if language == "console").replace("\\\n", " ")
    lines = [line[2:] for line in text.splitlines() if line.startswith("$ joulecast ")]
    assert lines
    for line in sorted(lines, key=lambda line: "--out" not in line):
        run([sys.executable, "-m", *(NAMED.get(word, word) for word in shlex.split(line))], tmp_path)


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout or "wrote " in done.stderr or command[1] == "-c"


def test_the_pages_name_no_page_that_is_missing() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r": ([\w/-]+\.md)$", text, re.M))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert named == there


@pytest.mark.parametrize("row", [1, 2])
def test_figures_are_those_of_their_commands(row: int) -> None:
    """Of the quickest rows; ``make figures`` writes all."""
    rows = [r for table in figures.tables() for r in table["row"] if "{data}" not in r["data"]]
    chosen = [r for r in rows if r["suite"] in ("blocks", "train")][row - 1]
    kept = json.loads(figures.KEPT.read_text(encoding="utf-8"))
    assert figures.errors(chosen, None) == kept[figures.command(chosen)]


def test_the_readme_has_the_figures() -> None:
    kept = json.loads(figures.KEPT.read_text(encoding="utf-8"))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!-- figures h200 -->" in text
    assert figures.filled(text, kept) == text, "run `make figures`"


def test_the_readme_shows_what_the_demo_prints() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert figures.with_demo(text) == text, "run `make figures`"
