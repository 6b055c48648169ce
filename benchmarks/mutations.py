"""Mutation testing of ``model/``: how many small wrong changes do the tests notice?

``python benchmarks/mutations.py [--count 200] [--seed 0] [--only gemm.py]`` changes one operator, comparison, number or
condition at a time, drawn with a fixed seed from all of them, and runs tests on each: first those that import the
changed module or are named after it, then those of modules that import it, then those that hold whole forecasts. Prints
the share that some test noticed, and each that none did. Every mutant lives in its own process; no file is changed.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
#: Tests of whole forecasts, for mutants that the tests of their module let live.
BROAD = (
    "test_transformer.py",
    "test_memory_footprint.py",
    "test_moe.py",
    "test_recorded_validation.py",
    "test_figures.py",
)
#: Tests of seconds fail on a busy machine, with or without a mutation.
NOT_THESE = "not thousand and not millisecond"
#: A mutant that takes longer than this hangs, which somebody notices [s].
LIMIT_S = 240
COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}  # fmt: skip
CALLED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "ceil": "floor", "floor": "ceil"}


@dataclass(frozen=True)
class Mutant:
    """One wrong change: the whole module's text with it, and what it is."""

    file: Path
    line: int
    change: str
    text: str

    @property
    def module(self) -> str:
        """Import name of the changed module."""
        return module_of(self.file)


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that can be changed: no annotations, docstrings or texts of errors, and nothing that only types read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            for inner in [*node.body, *(node.args.defaults if isinstance(node, ast.FunctionDef) else [])]:
                if changed_kinds(inner):
                    yield inner
                yield from places(inner)
            continue
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                if changed_kinds(node.value):
                    yield node.value
                yield from places(node.value)
            continue
        if changed_kinds(node):
            yield node
        yield from places(node)


def changed_kinds(node: ast.AST) -> str:
    """What could be changed in a node, empty for nothing."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
        return "comparison"
    if isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        return "" if isinstance(node.left, ast.JoinedStr) or isinstance(node.right, ast.JoinedStr) else "operator"
    if isinstance(node, ast.BoolOp):
        return "and/or"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "not"
    if isinstance(node, ast.If | ast.IfExp):
        return "condition"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return "number"
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return "call" if name in CALLED else ""
    return ""


def change(node: ast.AST) -> None:
    """Make the node wrong."""
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARED[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = COMPUTED[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value = node.value + 1 if isinstance(node.value, int) else node.value * 1.5 + 0.5 * (node.value == 0.0)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node.func.attr = CALLED[node.func.attr]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        node.func.id = CALLED[node.func.id]


def mutants(files: list[Path], count: int, seed: int) -> list[Mutant]:
    """So many mutants of the files, every place equally likely."""
    found = [(file, i) for file in files for i, _ in enumerate(places(ast.parse(file.read_text(encoding="utf-8"))))]
    chosen = random.Random(seed).sample(found, min(count, len(found)))
    return [mutant(file, number) for file, number in chosen]


def mutant(file: Path, number: int) -> Mutant:
    """The mutant of one place of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    node = list(places(tree))[number]
    before = ast.unparse(node).splitlines()[0]
    change(node)
    after = ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]
    return Mutant(file, getattr(node, "lineno", 0), f"{before}  ->  {after}", ast.unparse(tree))


def tests_of(mutant: Mutant) -> list[list[str]]:
    """Files of tests in the order in which they run: those of the module, of its importers, and the broad ones."""
    near = importing([mutant.module], "tests")
    near |= set((ROOT / "tests").glob(f"test_{mutant.file.stem}*.py"))
    importers = [file for folder in ("model", "simulator", "plan") for file in importing([mutant.module], folder)]
    next_to = importing([module_of(file) for file in importers], "tests") - near
    broad = {ROOT / "tests" / name for name in BROAD} - near - next_to
    return [[str(test) for test in sorted(ring)] for ring in (near, next_to, broad) if ring]


def importing(modules: list[str], folder: str) -> set[Path]:
    """Files of a folder that import one of the modules."""
    words = set(modules)
    return {file for file in (ROOT / folder).glob("*.py") if words & imports_of(file)}


@cache
def imports_of(file: Path) -> frozenset[str]:
    """Modules and names that a file imports, also within functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return frozenset(found)


def module_of(file: Path) -> str:
    """Import name of a file."""
    return "joulecast." + ".".join(file.relative_to(ROOT).with_suffix("").parts)


def controls(drawn: list[Mutant]) -> list[Mutant]:
    """Each changed file without the change: tests that fail on these notice nothing."""
    files = dict.fromkeys(one.file for one in drawn)
    return [Mutant(file, 0, "none", ast.unparse(ast.parse(file.read_text(encoding="utf-8")))) for file in files]


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a mutant's text."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Claims the module."""
        if name != self.mutant.module:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.mutant.file))

    def exec_module(self, module: ModuleType) -> None:
        """Runs the mutant's text in the module."""
        module.__file__ = str(self.mutant.file)
        exec(compile(self.mutant.text, str(self.mutant.file), "exec"), module.__dict__)


def noticed(mutant: Mutant, limit_s: float = LIMIT_S) -> bool:
    """Whether a test fails, or hangs, with a mutant."""
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os._exit(int(_fails(mutant)))
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _fails(mutant: Mutant) -> bool:
    import pytest

    sys.meta_path.insert(0, Loader(mutant))
    options = [
        "-q",
        "-x",
        "-m",
        "not slow",
        "-k",
        NOT_THESE,
        *(f"-pno:{name}" for name in ("xdist", "benchmark", "cacheprovider")),
    ]
    return any(pytest.main([*options, *ring]) not in (0, 5) for ring in tests_of(mutant) if ring)


def main() -> int:
    """Draw, run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one file of model/")
    parser.add_argument("--least", type=float, default=80.0, help="share that must be noticed [%%]")
    parser.add_argument("--without-control", action="store_true", help="tests have just passed without a mutation")
    parser.add_argument("--minutes", type=float, default=600.0, help="draw no further mutant after so long")
    asked = parser.parse_args()
    end = time.monotonic() + 60.0 * asked.minutes
    os.chdir(ROOT)
    # Imported once, before any process forks; nothing of the project, nor what pytest itself must import first.
    import numpy  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401

    files = sorted(p for p in (ROOT / "model").glob("*.py") if asked.only in (None, p.name))
    drawn, lived, run = mutants(files, asked.count, asked.seed), [], 0
    if not asked.without_control and any(map(noticed, controls(drawn))):
        print("tests fail without any mutation: run make test first", file=sys.stderr)
        return 2
    for one in drawn:
        if time.monotonic() > end:
            break
        run += 1
        if not noticed(one):
            lived.append(one)
            print(f"unnoticed: {one.file.relative_to(ROOT)}:{one.line}: {one.change}", flush=True)
        if run % 5 == 0:
            print(f"{run} of {len(drawn)}, {run - len(lived)} noticed", file=sys.stderr, flush=True)
    share = 100.0 * (run - len(lived)) / max(run, 1)
    print(f"mutations of model/: {run - len(lived)} of {run} noticed, {share:.0f} %")
    return int(share < asked.least)


if __name__ == "__main__":
    sys.exit(main())
