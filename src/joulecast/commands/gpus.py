"""``joulecast gpus``: the catalogue of GPUs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from joulecast.command_line import output
from joulecast.command_line.shown import add_catalogue


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_catalogue(app, "gpus", "GPUs", list_gpus, show_gpu)


def list_gpus(json: bool, csv: bool) -> None:
    """Print the catalogue of GPUs; of those that cannot be read standard error tells, and the exit status."""
    from joulecast.model.hardware.catalogue import all_gpus, gpu_package, load_gpu

    rows = []
    names, broken = all_gpus()
    for name in names:
        gpu = load_gpu(name)
        rows.append(
            {
                "name": name,
                "vendor": gpu.text("vendor"),
                "architecture": gpu.text("architecture"),
                "sm_count": int(gpu.number("sm_count")),
                "max_clock_mhz": gpu.number("max_clock_mhz"),
                "memory_gb": gpu.number("memory_bytes") / 1e9,
                "bandwidth_tb_per_s": gpu.number("memory_bandwidth_bytes_per_s") / 1e12,
                "power_limit_w": gpu.number("power_limit_w"),
                "parameters": f"derived: {gpu.derivation}" if gpu.derivation else "fitted",
                "package": gpu_package(name) or "joulecast",
            }
        )
    if not (json or csv):
        rows = [_short(row) for row in rows]
    output.print_rows(rows, as_json=json, as_csv=csv)
    if broken:
        for error in broken:
            output.progress(f"error: {error}")
        raise typer.Exit(broken[0].exit_status)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A line that fits a screen: a derived GPU's distance from its relative, and the package of one that is added."""
    how, _, distance = row["parameters"].rstrip(")").rpartition(" (")
    short = {**row, "parameters": f"derived: {distance}" if how else row["parameters"]}
    if short.pop("package") != "joulecast":
        short["parameters"] += f", from package {row['package']}"
    return short


def show_gpu(
    name: Annotated[str, typer.Argument(help="Name in the catalogue, or path of a description (TOML).")],
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Show every number of one GPU with its uncertainty and source."""
    from dataclasses import asdict

    from joulecast.model.hardware.catalogue import gpu_package, load_gpu, read_gpu

    gpu, package, stated = load_gpu(name), gpu_package(name), read_gpu(name)
    rows = [asdict(row) for row in gpu.rows()]
    if json:
        like = {"like": {"name": stated.like, "but_for": list(stated.own)}} if stated.like else {}
        output.print_json(gpu.to_dict() | ({"package": package} if package else {}) | like)
    elif csv:
        output.print_csv(rows)
    else:
        likeness = stated.like and f"like {stated.like} but for {', '.join(stated.own) or 'its name'}"
        remarks = [remark for remark in (likeness, gpu.derivation, package and f"from package {package}") if remark]
        for row in rows:
            row["value"] = _whole(row["value"], row["sd"])
        output.print_table(rows, title=f"{gpu.name} ({'; '.join(remarks)})" if remarks else gpu.name)


def _whole(value: Any, sd: float) -> Any:
    """A number that is known exactly and whole, to be written with all of its digits."""
    return int(value) if isinstance(value, float) and not sd and value.is_integer() else value
