"""Fit of a pipeline job's instruction times and energies on a few measured plans, and the forecast of all its plans.

A maximum of the posterior over the parameters of :mod:`joulecast.calibrate.studies.pipeline_plans_physics`. The
readings are means over mixed clocks, so the model's mean over the requested clocks is held against them. The energy of
a stage is that of its instructions and of waiting until the slowest stage has ended. Whatever an iteration takes beyond
the pipeline of instructions (transfers, gradient synchronisation, optimizer) is one time, the mean over the fitted
plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.arrays import Array, Int
from joulecast.calibrate.studies.pipeline_plans import PipelineJob, PlanReadings
from joulecast.calibrate.studies.pipeline_plans_physics import PER_INSTRUCTION, SHARED, CurveForm, Curves
from joulecast.errors import InputError

#: Relative standard deviation of a mean instruction time and of a stage's energy beyond what the physics say. Two
#: plans of equal clocks differ by 0.1–0.8 % in time.
_TIME_NOISE, _ENERGY_NOISE = 0.002, 0.003
#: Relative standard deviation of time and energy for each unit of log clock by which a plan's mean clock lies outside
#: those of the plans read: what the extrapolated voltage and power limit may be wrong. Seen where the plan of highest
#: clocks is left out: up to 2.6 % in time and 5.5 % in energy at a log distance of 0.2–0.3.
_TIME_OUTSIDE, _ENERGY_OUTSIDE = 0.07, 0.12
#: Step of numerical slopes, in prior standard deviations.
_STEP = 1e-4
#: Joint deviations of the parameters from which the forecast's uncertainty is estimated.
_DRAWS = 12
#: Their length in standard deviations.
_SMALL = 0.1
_SEED = 20240917


@dataclass(frozen=True)
class PlanForecast:
    """Forecast of all ``n`` plans of a job.

    Attributes
    ----------
    time_s, energy_j
        Iteration time and energy of all GPUs, shape ``(n,)`` [s], [J].
    time_sd, energy_sd, power_sd
        Relative standard deviations of what would be measured, power being the mean; shape ``(n,)`` [1].
    """

    time_s: Array
    energy_j: Array
    time_sd: Array
    energy_sd: Array
    power_sd: Array


@dataclass(frozen=True)
class FittedJob:
    """A job whose parameters were fitted.

    Attributes
    ----------
    form
        Curves as a function of parameters.
    parameters, root
        Most probable parameters, and a factor of their covariance.
    read_time_s
        Iteration times that were read, shape ``(k,)`` [s].
    plans
        Positions of the plans that were read.
    """

    form: CurveForm
    parameters: Array
    root: Array
    read_time_s: Array
    plans: tuple[int, ...]

    @property
    def curves(self) -> Curves:
        """Instructions against clock at the most probable parameters."""
        return self.form.curves(self.parameters)

    def beyond_pipeline_s(self) -> Array:
        """What the iterations that were read took beyond the pipeline of instructions, shape ``(k,)`` [s]."""
        pipeline = self.form.job.simulate(self.curves.time_s[None])[0]
        return np.asarray(self.read_time_s - pipeline[list(self.plans)])

    def forecast(self) -> PlanForecast:
        """Time and energy of all plans of the job.

        The spread of the parameters enters to first order: the mean square of the forecast's logarithmic changes under
        small random joint deviations. By these time and energy change together, which the power tells; what both
        scatter beyond is independent.
        """
        random = np.random.default_rng(_SEED)
        moves = random.standard_normal((_DRAWS, len(self.root))) @ self.root.T
        curves = [self.form.curves(self.parameters + step) for step in (np.zeros(len(self.root)), *(_SMALL * moves))]
        time, energy = self._at(curves)
        known = (np.sqrt(np.mean((np.log(x[1:] / x[0]) / _SMALL) ** 2, axis=0)) for x in (time, energy, energy / time))
        scatter = float(np.std(self.beyond_pipeline_s() / self.read_time_s))
        outside = self._outside()
        beyond_time = np.hypot(max(scatter, _TIME_NOISE), _TIME_OUTSIDE * outside)
        beyond_energy = np.hypot(_ENERGY_NOISE, _ENERGY_OUTSIDE * outside)
        beyond = beyond_time, beyond_energy, np.hypot(beyond_time, beyond_energy)
        return PlanForecast(time[0], energy[0], *(np.hypot(sd, more) for sd, more in zip(known, beyond, strict=True)))

    def _outside(self) -> Array:
        """How far each plan's mean clock lies above or below those of the plans that were read, as a logarithm."""
        clock = np.log(self.form.job.mean_clock_mhz())
        read = clock[list(self.plans)]
        return np.asarray(np.maximum(clock - read.max(), 0.0) + np.maximum(read.min() - clock, 0.0))

    def _at(self, curves: Sequence[Curves]) -> tuple[Array, Array]:
        """Time and energy of all plans under several variants of the curves, shape ``(v, n)`` each."""
        job = self.form.job
        pipeline = job.simulate(np.stack([c.time_s for c in curves]))
        beyond = np.mean(self.read_time_s - pipeline[:, list(self.plans)], axis=1, keepdims=True)
        time = pipeline + beyond
        energy = [stage_energy_j(job, c, job.share, t).sum(axis=1) for c, t in zip(curves, time, strict=True)]
        return time, np.stack(energy)


