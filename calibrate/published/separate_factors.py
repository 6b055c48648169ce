"""The factor of a generation of frameworks whose steps calibrate nothing else.

Megatron in DeepSpeed ran old layers on clusters with slow networks and on GPUs of another vendor: fitted with all other
steps, its own would move what NVIDIA's frameworks say of an architecture. Its factor is found while all others stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.calibrate.published.fit import log_times
from joulecast.calibrate.published.left_out import log_measured
from joulecast.calibrate.published.plans import PlannedRow
from joulecast.errors import DataError

#: Factor at which steps are forecast beside 1: between the two their logarithms are close to linear in its own.
FAR = 1.4


@dataclass(frozen=True)
class SeparateFactor:
    """One generation's factor on the time of all kernels.

    Attributes
    ----------
    value, sd
        The factor and its standard deviation.
    spread
        Relative standard deviation of a step of a source that was left out [1].
    """

    value: float
    sd: float
    spread: float


def separate_factor(planned: Sequence[PlannedRow], factors: Mapping[str, float]) -> SeparateFactor:
    """The factor that explains the steps of one generation, each of its sources counting once.

    Parameters
    ----------
    planned
        Its rows, all of them measured.
    factors
        All others' factors by name.

    Raises
    ------
    DataError
        The rows are of one source: nothing tells how far another one differs.
    """
    sources = np.array([one.row.source for one in planned])
    names = sorted(set(sources.tolist()))
    if len(names) < 2:
        first = planned[0].row
        raise DataError(
            f"all steps of {planned[0].generation.name} are of one source, {names[0]!r}",
            file=first.file,
            line=first.line,
            key="source",
            remedy="Give the steps of at least two sources: how far these differ is the factor's uncertainty.",
        )
    plans, name = [one.plan for one in planned], f"generation.{planned[0].generation.name}"
    base = log_times(plans, {**factors, name: 1.0})
    slopes = (log_times(plans, {**factors, name: FAR}) - base) / np.log(FAR)
    wanted = (log_measured(planned) - base) / slopes  # logarithm of the factor that explains each step
    means = np.array([wanted[sources == source].mean() for source in names])
    others = (means.sum() - means) / (len(names) - 1)
    squares = [np.mean((slopes * (wanted - o))[sources == s] ** 2) for s, o in zip(names, others, strict=True)]
    value = float(np.exp(means.mean()))
    sd = value * float(means.std(ddof=1)) / np.sqrt(len(names))
    return SeparateFactor(value, float(sd), float(np.sqrt(np.mean(squares))))
