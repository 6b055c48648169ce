"""``joulecast calibrate``: a GPU description from measurements."""

from __future__ import annotations

from dataclasses import asdict
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
        list[Path] | None,
        typer.Option(metavar="FILE…", help="Measured rows (JSON lines), several may follow; else the shipped ones."),
    ] = None,
    more_rows: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None,
    out: Annotated[Path | None, typer.Option(metavar="GPU.toml", help="Write the description here.")] = None,
    base: Annotated[
        str,
        typer.Option("--base", "--gpu", metavar="NAME|FILE", help="Whose data-sheet facts the description takes over."),
    ] = "h200-sxm",
    device: Annotated[int | None, typer.Option(hidden=True)] = None,
    passive: Annotated[bool, typer.Option("--passive", hidden=True)] = False,
    active: Annotated[bool, typer.Option("--active", hidden=True)] = False,
    budget: Annotated[str | None, typer.Option(hidden=True)] = None,
    record: Annotated[Path | None, typer.Option(hidden=True)] = None,
    replay: Annotated[Path | None, typer.Option(hidden=True)] = None,
    json: output.JsonOption = False,
) -> None:
    """Fit a GPU description to measured rows; without --rows to those that the package ships."""
    _refuse_reserved(device=device, passive=passive, active=active, budget=budget, record=record, replay=replay)
    files = [*(rows or ()), *(more_rows or ())]
    if out is None:
        raise InputError("calibrate needs a file to write", key="--out", remedy="Give --out GPU.toml.")
    if files and not rows:
        raise InputError(f"unexpected {files[0]}", remedy=f"Give --rows {files[0]}.")
    if not out.parent.is_dir():  # known before the fit, which takes half a minute
        raise InputError("no such folder", file=str(out.parent), key="--out", remedy="Create it first.")
    from joulecast.threads import use_one_thread

    use_one_thread()
    from joulecast.calibrate.from_rows import fit_rows, parameter_reports, report_dict
    from joulecast.model.description_writer import dump_description

    output.progress(f"fitting {', '.join(str(file) for file in files) or 'the shipped rows'}")
    fit = fit_rows(files, base=base, name=out.stem if files else "")
    output.write_file(out, dump_description(fit.description.to_dict()))
    aside = f", left out {fit.left_out} that only validate" if fit.left_out else ""
    output.progress(f"fitted {fit.rows} rows{aside}; wrote {out}")
    if json:
        output.print_json({"out": str(out), **report_dict(fit)})
    else:
        output.print_table([asdict(report) for report in parameter_reports(fit)])


def _refuse_reserved(**options: Any) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            raise NotYetError(
                "measuring on a GPU does not exist yet", key=f"--{name}", remedy="Fit recorded rows with --rows FILE."
            )
