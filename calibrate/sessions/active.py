"""What an active calibration adds: some kernels again, at clocks and power limits that it sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from joulecast.calibrate.devices.protocol import CardFacts, Settings
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark

#: Clocks, as shares of the highest, and power limits, as shares of what may be set: they span what plans use.
CLOCK_SHARES = (0.3, 0.42, 0.54, 0.66, 0.78, 0.9)
LIMIT_SHARES = (0.25, 0.5, 0.75)
#: Kinds of work that are measured again: some bound by the SMs, some by the memory, some in between, and none.
STRATA = ("gemm.bf16", "memory.copy", "attention.forward", "attention.backward", "elementwise", "norm", "idle")
#: Kernels of each kind.
PER_STRATUM = 2


def swept(benchmarks: Sequence[Microbenchmark], facts: CardFacts) -> list[Microbenchmark]:
    """Some of the microbenchmarks at locked clocks and at power limits that this user may set.

    The row of each says what is set: ``clock_mhz`` or ``power_limit_w``.
    """
    chosen = [b for stratum in STRATA for b in _spread([x for x in benchmarks if x.stratum == stratum])]
    clocks = _clocks(facts) if facts.may_set_clocks else []
    limits = _limits(facts) if facts.may_set_power_limit else []
    found = [_set(b, "clock_mhz", clock, "MHz") for b in chosen for clock in clocks]
    busy = [b for b in chosen if b.stratum.startswith(("gemm", "attention"))]
    return found + [_set(b, "power_limit_w", limit, "W") for b in busy for limit in limits]


def _spread(benchmarks: Sequence[Microbenchmark]) -> Iterator[Microbenchmark]:
    """A few of a kind, evenly spread over its list."""
    count = min(PER_STRATUM, len(benchmarks))
    for place in range(count):
        yield benchmarks[int((place + 0.5) * len(benchmarks) / count)]


def _set(benchmark: Microbenchmark, key: str, value: float, unit: str) -> Microbenchmark:
    name = f"{benchmark.name}_at_{value:g}{unit}"
    row = {**benchmark.row, "name": name, key: value}
    return replace(benchmark, name=name, row=row, stratum=f"{key.partition('_')[0]}.{benchmark.stratum}")


def _clocks(facts: CardFacts) -> list[float]:
    """Clocks that can be locked nearest to the shares; without a list of them, none can be relied on."""
    known = np.array(facts.sm_clocks_mhz)
    if not len(known):
        return []
    wanted = [share * facts.max_sm_clock_mhz for share in CLOCK_SHARES]
    return sorted({float(known[np.argmin(np.abs(known - clock))]) for clock in wanted})


def _limits(facts: CardFacts) -> list[float]:
    if facts.power_limit_range_w is None:
        return []
    low, high = facts.power_limit_range_w
    return sorted({float(round(low + share * (high - low))) for share in LIMIT_SHARES})


def settings_of(row: Mapping[str, Any]) -> Settings:
    """What a row wants to be set; nothing leaves the card's own."""
    clock, limit = row.get("clock_mhz"), row.get("power_limit_w")
    return Settings(None if clock is None else (float(clock), float(clock)), None if limit is None else float(limit))
