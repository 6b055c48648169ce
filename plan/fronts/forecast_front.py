"""The front of a plan from forecasts: every instruction at every clock, with every number of communication blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from joulecast.model.hardware.description import GpuDescription
from joulecast.model.hardware.gpu_model import GpuModel, gpu_model
from joulecast.model.power.governor import settled_power_w
from joulecast.model.power.limits import group_limit_share
from joulecast.plan.exact.dag import make_dag
from joulecast.plan.exact.front import Front
from joulecast.plan.exact.front_intervals import OptionKernels
from joulecast.plan.exact.problem import FrontProblem, make_problem
from joulecast.plan.exact.site_limits import site_limits
from joulecast.plan.fronts.switching import front_of_problem
from joulecast.plan.knobs.front_space import COMM_CTAS, FrontSpace
from joulecast.plan.knobs.options import Option
from joulecast.plan.knobs.overlap_space import Knobs, overlap_variants
from joulecast.plan.knobs.tile_space import check_tile_lists, tile_variants
from joulecast.simulator.events.guards import reported_with
from joulecast.simulator.fluid.prepared import Prepared, often_of, prepare
from joulecast.simulator.fluid.steady_state import fluid_program
from joulecast.simulator.instructions.clock_columns import locked_index
from joulecast.simulator.instructions.footprints import footprints
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan

#: Of so many neighbouring clocks of the GPU, tiles are compared at the lowest to choose from.
CLOCK_STEP = 8
#: What a forecast front takes for granted.
NOTES = (
    "every instruction runs at its locked clock; clocks and plans that a board would not hold are left out",
    "GPUs wait at the power of the highest clock that their forwards and backwards may take",
    "tensor-parallel ranks and replicas share the choices of their stage",
    "ratios to the fastest plan are those of the same cards; kernels of a calibrated one err alike at all clocks",
)


def forecast_front(
    plan: Plan,
    gpu: GpuDescription | None = None,
    *,
    space: FrontSpace | None = None,
    simple: str | None = None,
    time_limit_s: float | None = None,
    switch_s: float | None = None,
) -> Front:
    """Time-energy front of a plan.

    Parameters
    ----------
    gpu
        Description to use in place of the plan's own.
    space
        What to choose from; by default all clocks, and some numbers of communication blocks where GPUs communicate.
    simple
        See :func:`joulecast.plan.exact.exact_front.exact_front`.
    time_limit_s
        Leave out slower plans [s].
    switch_s
        How long a change of clock takes, by default as the GPU's description says. Where forwards or backwards are
        shorter, every stage keeps one clock [s].

    Raises
    ------
    DoesNotFitError
        The plan needs more memory than a GPU has.
    GuardError
        A law of conservation does not hold: a defect, reported with the plan.
    """
    description = gpu if gpu is not None else gpu_of(plan)
    space = space or FrontSpace()
    space.refuse_limits()
    footprints(plan, description)  # refuses a plan that does not fit
    model = gpu_model(description)
    problem = replace(problem_from_plan(plan, model, space), site=site_limits(plan, description))
    delay = model["transition.clock_s"] if switch_s is None else switch_s
    with reported_with(plan):
        return front_of_problem(problem, switch_s=delay, simple=simple, time_limit_s=time_limit_s)


def problem_from_plan(plan: Plan, gpu: GpuModel, space: FrontSpace) -> FrontProblem:
    """Instructions of a plan with their forecast options, and who waits for whom.

    Energies and waiting power are those of all GPUs of a stage.
    """
    blocks = comm_ctas_of(plan, space)
    ways = ways_of(plan, gpu, space, blocks)
    variants = [(knobs, prepare(way, gpu, governed=False, alike=False)) for knobs, way in ways]
    base = variants[0][1]
    gpus = plan.tp * plan.replicas
    options: list[list[Option]] = []
    names: list[str] = []
    kind: list[int] = []
    types: list[tuple[int, int]] = []
    waits: list[float] = []
    for rank, run in enumerate(base.program.ranks):
        allowed = _clocks_of_types(base, rank, space)
        repeated = np.flatnonzero(often_of(base.program, rank)).tolist()  # GPUs wait between micro-batches
        kind.extend(len(options) + t for t in run.order)
        for t, name in enumerate(run.names):
            options.append([o for knobs, p in variants for o in _options(p, rank, t, allowed[t], knobs, gpus)])
            names.append(f"{name} of stage {rank}")
            types.append((rank, t))
        highest = max(_held(base, rank, t, allowed[t])[-1] for t in repeated)
        waits.append(float(base.wait_power_w[highest]) * gpus)
    fluid = fluid_program(base)
    schedule = base.program.schedule
    dag = make_dag(schedule.ranks, fluid.source, fluid.target, fluid.delay_s, schedule=schedule.name)
    return make_problem(
        dag,
        options,
        kind,
        np.array(waits),
        names=names,
        power_limit_w=settled_power_w(base.power_limits_w, gpu) * group_limit_share(plan.tp, gpu) * gpus,
        averaged_s=gpu["governor.slow_s"],
        notes=_notes(plan, space, len(blocks) > 1),
        gpus_per_rank=gpus,
        kernels=None if gpu.description is None else OptionKernels(dict(variants), tuple(types), gpu.description),
    )


def _notes(plan: Plan, space: FrontSpace, blocks_chosen: bool) -> list[str]:
    """What a front takes for granted."""
    notes = [*NOTES, *(["clocks that the plan sets are kept"] if plan.power.clocks_mhz else [])]
    if blocks_chosen:
        notes.append("where GPUs communicate, each instruction chooses its thread blocks too (overlap.comm_ctas)")
    if space.overlap:
        notes.append("forwards and backwards choose their overlap each on its own")
    if space.tiles:
        notes.append("tiles that no weight between time and energy of a layer prefers at any clock are left out")
    return notes


def ways_of(
    plan: Plan, gpu: GpuModel, space: FrontSpace, comm_ctas: Sequence[int | None] | None = None
) -> list[tuple[Knobs, Plan]]:
    """Plans that differ in overlap and tiles, with their knobs.

    Parameters
    ----------
    comm_ctas
        Thread blocks of collectives to choose from, where not as the space says.
    """
    blocks = space.comm_ctas if comm_ctas is None else comm_ctas
    choices = dict(space.overlap) | ({} if blocks is None else {"comm_ctas": blocks})
    ways = overlap_variants(plan, choices, gpu.description, space.source)
    if not space.tiles:
        return ways
    if gpu.description is not None:
        check_tile_lists(plan, space.tiles, gpu.description, space.source)
    listed = space.clock_indices(gpu.clocks_mhz)
    clocks = listed[np.unique(listed // CLOCK_STEP, return_index=True)[1]]
    return [
        ((*knobs, *tiles), tiled)
        for knobs, way in ways
        for tiles, tiled in tile_variants(way, space.tiles, gpu, clocks)
    ]


def comm_ctas_of(plan: Plan, space: FrontSpace) -> Sequence[int | None]:
    """Thread blocks of collectives to choose from."""
    if space.comm_ctas is not None:
        return space.comm_ctas
    open_to_choice = plan.overlap.comm_ctas is None and plan.tp * plan.replicas > 1
    return (None, *COMM_CTAS) if open_to_choice else (plan.overlap.comm_ctas,)


def _clocks_of_types(prepared: Prepared, rank: int, space: FrontSpace) -> list[list[int]]:
    """Clock indices that each type of instruction may run at: the plan's own where it sets one, else the space's."""
    clocks = prepared.clocks_mhz
    locked = locked_index(prepared.program, rank, np.append(clocks, np.inf)).tolist()  # the last stands for none set
    wanted = space.clock_indices(clocks).tolist()
    return [wanted if at == len(clocks) else [at] for at in locked]


def _options(prepared: Prepared, rank: int, kind: int, clocks: Sequence[int], knobs: Knobs, gpus: int) -> list[Option]:
    """Options of a type at the clocks that are set; a board may hold it below, where it takes as long as there."""
    time_s, energy_j = prepared.tables[rank].duration_s[kind], prepared.tables[rank].energy_j[kind]
    of_clock = ((float(time_s[c]), float(energy_j[c]) * gpus, float(prepared.clocks_mhz[c])) for c in clocks)
    return [Option(*amounts, knobs) for amounts in of_clock]


def _held(prepared: Prepared, rank: int, kind: int, clocks: Sequence[int]) -> list[int]:
    """Clock indices that the board's fast and instant limits let a type reach; what it runs at where none is."""
    columns = prepared.columns[rank][kind].tolist()
    return [c for c in clocks if columns[c] == c] or sorted({columns[c] for c in clocks})
