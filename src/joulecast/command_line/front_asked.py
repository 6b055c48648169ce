"""What ``joulecast front`` is asked, which kind of front that is, and which options do not go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulecast.command_line import output
from joulecast.command_line.destinations import check_destinations
from joulecast.errors import InputError, UnknownNameError
from joulecast.files import check_new_folder

if TYPE_CHECKING:
    from joulecast.plan.knobs.front_space import FrontSpace
    from joulecast.simulator.plan_file.plan import Plan

#: Kinds of fronts: of a plan's or a profile's instructions, over limits of a whole job, and over limits of ranks.
PLAN, PROFILE, JOB_LIMITS, RANK_LIMITS = "a plan", "a profile", "power limits of a job", "power limits of ranks"
#: Format of power limits of a whole job.
ZEUS_LIMITS = "zeus-power-limit"
#: Format that is a folder.
ZEUS_PFO = "zeus-pfo"

_INSTRUCTIONS = (PLAN, PROFILE)
_LIMITS = (JOB_LIMITS, RANK_LIMITS)
#: Options that not every kind of front takes.
_TAKEN_BY: dict[str, tuple[str, ...]] = {
    "settings": (PLAN, *_LIMITS),
    "space": (PLAN, RANK_LIMITS),
    "switch_time": _INSTRUCTIONS,
    "schedule": (PROFILE,),
    "microbatches": (PROFILE,),
    "dag": (PROFILE,),
    "wait_power": (PROFILE,),
    "stages": (PROFILE,),
    "virtual_stages": (PROFILE,),
    "transfer_time": (PROFILE,),
    "time_limit": (*_INSTRUCTIONS, RANK_LIMITS),
    "simple": _INSTRUCTIONS,
    "straggler_time": _INSTRUCTIONS,
    "slow_rank": _INSTRUCTIONS,
    "power_budget": (RANK_LIMITS,),
    "eta": _LIMITS,
    "epochs": (JOB_LIMITS,),
    "samples": (JOB_LIMITS,),
    "job": (JOB_LIMITS,),
    "gpus": (JOB_LIMITS,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontAsked:
    """The options of ``joulecast front``; ``None``, or nothing in it: not given."""

    plan: Annotated[Path | None, typer.Argument(metavar="PLAN.toml", help="The plan, to be forecast.")] = None
    settings: output.SetOption = None
    space: Annotated[
        Path | None, typer.Option(metavar="SPACE.toml", help="Clocks or limits, overlap and tiles to choose from.")
    ] = None
    switch_time: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="S", help="Time of a change of clock [s]; stages of shorter instructions keep one."
        ),
    ] = None
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Measured stage,instruction,frequency,time,energy.")
    ] = None
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="gpipe, 1f1b (by default), interleaved-1f1b, zb-h1, zb-v, dualpipe(-v); of a profile.",
        ),
    ] = None
    microbatches: Annotated[int | None, typer.Option(min=1, metavar="N", help="Micro-batches of an iteration.")] = None
    dag: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Your own graph of instructions, not a schedule.")
    ] = None
    wait_power: Annotated[float | None, typer.Option(min=0.0, metavar="W", help="Power of a GPU that waits [W].")] = (
        None
    )
    stages: Annotated[str | None, typer.Option(metavar="0,1,…", help="Stages of the profile to use.")] = None
    virtual_stages: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stages on each rank, for interleaved schedules.")
    ] = None
    transfer_time: Annotated[
        float | None, typer.Option(min=0.0, metavar="S", help="Time of a transfer between stages [s].")
    ] = None
    time_limit: Annotated[float | None, typer.Option(min=0.0, metavar="S", help="Leave out slower plans [s].")] = None
    simple: Annotated[
        str | None,
        typer.Option(
            metavar="stage|steady|rank",
            help="One clock for each stage and direction (stage), so in the steady state alone (steady), or for each"
            " stage (rank).",
        ),
    ] = None
    straggler_time: Annotated[
        list[float] | None,
        typer.Option(metavar="S", min=0.0, help="Also the plan for iterations that something else makes last S [s]."),
    ] = None
    slow_rank: Annotated[
        str | None, typer.Option(metavar="R=1.2|R=1100MHz", help="A rank that is slower, or whose clock is held.")
    ] = None
    power_limits: Annotated[
        str | None,
        typer.Option(metavar="W,W,…|FILE.csv", help="One limit for the whole job: of a plan, or as measured."),
    ] = None
    per_rank: Annotated[
        bool, typer.Option("--per-rank", help="A limit for each pipeline rank: these, or the board's range in steps.")
    ] = False
    power_budget: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="W", help="What the limits of all GPUs may be together [W]; with --per-rank."),
    ] = None
    eta: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, metavar="WEIGHT", help="Choose a limit: weight of energy against time, 0 to 1."),
    ] = None
    epochs: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="batch_size,epochs: limits and batch sizes to the target.")
    ] = None
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Sequences of an epoch, with a plan and --epochs.")
    ] = None
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Which job of measured power limits.")] = None
    gpus: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="GPUs of measured power limits, by default 1.")
    ] = None
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="Of FILE: json, csv, parquet, zeus-pfo, zeus-power-limit."),
    ] = None
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file (zeus-pfo: a new folder).")] = None
    report: output.ReportOption = None
    json: output.JsonOption = False
    csv: output.CsvOption = False

    def kind(self, space: FrontSpace | None) -> str:
        """Which kind of front this is.

        Raises
        ------
        InputError
            Neither a plan nor a profile, both, or an option that does not go with this kind.
        """
        found = self._kind(space)
        if found in _INSTRUCTIONS and self.plan is None and self.profile is None:
            raise InputError("give either a plan or --profile", remedy="See joulecast front --help.")
        for name, kinds in _TAKEN_BY.items():
            value = getattr(self, name)
            if value is not None and value != [] and found not in kinds:
                _refuse(name, found, kinds)
        self._check(found)
        return found

    def _check(self, kind: str) -> None:
        """Refuse files that are missing, too many, or do not take what is asked of them."""
        if kind in _INSTRUCTIONS and self.plan is not None and self.profile is not None:
            raise InputError("give either a plan or --profile", remedy="See joulecast front --help.")
        if kind == RANK_LIMITS and self.plan is None:
            raise InputError("a plan is missing", remedy="Limits of ranks are forecast: give a PLAN.toml.")
        if self.profile is not None and self.power_limits is not None:
            raise InputError("a profile has no power limits", key="--power-limits", remedy="Leave one of them out.")
        for option, value, wrong, home in (
            ("--set", self.settings or None, self.plan is None, "a plan"),
            ("--job", self.job, self.plan is not None, "measured power limits, not to a plan"),
            ("--gpus", self.gpus, self.plan is not None, "measured power limits, not to a plan"),
        ):
            if wrong and value is not None:
                raise InputError(f"belongs to {home}", key=option, remedy="Leave it out.")

    def _kind(self, space: FrontSpace | None) -> str:
        if self.per_rank or self.power_budget is not None or (space is not None and space.power_limits_w is not None):
            return RANK_LIMITS
        if self.power_limits is not None or self.form == ZEUS_LIMITS:
            return JOB_LIMITS
        return PLAN if self.profile is None else PROFILE

    def check_files(self) -> None:
        """Refuse files to write that are read, or could not be written."""
        outputs = {"--report": self.report, "--out": None if self.form == ZEUS_PFO else self.out}
        if self.form == ZEUS_PFO and self.out is not None:
            check_new_folder(self.out, "--out")
        limits = None if self.power_limits is None else Path(self.power_limits)
        check_destinations(outputs, [self.plan, self.space, self.profile, self.dag, self.epochs, limits])

    def loaded_space(self) -> FrontSpace | None:
        """The choices of a SPACE.toml, where one was given."""
        from joulecast.plan.knobs.front_space import load_space

        return None if self.space is None else load_space(self.space)

    def loaded_plan(self, more: Sequence[str] = ()) -> Plan:
        """The plan, with some more settings."""
        from joulecast.simulator.plan_file.plan import load_plan

        if self.plan is None:
            raise InputError("a plan is missing", remedy="This format needs a PLAN.toml.")
        return load_plan(self.plan, [*(self.settings or ()), *more])


def checked_form(form: str | None, out: Path | None) -> str | None:
    """Format of the file: as asked, else by its ending.

    Raises
    ------
    InputError
        No such format, or one that needs a file, or an ending that means none.
    """
    from joulecast.plan.exact.exports import format_of, formats

    known = (*formats(), ZEUS_LIMITS)
    if form is not None and form not in known:
        raise UnknownNameError("format", form, known, key="--format")
    if form in ("parquet", ZEUS_PFO) and out is None:
        raise InputError(f"{form} is written to files", key="--out", remedy="Say where with --out.")
    if form is None and out is not None:
        return format_of(out)
    return form


def _refuse(name: str, kind: str, kinds: Sequence[str]) -> None:
    option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
    if kind in _INSTRUCTIONS and JOB_LIMITS in kinds and not set(kinds) & set(_INSTRUCTIONS):
        raise InputError("belongs to power limits", key=option, remedy="Add --power-limits, or leave it out.")
    raise InputError(f"belongs to {' or '.join(kinds)}, not to {kind}", key=option, remedy="Leave it out.")
