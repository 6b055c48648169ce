"""The pages that show how to extend Joulecast are followed to the letter, in an empty folder."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType, ModuleType
from typing import get_args

import pytest
from metered_rows import metered
from paths import EXAMPLES, ROOT

import joulecast as jc
from joulecast.model.training.factors import Generation
from joulecast.validate.suites import run_suite

EXTEND = sorted((ROOT / "docs" / "extend").glob("*.md"))


def module(name: str) -> ModuleType:
    """One of the pages' own modules."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


figures, hooks = module("make_figures"), module("hooks")
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


GUIDES = [
    "start.md",
    "guides/finetuning.md",
    *(pytest.param(f"guides/{name}.md", marks=pytest.mark.long) for name in ("planner", "scheduler")),
]


@pytest.mark.parametrize("page", GUIDES)
def test_commands_of_a_guide_run(page: str, tmp_path: Path) -> None:
    """Those that write files come first, wherever they stand on the page. The operator's need a card.

    One whose answer the page shows as an error fails with the beginning of it.
    """
    (tmp_path / "examples").symlink_to(EXAMPLES)
    (tmp_path / "measured.jsonl").write_text(json.dumps(metered()) + "\n", encoding="utf-8")
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    text = "".join(block for language, _, block in blocks if language == "console").replace("\\\n", " ")
    shown = text.splitlines()
    lines = {line[2:]: after for line, after in pairwise([*shown, ""]) if line.startswith("$ joulecast ")}
    assert lines
    for line, answer in sorted(lines.items(), key=lambda one: "--out" not in one[0]):
        command = [sys.executable, "-m", *shlex.split(line)]
        if answer.startswith("error:"):
            failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert failed.returncode == 2 and failed.stderr.startswith(answer)
        else:
            run(command, tmp_path)


@pytest.mark.parametrize("page", ["README.md", "docs/reference/plan.md"])
def test_the_plan_that_a_page_shows_is_forecast(page: str, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        next(text for kind, _, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if kind == "toml")
    )
    assert jc.predict(tmp_path / "plan.toml").gpus == 4


