"""How instructions stretch with contention and wandering clocks, against their tables made again with other values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.simulator.fluid.prepared import Prepared, prepare
from joulecast.simulator.iteration.stretch import stretches
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import load_plan


def both(
    examples: Path, name: str, parameter: str, *settings: str, clock_mhz: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """What half as much again of a parameter changes, by this and by new tables, at a clock, else the middle one."""
    plan = load_plan(examples / f"{name}.toml", settings)
    gpu = gpu_model(gpu_of(plan))
    base, more = {}, {parameter: 1.5 * gpu[parameter]}
    tables: list[Prepared] = [prepare(plan, gpu.with_values(values)) for values in (base, more)]
    middle = gpu.clocks_mhz[len(gpu.clocks_mhz) // 2]
    columns = np.flatnonzero(gpu.clocks_mhz == (middle if clock_mhz is None else clock_mhz))
    found = stretches(tables[0], 0, columns, [more])[0]
    again = np.log(tables[1].tables[0].duration_s / tables[0].tables[0].duration_s)[:, columns]
    return found[:, 0], again[:, 0]


@pytest.mark.parametrize("parameter", ["governor.wander", "governor.card_clock_spread"])
def test_groups_wait_longer_for_the_slowest_where_clocks_wander_further(examples: Path, parameter: str) -> None:
    found, again = both(examples, "llama-3.1-70b-8xh200", parameter)
    assert found.min() > 0.0015 and found == pytest.approx(again, rel=0.09)


def test_replicas_wait_for_a_card_but_not_for_what_one_does_meanwhile(examples: Path) -> None:
    found, again = both(examples, "llama-3.2-3b-4xh200-ddp", "governor.card_clock_spread")
    assert found.min() > 0.001 and found == pytest.approx(again, rel=0.02)
    found, again = both(examples, "llama-3.2-3b-4xh200-ddp", "governor.wander")
    assert not found.any() and not again.any()


def test_at_a_set_clock_nobody_waits_for_wandering_ones(examples: Path) -> None:
    found, again = both(examples, "llama-3.1-70b-8xh200", "governor.wander", "power.clock_mhz=1200", clock_mhz=1200.0)
    assert found.size and not found.any() and not again.any()


@pytest.mark.parametrize("parameter", ["compute_slowdown", "cta_slowdown", "cta_slowdown_memory"])
def test_kernels_beside_communication_take_longer_with_more_contention(examples: Path, parameter: str) -> None:
    """A few layers stand for all, whose ends have nothing beside them: that tells two thirds at least."""
    found, again = both(examples, "llama-3.1-8b-4xh200-nanobatches", f"contention.{parameter}")
    forward, backward, optimizer = again
    assert forward > backward > 0.001 and optimizer == found[2] == 0.0
    assert ((0.6 * again <= found) & (found <= 1.02 * again)).all()
