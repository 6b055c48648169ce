"""``joulecast calibrate``: a GPU description from measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast import output
from joulecast.errors import InputError, NotYetError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("calibrate")(calibrate)


def calibrate(
    rows: Annotated[
        list[Path] | None, typer.Option(metavar="FILE…", help="Measured rows (JSON lines); several may follow.")
    ] = None,
    more_rows: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None,
    out: Annotated[Path | None, typer.Option(metavar="GPU.toml", help="Write the description here.")] = None,
    device: Annotated[int | None, typer.Option(hidden=True)] = None,
    passive: Annotated[bool, typer.Option("--passive", hidden=True)] = False,
    active: Annotated[bool, typer.Option("--active", hidden=True)] = False,
    budget: Annotated[str | None, typer.Option(hidden=True)] = None,
    record: Annotated[Path | None, typer.Option(hidden=True)] = None,
    replay: Annotated[Path | None, typer.Option(hidden=True)] = None,
    json: output.JsonOption = False,
) -> None:
    """Fit a GPU description to measured rows."""
    _refuse_reserved(device=device, passive=passive, active=active, budget=budget, record=record, replay=replay)
    files = [*(rows or ()), *(more_rows or ())]
    if not rows or out is None:
        raise InputError(
            "calibrate needs measured rows and a file to write", remedy="Give --rows FILE and --out GPU.toml."
        )
    from joulecast.calibrate import fit_rows

    output.progress(f"fitting {', '.join(str(f) for f in files)}")
    result: Any = fit_rows(files)
    output.write_file(out, result.to_toml())
    if json:
        output.print_json({"out": str(out), **result.to_dict()})
    else:
        output.progress(f"wrote {out}")


def _refuse_reserved(**options: Any) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            raise NotYetError(
                "measuring on a GPU does not exist yet", key=f"--{name}", remedy="Fit recorded rows with --rows FILE."
            )
