"""``joulecast calibrate``: a GPU description from measurements."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.command_line import output
from joulecast.command_line.destinations import check_destinations
from joulecast.command_line.options import command_of
from joulecast.errors import InputError, counted
from joulecast.files import write_text

if TYPE_CHECKING:
    from joulecast.calibrate.descriptions.describe import RowsFit
    from joulecast.calibrate.sessions.session import Outcome


#: Time to measure unless another is wanted.
BUDGET = "5m"
#: What is read of folders.
_IN_FOLDERS = ("*.jsonl", "*.csv", "*/*.jsonl", "base.toml")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("calibrate")(command_of(calibrate, CalibrateAsked))


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateAsked:
    """The options of ``joulecast calibrate``."""

    rows: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE…", help="Fit these measured rows (JSON lines), several may follow."),
    ] = None
    kernels: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Rows of kernels of your own, which --base has in place of the library's."),
    ] = None
    more_rows: Annotated[list[Path] | None, typer.Argument(hidden=True, metavar="FILE")] = None
    device: Annotated[
        str | None, typer.Option(metavar="CARD", help="Measure this card: 0, nvml:0, amd:0 or sim:FILE.")
    ] = None
    replay: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Fit a recording again, alone or beside --rows.")
    ] = None
    out: Annotated[Path | None, typer.Option(metavar="GPU.toml", help="Write the description here.")] = None
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Record here; a recording that is there is continued: give a new folder to begin anew."
        ),
    ] = None
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Time to measure, such as 90s or 1h; by default {BUDGET}.")
    ] = None
    active: Annotated[
        bool,
        typer.Option("--active/--passive", help="Also set clocks and power limits, and give them back at the end."),
    ] = False
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before settings are changed.")] = False
    gpus: Annotated[str, typer.Option(metavar="N,N", help="Also measure collectives among so many GPUs.")] = ""
    alone: Annotated[
        bool, typer.Option("--alone", help="Learn nothing from the shipped recordings of other cards of this kind.")
    ] = False
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the description.")] = None
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            "--gpu",
            metavar="NAME|FILE",
            callback=output.known_gpu,
            help="Whose data-sheet facts the description takes over.",
        ),
    ] = None
    report_json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the fit report as JSON.")] = None
    report: output.ReportOption = None
    everything: Annotated[bool, typer.Option("--all", help="Report what the rows do not identify as well.")] = False
    json: output.JsonOption = False

    @property
    def files(self) -> list[Path]:
        """All files of rows."""
        return [*(self.rows or ()), *(self.more_rows or ())]


def calibrate(asked: CalibrateAsked) -> None:
    """Fit a GPU description to your card, or to measured rows.

    The card is measured (--device), or rows that were measured are fitted (--rows, --replay); without either, the
    rows that are shipped. --kernels leaves a description as it is but for kernels of your own.
    """
    _check(asked)
    if asked.kernels:
        _describe_kernels(asked)
        return
    from joulecast.extras import require

    require("scipy", "tomlkit")  # who lacks what the fit needs learns so before the card is measured, not after
    live: dict[str, Any] = {}
    if asked.device is not None:
        folder, outcome = _measured(asked, asked.device)
        live = {"recording": str(folder), "session": outcome}
        fit = _replayed(asked, folder)
    elif asked.replay is not None:
        fit = _replayed(asked, asked.replay, asked.files)
    else:
        fit = _fitted(asked)
    _answer(asked, fit, live)
    if asked.report is not None:
        from joulecast.reports.pages.calibrate import calibrate_page
        from joulecast.reports.write import write_report

        write_report(calibrate_page(fit), asked.report)


def _check(asked: CalibrateAsked) -> None:
    from joulecast.calibrate.sessions.duration import seconds

    given = {"--kernels": asked.kernels, "--rows": asked.rows, "--device": asked.device, "--replay": asked.replay}
    used = [option for option, value in given.items() if value]
    if len(used) > 1 and used != ["--rows", "--replay"]:  # what was measured before counts beside a recording
        raise InputError(f"{' and '.join(used)} exclude each other", key=used[0], remedy="Give one of them.")
    if asked.files and not asked.rows:
        raise InputError(f"unexpected {asked.files[0]}", remedy=f"Give --rows {asked.files[0]}.")
    if asked.kernels and asked.base is None:
        raise InputError("own kernels are those of a card", key="--kernels", remedy="Give --base NAME.")
    if asked.kernels and (asked.report or asked.report_json):
        raise InputError("only a fit is reported", key="--kernels", remedy="Leave --report and --report-json out.")
    if asked.out is None and not (asked.device or asked.replay):
        raise InputError("calibrate needs a file to write", key="--out", remedy="Give --out GPU.toml.")
    outputs = {"--out": asked.out, "--report-json": asked.report_json, "--report": asked.report}
    check_destinations(outputs, _read_files(asked))
    if asked.budget is not None:
        seconds(asked.budget)  # a wrong one is told before anything is measured or fitted
    for option in ("active", "budget", "gpus", "record", "yes"):
        if getattr(asked, option) and asked.device is None:
            raise InputError("only a card can be measured so", key=f"--{option}", remedy="Give --device 0.")
    if asked.alone and asked.device is None and asked.replay is None:
        raise InputError("rows alone learn from no other card", key="--alone", remedy="Leave the option out.")


def _read_files(asked: CalibrateAsked) -> list[Path]:
    """Files that no output may take the place of."""
    named = (asked.replay, asked.record, *asked.files, *(asked.kernels or ()))
    given = [path for path in named if path is not None]
    if asked.device is not None and asked.device.startswith("sim:"):
        given.append(Path(asked.device.removeprefix("sim:")))
    inside = (path.glob(pattern) for path in given if path.is_dir() for pattern in _IN_FOLDERS)
    return [*given, *(file for files in inside for file in files)]


def _describe_kernels(asked: CalibrateAsked) -> None:
    from joulecast.calibrate.descriptions.own_kernels import own_kernel_lines, with_own_kernels
    from joulecast.calibrate.rows.measured import read_rows
    from joulecast.model.hardware.catalogue import load_gpu
    from joulecast.model.hardware.description_writer import dump_description

    rows = read_rows(asked.kernels or ())
    described = with_own_kernels(rows, load_gpu(str(asked.base)), asked.name or "")
    if asked.out is not None:
        write_text(asked.out, dump_description(described.to_dict()))
    output.progress(f"read {counted(len(rows), 'row')}; wrote {asked.out}")
    lines = own_kernel_lines(described)
    if asked.json:
        output.print_json({"out": str(asked.out), "kernels": lines})
    else:
        output.print_table(lines, title=f"Own kernels of {described.name}")


def _measured(asked: CalibrateAsked, device: str) -> tuple[Path, Outcome]:
    from joulecast.calibrate.sessions.duration import seconds
    from joulecast.calibrate.sessions.live import LiveOptions, measure_card

    options = LiveOptions(
        device, asked.record, asked.base, seconds(asked.budget or BUDGET), asked.active, asked.gpus, asked.alone
    )
    try:
        return measure_card(options, output.progress, lambda question: asked.yes or _agrees(question))
    except KeyboardInterrupt:  # which has said what is kept
        raise typer.Exit(130) from None


def _agrees(question: str) -> bool:
    """Ask on the terminal; who cannot be asked does not agree."""
    if not sys.stdin.isatty():
        output.progress(f"{question} Nobody can be asked here: give --yes to agree.")
        return False
    return typer.confirm(question, default=False, err=True)


def _replayed(asked: CalibrateAsked, folder: Path, rows: Sequence[Path] = ()) -> RowsFit:
    from joulecast.calibrate.rows.measured import read_rows
    from joulecast.calibrate.sessions.replay import fit_folder, read_folder

    for warning in read_folder(folder).warnings:
        output.progress(f"warning: {warning}")
    output.progress(f"fitting {', '.join(map(str, [folder, *rows]))}")
    return fit_folder(folder, base=asked.base, name=asked.name, rows=read_rows(list(rows)), alone=asked.alone)


def _fitted(asked: CalibrateAsked) -> RowsFit:
    from joulecast.calibrate.descriptions.from_rows import SHIPPED_BASE, fit_rows

    files, stem = asked.files, asked.out.stem if asked.files and asked.out else ""
    output.progress(f"fitting {', '.join(str(file) for file in files) or 'the shipped rows'}")
    return fit_rows(files, base=asked.base or SHIPPED_BASE, name=asked.name or stem)


def _answer(asked: CalibrateAsked, fit: RowsFit, live: dict[str, Any]) -> None:
    from dataclasses import asdict
    from json import dumps

    from joulecast.calibrate.descriptions.from_rows import parameter_reports, report_dict
    from joulecast.calibrate.rows.unread import unread_lines
    from joulecast.calibrate.sessions.report import report_text
    from joulecast.model.hardware.description_writer import dump_description

    out = asked.out
    if out is not None:
        write_text(out, dump_description(fit.description.to_dict()))
    aside = f", left out {fit.left_out} that only validate" if fit.left_out else ""
    for line in unread_lines(fit.unread):
        output.progress(f"warning: {line}")
    output.progress(f"fitted {counted(fit.rows, 'row')}{aside}{f'; wrote {out}' if out else ''}")
    if live:
        live["session"] = asdict(live["session"])
    report = {"out": None if out is None else str(out), **live, **report_dict(fit)}
    if asked.report_json is not None:
        write_text(asked.report_json, dumps(output.plain(report), indent=2, ensure_ascii=False) + "\n")
    if asked.json:
        output.print_json(report)
    else:
        print(report_text(parameter_reports(fit), everything=asked.everything))
