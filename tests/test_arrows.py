"""The direction of imports: model <- simulator <- plan, calibrate and validate beside, the command line above all."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: What each sub-package may import of joulecast, besides joulecast.errors, joulecast.files and itself.
ALLOWED = {
    "model": set(),
    "simulator": {"model"},
    "plan": {"model", "simulator"},
    "calibrate": {"model", "simulator"},
    "validate": {"model", "simulator", "calibrate"},
}
#: Too heavy for the path of `joulecast predict`; they may only be imported inside functions there.
HEAVY = {"torch", "pandas", "numba", "scipy", "tomlkit", "rich", "typer"}
#: What commands may import of joulecast when they are registered.
LIGHT = ("commands", "errors", "files", "front_asked", "options", "output")
#: Modules that are heavy by nature, and are themselves only imported inside functions.
LATE = {"joulecast.simulator.evaluator_kernels"}
FILES = [path for name in ALLOWED for path in sorted((ROOT / name).rglob("*.py"))]


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all imports below a node; ``from a import b`` counts as both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import_time(tree: ast.Module) -> Iterator[ast.AST]:
    """Statements that run when the module is imported: not inside functions, not under TYPE_CHECKING."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        waiting.extend(ast.iter_child_nodes(node))


def forbidden(package: str, tree: ast.AST) -> set[str]:
    """Imports of joulecast that a module of this sub-package must not have."""
    allowed = {"joulecast.errors", "joulecast.files", *(f"joulecast.{name}" for name in ALLOWED[package] | {package})}
    return {
        name
        for name in imports(tree)
        if name.split(".")[0] == "joulecast"
        and name != "joulecast"
        and not any(name == a or name.startswith(f"{a}.") for a in allowed)
    } | (
        {"joulecast"}
        if any(isinstance(n, ast.Import) and "joulecast" in [a.name for a in n.names] for n in ast.walk(tree))
        else set()
    )


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_point_one_way(path):
    package = path.relative_to(ROOT).parts[0]
    assert forbidden(package, ast.parse(path.read_text(encoding="utf-8"))) == set()


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.relative_to(ROOT).parts[0] in ("model", "simulator")], ids=lambda p: p.stem
)
def test_nothing_heavy_is_imported_at_the_top_level(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {name for node in at_import_time(tree) for name in imports(node)}
    assert not found & LATE
    if "joulecast." + ".".join(path.relative_to(ROOT).with_suffix("").parts) not in LATE:
        assert not {name.split(".")[0] for name in found} & HEAVY


@pytest.mark.parametrize(
    "path",
    [
        *sorted((ROOT / "src/joulecast/commands").glob("*.py")),
        *(ROOT / f"src/joulecast/{light}.py" for light in ("front_asked", "options")),
    ],
    ids=lambda p: p.stem,
)
def test_commands_import_nothing_but_the_command_line_at_the_top_level(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {name for node in at_import_time(tree) for name in imports(node)}
    ours = {name for name in found if name.startswith("joulecast.")}
    assert all(name.startswith(tuple(f"joulecast.{light}" for light in LIGHT)) for name in ours)
    assert not {name.split(".")[0] for name in found} & (HEAVY - {"typer"} | {"numpy", "pydantic", "simpy"})


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("model", "from joulecast.simulator import plan"),
        ("model", "from joulecast import simulator"),
        ("model", "import joulecast"),
        ("simulator", "import joulecast.commands.predict"),
        ("calibrate", "from joulecast.validate import run_suite"),
        ("validate", "def f():\n    from joulecast import cli"),
    ],
)
def test_the_rule_catches(package, source):
    assert forbidden(package, ast.parse(source))


def test_the_rule_lets_pass():
    assert not forbidden(
        "simulator", ast.parse("from joulecast.model.costs import Costs\nfrom joulecast.errors import x")
    )


@pytest.mark.parametrize(
    "path", sorted(p for name in ALLOWED for p in (ROOT / name).rglob("__init__.py")), ids=lambda p: p.parent.name
)
def test_the_maps_of_packages_name_modules_that_exist(path):
    named = re.findall(r"``(\w+)``", ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
    there = {found.stem for found in path.parent.iterdir() if found.suffix == ".py" or found.is_dir()}
    assert set(named) - there == set()