def stage_energy_j(job: PipelineJob, curves: Curves, share: Array, time_s: Array) -> Array:
    """Energy of each stage under plans of given iteration times, shape ``(n, s)`` [J].

    Parameters
    ----------
    share
        Share of instructions at each clock, shape ``(n, s, 2, c)``.
    time_s
        Iteration times, shape ``(n,)`` [s].
    """
    count = job.schedule.microbatches
    energy = count * np.einsum("nsdc,sdc->ns", share, curves.energy_j)
    busy = count * np.einsum("nsdc,sdc->ns", share, curves.time_s)
    return np.asarray(energy + curves.wait_power_w * (time_s[:, None] - busy))


def fit_job(job: PipelineJob, readings: PlanReadings, plans: Sequence[int]) -> FittedJob:
    """Fit a job on some of its plans; nothing that was measured under the others is read.

    Parameters
    ----------
    readings
        Of all plans of the job.
    plans
        Positions of the plans to read.

    Raises
    ------
    InputError
        No plan to read, or none with a time of some stage's instructions or of the iteration.
    """
    from scipy.optimize import least_squares

    chosen = list(plans)
    iteration = readings.iteration_time_s[chosen]
    if not chosen or not np.isfinite(iteration).all():
        raise InputError(f"no plan of {job.name} to fit on has an iteration time")
    problem = _Problem.of(job, readings, chosen)
    found = least_squares(
        problem.residuals,
        np.zeros(problem.form.size),
        jac=problem.slopes,
        x_scale=1.0,
        max_nfev=60,
        xtol=1e-6,
        ftol=1e-6,
        gtol=1e-6,
    )
    excess = float(np.sum(found.fun**2)) / max(1, problem.known)  # as many priors as parameters
    covariance = np.linalg.inv(found.jac.T @ found.jac) * max(1.0, excess)
    root: Array = np.asarray(np.linalg.cholesky(0.5 * (covariance + covariance.T)), dtype=np.float64)
    return FittedJob(problem.form, np.asarray(found.x), root, iteration, tuple(chosen))


