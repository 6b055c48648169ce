"""``joulecast compare``: how plans differ, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast import output

if TYPE_CHECKING:
    from joulecast.plan.compare import Comparison

#: Quantities of the results, and the heading under which the table shows them.
RESULTS = {
    "time_s": "time [s]",
    "time_s_p05": "  5 %",
    "time_s_p95": "  95 %",
    "energy_j": "energy, GPUs [J]",
    "energy_j_p05": "  5 %",
    "energy_j_p95": "  95 %",
    "power_w": "power, GPUs [W]",
    "gpus": "GPUs",
    "clock_mhz": "SM clock, mean [MHz]",
    "tokens_per_s": "throughput [tokens/s]",
    "memory_bytes": "memory of a GPU [B]",
    "facility_energy_j": "energy, facility [J]",
    "facility_power_w": "power, facility [W]",
    "facility_peak_w": "peak power, facility [W]",
    "money": "money",
    "carbon_kg": "carbon [kgCO2e]",
}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("compare")(compare)


def compare(
    plans: Annotated[list[Path], typer.Argument(metavar="PLAN.toml…", help="Two or more; the first is the reference.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override one value of every plan.")
    ] = None,
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Say how and why the forecasts of plans differ from that of the first."""
    from joulecast.api import compare as compare_plans

    found = compare_plans(plans, settings or ())
    if json:
        output.print_json(found.to_dict())
    elif csv:
        output.print_csv(found.rows())
    else:
        print_comparison(found)


def print_comparison(found: Comparison) -> None:
    """Print differing keys, results and ledgers of differences for people."""
    keys = [
        {"key": key} | {name: _word(v) for name, v in zip(found.names, values, strict=True)}
        for key, values in found.keys.items()
    ]
    if keys:
        output.print_table(keys, title="Keys of the plans that differ")
    else:
        print("The plans do not differ in any key.")
    print()
    output.print_table(_result_lines(found), title="Results")
    for one in found.against:
        print(f"\n{one.plan} against {found.names[0]}")
        output.print_table(_ledger_lines(found, one.plan))
    for note in found.notes:
        print(f"Note: {note}.")


def _result_lines(found: Comparison) -> list[dict[str, Any]]:
    lines = []
    for key, values in found.results.items():
        line: dict[str, Any] = {"": RESULTS[key], found.names[0]: values[0]}
        for name, value in zip(found.names[1:], values[1:], strict=True):
            line[name] = value
            line[f"{name} [%]"] = round(100.0 * (value / values[0] - 1.0), 2) if value and values[0] else None
        lines.append(line)
    return lines


def _ledger_lines(found: Comparison, plan: str) -> list[dict[str, Any]]:
    lines = []
    for row in found.rows():
        if row["plan"] != plan or (row["reference"] == row["other"] == 0.0):
            continue
        share = row["share"]
        lines.append(
            {
                "quantity": RESULTS[row["quantity"]],
                "by": row["split"],
                "item": row["item"],
                found.names[0]: row["reference"],
                plan: row["other"],
                "difference": row["difference"],
                "share [%]": None if share is None else round(100.0 * share, 1),
            }
        )
    return lines


def _word(value: Any) -> str:
    """A plan's value for people; ``None`` is a key that is not set."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
