"""The direction of imports: model <- simulator <- plan, calibrate and validate beside, the command line above all.

Within each package, the order of its parts is that of the list in its docstring; parts on one line know each other.
"""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from paths import ROOT

#: What the root offers to all.
OFFERED = tuple(f"joulecast.{name}" for name in ("arrays", "tables", "errors", "extras", "files", "threads"))
#: What each sub-package may import of joulecast, besides that and itself.
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
LIGHT = (
    *("commands", "errors", "files"),
    *(f"command_line.{name}" for name in ("destinations", "front_asked", "options", "output", "shown")),
)
#: Modules that are heavy by nature, and are themselves only imported inside functions.
LATE = {"joulecast.simulator.closed_form.evaluator_kernels"}
FILES = [path for name in ALLOWED for path in sorted((ROOT / name).rglob("*.py"))]
#: Packages that consist of parts; each part may import those that stand above it in the package's docstring.
OF_PARTS = {name: ROOT / name for name in ALLOWED} | {"reports": ROOT / "src/joulecast/reports"}
#: What `joulecast predict` runs through.
QUICK = ("model", "simulator")


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all imports below a node; ``from a import b`` counts as both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import_time(tree: ast.Module, *, or_later: bool = False) -> Iterator[ast.AST]:
    """Imports that run when the module is imported: not inside functions (or there too), not under TYPE_CHECKING."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not or_later:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        waiting.extend(ast.iter_child_nodes(node))


def forbidden(package: str, tree: ast.AST) -> set[str]:
    """Imports of joulecast that a module of this sub-package must not have."""
    allowed = {*OFFERED, *(f"joulecast.{name}" for name in ALLOWED[package] | {package})}
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


def docstring(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""


def parts_of(package: str) -> list[list[str]]:
    """The parts of a package in the order of its docstring: an item of the list begins with those that it is about.

    Several items may stand on one line, ``first``: …; ``second``: …
    """
    items = re.findall(r"^- (.*(?:\n  .*)*)", docstring(OF_PARTS[package]), re.MULTILINE)
    pieces = [piece for item in items for piece in re.split(r";\s+(?=``)", item)]
    return [re.findall(r"``(\w+)``", piece.partition(":")[0]) for piece in pieces]


def upward(package: str, part: str, tree: ast.Module) -> set[str]:
    """Parts of the package that a module of this part imports though they do not stand above it."""
    order = parts_of(package)
    level = next(number for number, parts in enumerate(order) if part in parts)
    mine = {
        name.split(".")[2]
        for node in at_import_time(tree, or_later=True)
        for name in imports(node)
        if name.startswith(f"joulecast.{package}.")
    }
    return mine - {name for parts in order[: level + 1] for name in parts}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_point_one_way(path):
    package = path.relative_to(ROOT).parts[0]
    assert forbidden(package, ast.parse(path.read_text(encoding="utf-8"))) == set()


@pytest.mark.parametrize("package", OF_PARTS)
def test_imports_among_the_parts_of_a_package_point_one_way(package):
    wrong = {}
    for path in sorted(OF_PARTS[package].rglob("*.py")):
        part = path.relative_to(OF_PARTS[package]).with_suffix("").parts[0]
        if part != "__init__" and (found := upward(package, part, ast.parse(path.read_text(encoding="utf-8")))):
            wrong[path.relative_to(ROOT).as_posix()] = found
    assert wrong == {}


def test_no_modules_need_each_other():
    """Any module can be the first that a program imports."""
    names = {path: "joulecast." + ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES}
    needed = {
        name: {one for node in at_import_time(ast.parse(path.read_text(encoding="utf-8"))) for one in imports(node)}
        & set(names.values())
        for path, name in names.items()
    }
    TopologicalSorter(needed).prepare()  # raises CycleError


@pytest.mark.parametrize("package", OF_PARTS)
def test_the_order_names_every_part_once(package):
    there = [
        path.stem for path in OF_PARTS[package].iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    assert sorted([*(name for parts in parts_of(package) for name in parts), "__init__"]) == sorted(there)


@pytest.mark.parametrize(
    ("package", "part", "source", "found"),
    [
        ("model", "hardware", "from joulecast.model.power.voltage import x", {"power"}),
        ("model", "hardware", "def f():\n    from joulecast.model.power.voltage import x", {"power"}),
        ("model", "kernels", "from joulecast.model import hardware, memory", {"memory"}),
        ("simulator", "plan_file", "import joulecast.simulator.fluid.prepared", {"fluid"}),
        ("simulator", "fluid", "from joulecast.simulator.plan_file.plan import Plan", set()),
        ("calibrate", "rows", "from joulecast.calibrate.measure.records import x", set()),
        ("calibrate", "rows", "from joulecast.calibrate.fit.solve import x", {"fit"}),
        ("reports", "charts", "from joulecast.reports.figures import figure", {"figures"}),
        ("simulator", "plan_file", "if TYPE_CHECKING:\n    from joulecast.simulator.fluid.prepared import x", set()),
    ],
)
def test_the_rule_of_parts_catches(package, part, source, found):
    assert upward(package, part, ast.parse(source)) == found


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.relative_to(ROOT).parts[0] in QUICK], ids=lambda p: p.relative_to(ROOT).as_posix()
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
        *(ROOT / f"src/joulecast/command_line/{light}.py" for light in ("front_asked", "options")),
    ],
    ids=lambda p: p.stem,
)
def test_commands_import_nothing_but_the_command_line_at_the_top_level(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {name for node in at_import_time(tree) for name in imports(node)}
    ours = {name for name in found if name.startswith("joulecast.")} - {"joulecast.command_line"}
    assert all(name.startswith(tuple(f"joulecast.{light}" for light in LIGHT)) for name in ours)
    assert not {name.split(".")[0] for name in found} & (HEAVY - {"typer"} | {"numpy", "pydantic", "simpy"})


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("model", "from joulecast.simulator import plan_file"),
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
        "simulator", ast.parse("from joulecast.model.kernels.costs import Costs\nfrom joulecast.errors import x")
    )


@pytest.mark.parametrize(
    "path", sorted(p for at in OF_PARTS.values() for p in at.rglob("__init__.py")), ids=lambda p: p.parent.name
)
def test_the_maps_of_packages_name_modules_that_exist(path):
    named = re.findall(r"``(\w+)``", docstring(path.parent))
    there = {found.stem for found in path.parent.iterdir() if found.suffix == ".py" or found.is_dir()}
    assert set(named) - there == set()


@pytest.mark.parametrize(
    "path", sorted(p for at in OF_PARTS.values() for p in at.glob("*/__init__.py")), ids=lambda p: p.parent.name
)
def test_the_maps_of_parts_name_every_module(path):
    named = re.findall(r"``(\w+)``", docstring(path.parent))
    assert {found.stem for found in path.parent.glob("*.py")} - {"__init__"} - set(named) == set()
