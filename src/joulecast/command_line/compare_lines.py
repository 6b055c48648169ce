"""A comparison of plans as lines of tables, for the command line and for reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulecast.plan.comparison.compare import Comparison

#: Quantities of the results, and the heading under which tables show them.
RESULTS = {
    "time_s": "time [s]",
    "time_s_p05": "time, 5 % [s]",
    "time_s_p95": "time, 95 % [s]",
    "energy_j": "energy, GPUs [J]",
    "energy_j_p05": "energy, GPUs, 5 % [J]",
    "energy_j_p95": "energy, GPUs, 95 % [J]",
    "power_w": "power, GPUs [W]",
    "power_w_p05": "power, GPUs, 5 % [W]",
    "power_w_p95": "power, GPUs, 95 % [W]",
    "gpus": "GPUs",
    "clock_mhz": "SM clock, median [MHz]",
    "tokens_per_s": "throughput [tokens/s]",
    "memory_bytes": "memory allocated, a GPU [GB]",
    "facility_energy_j": "energy, facility [J]",
    "facility_power_w": "power, facility [W]",
    "facility_peak_w": "peak power, facility [W]",
    "money": "money",
    "carbon_kg": "carbon [kgCO2e]",
    "run_time_s": "whole run [days]",
    "run_energy_j": "whole run, facility [MWh]",
    "run_money": "whole run, money",
    "run_carbon_kg": "whole run, carbon [tCO2e]",
}
#: By what results are divided that are shown in other units than their names say.
SHOWN_IN = {"memory_bytes": 1e9, "run_time_s": 86400.0, "run_energy_j": 3.6e9, "run_carbon_kg": 1e3}


def key_lines(found: Comparison) -> list[dict[str, Any]]:
    """Keys of the plans that differ."""
    return [
        {"key": key} | {name: _word(value) for name, value in zip(found.names, values, strict=True)}
        for key, values in found.keys.items()
    ]


def result_lines(found: Comparison) -> list[dict[str, Any]]:
    """Results of every plan, and how far they lie from the reference's: intervals are of each plan by itself."""
    lines = []
    for key, given in found.results.items():
        values = [value / SHOWN_IN.get(key, 1.0) if value else value for value in given]
        line: dict[str, Any] = {"": _heading(found, key), found.names[0]: values[0]}
        for name, value in zip(found.names[1:], values[1:], strict=True):
            line[name] = value
            compared = value if values[0] and not key.endswith(("_p05", "_p95")) else None
            line[f"{name} [%]"] = round(100.0 * (compared / values[0] - 1.0), 2) if compared and values[0] else None
        lines.append(line)
    return lines


def ledger_lines(found: Comparison, plan: str) -> list[dict[str, Any]]:
    """Ledgers of one plan against the reference, without what neither of them has."""
    from joulecast.reports.palette import word

    lines = []
    for row in found.rows():
        if row["plan"] != plan or (row["reference"] == row["other"] == 0.0):
            continue
        share = row["share"]
        lines.append(
            {
                "quantity": _heading(found, row["quantity"]),
                "by": row["split"],
                "item": word(row["item"]),
                found.names[0]: row["reference"],
                plan: row["other"],
                "difference": row["difference"],
                "share [%]": None if share is None else round(100.0 * share, 1),
            }
        )
    return lines


def _heading(found: Comparison, key: str) -> str:
    """A quantity with its unit."""
    return f"{RESULTS[key]} [{found.currency}]" if key.endswith("money") and found.currency else RESULTS[key]


def _word(value: Any) -> str:
    """A plan's value as its file writes it, numbers shorter; ``None`` is a key that is not set."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.4g}"
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False)
    return "-" if value is None else str(value)
