"""The functions behind ``joulecast.predict`` and its siblings; they import what they need when they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import DoesNotFitError, InputError, arguments_for_options

if TYPE_CHECKING:
    from joulecast.calibrate.meter.local_gpus import Card
    from joulecast.calibrate.meter.loop import Meter
    from joulecast.kernels import Gpu
    from joulecast.plan.comparison.compare import Comparison
    from joulecast.plan.exact.front import Front
    from joulecast.plan.fronts.choice_result import JointChoice
    from joulecast.plan.knobs.front_space import FrontSpace
    from joulecast.plan.sweep.result import SweepResult
    from joulecast.simulator.iteration.result import Iteration
    from joulecast.simulator.job_files.convert import Conversion
    from joulecast.simulator.plan_file.plan import Plan


def gpu(name_or_path: str | Path) -> Gpu:
    """A GPU by its name in the catalogue, or from a description file.

    Parameters
    ----------
    name_or_path
        A name that ``joulecast gpus`` lists, or the path of a TOML file.

    Raises
    ------
    UnknownNameError
        No such GPU; the message has the nearest names.
    InputError
        The file cannot be used.
    """
    from joulecast.arguments import name_or_path as checked
    from joulecast.kernels import Gpu
    from joulecast.model.hardware.catalogue import load_gpu

    return Gpu(load_gpu(checked(name_or_path, "name_or_path")))


@arguments_for_options({"--set": "overrides"})
def predict(plan: str | Path | Mapping[str, Any] | Plan, overrides: Sequence[str] | None = ()) -> Iteration:
    """Forecast one training iteration.

    Parameters
    ----------
    plan
        Path of a PLAN.toml, its tables, or a plan already read.
    overrides
        Settings of the form ``table.key=value`` that win over the file.

    Raises
    ------
    InputError
        The plan cannot be used; the message names file, key and remedy.
    DoesNotFitError
        A GPU's memory is too small; the remedy names the nearest plan that fits.
    """
    from joulecast.arguments import texts
    from joulecast.simulator.iteration.nearest_fit import forecast_or_nearest

    given = texts(overrides, "overrides")
    return forecast_or_nearest(lambda more: _loaded(plan, (*given, *more)), alone=False)


@arguments_for_options(
    {"--gpu": "gpu", "--gpus": "gpus", "--model": "model", "--power-limit": "power_limit_w"}
    | {"--pass-over": "pass_over", "--set": "overrides"}
)
def convert(
    job: str | Path | Sequence[str],
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    model: str | None = None,
    power_limit_w: float | None = None,
    environment: Mapping[str, str] | None = None,
    pass_over: Sequence[str] | None = (),
    overrides: Sequence[str] | None = (),
) -> Conversion:
    """A plan of a training job's own configuration; nothing of the job is run.

    Parameters
    ----------
    job
        Path of the job's file, a launch script, a TOML, YAML or JSON; or a command, as one text or as its words.
    gpu, gpus
        The GPU, by name in the catalogue or path of a description, and how many; the latter wins over the job's own.
    model
        Name in the catalogue or path of a ``config.json``, in place of the sizes that the job has.
    power_limit_w
        Of each GPU [W].
    environment
        Variables that the job's environment sets.
    pass_over
        Flags of the user's own, which are not asked about.
    overrides
        Settings of the form ``table.key=value`` that win over the job.

    Raises
    ------
    InputError
        The job cannot be used; the message names file, line, flag and remedy.
    """
    from joulecast.arguments import name_or_path, named, number, texts, whole
    from joulecast.simulator.job_files.asked import Asked
    from joulecast.simulator.job_files.convert import convert_job

    if not isinstance(job, str | Path | list | tuple):
        raise InputError(f"{type(job).__name__} is no job", remedy="Give the path of its file, or its command.")
    asked = Asked(
        None if gpu is None else str(name_or_path(gpu, "gpu")),
        None if gpus is None else whole(gpus, "gpus", least=1),
        None if model is None else str(name_or_path(model, "model")),
        None if power_limit_w is None else number(power_limit_w, "power_limit_w"),
        {name: str(value) for name, value in named(environment, "environment").items()},
        frozenset(texts(pass_over, "pass_over")),
    )
    words = job if isinstance(job, str | Path) else [str(word) for word in job]
    return convert_job(words, asked, texts(overrides, "overrides"))


@arguments_for_options({"--set": "overrides", "--space": "space", "--simple": "simple", "--time-limit": "time_limit_s"})
def front(
    plan: str | Path | Mapping[str, Any] | Plan,
    overrides: Sequence[str] | None = (),
    *,
    space: str | Path | Mapping[str, Any] | None = None,
    simple: str | None = None,
    time_limit_s: float | None = None,
    switch_s: float | None = None,
) -> Front:
    """Time-energy front of a plan, from forecasts.

    Parameters
    ----------
    plan
        Path of a PLAN.toml, its tables, or a plan already read.
    overrides
        Settings of the form ``table.key=value`` that win over the file.
    space
        Path of a SPACE.toml, or its tables, with the clocks, knobs of overlap and tiles to choose from; by default all
        clocks and some numbers of communication blocks.
    simple
        Only plans with one clock for each stage and direction (``"stage"``), in the steady state (``"steady"``), or for
        each stage (``"rank"``).
    time_limit_s
        Leave out slower plans [s].
    switch_s
        Time of a change of clock, below which stages keep one; by default the GPU's [s].

    Raises
    ------
    InputError
        The plan or the space cannot be used, or no plan is as fast as the limit.
    DoesNotFitError
        A GPU's memory is too small.
    """
    from joulecast.arguments import number, text
    from joulecast.plan.fronts.forecast_front import forecast_front

    return forecast_front(
        _loaded(plan, overrides),
        space=_space(space),
        simple=None if simple is None else text(simple, "simple"),
        time_limit_s=None if time_limit_s is None else number(time_limit_s, "time_limit_s"),
        switch_s=None if switch_s is None else number(switch_s, "switch_s", least=0.0),
    )


@arguments_for_options({"--set": "overrides"})
def compare(plans: Sequence[str | Path | Mapping[str, Any] | Plan], overrides: Sequence[str] | None = ()) -> Comparison:
    """Forecast plans and say how and why they differ from the first of them.

    Parameters
    ----------
    plans
        Two or more: paths of PLAN.toml, their tables, or plans already read.
    overrides
        Settings of the form ``table.key=value`` that win over every file.

    Raises
    ------
    InputError
        Fewer than two plans, or one that cannot be used; the message names file, key and remedy.
    DoesNotFitError
        A GPU's memory is too small for a plan, which the message names; the remedy names the nearest that fits.
    """
    return _compared(plans, overrides)


@arguments_for_options(
    {"--out": "out", "--workers": "workers", "--dask": "dask", "--resume": "resume=True", "--set": "overrides"}
)
def sweep(
    space: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    workers: int = 1,
    dask: str | None = None,
    resume: bool = False,
    overrides: Sequence[str] | None = (),
) -> SweepResult:
    """Forecast every legal plan of a space, and find the best.

    Parameters
    ----------
    space
        Path of a SPACE.toml, or its tables.
    out
        Where rows go: a file that ends in ``.parquet .csv .json .jsonl``.
    workers, dask
        Processes on this machine, or the address of a Dask scheduler.
    resume
        Continue an interrupted sweep with the same ``out``.
    overrides
        Settings of the form ``table.key=value`` that win over the space.

    Raises
    ------
    InputError
        The space cannot be used, or has no plan that is legal, fits memory and keeps to the constraints.
    """
    from joulecast.arguments import path, space_or_path, text, texts, whole
    from joulecast.plan.sweep.search import run_sweep
    from joulecast.plan.sweep.space import load_space, space_from_dict

    tables, given = space_or_path(space), texts(overrides, "overrides")
    return run_sweep(
        space_from_dict(tables, given) if isinstance(tables, Mapping) else load_space(tables, given),
        None if out is None else path(out, "out"),
        workers=whole(workers, "workers", least=1),
        dask=None if dask is None else text(dask, "dask"),
        resume=resume,
    )


@arguments_for_options({"--set": "overrides", "--direction": "direction", "--stage": "stage"})
def choose(
    plan: str | Path | Mapping[str, Any] | Plan,
    overrides: Sequence[str] | None = (),
    *,
    space: str | Path | Mapping[str, Any] | None = None,
    direction: str = "forward",
    stage: int = 0,
) -> JointChoice:
    """Overlap and tiles of a stage's layers, chosen together at every clock.

    Parameters
    ----------
    plan
        Path of a PLAN.toml, its tables, or a plan already read.
    overrides
        Settings of the form ``table.key=value`` that win over the file.
    space
        Path of a SPACE.toml, or its tables, with the clocks, knobs of overlap and tiles to choose from.
    direction
        ``forward`` or ``backward``.
    stage
        Virtual stage whose number of layers is composed.

    Raises
    ------
    InputError
        The plan or the space cannot be used.
    """
    from joulecast.arguments import whole
    from joulecast.plan.fronts.joint_choice import joint_choice

    number = whole(stage, "stage", least=0)
    return joint_choice(_loaded(plan, overrides), space=_space(space), direction=direction, stage=number)


@arguments_for_options({"--set": "overrides"})
def meter(
    plan: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | None = (),
    *,
    devices: Sequence[Card] | None = None,
    settle_s: float = 1.0,
    window_s: float = 3.0,
    windows: int = 5,
    warm_up_steps: int = 3,
    synchronize: Callable[[], object] | None = None,
    name: str | None = None,
) -> Meter:
    """Measure your own training loop, and hold the forecast of its plan to account.

    Within the ``with`` block of the answer, call its ``step()`` after every iteration; then it has ``result``, and
    ``write(file)`` for ``joulecast validate plans``. The forecast is made here, before anything is measured.

    Parameters
    ----------
    plan
        Path of a PLAN.toml that says what the loop does, or its tables.
    overrides
        Settings of the form ``table.key=value`` that win over the file.
    devices
        GPUs of this process: numbers as PyTorch counts (where it is not imported, as the driver does), or locators such
        as ``nvml:0`` and ``sim:FILE``. By default the one on which PyTorch puts tensors, or the first.
    settle_s
        Least time between the warm-up and the first window [s].
    window_s
        Least length of a window, 2.5 or more [s].
    windows
        So many are taken where the loop goes on for long enough.
    warm_up_steps
        Iterations at the begin that are not measured.
    synchronize
        Waits for the GPUs; by default PyTorch does, where it is imported.
    name
        Of the row; by default the plan's file.

    Raises
    ------
    InputError
        The plan or an option cannot be used. A GPU that is missing is told when the ``with`` block begins.
    """
    from joulecast.arguments import number, text, texts, whole
    from joulecast.calibrate.measure.settings import MeasureSettings
    from joulecast.calibrate.meter.loop import Meter
    from joulecast.calibrate.meter.metered_plan import metered_plan

    if synchronize is not None and not callable(synchronize):
        remedy = "Give a function without arguments."
        raise InputError(f"{synchronize!r} cannot be called", key="synchronize", remedy=remedy)
    settings = MeasureSettings(
        settle_s=number(settle_s, "settle_s"),
        window_s=number(window_s, "window_s"),
        most_windows=whole(windows, "windows", least=1),
    )
    return Meter(
        metered_plan(plan, texts(overrides, "overrides")),
        devices,
        settings.of({}),
        warm_up_steps=whole(warm_up_steps, "warm_up_steps", least=0),
        synchronize=synchronize,
        name=None if name is None else text(name, "name"),
    )


def _compared(plans: Sequence[str | Path | Mapping[str, Any] | Plan], overrides: Sequence[str] | None) -> Comparison:
    """As :func:`compare`, with errors in the words of the command line."""
    from joulecast.arguments import texts
    from joulecast.plan.comparison.compare import check_count, compare, names_of
    from joulecast.simulator.iteration.nearest_fit import forecast_or_nearest

    given = texts(overrides, "overrides")
    several = list(plans) if isinstance(plans, Iterable) and not isinstance(plans, str | Mapping) else [plans]
    check_count(len(several))
    loaded = [_loaded(plan, given) for plan in several]
    names = names_of([plan.file for plan in loaded])
    iterations = []
    for name, plan, read in zip(names, several, loaded, strict=True):
        try:
            iterations.append(forecast_or_nearest(_reader(plan, read, given), alone=False))
        except DoesNotFitError as error:
            file = error.file or name
            raise DoesNotFitError(error.message, file=file, key=error.key, remedy=error.remedy) from None
    return compare(iterations, names)


def _space(space: str | Path | Mapping[str, Any] | None) -> FrontSpace | None:
    """What a front or a choice picks from."""
    from joulecast.arguments import space_or_path
    from joulecast.plan.knobs.front_space import load_space

    return None if space is None else load_space(space_or_path(space))


def _reader(
    plan: str | Path | Mapping[str, Any] | Plan, read: Plan, given: Sequence[str]
) -> Callable[[Sequence[str]], Plan]:
    """What reads a plan with further settings, without them as it was ``read``."""
    return lambda more: _loaded(plan, (*given, *more)) if more else read


def _loaded(plan: str | Path | Mapping[str, Any] | Plan, overrides: Sequence[str] | None) -> Plan:
    from joulecast.arguments import texts
    from joulecast.simulator.plan_file.plan import Plan, load_plan, plan_from_dict

    wanted = texts(overrides, "overrides")
    if isinstance(plan, str | Path):
        return load_plan(plan, wanted)
    if isinstance(plan, Mapping):
        return plan_from_dict(plan, overrides=wanted)
    if not isinstance(plan, Plan):
        raise InputError(f"{type(plan).__name__} is no plan", remedy="Give the path of a PLAN.toml, or its tables.")
    if wanted:
        raise InputError("overrides need a plan's file", remedy="Pass the path, or change the plan before.")
    return plan
