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
        list[Path] | None, typer.Option(metavar="FILE…", help="Measured rows (JSON lines); several may follow.")
    ] = None,
    more_rows: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None,
    out: Annotated[Path | None, typer.Option(metavar="GPU.toml", help="Write the description here.")] = None,
    gpu: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Whose data-sheet facts the description takes over.")
    ] = "h200-sxm",
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
    if not out.parent.is_dir():  # known before the fit, which takes half a minute
        raise InputError("no such folder", file=str(out.parent), key="--out", remedy="Create it first.")
    from joulecast.calibrate.describe import fit_description
    from joulecast.calibrate.rows import read_rows
    from joulecast.model.catalogue import load_gpu
    from joulecast.model.description_writer import dump_description

    base = load_gpu(gpu)
    measured = read_rows(files)
    output.progress(f"fitting {len(measured)} rows of {', '.join(str(file) for file in files)}")
    provenance = f"fitted from {', '.join(file.name for file in files)}"
    fitted = fit_description(measured, base, name=out.stem, provenance=provenance)
    output.write_file(out, dump_description(fitted.to_dict()))
    output.progress(f"wrote {out}")
    if json:
        output.print_json(fitted.to_dict())
    else:
        rows_of = [asdict(row) for row in fitted.rows() if row.table != "device"]
        output.print_table([{k: row[k] for k in ("table", "name", "value", "sd", "unit", "status")} for row in rows_of])


def _refuse_reserved(**options: Any) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            raise NotYetError(
                "measuring on a GPU does not exist yet", key=f"--{name}", remedy="Fit recorded rows with --rows FILE."
            )
