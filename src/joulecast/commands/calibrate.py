"""``joulecast calibrate``: a GPU description from measurements."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast import output
from joulecast.errors import InputError
from joulecast.files import write_text

if TYPE_CHECKING:
    from joulecast.calibrate.choose.session import Outcome
    from joulecast.calibrate.describe import RowsFit


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("calibrate")(calibrate)


def calibrate(
    rows: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE…", help="Fit these measured rows (JSON lines), several may follow."),
    ] = None,
    more_rows: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None,
    device: Annotated[
        str | None, typer.Option(metavar="CARD", help="Measure this card: 0, nvml:0, amd:0 or sim:FILE.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Fit a recording again, alone or beside --rows.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="GPU.toml", help="Write the description here.")] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Record here; a recording that is there already is continued.")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time to measure, such as 90s, 5m, 1h.")] = "5m",
    active: Annotated[
        bool,
        typer.Option("--active/--passive", help="Also set clocks and power limits, and give them back at the end."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before settings are changed.")] = False,
    gpus: Annotated[str, typer.Option(metavar="N,N", help="Also measure collectives among so many GPUs.")] = "",
    alone: Annotated[
        bool, typer.Option("--alone", help="Learn nothing from the shipped recordings of other cards of this kind.")
    ] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the description.")] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", "--gpu", metavar="NAME|FILE", help="Whose data-sheet facts the description takes over."),
    ] = None,
    report_json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the fit report as JSON.")] = None,
    report: output.ReportOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Report what the rows do not identify as well.")] = False,
    json: output.JsonOption = False,
) -> None:
    """Calibrate a GPU description: measure a card, or fit recorded rows; without either, the rows that are shipped."""
    files = [*(rows or ()), *(more_rows or ())]
    _check(files, rows=rows, device=device, replay=replay, out=out, report_json=report_json)
    _check_live(device, active=active, gpus=gpus, record=record, yes=yes)
    from joulecast.threads import use_one_thread

    use_one_thread()
    live: dict[str, Any] = {}
    if device is not None:
        folder, outcome = _measured(device, record, base, budget, active, gpus, yes, alone)
        live = {"recording": str(folder), "session": outcome}
        fit = _replayed(folder, base, name, alone=alone)
    elif replay is not None:
        fit = _replayed(replay, base, name, files, alone=alone)
    else:
        fit = _fitted(files, base, name or (out.stem if files and out else None))
    _answer(fit, live, out, report_json, json=json, everything=everything)
    if report is not None:
        from joulecast.reports.write import report_of_fit

        report_of_fit(fit, report)


def _check(
    files: list[Path], *, rows: object, device: object, replay: object, out: Path | None, report_json: Path | None
) -> None:
    given = {"--rows": rows, "--device": device, "--replay": replay}
    used = [option for option, value in given.items() if value]
    if len(used) > 1 and used != ["--rows", "--replay"]:  # what was measured before counts beside a recording
        raise InputError(f"{' and '.join(used)} exclude each other", key=used[0], remedy="Give one of them.")
    if files and not rows:
        raise InputError(f"unexpected {files[0]}", remedy=f"Give --rows {files[0]}.")
    if out is None and not (device or replay):
        raise InputError("calibrate needs a file to write", key="--out", remedy="Give --out GPU.toml.")
    for option, file in (("--out", out), ("--report-json", report_json)):  # known before minutes of measuring
        if file is not None and not file.parent.is_dir():
            raise InputError("no such folder", file=str(file.parent), key=option, remedy="Create it first.")


def _check_live(device: str | None, **options: Any) -> None:
    for option, value in options.items():
        if value and device is None:
            raise InputError("only a card can be measured so", key=f"--{option}", remedy="Give --device 0.")


def _measured(
    device: str, record: Path | None, base: str | None, budget: str, active: bool, gpus: str, yes: bool, alone: bool
) -> tuple[Path, Outcome]:
    from joulecast.calibrate.choose.duration import seconds
    from joulecast.calibrate.choose.live import LiveOptions, measure_card

    options = LiveOptions(device, record, base, seconds(budget), active, gpus, alone)
    try:
        return measure_card(options, output.progress, lambda question: yes or _agrees(question))
    except KeyboardInterrupt:
        output.progress("interrupted: what was measured is kept, and the same command goes on from there")
        raise typer.Exit(130) from None


def _agrees(question: str) -> bool:
    """Ask on the terminal; who cannot be asked does not agree."""
    if not sys.stdin.isatty():
        output.progress(f"{question} Nobody can be asked here: give --yes to agree.")
        return False
    return typer.confirm(question, default=False, err=True)


def _replayed(
    folder: Path, base: str | None, name: str | None, rows: Sequence[Path] = (), *, alone: bool = False
) -> RowsFit:
    from joulecast.calibrate.choose.replay import fit_folder, read_folder
    from joulecast.calibrate.rows import read_rows

    for warning in read_folder(folder).warnings:
        output.progress(f"warning: {warning}")
    output.progress(f"fitting {', '.join(map(str, [folder, *rows]))}")
    return fit_folder(folder, base=base, name=name, rows=read_rows(list(rows)), alone=alone)


def _fitted(files: list[Path], base: str | None, name: str | None) -> RowsFit:
    from joulecast.calibrate.from_rows import SHIPPED_BASE, fit_rows

    output.progress(f"fitting {', '.join(str(file) for file in files) or 'the shipped rows'}")
    return fit_rows(files, base=base or SHIPPED_BASE, name=name or "")


def _answer(
    fit: RowsFit, live: dict[str, Any], out: Path | None, report_json: Path | None, *, json: bool, everything: bool
) -> None:
    from dataclasses import asdict
    from json import dumps

    from joulecast.calibrate.choose.report import report_text
    from joulecast.calibrate.from_rows import parameter_reports, report_dict
    from joulecast.model.description_writer import dump_description

    if out is not None:
        write_text(out, dump_description(fit.description.to_dict()))
    aside = f", left out {fit.left_out} that only validate" if fit.left_out else ""
    output.progress(f"fitted {fit.rows} rows{aside}{f'; wrote {out}' if out else ''}")
    if live:
        live["session"] = asdict(live["session"])
    report = {"out": None if out is None else str(out), **live, **report_dict(fit)}
    if report_json is not None:
        write_text(report_json, dumps(output.plain(report), indent=2, ensure_ascii=False) + "\n")
    if json:
        output.print_json(report)
    else:
        print(report_text(parameter_reports(fit), everything=everything))
