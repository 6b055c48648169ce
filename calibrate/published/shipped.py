"""The factors of training that the catalogue ships, fitted to published steps.

``python -m joulecast.calibrate.published.shipped OUT DATA…`` fits all of them to the rows of the files or folders
``DATA`` and writes ``OUT``; as the model is linearised near the factors that are there, several times until they stand.
What is shipped, ``model/catalogue_data/training/published.toml``, is fitted to the collected rows and to those of
``calibrate/recorded/published``, which say how GB200 differs from B200, and how long Megatron takes in DeepSpeed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from joulecast.calibrate.published.fit import Fitted, Linearised, fit, linearise
from joulecast.calibrate.published.left_out import (
    Refitted,
    by_gpu,
    by_source,
    kind_of,
    left_out,
    log_measured,
    may_be_fitted,
    may_fit,
)
from joulecast.calibrate.published.plans import PlannedRow, plan_row
from joulecast.calibrate.published.rows import read_published
from joulecast.calibrate.published.separate_factors import SeparateFactor, separate_factor
from joulecast.calibrate.rows.measured import recorded_folder
from joulecast.files import toml_key, write_text
from joulecast.model.hardware.catalogue import load_training
from joulecast.model.hardware.description import SCHEMA_VERSION, Parameter
from joulecast.model.hardware.description_file import parse_training
from joulecast.model.training.factors import GENERATION_SPREAD

Errors = list[tuple[PlannedRow, float]]

#: How much wider than a known spread's the 90 % interval of a fifth framework is, four being known (Student's).
FEW = 1.6
#: Significant digits of what is written.
DIGITS = 5
#: How far one fit moves factors: slower products or a hungrier chip explain the same steps, as long as power binds.
TRUST_SD = 0.05


def linearised(planned: Sequence[PlannedRow], near: Mapping[str, Parameter]) -> Linearised:
    """The model near given factors; see :func:`collected_factors`."""
    return linearise([one.plan for one in planned], {name: p.number for name, p in near.items()})


def collected_factors() -> dict[str, Parameter]:
    """Factors that fit the collected rows alone: near these, fits that leave some of them out are linear."""
    file = recorded_folder() / "published" / "collected.toml"
    return parse_training(file.read_text(encoding="utf-8"), file=str(file))


def shipped_factors(planned: Sequence[PlannedRow], model: Linearised) -> str:
    """Text of the catalogue's file of factors: a fit to all rows that may be fitted.

    How far off a forecast may be is what sources showed that were left out, by architecture and data type. Two
    unknowns add to it in quadrature: a GPU without rows what left-out GPUs are off beyond left-out sources, a framework
    without a name how far the scalars of the named ones differ.
    """
    use = may_fit(planned)
    fitted = fit(model, log_measured(planned), use, TRUST_SD)
    sources = _errors(planned, left_out(planned, by_source(planned, len(planned)), model, far=True))
    spread = {kind: _rms(errors) for kind, errors in _grouped(sources, kind_of).items()}
    cards = _errors(planned, left_out(planned, by_gpu(planned), model, far=True))
    by_card = [_rms(errors) for errors in _grouped(_fitted(cards), lambda one: one.plan.cluster.gpu).values()]
    beyond = _rms(by_card) ** 2 - _rms([error for _, error in _fitted(sources)]) ** 2
    scalars = [float(np.log(value)) for name, value in fitted.factors().items() if name.startswith("generation.")]
    unseen = {"gpu": float(np.sqrt(max(beyond, 0.0))), "generation": FEW * _rms(scalars)}
    rows = Counter(one.plan.cluster.gpu for one in planned if may_be_fitted(one))
    named = sorted({one.row.source for one in planned if may_be_fitted(one)})
    provenance = f"fit to {int(use.sum())} published training steps: {'; '.join(named)}"
    return training_toml(fitted, spread, provenance, unseen, rows)


def _fitted(errors: Errors) -> Errors:
    return [(one, error) for one, error in errors if may_be_fitted(one)]


def _errors(planned: Sequence[PlannedRow], found: Refitted) -> Errors:
    """Rows that were left out, with the logarithms of forecast over measured."""
    pairs = zip(planned, found.times, strict=True)
    known = [(one, time, one.row.measured_step_time_s) for one, time in pairs]
    return [(one, float(np.log(time.time_s / measured))) for one, time, measured in known if time and measured]


def _grouped(errors: Sequence[tuple[PlannedRow, float]], kind: Callable[[PlannedRow], str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for one, error in errors:
        found.setdefault(kind(one), []).append(error)
    return found


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def separate_factors(planned: Sequence[PlannedRow], shipped: str) -> str:
    """Lines of the factors of generations whose steps calibrate nothing else, behind the others' text ``shipped``."""
    factors = {name: p.number for name, p in parse_training(shipped, file="factors").items()}
    generations = sorted({one.generation.name for one in planned if one.generation.separate})
    found = ""
    for name in generations:
        rows = [one for one in planned if one.generation.name == name and one.row.measured_step_time_s]
        named = "; ".join(sorted({one.row.source for one in rows}))
        source = f"{len(rows)} steps of {named}, all other factors standing"
        found += separate_toml(name, separate_factor(rows, factors), source)
    return found


