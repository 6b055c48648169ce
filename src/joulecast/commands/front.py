"""``joulecast front``: time-energy fronts of plans, from forecasts or measured profiles."""

from __future__ import annotations

from dataclasses import replace

import typer

from joulecast.command_line import output
from joulecast.command_line.front_asked import FrontAsked, checked_form
from joulecast.command_line.options import command_of


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("front")(command_of(front, FrontAsked))


def front(asked: FrontAsked) -> None:
    """Find the time-energy front of a plan.

    Plans from the fastest to the one of least energy, each with the least energy that its time allows.
    """
    from joulecast.command_line.front_answers import answer

    asked.check_files()
    asked = replace(asked, form=checked_form(asked.form, asked.out))
    out, form = asked.out, asked.form
    found = answer(asked)
    if out is not None:
        found.write(out, form or "json")
        output.progress(f"wrote {out}")
    if asked.report is not None:
        found.report(asked.report)
    if asked.json or (form == "json" and out is None):
        found.print_json()
    elif asked.csv or (form == "csv" and out is None):
        output.print_csv(found.rows())
    elif out is None:
        found.print()
