"""The file of training factors that the catalogue ships."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from joulecast.calibrate.published.fit import Fitted
from joulecast.calibrate.published.separate_factors import SeparateFactor
from joulecast.model.hardware.description import SCHEMA_VERSION
from joulecast.model.training.factors import GENERATION_SPREAD

#: Significant digits of what is written.
DIGITS = 5


def training_toml(
    fitted: Fitted,
    spread: Mapping[str, float],
    provenance: str,
    unseen: Mapping[str, float] | None = None,
    counts: Mapping[str, int] | None = None,
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
    for name, value in (unseen or {}).items():
        if value > 0.0:  # GPUs that were left out may be off by no more than sources were
            lines.append(_leaf(f"unseen.{name}", value, 0.2 * value, f"{name}s that were left out, or differ"))
    for name, number in sorted((counts or {}).items()):
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
    key = ".".join(
        part if part.replace("-", "").replace("_", "").isalnum() else json.dumps(part) for part in name.split(".")
    )
    return f'{key} = {{value = {value:.{DIGITS}g}, sd = {sd:.2g}, source = "{source}", status = "fitted"}}'
