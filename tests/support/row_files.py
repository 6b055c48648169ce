"""Rows of files and of what commands print: CSV by its heading, JSON line by line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any


def csv_text(text: str) -> list[dict[str, str]]:
    """Rows of CSV below its heading."""
    return list(csv.DictReader(io.StringIO(text)))


def csv_rows(path: Path, **wanted: str) -> list[dict[str, str]]:
    """Rows of a CSV file, or those with these values: ``csv_rows(path, gpu="h200-sxm")``."""
    rows = csv_text(path.read_text(encoding="utf-8"))
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def json_rows(path: Path | Traversable) -> list[dict[str, Any]]:
    """Rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_csv(path: Path, *rows: Mapping[str, Any]) -> Path:
    """A CSV file of rows with the same names."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_json(path: Path, *rows: Mapping[str, Any]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