@dataclass(frozen=True)
class _Problem:
    """Readings of the ``k`` fitted plans as residuals in standard deviations, followed by the priors'.

    Attributes
    ----------
    stage
        Per stage the readings of instruction times and of energy, shape ``(s, 3 k)``; NaN where there is none.
    total_j
        Energy of all stages where that of single stages is not known, shape ``(k,)``; else NaN.
    """

    form: CurveForm
    share: Array
    iteration_s: Array
    stage: Array
    total_j: Array

    @classmethod
    def of(cls, job: PipelineJob, readings: PlanReadings, chosen: list[int]) -> _Problem:
        times = readings.instruction_time_s[chosen]
        known = np.isfinite(times)
        if not known.any(axis=0).all():
            raise InputError(f"no plan of {job.name} to fit on has the times of all stages' instructions")
        log_time = np.where(known, np.log(np.where(known, times, 1.0)), 0.0).sum(axis=0) / known.sum(axis=0)
        share = job.share[chosen]
        reference = float(np.exp(np.mean(np.log(share @ job.clocks_mhz))))
        energy = readings.stage_energy_j[chosen]
        total = np.where(np.isfinite(energy).all(axis=1), np.nan, readings.energy_j[chosen])
        stage = np.concatenate([times.transpose(1, 0, 2).reshape(len(log_time), -1), energy.T], axis=1)
        form = CurveForm(job, log_time, reference)
        return cls(form, share, readings.iteration_time_s[chosen], stage, total)

    @property
    def known(self) -> int:
        """How many readings there are."""
        return int(np.isfinite(self.stage).sum() + np.isfinite(self.total_j).sum())

    def residuals(self, z: Array) -> Array:
        """All residuals; 0 where there is no reading."""
        model = self._model(z)
        total = model[:, -len(self.total_j) :].sum(axis=0)
        off = np.concatenate(
            [((model / self.stage - 1.0) / self._noise).ravel(), (total / self.total_j - 1.0) / _ENERGY_NOISE]
        )
        return np.concatenate([np.where(np.isfinite(off), off, 0.0), z])

    def slopes(self, z: Array) -> Array:
        """Forward differences; a parameter of all stages is moved at once, as a stage's readings know only its own."""
        stages, own = len(self.stage), self.stage.size
        here = self._model(z)
        slopes = np.zeros((own + len(self.total_j) + len(z), len(z)))
        slopes[own + len(self.total_j) :] = np.eye(len(z))
        stage_of = np.repeat(np.arange(stages), self.stage.shape[1])
        for first in range(2 * PER_INSTRUCTION):
            columns = first // 2 * 2 * stages + 2 * np.arange(stages) + first % 2
            single, total = self._slope(z, here, columns)
            slopes[np.arange(own), columns[stage_of]] = single.ravel()
            slopes[own : own + len(self.total_j), columns] = total.T
        for column in range(len(z) - len(SHARED), len(z)):
            single, total = self._slope(z, here, np.array([column]))
            slopes[: own + len(self.total_j), column] = np.concatenate([single.ravel(), total.sum(axis=0)])
        return slopes

    def _slope(self, z: Array, here: Array, columns: Int) -> tuple[Array, Array]:
        """Slopes of the stages' residuals, shape ``(s, 3 k)``, and each stage's part in those of totals, ``(s, k)``."""
        moved = z.copy()
        moved[columns] += _STEP
        change = (self._model(moved) - here) / _STEP
        single = change / self.stage / self._noise
        total = change[:, -len(self.total_j) :] / self.total_j / _ENERGY_NOISE
        return np.where(np.isfinite(single), single, 0.0), np.where(np.isfinite(total), total, 0.0)

    def _model(self, z: Array) -> Array:
        """What the readings of each stage should be, shape ``(s, 3 k)``."""
        job, curves = self.form.job, self.form.curves(z)
        time = np.einsum("nsdc,sdc->snd", self.share, curves.time_s)
        energy = stage_energy_j(job, curves, self.share, self.iteration_s)
        return np.concatenate([time.reshape(len(time), -1), energy.T], axis=1)

    @property
    def _noise(self) -> Array:
        count = len(self.total_j)
        return np.repeat([_TIME_NOISE, _ENERGY_NOISE], [2 * count, count])
