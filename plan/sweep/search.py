"""A sweep from a space to its best plans.

Every legal plan that fits memory is forecast in closed form; that leaves nothing out. Which of them are simulated in
full is a heuristic: those that are best in closed form, whose error is known, and keep to the constraints within that
error. Of plans whose closed form is in doubt those are simulated, too, that may be better than it says. The best plans
are simulated ones, unless none are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.errors import InputError
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.memory.footprint import shortfall
from joulecast.model.training.factors import foreign_generation
from joulecast.plan.sweep.choose import (
    feasible,
    held_by_mean,
    is_undominated,
    left_out_by_constraint,
    nearest_bounds,
    nothing_feasible,
    objectives,
)
from joulecast.plan.sweep.clusters import GPU, best_of_each, cluster_keys, offered, simulate_each, words
from joulecast.plan.sweep.journal import Journal
from joulecast.plan.sweep.legal import Combinations
from joulecast.plan.sweep.parts import make_apart
from joulecast.plan.sweep.refusals import first_refusal, missing_values, refusal, said
from joulecast.plan.sweep.result import SweepResult, check_output
from joulecast.plan.sweep.rows import Checked, Row, evaluate, forecaster_of, rows_together, simulate, with_files
from joulecast.plan.sweep.simulated import bounds_that_are_met, search
from joulecast.plan.sweep.space import Space
from joulecast.plan.sweep.workers import Workers
from joulecast.simulator.instructions.footprints import footprints_of, memory_remedy
from joulecast.simulator.plan_file.names import resolve_path
from joulecast.simulator.plan_file.power import limit_assumptions
from joulecast.tables import write_rows

LIMIT = "power.power_limit_w"
#: Combinations that are one job, in this process and of a worker.
JOB_HERE, JOB_APART = 4096, 32

#: What a job makes of the space and what else is the job's.
Work = Callable[..., Iterable[Checked | Row]]
Job = tuple[Any, ...]
#: Told of what is under way: plans done, plans in all, and what is being done.
Progress = Callable[[int, int, str], None]


@dataclass(slots=True)
class _Sweep:
    """One sweep under way."""

    space: Space
    combinations: Combinations
    workers: Workers
    journal: Journal
    progress: Progress
    #: Plans that may be better than those simulated, when the rounds end.
    untried: int = 0

    def evaluate(self) -> list[Row]:
        """Every plan that fits, in closed form."""
        done, of = self.journal.done, len(self.combinations)
        size = JOB_HERE if self.workers.here else JOB_APART
        together = rows_together(of, kept=self.journal.place is not None, processes=self.workers.processes)

        def left() -> list[Job]:
            return [(run[i : i + size], together) for run in self.journal.missing(of) for i in range(0, len(run), size)]

        self.progress(done.settled, of, "plans")
        for _ in self._made(evaluate, left):
            self.progress(done.settled, of, "plans")
        return [done.rows[number] for number in sorted(done.rows)]

    def simulate(self, rows: list[Row]) -> list[Row]:
        """The best plans simulated, and further ones where these do not keep to the constraints after all."""
        found = search(rows, self.space, self._run)
        if not found.kept:
            nearest = bounds_that_are_met(rows, found, self.space, self._run)
            what = f"plan that fits memory, of {len(rows)},"
            raise nothing_feasible(nearest, self.space, what, kept=self.journal.place is not None)
        self.untried = found.untried
        return simulate_each(rows, found.simulated, self.space, self._run)

    def _run(self, plans: set[int]) -> dict[int, Row]:
        """Plans simulated, by number; those that were are not simulated again."""
        done = self.journal.done.simulated
        new = plans - set(done)

        def left() -> list[Job]:
            return [(number,) for number in sorted(new - set(done))]

        what = "best plans simulated"
        self.progress(0, len(new), what)
        for _ in self._made(simulate, left):
            self.progress(len(new & set(done)), len(new), what)
        return {plan: done[plan] for plan in sorted(plans)}

    def _made(self, work: Work, left: Callable[[], list[Job]]) -> Iterator[Checked | Row]:
        """What the jobs that are left make, each kept before it is told; after a loss some of them are left again."""
        if self.workers.here:
            for job in left():
                for made in work(self.space, *job):
                    self.journal.add(made)
                    yield made
            return

        def jobs() -> dict[int, tuple[Any, ...]]:
            self.journal.take_parts()
            return {number: (self.space, *job) for number, job in enumerate(left())}

        apart = partial(make_apart, self.journal.place, work)
        for _, (kept, found) in self.workers.results(apart, jobs(), jobs):
            for made in found:
                self.journal.add(made, kept=kept)
                yield made


def run_sweep(
    space: Space,
    out: Path | None = None,
    *,
    workers: int = 1,
    dask: str | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> SweepResult:
    """Forecast every plan of a space, and find the best.

    Parameters
    ----------
    out
        Where rows go, in the form that the suffix names: ``.jsonl .json .csv .parquet``. While the sweep runs they are
        appended to ``FILE.partial``.
    workers, dask
        Processes on this machine, or the address of a Dask scheduler.
    resume
        Continue what ``FILE.partial`` holds.
    progress
        Called as work gets done.
    note
        Called with what there is to know of a sweep that is continued.

    Raises
    ------
    InputError
        The space has no legal plan, none that fits memory or none that keeps to the constraints; a file cannot be
        written; workers are lost again and again.
    """
    check_output(out, resume=resume)
    space = with_files(space)
    combinations = forecaster_of(space).combinations
    header = {"space": space.fingerprint(), "files": dict(space.files), "plans": len(combinations)}
    partial = None if out is None else out.with_name(out.name + ".partial")
    with Workers(workers, dask) as pool, closing(Journal(partial, header, resume=resume)) as journal:
        if resume and note is not None:
            note(_continued(partial, journal))
        sweep = _Sweep(space, combinations, pool, journal, progress or (lambda done, of, what: None))
        rows = sweep.evaluate()
        if not rows:
            journal.remove()  # no other constraint or objective would find more in it
            raise _nothing_fits(space, combinations, journal)
        simulated = sweep.simulate(rows) if space.objective.top else []
        result = replace(_result(space, combinations, journal, rows, simulated), untried=sweep.untried)
        if out is not None:
            write_rows(result.rows, out, out.suffix[1:])
            journal.remove()
    return result


def _continued(partial: Path | None, journal: Journal) -> str:
    done = journal.done
    if not journal.was_there:
        return f"{partial} is not there: the sweep begins anew"
    torn = "; its torn last line was dropped" if journal.torn else ""
    return f"{partial} holds {len(done.rows)} plans in closed form and {len(done.simulated)} simulated ones{torn}"


def _result(
    space: Space, combinations: Combinations, journal: Journal, rows: list[Row], simulated: list[Row]
) -> SweepResult:
    exact = {row["plan"]: row for row in simulated}
    candidates = simulated or rows
    kept = feasible(candidates, space)
    if not kept:
        what = f"plan that fits memory, of {len(candidates)},"  # in closed form: of simulated ones some were kept
        raise nothing_feasible(nearest_bounds(candidates, space), space, what, kept=journal.place is not None)
    known = tuple(exact.get(row["plan"], row) for row in rows)
    values = objectives(kept, space)
    chosen = np.flatnonzero(is_undominated(values)) if values.shape[1] > 1 else np.arange(len(kept))
    order = chosen[np.argsort(values[chosen, 0], kind="stable")]
    if simulated and values.shape[1] == 1:
        order = order[: space.objective.top]
    illegal = sum(batch.illegal for batch in journal.done.batches.values())
    within = feasible(known, space)
    each, keys = best_of_each(candidates, space), cluster_keys(space)
    missing = missing_values(space, combinations, rows)
    return SweepResult(
        minimise=space.minimise,
        keys=space.keys,
        rows=known,
        best=tuple(kept[i] for i in order),
        offered=combinations.offered,
        legal=len(combinations) - illegal,
        fitting=len(rows),
        within=len(within),
        by_mean=tuple(held_by_mean(within, space)),
        beyond=left_out_by_constraint(known, space),
        simulated=len(simulated),
        refused=first_refusal(space, combinations, journal, missing),
        missing=tuple(missing.values()),
        of_each_cluster=tuple(each.values()),
        without=tuple(words(keys, cluster) for cluster in offered(space, keys) if cluster not in each),
        assumed=(*_limits((*(kept[i] for i in order), *each.values()), space), *_frameworks(space)),
    )


#: What it means that no generation of Megatron is named.
UNNAMED = (
    "what runs the plans may be any framework, so that intervals of times reach far up; implementation.generation says"
)


def _limits(shown: Sequence[Row], space: Space) -> Iterator[str]:
    """What is assumed of power limits below the default of their GPU."""
    limits: dict[str, list[float | None]] = {}
    for row in shown:
        limit = row.get(LIMIT, space.value(LIMIT))
        own = limits.setdefault(row.get(GPU, space.value(GPU)), [])
        own += limit if isinstance(limit, list | tuple) else [limit]
    for gpu, own in limits.items():
        yield from limit_assumptions(load_gpu(resolve_path(gpu, space.source, GPU)), own)


def _frameworks(space: Space) -> tuple[str, ...]:
    """What is assumed of the space's frameworks and their generations on its GPUs."""
    names = (resolve_path(gpu, space.source, GPU) for gpu in space.values(GPU))
    generations = [name or "" for name in space.values("implementation.generation")]
    said = (note for gpu in map(load_gpu, names) for name in generations for note in foreign_generation(name, gpu))
    unnamed = "megatron" in space.values("implementation.framework") and "" in generations
    return (*dict.fromkeys(said), *((UNNAMED,) if unnamed else ()))


def _nothing_fits(space: Space, combinations: Combinations, journal: Journal) -> InputError:
    batches = journal.done.batches.values()
    if sum(batch.illegal for batch in batches) == len(combinations):
        first = {key: 1 if values is None else values[0] for key, values in space.axes}
        values = combinations.of(0) if len(combinations) else first
        error = refusal(space, values)
        why = "sizes do not divide each other" if error is None else f"the first of them: {said(error)}"
        remedy = (None if error is None else error.remedy) or "Widen it."
        return space.source.error(f"none of {combinations.offered} combinations is a legal plan; {why}", remedy=remedy)
    plan, memory = forecaster_of(space).nearest_to_fit()
    fullest = max(footprints_of(plan, range(plan.pp)), key=lambda held: held.total_bytes)
    return space.source.error(
        f"none of {len(combinations)} plans fits a GPU's memory; the nearest {shortfall(fullest, memory)}",
        "parallelism",
        remedy=memory_remedy(plan, memory),
    )
