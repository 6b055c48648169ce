"""Fills the pages that are generated from the code: keys of files, options of commands, error figures."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

HERE = Path(__file__).parent


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each marker by what it stands for."""
    for marker, make in MARKERS.items():
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return figures().filled(markdown, json.loads(figures().KEPT.read_text(encoding="utf-8")))


def plan_keys() -> str:
    """The tables of PLAN.toml with type, default and meaning of every key."""
    from joulecast.simulator.plan_file.schema import TABLES

    return keys(TABLES)


def space_keys() -> str:
    """What a SPACE.toml has beyond a plan."""
    from joulecast.plan.sweep.space import ConstraintsTable, ObjectiveTable

    return keys({"constraints": ConstraintsTable, "objective": ObjectiveTable})


def keys(tables: Mapping[str, type[BaseModel]]) -> str:
    """Tables of a file as tables of a page."""
    parts = []
    for table, schema in tables.items():
        about = (schema.__doc__ or "").strip().replace("\n", " ").removeprefix(f"``[{table}]``: ")
        lines = [f"### `[{table}]`", "", about[:1].upper() + about[1:], ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for name, field in schema.model_fields.items():
            default = "required" if field.is_required() else _toml(field.get_default(call_default_factory=True))
            lines.append(f"| `{name}` | {_type(field.annotation)} | {default} | {_cell(field.description or '')} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _type(annotation: Any) -> str:
    plain = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    text = annotation.__name__ if plain else str(annotation)
    text = re.sub(r"(typing|joulecast\.[\w.]+)\.(?=\w)", "", text)
    for old, new in ((" | None", ""), (" | ", " or ")):
        text = text.replace(old, new)
    return re.sub(r"Literal\[([^\]]*)\]", lambda found: found[1].replace("'", "`"), text)


def _toml(value: Any) -> str:
    if value is None or not isinstance(value, bool | int | float | str):
        return "–"
    return f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def commands() -> str:
    """Every command with its arguments and options."""
    from typer.cli import get_docs_for_click
    from typer.main import get_command

    from joulecast.cli import build_app

    group = get_command(build_app())
    for command in getattr(group, "commands", {}).values():  # whole sentences, which a terminal has room for as well
        command.short_help = (command.help or "").partition("\n\n")[0].replace("\n", " ")
    context = group.make_context("joulecast", ["doctor"], resilient_parsing=True)
    text = get_docs_for_click(obj=group, ctx=context, name="joulecast")
    return text.partition("\n")[2]  # the page has its own title


def figures() -> ModuleType:
    """The module that keeps the error figures."""
    spec = importlib.util.spec_from_file_location("make_figures", HERE / "make_figures.py")
    if spec is None or spec.loader is None:
        raise ImportError("make_figures.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: What stands in the files, which are read without being built as well, and what the built pages have there.
MARKERS = {
    "`make docs` writes the keys of a plan here, from the code that reads the file.": plan_keys,
    "`make docs` writes the keys of both tables here, from the code that reads the file.": space_keys,
    "`make docs` writes here what `joulecast COMMAND --help` prints.": commands,
}
