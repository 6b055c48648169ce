"""Measures collectives and work beside them, one process per GPU of one host:

python -m torch.distributed.run --standalone --nproc-per-node 4 \\
    -m joulecast.calibrate.microbenchmarks.distributed --record DIR

The first process leads, reads the power of all GPUs, and writes the recording; it goes on with one that it finds. On
CPU tensors (``--device cpu``) sizes shrink and only times are measured.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

from joulecast.calibrate.devices import open_device
from joulecast.calibrate.devices.processes import lives
from joulecast.calibrate.devices.protocol import CardFacts, Device
from joulecast.calibrate.devices.reserved import reserved
from joulecast.calibrate.measure.protocol import Measurement, measure
from joulecast.calibrate.measure.recorder import Recorder
from joulecast.calibrate.measure.recording import Card, Failed, software_versions
from joulecast.calibrate.measure.sampler import SamplerPool
from joulecast.calibrate.measure.settings import MeasureSettings
from joulecast.calibrate.microbenchmarks.catalogue import multi_gpu
from joulecast.calibrate.microbenchmarks.group_runner import GroupRunner, Member
from joulecast.calibrate.microbenchmarks.group_work import shrink_group_row
from joulecast.calibrate.microbenchmarks.protocol import Microbenchmark
from joulecast.calibrate.microbenchmarks.torch_backend import card_locator, load_torch
from joulecast.errors import JoulecastError, MeasurementError

#: A collective that takes longer has lost one of its members.
COLLECTIVE_TIMEOUT_S, COMMAND_TIMEOUT_S = 120, 3600
#: Runs of a benchmark of which only the time is measured.
TIMED_RUNS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of every process; the exit status is not 0 if nothing could be measured."""
    options = _parser().parse_args(arguments)
    end_with(options.starter)
    try:
        return _member(options)
    except JoulecastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status


def _parser() -> argparse.ArgumentParser:
    usual = MeasureSettings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path, required=True, help="folder of the recording")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="", help="names that contain one of these words, separated by commas")
    parser.add_argument("--budget", type=float, default=math.inf, help="begin no benchmark after so many seconds")
    parser.add_argument("--settle", type=float, default=usual.settle_s, help="seconds under load at first")
    parser.add_argument("--window", type=float, default=usual.window_s, help="seconds of a window")
    parser.add_argument("--windows", type=int, default=2, help="windows of a benchmark at most")
    parser.add_argument("--starter", type=int, help="process with which this one ends, beside its launcher")
    return parser


def end_with(starter: int | None) -> None:
    """End this process soon after its launcher, or who started that, was killed: nobody else would, and it holds a GPU.

    Parameters
    ----------
    starter
        The process that started the launcher, if anybody waits for it.
    """
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher and (starter is None or lives(starter)):
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _member(options: argparse.Namespace) -> int:
    """Join the group, then lead or follow."""
    torch = load_torch()
    try:
        rank, place = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    except KeyError:
        raise MeasurementError(
            "this process belongs to no group", remedy="Start it with python -m torch.distributed.run."
        ) from None
    # Multicast in the switch is another algorithm than the rings that are measured here; who wants it sets this.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    device = torch.device("cpu") if options.device == "cpu" else torch.device("cuda", place)
    control = _join(torch, device)
    try:
        member = Member(torch, device, control)
        locators: list[Any] = [None] * torch.distributed.get_world_size()
        mine = "" if device.type == "cpu" else card_locator(torch, device.index)
        torch.distributed.all_gather_object(locators, mine, group=control)
        if rank != 0:
            member.follow()
            return 0
        runner = GroupRunner(member, len(locators))
        try:
            return _lead(options, runner, [found for found in locators if found], len(locators))
        finally:
            runner.end()
    finally:
        torch.distributed.destroy_process_group()


def _join(torch: Any, device: Any) -> Any:
    """Join the group of all processes; what commands travel on."""
    dist = torch.distributed
    if device.type == "cpu":
        dist.init_process_group("gloo")
    else:
        if device.index >= torch.cuda.device_count():
            raise MeasurementError(
                f"PyTorch sees {torch.cuda.device_count()} GPUs, not {device.index + 1}",
                remedy="Start as many processes as there are GPUs.",
            )
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=COMMAND_TIMEOUT_S))