def training_toml(
    fitted: Fitted,
    spread: Mapping[str, float],
    provenance: str,
    unseen: Mapping[str, float],
    counts: Mapping[str, int],
) -> str:
    """Text of the file.

    Parameters
    ----------
    spread
        Relative standard deviation of forecast steps by ``architecture.dtype``, from sources that were left out.
    provenance
        What was fitted to.
    unseen
        What a ``gpu`` without steps adds to it, and a ``generation`` of frameworks without a scalar.
    counts
        Fitted steps of each GPU.
    """
    lines = [
        "# How kernels fare in long training runs; see model/training/factors.py.",
        f"schema_version = {SCHEMA_VERSION}",
        'name = "published"',
        f"provenance = {json.dumps(provenance)}",
        "",
        "[factors]",
    ]
    for name, value, variance in zip(fitted.names, np.exp(fitted.values), np.diag(fitted.covariance), strict=True):
        lines.append(_leaf(name, float(value), float(value * np.sqrt(variance)), "fit"))
    for name in sorted(spread):
        owner, _, dtype = name.rpartition(".")
        lines.append(_leaf(f"{owner}.spread.{dtype}", spread[name], 0.2 * spread[name], "sources that were left out"))
    for name, value in unseen.items():
        if value > 0.0:  # GPUs that were left out may be off by no more than sources were
            lines.append(_leaf(f"unseen.{name}", value, 0.2 * value, f"{name}s that were left out, or differ"))
    for name, number in sorted(counts.items()):
        lines.append(_leaf(f"rows.{name}", number, 0.0, "fitted steps of this GPU"))
    return "\n".join(lines) + "\n"


def separate_toml(generation: str, found: SeparateFactor, source: str) -> str:
    """Lines of a generation's factor that was found alone, and of its spread.

    Parameters
    ----------
    source
        The steps that it was fitted to.
    """
    value = _leaf(f"generation.{generation}", found.value, found.sd, source)
    left_out = f"each source left out: {source}"
    return f"{value}\n{_leaf(f'{GENERATION_SPREAD}{generation}', found.spread, 0.2 * found.spread, left_out)}\n"


def _leaf(name: str, value: float, sd: float, source: str) -> str:
    key = ".".join(map(toml_key, name.split(".")))
    return f'{key} = {{value = {value:.{DIGITS}g}, sd = {sd:.2g}, source = "{source}", status = "fitted"}}'


def main(out: str, *data: str) -> None:
    """Fit the published rows of ``data`` and write the catalogue's file of factors."""
    planned = [plan_row(row) for path in data for row in read_published(path)]
    together = [one for one in planned if not one.generation.separate]
    shipped = shipped_factors(together, linearised(together, load_training()))
    write_text(Path(out), shipped + separate_factors(planned, shipped))


if __name__ == "__main__":
    main(*sys.argv[1:])
