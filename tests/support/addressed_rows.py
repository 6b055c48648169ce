"""Rows that others published, which say where they stand."""

from importlib.resources.abc import Traversable
from pathlib import Path

from row_files import json_rows


def addressed_names(folder: Path | Traversable) -> set[str]:
    """Names of all rows of a folder, each of which has an address and a name of its own."""
    names: set[str] = set()
    for file in folder.iterdir():
        if file.name.endswith(".jsonl"):
            rows = json_rows(file)
            assert all(row["source"].startswith("https://") for row in rows)
            assert names.isdisjoint(row["name"] for row in rows)
            names |= {row["name"] for row in rows}
    return names
