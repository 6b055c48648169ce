"""``joulecast predict``: time, power and energy of one plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.command_line import output
from joulecast.files import check_new_folder

if TYPE_CHECKING:
    from joulecast.simulator.iteration.result import Iteration


def predict(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan.")],
    settings: output.SetOption = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the timeline, to be opened in ui.perfetto.dev.")
    ] = None,
    trace_format: Annotated[
        str, typer.Option(metavar="NAME", help="perfetto, or hta: a folder that Holistic Trace Analysis reads.")
    ] = "perfetto",
    report: output.ReportOption = None,
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Forecast the time, power and energy of one training iteration."""
    from joulecast.command_line.destinations import check_destinations
    from joulecast.simulator.iteration.nearest_fit import forecast_or_nearest
    from joulecast.simulator.plan_file.plan import load_plan

    folder = trace_format == "hta"
    check_destinations({"--report": report, "--trace": None if folder else trace}, [plan])
    if folder and trace is not None:
        check_new_folder(trace, "--trace")
    given = tuple(settings or ())
    iteration = forecast_or_nearest(lambda more: load_plan(plan, (*given, *more)))
    for check in iteration.site.limits if iteration.site else ():
        if not check.met:
            output.progress(f"warning: {check}")
    if trace is not None:
        from joulecast.simulator.traces.iteration_trace import write_iteration_trace

        write_iteration_trace(trace, iteration.plan, iteration.description, trace_format)
        output.progress(f"wrote {trace}")
    if report is not None:
        from joulecast.reports.write import report_of_iteration

        report_of_iteration(iteration, report)
    if json:
        output.print_json(iteration.to_dict())
    elif csv:
        from joulecast.simulator.iteration.result import flat_line

        output.print_csv([flat_line(stage) for stage in iteration.to_dict()["stages"]])
    else:
        print_iteration(iteration)


def print_iteration(iteration: Iteration) -> None:
    """Print a forecast for people."""
    from joulecast.command_line.predict_lines import memory_line, model_name, stage_line
    from joulecast.command_line.site_report import print_site

    number, whole = output.number, iteration.to_dict()
    each = number(whole["power_w"] / whole["gpus"])
    model = model_name(iteration.plan.workload)
    print(f"{model} on {whole['gpus']} x {whole['gpu']}, {whole['tokens']} tokens an iteration\n")
    output.print_pairs(
        [
            ("time", _with_interval(whole, "time_s", "s")),
            ("energy, all GPUs", _with_interval(whole, "energy_j", "J")),
            ("power, all GPUs", f"{_with_interval(whole, 'power_w', 'W')}, {each} W each"),
            ("SM clock, median", f"{number(whole['clock_mhz'])} MHz"),
            ("throughput", f"{number(whole['tokens_per_s'], 5)} tokens/s"),
            ("energy per token", f"{number(whole['energy_per_token_j'])} J"),
            ("model FLOPs", _model_flops(whole)),
        ]
    )
    print("\nOne GPU of each pipeline stage")
    output.print_table([stage_line(stage) for stage in whole["stages"]])
    memory = [memory_line(stage) for stage in whole["stages"]]
    reserved = "; with what PyTorch keeps reserved" if any("with reserved" in line for line in memory) else ""
    print(f"\nMemory of one GPU of each pipeline stage [GB]: what is allocated, and beside it the context{reserved}")
    output.print_table(memory)
    _print_splits(whole)
    print_site(iteration.plan.cluster.gpu, whole["site"])
    output.print_assumed([*whole["assumptions"], *(whole["site"] or {"assumptions": ()})["assumptions"]])


def _print_splits(whole: dict[str, Any]) -> None:
    """Where the energy goes, by component and by instruction, and how long a GPU is at each instruction."""
    from joulecast.command_line.predict_lines import of_all_chunks
    from joulecast.reports.palette import word

    times = of_all_chunks(whole["time_by_instruction_s"])
    for split in ("component", "instruction"):
        print(f"\nEnergy of all GPUs by {split}")
        lines: list[dict[str, Any]] = []
        for name, energy in of_all_chunks(whole[f"energy_by_{split}_j"]).items():
            share = round(100.0 * energy / whole["energy_j"], 1)
            lines.append({split: word(name), "energy [J]": energy, "share [%]": share})
            if split == "instruction":
                lines[-1]["time of the mean GPU [s]"] = times[name]
        output.print_table(lines)


def _model_flops(whole: dict[str, Any]) -> str:
    """What a GPU gets done of the model, and which share of its data sheet's rate that is."""
    rate = f"{output.number(whole['model_flops_per_s'] / 1e12)} TFLOP/s each"
    return rate if whole["mfu"] is None else f"{rate}, {100 * whole['mfu']:.1f} % of the peak"


def _with_interval(whole: dict[str, Any], key: str, unit: str) -> str:
    return f"{output.number(whole[key])} {unit} (5-95 %: {output.ends_of(whole, key)})"
