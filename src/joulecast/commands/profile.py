"""``joulecast profile``: power over the time of a kernel, or of kernels in turn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.command_line import output
from joulecast.errors import InputError
from joulecast.files import write_text

if TYPE_CHECKING:
    from joulecast.calibrate.power_profile.result import MeanPower, PowerProfile

#: Learning a sensor's ways, a search and a few runs take so long at least.
LEAST_BUDGET_S = 30.0


def profile(
    kernels: Annotated[
        list[str],
        typer.Argument(
            metavar="KERNEL…",
            help="gemm:MxNxK:DTYPE, attention:BATCHxHEADSxKVHEADSxSEQUENCExDIMENSION, or a microbenchmark's name;"
            " several run in turn.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write plot and data into this folder.")] = None,
    device: Annotated[str, typer.Option(metavar="0|sim:FILE", help="The card.")] = "0",
    runs: Annotated[
        int | None, typer.Option(min=20, metavar="N", help="Take so many runs, whatever the guidance.")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Never take longer, such as 90s, 4m.")] = "4m",
    outliers: Annotated[bool, typer.Option("--outliers", help="Study the runs that are left out, too.")] = False,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the random rests between runs.")] = 0,
    json: output.JsonOption = False,
) -> None:
    """Measure power over the time of one kernel.

    Finer than the card's power sensor, after the FinGraV method; what cannot be resolved is said.
    """
    began_s, budget_s = time.monotonic(), _budget(budget)
    from joulecast.calibrate.power_profile.campaign import Campaign, Options
    from joulecast.calibrate.power_profile.open_bench import open_bench

    bench, name = open_bench(kernels, device, output.progress)
    try:
        if out is not None:  # known before measuring, which takes minutes
            _prepare(out)
        left_s = budget_s - (time.monotonic() - began_s)
        options = Options(runs=runs, outliers=outliers, seed=seed, budget_s=left_s)
        found = Campaign(bench, options, output.progress).take(name)
    finally:
        bench.close()
    files = {} if out is None else _write(found, out)
    if json:
        output.print_json({**found.summary(), "files": files})
        return
    output.print_pairs(_summary(found))
    for title, lines in (("not resolved", found.unresolved), ("warning", found.warnings)):
        for line in lines:
            print(f"{title}: {line}")
    for file in files.values():
        output.progress(f"wrote {file}")


def _budget(words: str) -> float:
    """Seconds of a budget."""
    from joulecast.calibrate.sessions.duration import seconds

    found = seconds(words)
    if found < LEAST_BUDGET_S:
        raise InputError(
            f"{words} is too short: learning how the sensor works takes some 15 s",
            key="--budget",
            remedy=f"Give {LEAST_BUDGET_S:.0f}s or more.",
        )
    return found


def _prepare(out: Path) -> None:
    from joulecast.calibrate.power_profile.report import can_plot
    from joulecast.command_line.destinations import check_writable

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be made: {error.strerror}",
            file=str(out),
            key="--out",
            remedy="Choose a folder that is yours and has room.",
        ) from error
    check_writable(out, "--out")
    if not can_plot():
        output.progress("there will be no plot: matplotlib is missing (pip install 'joulecast[plot]')")


def _write(found: PowerProfile, out: Path) -> dict[str, str]:
    from joulecast.calibrate.power_profile import report

    files = {"profile": out / "profile.csv", "points": out / "points.csv"}
    write_text(files["profile"], report.curve_csv(found))
    write_text(files["points"], report.points_csv(found))
    if report.can_plot():
        files["plot"] = out / "profile.png"
        report.write_plot(found, files["plot"])
    return {name: str(path) for name, path in files.items()}


def _summary(found: PowerProfile) -> list[tuple[str, Any]]:
    run = found.curves["run"]
    pairs = [
        ("kernels", " + ".join(found.kernels)),
        ("device", found.device),
        ("execution time", f"{found.execution_s * 1e6:.2f} µs"),
        (f"power at steady time (execution {found.sse_index + 1})", _power(found.sse)),
        (f"power at steady power (from execution {found.ssp_index + 1})", _power(found.ssp)),
        ("energy per execution", f"{found.energy_j:.4g} ± {found.energy_error_j:.2g} J"),
        ("time to steady power", "-" if found.time_to_ssp_s is None else f"{found.time_to_ssp_s * 1e3:.3g} ms"),
        ("golden runs", f"{found.golden_runs} of {found.runs}, {found.passes} executions each"),
    ]
    pairs += [
        (f"resolution of the {name} profile", f"{curve.resolution_s * 1e3:.3g} ms")
        for name, curve in found.curves.items()
    ]
    if run.trend is not None:
        pairs.append(("trend of the run, degree 4", " ".join(f"{c:.1f}" for c in run.trend.coefficients_w) + " W"))
    pairs += [
        (
            f"sensor {s.name}",
            f"every {s.period_s * 1e3:.3g} ms over {s.window_s * 1e3:.3g} ms, {s.lag_s * 1e3:.3g} ms late",
        )
        for s in found.sensors
    ]
    clock = found.clock
    pairs.append(
        (
            "clocks tied to",
            f"± {clock.standard_error_s * 1e6:.2f} µs, at most {clock.bound_s * 1e6:.1f} µs more,"
            f" drift {clock.drift * 1e6:.2f} ± {clock.drift_standard_error * 1e6:.2f} ppm",
        )
    )
    return pairs + _parts(found)


def _parts(found: PowerProfile) -> list[tuple[str, Any]]:
    """Shares of a sequence's kernels, components, and runs that were left out."""
    pairs: list[tuple[str, Any]] = [
        (
            f"share of {s.name}",
            f"{s.time_s * 1e6:.2f} µs, "
            + ("power not resolved" if s.power is None else f"{_power(s.power)}, {s.energy_j:.4g} J"),
        )
        for s in found.shares
    ]
    pairs += [
        (f"component {name}", f"{_power(a)} at steady time, {_power(b)} at steady power")
        for name, (a, b) in found.components.items()
    ]
    pairs += [
        (
            f"outliers of {group.execution_s * 1e6:.2f} µs",
            f"{group.runs} runs"
            + ("" if group.power_w is None else f", {group.power_w:.1f} ± {group.standard_error_w:.1f} W"),
        )
        for group in found.outliers
    ]
    return pairs


def _power(mean: MeanPower) -> str:
    note = "" if mean.resolved else f" (not resolved; mean over {mean.over_s * 1e3:.3g} ms)"
    return f"{mean.power_w:.1f} ± {mean.standard_error_w:.1f} W{note}"