def test_the_schedulers_service_chooses_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "guides" / "scheduler.md").read_text(encoding="utf-8")
    program = next(text for _, title, text in BLOCK.findall(page) if not title and "jc.front" in text)
    tables = "[workload]\nmodel = 'llama-3.2-1b'\nsequence_length = 2048\nglobal_batch_size = 4\n"
    tables += "[cluster]\ngpu = 'h200-sxm'\ngpus = 2\n[parallelism]\npipeline_model_parallel_size = 2\n"
    (tmp_path / "plan.toml").write_text(tables, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec(program, found)
    front, point, time_s = found["front"], found["point"], found["time_s"]
    kept = [p for p in front.points if p.time_s <= 1.05 * front.points[0].time_s]
    assert point is kept[-1] and len(kept) < len(front.points)
    assert time_s == pytest.approx(1.05 * point.time_s)


def test_the_schedulers_program_reads_a_front(tmp_path: Path) -> None:
    """As its page shows it, with a deadline that some plans keep and one that none does."""
    page = (ROOT / "docs" / "guides" / "scheduler.md").read_text(encoding="utf-8")
    program = next(text for _, title, text in BLOCK.findall(page) if title == "consumer.py")
    front = jc.front(
        {
            "workload": {"model": "llama-3.2-1b", "sequence_length": 2048, "global_batch_size": 4},
            "cluster": {"gpu": "h200-sxm", "gpus": 2},
            "parallelism": {"pipeline_model_parallel_size": 2},
        }
    )
    plain = front.to_dict()
    (tmp_path / "front.json").write_text(json.dumps(plain), encoding="utf-8")
    told = dict(re.findall(r"^\| `([\w.\[\]]+)` \| (.+) \|$", page, re.M))
    assert set(plain) <= set(told) and {kind for order in plain["instructions"] for kind in order} <= set(
        re.findall(r"`(\w+)`", told["instructions"])
    )
    least, fastest = min(plain["points"], key=lambda p: p["energy_j"]), plain["points"][0]
    middle = fastest["time_s"]
    for deadline, point, says in (
        (9.0, least, ""),
        (middle, fastest, "the fastest may end later"),
        (1e-3, fastest, "no plan surely ends within 0.001 s; the fastest is forecast to end later"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, "front.json", str(deadline)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        first, *rest = done.stdout.splitlines()
        assert says in done.stderr and bool(says) == bool(done.stderr)
        assert first.startswith(f"{point['time_s']:.3f} s, {point['energy_j']:.0f} J, ")
        clocks = [round(clock) for stage in point["plan"] for clock in stage]
        assert [int(line.split()[-2]) for line in rest] == clocks


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout or "wrote " in done.stderr or command[1] == "-c"


def test_a_forecast_is_what_its_page_says() -> None:
    """Its functions are first called in its order; the length is one of which nothing is remembered."""
    page = (ROOT / "docs" / "physics" / "index.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([\w.]+)` \| `([\w/]+\.py)` \|", page, re.M)
    called: dict[tuple[str, str], int] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.setdefault((frame.f_code.co_qualname, frame.f_code.co_filename), len(called))

    sys.setprofile(note)
    try:
        jc.predict(EXAMPLES / "llama-3.1-8b-4xh200.toml", ["workload.sequence_length=3968"])
    finally:
        sys.setprofile(None)
    first = [
        min((at for (other, where), at in called.items() if other == name and where.endswith(f"/{file}")), default=None)
        for name, file in told
    ]
    assert None not in first, dict(zip(told, first, strict=True))
    assert first == sorted(first) and len(told) >= 10


def test_a_warning_fails_the_pages() -> None:
    """``mkdocs build -q`` drops warnings before ``strict`` counts them."""
    assert "strict: true" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    line = next(line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "mkdocs build" in line)
    assert "-q" not in line.partition("#")[0]


def test_the_pages_name_no_page_that_is_missing() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r": ([\w/-]+\.md)$", text, re.M))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert named == there


def test_generated_parts_of_pages_are_filled() -> None:
    texts = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    assert [sum(text.count(marker) for text in texts) for marker in hooks.MARKERS] == [1, 1, 1]
    built = hooks.on_page_markdown("\n".join(hooks.MARKERS))
    for line in ("| `minimise` | ", "| `tensor_model_parallel_size` | int | `1` |", "## `joulecast predict`"):
        assert line in built


def test_the_planners_torchtitan_takes_as_much_longer_as_said() -> None:
    page = (ROOT / "docs" / "guides" / "planner.md").read_text(encoding="utf-8")
    command = re.search(r"^joulecast predict (\S+llama-3.1-70b-64xh100-fsdp.toml .*?)^```", page, re.M | re.S)
    assert command is not None
    plan, *settings = [word for word in shlex.split(command[1].replace("\\\n", " ")) if word != "--set"]
    longer = jc.predict(ROOT / plan, settings).time_s / jc.predict(ROOT / plan).time_s - 1
    said = re.search(r"^takes (\d+) % longer than the plan as it stands", page, re.M)
    assert said is not None and int(said[1]) == round(100 * longer)


def test_the_planners_measured_step_is_as_far_off_as_said(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "planner.md").read_text(encoding="utf-8")
    (tmp_path / "steps.csv").write_text(next(text for _, title, text in BLOCK.findall(page) if title == "steps.csv"))
    summary = run_suite("published", tmp_path / "steps.csv").to_dict()["summary"]
    said = re.search(r"is forecast ([\d.]+) % too short", page)
    assert said is not None and round(-summary["all"]["time_bias_percent"], 1) == float(said[1])


def test_the_page_on_amds_cards_has_their_largest_products_as_forecast() -> None:
    page = (ROOT / "docs" / "physics" / "amd.md").read_text(encoding="utf-8")
    rate = r"([\d,]+) TFLOP/s at ([\d.]+) GHz"
    said = re.findall(rf"^\| (MI3\w+) \| {rate} \| .* \| {rate} \|", page, re.M)
    assert len(said) == 2
    for card, *figures in said:
        for dtype, columns, (tflops, ghz) in (("bf16", 4864, figures[:2]), ("fp8", 3648, figures[2:])):
            found = jc.gpu(card.lower()).predict(jc.Gemm(4096, columns, 32896, dtype=dtype))
            assert int(tflops.replace(",", "")) == round(2e-12 * 4096 * columns * 32896 / found.time_s)
            assert float(ghz) == round(found.clock_mhz / 1e3, 2)


def test_limits_of_ranks_save_as_much_as_the_scheduler_says() -> None:
    page = (ROOT / "docs" / "guides" / "scheduler.md").read_text(encoding="utf-8")
    said = re.search(r"take (\d+) % less energy than 5,600 W and ([\d.]+) % more time", page)
    assert said is not None
    plan = ["cluster.gpus=8", "parallelism.pipeline_model_parallel_size=4", "workload.global_batch_size=16"]
    alike, chosen = (
        jc.predict(EXAMPLES / "llama-3.1-8b-4xh200.toml", [*plan, f"power.power_limit_w={limits}"])
        for limits in ([700] * 4, [400, 400, 400, 700])
    )
    assert int(said[1]) == round(100 * (1 - chosen.energy_j / alike.energy_j))
    assert float(said[2]) == pytest.approx(100 * (chosen.time_s / alike.time_s - 1), abs=0.051)


@pytest.mark.parametrize("page", ["reference/plan.md", "guides/planner.md"])
def test_a_page_names_every_generation_of_frameworks(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [name for name in get_args(Generation) if f"`{name}`" not in text] == []


def test_examples_of_documented_modules_stand_in_their_section() -> None:
    """Elsewhere the pages' generator takes them for parameters, and lists that they print for links: it then fails."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    wrong = []
    for name in re.findall(r"^::: (joulecast[\w.]+)$", pages, re.M):
        file = ROOT / "src" / f"{name.replace('.', '/')}.py"  # others are objects of modules
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            text = ast.get_docstring(node) or ""
            before, _, example = text.partition(">>> ")
            risky = "----" in before or re.search(r"^\[", example, re.M)
            if example and risky and "Examples\n--------\n" not in before:
                wrong.append(f"{name}.{node.name}")
    assert wrong == []


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Into files, and to headings of them."""
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def anchors(text: str) -> set[str]:
    """What links to headings are called."""
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("row", [1, 2])
def test_figures_are_those_of_their_commands(row: int) -> None:
    """Of the quickest rows; ``make figures`` writes all."""
    rows = [r for table in figures.tables() for r in table["row"] if "{data}" not in r["data"]]
    chosen = [r for r in rows if r["suite"] in ("blocks", "train")][row - 1]
    kept = json.loads(figures.KEPT.read_text(encoding="utf-8"))
    assert figures.errors(chosen, None) == kept[figures.command(chosen)]


def test_errors_of_some_rows_tell_their_side() -> None:
    def row(measured: float, forecast: float) -> dict[str, dict[str, float]]:
        ends = {"time_s_p05": 0.95 * forecast, "time_s_p95": 1.05 * forecast}
        return {"measured": {"time_s": measured}, "predicted": {"time_s": forecast, **ends}}

    short, mixed = (figures.errors_of_times([row(1.0, 0.98), row(2.0, last)]) for last in (1.8, 2.2))
    assert short == {"rows": 2, "time_error_percent": 6.0, "side": " too short", "inside_percent": 50}
    assert mixed == {**short, "side": ""}


#: Which table each page has.
TABLES = {
    "README": "readme",
    "index": "readme",
    "h200": "h200",
    "other-cards": "others",
    "published-steps": "blind",
    "experts": "experts",
}


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_figures(page: Path) -> None:
    kept = json.loads(figures.KEPT.read_text(encoding="utf-8"))
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"<!-- figures (?!end)(\w+) -->", text) == [TABLES[page.stem]]
    assert figures.filled(text, kept) == text, "run `make figures`"


def test_the_readme_says_how_many_times_intervals_hold() -> None:
    kept = json.loads(figures.KEPT.read_text(encoding="utf-8"))
    (table,) = (table for table in figures.tables() if table["name"] == "readme")
    found = [kept[figures.command(row)] for row in table["row"]]
    inside = [one["time_inside_percent"] for one in found]
    mean = sum(one["rows"] * one["time_inside_percent"] for one in found) / sum(one["rows"] for one in found)
    said = f"intervals hold {mean:.0f} % of these times, {min(inside)} to {max(inside)} % of each row's"
    assert said in figures.README.read_text(encoding="utf-8")


def test_every_table_of_figures_has_a_page() -> None:
    assert {table["name"] for table in figures.tables()} == set(TABLES.values())


@pytest.mark.parametrize("page", figures.WITH_DEMO, ids=lambda page: page.stem)
def test_a_page_shows_what_the_demo_prints(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert figures.with_demo(text) == text, "run `make figures`"
