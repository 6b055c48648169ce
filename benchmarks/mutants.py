"""Small wrong changes of a module: one operator, comparison, number, call or condition at a time."""

from __future__ import annotations

import ast
import functools
import gc
import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType

ROOT = Path(__file__).resolve().parents[1]
COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}  # fmt: skip
CALLED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "ceil": "floor", "floor": "ceil"}


#: A function by its name and its first line, as its code object has them; None for what an import runs.
Owner = tuple[str, int] | None


@dataclass(frozen=True)
class Mutant:
    """One wrong change: where, what it is, the number of its place in the file, and the function around it."""

    file: Path
    number: int
    line: int
    change: str
    owner: Owner

    @property
    def module(self) -> str:
        """Import name of the changed module."""
        parts = self.file.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[1:] if parts[0] == "src" else ("joulecast", *parts))

    @cached_property
    def code(self) -> CodeType:
        """The whole module with the change, its lines numbered as in the file."""
        tree = ast.parse(self.file.read_text(encoding="utf-8"))
        change(list(places(tree.body))[self.number][0])
        return compile(ast.fix_missing_locations(tree), str(self.file), "exec")


def drawn(files: list[Path], count: int, seed: int) -> list[Mutant]:
    """So many mutants of the files, every place equally likely."""
    found = []
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found += [(file, number, owner) for number, (_, owner) in enumerate(places(tree.body))]
    return [mutant(*one) for one in random.Random(seed).sample(found, min(count, len(found)))]


def mutant(file: Path, number: int, owner: Owner = None) -> Mutant:
    """The mutant of one place of a file."""
    node = list(places(ast.parse(file.read_text(encoding="utf-8")).body))[number][0]
    before = ast.unparse(node).splitlines()[0]
    change(node)
    after = ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]
    return Mutant(file, number, getattr(node, "lineno", 0), f"{before}  ->  {after}", owner)


def places(nodes: Iterable[ast.AST], owner: Owner = None) -> Iterator[tuple[ast.AST, Owner]]:
    """Nodes that can be changed, each with the outermost function around it.

    No annotations, docstrings or texts of errors, and nothing that only types read.
    """
    for node in nodes:
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield from places(node.body, owner or (node.name, first))
            yield from places(node.args.defaults, owner)
        elif isinstance(node, ast.ClassDef):
            yield from places(node.body, owner)
        elif isinstance(node, ast.AnnAssign):
            yield from places([node.value] if node.value else [], owner)
        else:
            if changed_kinds(node):
                yield node, owner
            yield from places(ast.iter_child_nodes(node), owner)


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


def functions() -> dict[tuple[str, tuple[str, int]], list[FunctionType]]:
    """Functions of the project that are alive, by file, name and first line."""
    found: dict[tuple[str, tuple[str, int]], list[FunctionType]] = defaultdict(list)
    for thing in _alive():
        if type(thing) is FunctionType and thing.__module__ and thing.__module__.startswith("joulecast."):
            code = thing.__code__
            found[os.path.realpath(code.co_filename), (code.co_name, code.co_firstlineno)].append(thing)
    return found


def _alive() -> list[object]:
    """Objects that the collector of garbage knows, frozen ones too; it freezes them (again)."""
    gc.unfreeze()
    found = gc.get_objects()
    gc.freeze()
    return found


class Caches:
    """What functions of the project remember."""

    def __init__(self) -> None:
        self._find()

    def _find(self) -> None:
        self._modules = len(sys.modules)
        # By type alone: isinstance() asks things for their class, of which some that are deprecated warn.
        wrappers = (thing for thing in _alive() if type(thing) is functools._lru_cache_wrapper)
        self._known = [wrapper for wrapper in wrappers if str(wrapper.__module__).startswith("joulecast")]

    def clear(self) -> None:
        """Forget it, that of modules imported since the last time too."""
        if self._modules != len(sys.modules):
            self._find()
        for wrapper in self._known:
            wrapper.cache_clear()


def put_in(one: Mutant, place: list[FunctionType], caches: Caches) -> None:
    """Give the function the mutant's code, and forget what was computed with the old."""
    new = next(code for code in codes(one.code) if (code.co_name, code.co_firstlineno) == one.owner)
    for function in place:
        function.__code__ = new
    caches.clear()


def importers(one: Mutant) -> set[Path]:
    """Modules of the same room that import a mutant's."""
    return {
        file
        for file in (ROOT / one.file.relative_to(ROOT).parts[0]).rglob("*.py")
        if any(
            isinstance(node, ast.ImportFrom) and node.module == one.module
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        )
    }


def codes(code: CodeType) -> list[CodeType]:
    """A code object and all within it."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return [code, *(found for part in inner for found in codes(part))]
