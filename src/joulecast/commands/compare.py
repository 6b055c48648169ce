"""``joulecast compare``: how plans differ, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulecast.command_line import output

if TYPE_CHECKING:
    from joulecast.plan.comparison.compare import Comparison


def compare(
    plans: Annotated[
        list[Path], typer.Argument(metavar="PLAN.toml…", help="Two or more plans; the first is the reference.")
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override one value of every plan.")
    ] = None,
    report: output.ReportOption = None,
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Say how and why the forecasts of plans differ."""
    from joulecast.api import _compared
    from joulecast.command_line.destinations import check_destinations

    check_destinations({"--report": report}, plans)
    found = _compared(plans, settings or ())
    if report is not None:
        from joulecast.reports.pages.compare import compare_page
        from joulecast.reports.write import write_report

        write_report(compare_page(found), report)
    if json:
        output.print_json(found.to_dict())
    elif csv:
        output.print_csv(found.rows())
    else:
        print_comparison(found)


def print_comparison(found: Comparison) -> None:
    """Print differing keys, results and ledgers of differences for people."""
    from joulecast.command_line.compare_lines import key_lines, ledger_lines, result_lines

    if found.keys:
        output.print_table(key_lines(found), title="Keys of the plans that differ")
    else:
        print("The plans do not differ in any key.")
    print()
    output.print_table(result_lines(found), title="Results")
    for one in found.against:
        print(f"\n{one.plan} against {found.names[0]}")
        for reason in one.reasons:
            print(f"- {reason}")
        output.print_table(ledger_lines(found, one.plan))
    for note in found.notes:
        print(f"Note: {note}.")
