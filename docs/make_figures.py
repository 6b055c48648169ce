"""Runs the commands of ``figures.toml``, keeps their errors in ``figures.json``, and writes the tables anew.

    python docs/make_figures.py [FOLDER OF OTHERS' MEASUREMENTS]

Without the folder, what needs it keeps its earlier figures.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
KEPT, README = HERE / "figures.json", ROOT / "README.md"
PAGES = (README, *sorted((HERE / "figures").glob("*.md")))
WITH_DEMO = (README, HERE / "start.md")
QUANTITIES = ("time_error", "energy_error", "power_error", "time_worst", "time_baseline", "energy_baseline")
INSIDE = ("time_inside", "energy_inside", "power_inside")
#: A column of the README's table, where others have what intervals hold.
AT_FIRST = "time, when first looked at"


def main(data: str | None) -> None:
    """Measure every error that can be measured here."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for call, row in {command(row): row for table in tables() for row in table["row"]}.items():
        if "{data}" not in row["data"] or data:
            kept[call] = errors(row, data)
            sys.stderr.write(f"{call}: {kept[call]}\n")
            KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), kept), encoding="utf-8")
    for page in WITH_DEMO:
        page.write_text(with_demo(page.read_text(encoding="utf-8")), encoding="utf-8")


def tables() -> list[dict[str, Any]]:
    """The tables of ``figures.toml``, and the README's, whose rows are some of theirs."""
    found = list(tomllib.loads((HERE / "figures.toml").read_text(encoding="utf-8"))["table"])
    chosen = [{**row, "label": row["readme"]} for table in found for row in table["row"] if "readme" in row]
    head = [AT_FIRST if name.startswith("inside") else name for name in found[0]["head"]]
    return [*found, {"name": "readme", "head": head, "row": chosen}]


def command(row: dict[str, Any]) -> str:
    """What a reader types to get a row's figures."""
    data = row["data"].replace("{data}", "DATA")
    part = next((f"  # {row[key]}" for key in ("part", "names") if key in row), "")
    return " ".join(["joulecast validate", row["suite"], "--data", data, *row.get("options", [])]) + part


def errors(row: dict[str, Any], data: str | None) -> dict[str, Any]:
    """A row's errors, as the command prints them."""
    printed = answer(row["suite"], row["data"].replace("{data}", str(data)), *row.get("options", []))
    if "names" in row:
        return errors_of_times([one for one in printed["rows"] if re.match(row["names"], one["name"])])
    summary = printed["summary"][row.get("part", "all")]
    found: dict[str, Any] = {"rows": summary["rows"]}
    for name in QUANTITIES:
        value = summary.get(f"{name}_percent")
        found[f"{name}_percent"] = None if value is None else float(f"{value:.2g}")
    for name in INSIDE:
        value = summary.get(f"{name}_percent")
        found[f"{name}_percent"] = None if value is None else round(value)
    return found


@cache
def answer(suite: str, path: str, *options: str) -> dict[str, Any]:
    """What the command prints as JSON."""
    call = [sys.executable, "-m", "joulecast", "validate", suite, "--data", path, *options, "--json"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def errors_of_times(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean error of some rows' times, to which side all of them are off, and how many are inside their intervals."""
    pairs = [(row["measured"]["time_s"], row["predicted"]) for row in rows]
    off = [100.0 * (forecast["time_s"] / time - 1.0) for time, forecast in pairs]
    inside = sum(forecast["time_s_p05"] <= time <= forecast["time_s_p95"] for time, forecast in pairs)
    side = " too short" if max(off) < 0 else " too long" if min(off) > 0 else ""
    return {
        "rows": len(rows),
        "time_error_percent": float(f"{sum(map(abs, off)) / len(off):.2g}"),
        "side": side,
        "inside_percent": round(100.0 * inside / len(rows)),
    }


def markdown(table: dict[str, Any], kept: dict[str, Any]) -> str:
    """A table for people."""
    lines = ["| " + " | ".join(table["head"]) + " |", "|" + "---|" * len(table["head"])]
    for row in table["row"]:
        found = kept.get(command(row))
        if found is not None:
            cells = _cells_of_times(found, row) if "side" in found else _cells(found, table["head"], row)
            lines.append("| " + " | ".join([row["label"], f"{found['rows']:,}", *cells]) + " |")
    return "\n".join(lines)


def _cells(found: dict[str, Any], head: list[str], row: dict[str, Any]) -> list[str]:
    *errors, rule_time, rule_energy = (found[f"{name}_percent"] for name in QUANTITIES)
    inside = _together(*(found[f"{name}_percent"] for name in INSIDE))
    middle = row.get("before", "") if AT_FIRST in head else inside
    return [*map(_percent, errors), middle, _together(rule_time, rule_energy)]


def _together(*values: float | None) -> str:
    return " / ".join(_percent(value) for value in values if value is not None)


def _cells_of_times(found: dict[str, Any], row: dict[str, Any]) -> list[str]:
    time = _percent(found["time_error_percent"]) + found["side"]
    return [time, _percent(found["inside_percent"]), row.get("before", "")]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:g} %"


def filled(text: str, kept: dict[str, Any]) -> str:
    """A page with its tables between their markers written anew."""
    for table in tables():
        begin, end = f"<!-- figures {table['name']} -->", "<!-- figures end -->"
        if begin in text:
            text = _between(text, begin, end, markdown(table, kept))
    return text


def with_demo(text: str) -> str:
    """A page with the table that ``make demo`` prints between its markers."""
    return _between(text, "<!-- demo -->", "<!-- demo end -->", f"```\n{demo()}\n```")


@cache
def demo() -> str:
    """What ``make demo`` prints of the forecast."""
    call = [sys.executable, str(ROOT / "examples" / "demo.py")]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("Measured: "))


def _between(text: str, begin: str, end: str, what: str) -> str:
    before, rest = text.split(begin, 1)
    return before + begin + "\n" + what + "\n" + end + rest.split(end, 1)[1]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
