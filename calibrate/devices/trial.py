"""Tries everything that this project asks of a card, idle and under load, and prints what was found as JSON.

python -m joulecast.calibrate.devices.trial nvml:0 --cuda cuda:0
python -m joulecast.calibrate.devices.trial nvml:0 --set        also locks clocks and the power limit for a moment
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from joulecast.calibrate.devices import open_device
from joulecast.calibrate.devices.checks import examine
from joulecast.calibrate.devices.cross_check import compare, counter_power
from joulecast.calibrate.devices.guardian import borrowed_settings
from joulecast.calibrate.devices.nvml import NvmlCard
from joulecast.calibrate.devices.nvml_activity import ActivityReader
from joulecast.calibrate.devices.protocol import Device, Sample, Settings
from joulecast.calibrate.devices.simulated import SimulatedCard
from joulecast.calibrate.devices.simulated_runner import SimulatedRunner
from joulecast.calibrate.measure.sampler import SamplerPool
from joulecast.calibrate.microbenchmarks.protocol import Load, Microbenchmark, Runner
from joulecast.errors import DeviceError, JoulecastError

#: The load, how long the card takes to settle under it, and how long it is watched [s].
ROW = {"op": "gemm", "M": 8192, "N": 8192, "K": 8192, "dtype": "bf16", "data": "randn"}
SETTLE_S, WATCH_S = 2.0, 4.0
#: What ``--set`` sets: shares of the highest clock and of the power limit.
CLOCK_SHARE, LIMIT_SHARE = 0.7, 0.8


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("device", help="a card, as nvml:0")
    parser.add_argument("--cuda", default="cuda:0", help="the same card as PyTorch writes it")
    parser.add_argument("--set", action="store_true", help="lock clocks and the power limit for a moment, and undo it")
    options = parser.parse_args(arguments)
    try:
        device = open_device(options.device)
        try:
            found = trial(device, options.cuda, settings=options.set)
        finally:
            device.close()
    except JoulecastError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


def trial(device: Device, cuda: str, *, settings: bool) -> dict[str, Any]:
    """Everything in order: the card, the card idle, the card under load, the card with settings."""
    examination = asdict(examine(device))
    examination["facts"]["sm_clocks_mhz"] = len(device.facts.sm_clocks_mhz)
    found: dict[str, Any] = {"idle": examination}
    load = _runner(device, cuda).prepare(Microbenchmark("trial", ROW, "gemm"))
    try:
        load.run(SETTLE_S)
        found["load"] = _under_load(device, load)
        found["set"] = _with_settings(device, load) if settings else "not asked for (--set)"
    finally:
        load.close()
    return found


def _runner(device: Device, cuda: str) -> Runner:
    if isinstance(device, SimulatedCard):
        return SimulatedRunner(device)
    from joulecast.calibrate.microbenchmarks.torch_runner import TorchRunner

    return TorchRunner(cuda)


def _under_load(device: Device, load: Load) -> dict[str, Any]:
    activity = _activity(device)
    with SamplerPool() as pool:
        sampler = pool(device)
        sampler.start(dense_counter=True)
        count, busy_s = load.run(WATCH_S)
        samples = sampler.stop()
        share = getattr(sampler, "core_share", None)
    used = "the card does not tell" if activity is None else asdict(activity.read())
    return {**_summary(samples), "time_s": busy_s / count, "sampler_core_share": share, "activity": used}


def _summary(samples: Sequence[Sample]) -> dict[str, Any]:
    power_w, step_s = counter_power(samples)
    first, last = samples[0], samples[-1]
    return {
        "samples": len(samples),
        "first": asdict(first),
        "last": asdict(last),
        "call_s": {"median": median(s.call_s for s in samples), "longest": max(s.call_s for s in samples)},
        "counter_power_w": power_w,
        "counter_step_s": step_s,
        "polled_over_counter": compare(samples),
        "components_w": {
            name: (joules - first.components_j.get(name, joules)) / (last.time_s - first.time_s)
            for name, joules in last.components_j.items()
        },
        "reasons": sorted({reason for sample in samples for reason in sample.reasons}),
    }


def _activity(device: Device) -> ActivityReader | None:
    if not isinstance(device, NvmlCard):
        return None
    try:
        return ActivityReader(device)
    except DeviceError:
        return None


def _with_settings(device: Device, load: Load) -> dict[str, Any]:
    """Settings under a guardian, and whether they took effect and were undone."""
    facts, before = device.facts, device.settings()
    clock = CLOCK_SHARE * facts.max_sm_clock_mhz
    if facts.sm_clocks_mhz:
        clock = min(facts.sm_clocks_mhz, key=lambda one: abs(one - clock))
    limit = None if facts.power_limit_w is None else LIMIT_SHARE * facts.power_limit_w
    wanted = {"clock": Settings((clock, clock)), "limit": Settings(power_limit_w=limit)}
    found: dict[str, Any] = {"before": asdict(before)}
    try:
        with borrowed_settings(device) as borrowed:
            for name, settings in wanted.items():
                borrowed.apply(settings)
                load.run(SETTLE_S)
                found[name] = {"wanted": asdict(settings), **_under_load(device, load)["last"]}
    except JoulecastError as error:
        found["refused"] = str(error)
    found["after"] = asdict(device.settings())
    found["undone"] = device.settings() == before
    return found


if __name__ == "__main__":
    sys.exit(main())