def _lead(options: argparse.Namespace, runner: GroupRunner, locators: Sequence[str], size: int) -> int:
    benchmarks = in_turn([b for b in multi_gpu(size) if any(word in b.name for word in options.only.split(","))])
    if options.device == "cpu":
        benchmarks = [replace(b, row=shrink_group_row(b.row)) for b in benchmarks]
    settings = replace(
        MeasureSettings(), settle_s=options.settle, window_s=options.window, most_windows=options.windows
    )
    with ExitStack() as stack:
        cards = [open_device(locator) for locator in locators]
        for card in cards:
            stack.callback(card.close)
            stack.enter_context(reserved(card))
        samplers = stack.enter_context(SamplerPool())
        how = {"gpus": size, "locators": list(locators), "settle_s": settings.settle_s, "window_s": settings.window_s}
        recorder = stack.enter_context(Recorder(options.record, _card(cards, how)))

        def result_of(benchmark: Microbenchmark) -> Measurement | Failed:
            if cards:
                return measure(cards, runner, samplers, benchmark, settings)
            return timed(runner, benchmark, settings)

        return _measure_all(benchmarks, result_of, recorder, options.budget)


def _card(cards: Sequence[Device], how: dict[str, Any]) -> Card:
    none = CardFacts("cpu", "CPU tensors", "", "", None, None, None, 0.0, None, energy_counter=False)
    return Card(cards[0].facts if cards else none, software_versions(), how=how)


def _measure_all(
    benchmarks: Sequence[Microbenchmark],
    result_of: Callable[[Microbenchmark], Measurement | Failed],
    recorder: Recorder,
    budget_s: float,
) -> int:
    begin, measured = time.monotonic(), len(recorder.recording.rows)
    done = recorder.recording.done
    for benchmark in benchmarks:
        if benchmark.name in done:
            continue
        if time.monotonic() - begin > budget_s:
            break
        result = result_of(benchmark)
        if isinstance(result, Failed):
            recorder.append_failure(result)
            sys.stdout.write(f"{benchmark.name}: FAILED {result.detail}\n")
        else:
            recorder.append_row(result.row)
            measured += 1
            sys.stdout.write(f"{benchmark.name}: {result.row['time_s'] * 1e6:.1f} µs\n")
        sys.stdout.flush()
    else:
        recorder.end(spent_s=time.monotonic() - begin)
    if not measured:
        sys.stderr.write("nothing could be measured\n")
    return 0 if measured else 1


def in_turn(benchmarks: Sequence[Microbenchmark]) -> list[Microbenchmark]:
    """One of every stratum after another, and of each its ends first, then what lies between: any beginning spans all.

    >>> [b.name for b in in_turn([Microbenchmark(name, {}, name[0]) for name in ("a1", "a2", "a3", "b1")])]
    ['a1', 'b1', 'a3', 'a2']
    """
    strata: dict[str, list[Microbenchmark]] = {}
    for benchmark in benchmarks:
        strata.setdefault(benchmark.stratum, []).append(benchmark)
    queues = [[members[index] for index in _ends_first(len(members))] for members in strata.values()]
    return [one for round_ in zip_longest(*queues) for one in round_ if one is not None]


def _ends_first(count: int) -> list[int]:
    """Numbers below ``count``: both ends, then the middles of what lies between, breadth first."""
    order, gaps = [0, count - 1][:count], [(0, count - 1)]
    for low, high in gaps:
        middle = (low + high) // 2
        if low < middle < high:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return order


def timed(runner: GroupRunner, benchmark: Microbenchmark, settings: MeasureSettings) -> Measurement | Failed:
    """The time of a repetition alone, where no card can be read."""
    begin = time.monotonic()
    try:
        load = runner.prepare(benchmark)
        try:
            runs = [load.run(settings.window_s / TIMED_RUNS) for _ in range(TIMED_RUNS)]
        finally:
            load.close()
    except MeasurementError as error:
        return Failed(benchmark.name, "work-failed", str(error))
    each = sorted(seconds / count for count, seconds in runs)
    row = {**benchmark.row, "name": benchmark.name, "time_s": each[len(each) // 2]}
    return Measurement(benchmark.name, row, len(runs), time.monotonic() - begin, each[-1] / each[0] - 1.0)


if __name__ == "__main__":
    sys.exit(main())
