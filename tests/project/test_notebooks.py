"""Notebooks of the examples are well-formed and without outputs; ``make slow`` runs them."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from paths import EXAMPLES

NAMES = ("a_front_into_zeus", "calibrate_from_a_recording", "plan_a_cluster")


@pytest.fixture(params=NAMES)
def notebook(request: pytest.FixtureRequest) -> dict[str, Any]:
    return json.loads((EXAMPLES / f"{request.param}.ipynb").read_text(encoding="utf-8"))


def test_every_notebook_is_named_here_and_in_the_pages() -> None:
    assert tuple(sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))) == NAMES
    page = (EXAMPLES.parent / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert all(f"`{name}.ipynb`" in page for name in NAMES)


def test_it_has_the_form_of_notebooks(notebook: dict[str, Any]) -> None:
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        extra = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert cell["cell_type"] in ("code", "markdown")
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | extra
        assert cell["source"] and all(isinstance(line, str) for line in cell["source"])


def test_it_is_kept_without_outputs(notebook: dict[str, Any]) -> None:
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_its_code_compiles_and_imports_what_there_is(notebook: dict[str, Any]) -> None:
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        compile(cell, "cell", "exec")
    imported = list(joulecast_names(ast.parse("\n".join(cells))))
    assert imported
    for module, name in imported:
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def joulecast_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and name of what code takes from the package: ``from joulecast.x import y``, and ``jc.y``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("joulecast"):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "jc":
            yield "joulecast", node.attr
