"""The file of training factors that the catalogue ships."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from joulecast.calibrate.training_fit import Fitted
from joulecast.model.description import SCHEMA_VERSION

#: Significant digits of what is written.
DIGITS = 5


def training_toml(fitted: Fitted, spread: Mapping[str, float], provenance: str) -> str:
    """Text of the file.

    Parameters
    ----------
    spread
        Relative standard deviation of forecast steps by ``architecture.dtype``, from sources that were left out.
    provenance
        What was fitted to.
    """
    lines = [
        "# How kernels fare in long training runs; see model/training_factors.py.",
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
    return "\n".join(lines) + "\n"


def _leaf(name: str, value: float, sd: float, source: str) -> str:
    key = ".".join(
        part if part.replace("-", "").replace("_", "").isalnum() else json.dumps(part) for part in name.split(".")
    )
    return f'{key} = {{value = {value:.{DIGITS}g}, sd = {sd:.2g}, source = "{source}", status = "fitted"}}'
