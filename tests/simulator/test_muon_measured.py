"""Steps of torch.optim.Muon on single matrices, as measured on two cards."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from paths import ROOT
from row_files import csv_rows

from joulecast.model.framework.implementation import Implementation
from joulecast.model.framework.muon import Muon
from joulecast.model.hardware.catalogue import load_gpu
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.power.kernel_power import at_clock
from joulecast.model.training.matrix import Matrix
from joulecast.model.training.muon import muon_step, step_bytes
from joulecast.simulator.instructions.eager_launches import looped_launches
from joulecast.simulator.instructions.repeated import Conditions, predict_repeated

FOLDER = ROOT / "validate/recorded/muon"
RUN = Implementation(modules="transformers", optimizer="muon", muon=Muon())
#: Shorter side up to which a matrix' step is forecast a sixth to a fourth short (docs/limits.md).
SMALL = 1024


def rows(file: str) -> list[dict[str, str]]:
    return csv_rows(FOLDER / file)


def name_of(row: dict[str, str]) -> str:
    return f"{row['gpu']}-{row['rows']}x{row['columns']}-{row['dtype']}"


STEPS = [pytest.param(row, id=name_of(row)) for row in rows("steps.csv")]


def of(row: dict[str, str]) -> tuple[Matrix, Implementation]:
    return Matrix((int(row["rows"]),), int(row["columns"])), replace(RUN, parameters=row["dtype"])


@pytest.mark.parametrize("row", STEPS)
def test_temporary_results_are_what_pytorch_allocated(row: dict[str, str]) -> None:
    matrix, run = of(row)
    assert step_bytes(matrix, run, Muon()) == pytest.approx(float(row["in_step_bytes"]), rel=0.01, abs=1e6)


@pytest.mark.parametrize("row", STEPS)
def test_a_step_takes_the_measured_time_and_energy(row: dict[str, str]) -> None:
    matrix, run = of(row)
    count, gpu = int(row["matrices"]), gpu_model(load_gpu(row["gpu"]))
    found = predict_repeated([muon_step({matrix: count}, run)], gpu, Conditions())
    time_us, energy_mj = 1e6 * found.time_s[0] / count, 1e3 * found.energy_j[0] / count
    small = min(*matrix.rows, matrix.columns) <= SMALL
    assert time_us == pytest.approx(float(row["time_us"]), rel=0.27 if small else 0.05)
    assert energy_mj == pytest.approx(float(row["energy_mj"]), rel=0.27 if small else 0.07)


def kernels_us(row: dict[str, str]) -> dict[str, list[float]]:
    """Measured times of each kind of kernel in one matrix's step [us]."""
    found = defaultdict(list)
    for one in rows("kernels.csv"):
        if name_of(one) == name_of(row):
            found[one["kernel"]].append(float(one["time_us"]))
    return found


LARGE = [one for one in rows("steps.csv") if min(int(one["rows"]), int(one["columns"])) > SMALL]


@pytest.mark.parametrize("row", [pytest.param(row, id=name_of(row)) for row in LARGE])
def test_every_kind_of_kernel_runs_as_often_and_as_long(row: dict[str, str]) -> None:
    """At the clock at which the products take what they took, as the profiler does not know it."""
    matrix, run = of(row)
    gpu, measured = gpu_model(load_gpu(row["gpu"])), kernels_us(row)
    launches = muon_step({matrix: 1}, run)
    clocks = np.arange(1200.0, 1981.0, 15.0)
    each = at_clock(lower([one.operator for one in launches], gpu), clocks[:, None], gpu).time_s
    kinds = [one.operator.name.removeprefix("optimizer.muon.") for one in launches]
    repeats = np.array([one.repeat for one in launches])
    of_products = np.isin(kinds, ["gram", "square", "update"])
    products_us = sum(sum(measured[kind]) for kind in ("gram", "square", "update"))
    at = int(np.argmin(np.abs(1e6 * (each * repeats)[:, of_products].sum(axis=1) - products_us)))
    forecast: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for kind, time_s, repeat in zip(kinds, each[at], repeats, strict=True):
        forecast[kind].append((1e6 * time_s, int(repeat)))
    assert {kind: sum(n for _, n in some) for kind, some in forecast.items()} == {
        kind: len(some) for kind, some in measured.items()
    }
    for kind, some in forecast.items():
        if kind != "clamp":
            mean = sum(time * n for time, n in some) / sum(n for _, n in some)
            assert mean == pytest.approx(np.mean(measured[kind]), rel=0.3, abs=6.0), kind
            if kind in ("reorder", "add_across", "gram", "square", "update"):
                assert mean == pytest.approx(np.mean(measured[kind]), rel=0.18), kind


@pytest.mark.parametrize("row", rows("host.csv"))
def test_the_loop_takes_the_host_less_than_an_iterations_launches(row: dict[str, str]) -> None:
    launches = looped_launches(muon_step({Matrix((128,), 128): 1}, RUN))
    assert launches * float(row["host_launch_us"]) == pytest.approx(float(row["matrix_us"]), rel=0.1)
