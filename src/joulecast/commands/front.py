"""``joulecast front``: the time-energy front of a pipeline, from forecasts or from a measured profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast import output
from joulecast.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from joulecast.front_reports import LimitsAsked
    from joulecast.plan.exact_front import Front
    from joulecast.simulator.plan import Plan

FORMATS = ("json", "csv", "parquet", "zeus-pfo", "zeus-power-limit")
#: Lines of the table for people.
LINES = 20


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("front")(front)


def front(
    plan: Annotated[Path | None, typer.Argument(metavar="[PLAN.toml]", help="The plan, to be forecast.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override one value of the plan.")
    ] = None,
    space: Annotated[
        Path | None, typer.Option(metavar="SPACE.toml", help="Clocks, knobs of overlap and tiles to choose from.")
    ] = None,
    switch_time: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="S", help="Time of a change of clock [s]; stages of shorter instructions keep one."
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Measured stage,instruction,frequency,time,energy.")
    ] = None,
    schedule: Annotated[str, typer.Option(help="gpipe, 1f1b, interleaved-1f1b, zb-h1.")] = "1f1b",
    microbatches: Annotated[int | None, typer.Option(min=1, help="Micro-batches of an iteration.")] = None,
    dag: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Your own graph of instructions, not a schedule.")
    ] = None,
    wait_power: Annotated[float | None, typer.Option(min=0.0, help="Power of a GPU that waits [W].")] = None,
    stages: Annotated[str | None, typer.Option(metavar="0,1,…", help="Stages of the profile to use.")] = None,
    virtual_stages: Annotated[int, typer.Option(min=1, help="Stages on each rank, for interleaved schedules.")] = 1,
    transfer_time: Annotated[float, typer.Option(min=0.0, help="Time of a transfer between stages [s].")] = 0.0,
    time_limit: Annotated[float | None, typer.Option(min=0.0, help="Leave out slower plans [s].")] = None,
    simple: Annotated[
        str | None,
        typer.Option(
            help="One clock for each stage and direction (stage), in the steady state (steady), or stage (rank)."
        ),
    ] = None,
    straggler_time: Annotated[
        list[float] | None,
        typer.Option(metavar="T", min=0.0, help="Also the plan for iterations that something else makes last T [s]."),
    ] = None,
    slow_rank: Annotated[
        str | None, typer.Option(metavar="R=1.2|R=1100MHz", help="A rank that is slower, or whose clock is held.")
    ] = None,
    power_limits: Annotated[
        str | None,
        typer.Option(metavar="W,W,…|FILE.csv", help="One limit for the whole job: of a plan, or as measured."),
    ] = None,
    eta: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Choose a limit: weight of energy against time, 0 to 1.")
    ] = None,
    epochs: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="batch_size,epochs: limits and batch sizes to the target.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Sequences of an epoch, with a plan and --epochs.")] = None,
    job: Annotated[str | None, typer.Option(help="Which job of measured power limits.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of measured power limits.")] = 1,
    form: Annotated[str | None, typer.Option("--format", help=f"Of FILE: {', '.join(FORMATS)}.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file (zeus-pfo: a new folder).")] = None,
    report: output.ReportOption = None,
    json: output.JsonOption = False,
    csv: output.CsvOption = False,
) -> None:
    """Plans from the fastest to the one of least energy, each with the least energy that its time allows."""
    form = _form(form, out)
    if power_limits is not None or form == "zeus-power-limit":
        from joulecast.front_reports import LimitsAsked

        if report is not None:
            raise InputError("power limits have no report", key="--report", remedy="Leave one of them out.")
        if power_limits is not None and profile is not None:
            raise InputError("a profile has no power limits", key="--power-limits", remedy="Leave one of them out.")
        asked = LimitsAsked(power_limits, eta, epochs, job, gpus, samples)
        _power_limits(asked, plan, settings, form, out, json, csv)
        return
    _refuse_limit_options(eta, epochs, samples, job)
    if (plan is None) == (profile is None):
        raise InputError("give either a plan or --profile", remedy="See joulecast front --help.")
    if simple not in (None, "stage", "steady", "rank"):
        raise UnknownNameError("kind of simple plan", str(simple), ("stage", "steady", "rank"), key="simple")
    if profile is not None:
        _refuse_plan_options(settings, space)
        made = _of_profile(
            profile, schedule, microbatches, dag, wait_power, stages, virtual_stages, transfer_time,
            switch_time, simple, time_limit,
        )  # fmt: skip
    else:
        from joulecast.plan.forecast_front import forecast_front
        from joulecast.plan.front_space import load_space

        with output.working("finding plans"):
            made = forecast_front(
                _loaded(plan, settings),
                space=None if space is None else load_space(space),
                simple=simple,
                time_limit_s=time_limit,
                switch_s=switch_time,
            )
    extra: dict[str, Any] = {}
    if slow_rank is not None or straggler_time:
        made, extra = _beside_slow_ones(made, slow_rank, straggler_time or (), switch_time or 0.0, simple)
    if out is not None:
        from joulecast.plan.exports import export_front

        gpus = made.problem.gpus_per_rank
        export_front(made, out, form or "json", copies=gpus, gpus_per_rank=gpus)
        output.progress(f"wrote {out}")
    if report is not None:
        from joulecast.reports.write import report_of_front

        loaded = None if plan is None or slow_rank is not None else _loaded(plan, settings)
        report_of_front(made, report, plan=loaded, about=Path(profile or plan or "").name, time_limit_s=time_limit)
    if json or (form == "json" and out is None):
        print_front(made, extra)
    elif csv or (form == "csv" and out is None):
        output.print_csv(made.rows())
    elif out is None:
        print_table(made)
        print_slow_ones(extra)


def print_front(made: Front, extra: Mapping[str, Any] | None = None) -> None:
    """Print a front, and what was asked beside it, as JSON.

    One point a line: indented, a large front would have a line for every clock.
    """
    import json

    from joulecast.plan.exports import front_dict

    parts = []
    for key, value in (front_dict(made) | dict(extra or {})).items():
        text = [json.dumps(entry, ensure_ascii=False, allow_nan=False) for entry in value] if key == "points" else None
        whole = (
            json.dumps(value, ensure_ascii=False, allow_nan=False) if text is None else "[\n" + ",\n".join(text) + "]"
        )
        parts.append(f"{json.dumps(key)}: {whole}")
    print("{" + ",\n".join(parts) + "}")


def print_table(made: Front) -> None:
    """Print a front for people: some of its points, and how far they are from the bound."""
    points = made.points
    mean = sum(p.gap for p in points) / len(points)
    chosen = sorted({round(i * (len(points) - 1) / max(LINES - 1, 1)) for i in range(LINES)})
    print(
        f"{len(points)} plans of {made.problem.dag.instructions} instructions, "
        f"{100.0 * mean:.2g} % above the lower bound on average, {100.0 * max(p.gap for p in points):.2g} % at most\n"
    )
    output.print_table([_line(made, i) for i in chosen])
    if made.problem.notes:
        print("\nAssumed: " + "; ".join(made.problem.notes) + ".")


def print_slow_ones(extra: Mapping[str, Any]) -> None:
    """Print what stragglers and a slow rank let a pipeline save."""
    rows = [("straggler", row) for row in extra.get("stragglers", ())]
    slow = extra.get("slow_rank")
    if slow is not None:
        own = slow["own"] | {"saved_by_reacting_share": slow["own_saved_share"]}
        rows += [("slow rank's pipeline", own), ("its replicas", slow["replica"])]
    lines = [
        {
            "plan for": name,
            "iteration [s]": row["time_s"],
            "plan [s]": row["plan_time_s"],
            "energy [J]": row["energy_j"],
            "saved against the fastest plan [%]": round(100.0 * row["saved_by_reacting_share"], 2),
            "saved against highest clocks [%]": round(100.0 * row["saved_share"], 2),
        }
        for name, row in rows
    ]
    if lines:
        print()
        output.print_table(lines)


def _line(made: Front, index: int) -> dict[str, Any]:
    point, fastest = made.points[index], made.points[0]
    clocks = [clock for order in made.clocks_mhz(point) for clock in order]
    return {
        "time [s]": point.time_s,
        "energy [J]": point.energy_j,
        "bound [J]": point.lower_bound_j,
        "slower [%]": round(100.0 * (point.time_s / fastest.time_s - 1.0), 2),
        "energy saved [%]": round(100.0 * (1.0 - point.energy_j / fastest.energy_j), 2),
        "mean clock [MHz]": round(sum(clocks) / len(clocks)),
    }


def _of_profile(
    profile: Path,
    schedule: str,
    microbatches: int | None,
    dag: Path | None,
    wait_power: float | None,
    stages: str | None,
    virtual_stages: int,
    transfer_s: float,
    switch_s: float | None,
    simple: str | None,
    time_limit_s: float | None,
) -> Front:
    from joulecast.plan.dag_file import load_dag
    from joulecast.plan.profile_front import problem_from_profile
    from joulecast.plan.switching import front_of_problem
    from joulecast.simulator.plan_schema import SCHEDULE_ALIASES

    if wait_power is None:
        raise InputError("the waiting power is missing", key="--wait-power", remedy="Give it in watts for one GPU.")
    if dag is None and microbatches is None:
        raise InputError("the number of micro-batches is missing", key="--microbatches", remedy="Give it, or --dag.")
    name = schedule.lower()
    problem = problem_from_profile(
        profile,
        None if dag is None else load_dag(dag),
        schedule=SCHEDULE_ALIASES.get(name, name),
        microbatches=microbatches or 1,
        wait_power_w=wait_power,
        stages=None if stages is None else _stages(stages),
        virtual_stages_per_rank=virtual_stages,
        transfer_s=transfer_s,
    )
    return front_of_problem(problem, switch_s=switch_s or 0.0, simple=simple, time_limit_s=time_limit_s)


def _stages(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"{text!r} is no list of stages", key="--stages", remedy="Write it as 0,1,2,7.")
    return [int(part) for part in parts]


def _loaded(plan: Path | None, settings: list[str] | None) -> Plan:
    from joulecast.simulator.plan import load_plan

    if plan is None:
        raise InputError("a plan is missing", remedy="This format needs a PLAN.toml.")
    return load_plan(plan, settings or ())


def _form(form: str | None, out: Path | None) -> str | None:
    """Format of the file: as asked, else by its ending."""
    if form is not None and form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS, key="--format")
    if form in ("parquet", "zeus-pfo") and out is None:
        raise InputError(f"{form} is written to files", key="--out", remedy="Say where with --out.")
    if form is None and out is not None:
        return {".csv": "csv", ".parquet": "parquet"}.get(out.suffix.lower(), "json")
    return form


def _refuse_plan_options(settings: list[str] | None, space: Path | None) -> None:
    for key, value in (("--set", settings), ("--space", space)):
        if value:
            raise InputError("belongs to a plan, not to a profile", key=key, remedy="Leave it out.")


def _beside_slow_ones(
    made: Front, slow_rank: str | None, times_s: Sequence[float], switch_s: float, simple: str | None
) -> tuple[Front, dict[str, Any]]:
    """The front with the slow rank, and what to report of it and of stragglers."""
    from joulecast.front_reports import slow_rank_report, straggler_report
    from joulecast.plan.switching import front_of_problem

    extra: dict[str, Any] = {}
    if slow_rank is not None:
        made, extra["slow_rank"] = slow_rank_report(
            made, slow_rank, lambda problem: front_of_problem(problem, switch_s=switch_s, simple=simple)
        )
    if times_s:
        extra["stragglers"] = straggler_report(made, times_s)
    return made, extra


def _power_limits(
    asked: LimitsAsked,
    plan: Path | None,
    settings: list[str] | None,
    form: str | None,
    out: Path | None,
    json: bool,
    csv: bool,
) -> None:
    """One power limit for the whole job: its front, or all points as Zeus reads them."""
    from joulecast.front_reports import power_limit_report

    load = None if plan is None else lambda more: _loaded(plan, [*(settings or ()), *more])
    points, report = power_limit_report(asked, load)
    if form == "zeus-power-limit":
        from joulecast.plan.power_limits import export_power_limits, zeus_power_limits

        if out is None:
            print(zeus_power_limits(points), end="")
        else:
            export_power_limits(points, out)
            output.progress(f"wrote {out}")
    elif out is not None:
        raise InputError("power limits are written as zeus-power-limit only", key="--format", remedy="Ask for that.")
    elif json or form == "json":
        output.print_json(report | {"points": [p.to_dict() for p in points]})
    elif csv or form == "csv":
        output.print_csv([p.to_dict() for p in points])
    else:
        print_power_limits(report)


def print_power_limits(report: Mapping[str, Any]) -> None:
    """Print the best power limit of every weight of energy against time, and the chosen one."""
    print(f"Time and energy of {report['of']}; cost = η·energy + (1 − η)·{report['max_power_w']:.0f} W·time\n")
    output.print_table([{k: v for k, v in line.items() if v is not None} for line in report["by_weight"]])
    for size in report["never_reach_the_target"]:
        print(f"left out: batch size {size} (does not always reach the target)")
    if "choice" in report:
        print()
        output.print_pairs(report["choice"].items())


def _refuse_limit_options(eta: float | None, epochs: Path | None, samples: int | None, job: str | None) -> None:
    given = {"--eta": eta, "--epochs": epochs, "--samples": samples, "--job": job}
    for key, value in given.items():
        if value is not None:
            raise InputError("belongs to power limits", key=key, remedy="Add --power-limits, or leave it out.")
